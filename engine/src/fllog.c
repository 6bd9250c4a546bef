/* What the file layer writes to the intent log about names and attributes, and how all of the log is replayed. */
#include "filelayer_impl.h"

/* The kernel's numbers of what a record sets (ATTR_* of Linux). */
enum { LOG_MODE = 1, LOG_UID = 2, LOG_GID = 4, LOG_ATIME = 16, LOG_MTIME = 32 };

/* A record of `head` bytes and room for what follows; zeroed but for the common part. */
static itx_t *record(uint64_t type, size_t head, size_t more)
{
	itx_t *itx = zil_itx_create(type, head + more);

	memset((char *)&itx->itx_lr + sizeof(lr_t), 0, head - sizeof(lr_t));
	return itx;
}

void fl_log_create(fl_file_t *dir, dmu_tx_t *tx, fl_file_t *f, const char *name, const fl_new_t *n)
{
	size_t len = strlen(name) + 1, more = n->target != NULL ? strlen(n->target) + 1 : 0;
	uint64_t type = S_ISDIR(n->mode) ? TX_MKDIR : n->target != NULL ? TX_SYMLINK : TX_CREATE;
	zilog_t *zil = dir->vol->zil;
	uint64_t crtime[2] = {0};
	lr_create_t *lr;
	itx_t *itx;

	if (zil_replaying(zil, tx))
		return;
	itx = record(type, sizeof(*lr), len + more);
	lr = (lr_create_t *)&itx->itx_lr;
	(void)sa_lookup(f->sa, f->vol->attr[ZPL_CRTIME], crtime, 16);
	/* Up to 2.2 the members are the record's own, later those of a structure in it: both lie behind the common part. */
	((uint64_t *)(&itx->itx_lr + 1))[0] = dir->object;
	((uint64_t *)(&itx->itx_lr + 1))[1] = f->object;
	LR_FOID_SET_SLOTS(((uint64_t *)(&itx->itx_lr + 1))[1], (uint64_t)f->dn->dn_num_slots);
	((uint64_t *)(&itx->itx_lr + 1))[2] = n->mode;
	((uint64_t *)(&itx->itx_lr + 1))[3] = n->uid;
	((uint64_t *)(&itx->itx_lr + 1))[4] = n->gid;
	((uint64_t *)(&itx->itx_lr + 1))[5] = f->gen;
	((uint64_t *)(&itx->itx_lr + 1))[6] = crtime[0];
	((uint64_t *)(&itx->itx_lr + 1))[7] = crtime[1];
	((uint64_t *)(&itx->itx_lr + 1))[8] = n->rdev;
	memcpy((char *)lr + sizeof(*lr), name, len);
	if (more > 0)
		memcpy((char *)lr + sizeof(*lr) + len, n->target, more);
	itx->itx_oid = f->object;
	zil_itx_assign(zil, itx, tx);
}

void fl_log_name(fl_file_t *dir, dmu_tx_t *tx, uint64_t type, uint64_t object, uint64_t link_object, const char *name)
{
	size_t head = type == TX_LINK ? sizeof(lr_link_t) : sizeof(lr_remove_t), len = strlen(name) + 1;
	zilog_t *zil = dir->vol->zil;
	itx_t *itx;

	if (zil_replaying(zil, tx))
		return;
	itx = record(type, head, len);
	((lr_remove_t *)&itx->itx_lr)->lr_doid = dir->object;
	if (type == TX_LINK)
		((lr_link_t *)&itx->itx_lr)->lr_link_obj = link_object;
	memcpy((char *)&itx->itx_lr + head, name, len);
	itx->itx_oid = object;
	zil_itx_assign(zil, itx, tx);
}

