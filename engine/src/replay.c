#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clockwork.h"
#include "content.h"
#include "footprint.h"
#include "image.h"
#include "memvdev.h"
#include "order.h"
#include "processor.h"
#include "sampled.h"
#include "touched.h"
#include "vtime.h"
#include "weights.h"
#include "worktime.h"

#include "zfs.h"

#define PIECE (32ULL << 20) /* one call is done in pieces of at most this, as OpenZFS does it */
#define SHADOW (1ULL << 36) /* verify: address space per file */
#define NS 1000000000LL

bool replay_progress;

typedef struct {
	fl_file_t *f; /* NULL: does not exist now */
	bool known;   /* the layout has this file */
	bool unlinked, making;
	bool elsewhere; /* it is there, and nothing of it is in the sample */
	int dataset, pool;
	uint32_t id, names;
	int log;          /* in R.logs, -1: of none */
	vqueue_t waiting; /* calls that wait for others on it */
	uint64_t start_size;
	const content_t *content;
	uint8_t *shadow;
	bool is_read, is_written; /* by the trace */
	double stands_for;        /* of a sampled file: how many of its calls each of them does */
	uint64_t whole;           /* bytes of the file of which this is the sample, or its own */
	const spec_file_t *spec;
	weights_range_t *certain;  /* its records that stand for themselves */
	double written, stood_for; /* bytes that calls wrote, and what these stand for */
	touched_t touched;         /* where not all is loaded */
	/* Bytes on disk that this file stands for, and its own, when the measure began. */
	double space, missing; /* missing: of space, what was not loaded */
	double logical, compressed;
	uint64_t used;
} rfile_t;

/* Who owns a file has no part in its I/O. */
static const fl_new_t new_file = {.mode = S_IFREG | 0600};

/* The lock of a log that threads share, and commits without a sync of their own in the trace. */
typedef struct {
	double share, owed; /* of waits for another's sync: how many are commits */
	bool held;
	uint32_t leaders;        /* who wait for the lock with a sync of the trace */
	uint64_t asked, covered; /* commits that others are to sync, and how many they have */
	int32_t file;            /* where it was written last, -1: nowhere */
	int64_t end;
	uint32_t *writes; /* calls that write it, in the order of the trace: what is written, whoever comes when */
	size_t nwrites, came, written;
	uint64_t covers; /* commits that its holder has written */
	vqueue_t waiting;
} commits_t;

/* A call that its thread does not wait for before the next. */
typedef struct {
	int64_t recorded_done;
	int64_t done; /* trace time, NOT_YET */
} pending_t;
#define NOT_YET INT64_MIN

typedef struct {
	uint32_t next; /* its next call, ORDER_NONE if it has no more */
	double wait_s;
	int64_t async_until; /* up to when its waits for asynchronous calls are counted */
	int64_t began;       /* when its last call began */
	int64_t recorded_began;
	int64_t done;              /* when the last of those that had to be done before its next call was */
	int64_t recorded_done;     /* … when recorded */
	commits_t *holds;          /* it has written this log and is to sync it */
	uint64_t asked[SPEC_LOGS]; /* by log: which of its commits its own is that is under way, 0: none */
	bool commits;              /* closed: it is one of those whose commits are the job's */
	bool background;           /* closed: it writes what they have made dirty */
	int64_t at;                /* trace time of the call that it has come to */
	pending_t *pending;
	size_t npending, pending_room;
	vqueue_t waiting;
} thread_t;

static struct {
	const spec_t *spec;
	const ops_t *ops;
	result_t *r;
	pace_t pace;
	fl_volume_t **vols;
	content_t *content;
	rfile_t *files;
	size_t nfiles;
	thread_t *threads;
	uint8_t *buf;  /* of the load */
	uint8_t *sink; /* what is read, and nobody looks at */
	order_t order;
	double busy;    /* closed: how much of what threads that share a log do between calls is the processors' work */
	int64_t *ended; /* by sync, the trace time at which it was done */
	bool *begun;    /* by sync of such a log */
	int64_t zero;   /* virtual time at which the trace began */
	uint64_t done, in_call;
	uint32_t threads_left;
	int64_t end;      /* trace time at which the last call was done */
	int64_t recorded; /* … when recorded */
	bool by_commits;
	uint64_t most, paced; /* of what tells the pace: how many are most, and how many have ended */
	int rc;
	vqueue_t waiting;          /* who waits for the threads */
	commits_t logs[SPEC_LOGS]; /* whose commits go together */
	/* Closed: how far those have come whose commits are the job's, and who waits for that. */
	struct {
		uint64_t threads;
		int64_t sum;   /* of their trace times */
		int64_t least; /* that somebody waits for */
		vqueue_t waiting;
	} job;
	/* per pool */
	uint64_t group[16]; /* bytes loaded in the open transaction group */
	uint64_t txg_start[16];
	/* Bytes of files' blocks: what was loaded, as datasets and as pools count it; when the measure began, and for all. */
	double used, allocated, real, stands;
	uint64_t whole; /* bytes in the ARC whatever was sampled */
	err_t *err;
} R;

static int64_t trace_now(void)
{
	return vtime_now() - R.zero;
}

static void progress(const char *phase, double done, bool force)
{
	static double last;
	double now;

	if (!replay_progress)
		return;
	now = wall_now();
	if (!force && now - last < 0.2)
		return;
	last = now;
	(void)fprintf(stderr, "{\"phase\":\"%s\",\"done\":%.4f}\n", phase, done);
	(void)fflush(stderr);
}

static void note(samples_t *s, waits_t *dataset, int64_t ns, double calls)
{
	double ms = (double)MAX(ns, 0) / 1e6;

	if (s->n == s->room) {
		s->room = s->room == 0 ? 4096 : s->room * 2;
		if ((s->one = realloc(s->one, s->room * sizeof(*s->one))) == NULL)
			abort();
	}
	s->one[s->n++] = (latency_t){(float)ms, (float)calls};
	s->sum += ms * calls;
	s->calls += calls;
	if (dataset != NULL) {
		dataset->calls += calls;
		dataset->sum_ms += ms * calls;
	}
}

static int failed(int error, const char *what, const rfile_t *f)
{
	const char *ds = R.spec->datasets[f->dataset].name;

	if (error == ENOSPC)
		(void)err_set(R.err, "The pool of %s is full: the layout's disks are too small for this workload.", ds);
	else
		(void)err_set(R.err, "%s file %u on %s failed: %s.", what, f->id, ds, strerror(error));
	return EXIT_FAILED;
}

static void file_name(const rfile_t *f, char *name, size_t len)
{
	(void)snprintf(name, len, "file%010" PRIu32 ".%" PRIu32, f->id, f->names);
}

/* --- verify: what each file must hold --- */

static void shadow_write(rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	if (f->shadow == NULL || off + len > SHADOW)
		return;
	if (buf != NULL)
		memcpy(f->shadow + off, buf, len);
	else
		memset(f->shadow + off, 0, len);
}

static int shadow_check(const rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	if (f->shadow == NULL || off + len > SHADOW || memcmp(f->shadow + off, buf, len) == 0)
		return 0;
	for (uint64_t i = 0; i < len; i++)
		if (f->shadow[off + i] != buf[i])
			return err_set(R.err, "File %u reads back wrong at byte %llu.", f->id,
			    (unsigned long long)(off + i));
	return 0;
}

/* --- load --- */

static void group_grew(int pool, uint64_t bytes)
{
	if ((R.group[pool] += bytes) >= pool_load_group(R.spec->arc_max)) {
		pool_next_txg(pool);
		R.group[pool] = 0;
	}
	clockwork_wait_evicted();
}

/* Writes a part of a file with its content. */
static int load_bytes(rfile_t *f, uint64_t from, uint64_t end, uint64_t *done, uint64_t total)
{
	uint64_t piece = MAX(R.spec->datasets[f->dataset].recordsize, 1ULL << 20);
	bool commit;
	int error;

	for (uint64_t off = from; off < end; off += piece) {
		uint64_t n = MIN(piece, end - off);

		content_fill(f->content, f->id, off, n, 0, R.buf);
		shadow_write(f, off, n, R.buf);
		if ((error = fl_write(f->f, off, R.buf, n, 0, &commit)) != 0)
			return failed(error, "Filling", f);
		*done += n;
		group_grew(f->pool, n);
		progress("load", total > 0 ? (double)*done / (double)total : 1.0, false);
	}
	return 0;
}

static int load_file(rfile_t *f, uint64_t *done, uint64_t total)
{
	char name[64];
	bool commit;
	int error;

	file_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &new_file, &f->f, &commit)) != 0)
		return failed(error, "Creating", f);
	return load_bytes(f, 0, f->start_size, done, total);
}

/* --- load: what the trace touches --- */

#define FANOUT 1024               /* records below an indirect block */
#define POINTERS (128 << 10)      /* bytes of one */
#define LOADED_LEAST 32           /* records of the files of a kind, to know what they come to … */
#define LOADED_BYTES (8ULL << 20) /* … and bytes of them */

/* Files of one dataset and content: their records come to the same. */
static bool of_kind(const rfile_t *f, int dataset, const content_t *content)
{
	return f->known && f->start_size > 0 && f->dataset == dataset && f->content == content;
}

/* … or it would be, were anything of it in the sample. */
static bool counts_as(const rfile_t *f, int dataset, const content_t *content)
{
	return of_kind(f, dataset, content) || (f->elsewhere && f->dataset == dataset && f->content == content);
}

