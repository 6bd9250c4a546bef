/* The trace's operations on files. */
#include "replay_impl.h"

#include <sys/mman.h>
#include <sys/stat.h>

/* Who owns a file has no part in its I/O. */
const fl_new_t files_new = {.mode = S_IFREG | 0600};

void files_name(const rfile_t *f, char *name, size_t len)
{
	(void)snprintf(name, len, "file%010" PRIu32 ".%" PRIu32, f->id, f->names);
}

void files_note(samples_t *s, waits_t *dataset, int64_t ns, double calls)
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

/* --- verify: what each file must hold --- */

#define SHADOW_PAGE (64ULL << 10) /* whole pages, whatever their size is here */

void files_shadow(rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	uint64_t end, first, last;

	if (f->shadow == NULL || off >= REPLAY_SHADOW)
		return;
	end = MIN(off + len, REPLAY_SHADOW);
	if (buf != NULL) {
		memcpy(f->shadow + off, buf, end - off);
		return;
	}
	/* A file may be far larger than what was written to it: pages are let go, not filled with zeros. */
	first = MIN(P2ROUNDUP_TYPED(off, SHADOW_PAGE, uint64_t), end);
	last = MAX(P2ALIGN_TYPED(end, SHADOW_PAGE, uint64_t), first);
	memset(f->shadow + off, 0, first - off);
	(void)madvise(f->shadow + first, last - first, MADV_DONTNEED);
	memset(f->shadow + last, 0, end - last);
}

static int shadow_check(const rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf)
{
	if (f->shadow == NULL || off + len > REPLAY_SHADOW || memcmp(f->shadow + off, buf, len) == 0)
		return 0;
	for (uint64_t i = 0; i < len; i++)
		if (f->shadow[off + i] != buf[i])
			return err_set(R.err, "File %u reads back wrong at byte %llu.", f->id,
			    (unsigned long long)(off + i));
	return 0;
}

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
	files_name(f, name, sizeof(name));
	error = fl_create(fl_root(R.vols[f->dataset]), name, &files_new, &made, &commit);
	f->making = false;
	vtime_wake(&f->waiting, true);
	if (error != 0)
		return replay_failed(error, "Creating", f);
	f->f = made;
	f->unlinked = false;
	if (!f->elsewhere)
		f->space = f->missing = f->logical = f->compressed = f->pointer = 0;
	touched_free(&f->touched);
	touched_free(&f->windows);
	f->used = f->filled = 0;
	stands_set(f);
	if (f->shadow != NULL)
		(void)madvise(f->shadow, REPLAY_SHADOW, MADV_DONTNEED);
	return 0;
}

void files_destroy(rfile_t *f)
{
	fl_release(f->f, 1);
	f->f = NULL;
	if (f->shadow != NULL)
		(void)madvise(f->shadow, REPLAY_SHADOW, MADV_DONTNEED);
}

static int unlink_file(rfile_t *f, bool *commit)
{
	char name[64];
	int error;

	*commit = false;
	f->elsewhere = false;
	if (f->f == NULL || f->unlinked)
		return 0;
	files_name(f, name, sizeof(name));
	if ((error = fl_unlink(fl_root(R.vols[f->dataset]), name, false, commit)) != 0)
		return replay_failed(error, "Removing", f);
	/* Somebody may still have it open: its space goes after its last use in the trace. */
	f->unlinked = true;
	return 0;
}

/* How a call reaches its file. */
static int how(const op_t *o)
{
	return ((o->flags & (OPF_SYNC | OPF_DSYNC)) != 0 ? FL_SYNC : 0) |
	    ((o->flags & OPF_DIRECT) != 0 ? FL_DIRECT : 0);
}

static int read_range(rfile_t *f, uint64_t off, uint64_t left, int flags, uint64_t *total)
{
	/* Its own: Direct I/O has the disks write here, and a checksum taken of it while others read would be wrong. */
	uint8_t *buf = malloc(MIN(left, REPLAY_PIECE) + 1);
	uint64_t got = 1;
	int error = 0, rc = 0;

	if (buf == NULL)
		abort();
	*total = 0;
	while (left > 0 && got > 0 && error == 0 && rc == 0) {
		error = fl_read(f->f, off, buf, MIN(left, REPLAY_PIECE), flags, &got);
		if (error == 0 && R.spec->verify)
			rc = shadow_check(f, off, got, buf);
		left -= got;
		off += got;
		*total += got;
	}
	free(buf);
	if (error != 0)
		return replay_failed(error, "Reading", f);
	return rc != 0 ? EXIT_FAILED : 0;
}

