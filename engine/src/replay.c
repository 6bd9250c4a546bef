#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "busy.h"
#include "clockwork.h"
#include "content.h"
#include "footprint.h"
#include "memvdev.h"

#include "zfs.h"

#define PIECE (32ULL << 20) /* one call is done in pieces of at most this, as OpenZFS does it */
#define SHADOW (1ULL << 36) /* verify: address space per file */
#define NS 1000000000LL

bool replay_progress;

typedef struct {
	fl_file_t *f; /* NULL: does not exist now */
	bool known;   /* the layout has this file */
	bool unlinked;
	int dataset, pool;
	uint32_t id, names;
	uint64_t last_op; /* index of the last operation on it */
	uint64_t start_size;
	const content_t *content;
	uint8_t *shadow;
} rfile_t;

/*
 * A log block that is still open, on one dataset: commits that come before its deadline get into it too.  As OpenZFS
 * 2.3 decides (zil.c): while commits come in parallel, a block waits for a share of the time that the last one took.
 */
#if OPENZFS_NUMBER >= 20300
#define COMMIT_WAIT_PERCENT 10 /* zfs_commit_timeout_pct */
#else
#define COMMIT_WAIT_PERCENT 5
#endif
#define COMMIT_BURSTS 8 /* ZIL_BURSTS: waits so many times more after the last parallel one */

typedef struct {
	fl_file_t *file;
	uint16_t thread;
	uint8_t via;
	int64_t start; /* modelled */
	int64_t recorded_done;
} commit_t;

typedef struct {
	commit_t *commit;
	size_t n, room;
	int64_t deadline; /* modelled, as all times here */
	int64_t finish;   /* of the last block */
	int64_t latency;  /* its running mean */
	int parallel;
} batch_t;

/* Who owns a file has no part in its I/O. */
static const fl_new_t new_file = {.mode = S_IFREG | 0600};

typedef struct {
	double wait_s;         /* modelled */
	int64_t async_until;   /* union of outstanding asynchronous requests, model time */
	int64_t done;          /* model time at which its last call returned */
	int64_t recorded_done; /* trace time at which it returned when recorded */
	int waits_for;         /* dataset whose open log block it waits for, -1 none */
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
	batch_t *batches; /* [ndatasets] */
	uint8_t *buf;
	int64_t now; /* trace time; transaction groups, the ARC and the L2ARC feed go by it */
	int64_t lag; /* model time is trace time plus this: how far slow disks have held the work up */
	uint64_t stamp;
	/* per pool */
	uint64_t group[16]; /* bytes loaded in the open transaction group */
	int64_t txg_due[16], txg_done[16];
	uint64_t in_log_base[16], txg_start[16];
	bool has_cache;
	err_t *err;
} R;

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

static void sample(samples_t *s, int64_t ns)
{
	double ms = (double)MAX(ns, 0) / 1e6;

	if (s->n == s->room) {
		s->room = s->room == 0 ? 4096 : s->room * 2;
		if ((s->ms = realloc(s->ms, s->room * sizeof(*s->ms))) == NULL)
			abort();
	}
	s->ms[s->n++] = (float)ms;
	s->sum += ms;
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

static int load_file(rfile_t *f, uint64_t *done, uint64_t total)
{
	uint64_t rs = R.spec->datasets[f->dataset].recordsize, piece = MAX(rs, 1ULL << 20);
	char name[64];
	bool commit;
	int error;

	file_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &new_file, &f->f, &commit)) != 0)
		return failed(error, "Creating", f);
	for (uint64_t off = 0; off < f->start_size; off += piece) {
		uint64_t n = MIN(piece, f->start_size - off);

		content_fill(f->content, f->id, off, n, 0, R.buf);
		shadow_write(f, off, n, R.buf);
		if ((error = fl_write(f->f, off, R.buf, n, 0, &commit)) != 0)
			return failed(error, "Filling", f);
		*done += n;
		if ((R.group[f->pool] += n) >= pool_load_group(R.spec->arc_max)) {
			pool_next_txg(f->pool);
			R.group[f->pool] = 0;
		}
		clockwork_wait_evicted();
		progress("load", total > 0 ? (double)*done / (double)total : 1.0, false);
	}
	return 0;
}

