#include "order.h"

#include <stdlib.h>

/* The files of a call: its own, and another one that it has to do with. */
static int files_of(const order_t *o, const op_t *op, int32_t file[2])
{
	int n = 0;

	if (op->file >= 0 && (size_t)op->file < o->nfiles)
		file[n++] = op->file;
	if (op->file2 >= 0 && (size_t)op->file2 < o->nfiles && op->file2 != op->file)
		file[n++] = op->file2;
	return n;
}

static bool is_barrier(const order_t *o, uint32_t call)
{
	switch (o->ops->op[call].op) {
	case OP_CREATE:
	case OP_UNLINK:
	case OP_RENAME:
	case OP_TRUNCATE:
	case OP_FALLOCATE:
		return true;
	default:
		return o->strict;
	}
}

static bool is_sync(const op_t *op)
{
	return op->op == OP_FSYNC || op->op == OP_FDATASYNC || op->op == OP_MSYNC;
}

static bool is_done(const order_t *o, uint32_t call)
{
	return (o->done[call / 8] >> call % 8 & 1) != 0;
}

static void move_on(const order_t *o, struct order_file *f)
{
	while (f->open < f->n && is_done(o, f->calls[f->open]))
		f->open++;
	while (f->barrier < f->n && (is_done(o, f->calls[f->barrier]) || !is_barrier(o, f->calls[f->barrier])))
		f->barrier++;
	while (f->write < f->n) {
		const op_t *op = &o->ops->op[f->calls[f->write]];

		if (!is_done(o, f->calls[f->write]) && op->op != OP_READ && !is_sync(op))
			break;
		f->write++;
	}
}

static void *zeros(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (p == NULL)
		abort();
	return p;
}

void order_make(order_t *o, const ops_t *ops, uint64_t first, size_t nfiles, bool strict)
{
	uint32_t *last = zeros(ops->nthreads, sizeof(*last));
	uint64_t total = 0;
	int32_t file[2];

	*o = (order_t){.ops = ops, .nfiles = nfiles, .strict = strict};
	o->file = zeros(nfiles, sizeof(*o->file));
	o->next_of_thread = zeros(ops->nops, sizeof(uint32_t));
	o->done = zeros(ops->nops / 8 + 1, 1);
	for (uint32_t i = 0; i < ops->nthreads; i++)
		last[i] = ORDER_NONE;
	for (uint64_t i = first; i < ops->nops; i++) {
		const op_t *op = &ops->op[i];
		int n = files_of(o, op, file);

		for (int k = 0; k < n; k++)
			o->file[file[k]].n++;
		total += (uint64_t)n;
		o->next_of_thread[i] = ORDER_NONE;
		if (last[op->thread] != ORDER_NONE)
			o->next_of_thread[last[op->thread]] = (uint32_t)i;
		last[op->thread] = (uint32_t)i;
	}
	free(last);
	o->of_file = zeros(total, sizeof(uint32_t));
	total = 0;
	for (size_t i = 0; i < nfiles; i++) {
		o->file[i].calls = o->of_file + total;
		o->file[i].left = o->file[i].n;
		total += o->file[i].n;
		o->file[i].n = 0;
	}
	for (uint64_t i = first; i < ops->nops; i++) {
		int n = files_of(o, &ops->op[i], file);

		for (int k = 0; k < n; k++)
			o->file[file[k]].calls[o->file[file[k]].n++] = (uint32_t)i;
	}
	for (size_t i = 0; i < nfiles; i++)
		move_on(o, &o->file[i]);
}

void order_free(order_t *o)
{
	free(o->file);
	free(o->of_file);
	free(o->next_of_thread);
	free(o->done);
}

/* Where a call is among those of a file. */
static uint32_t place(const struct order_file *f, uint32_t call)
{
	uint32_t low = 0, high = f->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (f->calls[middle] < call)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int32_t order_waits_for(const order_t *o, uint64_t call)
{
	const op_t *op = &o->ops->op[call];
	int32_t file[2];
	int n = files_of(o, op, file);

	for (int k = 0; k < n; k++) {
		const struct order_file *f = &o->file[file[k]];
		uint32_t p = place(f, (uint32_t)call);

		if (p > f->barrier || (is_barrier(o, (uint32_t)call) && p > f->open) || (is_sync(op) && p > f->write))
			return file[k];
	}
	return -1;
}

void order_done(order_t *o, uint64_t call)
{
	int32_t file[2];
	int n = files_of(o, &o->ops->op[call], file);

	o->done[call / 8] |= (uint8_t)(1U << call % 8);
	for (int k = 0; k < n; k++) {
		o->file[file[k]].left--;
		move_on(o, &o->file[file[k]]);
	}
}

bool order_is_last(const order_t *o, int32_t file)
{
	return o->file[file].left == 1;
}
