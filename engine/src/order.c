#include "order.h"

#include <stdlib.h>

#include "underway.h"

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
	case OP_FALLOCATE:
		return true;
	case OP_TRUNCATE:
		return o->strict || !order_only_grows(o, call);
	default:
		return o->strict;
	}
}

static bool is_sync(const op_t *op)
{
	return op->op == OP_FSYNC || op->op == OP_FDATASYNC || op->op == OP_MSYNC;
}

bool order_syncs(const op_t *op)
{
	return is_sync(op) || (op->op == OP_WRITE && (op->flags & (OPF_SYNC | OPF_DSYNC)) != 0);
}

bool order_is_done(const order_t *o, uint64_t call)
{
	return (o->done[call / 8] >> call % 8 & 1) != 0;
}

static void move_on(const order_t *o, struct order_file *f)
{
	while (f->open < f->n && order_is_done(o, f->calls[f->open]))
		f->open++;
	while (f->barrier < f->n && (order_is_done(o, f->calls[f->barrier]) || !is_barrier(o, f->calls[f->barrier])))
		f->barrier++;
	while (f->write < f->n) {
		const op_t *op = &o->ops->op[f->calls[f->write]];

		if (!order_is_done(o, f->calls[f->write]) && op->op != OP_READ && op->op != OP_READ_AHEAD &&
		    !is_sync(op))
			break;
		f->write++;
	}
	while (f->sync < f->n && (order_is_done(o, f->calls[f->sync]) || !order_syncs(&o->ops->op[f->calls[f->sync]])))
		f->sync++;
}