/* Waits until OpenZFS has nothing to do and no I/O is under way. */
static void quiesce(void)
{
	uint64_t before = UINT64_MAX;
	int same = 0;

	for (int i = 0; i < 500 && same < 3; i++) {
		uint64_t now = memvdev_begun();

		same = now == before && memvdev_in_flight() == 0 && !busy_now() ? same + 1 : 0;
		before = now;
		(void)usleep(3000);
	}
	clockwork_wait_evicted();
}

static void settle(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_end_tasks((int)p);
	while (clockwork_rebuilding())
		(void)usleep(1000);
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_settle((int)p);
	quiesce();
}

/* --- age --- */

static fl_file_t *aging_file(const spec_file_t *f)
{
	return R.files[f->id].f;
}

static int write_range(rfile_t *f, uint64_t off, uint64_t len, uint64_t blank, const uint8_t *data, int flags,
    bool *commit);

static int aging_write(const spec_file_t *f, uint64_t off, uint64_t len)
{
	bool commit;

	return write_range(&R.files[f->id], off, len, 0, NULL, 0, &commit);
}

static void aging_progress(double done)
{
	progress("age", done, false);
}

static int load(void)
{
	uint64_t total = 0;
	result_t *r = R.r;
	double wall = wall_now(), cpu = cpu_now();
	char name[64];
	int error, rc;

	for (size_t i = 0; i < R.nfiles; i++)
		total += R.files[i].known ? R.files[i].start_size : 0;
	pool_loading(&R.pace, true, R.spec->arc_max);
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		/* An empty file is made by its first operation. */
		if (f->known && f->start_size > 0 && (rc = load_file(f, &r->load_bytes, total)) != 0)
			return rc;
	}
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_sync((int)p);
	if (R.spec->age.fill > 0 || R.spec->age.rewrites > 0) {
		static const age_files_t files = {aging_write, aging_file, aging_progress};

		if ((rc = age_run(R.spec, R.vols, &files, &r->age, R.err)) != 0)
			return rc;
	}
	if (R.spec->cold) {
		for (size_t i = 0; i < R.nfiles; i++)
			if (R.files[i].f != NULL)
				fl_release(R.files[i].f, 1);
		for (size_t i = 0; i < R.spec->ndatasets; i++)
			fl_volume_close(R.vols[i]);
		if (pool_cycle(R.spec, R.err) != 0 || pool_open_volumes(R.spec, R.vols, R.err) != 0)
			return EXIT_FAILED;
		for (size_t i = 0; i < R.nfiles; i++) {
			if (R.files[i].f == NULL)
				continue;
			file_name(&R.files[i], name, sizeof(name));
			if ((error = fl_lookup(fl_root(R.vols[R.files[i].dataset]), name, &R.files[i].f)) != 0)
				return failed(error, "Opening", &R.files[i]);
		}
	}
	settle();
	pool_loading(&R.pace, false, R.spec->arc_max);
	r->load_wall_s = wall_now() - wall;
	r->load_cpu_s = cpu_now() - cpu;
	progress("load", 1.0, true);
	return 0;
}

/* --- model time --- */

static int64_t model_now(void)
{
	return R.now + R.lag;
}

/*
 * A thread can't begin a call before its last one returned and it has thought as long as it did when recorded.  If the
 * modelled disk is late, the whole trace is held up: otherwise I/O would pile up that the program never issues.
 */
static void hold_up(const op_t *o)
{
	const thread_t *t = &R.threads[o->thread];
	int64_t ready = t->done + MAX(o->t - t->recorded_done, 0);

	if (ready > o->t + R.lag)
		R.lag = ready - o->t;
}

/* --- commits --- */

