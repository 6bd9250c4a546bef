#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 12)
#include "front.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/falloc.h>
#include <linux/fuse.h>
#include <linux/limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Nothing but this mount changes the file system: what the kernel knows stays true. */
#define FOREVER_S 86400.0
/* But how many blocks a file takes changes when a transaction group is written, without a word to the kernel. */
#define BLOCKS_S 1.0
#define MAX_THREADS 128 /* a thread waits for each commit under way */
#define IDLE_THREADS 32
#define MAX_FILE_BYTES ((uint64_t)INT64_MAX)

/* Shared mappings of files that bypass the page cache: known to Linux since 6.6, to libfuse only later. */
#ifndef FUSE_DIRECT_IO_ALLOW_MMAP
#define FUSE_DIRECT_IO_ALLOW_MMAP (1ULL << 36)
#endif

/* Writes to one file that do not lengthen it need not wait for each other: since Linux 6.2, older ones ignore it. */
#ifndef FOPEN_PARALLEL_DIRECT_WRITES
#define FOPEN_PARALLEL_DIRECT_WRITES (1 << 6)
#endif

struct front {
	fl_volume_t *vol;
	calls_t *calls;
	const spec_dataset_t *dataset;
	bool page_cache;
	char *directory;
	struct fuse_session *session;
	pthread_t thread;
	bool ended;
	/* the first request, in whose answer both sides say what they can do */
	uint64_t init_unique;
	bool init_seen, allow_mmap;
};

static front_t *front_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

static fl_file_t *file_of(fuse_req_t req, fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? fl_root(front_of(req)->vol) : (fl_file_t *)(uintptr_t)ino;
}

static void commit(fuse_req_t req, fl_file_t *f, bool needed)
{
	uint64_t began = latency_now();

	if (!needed)
		return;
	fl_commit_file(f);
	latency_note(&front_of(req)->calls->sync, began, 0);
}

static void stat_of(fl_file_t *f, struct stat *st)
{
	fl_attr_t a;

	fl_getattr(f, &a);
	*st = (struct stat){
		.st_ino = a.object,
		.st_mode = a.mode,
		.st_nlink = a.links,
		.st_uid = a.uid,
		.st_gid = a.gid,
		.st_size = (off_t)a.size,
		.st_rdev = a.rdev,
		.st_blksize = a.block,
		.st_blocks = (blkcnt_t)a.blocks,
		.st_atim = {a.atime[0], a.atime[1]},
		.st_mtim = {a.mtime[0], a.mtime[1]},
		.st_ctim = {a.ctime[0], a.ctime[1]},
	};
}

static double valid_s(const struct stat *st)
{
	if (!S_ISREG(st->st_mode))
		return FOREVER_S;
	/* A write takes these rights away without a word to the kernel, which must not run the file with them then. */
	return st->st_mode & (S_ISUID | S_ISGID) ? 0 : BLOCKS_S;
}

static void entry_of(fl_file_t *f, struct fuse_entry_param *e)
{
	fl_attr_t a;

	fl_getattr(f, &a);
	memset(e, 0, sizeof(*e));
	e->ino = (fuse_ino_t)(uintptr_t)f;
	e->generation = a.gen;
	e->entry_timeout = FOREVER_S;
	stat_of(f, &e->attr);
	e->attr_timeout = valid_s(&e->attr);
}

/* --- what libfuse does not know yet --- */

static ssize_t read_request(int fd, void *buf, size_t len, void *userdata)
{
	front_t *front = userdata;
	ssize_t n = read(fd, buf, len);

	if (n >= (ssize_t)sizeof(struct fuse_in_header) && !front->init_seen) {
		const struct fuse_in_header *h = buf;
		const struct fuse_init_in *in = (const void *)(h + 1);

		if (h->opcode == FUSE_INIT && h->len >= sizeof(*h) + sizeof(*in) && (in->flags & FUSE_INIT_EXT)) {
			front->init_seen = true;
			front->init_unique = h->unique;
			front->allow_mmap = ((uint64_t)in->flags2 << 32 & FUSE_DIRECT_IO_ALLOW_MMAP) != 0;
		}
	}
	return n;
}