int files_read(rfile_t *f, uint64_t off, uint64_t left, uint64_t *total)
{
	return read_range(f, off, left, 0, total);
}

int files_warm(const op_t *o, rfile_t *f, uint64_t *total)
{
	return read_range(f, (uint64_t)o->offset, (uint64_t)o->size, how(o), total);
}

static int op_read(const op_t *o, rfile_t *f)
{
	int64_t start = replay_now();
	double each = stands_for_call(f, o);
	uint64_t got;
	int rc;

	R.r->reads += each;
	rc = read_range(f, (uint64_t)o->offset, (uint64_t)o->size, how(o), &got);
	R.r->read_bytes += (double)got * each;
	files_note(&R.r->read_lat, &R.r->dataset_waits[f->dataset].read, replay_now() - start, each);
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
	if (data == NULL && (own = malloc(MIN(len, REPLAY_PIECE) + 1)) == NULL)
		abort();
	memvdev_writing(&target);
	for (uint64_t done = 0; done < len && error == 0; done += n) {
		n = MIN(len - done, REPLAY_PIECE);
		if (data == NULL) {
			uint64_t full = len - bytes.blank > done ? MIN(len - bytes.blank - done, n) : 0;

			content_fill(f->content, f->id, off + done, full, ++bytes.stamp, own);
			memset(own + full, 0, n - full);
		}
		files_shadow(f, off + done, n, data != NULL ? data : own);
		error = fl_write(f->f, off + done, data != NULL ? data : own, n, flags, commit);
	}
	memvdev_written(&target);
	free(own);
	return error != 0 ? replay_failed(error, "Writing", f) : 0;
}

int files_age(const spec_file_t *f, uint64_t off, uint64_t len)
{
	static uint64_t writes; /* their stamps are none of the trace's */
	bool commit;

	return write_range(&R.files[f->id], off, len, (bytes_t){NULL, (1ULL << 63) + (++writes << STAMPS), 0}, 0,
	    &commit);
}

/* Linux has a ring's writes to one file done one after another where the file system can't do them without waiting. */
static void take_ring(rfile_t *f)
{
	while (f->ring_writes)
		(void)vtime_wait(&f->ring_waiting, VTIME_NEVER);
	f->ring_writes = true;
}

static void leave_ring(rfile_t *f)
{
	f->ring_writes = false;
	vtime_wake(&f->ring_waiting, false);
}

static int op_write(const op_t *o, rfile_t *f, bool *commit)
{
	int64_t start = replay_now(), took, room = (int64_t)fl_room_waited();
	double each = stands_for_call(f, o);
	waits_t *waits = &R.r->dataset_waits[f->dataset].write;
	int rc;

	R.r->writes += each;
	R.r->write_bytes += (double)o->size * each;
	f->written += (double)o->size;
	f->stood_for += (double)o->size * each;
	R.r->syncs += (how(o) & FL_SYNC) != 0;
	rc = write_range(f, (uint64_t)o->offset, (uint64_t)o->size, bytes_of(o), how(o), commit);
	took = replay_now() - start;
	room = (int64_t)fl_room_waited() - room;
	if (room > 0 && each > 1.0) {
		/* One of those that it stands for waits until there is room for all of them. */
		files_note(&R.r->write_lat, waits, took, 1.0);
		files_note(&R.r->write_lat, waits, took - room, each - 1.0);
	} else {
		files_note(&R.r->write_lat, waits, took, each);
	}
	return rc;
}

static int op_copy(const op_t *o, rfile_t *f, rfile_t *src, bool *commit)
{
	uint64_t left = (uint64_t)o->size, off = (uint64_t)o->offset, got = 0, stamp = bytes_of(o).stamp;
	double each = stands_for_call(f, o);
	uint8_t *buf;
	int rc = 0;

	*commit = false;
	R.r->writes += each;
	R.r->write_bytes += (double)left * each;
	f->written += (double)left;
	f->stood_for += (double)left * each;
	if (src == NULL || src->f == NULL)
		return write_range(f, off, left, bytes_of(o), 0, commit);
	if ((buf = malloc(MIN(left, REPLAY_PIECE) + 1)) == NULL)
		abort();
	/* Where in the source it began the trace does not tell: it is read as often as it is copied. */
	R.r->reads += each;
	for (uint64_t n; left > 0 && rc == 0; left -= n, off += n) {
		int error;

		n = MIN(left, REPLAY_PIECE);
		error = fl_read(src->f, off, buf, n, 0, &got);
		R.r->read_bytes += (double)got * each;
		if (error != 0)
			rc = replay_failed(error, "Reading", src);
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
	account_target_t target = writing(f, size, UINT64_MAX - size);
	int error;

	memvdev_writing(&target);
	error = fl_truncate(f->f, size, commit);
	memvdev_written(&target);
	if (size < old) {
		stands_freed(f, size, UINT64_MAX - size);
		files_shadow(f, size, old - size, NULL);
	}
	return error != 0 ? replay_failed(error, "Truncating", f) : 0;
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
		if (off < size) {
			stands_freed(f, off, MIN(len, size - off));
			files_shadow(f, off, MIN(len, size - off), NULL);
		}
	} else {
		error = fl_allocate(f->f, off, len, keep, commit);
	}
	memvdev_written(&target);
	return error != 0 ? replay_failed(error, "Allocating", f) : 0;
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
	files_name(f, from, sizeof(from));
	f->names++;
	files_name(f, to, sizeof(to));
	error = fl_rename(root, from, root, to, true, commit);
	return error != 0 ? replay_failed(error, "Renaming", f) : 0;
}

