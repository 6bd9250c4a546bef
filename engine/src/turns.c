#include "turns.h"

static uint8_t *begins; /* a bit for each call */

static bool is_taken_in_turns(int32_t file)
{
	return file >= 0 && (size_t)file < R.nfiles && R.order.file[file].shared && R.files[file].known;
}

/*
 * From the end: a turn ends with a sync.  It begins after the last wait for another's, if the thread waited between its own
 * two, and else with the first of its writes to the file since.
 */
void turns_find(uint64_t first)
{
	struct {
		bool open, waited;
		int32_t file;
		uint32_t begin;
	} *turn, *mine;
	uint32_t operate = 0;

	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		operate += R.threads[i].operates;
	if (operate < 2)
		return;
	turn = calloc((size_t)R.ops->nthreads + 1, sizeof(*turn));
	begins = calloc(R.ops->nops / 8 + 1, 1);
	if (turn == NULL || begins == NULL)
		abort();
	for (size_t i = 0; i < R.nfiles; i++)
		if (is_taken_in_turns((int32_t)i))
			order_by_arrival(&R.order, (int32_t)i);
	for (uint64_t i = R.ops->nops; i-- > first;) {
		const op_t *o = &R.ops->op[i];
		uint32_t after = R.order.after[i];

		mine = &turn[o->thread];
		if (order_syncs(o)) {
			if (mine->open)
				begins[mine->begin / 8] |= (uint8_t)(1U << mine->begin % 8);
			mine->open =
			    is_taken_in_turns(o->file) && o->via == VIA_SYSCALL && R.threads[o->thread].operates;
			mine->waited = false;
			mine->file = o->file;
			mine->begin = (uint32_t)i;
		}
		if (!mine->open || mine->waited || o->via != VIA_SYSCALL)
			continue;
		mine->waited = after != ORDER_NONE && is_taken_in_turns(R.ops->op[after].file);
		if (mine->waited || (o->op == OP_WRITE && o->file == mine->file))
			mine->begin = (uint32_t)i;
	}
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		if (turn[i].open)
			begins[turn[i].begin / 8] |= (uint8_t)(1U << turn[i].begin % 8);
	free(turn);
}

bool turns_begin(uint32_t call)
{
	return begins != NULL && (begins[call / 8] >> call % 8 & 1) != 0;
}

void turns_take(thread_t *t, uint32_t call)
{
	rfile_t *f;
	uint64_t mine;

	turns_end(t);
	while (!order_syncs(&R.ops->op[call]))
		call = R.order.next_of_thread[call];
	f = &R.files[R.ops->op[call].file];
	mine = f->turns_asked++;
	while (f->turns_over < mine)
		(void)vtime_wait(&f->waiting, VTIME_NEVER);
	t->turn = f;
}

void turns_end(thread_t *t)
{
	if (t->turn == NULL)
		return;
	t->turn->turns_over++;
	vtime_wake(&t->turn->waiting, true);
	t->turn = NULL;
}

void turns_synced(thread_t *t, int32_t file)
{
	if (t->turn != NULL && t->turn == &R.files[file])
		turns_end(t);
}
