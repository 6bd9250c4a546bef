#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clockwork.h"
#include "content.h"
#include "memvdev.h"

#include "zfs.h"

#define	PIECE (32ULL << 20)		/* one call is done in pieces of at most this, as OpenZFS does it */
#define	SHADOW (1ULL << 36)		/* verify: address space per file */
#define	NS 1000000000LL

bool replay_progress;

typedef struct {
	fl_file_t *f;		/* NULL: does not exist now */
	bool known;		/* the layout has this file */
	bool unlinked;
	int dataset, pool;
	uint32_t id, names;
	uint64_t last_op;	/* index of the last operation on it */
	uint64_t start_size;
	const content_t *content;
	uint8_t *shadow;
} rfile_t;

/* Commits run beside the dispatcher when the trace shows that others went on meanwhile. */
typedef struct {
	pthread_t thread;
	bool started, busy;	/* busy: under pool lock, a commit is under way */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	fl_file_t *file;	/* NULL: all volumes */
	int64_t end;		/* recorded */
	int64_t start, finish;	/* modelled */
	uint64_t index;		/* trace thread */
	commit_track_t track;
} worker_t;

typedef struct {
	double wait_s;		/* modelled */
	int64_t async_until;	/* union of outstanding asynchronous requests, model time */
	int64_t done;		/* model time at which its last call returned */
	int64_t recorded_done;	/* trace time at which it returned when recorded */
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
	worker_t *workers;
	uint64_t *active;	/* trace threads with a commit under way */
	size_t nactive;
	uint8_t *buf;
	int64_t now;		/* trace time; transaction groups, the ARC and the L2ARC feed go by it */
	int64_t lag;		/* model time is trace time plus this: how far slow disks have held the work up */
	uint64_t stamp;
	/* per pool */
	int64_t txg_due[16], txg_done[16];
	uint64_t in_log_base[16], txg_start[16];
	bool has_cache;
	err_t *err;
} R;

static void
progress(const char *phase, double done, bool force)
{
	static double last;
	double now;

	if (!replay_progress)
		return;
	now = wall_now();
	if (!force && now - last < 0.2)
		return;
	last = now;
	(void) fprintf(stderr, "{\"phase\":\"%s\",\"done\":%.4f}\n", phase, done);
	(void) fflush(stderr);
}

static void
sample(samples_t *s, int64_t ns)
{
	double ms = (double)MAX(ns, 0) / 1e6;

	if (s->n == s->room) {
		s->room = s->room == 0 ? 4096 : s->room * 2;
		if ((s->ms = realloc(s->ms, s->room * sizeof (*s->ms))) == NULL)
			abort();
	}
	s->ms[s->n++] = (float)ms;
	s->sum += ms;
}

static int
failed(int error, const char *what, const rfile_t *f)
{
	const char *ds = R.spec->datasets[f->dataset].name;

	if (error == ENOSPC)
		(void) err_set(R.err, "The pool of %s is full: the layout's disks are too small for this workload.", ds);
	else
		(void) err_set(R.err, "%s file %u on %s failed: %s.", what, f->id, ds, strerror(error));
	return (EXIT_FAILED);
}

static void
file_name(const rfile_t *f, char *name, size_t len)
{
	(void) snprintf(name, len, "file%010" PRIu32 ".%" PRIu32, f->id, f->names);
}

/* --- verify: what each file must hold --- */

static void
shadow_write(rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	if (f->shadow == NULL || off + len > SHADOW)
		return;
	if (buf != NULL)
		memcpy(f->shadow + off, buf, len);
	else
		memset(f->shadow + off, 0, len);
}

static int
shadow_check(const rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	if (f->shadow == NULL || off + len > SHADOW || memcmp(f->shadow + off, buf, len) == 0)
		return (0);
	for (uint64_t i = 0; i < len; i++)
		if (f->shadow[off + i] != buf[i])
			return (err_set(R.err, "File %u reads back wrong at byte %llu.", f->id, (unsigned long long)(off + i)));
	return (0);
}

/* --- load --- */