static __thread bool opening; /* this thread answers an open of a file that passes the page cache by */

static ssize_t write_answer(int fd, struct iovec *iov, int count, void *userdata)
{
	front_t *front = userdata;

	if (front->init_unique != 0 && front->allow_mmap && count == 2 &&
	    iov[1].iov_len >= sizeof(struct fuse_init_out) &&
	    ((const struct fuse_out_header *)iov[0].iov_base)->unique == front->init_unique) {
		struct fuse_init_out *out = iov[1].iov_base;

		out->flags |= FUSE_INIT_EXT;
		out->flags2 |= (uint32_t)(FUSE_DIRECT_IO_ALLOW_MMAP >> 32);
		front->init_unique = 0;
	}
	/* The answer to an open ends with what is to hold for the open file. */
	if (opening && count == 2 && iov[1].iov_len >= sizeof(struct fuse_open_out)) {
		struct fuse_open_out *out = (struct fuse_open_out *)((char *)iov[1].iov_base + iov[1].iov_len) - 1;

		out->open_flags |= FOPEN_PARALLEL_DIRECT_WRITES;
	}
	return writev(fd, iov, count);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	/*
	 * Splicing needs the real device; truncation on open comes as a request of its own.  OpenZFS in the kernel knows
	 * no asynchronous I/O.
	 */
	conn->want &= ~(unsigned)(FUSE_CAP_ASYNC_DIO | FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
	    FUSE_CAP_SPLICE_MOVE | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
	conn->time_gran = 1;
	conn->max_background = 128;
}

/* --- names --- */

static void reply_entry(fuse_req_t req, fl_file_t *f)
{
	struct fuse_entry_param e;

	entry_of(f, &e);
	/* The kernel went away meanwhile: nobody will ever forget this reference. */
	if (fuse_reply_entry(req, &e) != 0)
		fl_release(f, 1);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fl_file_t *f;
	int error = fl_lookup(file_of(req, parent), name, &f);

	if (error == 0) {
		reply_entry(req, f);
	} else if (error == ENOENT) {
		/* The kernel may remember that there is none. */
		struct fuse_entry_param e = {.entry_timeout = FOREVER_S};

		(void)fuse_reply_entry(req, &e);
	} else {
		(void)fuse_reply_err(req, error);
	}
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	if (ino != FUSE_ROOT_ID)
		fl_release(file_of(req, ino), n);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		if (forgets[i].ino != FUSE_ROOT_ID)
			fl_release(file_of(req, forgets[i].ino), forgets[i].nlookup);
	fuse_reply_none(req);
}

static int make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev, const char *target,
    fl_file_t **f)
{
	const struct fuse_ctx *who = fuse_req_ctx(req);
	fl_new_t n = {.mode = mode, .uid = who->uid, .gid = who->gid, .rdev = rdev, .target = target};
	bool sync;
	int error = fl_create(file_of(req, parent), name, &n, f, &sync);

	if (error == 0)
		commit(req, *f, sync);
	return error;
}

static void reply_made(fuse_req_t req, int error, fl_file_t *f)
{
	if (error == 0)
		reply_entry(req, f);
	else
		(void)fuse_reply_err(req, error);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	fl_file_t *f = NULL;
	int error = make(req, parent, name, mode, rdev, NULL, &f);

	reply_made(req, error, f);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	fl_file_t *f = NULL;
	int error = make(req, parent, name, S_IFDIR | mode, 0, NULL, &f);

	reply_made(req, error, f);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	fl_file_t *f = NULL;
	int error = make(req, parent, name, S_IFLNK | 0777, 0, target, &f);

	reply_made(req, error, f);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	fl_file_t *f = file_of(req, ino);
	bool sync;
	int error = fl_link(file_of(req, parent), name, f, &sync);

	if (error == 0) {
		commit(req, f, sync);
		fl_hold(f);
	}
	reply_made(req, error, f);
}