/* A call of this thread waited for the modelled disks from start to finish (model time). */
static void waited(uint16_t thread, uint8_t via, int64_t start, int64_t finish, int64_t recorded_done)
{
	thread_t *t = &R.threads[thread];

	if (finish <= start)
		return;
	if (via == VIA_SYSCALL) {
		t->wait_s += (double)(finish - start) / 1e9;
		t->done = finish;
		t->recorded_done = recorded_done;
		return;
	}
	/* Requests handed over in a batch are waited for together. */
	if (finish > t->async_until) {
		t->wait_s += (double)(finish - MAX(start, t->async_until)) / 1e9;
		t->async_until = finish;
	}
}

static void committed(const commit_t *c, int64_t finish)
{
	sample(&R.r->sync_lat, finish - c->start);
	waited(c->thread, c->via, c->start, finish, c->recorded_done);
	if (c->via == VIA_SYSCALL)
		R.threads[c->thread].waits_for = -1;
}

/* Writes a dataset's open log block. */
static void close_batch(size_t dataset, int64_t t)
{
	batch_t *b = &R.batches[dataset];
	int64_t finish, begun = b->commit[b->n - 1].start;

	begun = MAX(MIN(t, b->deadline), begun);
	for (size_t i = 1; i < b->n; i++)
		fl_commit_join(b->commit[i].file);
	memvdev_commit_begin(begun);
	busy_enter();
	/* The first one writes the records of all; the others find nothing left, but OpenZFS counts them. */
	for (size_t i = 0; i < b->n; i++)
		fl_commit_file(b->commit[i].file);
	busy_leave();
	finish = memvdev_commit_end();
	memvdev_time(model_now());
	b->latency = (b->latency * 7 + finish - begun) / 8;
	b->finish = finish;
	if (b->parallel > 0)
		b->parallel--;
	for (size_t i = 0; i < b->n; i++)
		committed(&b->commit[i], finish);
	b->n = 0;
}

/* Closes every log block, of one pool or of all (-1). */
static void close_batches(int pool, int64_t t)
{
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		if (R.batches[i].n > 0 && (pool < 0 || R.spec->datasets[i].pool == pool))
			close_batch(i, t);
}

/* Closes those whose time is up, in that order. */
static void close_due_batches(int64_t t)
{
	for (;;) {
		size_t first = SIZE_MAX;

		for (size_t i = 0; i < R.spec->ndatasets; i++)
			if (R.batches[i].n > 0 && R.batches[i].deadline <= t &&
			    (first == SIZE_MAX || R.batches[i].deadline < R.batches[first].deadline))
				first = i;
		if (first == SIZE_MAX)
			return;
		close_batch(first, t);
	}
}

static void start_commit(uint64_t index, const rfile_t *f)
{
	const op_t *o = &R.ops->op[index];
	/* A synchronous write that had to read first logs its data only then. */
	int64_t start = MAX(model_now(), R.threads[o->thread].done);
	commit_t c = {NULL, o->thread, o->via, start, o->t + o->dur};
	batch_t *b;

	if (f == NULL) {
		close_batches(-1, start);
		memvdev_commit_begin(start);
		busy_enter();
		for (size_t i = 0; i < R.spec->ndatasets; i++)
			fl_commit_volume(R.vols[i]);
		busy_leave();
		committed(&c, memvdev_commit_end());
		memvdev_time(model_now());
		return;
	}
	b = &R.batches[f->dataset];
	if (b->n > 0 && b->deadline <= start)
		close_batch((size_t)f->dataset, start);
	if (b->n > 0)
		b->parallel = COMMIT_BURSTS;
	else if (b->finish > start)
		b->parallel = MAX(b->parallel, COMMIT_BURSTS / 2);
	if (b->n == b->room) {
		b->room = b->room == 0 ? 16 : b->room * 2;
		if ((b->commit = realloc(b->commit, b->room * sizeof(*b->commit))) == NULL)
			abort();
	}
	c.file = f->f;
	b->commit[b->n++] = c;
	if (b->n == 1)
		b->deadline = start + (b->parallel > 0 ? b->latency * COMMIT_WAIT_PERCENT / 100 : 0);
	if (c.via == VIA_SYSCALL)
		R.threads[c.thread].waits_for = f->dataset;
	if (b->deadline <= start)
		close_batch((size_t)f->dataset, start);
}

