/*
 * A file system on an OpenZFS dataset in user space: what the POSIX layer of the kernel module decides, decided here
 * the same way (objects and their attributes on disk, block size of a growing file, transactions, which kind of intent
 * log record, what is committed when, how the log is replayed).  What it writes is a file system that the kernel can
 * mount and zdb can read.
 *
 * Knows nothing of traces and nothing of FUSE; several front ends can sit on it.  All calls are thread-safe; two calls
 * on one file are ordered by a range lock as in the kernel.  Functions return 0 or an errno value.  A mutating call
 * sets *commit if the caller must still call fl_commit_*() before it may acknowledge (O_SYNC, O_DSYNC, sync=always);
 * this is kept apart so that a front end can commit from another thread.
 */
#ifndef ZTUNE_FILELAYER_H
#define ZTUNE_FILELAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fl_volume fl_volume_t;
typedef struct fl_file fl_file_t;

enum {
	FL_SYNC = 1,  /* the file is open with O_SYNC or O_DSYNC, or the call asks for it */
	FL_DIRECT = 2 /* the file is open with O_DIRECT, and the caller's memory begins at a page */
};

/* Intent log records made, by kind. */
typedef struct {
	uint64_t indirect, copied, needcopy;
	uint64_t bytes;  /* of all writes logged */
	uint64_t in_log; /* of those whose data goes into the log itself if it is committed */
} fl_itx_t;

/* Writes of at least this many bytes go to their place at once if there is no log device (zfs_immediate_write_sz). */
extern int64_t fl_immediate_write_sz;

/* Called, if set, with the bytes of a file that are about to go to the intent log. */
extern void (*fl_logged)(fl_file_t *file, uint64_t off, uint64_t bytes);

/* --- volumes --- */

/* Makes an empty file system; its root belongs to uid and gid. */
int fl_volume_format(const char *dataset, uint32_t uid, uint32_t gid);
/* Opens it; frees what was unlinked when it was left, and replays the intent log if there is one. */
int fl_volume_open(const char *dataset, uint64_t recordsize, fl_volume_t **vol);
void fl_volume_close(fl_volume_t *vol); /* every file must be closed */
/* Drops every reference but the volume's own: whoever had them is gone. */
void fl_volume_forget(fl_volume_t *vol);

/* Whether reading sets access times (atime, relatime); not unless asked for. */
void fl_volume_access_times(fl_volume_t *vol, bool on, bool relative);

uint64_t fl_volume_objset(const fl_volume_t *vol);
/* The sync property: 0 standard, 1 always, 2 disabled. */
int fl_volume_sync_property(const fl_volume_t *vol);
void fl_volume_itx(const fl_volume_t *vol, fl_itx_t *itx);
/* Commits that OpenZFS was asked for (its own counter where it has one per dataset, from 2.2). */
uint64_t fl_volume_commits(const fl_volume_t *vol);
/* Records that fl_volume_open() replayed. */
uint64_t fl_volume_replayed(const fl_volume_t *vol);
/* Bytes used and available, objects used and available. */
void fl_volume_space(const fl_volume_t *vol, uint64_t *used, uint64_t *avail, uint64_t *objs, uint64_t *free_objs);

/* --- files --- */

/* The root directory; the volume holds it. */
fl_file_t *fl_root(fl_volume_t *vol);
fl_volume_t *fl_volume_of(const fl_file_t *file);

/* Whoever gets a file has a reference.  With the last one, a file without a name goes, and its space. */
void fl_hold(fl_file_t *file);
void fl_release(fl_file_t *file, uint64_t references);

typedef struct {
	uint32_t mode; /* type and permissions, as in stat */
	uint32_t uid, gid;
	uint64_t rdev;
	const char *target; /* of a symbolic link */
} fl_new_t;

