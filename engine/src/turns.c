#include "turns.h"

static uint8_t *begins, *ends; /* a bit for each call */
static struct {
	uint64_t asked, over;
	vqueue_t waiting;
} *groups; /* of threads that sync a file together */

static void set(uint8_t *bits, uint32_t call)
{
	bits[call / 8] |= (uint8_t)(1U << call % 8);
}

static bool is_set(const uint8_t *bits, uint64_t call)
{
	return bits != NULL && (bits[call / 8] >> call % 8 & 1) != 0;
}

static bool is_taken_in_turns(int32_t file)
{
	return file >= 0 && (size_t)file < R.nfiles && R.order.file[file].shared && R.files[file].known;
}

/*
 * SQLite ends each checkpoint by a truncation to the size that the file has.  Threads that have come further than when
 * recorded, or not as far, would all wait there for each other.
 */
static void find_growth(uint64_t first)
{
	int64_t *size = calloc(R.nfiles + 1, sizeof(*size));

	if (size == NULL)
		abort();
	for (size_t i = 0; i < R.nfiles; i++)
		size[i] = (int64_t)R.files[i].start_size;
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		if (!is_taken_in_turns(o->file))
			continue;
		if (o->op != OP_TRUNCATE) {
			size[o->file] = MAX(size[o->file], o->offset + o->size);
			continue;
		}
		if (o->size >= size[o->file])
			order_grows(&R.order, (uint32_t)i);
		size[o->file] = o->size;
	}
	free(size);
}

/* Of the files that are taken in turns, and of each group of threads, the one that is synced most. */
static void find_most_synced(uint64_t first, int32_t *log)
{
	uint64_t *syncs = calloc(R.nfiles + 1, sizeof(*syncs));

	if (syncs == NULL)
		abort();
	for (size_t g = 0; g < R.order.ngroups; g++)
		log[g] = -1;
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];
		int32_t *most = &log[R.order.group[o->thread]];

		if (!order_syncs(o) || !is_taken_in_turns(o->file))
			continue;
		syncs[o->file]++;
		if (*most < 0 || syncs[o->file] > syncs[*most])
			*most = o->file;
	}
	free(syncs);
}

/*
 * From the end: a turn ends with a sync.  It begins after the last wait for another's, if the thread waited between its own
 * two, and else with the first of its writes to the file since.  Where it did not wait and syncs another file than the log,
 * as in a checkpoint after its commit, that still belongs to the turn before.
 */
void turns_find(uint64_t first)
{
	struct {
		bool open, waited;
		int32_t file;
		uint32_t begin;
	} *turn, *mine;
	int32_t *log;
	uint32_t operate = 0;

	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		operate += R.threads[i].operates;
	if (operate < 2)
		return;
	turn = calloc((size_t)R.ops->nthreads + 1, sizeof(*turn));
	log = calloc(R.order.ngroups + 1, sizeof(*log));
	groups = calloc(R.order.ngroups + 1, sizeof(*groups));
	begins = calloc(R.ops->nops / 8 + 1, 1);
	ends = calloc(R.ops->nops / 8 + 1, 1);
	if (turn == NULL || log == NULL || groups == NULL || begins == NULL || ends == NULL)
		abort();
	for (size_t i = 0; i < R.nfiles; i++)
		if (is_taken_in_turns((int32_t)i))
			order_by_arrival(&R.order, (int32_t)i);
	find_growth(first);
	find_most_synced(first, log);
	for (uint64_t i = R.ops->nops; i-- > first;) {
		const op_t *o = &R.ops->op[i];
		uint32_t after = R.order.after[i];

		mine = &turn[o->thread];
		if (order_syncs(o)) {
			bool goes_on = mine->open && !mine->waited && mine->file != log[R.order.group[o->thread]];

			if (mine->open && !goes_on)
				set(begins, mine->begin);
			mine->open =
			    is_taken_in_turns(o->file) && o->via == VIA_SYSCALL && R.threads[o->thread].operates;
			mine->waited = false;
			mine->file = o->file;
			mine->begin = (uint32_t)i;
			if (mine->open && !goes_on)
				set(ends, (uint32_t)i);
		}
		if (!mine->open || mine->waited || o->via != VIA_SYSCALL)
			continue;
		mine->waited = after != ORDER_NONE && is_taken_in_turns(R.ops->op[after].file);
		if (mine->waited || (o->op == OP_WRITE && o->file == mine->file))
			mine->begin = (uint32_t)i;
	}
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		if (turn[i].open)
			set(begins, turn[i].begin);
	free(log);
	free(turn);
}

bool turns_begin(uint64_t call)
{
	return is_set(begins, call);
}

void turns_take(thread_t *t)
{
	uint16_t group = R.order.group[t - R.threads];
	uint64_t mine;

	turns_end(t);
	mine = groups[group].asked++;
	while (groups[group].over < mine)
		(void)vtime_wait(&groups[group].waiting, VTIME_NEVER);
	t->has_turn = true;
}

void turns_end(thread_t *t)
{
	uint16_t group = R.order.group[t - R.threads];

	if (!t->has_turn)
		return;
	t->has_turn = false;
	groups[group].over++;
	vtime_wake(&groups[group].waiting, true);
}

void turns_done(uint64_t call)
{
	if (is_set(ends, call))
		turns_end(&R.threads[R.ops->op[call].thread]);
}