/* --- transaction groups by trace time --- */

static uint64_t in_log(int pool)
{
	uint64_t sum = 0;
	fl_itx_t x;

	for (size_t i = 0; i < R.spec->ndatasets; i++) {
		if (R.spec->datasets[i].pool == pool) {
			fl_volume_itx(R.vols[i], &x);
			sum += x.in_log;
		}
	}
	return sum;
}

static void end_txg(int pool, int64_t t)
{
	t = MAX(t, R.now);
	close_batches(pool, t + R.lag);
	R.now = t;
	memvdev_begin(DO_TXG, model_now(), pool, 0, 0);
	pool_sync(pool);
	(void)memvdev_end();
	/* The next group can't be written before the disks are done with this one. */
	R.txg_done[pool] = MAX(memvdev_async_until(pool) - R.lag, t);
	R.txg_due[pool] = MAX(t + R.pace.txg_timeout_s * NS, R.txg_done[pool]);
	R.in_log_base[pool] = in_log(pool);
}

static void pass_time(int64_t t)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		if (R.txg_due[p] <= t)
			end_txg((int)p, R.txg_due[p]);
	R.now = MAX(R.now, t);
	clockwork_advance(R.now);
	if (R.has_cache)
		clockwork_feed_l2arc(R.now);
}

/* After a write: OpenZFS's limits on dirty data, kept by trace time. */
static void check_dirty(int pool)
{
	uint64_t dirty = pool_dirty_bytes(pool), max = R.pace.dirty_max;
	uint64_t floor = max / 100 * (uint64_t)R.pace.delay_min_percent;
	uint64_t kick = max / 100 * (uint64_t)R.pace.dirty_sync_percent;
	bool writing = R.now < R.txg_done[pool];

	if (dirty >= max || dirty > floor) {
		/* delay = scale * (dirty - floor) / (max - dirty), at most 100 ms: dmu_tx.c */
		double ns =
		    dirty >= max ? 1e8 : (double)R.pace.delay_scale * (double)(dirty - floor) / (double)(max - dirty);

		R.r->throttle_delays++;
		R.r->throttle_delay_s += MIN(ns, 1e8) / 1e9;
	}
	if (dirty >= max) {
		R.r->throttle_over_max++;
		if (writing) {
			R.r->throttle_stall_s += (double)(R.txg_done[pool] - R.now) / 1e9;
			R.lag += R.txg_done[pool] - R.now;
		}
	}
	/* The limit on data in the log is twice that on dirty data, with the same share to begin at. */
	if (dirty >= max || (!writing && (dirty >= kick || in_log(pool) - R.in_log_base[pool] >= 2 * kick))) {
		R.r->txgs_dirty++;
		end_txg(pool, R.now);
	}
}

/* --- operations --- */

static void mark(doing_t what, const rfile_t *f)
{
	memvdev_begin(what, model_now(), f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f));
}

static int create(rfile_t *f)
{
	char name[64];
	bool commit;
	int error;

	f->names++;
	file_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &new_file, &f->f, &commit)) != 0)
		return failed(error, "Creating", f);
	f->unlinked = false;
	if (f->shadow != NULL)
		(void)madvise(f->shadow, SHADOW, MADV_DONTNEED);
	return 0;
}

static void destroy(rfile_t *f)
{
	/* A commit of it may wait. */
	close_batches(f->pool, model_now());
	fl_release(f->f, 1);
	f->f = NULL;
	if (f->shadow != NULL)
		(void)madvise(f->shadow, SHADOW, MADV_DONTNEED);
}