static int
load_file(rfile_t *f, uint64_t *done, uint64_t total)
{
	uint64_t rs = R.spec->datasets[f->dataset].recordsize, piece = MAX(rs, 1ULL << 20);
	fl_volume_t *vol = R.vols[f->dataset];
	char name[64];
	bool commit;
	int error;

	file_name(f, name, sizeof (name));
	if ((error = fl_create(vol, name, &f->f, &commit)) != 0)
		return (failed(error, "Creating", f));
	for (uint64_t off = 0; off < f->start_size; off += piece) {
		uint64_t n = MIN(piece, f->start_size - off);

		content_fill(f->content, f->id, off, n, 0, R.buf);
		shadow_write(f, off, n, R.buf);
		if ((error = fl_write(f->f, off, R.buf, n, 0, &commit)) != 0)
			return (failed(error, "Filling", f));
		*done += n;
		progress("load", total > 0 ? (double)*done / (double)total : 1.0, false);
	}
	return (0);
}

/* Waits until no I/O is under way and none comes any more; what an import does in the background ends soon. */
static void
quiesce(void)
{
	uint64_t before = UINT64_MAX;
	int same = 0;

	for (int i = 0; i < 500 && same < 3; i++) {
		uint64_t now = memvdev_begun();

		same = now == before && memvdev_in_flight() == 0 ? same + 1 : 0;
		before = now;
		(void) usleep(3000);
	}
}

static void
settle(void)
{
	/* Two groups: the second writes what the first one freed. */
	for (int i = 0; i < 2; i++)
		for (size_t p = 0; p < R.spec->npools; p++)
			pool_sync((int)p);
	quiesce();
}

static int
load(void)
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
			return (rc);
	}
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_sync((int)p);
	if (R.spec->cold) {
		for (size_t i = 0; i < R.nfiles; i++)
			if (R.files[i].f != NULL)
				fl_close(R.files[i].f);
		for (size_t i = 0; i < R.spec->ndatasets; i++)
			fl_volume_close(R.vols[i]);
		if (pool_cycle(R.spec, R.err) != 0 || pool_open_volumes(R.spec, R.vols, R.err) != 0)
			return (EXIT_FAILED);
		for (size_t i = 0; i < R.nfiles; i++) {
			if (R.files[i].f == NULL)
				continue;
			file_name(&R.files[i], name, sizeof (name));
			if ((error = fl_open(R.vols[R.files[i].dataset], name, &R.files[i].f)) != 0)
				return (failed(error, "Opening", &R.files[i]));
		}
	}
	settle();
	pool_loading(&R.pace, false, R.spec->arc_max);
	r->load_wall_s = wall_now() - wall;
	r->load_cpu_s = cpu_now() - cpu;
	progress("load", 1.0, true);
	return (0);
}

/* --- transaction groups by trace time --- */

static int64_t
model_now(void)
{
	return (R.now + R.lag);
}

/*
 * A thread can't begin a call before its last one returned and it has thought as long as it did when recorded.  If the
 * modelled disk is late, the whole trace is held up: otherwise I/O would pile up that the program never issues.
 */
static void
hold_up(const op_t *o)
{
	const thread_t *t = &R.threads[o->thread];
	int64_t ready = t->done + MAX(o->t - t->recorded_done, 0);

	if (ready > o->t + R.lag)
		R.lag = ready - o->t;
}

static uint64_t
in_log(int pool)
{
	uint64_t sum = 0;
	fl_itx_t x;

	for (size_t i = 0; i < R.spec->ndatasets; i++) {
		if (R.spec->datasets[i].pool == pool) {
			fl_volume_itx(R.vols[i], &x);
			sum += x.in_log;
		}
	}
	return (sum);
}

static void
end_txg(int pool, int64_t t)
{
	t = MAX(t, R.now);
	R.now = t;
	memvdev_begin(DO_TXG, model_now(), pool, 0, 0);
	pool_sync(pool);
	(void) memvdev_end();
	/* The next group can't be written before the disks are done with this one. */
	R.txg_done[pool] = MAX(memvdev_async_until(pool) - R.lag, t);
	R.txg_due[pool] = MAX(t + R.pace.txg_timeout_s * NS, R.txg_done[pool]);
	R.in_log_base[pool] = in_log(pool);
}