static uint64_t pair(const op_t *op)
{
	return (uint64_t)op->file << 16 | op->thread;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static bool is_syncer(const order_t *o, uint64_t who)
{
	return bsearch(&who, o->syncer, o->nsyncers, sizeof(who), by_value) != NULL;
}

bool order_shares_log(const order_t *o, uint16_t thread)
{
	return o->shares[thread];
}

/* Is a call on a file that several threads sync? */
static bool is_shared(const order_t *o, const op_t *op)
{
	return op->file >= 0 && (size_t)op->file < o->nfiles && o->file[op->file].shared;
}

static void *zeros(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (p == NULL)
		abort();
	return p;
}

/* Which threads sync which files, and which files several do. */
static void find_syncers(order_t *o, uint64_t first)
{
	size_t n = 0, room = 0;

	for (uint64_t i = first; i < o->ops->nops; i++) {
		const op_t *op = &o->ops->op[i];

		if (!order_syncs(op) || op->file < 0 || (size_t)op->file >= o->nfiles)
			continue;
		if (n > 0 && o->syncer[n - 1] == pair(op))
			continue;
		if (n == room && (o->syncer = realloc(o->syncer, (room = room * 2 + 256) * sizeof(uint64_t))) == NULL)
			abort();
		o->syncer[n++] = pair(op);
	}
	if (n > 0)
		qsort(o->syncer, n, sizeof(uint64_t), by_value);
	for (size_t i = 0; i < n; i++) {
		if (o->nsyncers > 0 && o->syncer[o->nsyncers - 1] == o->syncer[i])
			continue;
		if (o->nsyncers > 0 && o->syncer[o->nsyncers - 1] >> 16 == o->syncer[i] >> 16)
			o->file[o->syncer[i] >> 16].shared = true;
		o->syncer[o->nsyncers++] = o->syncer[i];
	}
}

/* The first of the threads that sync a file with this one, or with one that does. */
static uint16_t first_of(uint16_t *with, uint16_t thread)
{
	while (with[thread] != thread)
		thread = with[thread] = with[with[thread]];
	return thread;
}

/* Whose syncs cover whose commits: of two jobs each has a log of its own, and nobody waits for the other's. */
static void find_groups(order_t *o)
{
	uint16_t *with = zeros(o->ops->nthreads, sizeof(*with));

	o->group = zeros(o->ops->nthreads, sizeof(*o->group));
	for (uint32_t i = 0; i < o->ops->nthreads; i++)
		with[i] = (uint16_t)i;
	for (size_t i = 1; i < o->nsyncers; i++)
		if (o->syncer[i] >> 16 == o->syncer[i - 1] >> 16)
			with[first_of(with, o->syncer[i] & UINT16_MAX)] = first_of(with, o->syncer[i - 1] & UINT16_MAX);
	for (uint32_t i = 0; i < o->ops->nthreads; i++)
		if (first_of(with, (uint16_t)i) == i)
			o->group[i] = (uint16_t)o->ngroups++;
	for (uint32_t i = 0; i < o->ops->nthreads; i++)
		o->group[i] = o->group[first_of(with, (uint16_t)i)];
	free(with);
}

/* Times in which at least one sync of a shared file was on, and how long all of them took up to each one's end. */
typedef struct {
	struct {
		int64_t begin, end, sum;
	} *at;
	size_t n, room;
} spans_t;

/* By group. */
static spans_t *find_spans(const order_t *o, uint64_t first)
{
	spans_t *spans = zeros(o->ngroups, sizeof(*spans));

	for (uint64_t i = first; i < o->ops->nops; i++) {
		const op_t *op = &o->ops->op[i];
		int64_t end = op_end(op), sum;
		spans_t *s = &spans[o->group[op->thread]];

		if (!order_syncs(op) || !is_shared(o, op))
			continue;
		if (s->n > 0 && op->t <= s->at[s->n - 1].end) {
			s->at[s->n - 1].sum += end > s->at[s->n - 1].end ? end - s->at[s->n - 1].end : 0;
			s->at[s->n - 1].end = end > s->at[s->n - 1].end ? end : s->at[s->n - 1].end;
			continue;
		}
		if (s->n == s->room && (s->at = realloc(s->at, (s->room = s->room * 2 + 256) * sizeof(*s->at))) == NULL)
			abort();
		sum = (s->n > 0 ? s->at[s->n - 1].sum : 0) + op->dur;
		s->at[s->n].begin = op->t, s->at[s->n].end = end, s->at[s->n].sum = sum;
		s->n++;
	}
	return spans;
}

/* For how long, up to t, such a sync was on. */
static int64_t on_until(const spans_t *s, int64_t t)
{
	size_t low = 0, high = s->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (s->at[middle].begin <= t)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return 0;
	return s->at[low - 1].sum - (s->at[low - 1].end > t ? s->at[low - 1].end - t : 0);
}

typedef struct {
	int64_t end;
	uint32_t call;
} ended_t;

static int by_end(const void *a, const void *b)
{
	const ended_t *x = a, *y = b;

	return (x->end > y->end) - (x->end < y->end);
}

/* Does a call write or sync a file for which its thread has to wait until others have synced it? */
static bool takes_log(const order_t *o, const op_t *op)
{
	return (op->op == OP_WRITE || is_sync(op)) && is_shared(o, op) && is_syncer(o, pair(op));
}

/* For each call the sync of a shared file that its thread waited for before it, as the trace tells. */
static void take_waits(order_t *o, uint64_t first)
{
	int64_t *idle = zeros(o->ops->nthreads, sizeof(*idle)); /* since when */
	ended_t *syncs = NULL;
	size_t n = 0;

	for (uint64_t i = first; i < o->ops->nops; i++) {
		const op_t *op = &o->ops->op[i];

		if (!order_syncs(op) || !is_shared(o, op))
			continue;
		if ((n & (n - 1)) == 0 && (syncs = realloc(syncs, (n * 2 + 1) * sizeof(*syncs))) == NULL)
			abort();
		syncs[n++] = (ended_t){op_end(op), (uint32_t)i};
	}
	if (n > 0)
		qsort(syncs, n, sizeof(*syncs), by_end);
	for (uint64_t i = first; i < o->ops->nops; i++) {
		const op_t *op = &o->ops->op[i], *sync;
		int64_t since = idle[op->thread];
		ended_t key = {op->t - op->since_sync, 0}, *found = NULL;

		if (op->since_sync > 0 && n > 0)
			found = bsearch(&key, syncs, n, sizeof(*syncs), by_end);
		sync = found != NULL && found->call < i ? &o->ops->op[found->call] : NULL;
		o->after[i] = ORDER_NONE;
		if (sync != NULL && sync->thread != op->thread && key.end > since &&
		    is_syncer(o, (uint64_t)sync->file << 16 | op->thread))
			o->after[i] = found->call;
		if (op_end(op) > since)
			idle[op->thread] = op_end(op);
		if (o->waited == NULL)
			continue;
		/* Else nothing makes it wait here, and what it did then stays as long as it was. */
		o->waited[i] = o->after[i] != ORDER_NONE || takes_log(o, op) ? op->waited : 0;
		o->before[i] = -1;
		/* Nothing that was done after it had begun is covered by it. */
		if (o->after[i] != ORDER_NONE && since > 0 && sync->t >= since)
			o->before[i] = key.end - since > op->waited ? key.end - since - op->waited : 0;
		if (order_shares_log(o, op->thread) && since > 0 && op->t - since > o->waited[i])
			o->think += op->t - since - o->waited[i];
	}
	free(syncs);
	free(idle);
}

/* For each call the last sync of a shared file, by another thread, that ended since its thread's last call did. */
static void find_waits(order_t *o, uint64_t first)
{
	int64_t *idle = zeros(o->ops->nthreads, sizeof(*idle)); /* since when */
	underway_t syncs = {0};
	uint32_t call;
	struct {
		int64_t ended;
		uint32_t call;
	} *last = zeros(o->ngroups, sizeof(*last)), *mine; /* sync to end, by group */
	spans_t *spans = o->waited != NULL ? find_spans(o, first) : NULL;

	for (size_t g = 0; g < o->ngroups; g++)
		last[g].ended = -1, last[g].call = ORDER_NONE;
	for (uint64_t i = first; i < o->ops->nops; i++) {
		const op_t *op = &o->ops->op[i];

		for (size_t k = 0; underway_ended(&syncs, o->ops, op->t, &k, &call);) {
			const op_t *before = &o->ops->op[call];

			mine = &last[o->group[before->thread]];
			if (op_end(before) >= mine->ended) {
				mine->ended = op_end(before);
				mine->call = call;
			}
		}
		mine = &last[o->group[op->thread]];
		o->after[i] = ORDER_NONE;
		if (o->before != NULL)
			o->before[i] = -1;
		if (mine->call != ORDER_NONE && mine->ended > idle[op->thread] &&
		    o->ops->op[mine->call].thread != op->thread &&
		    is_syncer(o, (uint64_t)o->ops->op[mine->call].file << 16 | op->thread))
			o->after[i] = mine->call;
		if (o->waited != NULL && o->after[i] != ORDER_NONE) {
			const spans_t *s = &spans[o->group[op->thread]];
			int64_t since = idle[op->thread], begun = o->ops->op[mine->call].t;
			int64_t on = on_until(s, since);

			o->waited[i] = on_until(s, mine->ended) - on;
			/* Nothing that was done after it had begun is covered by it. */
			if (since > 0 && begun >= since)
				o->before[i] = begun - since - (on_until(s, begun) - on);
		}
		if (o->waited != NULL && order_shares_log(o, op->thread) && idle[op->thread] > 0 &&
		    op->t > idle[op->thread])
			o->think += op->t - idle[op->thread] - o->waited[i];
		if (op_end(op) > idle[op->thread])
			idle[op->thread] = op_end(op);
		if (!order_syncs(op) || !is_shared(o, op))
			continue;
		underway_add(&syncs, (uint32_t)i);
	}
	for (size_t g = 0; spans != NULL && g < o->ngroups; g++)
		free(spans[g].at);
	free(spans);
	free(last);
	underway_free(&syncs);
	free(idle);
}

void order_make(order_t *o, const ops_t *ops, uint64_t first, size_t nfiles, int how)
{
	uint32_t *last = zeros(ops->nthreads, sizeof(*last));
	uint64_t total = 0;
	int32_t file[2];

	*o = (order_t){.ops = ops,
		.nfiles = nfiles,
		.strict = (how & ORDER_STRICT) != 0,
		.told = (how & ORDER_TOLD) != 0};
	o->file = zeros(nfiles, sizeof(*o->file));
	o->next_of_thread = zeros(ops->nops, sizeof(uint32_t));
	o->after = zeros(ops->nops, sizeof(uint32_t));
	if ((how & ORDER_WAITED) != 0)
		o->waited = zeros(ops->nops, sizeof(int64_t)), o->before = zeros(ops->nops, sizeof(int64_t));
	o->done = zeros(ops->nops / 8 + 1, 1);
	o->shares = zeros(ops->nthreads, sizeof(bool));
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
	find_syncers(o, first);
	for (size_t i = 0; i < o->nsyncers; i++)
		if (o->file[o->syncer[i] >> 16].shared)
			o->shares[o->syncer[i] & UINT16_MAX] = true;
	find_groups(o);
	if (o->told)
		take_waits(o, first);
	else
		find_waits(o, first);
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

void order_by_arrival(order_t *o, int32_t file)
{
	o->file[file].arrives = true;
}

void order_grows(order_t *o, uint32_t call)
{
	if (o->grows == NULL)
		o->grows = zeros(o->ops->nops / 8 + 1, 1);
	o->grows[call / 8] |= (uint8_t)(1U << call % 8);
	move_on(o, &o->file[o->ops->op[call].file]);
}

bool order_only_grows(const order_t *o, uint64_t call)
{
	return o->grows != NULL && (o->grows[call / 8] >> call % 8 & 1) != 0;
}

void order_free(order_t *o)
{
	free(o->grows);
	free(o->file);
	free(o->of_file);
	free(o->next_of_thread);
	free(o->after);
	free(o->waited);
	free(o->before);
	free(o->done);
	free(o->shares);
	free(o->group);
	free(o->syncer);
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

/* Has a sync of a shared file, by another thread, ended before this call began, and not yet here? */
static bool waits_for_sync(const order_t *o, const struct order_file *f, uint32_t p, const op_t *op)
{
	if (!f->shared || f->arrives || (op->op != OP_WRITE && !is_sync(op)) || !is_syncer(o, pair(op)))
		return false;
	for (uint32_t q = f->sync; q < p; q++) {
		const op_t *before = &o->ops->op[f->calls[q]];

		if (order_syncs(before) && op_end(before) <= op->t && !order_is_done(o, f->calls[q]))
			return true;
	}
	return false;
}

int32_t order_waits_for(const order_t *o, uint64_t call)
{
	const op_t *op = &o->ops->op[call];
	int32_t file[2];
	int n = files_of(o, op, file);

	for (int k = 0; k < n; k++) {
		const struct order_file *f = &o->file[file[k]];
		uint32_t p = place(f, (uint32_t)call);

		if (p > f->barrier || (is_barrier(o, (uint32_t)call) && p > f->open) ||
		    (is_sync(op) && !f->arrives && p > f->write) || (k == 0 && waits_for_sync(o, f, p, op)))
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