static int unlink_file(rfile_t *f, uint64_t i, bool *commit)
{
	char name[64];
	int error;

	*commit = false;
	if (f->f == NULL || f->unlinked)
		return 0;
	close_batches(f->pool, model_now());
	file_name(f, name, sizeof(name));
	if ((error = fl_unlink(fl_root(R.vols[f->dataset]), name, false, commit)) != 0)
		return failed(error, "Removing", f);
	f->unlinked = true;
	/* Somebody may still have it open: its space goes after its last use in the trace. */
	if (f->last_op <= i)
		destroy(f);
	return 0;
}

static int read_range(rfile_t *f, const op_t *o, uint64_t *total)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got = 1;
	int error = 0;

	*total = 0;
	while (left > 0 && got > 0 && error == 0) {
		error = fl_read(f->f, off, R.buf, MIN(left, PIECE), &got);
		if (error == 0 && R.spec->verify && shadow_check(f, off, got, R.buf) != 0)
			return EXIT_FAILED;
		left -= got;
		off += got;
		*total += got;
	}
	return error != 0 ? failed(error, "Reading", f) : 0;
}

/* Blocks that a prefetch had asked for arrive only when the modelled disk delivers them. */
static int64_t prefetched_until(const rfile_t *f, uint64_t off, uint64_t len)
{
	uint64_t block = fl_block_size(f->f), objset = fl_volume_objset(R.vols[f->dataset]), n = 0;
	int64_t until = 0;

	if (len == 0 || block == 0)
		return 0;
	for (uint64_t b = off / block; b <= (off + len - 1) / block && n < 4096; b++, n++)
		until = MAX(until, memvdev_prefetch_finish(f->pool, objset, fl_object(f->f), b));
	return until;
}

static int op_read(const op_t *o, rfile_t *f)
{
	uint64_t got;
	int64_t end, start = model_now();
	int rc;

	R.r->reads++;
	mark(DO_READ, f);
	rc = read_range(f, o, &got);
	end = memvdev_end();
	R.r->read_bytes += got;
	end = MAX(end, prefetched_until(f, (uint64_t)o->offset, got));
	sample(&R.r->read_lat, end - start);
	waited(o->thread, o->via, start, end, o->t + o->dur);
	return rc;
}

static int write_range(rfile_t *f, uint64_t off, uint64_t len, uint64_t blank, const uint8_t *data, int flags,
    bool *commit)
{
	uint64_t n;
	int error;

	*commit = false;
	for (uint64_t done = 0; done < len; done += n) {
		const uint8_t *p = data;

		n = MIN(len - done, PIECE);
		if (data == NULL) {
			uint64_t full = len - blank > done ? MIN(len - blank - done, n) : 0;

			content_fill(f->content, f->id, off + done, full, ++R.stamp, R.buf);
			memset(R.buf + full, 0, n - full);
			p = R.buf;
		}
		shadow_write(f, off + done, n, p);
		if ((error = fl_write(f->f, off + done, p, n, flags, commit)) != 0)
			return failed(error, "Writing", f);
	}
	return 0;
}

static int op_write(const op_t *o, rfile_t *f, bool *commit)
{
	int64_t end, start = model_now();
	int rc;

	R.r->writes++;
	R.r->write_bytes += (uint64_t)o->size;
	R.r->syncs += (o->flags & (OPF_SYNC | OPF_DSYNC)) != 0;
	mark(DO_WRITE, f);
	rc = write_range(f, (uint64_t)o->offset, (uint64_t)o->size, o->blank, NULL,
	    (o->flags & (OPF_SYNC | OPF_DSYNC)) != 0 ? FL_SYNC : 0, commit);
	end = memvdev_end();
	/* A write returns at once unless it had to read first. */
	sample(&R.r->write_lat, end - start);
	waited(o->thread, o->via, start, end, o->t + o->dur);
	return rc;
}