void fl_log_rename(fl_file_t *from, fl_file_t *to, dmu_tx_t *tx, uint64_t type, uint64_t object, const char *a,
    const char *b)
{
	size_t na = strlen(a) + 1, nb = strlen(b) + 1;
	zilog_t *zil = from->vol->zil;
	itx_t *itx;

	if (zil_replaying(zil, tx))
		return;
	itx = record(type, sizeof(lr_rename_t), na + nb);
	((uint64_t *)(&itx->itx_lr + 1))[0] = from->object;
	((uint64_t *)(&itx->itx_lr + 1))[1] = to->object;
	memcpy((char *)&itx->itx_lr + sizeof(lr_rename_t), a, na);
	memcpy((char *)&itx->itx_lr + sizeof(lr_rename_t) + na, b, nb);
	itx->itx_oid = object;
	zil_itx_assign(zil, itx, tx);
}

void fl_log_setattr(fl_file_t *f, dmu_tx_t *tx, unsigned mask)
{
	zilog_t *zil = f->vol->zil;
	lr_setattr_t *lr;
	itx_t *itx;

	if (zil_replaying(zil, tx) || f->unlinked)
		return;
	itx = record(TX_SETATTR, sizeof(*lr), 0);
	lr = (lr_setattr_t *)&itx->itx_lr;
	lr->lr_foid = f->object;
	lr->lr_mask = (mask & FL_MODE ? LOG_MODE : 0) | (mask & FL_UID ? LOG_UID : 0) | (mask & FL_GID ? LOG_GID : 0) |
	    (mask & FL_ATIME ? LOG_ATIME : 0) | (mask & FL_MTIME ? LOG_MTIME : 0);
	lr->lr_mode = f->mode;
	lr->lr_uid = f->uid;
	lr->lr_gid = f->gid;
	lr->lr_size = f->size;
	memcpy(lr->lr_atime, f->atime, 16);
	memcpy(lr->lr_mtime, f->mtime, 16);
	itx->itx_sync = B_FALSE;
	zil_itx_assign(zil, itx, tx);
}

void fl_log_xattr(fl_file_t *f, dmu_tx_t *tx, const char *name, const void *value, size_t len)
{
#if OPENZFS_NUMBER >= 20200
	size_t n = strlen(name) + 1;
	zilog_t *zil = f->vol->zil;
	lr_setsaxattr_t *lr;
	itx_t *itx;

	if (zil_replaying(zil, tx) || f->unlinked ||
	    !spa_feature_is_enabled(f->vol->os->os_spa, SPA_FEATURE_ZILSAXATTR))
		return;
	itx = record(TX_SETSAXATTR, sizeof(*lr), n + len);
	lr = (lr_setsaxattr_t *)&itx->itx_lr;
	lr->lr_foid = f->object;
	lr->lr_size = len;
	memcpy((char *)lr + sizeof(*lr), name, n);
	if (value != NULL)
		memcpy((char *)lr + sizeof(*lr) + n, value, len);
	itx->itx_sync = B_FALSE;
	zil_itx_assign(zil, itx, tx);
#else
	/* Older versions don't log them. */
	(void)f, (void)tx, (void)name, (void)value, (void)len;
#endif
}

/* --- replay --- */

/* What stands behind the common part of a record, as numbers. */
#define WORD(lr, i) (((uint64_t *)((lr_t *)(lr) + 1))[i])

static int replay_create(fl_volume_t *vol, void *record_)
{
	lr_create_t *lr = record_;
	const char *name = (char *)lr + sizeof(*lr);
	uint64_t type = ((lr_t *)record_)->lrc_txtype & ~TX_CI;
	fl_new_t n = {
		.mode = (uint32_t)WORD(lr, 2),
		.uid = (uint32_t)WORD(lr, 3),
		.gid = (uint32_t)WORD(lr, 4),
		.rdev = WORD(lr, 8),
		.target = type == TX_SYMLINK ? name + strlen(name) + 1 : NULL,
	};
	fl_claim_t claim = {
		.object = LR_FOID_GET_OBJ(WORD(lr, 1)),
		.slots = (int)LR_FOID_GET_SLOTS(WORD(lr, 1)),
		.gen = WORD(lr, 5),
		.crtime = {WORD(lr, 6), WORD(lr, 7)},
	};
	fl_file_t *dir, *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, WORD(lr, 0), &dir)) != 0)
		return error;
	if ((error = fl_create_claim(dir, name, &n, &claim, &f, &commit)) == 0)
		fl_release(f, 1);
	fl_release(dir, 1);
	return error;
}

