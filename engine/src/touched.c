#include "touched.h"

#include <stdlib.h>
#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/*
 * OpenZFS reads ahead of a read that begins in the record behind an earlier one, or in its last and goes on: at first so
 * much (zfetch_min_distance), then as much again as was read in a row (up to zfetch_max_distance).  It keeps several such
 * places of a file for a while (zfetch_max_sec_reap), of a file below 128 MiB one, for as long as no read begins another.
 * A read does that which is neither up to 16 MiB ahead of the place (zfetch_max_reorder) nor, for a while after, as close
 * behind it, once nothing has gone on from it for a second (zfetch_min_sec_reap).  Not followed: reads that leave out less
 * than a quarter of the records and are a row all the same, several places of a large file that last, and OpenZFS 2.1,
 * where any other read begins a place.
 */
#define AHEAD_NS 2000000000LL
#define KEPT_NS 1000000000LL
#define AHEAD_LEAST (4ULL << 20)
#define AHEAD_MOST (64ULL << 20)
#define REORDER (16ULL << 20)

#define ENDS (1U << 16)

/* Where reads ended of late. */
typedef struct {
	uint64_t record; /* the one behind */
	int64_t t;
	uint64_t row; /* bytes that were read up to there, in a row */
	int32_t file; /* -1: none */
} end_t;

static end_t *end_at(end_t *ends, int32_t file, uint64_t record)
{
	uint64_t h = ((uint64_t)file << 40 ^ record) * 0x9e3779b97f4a7c15ULL;

	return &ends[h >> 48 & (ENDS - 1)];
}

bool touched_has(const touched_t *t, uint64_t record)
{
	return record < t->records && (t->bits[record / 64] >> record % 64 & 1) != 0;
}

void touched_mark(touched_t *t, uint64_t first, uint64_t n)
{
	for (uint64_t i = first; i < t->records && i - first < n; i++) {
		t->count += !touched_has(t, i);
		t->bits[i / 64] |= 1ULL << i % 64;
	}
}

uint64_t touched_take(touched_t *t, uint64_t off, uint64_t len)
{
	uint64_t before = t->count, first, end;

	if (t->records == 0)
		return 0;
	first = off / t->recordsize + (off % t->recordsize != 0);
	end = (len > UINT64_MAX - off ? UINT64_MAX : off + len) / t->recordsize;
	touched_mark(t, first, end > first ? end - first : 0);
	return t->count - before;
}

static void mark_bytes(touched_t *t, uint64_t off, uint64_t len)
{
	if (t->records > 0 && len > 0)
		touched_mark(t, off / t->recordsize, (off + len - 1) / t->recordsize - off / t->recordsize + 1);
}

/* What was read in a row up to where a read goes on, by the file's one place; 0 if it does not go on from there. */
static uint64_t goes_on(touched_t *t, uint64_t first, uint64_t behind, int64_t now)
{
	touched_stream_t *s = &t->stream;
	uint64_t reorder = REORDER / t->recordsize + 1;
	bool ahead, just_passed;

	if (s->there && first <= s->record && behind > s->record) {
		s->there = behind < t->records - 1;
		s->record = behind;
		s->t = now;
		return s->row;
	}
	ahead = (first > s->record || behind == s->record) && behind <= s->record + reorder;
	just_passed = behind < s->record && behind + reorder > s->record && now - s->t <= AHEAD_NS;
	if (s->there && (ahead || just_passed))
		s->t = now;
	else if (behind < t->records - 1 && (!s->there || now - s->t >= KEPT_NS))
		/* What nothing has gone on from yet may be taken at once. */
		*s = (touched_stream_t){.there = true, .record = behind, .t = now - KEPT_NS};
	return 0;
}

static void read_ahead(touched_t *t, end_t *ends, const op_t *o)
{
	uint64_t off = (uint64_t)o->offset, len = (uint64_t)o->size, row = len, before;
	uint64_t first = off / t->recordsize, behind;
	end_t *e;

	if (len == 0)
		return;
	behind = (off + len - 1) / t->recordsize + 1;
	before = goes_on(t, first, behind, o->t);
	for (uint64_t at = first; before == 0 && at < behind && at <= first + 1; at++) {
		e = end_at(ends, o->file, at);
		if (e->file == o->file && e->record == at && o->t - e->t <= AHEAD_NS)
			before = e->row;
	}
	row += before;
	if (before > 0)
		mark_bytes(t, behind * t->recordsize, MIN(MAX(row, AHEAD_LEAST), AHEAD_MOST));
	if (t->stream.there && t->stream.record == behind)
		t->stream.row = MAX(t->stream.row, row);
	e = end_at(ends, o->file, behind);
	if (e->file == o->file && e->record == behind)
		row = MAX(row, e->row);
	*e = (end_t){behind, o->t, row, o->file};
}

void touched_find(const ops_t *ops, touched_t *files, size_t nfiles)
{
	end_t *ends = malloc(ENDS * sizeof(*ends));

	if (ends == NULL)
		abort();
	for (size_t i = 0; i < ENDS; i++)
		ends[i].file = -1;
	for (size_t i = 0; i < nfiles; i++)
		if (files[i].records > 0 &&
		    (files[i].bits = calloc(files[i].records / 64 + 1, sizeof(uint64_t))) == NULL)
			abort();
	for (uint64_t i = 0; i < ops->nops; i++) {
		const op_t *o = &ops->op[i];
		const int32_t both[2] = {o->file, o->op == OP_COPY ? o->file2 : -1};

		for (int k = 0; k < 2; k++) {
			touched_t *t;

			if (both[k] < 0 || (size_t)both[k] >= nfiles || (t = &files[both[k]])->records == 0)
				continue;
			switch (o->op) {
			case OP_READ:
			case OP_WARM:
				read_ahead(t, ends, o);
				/* fall through */
			case OP_WRITE:
			case OP_COPY:
			case OP_READ_AHEAD:
				mark_bytes(t, (uint64_t)o->offset, (uint64_t)o->size);
				break;
			case OP_FALLOCATE:
				/* What is cut at its edges is read; what is between is freed. */
				if (o->flags & (OPF_PUNCH | OPF_ZERO)) {
					mark_bytes(t, (uint64_t)o->offset, 1);
					mark_bytes(t, (uint64_t)o->offset + (uint64_t)o->size, 1);
				}
				break;
			case OP_TRUNCATE:
				mark_bytes(t, (uint64_t)o->size, 1);
				break;
			default:
				break;
			}
		}
	}
	free(ends);
}

void touched_free(touched_t *t)
{
	free(t->bits);
	*t = (touched_t){0};
}