static void
pass_time(int64_t t)
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
static void
check_dirty(int pool)
{
	uint64_t dirty = pool_dirty_bytes(pool), max = R.pace.dirty_max;
	uint64_t floor = max / 100 * (uint64_t)R.pace.delay_min_percent;
	uint64_t kick = max / 100 * (uint64_t)R.pace.dirty_sync_percent;
	bool writing = R.now < R.txg_done[pool];

	if (dirty >= max || dirty > floor) {
		/* delay = scale * (dirty - floor) / (max - dirty), at most 100 ms: dmu_tx.c */
		double ns = dirty >= max ? 1e8 : (double)R.pace.delay_scale * (double)(dirty - floor) / (double)(max - dirty);

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

/* --- commits --- */

static void
do_commit(fl_file_t *f)
{
	if (f != NULL) {
		fl_commit_file(f);
		return;
	}
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		fl_commit_volume(R.vols[i]);
}

static void *
worker_main(void *arg)
{
	worker_t *w = arg;

	(void) pthread_mutex_lock(&w->lock);
	for (;;) {
		while (!w->busy)
			(void) pthread_cond_wait(&w->cond, &w->lock);
		(void) pthread_mutex_unlock(&w->lock);
		do_commit(w->file);
		w->finish = memvdev_commit_end(&w->track);
		(void) pthread_mutex_lock(&w->lock);
		w->busy = false;
		(void) pthread_cond_broadcast(&w->cond);
	}
	return (NULL);
}

/* A call of this thread waited for the modelled disks from start to finish (model time). */
static void
waited(uint16_t thread, uint8_t via, int64_t start, int64_t finish, int64_t recorded_done)
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

static void
committed(uint64_t thread, uint8_t via, int64_t t, int64_t finish, int64_t recorded_done)
{
	sample(&R.r->sync_lat, finish - t);
	waited((uint16_t)thread, via, t, finish, recorded_done);
}

static void
wait_worker(size_t slot)
{
	worker_t *w = &R.workers[R.active[slot]];

	(void) pthread_mutex_lock(&w->lock);
	while (w->busy)
		(void) pthread_cond_wait(&w->cond, &w->lock);
	(void) pthread_mutex_unlock(&w->lock);
	R.active[slot] = R.active[--R.nactive];
	committed(w->index, VIA_SYSCALL, w->start, w->finish, w->end);
}

static void
wait_all_workers(void)
{
	while (R.nactive > 0)
		wait_worker(0);
}

/* Commits that had returned by now when recorded, and the one of this thread, must have returned here too. */
static void
wait_workers(const op_t *o)
{
	for (size_t i = 0; i < R.nactive; ) {
		worker_t *w = &R.workers[R.active[i]];

		if (w->end <= o->t || w->index == o->thread)
			wait_worker(i);
		else
			i++;
	}
}

static void
start_commit(uint64_t i, fl_file_t *f)
{
	const op_t *o = &R.ops->op[i];
	worker_t *w = &R.workers[o->thread];
	/* A synchronous write that had to read first logs its data only then. */
	int64_t start = MAX(model_now(), R.threads[o->thread].done);

	if (i + 1 >= R.ops->nops || R.ops->op[i + 1].t >= o->t + o->dur || R.ops->op[i + 1].thread == o->thread ||
	    o->via != VIA_SYSCALL) {
		commit_track_t c;

		memvdev_commit_begin(&c, start);
		do_commit(f);
		committed(o->thread, o->via, start, memvdev_commit_end(&c), o->t + o->dur);
		return;
	}
	if (!w->started) {
		(void) pthread_mutex_init(&w->lock, NULL);
		(void) pthread_cond_init(&w->cond, NULL);
		w->index = o->thread;
		if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
			(void) fprintf(stderr, "No thread can be started for the commits of trace thread %u.\n", o->thread);
			_exit(EXIT_FAILED);
		}
		w->started = true;
	}
	w->file = f;
	w->start = start;
	w->end = o->t + o->dur;
	memvdev_commit_begin(&w->track, start);
	(void) pthread_mutex_lock(&w->lock);
	w->busy = true;
	(void) pthread_cond_broadcast(&w->cond);
	(void) pthread_mutex_unlock(&w->lock);
	R.active[R.nactive++] = o->thread;
}

/* --- operations --- */

static void
mark(doing_t what, const rfile_t *f)
{
	memvdev_begin(what, model_now(), f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f));
}