/* Loads so much that it is known what a record comes to; a file of one record has that as its block. */
static void touch_some(int dataset, const content_t *content)
{
	uint64_t rs = R.spec->datasets[dataset].recordsize, records = 0, count = 0, at = 0;
	uint64_t wanted, every;

	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		if (!of_kind(f, dataset, content))
			continue;
		if (f->whole <= rs)
			touched_mark(&f->touched, 0, 1);
		records += f->touched.records;
		count += f->touched.count;
	}
	wanted = MAX(LOADED_LEAST, LOADED_BYTES / rs);
	if (count >= wanted)
		return;
	every = MAX(records / (wanted - count), 1);
	for (size_t i = 0; i < R.nfiles; i++) {
		touched_t *t = &R.files[i].touched;

		if (!of_kind(&R.files[i], dataset, content))
			continue;
		for (; at < t->records; at += every)
			touched_mark(t, at, 1);
		at -= t->records;
	}
}

/*
 * Below each indirect block that the trace comes to all records are there, with content or without, so that the block is
 * as large as in truth; where it does not come to one, nothing is.
 */
static int load_touched(rfile_t *f, uint64_t *done, uint64_t total)
{
	const touched_t *t = &f->touched;
	char name[64];
	bool commit;
	int error, rc = 0;

	file_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &new_file, &f->f, &commit)) != 0 ||
	    (error = fl_truncate(f->f, f->start_size, &commit)) != 0 ||
	    (error = sampled_depth(f->f, (f->whole + t->recordsize - 1) / t->recordsize)) != 0)
		return failed(error, "Creating", f);
	for (uint64_t w = 0; w < t->records; w += FANOUT) {
		uint64_t end = MIN(w + FANOUT, t->records), n, i = w;

		while (i < end && !touched_has(t, i))
			i++;
		if (i == end)
			continue;
		if ((error = sampled_fill(f->f, w, end, t)) != 0)
			return failed(error, "Filling", f);
		group_grew(f->pool, POINTERS);
		for (; i < end && rc == 0; i += n) {
			for (n = 1; i + n < end && touched_has(t, i + n); n++)
				;
			rc = load_bytes(f, i * t->recordsize, MIN((i + n) * t->recordsize, f->start_size), done, total);
			for (; i + n < end && !touched_has(t, i + n); n++)
				;
		}
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* What a file would have on disk were all of it there, of blocks that come to what its kind's do on average. */
static void estimate(rfile_t *f, const sampled_count_t *c)
{
	const touched_t *t = &f->touched;
	uint64_t rs = t->recordsize, windows = 0, whole;
	double records, above; /* indirect blocks */
	double data = c->data > 0 ? (double)c->data_used / (double)c->data : 0.0;
	double indirect = c->indirect > 0 ? (double)c->indirect_used / (double)c->indirect : 0.0;

	for (uint64_t w = 0; w < t->records; w += FANOUT) {
		uint64_t i = w, end = MIN(w + FANOUT, t->records);

		while (i < end && !touched_has(t, i))
			i++;
		windows += i == end;
	}
	f->missing = data * (double)(t->records - t->count) + indirect * (double)windows;
	whole = f->spec->whole_start;
	records = ceil((double)whole / (double)rs);
	above = records > 1 ? ceil(records / FANOUT) : 0.0;
	if (f->stands_for > 1.0) {
		f->space = data * records + indirect * above;
		f->missing *= f->stands_for;
	}
	f->logical = records * (double)MIN(rs, MAX(whole, 1)) + above * POINTERS;
	f->compressed = c->data > 0 ? records * (double)c->data_compressed / (double)c->data : 0.0;
	if (c->indirect > 0)
		f->compressed += above * (double)c->indirect_compressed / (double)c->indirect;
}

static int load_all_touched(void)
{
	touched_t *touched = calloc(R.nfiles + 1, sizeof(*touched));
	uint64_t total = 0;
	int rc;

	if (touched == NULL)
		abort();
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];
		uint64_t rs = f->known ? R.spec->datasets[f->dataset].recordsize : 1;

		touched[i].recordsize = rs;
		touched[i].records = f->known ? (f->start_size + rs - 1) / rs : 0;
	}
	touched_find(R.ops, touched, R.nfiles);
	for (size_t i = 0; i < R.nfiles; i++)
		R.files[i].touched = touched[i];
	free(touched);
	for (size_t d = 0; d < R.spec->ndatasets; d++)
		for (size_t k = 0; k < R.spec->ncontent; k++)
			touch_some((int)d, &R.content[k]);
	for (size_t i = 0; i < R.nfiles; i++)
		total += R.files[i].touched.count * R.files[i].touched.recordsize;
	for (size_t d = 0; d < R.spec->ndatasets; d++)
		for (size_t k = 0; k < R.spec->ncontent; k++) {
			sampled_count_t c;
			uint64_t records = 0;

			sampled_count();
			for (size_t i = 0; i < R.nfiles; i++) {
				if (!of_kind(&R.files[i], (int)d, &R.content[k]))
					continue;
				records += R.files[i].touched.count;
				if ((rc = load_touched(&R.files[i], &R.r->load_bytes, total)) != 0)
					return rc;
			}
			if (records == 0)
				continue;
			pool_sync(R.spec->datasets[d].pool);
			c = sampled_counted();
			/* One of zeros alone is no block, and takes none. */
			c.data = records;
			R.used += (double)c.used;
			R.allocated += (double)c.allocated;
			for (size_t i = 0; i < R.nfiles; i++)
				if (counts_as(&R.files[i], (int)d, &R.content[k]))
					estimate(&R.files[i], &c);
		}
	for (size_t i = 0; i < R.nfiles; i++)
		touched_free(&R.files[i].touched);
	return 0;
}

/* --- what stands for what --- */

/* Of a part of a file, how many bytes are certain. */
static double certain_bytes(const rfile_t *f, uint64_t off, uint64_t end)
{
	double n = 0;

	for (size_t i = 0; f->spec != NULL && i < f->spec->ncertain; i++) {
		uint64_t from = MAX(off, f->spec->certain[i].off);
		uint64_t to = MIN(end, f->spec->certain[i].off + f->spec->certain[i].len);

		n += to > from ? (double)(to - from) : 0.0;
	}
	return n;
}

/* For how many bytes each of a part of a file stands. */
static double stands_for(const rfile_t *f, uint64_t off, uint64_t len)
{
	if (f->stands_for <= 1.0 || len == 0)
		return f->stands_for;
	return f->stands_for - (f->stands_for - 1.0) * certain_bytes(f, off, off + len) / (double)len;
}

static double call_stands_for(const rfile_t *f, const op_t *o)
{
	return stands_for(f, (uint64_t)MAX(o->offset, 0), (uint64_t)MAX(o->size, 0));
}

/* How many each of a file's blocks stands for. */
static void stand_for(rfile_t *f)
{
	uint64_t rs = R.spec->datasets[f->dataset].recordsize;
	const weights_file_t file = {
		.whole = (f->whole + rs - 1) / rs,
		.sampled = (MAX(f->start_size, rs) + rs - 1) / rs,
		.rate = f->stands_for,
		.sector = 1ULL << R.spec->pools[f->pool].ashift,
		.written = f->is_written,
		.certain = f->certain,
		.ncertain = f->spec != NULL ? f->spec->ncertain : 0,
	};

	if (R.spec->rate <= 1 || f->f == NULL)
		return;
	if (f->stands_for <= 1.0) {
		if (!f->is_read)
			weights_set_log(f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f));
		return;
	}
	weights_set(f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f), &file);
}

static void logged(fl_file_t *file, uint64_t off, uint64_t bytes)
{
	for (size_t i = 0; R.spec->rate > 1 && i < R.spec->ndatasets; i++) {
		const spec_dataset_t *d = &R.spec->datasets[i];
		weights_block_t block;

		if (R.vols[i] != fl_volume_of(file))
			continue;
		block = (weights_block_t){
			.pool = d->pool,
			.objset = fl_volume_objset(R.vols[i]),
			.object = fl_object(file),
			.number = off / d->recordsize,
		};
		weights_logged(d->pool, block.objset, bytes, weights_of(block, 0).blocks);
	}
}

/* Of a sampled file, how many bytes would be as many in the whole, as far as the size of the ARC goes. */
static double whole_bytes(const rfile_t *f)
{
	double certain = certain_bytes(f, 0, f->start_size), rest = (double)f->start_size - certain;

	/* One that is sampled less than the rest takes a larger share of the ARC than of the whole one. */
	return certain + (f->is_read ? rest * (R.spec->rate - f->stands_for) / (R.spec->rate - 1.0) : 0.0);
}

/* As the caches begin to fill: what is in the ARC already, and what will be of files that are read whole. */
static void note_whole(void)
{
	uint64_t size, evictable;

	if (R.spec->rate <= 1)
		return;
	pool_arc_size(&size, &evictable);
	R.whole = size - MIN(evictable, size);
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];
		double ratio = f->logical > 0 ? MIN(f->compressed / f->logical, 1.0) : 1.0;

		if (f->f != NULL && f->is_read && f->stands_for <= 1.0)
			R.whole += sampled_used(f->f);
		else if (f->f != NULL && f->stands_for > 1.0)
			R.whole += (uint64_t)(whole_bytes(f) * ratio);
	}
	(void)sampled_arc_limit(R.spec->arc_max, R.whole);
}