static void take_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool directory)
{
	fl_file_t *dir = file_of(req, parent);
	bool sync;
	int error = fl_unlink(dir, name, directory, &sync);

	if (error == 0)
		commit(req, dir, sync);
	(void)fuse_reply_err(req, error);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	take_name(req, parent, name, false);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	take_name(req, parent, name, true);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *new_name,
    unsigned flags)
{
	fl_file_t *dir = file_of(req, parent);
	bool sync;
	int error = EINVAL;

	if ((flags & ~(unsigned)RENAME_NOREPLACE) == 0)
		error = fl_rename(dir, name, file_of(req, to), new_name, (flags & RENAME_NOREPLACE) == 0, &sync);
	else if (flags == RENAME_EXCHANGE)
		error = fl_exchange(dir, name, file_of(req, to), new_name, &sync);
	if (error == 0)
		commit(req, dir, sync);
	(void)fuse_reply_err(req, error);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[4097];
	int error = fl_readlink(file_of(req, ino), target, sizeof(target));

	if (error == 0)
		(void)fuse_reply_readlink(req, target);
	else
		(void)fuse_reply_err(req, error);
}

/* --- directories --- */

typedef struct {
	fuse_req_t req;
	char *buf;
	size_t have, room;
} listing_t;

static bool list_entry(void *arg, const char *name, uint64_t object, uint32_t type, uint64_t next)
{
	listing_t *l = arg;
	struct stat st = {.st_ino = object, .st_mode = type << 12};
	size_t n = fuse_add_direntry(l->req, l->buf + l->have, l->room - l->have, name, &st, (off_t)next);

	if (n > l->room - l->have)
		return false;
	l->have += n;
	return true;
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	listing_t l = {.req = req, .buf = malloc(size), .room = size};
	int error;

	(void)fi;
	if (l.buf == NULL) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	error = fl_readdir(file_of(req, ino), (uint64_t)offset, list_entry, &l);
	if (error == 0)
		(void)fuse_reply_buf(req, l.buf, l.have);
	else
		(void)fuse_reply_err(req, error);
	free(l.buf);
}

/* --- attributes --- */

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	stat_of(file_of(req, ino), &st);
	(void)fuse_reply_attr(req, &st, valid_s(&st));
}

static void now_or(int64_t out[2], bool now, const struct timespec *given)
{
	struct timespec t = *given;

	if (now)
		(void)clock_gettime(CLOCK_REALTIME, &t);
	out[0] = t.tv_sec;
	out[1] = t.tv_nsec;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set, struct fuse_file_info *fi)
{
	fl_attr_t a = {.mode = st->st_mode, .uid = st->st_uid, .gid = st->st_gid};
	fl_file_t *f = file_of(req, ino);
	bool sync = false, size_sync = false;
	unsigned mask = 0;
	int error = 0;

	(void)fi;
	mask |= to_set & FUSE_SET_ATTR_MODE ? FL_MODE : 0;
	mask |= to_set & FUSE_SET_ATTR_UID ? FL_UID : 0;
	mask |= to_set & FUSE_SET_ATTR_GID ? FL_GID : 0;
	mask |= to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW) ? FL_ATIME : 0;
	mask |= to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW) ? FL_MTIME : 0;
	now_or(a.atime, to_set & FUSE_SET_ATTR_ATIME_NOW, &st->st_atim);
	now_or(a.mtime, to_set & FUSE_SET_ATTR_MTIME_NOW, &st->st_mtim);
	if (to_set & FUSE_SET_ATTR_SIZE)
		error = fl_truncate(f, (uint64_t)st->st_size, &size_sync);
	if (error == 0 && mask != 0)
		error = fl_setattr(f, mask, &a, &sync);
	if (error != 0) {
		(void)fuse_reply_err(req, error);
		return;
	}
	commit(req, f, sync || size_sync);
	stat_of(f, st);
	(void)fuse_reply_attr(req, st, valid_s(st));
}

static bool known_xattr(const char *name)
{
	static const char *const prefixes[] = {"user.", "trusted.", "security."};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0 && name[strlen(prefixes[i])] != '\0')
			return true;
	return false;
}

static void reply_sized(fuse_req_t req, int error, const char *buf, size_t size, size_t len)
{
	if (error != 0)
		(void)fuse_reply_err(req, error);
	else if (size == 0)
		(void)fuse_reply_xattr(req, len);
	else
		(void)fuse_reply_buf(req, buf, len);
}