static int
create(rfile_t *f)
{
	char name[64];
	bool commit;
	int error;

	f->names++;
	file_name(f, name, sizeof (name));
	if ((error = fl_create(R.vols[f->dataset], name, &f->f, &commit)) != 0)
		return (failed(error, "Creating", f));
	f->unlinked = false;
	if (f->shadow != NULL)
		(void) madvise(f->shadow, SHADOW, MADV_DONTNEED);
	return (0);
}

static int
destroy(rfile_t *f)
{
	int error;

	/* A commit of it may be under way. */
	wait_all_workers();
	error = fl_destroy(f->f);
	f->f = NULL;
	if (f->shadow != NULL)
		(void) madvise(f->shadow, SHADOW, MADV_DONTNEED);
	return (error != 0 ? failed(error, "Freeing", f) : 0);
}

static int
unlink_file(rfile_t *f, uint64_t i, bool *commit)
{
	char name[64];
	int error;

	*commit = false;
	if (f->f == NULL || f->unlinked)
		return (0);
	wait_all_workers();
	file_name(f, name, sizeof (name));
	if ((error = fl_unlink(f->f, name, commit)) != 0)
		return (failed(error, "Removing", f));
	f->unlinked = true;
	/* Somebody may still have it open: its space goes after its last use in the trace. */
	return (f->last_op <= i ? destroy(f) : 0);
}

static int
read_range(rfile_t *f, const op_t *o, uint64_t *total)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got = 1;
	int error = 0;

	*total = 0;
	while (left > 0 && got > 0 && error == 0) {
		error = fl_read(f->f, off, R.buf, MIN(left, PIECE), &got);
		if (error == 0 && R.spec->verify && shadow_check(f, off, got, R.buf) != 0)
			return (EXIT_FAILED);
		left -= got;
		off += got;
		*total += got;
	}
	return (error != 0 ? failed(error, "Reading", f) : 0);
}

/* Blocks that a prefetch had asked for arrive only when the modelled disk delivers them. */
static int64_t
prefetched_until(const rfile_t *f, uint64_t off, uint64_t len)
{
	uint64_t block = fl_block_size(f->f), objset = fl_volume_objset(R.vols[f->dataset]), n = 0;
	int64_t until = 0;

	if (len == 0 || block == 0)
		return (0);
	for (uint64_t b = off / block; b <= (off + len - 1) / block && n < 4096; b++, n++)
		until = MAX(until, memvdev_prefetch_finish(f->pool, objset, fl_object(f->f), b));
	return (until);
}

static int
op_read(const op_t *o, rfile_t *f)
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
	return (rc);
}

static int
write_range(rfile_t *f, uint64_t off, uint64_t len, const uint8_t *data, int flags, bool *commit)
{
	uint64_t n;
	int error;

	*commit = false;
	for (uint64_t done = 0; done < len; done += n) {
		const uint8_t *p = data;

		n = MIN(len - done, PIECE);
		if (data == NULL) {
			content_fill(f->content, f->id, off + done, n, ++R.stamp, R.buf);
			p = R.buf;
		}
		shadow_write(f, off + done, n, p);
		if ((error = fl_write(f->f, off + done, p, n, flags, commit)) != 0)
			return (failed(error, "Writing", f));
	}
	return (0);
}

static int
op_write(const op_t *o, rfile_t *f, bool *commit)
{
	int64_t end, start = model_now();
	int rc;

	R.r->writes++;
	R.r->write_bytes += (uint64_t)o->size;
	R.r->syncs += (o->flags & (OPF_SYNC | OPF_DSYNC)) != 0;
	mark(DO_WRITE, f);
	rc = write_range(f, (uint64_t)o->offset, (uint64_t)o->size, NULL,
	    (o->flags & (OPF_SYNC | OPF_DSYNC)) != 0 ? FL_SYNC : 0, commit);
	end = memvdev_end();
	/* A write returns at once unless it had to read first. */
	sample(&R.r->write_lat, end - start);
	waited(o->thread, o->via, start, end, o->t + o->dur);
	return (rc);
}