/* As the measure begins. */
static void note_space(void)
{
	R.real = R.stands = 0;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		if (f->elsewhere)
			R.stands += f->space;
		if (f->f == NULL)
			continue;
		stand_for(f);
		f->used = sampled_used(f->f);
		if (f->stands_for <= 1.0)
			f->space = (double)f->used + f->missing;
		R.real += (double)f->used;
		R.stands += f->space;
	}
}

/* How many times as far apart lies on the whole disks what is on these. */
static double spread(void)
{
	if (!R.spec->touched && R.spec->rate <= 1)
		return 1.0;
	return R.real > 0 ? MAX(R.stands / R.real, 1.0) : 1.0;
}

/*
 * The space that all files take: what they took when the measure began, and by how much they grew since, as much as they
 * stand for.
 */
static void stand_for_space(void)
{
	double more = 0, per_byte = R.used > 0 ? R.allocated / R.used : 1.0;

	for (size_t d = 0; d < R.spec->ndatasets; d++) {
		double logical = 0, compressed = 0;
		space_t *s = &R.r->dataset_space[d];

		for (size_t i = 0; i < R.nfiles; i++) {
			const rfile_t *f = &R.files[i];
			double used, grown, begin;

			if (f->elsewhere && f->f == NULL && f->dataset == (int)d) {
				s->allocated += (uint64_t)llround(f->space);
				more += f->space;
				logical += f->logical;
				compressed += f->compressed;
			}
			if (f->dataset != (int)d || f->f == NULL || f->unlinked)
				continue;
			used = (double)sampled_used(f->f);
			grown = (used - (double)f->used) * (f->written > 0 ? f->stood_for / f->written : f->stands_for);
			s->allocated += (uint64_t)(int64_t)llround(f->space + grown - used);
			more += f->space + grown - used;
			begin = f->logical > 0 ? (double)f->start_size : 0.0;
			logical += f->logical +
			    ((double)fl_size(f->f) - begin) *
				stands_for(f, (uint64_t)begin, fl_size(f->f) - MIN((uint64_t)begin, fl_size(f->f)));
			compressed += f->compressed + grown;
		}
		s->logical = (uint64_t)MAX(logical, 0);
		s->ratio = compressed > 0 ? logical / compressed : 1.0;
	}
	R.r->allocated += (uint64_t)(int64_t)llround(more * per_byte);
}

/* Waits until OpenZFS has nothing to do and no I/O is under way. */
static void quiesce(void)
{
	uint64_t before = UINT64_MAX;
	int same = 0;

	for (int i = 0; i < 10000 && same < 3; i++) {
		uint64_t now = memvdev_begun();

		same = now == before && memvdev_in_flight() == 0 ? same + 1 : 0;
		before = now;
		vtime_sleep_until(vtime_now() + 3000000);
	}
	clockwork_wait_evicted();
}

static void settle(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_end_tasks((int)p);
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_settle((int)p);
	quiesce();
}

/* --- age --- */

static fl_file_t *aging_file(const spec_file_t *f)
{
	return R.files[f->id].f;
}

static int aging_write(const spec_file_t *f, uint64_t off, uint64_t len);

static void aging_progress(double done)
{
	progress("age", done, false);
}

/* Every file, and the pool's past. */
static int load(void)
{
	uint64_t total = 0;
	int rc;

	if (pool_create_all(R.spec, &R.pace, POOL_HOLDS, R.err) != 0 || pool_open_volumes(R.spec, R.vols, R.err) != 0)
		return EXIT_FAILED;
	settle();
	for (size_t i = 0; i < R.nfiles; i++)
		total += R.files[i].known ? R.files[i].start_size : 0;
	pool_loading(R.spec->arc_max);
	if (R.spec->touched && (rc = load_all_touched()) != 0)
		return rc;
	for (size_t i = 0; i < R.nfiles && !R.spec->touched; i++) {
		rfile_t *f = &R.files[i];

		/* An empty file is made by its first operation. */
		if (f->known && f->start_size > 0 && (rc = load_file(f, &R.r->load_bytes, total)) != 0)
			return rc;
	}
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_sync((int)p);
	if (R.spec->age.fill > 0 || R.spec->age.rewrites > 0) {
		static const age_files_t files = {aging_write, aging_file, aging_progress};

		if ((rc = age_run(R.spec, R.vols, &files, &R.r->age, R.err)) != 0)
			return rc;
	}
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].f != NULL)
			fl_release(R.files[i].f, 1);
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		fl_volume_close(R.vols[i]);
	return 0;
}

/* A pool's export and import: the ARC is empty then. */
static int again(int pool)
{
	char *packed;
	size_t len;

	if (pool_pack(R.spec, pool, &packed, &len, R.err) != 0)
		return -1;
	return pool_unpack(R.spec, &R.pace, pool, packed, len, R.err);
}

/* The files that were loaded, of pools that were imported. */
static int open_files(void)
{
	char name[64];
	int error;

	sampled_pools_are_new();
	if (pool_open_volumes(R.spec, R.vols, R.err) != 0)
		return EXIT_FAILED;
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		sampled_volume(R.vols[i], R.spec->datasets[i].pool);
	for (size_t i = 0; i < R.nfiles; i++) {
		if (!R.files[i].known || R.files[i].start_size == 0)
			continue;
		file_name(&R.files[i], name, sizeof(name));
		if ((error = fl_lookup(fl_root(R.vols[R.files[i].dataset]), name, &R.files[i].f)) != 0)
			return failed(error, "Opening", &R.files[i]);
	}
	return 0;
}

/* Has the files as they were when the trace began: loaded here, or by who made the image. */
static int begin(bool imaged)
{
	double wall = wall_now(), cpu = cpu_now();
	int rc;

	progress("load", 0.0, true);
	if (imaged) {
		pool_loading(R.spec->arc_max);
		if (image_import(R.spec, &R.pace, R.err) != 0)
			return EXIT_FAILED;
	} else {
		if ((rc = load()) != 0)
			return rc;
		for (size_t p = 0; p < R.spec->npools; p++)
			if (again((int)p) != 0)
				return EXIT_FAILED;
	}
	if ((rc = open_files()) != 0)
		return rc;
	pool_live(&R.pace);
	settle();
	R.r->load_wall_s += wall_now() - wall;
	R.r->load_cpu_s += cpu_now() - cpu;
	progress("load", 1.0, true);
	return 0;
}

/* --- operations --- */

static account_target_t writing(const rfile_t *f, uint64_t off, uint64_t len)
{
	return (account_target_t){NULL, f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f), off, off + len};
}

static int create(rfile_t *f)
{
	fl_file_t *made = NULL;
	char name[64];
	bool commit;
	int error;

	/* Two threads may both be the first that the recorder saw. */
	while (f->making)
		(void)vtime_wait(&f->waiting, VTIME_NEVER);
	if (f->f != NULL)
		return 0;
	f->making = true;
	f->names++;
	file_name(f, name, sizeof(name));
	error = fl_create(fl_root(R.vols[f->dataset]), name, &new_file, &made, &commit);
	f->making = false;
	vtime_wake(&f->waiting, true);
	if (error != 0)
		return failed(error, "Creating", f);
	f->f = made;
	f->unlinked = false;
	if (!f->elsewhere)
		f->space = f->missing = f->logical = f->compressed = 0;
	f->used = 0;
	stand_for(f);
	if (f->shadow != NULL)
		(void)madvise(f->shadow, SHADOW, MADV_DONTNEED);
	return 0;
}

static void destroy(rfile_t *f)
{
	fl_release(f->f, 1);
	f->f = NULL;
	if (f->shadow != NULL)
		(void)madvise(f->shadow, SHADOW, MADV_DONTNEED);
}

static int unlink_file(rfile_t *f, bool *commit)
{
	char name[64];
	int error;

	*commit = false;
	f->elsewhere = false;
	if (f->f == NULL || f->unlinked)
		return 0;
	file_name(f, name, sizeof(name));
	if ((error = fl_unlink(fl_root(R.vols[f->dataset]), name, false, commit)) != 0)
		return failed(error, "Removing", f);
	/* Somebody may still have it open: its space goes after its last use in the trace. */
	f->unlinked = true;
	return 0;
}

static int read_range(rfile_t *f, uint64_t off, uint64_t left, uint64_t *total)
{
	uint64_t got = 1;
	int error = 0;

	*total = 0;
	while (left > 0 && got > 0 && error == 0) {
		error = fl_read(f->f, off, R.sink, MIN(left, PIECE), &got);
		if (error == 0 && R.spec->verify && shadow_check(f, off, got, R.sink) != 0)
			return EXIT_FAILED;
		left -= got;
		off += got;
		*total += got;
	}
	return error != 0 ? failed(error, "Reading", f) : 0;
}

static int op_read(const op_t *o, rfile_t *f)
{
	int64_t start = trace_now();
	double each = call_stands_for(f, o);
	uint64_t got;
	int rc;

	R.r->reads += each;
	rc = read_range(f, (uint64_t)o->offset, (uint64_t)o->size, &got);
	R.r->read_bytes += (double)got * each;
	note(&R.r->read_lat, &R.r->dataset_waits[f->dataset].read, trace_now() - start, each);
	return rc;
}

/* What is written: data, or the file's own bytes, changed by a stamp that no other write has, and zeros at the end. */
typedef struct {
	const uint8_t *data;
	uint64_t stamp, blank;
} bytes_t;

#define STAMPS 16 /* bits: a call is done in fewer pieces than this says */