/* What `zfs get` would say to who records a database here: it is asked for by name, and never listed. */
static int get_property(const spec_dataset_t *dataset, const char *name, char *buf, size_t size, size_t *len)
{
	for (size_t i = 0; i < dataset->nprops; i++)
		if (strcmp(dataset->props[i].key, name) == 0) {
			*len = strlen(dataset->props[i].value);
			if (size != 0 && *len > size)
				return ERANGE;
			(void)memcpy(buf, dataset->props[i].value, size == 0 ? 0 : *len);
			return 0;
		}
	return ENODATA;
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	char *buf = malloc(size + 1);
	size_t len = 0;
	int error = buf == NULL ? ENOMEM : EOPNOTSUPP;

	if (buf != NULL && known_xattr(name))
		error = fl_getxattr(file_of(req, ino), name, buf, size, &len);
	else if (buf != NULL && strncmp(name, "ztune.", 6) == 0)
		error = get_property(front_of(req)->dataset, name + 6, buf, size, &len);
	reply_sized(req, error, buf, size, len);
	free(buf);
}

/* Takes those out that only root may see; returns how much is left. */
static size_t without_trusted(char *names, size_t len)
{
	size_t left = 0;

	for (size_t at = 0, n; at < len; at += n) {
		n = strlen(names + at) + 1;
		if (strncmp(names + at, "trusted.", strlen("trusted.")) != 0) {
			memmove(names + left, names + at, n);
			left += n;
		}
	}
	return left;
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	char *buf = malloc(XATTR_LIST_MAX);
	size_t len = 0;
	int error = buf == NULL ? ENOMEM : fl_listxattr(file_of(req, ino), buf, XATTR_LIST_MAX, &len);

	if (error == 0 && fuse_req_ctx(req)->uid != 0)
		len = without_trusted(buf, len);
	if (error == 0 && size > 0 && len > size)
		error = ERANGE;
	reply_sized(req, error, buf, size, len);
	free(buf);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags)
{
	fl_file_t *f = file_of(req, ino);
	bool sync = false;
	int error = !known_xattr(name)
	    ? EOPNOTSUPP
	    : fl_setxattr(f, name, value, size, (flags & XATTR_CREATE) != 0, (flags & XATTR_REPLACE) != 0, &sync);

	commit(req, f, error == 0 && sync);
	(void)fuse_reply_err(req, error);
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	fl_file_t *f = file_of(req, ino);
	bool sync = false;
	int error = !known_xattr(name) ? EOPNOTSUPP : fl_removexattr(f, name, &sync);

	commit(req, f, error == 0 && sync);
	(void)fuse_reply_err(req, error);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const front_t *front = front_of(req);
	uint64_t used, avail, objects, free_objects;
	struct statvfs v = {0};

	(void)ino;
	fl_volume_space(front->vol, &used, &avail, &objects, &free_objects);
	v.f_bsize = front->dataset->recordsize;
	v.f_frsize = 512;
	v.f_blocks = (used + avail) / 512;
	v.f_bfree = v.f_bavail = avail / 512;
	/* As the kernel's module counts: a file takes at least a dnode. */
	v.f_ffree = v.f_favail = MIN(free_objects, v.f_bfree);
	v.f_files = v.f_ffree + objects;
	v.f_namemax = 255;
	(void)fuse_reply_statfs(req, &v);
}

/* --- files --- */

static void how(const front_t *front, struct fuse_file_info *fi)
{
	fi->direct_io = !front->page_cache;
	fi->keep_cache = front->page_cache;
	fi->noflush = 1;
}