static int replay_remove(fl_volume_t *vol, void *record_)
{
	lr_remove_t *lr = record_;
	fl_file_t *dir;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_doid, &dir)) != 0)
		return error;
	error = fl_unlink(dir, (char *)lr + sizeof(*lr), (((lr_t *)record_)->lrc_txtype & ~TX_CI) == TX_RMDIR, &commit);
	fl_release(dir, 1);
	return error;
}

static int replay_link(fl_volume_t *vol, void *record_)
{
	lr_link_t *lr = record_;
	fl_file_t *dir, *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_doid, &dir)) != 0)
		return error;
	if ((error = fl_get(vol, lr->lr_link_obj, &f)) == 0) {
		error = fl_link(dir, (char *)lr + sizeof(*lr), f, &commit);
		fl_release(f, 1);
	}
	fl_release(dir, 1);
	return error;
}

static int replay_rename(fl_volume_t *vol, void *record_)
{
	const char *name = (char *)record_ + sizeof(lr_rename_t);
	fl_file_t *from, *to;
	bool commit;
	int error;

	if ((error = fl_get(vol, WORD(record_, 0), &from)) != 0)
		return error;
	if ((error = fl_get(vol, WORD(record_, 1), &to)) == 0) {
		if ((((lr_t *)record_)->lrc_txtype & ~TX_CI) == TX_RENAME)
			error = fl_rename(from, name, to, name + strlen(name) + 1, true, &commit);
		else
			error = fl_exchange(from, name, to, name + strlen(name) + 1, &commit);
		fl_release(to, 1);
	}
	fl_release(from, 1);
	return error;
}

/* A file that is written to in the log may have gone later in it. */
static int known_or_gone(int error)
{
	return error == ENOENT || error == EEXIST ? 0 : error;
}

static int replay_write(fl_volume_t *vol, void *record_)
{
	lr_write_t *lr = record_;
	uint64_t offset = lr->lr_offset, len = lr->lr_length;
	fl_file_t *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_foid, &f)) != 0)
		return known_or_gone(error);
	/*
	 * A record that pointed to a block comes with all of it: what a later record says about a part of the block may be
	 * in there already.  But the file ends where this write ended.
	 */
	vol->replay_eof = 0;
	if (lr->lr_common.lrc_reclen == sizeof(*lr)) {
		uint64_t block = BP_GET_LSIZE(&lr->lr_blkptr);

		vol->replay_eof = offset + len;
		if (len < block) {
			offset -= offset % block;
			len = block;
		}
	}
	error = fl_write(f, offset, (char *)lr + sizeof(*lr), len, 0, &commit);
	vol->replay_eof = 0;
	fl_release(f, 1);
	return error;
}

/* The block was written by an earlier record; only the end of the file may be new. */
static int replay_write2(fl_volume_t *vol, void *record_)
{
	lr_write_t *lr = record_;
	uint64_t end = lr->lr_offset + lr->lr_length;
	fl_file_t *f;
	dmu_tx_t *tx;
	int error;

	if ((error = fl_get(vol, lr->lr_foid, &f)) != 0)
		return known_or_gone(error);
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	if ((error = fl_begin(tx)) == 0) {
		f->size = MAX(f->size, end);
		fl_touch(f, tx);
		(void)zil_replaying(vol->zil, tx);
		dmu_tx_commit(tx);
	}
	fl_release(f, 1);
	return error;
}

