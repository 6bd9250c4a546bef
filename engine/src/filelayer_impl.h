/* What the parts of the file layer share. */
#ifndef ZTUNE_FILELAYER_IMPL_H
#define ZTUNE_FILELAYER_IMPL_H

#include "filelayer.h"

#include "zfs.h"

#include <dirent.h>
#include <sys/sa.h>
#include <sys/stat.h>
#include <sys/zfs_sa.h>

#define FL_BUCKETS 4096
#define FL_EMPTY 2 /* size of an empty directory: "." and ".." count */

struct fl_file {
	fl_volume_t *vol;
	dnode_t *dn;
	dmu_buf_t *bonus;
	sa_handle_t *sa;
	uint64_t object;
	uint64_t gen;
	uint64_t size;  /* bytes; of a directory: entries.  Under the range lock, of a directory under vol->names */
	uint32_t block; /* bytes */
	bool unlinked;  /* no name is left */
	uint64_t references; /* under vol->lock */
	zfs_rangelock_t lock;
	kmutex_t xattr_lock; /* extended attributes; whoever has it may begin a transaction */
	kmutex_t attr_lock;  /* what follows, and its changes on disk; within a transaction, never around one */
	uint64_t mode, uid, gid, links, parent, flags, rdev;
	uint64_t atime[2], mtime[2], ctime[2];
	bool atime_dirty;
	fl_file_t *next;
};

struct fl_volume {
	objset_t *os;
	zilog_t *zil;
	sa_attr_type_t *attr; /* numbers of the attributes in this file system, by zpl_attr_t */
	uint64_t recordsize;
	uint64_t root_object, unlinked_set;
	fl_file_t *root;
	kmutex_t names;     /* one change of names at a time */
	kmutex_t attaching; /* one file becomes known at a time */
	kmutex_t lock;      /* the table of files */
	fl_itx_t itx;
	uint64_t commits;
	uint64_t replayed;   /* log records */
	int replay_error;    /* of the last record that was tried */
	uint64_t replay_eof; /* while one is: where the file ends at most, 0 = where the write does */
	bool atime, relatime;
#if OPENZFS_NUMBER >= 20200
	zil_sums_t sums;
#endif
	fl_file_t *bucket[FL_BUCKETS];
};

/* An object in a transaction, when the log says which: else the next free one. */
typedef struct {
	uint64_t object;
	int slots;
	uint64_t gen;
	uint64_t crtime[2];
} fl_claim_t;

static inline bool fl_always_sync(const fl_volume_t *vol)
{
	return vol->os->os_sync == ZFS_SYNC_ALWAYS;
}

#define FL_ACES 3
typedef struct {
	uint16_t type, flags;
	uint32_t mask;
} fl_ace_t;
void fl_aces(uint32_t mode, fl_ace_t ace[FL_ACES]);

int fl_begin(dmu_tx_t *tx);
void fl_now(uint64_t ts[2]);

/* Files that are known; the first look at an object makes it known. */
int fl_get(fl_volume_t *vol, uint64_t object, fl_file_t **file);
/*
 * For the intent log, which looks at files that nobody else knows any more: ENOENT if the object has no name or is of
 * another generation.  Letting go never waits and starts no transaction here.
 */
int fl_use(fl_volume_t *vol, uint64_t object, uint64_t gen, fl_file_t **file);
void fl_unuse(fl_file_t *file);

/* A new object with its attributes, in tx. */
int fl_make_node(objset_t *os, const sa_attr_type_t *attr, const fl_new_t *n, uint64_t parent, const fl_claim_t *claim,
    uint64_t *object, dmu_tx_t *tx);

zap_attribute_t *fl_zap_attribute(void);
void fl_zap_attribute_done(zap_attribute_t *za);

/* The file was changed: new times and size, in tx. */
void fl_touch(fl_file_t *file, dmu_tx_t *tx);

int fl_create_claim(fl_file_t *dir, const char *name, const fl_new_t *n, const fl_claim_t *claim, fl_file_t **file,
    bool *commit);

/* The log asks for a write's data. */
zil_get_data_t fl_get_data;

/* Replays the log; the error of the record that could not be. */
int fl_replay_log(fl_volume_t *vol);

/* Log records about names and attributes. */
void fl_log_create(fl_file_t *dir, dmu_tx_t *tx, fl_file_t *file, const char *name, const fl_new_t *n);
void fl_log_name(fl_file_t *dir, dmu_tx_t *tx, uint64_t type, uint64_t object, uint64_t link_object, const char *name);
void fl_log_rename(fl_file_t *from, fl_file_t *to, dmu_tx_t *tx, uint64_t type, uint64_t object, const char *a,
    const char *b);
void fl_log_setattr(fl_file_t *file, dmu_tx_t *tx, unsigned mask);
void fl_log_xattr(fl_file_t *file, dmu_tx_t *tx, const char *name, const void *value, size_t len);

#endif