/* How the call that fi is of reaches its file. */
static int flags_of(const struct fuse_file_info *fi)
{
	/* The kernel's own write-back of pages has no open file, and is followed by an fsync where it must be. */
	if (fi->writepage)
		return 0;
	return ((fi->flags & (O_SYNC | O_DSYNC)) != 0 ? FL_SYNC : 0) | ((fi->flags & O_DIRECT) != 0 ? FL_DIRECT : 0);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	how(front_of(req), fi);
	opening = fi->direct_io;
	(void)fuse_reply_open(req, fi);
	opening = false;
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fuse_entry_param e;
	fl_file_t *f;
	int error = make(req, parent, name, S_IFREG | (mode & 07777), 0, NULL, &f);

	/* Somebody else may have been first. */
	if (error == EEXIST && !(fi->flags & O_EXCL))
		error = fl_lookup(file_of(req, parent), name, &f);
	if (error != 0) {
		(void)fuse_reply_err(req, error);
		return;
	}
	entry_of(f, &e);
	how(front_of(req), fi);
	opening = fi->direct_io;
	if (fuse_reply_create(req, &e, fi) != 0)
		fl_release(f, 1);
	opening = false;
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	char *buf = malloc(size); /* not kept by the thread: libfuse ends and starts threads all the time */
	uint64_t got = 0, began;
	int error;

	if (buf == NULL) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	began = latency_now();
	error = fl_read(file_of(req, ino), (uint64_t)offset, buf, size, flags_of(fi), &got);
	latency_note(&front_of(req)->calls->read, began, got);
	if (error == 0)
		(void)fuse_reply_buf(req, buf, got);
	else
		(void)fuse_reply_err(req, error);
	free(buf);
}

/* Who writes to a program that runs with other rights takes them from it. */
static void drop_privileges(fuse_req_t req, fl_file_t *f)
{
	fl_attr_t a;
	bool sync;

	(void)fl_removexattr(f, "security.capability", &sync);
	if (fuse_req_ctx(req)->uid == 0)
		return;
	fl_getattr(f, &a);
	if ((a.mode & S_ISUID) || (a.mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP)) {
		a.mode &= ~(uint32_t)(S_ISUID | (a.mode & S_IXGRP ? S_ISGID : 0));
		(void)fl_setattr(f, FL_MODE, &a, &sync);
	}
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t offset,
    struct fuse_file_info *fi)
{
	fl_file_t *f = file_of(req, ino);
	uint64_t began;
	bool sync;
	int error;

	if ((uint64_t)offset > MAX_FILE_BYTES - size) {
		(void)fuse_reply_err(req, EFBIG);
		return;
	}
	began = latency_now();
	error = fl_write(f, (uint64_t)offset, buf, size, flags_of(fi), &sync);
	latency_note(&front_of(req)->calls->write, began, error == 0 ? size : 0);
	if (error != 0) {
		(void)fuse_reply_err(req, error);
		return;
	}
	if (!fi->writepage)
		drop_privileges(req, f);
	commit(req, f, sync);
	(void)fuse_reply_write(req, size);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)datasync, (void)fi;
	commit(req, file_of(req, ino), true);
	(void)fuse_reply_err(req, 0);
}

/* OpenZFS asks for a tenth more than is to be reserved, and reserves nothing (zfs_fallocate_reserve_percent). */
static bool enough_room(const front_t *front, uint64_t len)
{
	uint64_t used, avail, objects, free_objects;

	fl_volume_space(front->vol, &used, &avail, &objects, &free_objects);
	return len / 10 * 11 <= avail;
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t len, struct fuse_file_info *fi)
{
	fl_file_t *f = file_of(req, ino);
	bool keep = (mode & FALLOC_FL_KEEP_SIZE) != 0, sync = false;
	int error, kind = mode & ~FALLOC_FL_KEEP_SIZE;

	(void)fi;
	if (kind == FALLOC_FL_PUNCH_HOLE || kind == FALLOC_FL_ZERO_RANGE)
		error = fl_zero(f, (uint64_t)offset, (uint64_t)len, keep, &sync);
	else if (kind != 0)
		error = EOPNOTSUPP;
	else if (!enough_room(front_of(req), (uint64_t)len))
		error = ENOSPC;
	else
		error = fl_allocate(f, (uint64_t)offset, (uint64_t)len, keep, &sync);
	commit(req, f, error == 0 && sync);
	(void)fuse_reply_err(req, error);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, struct fuse_file_info *fi)
{
	uint64_t at = (uint64_t)offset;
	int error =
	    whence == SEEK_DATA || whence == SEEK_HOLE ? fl_seek(file_of(req, ino), whence == SEEK_HOLE, &at) : EINVAL;

	(void)fi;
	if (error == 0)
		(void)fuse_reply_lseek(req, (off_t)at);
	else
		(void)fuse_reply_err(req, error);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.fsync = op_fsync,
	.readdir = op_readdir,
	.fsyncdir = op_fsync,
	.statfs = op_statfs,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.fallocate = op_fallocate,
	.lseek = op_lseek,
};