static int
op_copy(const op_t *o, rfile_t *f, rfile_t *src, bool *commit)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got, n;
	int64_t start = model_now(), end;
	int rc = 0;

	*commit = false;
	R.r->writes++;
	R.r->write_bytes += left;
	if (src == NULL || src->f == NULL) {
		mark(DO_WRITE, f);
		rc = write_range(f, off, left, NULL, 0, commit);
		waited(o->thread, o->via, start, memvdev_end(), o->t + o->dur);
		return (rc);
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
			rc = write_range(f, off, n, R.buf, 0, commit);
			end = MAX(end, memvdev_end());
		}
		waited(o->thread, o->via, start, end, o->t + o->dur);
	}
	return (rc);
}

static int
op_truncate(const op_t *o, rfile_t *f, bool *commit)
{
	uint64_t size = (uint64_t)o->size, old = fl_size(f->f);
	int error;

	mark(DO_WRITE, f);
	error = fl_truncate(f->f, size, commit);
	(void) memvdev_end();
	if (size < old && old <= SHADOW)
		shadow_write(f, size, old - size, NULL);
	return (error != 0 ? failed(error, "Truncating", f) : 0);
}

static int
op_fallocate(const op_t *o, rfile_t *f, bool *commit)
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
	(void) memvdev_end();
	return (error != 0 ? failed(error, "Allocating", f) : 0);
}

static int
op_rename(uint64_t i, rfile_t *f, rfile_t *replaced, bool *commit)
{
	char from[64], to[64];
	int error, rc;

	if (replaced != NULL && replaced != f && (rc = unlink_file(replaced, i, commit)) != 0)
		return (rc);
	*commit = false;
	if (f->unlinked)
		return (0);
	file_name(f, from, sizeof (from));
	f->names++;
	file_name(f, to, sizeof (to));
	error = fl_rename(f->f, from, to, commit);
	return (error != 0 ? failed(error, "Renaming", f) : 0);
}

static rfile_t *
known_file(int32_t id)
{
	if (id < 0 || (size_t)id >= R.nfiles || !R.files[id].known)
		return (NULL);
	return (&R.files[id]);
}

static int
run_op(uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	rfile_t *f = known_file(o->file);
	bool commit = false;
	int rc = 0;

	wait_workers(o);
	hold_up(o);
	pass_time(o->t);
	memvdev_time(model_now());
	if (o->op == OP_SYNC) {
		R.r->syncs++;
		start_commit(i, NULL);
		return (0);
	}
	if (f == NULL || (f->f == NULL && f->unlinked && o->op != OP_CREATE) ||
	    (f->f == NULL && (o->op == OP_UNLINK || o->op == OP_READ))) {
		R.r->skipped++;
		return (0);
	}
	if (o->op == OP_CREATE) {
		/* An existing file that is "created" was opened with O_CREAT, nothing more. */
		if (f->f != NULL && f->unlinked && (rc = destroy(f)) != 0)
			return (rc);
		return (f->f == NULL ? create(f) : 0);
	}
	/* The recorder may have missed how it came into being. */
	if (f->f == NULL && (rc = create(f)) != 0)
		return (rc);
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
		return (unlink_file(f, i, &commit));
	case OP_RENAME:
		rc = op_rename(i, f, known_file(o->file2), &commit);
		break;
	default:	/* sync_file_range and mmap do nothing to a file on OpenZFS */
		break;
	}
	if (rc != 0)
		return (rc);
	if (commit)
		start_commit(i, f->f);
	if (o->op == OP_WRITE || o->op == OP_COPY)
		check_dirty(f->pool);
	return (f->unlinked && f->last_op <= i && f->f != NULL ? destroy(f) : 0);
}

/* --- the whole --- */