static int replay_truncate(fl_volume_t *vol, void *record_)
{
	lr_truncate_t *lr = record_;
	fl_file_t *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_foid, &f)) != 0)
		return known_or_gone(error);
	if (lr->lr_length == 0)
		error = fl_truncate(f, lr->lr_offset, &commit);
	else
		error = fl_zero(f, lr->lr_offset, lr->lr_length, false, &commit);
	fl_release(f, 1);
	return error;
}

static int replay_setattr(fl_volume_t *vol, void *record_)
{
	lr_setattr_t *lr = record_;
	fl_attr_t attr = {
		.mode = (uint32_t)lr->lr_mode,
		.uid = (uint32_t)lr->lr_uid,
		.gid = (uint32_t)lr->lr_gid,
		.atime = {(int64_t)lr->lr_atime[0], (int64_t)lr->lr_atime[1]},
		.mtime = {(int64_t)lr->lr_mtime[0], (int64_t)lr->lr_mtime[1]},
	};
	unsigned mask = (lr->lr_mask & LOG_MODE ? FL_MODE : 0) | (lr->lr_mask & LOG_UID ? FL_UID : 0) |
	    (lr->lr_mask & LOG_GID ? FL_GID : 0) | (lr->lr_mask & LOG_ATIME ? FL_ATIME : 0) |
	    (lr->lr_mask & LOG_MTIME ? FL_MTIME : 0);
	fl_file_t *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_foid, &f)) != 0)
		return known_or_gone(error);
	error = fl_setattr(f, mask, &attr, &commit);
	fl_release(f, 1);
	return error;
}

#if OPENZFS_NUMBER >= 20200
static int replay_xattr(fl_volume_t *vol, void *record_)
{
	lr_setsaxattr_t *lr = record_;
	const char *name = (char *)lr + sizeof(*lr);
	fl_file_t *f;
	bool commit;
	int error;

	if ((error = fl_get(vol, lr->lr_foid, &f)) != 0)
		return known_or_gone(error);
	if (lr->lr_size == 0)
		error = fl_removexattr(f, name, &commit);
	else
		error = fl_setxattr(f, name, name + strlen(name) + 1, lr->lr_size, false, false, &commit);
	fl_release(f, 1);
	return error == ENODATA ? 0 : error;
}
#endif

typedef int replay_fn(fl_volume_t *, void *);

static replay_fn *const replay_fns[TX_MAX_TYPE] = {
	[TX_CREATE] = replay_create,
	[TX_MKDIR] = replay_create,
	[TX_SYMLINK] = replay_create,
	[TX_REMOVE] = replay_remove,
	[TX_RMDIR] = replay_remove,
	[TX_LINK] = replay_link,
	[TX_RENAME] = replay_rename,
	[TX_WRITE] = replay_write,
	[TX_WRITE2] = replay_write2,
	[TX_TRUNCATE] = replay_truncate,
	[TX_SETATTR] = replay_setattr,
#if OPENZFS_NUMBER >= 20200
	[TX_SETSAXATTR] = replay_xattr,
	[TX_RENAME_EXCHANGE] = replay_rename,
#endif
};

/* OpenZFS tries a record that failed once more, after what was removed is on disk; then it gives up the rest. */
static int replay_record(void *arg, void *record_, boolean_t byteswap)
{
	fl_volume_t *vol = arg;
	uint64_t type = ((lr_t *)record_)->lrc_txtype & ~TX_CI;

	if (byteswap || replay_fns[type] == NULL)
		vol->replay_error = SET_ERROR(ENOTSUP);
	else
		vol->replay_error = replay_fns[type](vol, record_);
	vol->replayed += vol->replay_error == 0;
	return vol->replay_error;
}

int fl_replay_log(fl_volume_t *vol)
{
	zil_replay_func_t *vector[TX_MAX_TYPE];

	for (int i = 0; i < TX_MAX_TYPE; i++)
		vector[i] = replay_record;
	(void)zil_replay(vol->os, vol, vector);
	return vol->replay_error;
}