rfile_t *files_known(int32_t id)
{
	if (id < 0 || (size_t)id >= R.nfiles || !R.files[id].known)
		return NULL;
	return &R.files[id];
}

static void commit_file(const rfile_t *f)
{
	int64_t start = replay_now();
	waits_t *role;

	if (f != NULL)
		fl_commit_file(f->f);
	else
		for (size_t i = 0; i < R.spec->ndatasets; i++)
			fl_commit_volume(R.vols[i]);
	files_note(&R.r->sync_lat, f != NULL ? &R.r->dataset_waits[f->dataset].sync : NULL, replay_now() - start, 1.0);
	if (f == NULL)
		return;
	role = &R.r->role_syncs[f->spec->content];
	role->calls++;
	role->sum_ms += (double)(replay_now() - start) / 1e6;
}

int files_do(const op_t *o)
{
	rfile_t *f = files_known(o->file);
	bool commit = false, ring = o->op == OP_WRITE && o->via == VIA_URING;
	int rc = 0;

	if (o->op == OP_SYNC) {
		R.r->syncs++;
		commit_file(NULL);
		return 0;
	}
	if (f != NULL && f->f == NULL && f->elsewhere && o->op == OP_UNLINK)
		return unlink_file(f, &commit);
	if (f == NULL || (f->f == NULL && f->unlinked && o->op != OP_CREATE) ||
	    (f->f == NULL && (o->op == OP_UNLINK || o->op == OP_READ || o->op == OP_READ_AHEAD))) {
		R.r->skipped++;
		return 0;
	}
	if (o->op == OP_CREATE) {
		/* An existing file that is "created" was opened with O_CREAT, nothing more. */
		if (f->f != NULL && f->unlinked)
			files_destroy(f);
		return f->f == NULL ? create(f) : 0;
	}
	/* The recorder may have missed how it came into being. */
	if (f->f == NULL && (rc = create(f)) != 0)
		return rc;
	/* Until what it wrote is committed, if it must be: that is part of the call. */
	if (ring)
		take_ring(f);
	switch (o->op) {
	case OP_READ:
		rc = op_read(o, f);
		break;
	case OP_READ_AHEAD:
		fl_read_ahead(f->f, (uint64_t)o->offset, (uint64_t)o->size);
		break;
	case OP_WRITE:
		rc = op_write(o, f, &commit);
		break;
	case OP_COPY:
		rc = op_copy(o, f, files_known(o->file2), &commit);
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
		rc = op_rename(f, files_known(o->file2), &commit);
		break;
	default: /* sync_file_range and mmap do nothing to a file on OpenZFS */
		break;
	}
	if (rc == 0 && commit)
		commit_file(f);
	if (ring)
		leave_ring(f);
	return rc;
}

int files_begin_logs(void)
{
	const fl_attr_t nothing = {0};
	bool commit;
	int error;

	for (size_t i = 0; i < R.spec->ndatasets; i++) {
		if ((error = fl_setattr(fl_root(R.vols[i]), 0, &nothing, &commit)) != 0) {
			(void)err_set(R.err, "The intent log of %s can't be begun: %s.", R.spec->datasets[i].name,
			    strerror(error));
			return EXIT_FAILED;
		}
		fl_commit_volume(R.vols[i]);
	}
	replay_settle();
	return 0;
}

void files_note_arc(void)
{
	uint64_t size, evictable;

	if (R.spec->rate > 1) {
		sampled_let_go();
		(void)sampled_arc_limit(R.spec->arc_max, R.whole);
	}
	pool_arc_size(&size, &evictable);
	if (size > R.r->arc_most) {
		R.r->arc_most = size;
		R.r->arc_most_pinned = size - MIN(evictable, size);
	}
}