static bytes_t bytes_of(const op_t *o)
{
	return (bytes_t){NULL, (uint64_t)(o - R.ops->op + 1) << STAMPS, o->blank};
}

static int write_range(rfile_t *f, uint64_t off, uint64_t len, bytes_t bytes, int flags, bool *commit)
{
	const uint8_t *data = bytes.data;
	account_target_t target = writing(f, off, len);
	uint64_t n;
	uint8_t *own = NULL;
	int error = 0;

	*commit = false;
	if (data == NULL && (own = malloc(MIN(len, PIECE) + 1)) == NULL)
		abort();
	memvdev_writing(&target);
	for (uint64_t done = 0; done < len && error == 0; done += n) {
		n = MIN(len - done, PIECE);
		if (data == NULL) {
			uint64_t full = len - bytes.blank > done ? MIN(len - bytes.blank - done, n) : 0;

			content_fill(f->content, f->id, off + done, full, ++bytes.stamp, own);
			memset(own + full, 0, n - full);
		}
		shadow_write(f, off + done, n, data != NULL ? data : own);
		error = fl_write(f->f, off + done, data != NULL ? data : own, n, flags, commit);
	}
	memvdev_written(&target);
	free(own);
	return error != 0 ? failed(error, "Writing", f) : 0;
}

static int aging_write(const spec_file_t *f, uint64_t off, uint64_t len)
{
	static uint64_t writes; /* their stamps are none of the trace's */
	bool commit;

	return write_range(&R.files[f->id], off, len, (bytes_t){NULL, (1ULL << 63) + (++writes << STAMPS), 0}, 0,
	    &commit);
}

static int op_write(const op_t *o, rfile_t *f, bool *commit)
{
	bool sync = (o->flags & (OPF_SYNC | OPF_DSYNC)) != 0;
	int64_t start = trace_now();
	double each = call_stands_for(f, o);
	int rc;

	R.r->writes += each;
	R.r->write_bytes += (double)o->size * each;
	f->written += (double)o->size;
	f->stood_for += (double)o->size * each;
	R.r->syncs += sync;
	rc = write_range(f, (uint64_t)o->offset, (uint64_t)o->size, bytes_of(o), sync ? FL_SYNC : 0, commit);
	note(&R.r->write_lat, &R.r->dataset_waits[f->dataset].write, trace_now() - start, each);
	return rc;
}

static int op_copy(const op_t *o, rfile_t *f, rfile_t *src, bool *commit)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got = 0, stamp = bytes_of(o).stamp;
	double each = call_stands_for(f, o);
	uint8_t *buf;
	int rc = 0;

	*commit = false;
	R.r->writes += each;
	R.r->write_bytes += (double)left * each;
	f->written += (double)left;
	f->stood_for += (double)left * each;
	if (src == NULL || src->f == NULL)
		return write_range(f, off, left, bytes_of(o), 0, commit);
	if ((buf = malloc(MIN(left, PIECE) + 1)) == NULL)
		abort();
	/* Where in the source it began the trace does not tell: it is read as often as it is copied. */
	R.r->reads += each;
	for (uint64_t n; left > 0 && rc == 0; left -= n, off += n) {
		int error;

		n = MIN(left, PIECE);
		error = fl_read(src->f, off, buf, n, &got);
		R.r->read_bytes += (double)got * each;
		if (error != 0)
			rc = failed(error, "Reading", src);
		else if (R.spec->verify && shadow_check(src, off, got, buf) != 0)
			rc = EXIT_FAILED;
		/* Beyond its end sampled content is used. */
		if (got < n)
			content_fill(f->content, f->id, off + got, n - got, ++stamp, buf + got);
		if (rc == 0)
			rc = write_range(f, off, n, (bytes_t){buf, 0, 0}, 0, commit);
	}
	free(buf);
	return rc;
}

static int op_truncate(const op_t *o, rfile_t *f, bool *commit)
{
	uint64_t size = (uint64_t)o->size, old = fl_size(f->f);
	double lost = size < old ? f->missing * (1.0 - (double)size / (double)old) : 0.0;
	account_target_t target = writing(f, size, UINT64_MAX - size);
	int error;

	memvdev_writing(&target);
	error = fl_truncate(f->f, size, commit);
	memvdev_written(&target);
	f->missing -= lost;
	f->space -= lost;
	if (size < old && old <= SHADOW)
		shadow_write(f, size, old - size, NULL);
	return error != 0 ? failed(error, "Truncating", f) : 0;
}

static int op_fallocate(const op_t *o, rfile_t *f, bool *commit)
{
	uint64_t off = (uint64_t)o->offset, len = (uint64_t)o->size, size = fl_size(f->f);
	bool keep = (o->flags & OPF_KEEP_SIZE) != 0;
	account_target_t target = writing(f, off, len);
	int error;

	memvdev_writing(&target);
	if (o->flags & (OPF_PUNCH | OPF_ZERO)) {
		error = fl_zero(f->f, off, len, keep || (o->flags & OPF_PUNCH) != 0, commit);
		if (off < size)
			shadow_write(f, off, MIN(len, size - off), NULL);
	} else {
		error = fl_allocate(f->f, off, len, keep, commit);
	}
	memvdev_written(&target);
	return error != 0 ? failed(error, "Allocating", f) : 0;
}

static int op_rename(rfile_t *f, rfile_t *replaced, bool *commit)
{
	fl_file_t *root = fl_root(R.vols[f->dataset]);
	char from[64], to[64];
	int error, rc;

	if (replaced != NULL && replaced != f && (rc = unlink_file(replaced, commit)) != 0)
		return rc;
	*commit = false;
	if (f->unlinked)
		return 0;
	file_name(f, from, sizeof(from));
	f->names++;
	file_name(f, to, sizeof(to));
	error = fl_rename(root, from, root, to, true, commit);
	return error != 0 ? failed(error, "Renaming", f) : 0;
}

static rfile_t *known_file(int32_t id)
{
	if (id < 0 || (size_t)id >= R.nfiles || !R.files[id].known)
		return NULL;
	return &R.files[id];
}

static void commit_file(const rfile_t *f)
{
	int64_t start = trace_now();
	waits_t *role;

	if (f != NULL)
		fl_commit_file(f->f);
	else
		for (size_t i = 0; i < R.spec->ndatasets; i++)
			fl_commit_volume(R.vols[i]);
	note(&R.r->sync_lat, f != NULL ? &R.r->dataset_waits[f->dataset].sync : NULL, trace_now() - start, 1.0);
	if (f == NULL)
		return;
	role = &R.r->role_syncs[f->content - R.content];
	role->calls++;
	role->sum_ms += (double)(trace_now() - start) / 1e6;
}

static int run_op(const op_t *o)
{
	rfile_t *f = known_file(o->file);
	bool commit = false;
	int rc = 0;

	if (o->op == OP_SYNC) {
		R.r->syncs++;
		commit_file(NULL);
		return 0;
	}
	if (f != NULL && f->f == NULL && f->elsewhere && o->op == OP_UNLINK)
		return unlink_file(f, &commit);
	if (f == NULL || (f->f == NULL && f->unlinked && o->op != OP_CREATE) ||
	    (f->f == NULL && (o->op == OP_UNLINK || o->op == OP_READ))) {
		R.r->skipped++;
		return 0;
	}
	if (o->op == OP_CREATE) {
		/* An existing file that is "created" was opened with O_CREAT, nothing more. */
		if (f->f != NULL && f->unlinked)
			destroy(f);
		return f->f == NULL ? create(f) : 0;
	}
	/* The recorder may have missed how it came into being. */
	if (f->f == NULL && (rc = create(f)) != 0)
		return rc;
	switch (o->op) {
	case OP_READ:
		rc = op_read(o, f);
		break;
	case OP_WRITE:
		rc = op_write(o, f, &commit);
		break;
	case OP_COPY:
		rc = op_copy(o, f, known_file(o->file2), &commit);
		break;
	case OP_FSYNC:
	case OP_FDATASYNC:
	case OP_MSYNC:
		R.r->syncs++;
		commit = true;
		break;
	case OP_TRUNCATE:
		rc = op_truncate(o, f, &commit);
		break;
	case OP_FALLOCATE:
		rc = op_fallocate(o, f, &commit);
		break;
	case OP_UNLINK:
		return unlink_file(f, &commit);
	case OP_RENAME:
		rc = op_rename(f, known_file(o->file2), &commit);
		break;
	default: /* sync_file_range and mmap do nothing to a file on OpenZFS */
		break;
	}
	if (rc == 0 && commit)
		commit_file(f);
	return rc;
}

/*
 * Before an operation the ARC is within its limit, or a database is cached here that is not on real ZFS.  Beyond it only
 * that may be which OpenZFS can't evict, there as here: what is dirty, in use, or was prefetched a moment ago.
 */
#define ARC_TOLERANCE 5 /* percent of the limit */
#define ARC_TRIES 16