static int op_copy(const op_t *o, rfile_t *f, rfile_t *src, bool *commit)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got, n;
	int64_t start = model_now(), end;
	int rc = 0;

	*commit = false;
	R.r->writes++;
	R.r->write_bytes += left;
	if (src == NULL || src->f == NULL) {
		mark(DO_WRITE, f);
		rc = write_range(f, off, left, 0, NULL, 0, commit);
		waited(o->thread, o->via, start, memvdev_end(), o->t + o->dur);
		return rc;
	}
	R.r->reads++;
	for (; left > 0 && rc == 0; left -= n, off += n) {
		op_t part = *o;

		n = MIN(left, PIECE);
		part.offset = (int64_t)off;
		part.size = (int64_t)n;
		mark(DO_READ, src);
		rc = read_range(src, &part, &got);
		end = memvdev_end();
		R.r->read_bytes += got;
		/* The trace does not tell where in the source it began: beyond its end, sampled content is used. */
		if (got < n)
			content_fill(f->content, f->id, off + got, n - got, ++R.stamp, R.buf + got);
		if (rc == 0) {
			mark(DO_WRITE, f);
			rc = write_range(f, off, n, 0, R.buf, 0, commit);
			end = MAX(end, memvdev_end());
		}
		waited(o->thread, o->via, start, end, o->t + o->dur);
	}
	return rc;
}

static int op_truncate(const op_t *o, rfile_t *f, bool *commit)
{
	uint64_t size = (uint64_t)o->size, old = fl_size(f->f);
	int error;

	mark(DO_WRITE, f);
	error = fl_truncate(f->f, size, commit);
	(void)memvdev_end();
	if (size < old && old <= SHADOW)
		shadow_write(f, size, old - size, NULL);
	return error != 0 ? failed(error, "Truncating", f) : 0;
}

static int op_fallocate(const op_t *o, rfile_t *f, bool *commit)
{
	uint64_t off = (uint64_t)o->offset, len = (uint64_t)o->size, size = fl_size(f->f);
	bool keep = (o->flags & OPF_KEEP_SIZE) != 0;
	int error;

	mark(DO_WRITE, f);
	if (o->flags & (OPF_PUNCH | OPF_ZERO)) {
		error = fl_zero(f->f, off, len, keep || (o->flags & OPF_PUNCH) != 0, commit);
		if (off < size)
			shadow_write(f, off, MIN(len, size - off), NULL);
	} else {
		error = fl_allocate(f->f, off, len, keep, commit);
	}
	(void)memvdev_end();
	return error != 0 ? failed(error, "Allocating", f) : 0;
}

static int op_rename(uint64_t i, rfile_t *f, rfile_t *replaced, bool *commit)
{
	fl_file_t *root = fl_root(R.vols[f->dataset]);
	char from[64], to[64];
	int error, rc;

	if (replaced != NULL && replaced != f && (rc = unlink_file(replaced, i, commit)) != 0)
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

static int run_op(uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	rfile_t *f = known_file(o->file);
	bool commit = false;
	int rc = 0;

	if (R.threads[o->thread].waits_for >= 0)
		close_batch((size_t)R.threads[o->thread].waits_for, o->t + R.lag);
	hold_up(o);
	close_due_batches(o->t + R.lag);
	pass_time(o->t);
	memvdev_time(model_now());
	if (o->op == OP_SYNC) {
		R.r->syncs++;
		start_commit(i, NULL);
		return 0;
	}
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
		return unlink_file(f, i, &commit);
	case OP_RENAME:
		rc = op_rename(i, f, known_file(o->file2), &commit);
		break;
	default: /* sync_file_range and mmap do nothing to a file on OpenZFS */
		break;
	}
	if (rc != 0)
		return rc;
	if (commit)
		start_commit(i, f);
	if (o->op == OP_WRITE || o->op == OP_COPY)
		check_dirty(f->pool);
	if (f->unlinked && f->last_op <= i && f->f != NULL)
		destroy(f);
	return 0;
}

/*
 * Brings into the caches what the program had read or written before the trace began, in that order.  Blocks that it
 * wrote are read as they are now: what counts is that the ARC holds them.
 */
