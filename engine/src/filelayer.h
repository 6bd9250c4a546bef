/*
 * Files on an OpenZFS dataset in user space: what the POSIX layer of the kernel module decides, decided here the same
 * way (block size of a growing file, transactions, which kind of intent log record, what is committed when).
 *
 * Knows nothing of traces; several front ends can sit on it.  All calls are thread-safe; two calls on one file are
 * ordered by a range lock as in the kernel.  Functions return 0 or an errno value.  A mutating call sets *commit if
 * the caller must still call fl_commit_*() before it may acknowledge (O_SYNC, O_DSYNC, sync=always); this is kept
 * apart so that a front end can commit from another thread.
 */
#ifndef ZTUNE_FILELAYER_H
#define ZTUNE_FILELAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fl_volume fl_volume_t;
typedef struct fl_file fl_file_t;

enum {
	FL_SYNC = 1		/* the file is open with O_SYNC or O_DSYNC, or the call asks for it */
};

/* Intent log records made, by kind. */
typedef struct {
	uint64_t indirect, copied, needcopy;
	uint64_t bytes;		/* of all writes logged */
	uint64_t in_log;	/* of those whose data goes into the log itself if it is committed */
} fl_itx_t;

/* Writes of at least this many bytes go to their place at once if there is no log device (zfs_immediate_write_sz). */
extern int64_t fl_immediate_write_sz;

/* Makes a dataset able to hold files; once, after it was created. */
int fl_volume_format(const char *dataset);
int fl_volume_open(const char *dataset, uint64_t recordsize, fl_volume_t **vol);
void fl_volume_close(fl_volume_t *vol);	/* every file must be closed */

uint64_t fl_volume_objset(const fl_volume_t *vol);
uint64_t fl_volume_dirobj(const fl_volume_t *vol);
/* The sync property: 0 standard, 1 always, 2 disabled. */
int fl_volume_sync_property(const fl_volume_t *vol);
void fl_volume_itx(const fl_volume_t *vol, fl_itx_t *itx);
/* Commits that OpenZFS was asked for (its own counter where it has one per dataset, from 2.2). */
uint64_t fl_volume_commits(const fl_volume_t *vol);

int fl_create(fl_volume_t *vol, const char *name, fl_file_t **file, bool *commit);
int fl_open(fl_volume_t *vol, const char *name, fl_file_t **file);
void fl_close(fl_file_t *file);
int fl_rename(fl_file_t *file, const char *from, const char *to, bool *commit);
/* Removes the name.  The file's space goes with fl_destroy(), when its last user is done. */
int fl_unlink(fl_file_t *file, const char *name, bool *commit);
int fl_destroy(fl_file_t *file);

int fl_read(fl_file_t *file, uint64_t offset, void *buf, uint64_t len, uint64_t *got);
int fl_write(fl_file_t *file, uint64_t offset, const void *buf, uint64_t len, int flags, bool *commit);
int fl_truncate(fl_file_t *file, uint64_t size, bool *commit);
/* fallocate: reserves nothing (as in OpenZFS) but may lengthen the file. */
int fl_allocate(fl_file_t *file, uint64_t offset, uint64_t len, bool keep_size, bool *commit);
/* Punches a hole; with keep_size false also lengthens the file (zero range). */
int fl_zero(fl_file_t *file, uint64_t offset, uint64_t len, bool keep_size, bool *commit);

/* fsync and fdatasync, which are the same in OpenZFS; nothing if sync=disabled. */
void fl_commit_file(fl_file_t *file);
/* The next commit on the volume, of whichever file, takes this file's records along. */
void fl_commit_join(fl_file_t *file);
/* sync, syncfs. */
void fl_commit_volume(fl_volume_t *vol);

uint64_t fl_size(const fl_file_t *file);
uint64_t fl_block_size(const fl_file_t *file);
uint64_t fl_object(const fl_file_t *file);

#endif