static int limit_arc(void)
{
	uint64_t limit = R.spec->arc_max, size, evictable, pinned;

	if (R.spec->rate > 1) {
		sampled_let_go();
		limit = sampled_arc_limit(limit, R.whole);
	}

	/* While something is evicted other threads go on, and let go of more. */
	for (int i = 0; i < ARC_TRIES; i++) {
		uint64_t too_young = clockwork_evict();

		pool_arc_size(&size, &evictable);
		pinned = too_young > 0 ? size : size - MIN(evictable, size);
		if (size <= MAX(limit, pinned) + limit / 100 * ARC_TOLERANCE)
			break;
	}
	if (size > R.r->arc_most) {
		R.r->arc_most = size;
		R.r->arc_most_pinned = pinned;
	}
	if (size <= MAX(limit, pinned) + MAX(limit / 100 * ARC_TOLERANCE, SPA_MAXBLOCKSIZE / 2))
		return 0;
	(void)err_set(R.err,
	    "OpenZFS's ARC holds %llu MiB where %llu MiB are its limit, and %llu MiB of them could be evicted: "
	    "what was replayed so far does not count.",
	    (unsigned long long)size >> 20, (unsigned long long)limit >> 20, (unsigned long long)evictable >> 20);
	return EXIT_FAILED;
}

/* --- the trace's threads --- */

static void stop(int rc)
{
	if (R.rc == 0)
		R.rc = rc;
	vtime_wake(&R.waiting, true);
}

/* The call is over as far as files are concerned. */
static void leave_files(uint64_t i)
{
	const int32_t both[2] = {R.ops->op[i].file, R.ops->op[i].file2};

	for (int k = 0; k < 2; k++) {
		rfile_t *f = known_file(both[k]);

		if (f != NULL && f->unlinked && f->f != NULL && order_is_last(&R.order, both[k]))
			destroy(f);
	}
	order_done(&R.order, i);
	for (int k = 0; k < 2; k++)
		if (both[k] >= 0 && (size_t)both[k] < R.nfiles)
			vtime_wake(&R.files[both[k]].waiting, true);
}

/* The part of the trace's length in which a time is; the last has all that is later. */
static size_t part_of(int64_t t)
{
	return R.recorded > 0 ? MIN((size_t)(t * RESULT_PARTS / R.recorded), RESULT_PARTS - 1) : 0;
}

static bool paces(const op_t *o)
{
	return !R.by_commits || order_syncs(o);
}

/* What the pace of the recorded job is told by: its commits, if it has some. */
#define COMMITS_LEAST 20
/* The last of them are the job's end, when not all of its threads are at work. */
#define MOST 0.95

static void find_pace(uint64_t first)
{
	uint64_t commits = 0;

	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		R.recorded = MAX(R.recorded, o->t + o->dur);
		commits += order_syncs(o);
	}
	R.by_commits = commits >= COMMITS_LEAST;
	for (uint64_t i = first; i < R.ops->nops; i++)
		if (paces(&R.ops->op[i]))
			R.r->recorded[part_of(R.ops->op[i].t + R.ops->op[i].dur)]++;
	for (size_t i = 1; i < RESULT_PARTS; i++)
		R.r->recorded[i] += R.r->recorded[i - 1];
	R.most = (uint64_t)((R.spec->first > 0 ? (double)R.spec->first / (double)R.spec->operations : MOST) *
	    (double)R.r->recorded[RESULT_PARTS - 1]);
	for (size_t i = RESULT_PARTS; i > 0 && R.r->recorded[i - 1] >= R.most; i--)
		R.r->most_recorded_s = (double)R.recorded / 1e9 * (double)i / RESULT_PARTS;
}

/* What a call takes of a processor, beside the work on its data. */
static int64_t call_ns(const op_t *o)
{
	double us = order_syncs(o) ? R.spec->sync_us : 0;

	if (o->op == OP_READ)
		us += R.spec->read_us;
	else if (o->op == OP_WRITE || o->op == OP_COPY)
		us += R.spec->write_us;
	return (int64_t)(us * 1e3);
}

/* The log whose commits go together that a call concerns; NULL: none. */
static commits_t *log_of(const op_t *o)
{
	if (o->file < 0 || (size_t)o->file >= R.nfiles || R.files[o->file].log < 0)
		return NULL;
	return &R.logs[R.files[o->file].log];
}

/* Takes the lock for a sync of the trace; false: another's sync that began since then has covered it. */
static bool take_log(commits_t *log, uint64_t mine)
{
	log->leaders++;
	while (log->held && log->covered < mine)
		(void)vtime_wait(&log->waiting, VTIME_NEVER);
	log->leaders--;
	if (log->covered >= mine)
		return false;
	log->held = true;
	return true;
}

/* All is synced that had been asked for when the sync began. */
static void leave_log(commits_t *log, uint64_t covered)
{
	log->covered = MAX(log->covered, covered);
	log->held = false;
	vtime_wake(&log->waiting, true);
}

/* Does a call write to a log that its thread syncs then? */
static bool syncs_next(uint64_t i, const commits_t *log)
{
	uint32_t next = R.order.next_of_thread[i];

	return R.ops->op[i].op == OP_WRITE && !order_syncs(&R.ops->op[i]) && R.ops->op[i].via == VIA_SYSCALL &&
	    next != ORDER_NONE && R.ops->op[next].via == VIA_SYSCALL && R.ops->op[next].op != OP_WRITE &&
	    order_syncs(&R.ops->op[next]) && log_of(&R.ops->op[next]) == log;
}

/*
 * Writes all that has come to the log and is not written.  Who comes first is first in the log: the parts follow each
 * other as in the trace, whoever wrote them then, and those that lie one after the other are written in one call.
 */
static int write_log(commits_t *log)
{
	while (log->written < log->came) {
		op_t o = R.ops->op[log->writes[log->written++]];
		int rc;

		while (log->written < log->came) {
			const op_t *next = &R.ops->op[log->writes[log->written]];

			if (next->file != o.file || next->offset < o.offset || next->offset > o.offset + o.size)
				break;
			if (next->offset + next->size >= o.offset + o.size) {
				o.size = next->offset + next->size - o.offset;
				o.blank = next->blank;
			}
			log->written++;
		}
		vtime_work(call_ns(&o));
		if ((rc = run_op(&o)) != 0)
			return rc;
		log->file = o.file;
		log->end = o.offset + o.size;
	}
	return 0;
}

#define LOG_PAGE 8192 /* PostgreSQL's; who has others writes as little */

/* The last page of the log again, with one commit more, or several. */
static int sync_log(commits_t *log)
{
	op_t o = {.op = OP_WRITE, .file = log->file, .file2 = -1, .size = LOG_PAGE};
	const rfile_t *f = known_file(log->file);
	int rc;

	if (f == NULL || f->f == NULL)
		return 0;
	o.offset = MAX(log->end - 1, 0) / LOG_PAGE * LOG_PAGE;
	vtime_work(call_ns(&o));
	if ((rc = run_op(&o)) != 0)
		return rc;
	o.op = OP_FDATASYNC;
	vtime_work(call_ns(&o));
	return run_op(&o);
}

/*
 * Commits what the trace has no sync for, since another thread's covered it.  Whether one does here depends on when the
 * thread comes: it waits for the lock, and is covered by a sync that begins after that, or syncs for all who wait.
 */
static void commit_with_others(commits_t *log)
{
	uint64_t mine = ++log->asked, covers;
	int rc;

	while (log->covered < mine && R.rc == 0) {
		if (log->held || log->leaders > 0) {
			(void)vtime_wait(&log->waiting, VTIME_NEVER);
			continue;
		}
		log->held = true;
		covers = log->asked;
		R.in_call++;
		if ((rc = sync_log(log)) != 0)
			stop(rc);
		R.in_call--;
		R.r->late_commits++;
		R.end = MAX(R.end, trace_now());
		leave_log(log, covers);
	}
}

/* A write to a log to which calls come as they come: who syncs it then has its lock from here to there. */
static int call_write(commits_t *log, uint64_t i)
{
	thread_t *t = &R.threads[R.ops->op[i].thread];
	uint64_t *mine = &t->asked[log - R.logs];

	log->came++;
	*mine = ++log->asked;
	if (!take_log(log, *mine))
		return 0;
	t->holds = log;
	log->covers = log->asked;
	R.begun[R.order.next_of_thread[i]] = true;
	vtime_wake(&log->waiting, true);
	return write_log(log);
}

/* A sync of such a log, which may be a synchronous write too. */
static int call_sync(commits_t *log, uint64_t i)
{
	thread_t *t = &R.threads[R.ops->op[i].thread];
	uint64_t *mine = &t->asked[log - R.logs];
	op_t o = R.ops->op[i];
	int rc = 0;

	if (t->holds != log) {
		if (*mine == 0)
			*mine = ++log->asked;
		R.begun[i] = true;
		if (!take_log(log, *mine)) {
			*mine = 0;
			R.r->joined_commits++;
			return 0;
		}
		log->covers = log->asked;
		vtime_wake(&log->waiting, true);
		rc = write_log(log);
	}
	if (o.op != OP_WRITE && log->file >= 0)
		o.file = log->file;
	vtime_work(call_ns(&o));
	if (rc == 0)
		rc = run_op(&o);
	t->holds = NULL;
	*mine = 0;
	leave_log(log, log->covers);
	return rc;
}