static int warm(uint64_t *done)
{
	uint64_t i, got;
	int rc;

	for (i = 0; i < R.ops->nops && R.ops->op[i].op == OP_WARM; i++) {
		rfile_t *f = known_file(R.ops->op[i].file);

		if (f == NULL || f->f == NULL)
			continue;
		if ((rc = read_range(f, &R.ops->op[i], &got)) != 0)
			return rc;
		R.r->warm_bytes += got;
		(void)clockwork_evict();
	}
	if (i > 0)
		quiesce();
	*done = i;
	return 0;
}

/* --- the whole --- */

/*
 * Before an operation the ARC is within its limit, or a database is cached here that is not on real ZFS.  Beyond it only
 * that may be which OpenZFS can't evict, there as here: what is dirty, in use, or was prefetched a moment ago.
 */
#define ARC_TOLERANCE 5 /* percent of the limit */

static int limit_arc(void)
{
	uint64_t too_young = clockwork_evict(), limit = R.spec->arc_max, size, evictable, pinned;

	pool_arc_size(&size, &evictable);
	pinned = too_young > 0 ? size : size - MIN(evictable, size);
	if (size > R.r->arc_most) {
		R.r->arc_most = size;
		R.r->arc_most_pinned = pinned;
	}
	if (size <= MAX(limit, pinned) + limit / 100 * ARC_TOLERANCE)
		return 0;
	(void)err_set(R.err,
	    "OpenZFS's ARC holds %llu MiB where %llu MiB are its limit, and %llu MiB of them could be evicted: "
	    "what was replayed so far does not count.",
	    (unsigned long long)size >> 20, (unsigned long long)limit >> 20, (unsigned long long)evictable >> 20);
	return EXIT_FAILED;
}

static int prepare(void)
{
	size_t top = R.ops->nfiles;
	uint64_t largest = PIECE;

	for (size_t i = 0; i < R.spec->nfiles; i++)
		top = MAX(top, (size_t)R.spec->files[i].id + 1);
	R.nfiles = top;
	R.files = calloc(top + 1, sizeof(*R.files));
	R.vols = calloc(R.spec->ndatasets + 1, sizeof(fl_volume_t *));
	R.content = calloc(R.spec->ncontent + 1, sizeof(*R.content));
	R.threads = calloc((size_t)R.ops->nthreads + 1, sizeof(*R.threads));
	R.batches = calloc(R.spec->ndatasets + 1, sizeof(*R.batches));
	R.buf = malloc(largest);
	R.r->dataset_space = calloc(R.spec->ndatasets + 1, sizeof(space_t));
	if (R.files == NULL || R.vols == NULL || R.content == NULL || R.threads == NULL || R.batches == NULL ||
	    R.buf == NULL || R.r->dataset_space == NULL)
		abort();
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		R.threads[i].waits_for = -1;
	for (size_t i = 0; i < R.spec->ncontent; i++)
		if (content_open(R.spec->content[i].path, &R.content[i], R.err) != 0)
			return EXIT_INPUT;
	for (size_t i = 0; i < R.spec->nfiles; i++) {
		const spec_file_t *sf = &R.spec->files[i];
		rfile_t *f = &R.files[sf->id];

		f->known = true;
		f->id = (uint32_t)sf->id;
		f->dataset = sf->dataset;
		f->pool = R.spec->datasets[sf->dataset].pool;
		f->start_size = sf->size;
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

		if (known_file(o->file) != NULL)
			R.files[o->file].last_op = i;
		if (known_file(o->file2) != NULL)
			R.files[o->file2].last_op = i;
	}
	for (size_t p = 0; p < R.spec->npools; p++)
		for (size_t v = 0; v < R.spec->pools[p].nvdevs; v++)
			R.has_cache = R.has_cache || R.spec->pools[p].vdevs[v].class == VC_CACHE;
	return 0;
}

