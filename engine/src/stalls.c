#include "stalls.h"

#include "underway.h"

#define LEAST 100      /* pauses while nobody writes back, to tell what is usual */
#define USUAL 0.95     /* of these are no longer than is usual */
#define MORE_OFTEN 2.0 /* that many times as often they are longer while somebody does, or nobody waits for that */

#define PARTS 8 /* of each power of two */
#define BINS (64 * PARTS)

typedef struct {
	uint64_t n, bin[BINS];
	double sum;
} pauses_t;

/* Who waits: a client for the background, one of the background for another. */
typedef enum { CLIENTS, BACKGROUND, KINDS } kind_t;

/* Of a kind: pauses in which a call that may be waited for ended, others, and what is usual of these. */
typedef struct {
	pauses_t beside, alone;
	unsigned usual;
} seen_t;

static uint32_t *stall; /* by call */
static int64_t work;

static unsigned bin_of(int64_t ns)
{
	return ns < 2 ? 0 : MIN((unsigned)(log2((double)ns) * PARTS), BINS - 1);
}

static void add(pauses_t *p, int64_t ns)
{
	p->n++;
	p->sum += (double)ns;
	p->bin[bin_of(ns)]++;
}

/* How many are in a bin, or in one of longer pauses. */
static uint64_t from(const pauses_t *p, unsigned bin)
{
	uint64_t n = 0;

	for (unsigned b = bin; b < BINS; b++)
		n += p->bin[b];
	return n;
}

static int64_t end_of(uint32_t call)
{
	return op_end(&R.ops->op[call]);
}

static kind_t kind_of(uint64_t i)
{
	const thread_t *t = &R.threads[R.ops->op[i].thread];

	return t->commits ? CLIENTS : t->background ? BACKGROUND : KINDS;
}

/* What the thread did or waited for before the call, but for others' syncs; -1: nothing. */
static int64_t pause_before(const int64_t *idle, uint64_t i)
{
	const op_t *o = &R.ops->op[i];

	if (kind_of(i) == KINDS || idle[o->thread] == 0 || o->t <= idle[o->thread])
		return -1;
	return o->t - idle[o->thread] - R.order.waited[i];
}

static void goes_on(int64_t *idle, uint64_t i)
{
	const op_t *o = &R.ops->op[i];

	idle[o->thread] = MAX(idle[o->thread], op_end(o));
}

/* For each call the last of the background's that ended in the pause before it; how long pauses are with one and without. */
static void find_pauses(uint64_t first, int64_t *idle, seen_t *seen)
{
	underway_t background = {0};
	uint32_t call, last = ORDER_NONE;

	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];
		int64_t pause = pause_before(idle, i);
		seen_t *s = &seen[kind_of(i)];

		for (size_t k = 0; underway_ended(&background, R.ops, o->t, &k, &call);)
			if (last == ORDER_NONE || end_of(call) >= end_of(last))
				last = call;
		if (pause >= 0 && last != ORDER_NONE && end_of(last) > idle[o->thread] &&
		    R.ops->op[last].thread != o->thread) {
			stall[i] = last;
			add(&s->beside, pause);
		} else if (pause >= 0 && (background.n == 0 || s != &seen[CLIENTS])) {
			add(&s->alone, pause);
		}
		goes_on(idle, i);
		if (kind_of(i) == BACKGROUND)
			underway_add(&background, (uint32_t)i);
	}
	underway_free(&background);
}

/*
 * From which bin on pauses are longer than usual; none where they are not so more often beside the background's calls, or
 * most that are longer have none of these in them: a long pause has one more easily, also if nobody waits.
 */
static void find_usual(seen_t *s)
{
	uint64_t longer;

	s->usual = BINS;
	if (s->alone.n < LEAST)
		return;
	while (s->usual > 0 && (double)from(&s->alone, s->usual) < (1.0 - USUAL) * (double)s->alone.n)
		s->usual--;
	longer = from(&s->beside, s->usual + 1);
	if ((double)longer < MORE_OFTEN * (1.0 - USUAL) * (double)s->beside.n || longer < from(&s->alone, s->usual + 1))
		s->usual = BINS;
}

/*
 * Another's sync that ended later is waited for after the background's call, one that ended before that, before it.  What
 * is left of the pause then is the thread's own work.
 */
static void keep(uint64_t i, int64_t pause)
{
	int64_t ended = end_of(stall[i]), left = R.ops->op[i].t - ended;
	uint32_t sync = R.order.after[i];

	if (sync != ORDER_NONE && end_of(sync) > ended) {
		int64_t begun = R.ops->op[sync].t;

		R.order.waited[i] = MIN(R.order.waited[i], end_of(sync) - MAX(begun, ended));
		R.order.before[i] = begun >= ended ? begun - ended : -1;
		left -= R.order.waited[i];
	} else if (sync == ORDER_NONE) {
		R.order.waited[i] = 0; /* that was before what writes back was done, for all that is known */
	}
	if (order_shares_log(&R.order, R.ops->op[i].thread))
		R.order.think -= MAX(pause - work - left, 0);
}

void stalls_find(uint64_t first)
{
	seen_t *seen = calloc(KINDS + 1, sizeof(*seen));
	int64_t *idle = calloc((size_t)R.ops->nthreads + 1, sizeof(*idle));

	if (seen == NULL || idle == NULL || (stall = malloc((R.ops->nops + 1) * sizeof(*stall))) == NULL)
		abort();
	for (uint64_t i = 0; i < R.ops->nops; i++)
		stall[i] = ORDER_NONE;
	find_pauses(first, idle, seen);
	for (int k = 0; k < KINDS; k++)
		find_usual(&seen[k]);
	work = (int64_t)(seen[CLIENTS].alone.sum / MAX((double)seen[CLIENTS].alone.n, 1.0));
	for (uint32_t k = 0; k < R.ops->nthreads; k++)
		idle[k] = 0;
	for (uint64_t i = first; i < R.ops->nops; i++) {
		int64_t pause = pause_before(idle, i);

		goes_on(idle, i);
		if (stall[i] != ORDER_NONE && bin_of(pause) > seen[kind_of(i)].usual)
			keep(i, pause);
		else
			stall[i] = ORDER_NONE;
	}
	free(idle);
	free(seen);
}

uint32_t stalls_for(uint64_t i)
{
	return stall != NULL ? stall[i] : ORDER_NONE;
}

int64_t stalls_work(void)
{
	return work;
}