/* One call, from its beginning to its end. */
static void call(uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	commits_t *log = log_of(o);
	bool commits = log != NULL && (o->op == OP_WRITE || order_syncs(o)), leads = false;
	bool comes = log != NULL && R.order.file[o->file].arrives && (order_syncs(o) || syncs_next(i, log));
	uint64_t *asked = log != NULL ? &R.threads[o->thread].asked[log - R.logs] : NULL, covers = 0;
	int32_t file;
	int rc;

	/* It waits for its turn from here on, with what it commits. */
	commits = commits && !comes;
	if (commits && *asked == 0)
		*asked = ++log->asked;
	while (R.threads[o->thread].holds == NULL && (file = order_waits_for(&R.order, i)) >= 0)
		(void)vtime_wait(&R.files[file].waiting, VTIME_NEVER);
	if ((rc = limit_arc()) != 0) {
		stop(rc);
		return;
	}
	if (commits && order_syncs(o)) {
		leads = take_log(log, *asked);
		*asked = 0;
		R.begun[i] = true;
		vtime_wake(&log->waiting, true);
		commits = !leads; /* from here on: another did it */
		covers = log->asked;
	} else {
		commits = false;
	}
	R.in_call++;
	if (comes) {
		rc = order_syncs(o) ? call_sync(log, i) : call_write(log, i);
	} else {
		vtime_work(call_ns(o));
		rc = commits ? 0 : run_op(o);
	}
	R.in_call--;
	if (rc != 0)
		stop(rc);
	if (leads)
		leave_log(log, covers);
	R.r->joined_commits += commits;
	if (!comes && o->op == OP_WRITE && log != NULL) {
		log->file = o->file;
		log->end = o->offset + o->size;
	}
	R.done++;
	R.end = MAX(R.end, trace_now());
	if (R.ended != NULL)
		R.ended[i] = trace_now();
	if (paces(o) && ++R.paced == R.most)
		R.r->most_s = (double)trace_now() / 1e9;
	/* What is later than the trace is long ended in none of its parts. */
	if (paces(o) && trace_now() <= R.recorded)
		R.r->ended[part_of(trace_now())]++;
	leave_files(i);
	R.r->trace_s = MAX(R.r->trace_s, (double)(o->t + o->dur) / 1e9);
	progress("measure", (double)R.done / (double)R.ops->nops, false);
}

/* Takes in those of its calls under way that had ended, when recorded, before t; false: one has not ended here. */
static bool take_in(thread_t *t, int64_t recorded)
{
	for (size_t i = 0; i < t->npending;) {
		pending_t *p = &t->pending[i];

		if (p->recorded_done > recorded) {
			i++;
			continue;
		}
		if (p->done == NOT_YET)
			return false;
		t->done = MAX(t->done, p->done);
		t->recorded_done = MAX(t->recorded_done, p->recorded_done);
		*p = t->pending[--t->npending];
	}
	return true;
}

/*
 * When a thread's next call begins.  Closed: after what the thread did when recorded since its last call, or since the
 * last answer that was there, but for the time in which it waited for others' syncs; and no sooner after the last of
 * these than when recorded.  Open: when it was recorded, or at once if that has passed.
 */
static int64_t due(const thread_t *t, uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	int64_t free_since = MAX(t->began, t->done), when;
	uint32_t after = R.order.after[i];

	if (!R.spec->closed)
		return MAX(o->t, free_since);
	when = free_since + MAX(o->t - MAX(t->recorded_began, t->recorded_done) - R.order.waited[i], 0);
	if (after == ORDER_NONE)
		return when;
	return MAX(when, R.ended[after] + o->t - (R.ops->op[after].t + R.ops->op[after].dur));
}

/* How many calls of its thread this one stands for. */
static double calls_of(const op_t *o)
{
	const rfile_t *f = o->op == OP_READ || o->op == OP_WRITE || o->op == OP_COPY ? known_file(o->file) : NULL;

	return f != NULL ? call_stands_for(f, o) : 1.0;
}

typedef struct {
	thread_t *thread;
	uint64_t call;
} async_t;

static void async_main(void *arg)
{
	async_t a = *(async_t *)arg;
	const op_t *o = &R.ops->op[a.call];
	thread_t *t = a.thread;
	int64_t start = trace_now(), now;

	free(arg);
	call(a.call);
	now = trace_now();
	/* Requests handed over in a batch are waited for together. */
	if (now > t->async_until) {
		t->wait_s += (double)(now - MAX(start, t->async_until)) / 1e9 * calls_of(o);
		t->async_until = now;
	}
	for (size_t i = 0; i < t->npending; i++)
		if (t->pending[i].done == NOT_YET && t->pending[i].recorded_done == o->t + o->dur) {
			t->pending[i].done = now;
			break;
		}
	vtime_wake(&t->waiting, true);
}

static void begin_async(thread_t *t, uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	async_t *a = malloc(sizeof(*a));

	if (t->npending == t->pending_room) {
		t->pending_room = t->pending_room * 2 + 16;
		t->pending = realloc(t->pending, t->pending_room * sizeof(*t->pending));
	}
	if (a == NULL || t->pending == NULL)
		abort();
	t->pending[t->npending++] = (pending_t){o->t + o->dur, NOT_YET};
	*a = (async_t){t, i};
	vtime_start(async_main, a);
}

static void wait_for_sync(uint32_t call)
{
	while (!order_is_done(&R.order, call))
		(void)vtime_wait(&R.files[R.ops->op[call].file].waiting, VTIME_NEVER);
}

/* Lets the thread do what it did when recorded before call i, until a time. */
static void think(int64_t until, uint64_t i)
{
	int64_t left = until - trace_now();

	if (left <= 0)
		return;
	if (R.busy == 0 || !order_shares_log(&R.order, R.ops->op[i].thread)) {
		vtime_sleep_until(R.zero + until);
		return;
	}
	vtime_think((int64_t)((double)left * R.busy));
}

static bool arrives(uint32_t i)
{
	return R.order.file[R.ops->op[i].file].arrives;
}

/* Did the thread commit before this call, by the sync of another? */
static bool followed(uint32_t i)
{
	commits_t *log = log_of(&R.ops->op[R.order.after[i]]);

	if (log == NULL || R.order.before[i] < 0)
		return false;
	log->owed += log->share;
	if (log->owed < 1.0)
		return false;
	log->owed -= 1.0;
	return true;
}

#define COVERS_NS 100000 /* a thread waits so long for the sync that is to cover it, at least */

/*
 * Does the sync that covered the thread's commit when recorded do so here?  The thread came some time after its last call
 * and before that sync began: half-way, for all that is known.  If by then the sync has begun it covers nothing of the
 * thread's; and if it does not begin for long after the time when it should, nobody waits for it.
 */
static bool is_covered(const thread_t *t, uint32_t i)
{
	uint32_t sync = R.order.after[i];
	int64_t since = MAX(t->began, t->done), work = R.order.before[i], until;
	vqueue_t *waiting = &log_of(&R.ops->op[sync])->waiting;
	bool late;

	if (!R.spec->closed)
		since = MAX(since, R.ops->op[sync].t - work);
	until = since + work + work / 2 + COVERS_NS;

	think(since + work / 2, i);
	late = R.begun[sync];
	think(since + work, i);
	while (!late && !R.begun[sync] && trace_now() < until)
		(void)vtime_wait(waiting, R.zero + until);
	return !late && R.begun[sync];
}

static void follow(thread_t *t, uint32_t i)
{
	const op_t *sync = &R.ops->op[R.order.after[i]];
	int64_t came;
	bool covered = is_covered(t, i);

	came = trace_now();
	if (covered)
		wait_for_sync(R.order.after[i]);
	else
		commit_with_others(log_of(sync));
	t->done = trace_now();
	t->wait_s += (double)(t->done - came) / 1e9;
	t->recorded_done = MAX(t->recorded_done, sync->t + sync->dur);
	R.order.waited[i] = 0;
	R.order.after[i] = ORDER_NONE;
}

/*
 * Closed: a checkpointer or a page cleaner has as much to do as the clients give it, and on a layout on which they do a
 * tenth of what they did when recorded it has a tenth to do.  So its calls begin when the clients have come, on average, to
 * where they were then.  Who only reads is a client too.
 */
#define COMMITS_SHARE 10 /* of the most: who has fewer commits is none of the clients */

static void find_background(uint64_t first)
{
	uint64_t *syncs = calloc(2 * (size_t)R.ops->nthreads + 2, sizeof(*syncs)), *writes = syncs + R.ops->nthreads;
	uint64_t most = 0;

	if (syncs == NULL)
		abort();
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		writes[o->thread] += o->op == OP_WRITE;
		if (order_syncs(o) && o->file >= 0 && (size_t)o->file < R.nfiles && R.order.file[o->file].shared)
			most = MAX(most, ++syncs[o->thread]);
	}
	for (uint32_t i = 0; i < R.ops->nthreads && most >= COMMITS_LEAST; i++) {
		thread_t *t = &R.threads[i];

		if (t->next == ORDER_NONE)
			continue;
		t->commits = syncs[i] * COMMITS_SHARE >= most;
		t->background = !t->commits && writes[i] > 0;
		t->at = R.ops->op[t->next].t;
		R.job.threads += t->commits;
		R.job.sum += t->commits ? t->at : 0;
	}
	R.job.least = INT64_MAX;
	free(syncs);
}

static void has_come(thread_t *t, int64_t at, bool ends)
{
	if (!t->commits)
		return;
	R.job.threads -= ends;
	R.job.sum += (ends ? 0 : at) - t->at;
	t->at = at;
	if (R.job.threads == 0 || R.job.sum / (int64_t)R.job.threads >= R.job.least) {
		R.job.least = INT64_MAX;
		vtime_wake(&R.job.waiting, true);
	}
}

static void wait_for_job(int64_t at)
{
	while (R.job.threads > 0 && R.job.sum / (int64_t)R.job.threads < at) {
		R.job.least = MIN(R.job.least, at);
		(void)vtime_wait(&R.job.waiting, VTIME_NEVER);
	}
}