static int
prepare(void)
{
	size_t top = R.ops->nfiles;
	uint64_t largest = PIECE;

	for (size_t i = 0; i < R.spec->nfiles; i++)
		top = MAX(top, (size_t)R.spec->files[i].id + 1);
	R.nfiles = top;
	R.files = calloc(top + 1, sizeof (*R.files));
	R.vols = calloc(R.spec->ndatasets + 1, sizeof (fl_volume_t *));
	R.content = calloc(R.spec->ncontent + 1, sizeof (*R.content));
	R.threads = calloc((size_t)R.ops->nthreads + 1, sizeof (*R.threads));
	R.workers = calloc((size_t)R.ops->nthreads + 1, sizeof (*R.workers));
	R.active = calloc((size_t)R.ops->nthreads + 1, sizeof (*R.active));
	R.buf = malloc(largest);
	R.r->dataset_space = calloc(R.spec->ndatasets + 1, sizeof (space_t));
	if (R.files == NULL || R.vols == NULL || R.content == NULL || R.threads == NULL || R.workers == NULL ||
	    R.active == NULL || R.buf == NULL || R.r->dataset_space == NULL)
		abort();
	for (size_t i = 0; i < R.spec->ncontent; i++)
		if (content_open(R.spec->content[i].path, &R.content[i], R.err) != 0)
			return (EXIT_INPUT);
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
			f->shadow = mmap(NULL, SHADOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (f->shadow == MAP_FAILED) {
				(void) err_set(R.err, "verify needs 64 GiB of address space per file, and there is no more.");
				return (EXIT_FAILED);
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
	return (0);
}

/* Every file, whole, must read back as last written. */
int
replay_verify(void)
{
	if (!R.spec->verify)
		return (0);
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];
		uint64_t got;
		op_t o = { .offset = 0 };

		if (f->f == NULL || f->shadow == NULL)
			continue;
		o.size = (int64_t)fl_size(f->f);
		if (read_range(f, &o, &got) != 0)
			return (EXIT_FAILED);
		if (got != (uint64_t)o.size) {
			(void) err_set(R.err, "File %u reads back %llu of its %lld bytes.", f->id, (unsigned long long)got,
			    (long long)o.size);
			return (EXIT_FAILED);
		}
	}
	return (0);
}

static void
subtract_arc(arc_count_t *a, const arc_count_t *b)
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

static void
sum_zil(fl_itx_t *itx, uint64_t *commits)
{
	memset(itx, 0, sizeof (*itx));
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

static void
note_txgs(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		R.txg_start[p] = pool_last_txg((int)p);
}

int
replay_run(const spec_t *spec, const ops_t *ops, result_t *r, warn_fn *warn, err_t *err)
{
	arc_count_t arc0;
	fl_itx_t itx0;
	uint64_t commits0, commits;
	double wall, cpu;
	int rc;

	memset(r, 0, sizeof (*r));
	R.spec = spec;
	R.ops = ops;
	R.r = r;
	R.err = err;
	if ((rc = prepare()) != 0)
		return (rc);
	if (memvdev_create(spec, err) != 0 || pool_start(spec, &R.pace, warn, err) != 0 ||
	    pool_check_properties(spec, err) != 0)
		return (EXIT_INPUT);
	progress("load", 0.0, true);
	if (pool_create_all(spec, &R.pace, err) != 0 || pool_open_volumes(spec, R.vols, err) != 0)
		return (EXIT_FAILED);
	if ((rc = load()) != 0)
		return (rc);

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
	for (uint64_t i = 0; i < ops->nops; i++) {
		if ((rc = run_op(i)) != 0)
			return (rc);
		r->trace_s = MAX(r->trace_s, (double)(ops->op[i].t + ops->op[i].dur) / 1e9);
		if ((i & 255) == 0)
			progress("measure", (double)i / (double)ops->nops, false);
	}
	wait_all_workers();
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
	pool_arc(&r->arc);
	subtract_arc(&r->arc, &arc0);
	sum_zil(&r->itx, &commits);
	r->zil_commits = commits - commits0;
	r->itx.indirect -= itx0.indirect;
	r->itx.copied -= itx0.copied;
	r->itx.needcopy -= itx0.needcopy;
	for (size_t i = 0; i < spec->ndatasets; i++)
		(void) pool_dataset_space(spec->datasets[i].name, &r->dataset_space[i]);
	for (uint32_t i = 0; i < ops->nthreads; i++)
		r->thread_wait_s_max = MAX(r->thread_wait_s_max, R.threads[i].wait_s);
	if (r->skipped > 0)
		warn("%" PRIu64 " operations were left out: their file is not in the layout, or did not exist at that time.",
		    r->skipped);
	return (0);
}
