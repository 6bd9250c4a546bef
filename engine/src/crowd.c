#include "crowd.h"

#include <math.h>
#include <stdlib.h>

#include "chance.h"

#ifndef MIN /* headers of OpenZFS's may be in the way of the C library's */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#endif

#define STREAMS 16
#define PLACES 64
#define NEAR (4U << 20)        /* bytes that reads of a row may leave out: rows of a table by an index do */
#define SPREAD_NS 1000000000LL /* the others come within this time */

typedef enum { READS, WRITES, KINDS } kind_t;

/* A request that waits for its turn, or those that one stands for. */
typedef struct {
	int64_t time, step; /* from one to the next, on average */
	uint64_t order;
	request_t *own; /* NULL: others */
	crowd_others_t others;
} train_t;

/* A write with those that it stands for. */
typedef struct {
	void *owner; /* the request's: it hears of the last */
	crowd_others_t others;
} turn_t;

typedef struct {
	train_t *heap; /* by time */
	size_t n, room;
	int on_disk;
	int64_t last; /* when the last one came that stands for others */
	struct {
		uint64_t end, at; /* where it ended for OpenZFS; where on the disk what follows is */
		uint32_t len;     /* of its last request */
	} stream[STREAMS];
	uint64_t place[PLACES];
	unsigned next_stream, next_place, nplaces;
} line_t;

struct crowd {
	device_t *device;
	stretch_t stretch;
	uint64_t random, order;
	line_t line[KINDS];
};

crowd_t *crowd_new(device_t *device, uint64_t number, stretch_t stretch)
{
	crowd_t *c = calloc(1, sizeof(*c));

	if (c == NULL)
		abort();
	c->device = device;
	c->stretch = stretch;
	c->random = number * 0xd1342543de82ef95ULL + 1;
	for (int k = 0; k < KINDS; k++) {
		c->line[k].last = INT64_MIN / 2;
		for (int i = 0; i < STREAMS; i++)
			c->line[k].stream[i].end = UINT64_MAX;
	}
	return c;
}

/* In [0, 1). */
static double chance(crowd_t *c)
{
	return (double)(chance_next(&c->random) >> 11) / 9007199254740992.0;
}