/* Every file, whole, must read back as last written. */
int replay_verify(void)
{
	if (!R.spec->verify)
		return 0;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];
		uint64_t got;
		op_t o = {.offset = 0};

		if (f->f == NULL || f->shadow == NULL)
			continue;
		o.size = (int64_t)fl_size(f->f);
		if (read_range(f, &o, &got) != 0)
			return EXIT_FAILED;
		if (got != (uint64_t)o.size) {
			(void)err_set(R.err, "File %u reads back %llu of its %lld bytes.", f->id,
			    (unsigned long long)got, (long long)o.size);
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
	clockwork_init(spec->seed);
	if (pool_start(spec, pace, warn, err) != 0)
		return -1;
	if (pace->sync_read_active > 0)
		memvdev_limit(MIO_SYNC_READ, pace->sync_read_active);
	if (pace->sync_write_active > 0)
		memvdev_limit(MIO_SYNC_WRITE, pace->sync_write_active);
	return 0;
}

int replay_run(const spec_t *spec, const ops_t *ops, result_t *r, warn_fn *warn, err_t *err)
{
	arc_count_t arc0;
	fl_itx_t itx0;
	uint64_t commits0, commits, first;
	double wall, cpu;
	int rc;

	memset(r, 0, sizeof(*r));
	R.spec = spec;
	R.ops = ops;
	R.r = r;
	R.err = err;
	if ((rc = prepare()) != 0)
		return rc;
	if (memvdev_create(spec, err) != 0)
		return EXIT_INPUT;
	footprint_watch(spec->memory_limit, spec->file_limit);
	if (replay_start(spec, &R.pace, warn, err) != 0 || pool_check_properties(spec, err) != 0)
		return EXIT_INPUT;
	progress("load", 0.0, true);
	if (pool_create_all(spec, &R.pace, err) != 0 || pool_open_volumes(spec, R.vols, err) != 0)
		return EXIT_FAILED;
	settle();
	if ((rc = load()) != 0 || (rc = warm(&first)) != 0 || (rc = limit_arc()) != 0)
		return rc;

	note_txgs();
	memvdev_reset();
	pool_stat_base();
	pool_arc(&arc0);
	sum_zil(&itx0, &commits0);
	clockwork_start();
	for (size_t p = 0; p < spec->npools; p++) {
		R.txg_due[p] = R.pace.txg_timeout_s * NS;
		R.in_log_base[p] = in_log((int)p);
	}
	wall = wall_now();
	cpu = cpu_now();
	progress("measure", 0.0, true);
	for (uint64_t i = first; i < ops->nops; i++) {
		if ((rc = run_op(i)) != 0 || (rc = limit_arc()) != 0)
			return rc;
		r->trace_s = MAX(r->trace_s, (double)(ops->op[i].t + ops->op[i].dur) / 1e9);
		if ((i & 255) == 0)
			progress("measure", (double)i / (double)ops->nops, false);
	}
	close_batches(-1, INT64_MAX);
	pass_time((int64_t)(r->trace_s * 1e9));
	for (size_t p = 0; p < spec->npools; p++)
		end_txg((int)p, R.now);
	r->lag_s = (double)R.lag / 1e9;
	r->wall_s = wall_now() - wall;
	r->cpu_s = cpu_now() - cpu;
	progress("measure", 1.0, true);
	quiesce();

	for (size_t p = 0; p < spec->npools; p++) {
		r->txgs += pool_last_txg((int)p) - R.txg_start[p];
		r->allocated += pool_allocated((int)p);
	}
	for (size_t p = 0; p < spec->npools; p++)
		r->allocated -= MIN(r->age.filler[p], r->allocated);
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
		if (R.files[i].f != NULL && !R.files[i].unlinked)
			r->dataset_space[R.files[i].dataset].files += fl_size(R.files[i].f);
	for (uint32_t i = 0; i < ops->nthreads; i++)
		r->thread_wait_s_max = MAX(r->thread_wait_s_max, R.threads[i].wait_s);
	if (r->skipped > 0)
		warn("%" PRIu64
		     " operations were left out: their file is not in the layout, or did not exist at that time.",
		    r->skipped);
	return 0;
}