static void add_write(commits_t *log, uint32_t call)
{
	if ((log->nwrites & (log->nwrites - 1)) == 0 &&
	    (log->writes = realloc(log->writes, MAX(log->nwrites * 2, 1) * sizeof(*log->writes))) == NULL)
		abort();
	log->writes[log->nwrites++] = call;
}

/*
 * Which logs' commits go together, and of waits for another's sync which share are commits: those operations that have no
 * sync of their own.  A closed replay that is not told of logs takes all shared files for one, where such operations are.
 */
static void find_logs(uint64_t first)
{
	uint64_t syncs[SPEC_LOGS] = {0}, waits[SPEC_LOGS] = {0};
	bool told = R.spec->nlogs > 0;

	for (size_t i = 0; i < R.nfiles; i++)
		if (!told)
			R.files[i].log = R.order.file[i].shared ? 0 : -1;
		else if (R.files[i].known && R.files[i].log >= 0)
			order_by_arrival(&R.order, (int32_t)i);
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const commits_t *log = log_of(&R.ops->op[i]);

		if (log != NULL && order_syncs(&R.ops->op[i]))
			syncs[log - R.logs]++;
		if (log != NULL && told && syncs_next(i, log))
			add_write(&R.logs[log - R.logs], (uint32_t)i);
		if (R.order.after[i] == ORDER_NONE || R.order.before[i] < 0)
			continue;
		if ((log = log_of(&R.ops->op[R.order.after[i]])) != NULL)
			waits[log - R.logs]++;
	}
	for (size_t k = 0; k < SPEC_LOGS; k++) {
		R.logs[k].file = -1;
		if (waits[k] > 0)
			R.logs[k].share =
			    MIN(1.0, MAX(0.0, (double)R.spec->log_operations[k] - (double)syncs[k]) / (double)waits[k]);
	}
	for (size_t i = 0; i < R.nfiles && !told && R.logs[0].share <= 0; i++)
		R.files[i].log = -1;
}

static void thread_main(void *arg)
{
	thread_t *t = arg;

	for (uint32_t i = t->next; i != ORDER_NONE; i = R.order.next_of_thread[i]) {
		const op_t *o = &R.ops->op[i];

		has_come(t, o->t, false);
		while (!take_in(t, o->t))
			(void)vtime_wait(&t->waiting, VTIME_NEVER);
		if (t->holds == NULL && R.order.after[i] != ORDER_NONE && followed(i))
			follow(t, i);
		else if (t->holds == NULL && R.order.after[i] != ORDER_NONE && !arrives(R.order.after[i]))
			wait_for_sync(R.order.after[i]);
		if (t->background && t->holds == NULL)
			wait_for_job(o->t);
		else
			think(due(t, i), i);
		t->began = trace_now();
		t->recorded_began = o->t;
		if (o->via != VIA_SYSCALL) {
			begin_async(t, i);
			continue;
		}
		call(i);
		t->done = trace_now();
		t->recorded_done = MAX(t->recorded_done, o->t + o->dur);
		t->wait_s += (double)(t->done - t->began) / 1e9 * calls_of(o);
	}
	while (!take_in(t, INT64_MAX))
		(void)vtime_wait(&t->waiting, VTIME_NEVER);
	free(t->pending);
	has_come(t, t->at, true);
	R.threads_left--;
	vtime_wake(&R.waiting, true);
}

/* Nothing of OpenZFS waits so long for anything but a disk. */
#define STUCK_NS (3600 * NS)

/* Lets the threads run, each from its first call on, until all are done. */
static int run_threads(uint64_t first)
{
	uint64_t before;

	order_make(&R.order, R.ops, first, R.nfiles,
	    (R.spec->verify ? ORDER_STRICT : 0) | (R.spec->closed || R.spec->nlogs > 0 ? ORDER_WAITED : 0));
	if ((R.spec->closed || R.spec->nlogs > 0) &&
	    ((R.ended = calloc(R.ops->nops + 1, sizeof(*R.ended))) == NULL ||
		(R.begun = calloc(R.ops->nops + 1, sizeof(*R.begun))) == NULL))
		abort();
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		R.threads[i].next = ORDER_NONE;
	for (uint64_t i = R.ops->nops; i > first; i--) {
		thread_t *t = &R.threads[R.ops->op[i - 1].thread];

		R.threads_left += t->next == ORDER_NONE;
		t->next = (uint32_t)(i - 1);
	}
	find_pace(first);
	if (R.spec->closed)
		find_background(first);
	if (R.spec->closed || R.spec->nlogs > 0)
		find_logs(first);
	if (R.spec->closed && R.order.think > 0)
		R.busy = MIN(1.0, R.spec->cores * (double)R.recorded / (double)R.order.think);
	R.zero = vtime_now();
	for (uint64_t i = first; i < R.ops->nops && R.rc == 0; i++) {
		const op_t *o = &R.ops->op[i];

		if (R.threads[o->thread].next != i)
			continue;
		if (o->t > trace_now())
			vtime_sleep_until(R.zero + o->t);
		vtime_start(thread_main, &R.threads[o->thread]);
	}
	while (R.threads_left > 0 && R.rc == 0) {
		before = R.done;
		if (!vtime_wait(&R.waiting, vtime_now() + STUCK_NS) && R.done == before && R.in_call > 0)
			return err_set(R.err, "OpenZFS does not answer a call of the trace: %llu of %llu are done.",
				   (unsigned long long)R.done, (unsigned long long)(R.ops->nops - first)),
			       EXIT_FAILED;
	}
	return R.rc;
}

/*
 * Brings into the caches what the program had read or written before the trace began, in that order.  Blocks that it
 * wrote are read as they are now: what counts is that the ARC holds them.
 */
static int warm(uint64_t *done)
{
	uint64_t i, got;
	int rc;

	/* Nobody looks at what is read, and to decompress it is most of the work. */
	processor_unread = !R.spec->verify;
	for (i = 0; i < R.ops->nops && R.ops->op[i].op == OP_WARM; i++) {
		rfile_t *f = known_file(R.ops->op[i].file);

		if (f == NULL || f->f == NULL)
			continue;
		if ((rc = read_range(f, (uint64_t)R.ops->op[i].offset, (uint64_t)R.ops->op[i].size, &got)) != 0)
			return rc;
		R.r->warm_bytes += got;
		(void)clockwork_evict();
	}
	if (i > 0) {
		quiesce();
		clockwork_drop_buffers();
	}
	processor_unread = false;
	*done = i;
	return 0;
}

/* --- the whole --- */

static int prepare(void)
{
	size_t top = R.ops->nfiles;
	uint64_t largest = PIECE;

	if (R.ops->nops >= ORDER_NONE) {
		(void)err_set(R.err, "ops: %llu operations are more than the %u that a replay takes.",
		    (unsigned long long)R.ops->nops, ORDER_NONE - 1);
		return EXIT_INPUT;
	}
	for (size_t i = 0; i < R.spec->nfiles; i++)
		top = MAX(top, (size_t)R.spec->files[i].id + 1);
	R.nfiles = top;
	R.files = calloc(top + 1, sizeof(*R.files));
	R.vols = calloc(R.spec->ndatasets + 1, sizeof(fl_volume_t *));
	R.content = calloc(R.spec->ncontent + 1, sizeof(*R.content));
	R.threads = calloc((size_t)R.ops->nthreads + 1, sizeof(*R.threads));
	R.sink = malloc(largest);
	R.buf = malloc(largest);
	R.r->dataset_space = calloc(R.spec->ndatasets + 1, sizeof(space_t));
	R.r->dataset_waits = calloc(R.spec->ndatasets + 1, sizeof(dataset_waits_t));
	R.r->role_syncs = calloc(R.spec->ncontent + 1, sizeof(waits_t));
	if (R.files == NULL || R.vols == NULL || R.content == NULL || R.threads == NULL || R.sink == NULL ||
	    R.buf == NULL || R.r->dataset_space == NULL || R.r->dataset_waits == NULL || R.r->role_syncs == NULL)
		abort();
	for (size_t i = 0; i < R.spec->ncontent; i++)
		if (content_open(R.spec->content[i].path, &R.content[i], R.err) != 0)
			return EXIT_INPUT;
	for (size_t i = 0; i < R.nfiles; i++)
		R.files[i].log = -1;
	for (size_t i = 0; i < R.spec->nfiles; i++) {
		const spec_file_t *sf = &R.spec->files[i];
		rfile_t *f = &R.files[sf->id];

		f->known = true;
		f->id = (uint32_t)sf->id;
		f->dataset = sf->dataset;
		f->pool = R.spec->datasets[sf->dataset].pool;
		f->start_size = sf->size;
		f->whole = sf->whole;
		f->log = sf->log;
		f->stands_for = sf->rate;
		f->spec = sf;
		f->elsewhere = sf->sampled && sf->size == 0 && sf->whole_start > 0;
		if ((f->certain = calloc(sf->ncertain + 1, sizeof(*f->certain))) == NULL)
			abort();
		for (size_t k = 0; k < sf->ncertain; k++) {
			uint64_t rs = R.spec->datasets[sf->dataset].recordsize;
			uint64_t end = sf->certain[k].off + sf->certain[k].len;

			f->certain[k].first = sf->certain[k].off / rs;
			f->certain[k].n = (end + rs - 1) / rs - f->certain[k].first;
		}
		f->content = &R.content[sf->content];
		if (R.spec->verify) {
			f->shadow = mmap(NULL, SHADOW, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (f->shadow == MAP_FAILED) {
				(void)err_set(R.err,
				    "verify needs 64 GiB of address space per file, and there is no more.");
				return EXIT_FAILED;
			}
		}
	}
	for (uint64_t i = 0; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		if ((o->op == OP_READ || o->op == OP_WARM) && o->file >= 0 && (size_t)o->file < R.nfiles)
			R.files[o->file].is_read = true;
		if ((o->op == OP_WRITE || o->op == OP_COPY) && o->file >= 0 && (size_t)o->file < R.nfiles)
			R.files[o->file].is_written = true;
	}
	return 0;
}

/* Every file, whole, must read back as last written. */
int replay_verify(void)
{
	if (!R.spec->verify)
		return 0;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];
		uint64_t got, size;

		if (f->f == NULL || f->shadow == NULL)
			continue;
		size = fl_size(f->f);
		if (read_range(f, 0, size, &got) != 0)
			return EXIT_FAILED;
		if (got != size) {
			(void)err_set(R.err, "File %u reads back %llu of its %llu bytes.", f->id,
			    (unsigned long long)got, (unsigned long long)size);
			return EXIT_FAILED;
		}
	}
	return 0;
}