/* --- mounting --- */

static void *serve(void *arg)
{
	front_t *front = arg;
	struct fuse_loop_config *config = fuse_loop_cfg_create();

	fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
	fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
	(void)fuse_session_loop_mt(front->session, config);
	fuse_loop_cfg_destroy(config);
	__atomic_store_n(&front->ended, true, __ATOMIC_RELEASE);
	/* Whoever waits for all of them to end. */
	(void)kill(getpid(), SIGCHLD);
	return NULL;
}

/* Two that mount at the same time must not take each other's name; a failed mount says why on stderr. */
int front_mount(fl_volume_t *vol, calls_t *calls, const spec_dataset_t *dataset, const char *directory, bool page_cache,
    front_t **out, err_t *err)
{
	static const struct fuse_custom_io io = {.read = read_request, .writev = write_answer};
	front_t *front = calloc(1, sizeof(*front));
	char options[512];
	char *argv[] = {"ztune-mount", "-o", options, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);

	if (front == NULL || (front->directory = strdup(directory)) == NULL)
		abort();
	front->vol = vol;
	front->calls = calls;
	front->dataset = dataset;
	front->page_cache = page_cache;
	(void)snprintf(options, sizeof(options), "fsname=ztune:%s,subtype=ztune,default_permissions%s", dataset->name,
	    geteuid() == 0 ? ",allow_other,suid,dev" : "");
	front->session = fuse_session_new(&args, &ops, sizeof(ops), front);
	fuse_opt_free_args(&args);
	if (front->session == NULL)
		return err_set(err, "FUSE refuses the mount options %s.", options);
	if (fuse_session_mount(front->session, directory) != 0) {
		fuse_session_destroy(front->session);
		return err_set(err, "%s can't be mounted at %s: FUSE refuses (above).", dataset->name, directory);
	}
	if (fuse_session_custom_io(front->session, &io, fuse_session_fd(front->session)) != 0 ||
	    pthread_create(&front->thread, NULL, serve, front) != 0) {
		fuse_session_unmount(front->session);
		fuse_session_destroy(front->session);
		return err_set(err, "%s can't be served: no thread.", dataset->name);
	}
	*out = front;
	return 0;
}

bool front_ended(const front_t *front)
{
	return __atomic_load_n(&front->ended, __ATOMIC_ACQUIRE);
}

/* Not libfuse's own: that closes the device while threads still read from it. */
static bool unmount(const char *directory, bool lazy)
{
	pid_t child;
	int status;

	if (geteuid() == 0)
		return umount2(directory, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0;
	if ((child = fork()) == 0) {
		int null = open("/dev/null", O_WRONLY);

		if (!lazy && null >= 0)
			(void)dup2(null, STDERR_FILENO);
		(void)execlp("fusermount3", "fusermount3", "-u", lazy ? "-z" : "--", directory, NULL);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void wake_up(int sig)
{
	(void)sig;
}

bool front_unmount(front_t *front)
{
	struct sigaction sa = {.sa_handler = wake_up};
	struct timespec tick = {.tv_nsec = 20000000};
	bool busy = false;

	if (!front_ended(front)) {
		/* What the kernel still has to write comes while we serve. */
		busy = !unmount(front->directory, false);
		if (busy)
			(void)unmount(front->directory, true);
	}
	(void)sigaction(SIGUSR1, &sa, NULL);
	fuse_session_exit(front->session);
	/* The loop sleeps and looks at its end only when it is woken; it may be about to fall asleep. */
	while (!front_ended(front)) {
		(void)pthread_kill(front->thread, SIGUSR1);
		(void)nanosleep(&tick, NULL);
	}
	(void)pthread_join(front->thread, NULL);
	fuse_session_destroy(front->session); /* closes the device: what is still open gets errors */
	free(front->directory);
	free(front);
	return busy;
}