typedef struct {
	uint64_t object, gen, links, size, rdev, blocks; /* blocks of 512 bytes */
	uint32_t mode, uid, gid, block;
	int64_t atime[2], mtime[2], ctime[2]; /* seconds, nanoseconds */
} fl_attr_t;

enum { FL_MODE = 1, FL_UID = 2, FL_GID = 4, FL_SIZE = 8, FL_ATIME = 16, FL_MTIME = 32 };

int fl_lookup(fl_file_t *dir, const char *name, fl_file_t **file);
int fl_create(fl_file_t *dir, const char *name, const fl_new_t *n, fl_file_t **file, bool *commit);
int fl_link(fl_file_t *dir, const char *name, fl_file_t *file, bool *commit);
int fl_unlink(fl_file_t *dir, const char *name, bool directory, bool *commit);
/* replace: a file of the new name may go. */
int fl_rename(fl_file_t *from, const char *name, fl_file_t *to, const char *new_name, bool replace, bool *commit);
/* Each gets the other's name; EINVAL where OpenZFS can't (before 2.2). */
int fl_exchange(fl_file_t *from, const char *name, fl_file_t *to, const char *other, bool *commit);
int fl_readlink(fl_file_t *file, char *target, size_t room);

/* Calls each(arg, name, object, type, next) from a position on, 0 first, until it returns false. */
typedef bool fl_each_t(void *arg, const char *name, uint64_t object, uint32_t type, uint64_t next);
int fl_readdir(fl_file_t *dir, uint64_t position, fl_each_t *each, void *arg);

void fl_getattr(fl_file_t *file, fl_attr_t *attr);
/* What is in the mask (FL_*): mode (permissions only), uid, gid, atime, mtime.  The size is fl_truncate()'s. */
int fl_setattr(fl_file_t *file, unsigned mask, const fl_attr_t *attr, bool *commit);

/* Extended attributes, kept beside the others (xattr=sa).  room 0 asks for the length. */
int fl_getxattr(fl_file_t *file, const char *name, void *value, size_t room, size_t *len);
int fl_setxattr(fl_file_t *file, const char *name, const void *value, size_t len, bool create, bool replace,
    bool *commit);
int fl_removexattr(fl_file_t *file, const char *name, bool *commit);
/* Names, each ended by a zero. */
int fl_listxattr(fl_file_t *file, char *names, size_t room, size_t *len);

/* --- data --- */

int fl_read(fl_file_t *file, uint64_t offset, void *buf, uint64_t len, int flags, uint64_t *got);
int fl_write(fl_file_t *file, uint64_t offset, const void *buf, uint64_t len, int flags, bool *commit);
/* posix_fadvise with POSIX_FADV_WILLNEED, readahead: begins to read, and waits for nothing. */
void fl_read_ahead(fl_file_t *file, uint64_t offset, uint64_t len);
/* For how many ns the calling thread's transactions have waited to begin, so far: for room among what is dirty. */
uint64_t fl_room_waited(void);
int fl_truncate(fl_file_t *file, uint64_t size, bool *commit);
/* fallocate: reserves nothing (as in OpenZFS) but may lengthen the file. */
int fl_allocate(fl_file_t *file, uint64_t offset, uint64_t len, bool keep_size, bool *commit);
/* Punches a hole; with keep_size false also lengthens the file (zero range). */
int fl_zero(fl_file_t *file, uint64_t offset, uint64_t len, bool keep_size, bool *commit);
/* The next hole or data at *offset or behind it; ENXIO if there is none. */
int fl_seek(fl_file_t *file, bool hole, uint64_t *offset);

/* fsync and fdatasync, which are the same in OpenZFS; nothing if sync=disabled. */
void fl_commit_file(fl_file_t *file);
/* sync, syncfs. */
void fl_commit_volume(fl_volume_t *vol);

uint64_t fl_size(const fl_file_t *file);
uint64_t fl_block_size(const fl_file_t *file);
uint64_t fl_object(const fl_file_t *file);

#endif