static void subtract_arc(arc_count_t *a, const arc_count_t *b)
{
	a->hits -= b->hits;
	a->misses -= b->misses;
	a->demand_data_hits -= b->demand_data_hits;
	a->demand_data_misses -= b->demand_data_misses;
	a->demand_metadata_hits -= b->demand_metadata_hits;
	a->demand_metadata_misses -= b->demand_metadata_misses;
	a->prefetch_data_hits -= b->prefetch_data_hits;
	a->prefetch_data_misses -= b->prefetch_data_misses;
	a->prefetch_metadata_hits -= b->prefetch_metadata_hits;
	a->prefetch_metadata_misses -= b->prefetch_metadata_misses;
	a->l2_hits -= b->l2_hits;
	a->l2_misses -= b->l2_misses;
	a->l2_write_bytes -= b->l2_write_bytes;
}

static void sum_zil(fl_itx_t *itx, uint64_t *commits)
{
	memset(itx, 0, sizeof(*itx));
	*commits = 0;
	for (size_t i = 0; i < R.spec->ndatasets; i++) {
		fl_itx_t x;

		fl_volume_itx(R.vols[i], &x);
		itx->indirect += x.indirect;
		itx->copied += x.copied;
		itx->needcopy += x.needcopy;
		itx->bytes += x.bytes;
		*commits += fl_volume_commits(R.vols[i]);
	}
}

static void note_txgs(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		R.txg_start[p] = pool_last_txg((int)p);
}

int replay_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err)
{
	clockwork_init(spec->seed, spec->cores);
	if (pool_start(spec, pace, warn, err) != 0)
		return -1;
	return 0;
}

/* What is known of a load, beside what it leaves on the disks; a file's come after it, one for each. */
typedef struct {
	double wall_s, cpu_s;
	uint64_t bytes; /* of files */
	double used, allocated;
	age_result_t age;
} loaded_t;

typedef struct {
	double space, missing, logical, compressed;
} loaded_file_t;

static size_t loaded_size(void)
{
	return sizeof(loaded_t) + R.nfiles * sizeof(loaded_file_t);
}

static void take_over(const loaded_t *l)
{
	const loaded_file_t *files = (const loaded_file_t *)(l + 1);

	R.r->load_wall_s = l->wall_s;
	R.r->load_cpu_s = l->cpu_s;
	R.r->load_bytes = l->bytes;
	R.r->age = l->age;
	R.used = l->used;
	R.allocated = l->allocated;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		f->space = files[i].space;
		f->missing = files[i].missing;
		f->logical = files[i].logical;
		f->compressed = files[i].compressed;
	}
}

static int hand_over(double wall, double cpu, const char *image)
{
	loaded_t *l = calloc(1, loaded_size());
	loaded_file_t *files = (loaded_file_t *)(l + 1);
	int rc;

	if (l == NULL)
		abort();
	*l = (loaded_t){wall, cpu, R.r->load_bytes, R.used, R.allocated, R.r->age};
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];

		files[i] = (loaded_file_t){f->space, f->missing, f->logical, f->compressed};
	}
	rc = image_save(R.spec, image, l, loaded_size(), R.err);
	free(l);
	return rc;
}

/* Everything up to OpenZFS itself: the disks, with what they hold, and the process that it runs in. */
static int get_ready(const spec_t *spec, const ops_t *ops, const char *image, result_t *r, warn_fn *warn, err_t *err)
{
	int rc;

	memset(r, 0, sizeof(*r));
	weights_begin((double)spec->rate);
	fl_logged = logged;
	if (spec->rate > 1)
		processor_stands_for = sampled_write_stands_for;
	if (spec->touched)
		processor_is_zeros = sampled_is_filled;
	R.spec = spec;
	R.ops = ops;
	R.r = r;
	R.err = err;
	if ((rc = prepare()) != 0)
		return rc;
	if (memvdev_create(spec, err) != 0)
		return EXIT_INPUT;
	if (image != NULL) {
		const loaded_t *loaded = image_open(spec, image, loaded_size(), err);

		if (loaded == NULL)
			return EXIT_INPUT;
		take_over(loaded);
	}
	footprint_watch(spec->memory_limit, spec->file_limit);
	if (replay_start(spec, &R.pace, warn, err) != 0 || pool_check_properties(spec, err) != 0)
		return EXIT_INPUT;
	return 0;
}

int replay_load(const spec_t *spec, const ops_t *ops, const char *image, warn_fn *warn, err_t *err)
{
	double wall, cpu;
	result_t r;
	int rc;

	if ((rc = get_ready(spec, ops, NULL, &r, warn, err)) != 0)
		return rc;
	wall = wall_now();
	cpu = cpu_now();
	progress("load", 0.0, true);
	if ((rc = load()) != 0)
		return rc;
	if (hand_over(wall_now() - wall, cpu_now() - cpu, image) != 0)
		return EXIT_FAILED;
	progress("load", 1.0, true);
	return 0;
}

int replay_run(const spec_t *spec, const ops_t *ops, const char *image, result_t *r, warn_fn *warn, err_t *err)
{
	throttle_t throttle0;
	arc_count_t arc0;
	fl_itx_t itx0;
	uint64_t commits0, commits, first;
	double wall, cpu;
	int rc;

	if ((rc = get_ready(spec, ops, image, r, warn, err)) != 0)
		return rc;
	if ((rc = begin(image != NULL)) != 0)
		return rc;
	note_whole();
	if ((rc = warm(&first)) != 0 || (rc = limit_arc()) != 0)
		return rc;

	note_txgs();
	note_space();
	memvdev_begin(spread());
	worktime_begin(spec);
	pool_stat_base();
	pool_arc(&arc0);
	sum_zil(&itx0, &commits0);
	pool_throttle(&throttle0);
	wall = wall_now();
	cpu = cpu_now();
	progress("measure", 0.0, true);
	if ((rc = run_threads(first)) != 0)
		return rc;
	r->elapsed_s = (double)R.end / 1e9;
	r->lag_s = MAX(r->elapsed_s - r->trace_s, 0.0);
	for (size_t i = 1; i < RESULT_PARTS; i++)
		r->ended[i] += r->ended[i - 1];
	if (!spec->closed && r->trace_s > r->elapsed_s)
		vtime_sleep_until(R.zero + (int64_t)(r->trace_s * 1e9));
	for (size_t p = 0; p < spec->npools; p++)
		pool_sync((int)p);
	pool_throttle(&r->throttle);
	r->wall_s = wall_now() - wall;
	r->cpu_s = cpu_now() - cpu;
	progress("measure", 1.0, true);
	quiesce();
	memvdev_drain();
	r->missed = sampled_missed();

	for (size_t p = 0; p < spec->npools; p++) {
		r->txgs += pool_last_txg((int)p) - R.txg_start[p];
		r->allocated += pool_allocated((int)p);
	}
	for (size_t p = 0; p < spec->npools; p++)
		r->allocated -= MIN(r->age.filler[p], r->allocated);
	r->throttle.delays -= throttle0.delays;
	r->throttle.over_max -= throttle0.over_max;
	pool_arc(&r->arc);
	subtract_arc(&r->arc, &arc0);
	sum_zil(&r->itx, &commits);
	r->zil_commits = commits - commits0;
	r->itx.indirect -= itx0.indirect;
	r->itx.copied -= itx0.copied;
	r->itx.needcopy -= itx0.needcopy;
	for (size_t i = 0; i < spec->ndatasets; i++)
		(void)pool_dataset_space(spec->datasets[i].name, &r->dataset_space[i]);
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].elsewhere && R.files[i].f == NULL)
			r->dataset_space[R.files[i].dataset].files += R.files[i].spec->whole_start;
		else if (R.files[i].f != NULL && !R.files[i].unlinked)
			r->dataset_space[R.files[i].dataset].files +=
			    R.files[i].stands_for > 1.0 ? R.files[i].whole : fl_size(R.files[i].f);
	if (spec->touched || spec->rate > 1)
		stand_for_space();
	for (uint32_t i = 0; i < ops->nthreads; i++)
		r->thread_wait_s_max = MAX(r->thread_wait_s_max, R.threads[i].wait_s);
	if (r->skipped > 0)
		warn("%" PRIu64
		     " operations were left out: their file is not in the layout, or did not exist at that time.",
		    r->skipped);
	return 0;
}