static bool before(const train_t *a, const train_t *b)
{
	return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void push(line_t *l, train_t t)
{
	size_t i = l->n++;

	if (l->n > l->room && (l->heap = realloc(l->heap, (l->room = l->room * 2 + 64) * sizeof(*l->heap))) == NULL)
		abort();
	for (; i > 0 && before(&t, &l->heap[(i - 1) / 2]); i = (i - 1) / 2)
		l->heap[i] = l->heap[(i - 1) / 2];
	l->heap[i] = t;
}

static train_t pop(line_t *l)
{
	train_t first = l->heap[0], last = l->heap[--l->n];
	size_t i = 0, k;

	for (; (k = 2 * i + 1) < l->n; i = k) {
		k += k + 1 < l->n && before(&l->heap[k + 1], &l->heap[k]);
		if (!before(&l->heap[k], &last))
			break;
		l->heap[i] = l->heap[k];
	}
	if (l->n > 0)
		l->heap[i] = last;
	return first;
}

static uint64_t within(const crowd_t *c, double off, uint64_t len)
{
	uint64_t span = c->device->span;

	return len >= span ? 0 : (uint64_t)fmod(MAX(off, 0.0), (double)(span - len)) / 512 * 512;
}

static double stretched(const stretch_t *s, uint64_t off)
{
	double loaded = (double)(s->to - s->from), whole = loaded * spread_times(s->spread);
	double end = (double)s->from + whole;

	if (off < s->from)
		return (double)off;
	if (off < s->to)
		return (double)s->from + whole * spread_share(s->spread, (double)(off - s->from) / loaded);
	return (double)off >= end ? (double)off : end + (double)(off - s->to);
}

/*
 * The row that a request goes on, STREAMS if there is none; and how much it leaves out.  What lies next to each other here may
 * not in the whole, of which more lies between.
 */
static unsigned row_of(const crowd_t *c, const line_t *l, const request_t *r, bool alone, uint64_t *gap)
{
	double least = NEAR, middle = stretched(&c->stretch, r->off + r->len / 2), apart;
	unsigned best = STREAMS, i = 0;

	*gap = 0;
	if (r->op != REQ_READ || !c->device->p->hdd || !alone) {
		while (i < STREAMS && l->stream[i].end != r->off)
			i++;
		return i;
	}
	for (i = 0; i < STREAMS; i++) {
		uint64_t end = l->stream[i].end, len = l->stream[i].len;

		if (end > r->off)
			continue;
		apart = middle - stretched(&c->stretch, end - len / 2) - (double)(r->len + len) / 2.0;
		if (apart < least) {
			least = apart;
			best = i;
		}
	}
	/* Records are not as large everywhere. */
	if (best < STREAMS && least > r->len / 8.0)
		*gap = (uint64_t)least / 512 * 512;
	return best;
}

/*
 * Where a request is on the whole disk: behind the one that it goes on from, with those that that one stands for; or where
 * all that was left out has its place too.  alone: it stands for none but itself.  Returns whether it goes on.
 */
static bool locate(crowd_t *c, line_t *l, request_t *r, uint64_t all, bool alone)
{
	uint64_t end = r->off + r->len, at, gap;
	uint32_t len = r->len;
	unsigned i = row_of(c, l, r, alone, &gap);
	bool goes_on = i < STREAMS;

	if (goes_on) {
		at = (l->stream[i].at + gap + all <= c->device->span ? l->stream[i].at : within(c, 0, gap + all)) + gap;
	} else {
		at = within(c, stretched(&c->stretch, r->off), all);
		i = l->next_stream = (l->next_stream + 1) % STREAMS;
	}
	r->off = at;
	l->stream[i].end = end;
	l->stream[i].len = len;
	l->stream[i].at = at + all;
	return goes_on;
}

static line_t *line_of(crowd_t *c, req_op_t op)
{
	return &c->line[op == REQ_READ ? READS : WRITES];
}

crowd_others_t crowd_place(crowd_t *c, request_t *r, double ios, double bytes)
{
	line_t *l = line_of(c, r->op);
	double more = MAX(ios - 1.0, 0.0), len;
	/* One that stands for one, but a larger one, is as large there. */
	uint32_t size = more > 0 ? r->len : (uint32_t)MIN(MAX(bytes, (double)r->len), 16777216.0);
	crowd_others_t o = {.op = r->op};

	o.left = (uint32_t)more + (chance(c) < more - floor(more));
	len = more > 0 ? MIN(MAX((bytes - r->len) / more, 512.0), 16777216.0) : 0;
	o.len = (uint32_t)len;
	o.in_row = locate(c, l, r, size + (uint64_t)o.left * o.len, o.left == 0);
	r->len = size;
	o.off = r->off + r->len;
	/*
	 * Reads come from many threads, each at a time of its own.  Writes come when the one before is done, and what goes on
	 * where it ended is read so too.
	 */
	o.within =
	    r->op == REQ_READ && !(o.in_row && c->device->p->hdd) ? SPREAD_NS : MIN(r->arrival - l->last, SPREAD_NS);
	if (more <= 0)
		return o;
	l->last = r->arrival;
	if (!o.in_row) {
		l->place[l->next_place] = r->off;
		l->next_place = (l->next_place + 1) % PLACES;
		l->nplaces = MAX(l->nplaces, l->next_place == 0 ? PLACES : l->next_place);
	}
	return o;
}

request_t *crowd_other(crowd_t *c, crowd_others_t *o)
{
	const line_t *l = line_of(c, o->op);
	request_t *r = calloc(1, sizeof(*r));

	if (r == NULL)
		abort();
	r->op = o->op;
	r->len = o->len;
	r->off = o->off;
	o->left--;
	if (o->in_row)
		o->off += o->len;
	else
		/* Near one of those that were asked for of late. */
		r->off = within(c,
		    (double)l->place[(size_t)(chance(c) * l->nplaces)] +
			(chance(c) - 0.5) * (double)c->device->span / 500,
		    r->len);
	return r;
}

crowd_others_t crowd_part(crowd_others_t *o, uint32_t n)
{
	crowd_others_t part = *o;

	part.left = n;
	o->left -= n;
	if (o->in_row)
		o->off += (uint64_t)n * o->len;
	return part;
}

static bool let_in(crowd_t *c, int64_t now)
{
	bool any = false;

	for (int k = 0; k < KINDS; k++) {
		line_t *l = &c->line[k];

		while (l->n > 0 && l->heap[0].time <= now && l->on_disk < CROWD_AT_ONCE) {
			train_t t = pop(l);
			request_t *r = t.own;

			if (r == NULL) {
				r = crowd_other(c, &t.others);
				if (t.others.left > 0) {
					t.time += (int64_t)((double)t.step * 2.0 * chance(c));
					push(l, t);
				}
			}
			r->cookie = 1 + (uint64_t)k;
			r->arrival = now;
			device_submit(c->device, r);
			l->on_disk++;
			any = true;
		}
	}
	return any;
}

void crowd_spread(crowd_t *c, request_t *r, crowd_others_t others, int64_t now)
{
	line_t *l = line_of(c, others.op);
	train_t t = {.others = others, .step = others.within / ((int64_t)others.left + 1)};

	if (others.len == 0) {
		r->cookie = 0;
		device_submit(c->device, r);
		return;
	}
	if (r != NULL)
		push(l, (train_t){.time = now, .order = c->order++, .own = r});
	if (others.left > 0) {
		t.time = now + (int64_t)((double)t.step * 2.0 * chance(c));
		t.order = c->order++;
		push(l, t);
	}
	(void)let_in(c, now);
}

void crowd_in_turn(crowd_t *c, request_t *r, crowd_others_t others)
{
	turn_t *t;

	r->cookie = 0;
	if (others.left > 0) {
		if ((t = malloc(sizeof(*t))) == NULL)
			abort();
		*t = (turn_t){r->owner, others};
		t->others.in_row = true;
		r->owner = NULL;
		r->cookie = (uint64_t)(uintptr_t)t;
	}
	device_submit(c->device, r);
}

/* A write is done.  Returns the request if it was the last of its turn; the next one goes to the disk if not. */
static request_t *take_turn(crowd_t *c, request_t *r, int64_t now)
{
	turn_t *t = (turn_t *)(uintptr_t)r->cookie;
	request_t *next;

	if (t->others.left == 0) {
		r->owner = t->owner;
		r->cookie = 0;
		free(t);
		return r;
	}
	request_free(r);
	next = crowd_other(c, &t->others);
	next->cookie = (uint64_t)(uintptr_t)t;
	next->arrival = now;
	device_submit(c->device, next);
	return NULL;
}

int64_t crowd_next(const crowd_t *c)
{
	int64_t t = device_next(c->device);

	for (int k = 0; k < KINDS; k++)
		if (c->line[k].n > 0 && c->line[k].on_disk < CROWD_AT_ONCE)
			t = MIN(t, c->line[k].heap[0].time);
	return t;
}

request_t *crowd_done(crowd_t *c, int64_t now)
{
	request_t *r;

	do {
		device_advance(c->device, now);
		while ((r = device_done(c->device)) != NULL) {
			/* The cookie is 0, a kind, or a turn. */
			if (r->cookie > KINDS && (r = take_turn(c, r, now)) == NULL)
				continue;
			if (r->cookie != 0)
				c->line[r->cookie - 1].on_disk--;
			if (r->owner != NULL)
				return r;
			request_free(r);
		}
	} while (let_in(c, now));
	return NULL;
}

void crowd_drain(crowd_t *c)
{
	int64_t t;

	while (c->line[READS].n + c->line[WRITES].n > 0 || c->line[READS].on_disk + c->line[WRITES].on_disk > 0) {
		if ((t = crowd_next(c)) == DEVICE_NEVER)
			return;
		request_free(crowd_done(c, t));
	}
}
