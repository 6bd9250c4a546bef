#include "filelayer.h"

#include "zfs.h"

int64_t fl_immediate_write_sz = 32768;

/* zfs_read() works in pieces that end at multiples of this. */
#define	READ_CHUNK (1ULL << 20)
/* A transaction takes at most half of what one may touch. */
#define	WRITE_CHUNK (DMU_MAX_ACCESS >> 1)

/* The first object of a dataset: its directory. */
#define	DIR_OBJECT 1ULL

/* A kernel file keeps about this much in its dnode: owner, times, mode, size. */
#define	BONUS_BYTES 176
typedef struct {
	uint64_t size;
	uint64_t gen;
	uint64_t mtime, ctime;
	uint64_t other[18];
} bonus_t;
_Static_assert(sizeof (bonus_t) == BONUS_BYTES, "size of the bonus");

#define	BUCKETS 4096

struct fl_file {
	fl_volume_t *vol;
	dnode_t *dn;
	dmu_buf_t *bonus;
	uint64_t object;
	uint64_t gen;
	uint64_t size;
	uint32_t block;		/* bytes */
	bool unlinked;
	int users;		/* under vol->lock: the intent log looks at it right now */
	zfs_rangelock_t lock;
	fl_file_t *next;
};

struct fl_volume {
	objset_t *os;
	zilog_t *zil;
	uint64_t recordsize;
	kmutex_t lock;
	kcondvar_t idle;
	fl_itx_t itx;
	uint64_t commits;
#if OPENZFS_NUMBER >= 20200
	zil_sums_t sums;
#endif
	fl_file_t *bucket[BUCKETS];
};

static void
format_cb(objset_t *os, void *arg, cred_t *cr, dmu_tx_t *tx)
{
	(void) arg, (void) cr;
	VERIFY0(zap_create_claim(os, DIR_OBJECT, DMU_OT_DIRECTORY_CONTENTS, DMU_OT_NONE, 0, tx));
}

int
fl_volume_format(const char *dataset)
{
	return (dmu_objset_create(dataset, DMU_OST_ZFS, 0, NULL, format_cb, NULL));
}

/* --- the intent log asks for data --- */

static fl_file_t *
file_hold(fl_volume_t *vol, uint64_t object, uint64_t gen)
{
	fl_file_t *f;

	mutex_enter(&vol->lock);
	for (f = vol->bucket[object % BUCKETS]; f != NULL; f = f->next)
		if (f->object == object && f->gen == gen && !f->unlinked)
			break;
	if (f != NULL)
		f->users++;
	mutex_exit(&vol->lock);
	return (f);
}

static void
file_rele(fl_file_t *f)
{
	fl_volume_t *vol = f->vol;

	mutex_enter(&vol->lock);
	if (--f->users == 0)
		cv_broadcast(&vol->idle);
	mutex_exit(&vol->lock);
}

static void
got_data(zgd_t *zgd, int error)
{
	fl_file_t *f = zgd->zgd_private;

	(void) error;
	if (zgd->zgd_db != NULL)
		dmu_buf_rele(zgd->zgd_db, zgd);
	zfs_rangelock_exit(zgd->zgd_lr);
	file_rele(f);
	kmem_free(zgd, sizeof (*zgd));
}

static int
get_data(void *arg, uint64_t gen, lr_write_t *lr, char *buf, struct lwb *lwb, zio_t *zio)
{
	fl_file_t *f = file_hold(arg, lr->lr_foid, gen);
	uint64_t offset = lr->lr_offset, size;
	zgd_t *zgd;
	int error = 0;

	if (f == NULL)
		return (SET_ERROR(ENOENT));
	zgd = kmem_zalloc(sizeof (*zgd), KM_SLEEP);
	zgd->zgd_lwb = lwb;
	zgd->zgd_private = f;
	if (buf != NULL) {
		/* The record carries the data. */
		zgd->zgd_lr = zfs_rangelock_enter(&f->lock, offset, lr->lr_length, RL_READER);
		if (offset >= f->size)
			error = SET_ERROR(ENOENT);
		else
			error = dmu_read_by_dnode(f->dn, offset, lr->lr_length, buf, DMU_READ_NO_PREFETCH);
		got_data(zgd, error);
		return (error);
	}
	/* The block itself is written to its place; nobody may change it meanwhile, nor its size. */
	for (;;) {
		size = f->block;
		offset = ISP2(size) ? P2ALIGN_TYPED(lr->lr_offset, size, uint64_t) : 0;
		zgd->zgd_lr = zfs_rangelock_enter(&f->lock, offset, size, RL_READER);
		if (f->block == size)
			break;
		zfs_rangelock_exit(zgd->zgd_lr);
	}
	if (lr->lr_offset >= f->size)
		error = SET_ERROR(ENOENT);
	if (error == 0)
		error = dmu_buf_hold_noread(f->vol->os, f->object, offset, zgd, &zgd->zgd_db);
	if (error == 0) {
		zgd->zgd_bp = &lr->lr_blkptr;
		error = dmu_sync(zio, lr->lr_common.lrc_txg, got_data, zgd);
		if (error == 0)
			return (0);	/* got_data() follows when the block is written */
		if (error == EALREADY) {
			/* An earlier record already points to this block. */
			lr->lr_common.lrc_txtype = TX_WRITE2;
			zgd->zgd_bp = NULL;
			BP_ZERO(&lr->lr_blkptr);
			error = 0;
		}
	}
	got_data(zgd, error);
	return (error);
}

/* --- volumes --- */

int
fl_volume_open(const char *dataset, uint64_t recordsize, fl_volume_t **out)
{
	fl_volume_t *vol = kmem_zalloc(sizeof (*vol), KM_SLEEP);
	int error;

	vol->recordsize = recordsize;
	mutex_init(&vol->lock, NULL, MUTEX_DEFAULT, NULL);
	cv_init(&vol->idle, NULL, CV_DEFAULT, NULL);
	error = dmu_objset_own(dataset, DMU_OST_ZFS, B_FALSE, B_FALSE, vol, &vol->os);
	if (error != 0) {
		cv_destroy(&vol->idle);
		mutex_destroy(&vol->lock);
		kmem_free(vol, sizeof (*vol));
		return (error);
	}
#if OPENZFS_NUMBER >= 20200
	zil_sums_init(&vol->sums);
	vol->zil = zil_open(vol->os, get_data, &vol->sums);
#else
	vol->zil = zil_open(vol->os, get_data);
#endif
	*out = vol;
	return (0);
}

void
fl_volume_close(fl_volume_t *vol)
{
	zil_close(vol->zil);
	dmu_objset_disown(vol->os, B_FALSE, vol);
#if OPENZFS_NUMBER >= 20200
	zil_sums_fini(&vol->sums);
#endif
	cv_destroy(&vol->idle);
	mutex_destroy(&vol->lock);
	kmem_free(vol, sizeof (*vol));
}

uint64_t
fl_volume_objset(const fl_volume_t *vol)
{
	return (dmu_objset_id(vol->os));
}

uint64_t
fl_volume_dirobj(const fl_volume_t *vol)
{
	(void) vol;
	return (DIR_OBJECT);
}

int
fl_volume_sync_property(const fl_volume_t *vol)
{
	return ((int)vol->os->os_sync);
}

void
fl_volume_itx(const fl_volume_t *vol, fl_itx_t *itx)
{
	*itx = vol->itx;
}

uint64_t
fl_volume_commits(const fl_volume_t *vol)
{
#if OPENZFS_NUMBER >= 20200
	return ((uint64_t)wmsum_value((wmsum_t *)(uintptr_t)&vol->sums.zil_commit_count));
#else
	return (vol->commits);
#endif
}

static bool
always_sync(const fl_volume_t *vol)
{
	return (vol->os->os_sync == ZFS_SYNC_ALWAYS);
}

/* --- files --- */

/* A write that makes the block size grow locks the whole file, as does an append. */
static void
widen_lock(zfs_locked_range_t *new, void *arg)
{
	fl_file_t *f = arg;
	uint64_t end;

	if (new->lr_type == RL_APPEND) {
		new->lr_offset = f->size;
		new->lr_type = RL_WRITER;
	}
	end = MAX(f->size, new->lr_offset + new->lr_length);
	if (end > f->block && (!ISP2(f->block) || f->block < f->vol->recordsize)) {
		new->lr_offset = 0;
		new->lr_length = UINT64_MAX;
	}
}

static int
file_attach(fl_volume_t *vol, uint64_t object, fl_file_t **out)
{
	fl_file_t *f = kmem_zalloc(sizeof (*f), KM_SLEEP);
	u_longlong_t blocks;
	int error;

	f->vol = vol;
	f->object = object;
	error = dnode_hold(vol->os, object, f, &f->dn);
	if (error == 0 && (error = dmu_bonus_hold_by_dnode(f->dn, f, &f->bonus, DMU_READ_NO_PREFETCH)) != 0)
		dnode_rele(f->dn, f);
	if (error != 0) {
		kmem_free(f, sizeof (*f));
		return (error);
	}
	f->size = ((bonus_t *)f->bonus->db_data)->size;
	f->gen = ((bonus_t *)f->bonus->db_data)->gen;
	dmu_object_size_from_db(f->bonus, &f->block, &blocks);
	zfs_rangelock_init(&f->lock, widen_lock, f);
	mutex_enter(&vol->lock);
	f->next = vol->bucket[object % BUCKETS];
	vol->bucket[object % BUCKETS] = f;
	mutex_exit(&vol->lock);
	*out = f;
	return (0);
}

/* Waits until the intent log has let go of the file, then forgets it. */
static void
file_detach(fl_file_t *f)
{
	fl_volume_t *vol = f->vol;
	fl_file_t **p;

	mutex_enter(&vol->lock);
	for (p = &vol->bucket[f->object % BUCKETS]; *p != f; p = &(*p)->next)
		;
	*p = f->next;
	while (f->users > 0)
		cv_wait(&vol->idle, &vol->lock);
	mutex_exit(&vol->lock);
	zfs_rangelock_fini(&f->lock);
	dmu_buf_rele(f->bonus, f);
	dnode_rele(f->dn, f);
	kmem_free(f, sizeof (*f));
}

static void
touch(fl_file_t *f, dmu_tx_t *tx)
{
	bonus_t *b = f->bonus->db_data;

	dmu_buf_will_dirty(f->bonus, tx);
	b->size = f->size;
	b->mtime = b->ctime = (uint64_t)gethrtime();
}

static int
begin(dmu_tx_t *tx)
{
	int error = dmu_tx_assign(tx, TX_WAIT_FLAG);

	if (error != 0)
		dmu_tx_abort(tx);
	return (error);
}

/* A record about a name: common head, the object's numbers, then the name. */
static void
log_name(fl_volume_t *vol, dmu_tx_t *tx, uint64_t type, uint64_t object, size_t head, const char *a, const char *b)
{
	size_t na = strlen(a) + 1, nb = b != NULL ? strlen(b) + 1 : 0;
	itx_t *itx = zil_itx_create(type, head + na + nb);
	char *text = (char *)&itx->itx_lr + head;

	memset((char *)&itx->itx_lr + sizeof (lr_t), 0, head - sizeof (lr_t));
	if (type == TX_CREATE)
		((uint64_t *)(&itx->itx_lr + 1))[1] = object;	/* lr_foid follows lr_doid */
	((uint64_t *)(&itx->itx_lr + 1))[0] = DIR_OBJECT;
	memcpy(text, a, na);
	if (b != NULL)
		memcpy(text + na, b, nb);
	itx->itx_oid = object;
	zil_itx_assign(vol->zil, itx, tx);
}

int
fl_create(fl_volume_t *vol, const char *name, fl_file_t **file, bool *commit)
{
	dmu_tx_t *tx = dmu_tx_create(vol->os);
	dmu_buf_t *db;
	uint64_t object;
	bonus_t *b;
	int error;

	*commit = always_sync(vol);
	dmu_tx_hold_bonus(tx, DMU_NEW_OBJECT);
	dmu_tx_hold_zap(tx, DIR_OBJECT, B_TRUE, name);
	if ((error = begin(tx)) != 0)
		return (error);
	object = dmu_object_alloc(vol->os, DMU_OT_PLAIN_FILE_CONTENTS, 0, DMU_OT_UINT64_OTHER, BONUS_BYTES, tx);
	error = zap_add(vol->os, DIR_OBJECT, name, sizeof (object), 1, &object, tx);
	if (error != 0) {
		VERIFY0(dmu_object_free(vol->os, object, tx));
		dmu_tx_commit(tx);
		return (error);
	}
	VERIFY0(dmu_bonus_hold(vol->os, object, FTAG, &db));
	dmu_buf_will_dirty(db, tx);
	b = db->db_data;
	memset(b, 0, sizeof (*b));
	b->gen = dmu_tx_get_txg(tx);
	b->mtime = b->ctime = (uint64_t)gethrtime();
	for (size_t i = 0; i < ARRAY_SIZE(b->other); i++)
		b->other[i] = object + i;
	dmu_buf_rele(db, FTAG);
	log_name(vol, tx, TX_CREATE, object, sizeof (lr_create_t), name, NULL);
	dmu_tx_commit(tx);
	return (file_attach(vol, object, file));
}

int
fl_open(fl_volume_t *vol, const char *name, fl_file_t **file)
{
	uint64_t object;
	int error = zap_lookup(vol->os, DIR_OBJECT, name, sizeof (object), 1, &object);

	return (error != 0 ? error : file_attach(vol, object, file));
}

void
fl_close(fl_file_t *f)
{
	file_detach(f);
}

int
fl_rename(fl_file_t *f, const char *from, const char *to, bool *commit)
{
	fl_volume_t *vol = f->vol;
	dmu_tx_t *tx = dmu_tx_create(vol->os);
	int error;

	*commit = always_sync(vol);
	dmu_tx_hold_zap(tx, DIR_OBJECT, B_FALSE, from);
	dmu_tx_hold_zap(tx, DIR_OBJECT, B_TRUE, to);
	dmu_tx_hold_bonus_by_dnode(tx, f->dn);
	if ((error = begin(tx)) != 0)
		return (error);
	error = zap_add(vol->os, DIR_OBJECT, to, sizeof (f->object), 1, &f->object, tx);
	if (error == 0) {
		VERIFY0(zap_remove(vol->os, DIR_OBJECT, from, tx));
		touch(f, tx);
		log_name(vol, tx, TX_RENAME, f->object, sizeof (lr_rename_t), from, to);
	}
	dmu_tx_commit(tx);
	return (error);
}

int
fl_unlink(fl_file_t *f, const char *name, bool *commit)
{
	fl_volume_t *vol = f->vol;
	dmu_tx_t *tx = dmu_tx_create(vol->os);
	int error;

	*commit = always_sync(vol);
	dmu_tx_hold_zap(tx, DIR_OBJECT, B_FALSE, name);
	dmu_tx_hold_bonus_by_dnode(tx, f->dn);
	dmu_tx_mark_netfree(tx);
	if ((error = begin(tx)) != 0)
		return (error);
	error = zap_remove(vol->os, DIR_OBJECT, name, tx);
	if (error == 0) {
		mutex_enter(&vol->lock);
		f->unlinked = true;
		mutex_exit(&vol->lock);
		touch(f, tx);
		/* What was written and never synced needs no record any more. */
		zil_remove_async(vol->zil, f->object);
		log_name(vol, tx, TX_REMOVE, f->object, sizeof (lr_remove_t), name, NULL);
	}
	dmu_tx_commit(tx);
	return (error);
}

int
fl_destroy(fl_file_t *f)
{
	objset_t *os = f->vol->os;
	uint64_t object = f->object;

	file_detach(f);
	return (dmu_free_long_object(os, object));
}

/* --- data --- */

int
fl_read(fl_file_t *f, uint64_t offset, void *buf, uint64_t len, uint64_t *got)
{
	zfs_locked_range_t *lr;
	uint64_t done = 0;
	int error = 0;

	*got = 0;
	if (len == 0)
		return (0);
	if (always_sync(f->vol))
		fl_commit_file(f);
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_READER);
	if (offset < f->size) {
		len = MIN(len, f->size - offset);
		while (done < len && error == 0) {
			uint64_t at = offset + done, n = MIN(len - done, READ_CHUNK - P2PHASE(at, READ_CHUNK));

			error = dmu_read_by_dnode(f->dn, at, n, (char *)buf + done, DMU_READ_PREFETCH);
			if (error == 0)
				done += n;
		}
	}
	zfs_rangelock_exit(lr);
	*got = done;
	return (error);
}

/* Which kind of record a write gets, as the POSIX layer chooses. */
static itx_wr_state_t
record_kind(const fl_file_t *f, uint64_t len, bool commit)
{
	zilog_t *zil = f->vol->zil;

#if OPENZFS_NUMBER >= 20400
	return (zil_write_state(zil, len, f->block, B_FALSE, commit));
#else
	if (zil->zl_logbias == ZFS_LOGBIAS_THROUGHPUT)
		return (WR_INDIRECT);
	if (!spa_has_slogs(zil->zl_spa) && (int64_t)len >= fl_immediate_write_sz)
		return (WR_INDIRECT);
	return (commit ? WR_COPIED : WR_NEED_COPY);
#endif
}

static void
log_write(fl_file_t *f, dmu_tx_t *tx, uint64_t offset, uint64_t len, bool commit, bool sync_open)
{
	fl_volume_t *vol = f->vol;
	itx_wr_state_t kind = record_kind(f, len, commit);
	uint64_t left = len;

	if (f->unlinked)
		return;
	while (left > 0) {
		itx_wr_state_t k = kind;
		uint64_t n = left;
		lr_write_t *lr;
		itx_t *itx;

		/* A record with data in it must fit one log block. */
		if (k == WR_COPIED && left > zil_max_copied_data(vol->zil))
			k = WR_NEED_COPY;
		else if (k == WR_INDIRECT)
			n = MIN(f->block - (ISP2(f->block) ? P2PHASE(offset, f->block) : offset % f->block), left);
		itx = zil_itx_create(TX_WRITE, sizeof (*lr) + (k == WR_COPIED ? n : 0));
		lr = (lr_write_t *)&itx->itx_lr;
		if (k == WR_COPIED && dmu_read_by_dnode(f->dn, offset, n, lr + 1, DMU_READ_NO_PREFETCH) != 0) {
			zil_itx_destroy(itx
#if OPENZFS_NUMBER >= 20400
			    , 0
#endif
			    );
			itx = zil_itx_create(TX_WRITE, sizeof (*lr));
			lr = (lr_write_t *)&itx->itx_lr;
			k = WR_NEED_COPY;
		}
		itx->itx_wr_state = k;
		lr->lr_foid = f->object;
		lr->lr_offset = offset;
		lr->lr_length = n;
		lr->lr_blkoff = 0;
		BP_ZERO(&lr->lr_blkptr);
		itx->itx_private = vol;
		itx->itx_sync = sync_open;
		itx->itx_gen = f->gen;
		switch (k) {
		case WR_INDIRECT:
			(void) __atomic_add_fetch(&vol->itx.indirect, 1, __ATOMIC_RELAXED);
			break;
		case WR_COPIED:
			(void) __atomic_add_fetch(&vol->itx.copied, 1, __ATOMIC_RELAXED);
			break;
		default:
			(void) __atomic_add_fetch(&vol->itx.needcopy, 1, __ATOMIC_RELAXED);
			break;
		}
		(void) __atomic_add_fetch(&vol->itx.bytes, n, __ATOMIC_RELAXED);
		zil_itx_assign(vol->zil, itx, tx);
		offset += n;
		left -= n;
	}
	if (kind != WR_INDIRECT) {
		(void) __atomic_add_fetch(&vol->itx.in_log, len, __ATOMIC_RELAXED);
		dsl_pool_wrlog_count(dmu_objset_pool(vol->os), (int64_t)len, tx->tx_txg);
	}
}

/* The file is one block as long as it fits a record: give it a larger one. */
static void
grow_block(fl_file_t *f, uint64_t block, dmu_tx_t *tx)
{
	u_longlong_t blocks;

	if (block <= f->block || (f->block != 0 && f->size > f->block))
		return;
	if (dmu_object_set_blocksize(f->vol->os, f->object, block, 0, tx) == 0)
		dmu_object_size_from_db(f->bonus, &f->block, &blocks);
}

/* The block size that a single-block file takes when it grows to `end`. */
static uint64_t
grown_block(const fl_file_t *f, uint64_t end)
{
	uint64_t block = f->vol->recordsize;

	if (f->block > f->vol->recordsize && !ISP2(f->block))
		block = 1ULL << highbit64(f->block);
	block = MIN(block, P2ROUNDUP(end, (uint64_t)SPA_MINBLOCKSIZE));
	return (MAX(block, f->block));
}

int
fl_write(fl_file_t *f, uint64_t offset, const void *buf, uint64_t len, int flags, bool *commit)
{
	zfs_locked_range_t *lr;
	uint64_t done = 0, end, block;
	bool sync = (flags & FL_SYNC) != 0;
	int error = 0;

	*commit = sync || always_sync(f->vol);
	if (len == 0)
		return (0);
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_WRITER);
	end = MAX(f->size, offset + len);
	while (done < len) {
		uint64_t at = offset + done, n;
		dmu_tx_t *tx;

		block = f->block;
		if (lr->lr_length == UINT64_MAX && f->size <= f->block)
			block = grown_block(f, end);
		/*
		 * Appending whole blocks, the POSIX layer takes one block per transaction (and so per log record).
		 */
		if (len - done >= block && at >= f->size && at % block == 0 &&
		    (block >= SPA_OLD_MAXBLOCKSIZE || len - done < 4 * block))
			n = block;
		else
			n = MIN(len - done, WRITE_CHUNK - (ISP2(block) ? P2PHASE(at, block) : at % block));
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_bonus_by_dnode(tx, f->dn);
		dmu_tx_hold_write_by_dnode(tx, f->dn, at, (int)n);
		if ((error = begin(tx)) != 0)
			break;
		if (lr->lr_length == UINT64_MAX) {
			grow_block(f, block, tx);
			zfs_rangelock_reduce(lr, at, len - done);
		}
		error = DN_WRITE(f->dn, at, n, (const char *)buf + done, tx);
		if (error != 0) {
			dmu_tx_commit(tx);
			break;
		}
		if (at + n > f->size)
			f->size = at + n;
		touch(f, tx);
		log_write(f, tx, at, n, *commit, sync);
		dmu_tx_commit(tx);
		done += n;
	}
	zfs_rangelock_exit(lr);
	return (error);
}

static void
log_truncate(fl_file_t *f, uint64_t offset, uint64_t len)
{
	dmu_tx_t *tx = dmu_tx_create(f->vol->os);
	lr_truncate_t *lr;
	itx_t *itx;

	dmu_tx_hold_bonus_by_dnode(tx, f->dn);
	if (begin(tx) != 0)
		return;
	touch(f, tx);
	if (!f->unlinked) {
		itx = zil_itx_create(TX_TRUNCATE, sizeof (*lr));
		lr = (lr_truncate_t *)&itx->itx_lr;
		lr->lr_foid = f->object;
		lr->lr_offset = offset;
		lr->lr_length = len;
		itx->itx_sync = B_FALSE;
		zil_itx_assign(f->vol->zil, itx, tx);
	}
	dmu_tx_commit(tx);
}

static int
extend(fl_file_t *f, uint64_t end)
{
	zfs_locked_range_t *lr = zfs_rangelock_enter(&f->lock, 0, UINT64_MAX, RL_WRITER);
	uint64_t block = 0;
	dmu_tx_t *tx;
	int error = 0;

	if (end > f->size) {
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_bonus_by_dnode(tx, f->dn);
		if (end > f->block && (!ISP2(f->block) || f->block < f->vol->recordsize)) {
			block = grown_block(f, end);
			dmu_tx_hold_write_by_dnode(tx, f->dn, 0, (int)block);
		}
		if ((error = begin(tx)) == 0) {
			if (block != 0)
				grow_block(f, block, tx);
			f->size = end;
			touch(f, tx);
			dmu_tx_commit(tx);
		}
	}
	zfs_rangelock_exit(lr);
	return (error);
}

static int
shorten(fl_file_t *f, uint64_t end)
{
	zfs_locked_range_t *lr = zfs_rangelock_enter(&f->lock, 0, UINT64_MAX, RL_WRITER);
	dmu_tx_t *tx;
	int error = 0;

	if (end < f->size && (error = dmu_free_long_range(f->vol->os, f->object, end, DMU_OBJECT_END)) == 0) {
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_bonus_by_dnode(tx, f->dn);
		dmu_tx_mark_netfree(tx);
		if ((error = begin(tx)) == 0) {
			f->size = end;
			touch(f, tx);
			dmu_tx_commit(tx);
		}
	}
	zfs_rangelock_exit(lr);
	return (error);
}

int
fl_truncate(fl_file_t *f, uint64_t size, bool *commit)
{
	int error = size > f->size ? extend(f, size) : shorten(f, size);

	*commit = always_sync(f->vol);
	if (error == 0)
		log_truncate(f, size, 0);
	return (error);
}

int
fl_allocate(fl_file_t *f, uint64_t offset, uint64_t len, bool keep_size, bool *commit)
{
	*commit = false;
	if (keep_size || offset + len <= f->size)
		return (0);
	return (extend(f, offset + len));
}

int
fl_zero(fl_file_t *f, uint64_t offset, uint64_t len, bool keep_size, bool *commit)
{
	zfs_locked_range_t *lr;
	uint64_t end = offset + len;
	int error = 0;

	*commit = always_sync(f->vol);
	if (len == 0)
		return (0);
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_WRITER);
	if (offset < f->size)
		error = dmu_free_long_range(f->vol->os, f->object, offset, MIN(end, f->size) - offset);
	zfs_rangelock_exit(lr);
	if (error == 0 && !keep_size && end > f->size)
		error = extend(f, end);
	if (error == 0)
		log_truncate(f, offset, len);
	return (error);
}

/* --- commits --- */

static void
commit_log(fl_volume_t *vol, uint64_t object)
{
	if (vol->os->os_sync == ZFS_SYNC_DISABLED)
		return;
	(void) __atomic_add_fetch(&vol->commits, 1, __ATOMIC_RELAXED);
#if OPENZFS_NUMBER >= 20400
	VERIFY0(zil_commit(vol->zil, object));
#else
	zil_commit(vol->zil, object);
#endif
}

void
fl_commit_file(fl_file_t *f)
{
	commit_log(f->vol, f->object);
}

void
fl_commit_join(fl_file_t *f)
{
	if (f->vol->os->os_sync != ZFS_SYNC_DISABLED)
		zil_async_to_sync(f->vol->zil, f->object);
}

void
fl_commit_volume(fl_volume_t *vol)
{
	commit_log(vol, 0);
}

uint64_t
fl_size(const fl_file_t *f)
{
	return (f->size);
}

uint64_t
fl_block_size(const fl_file_t *f)
{
	return (f->block);
}

uint64_t
fl_object(const fl_file_t *f)
{
	return (f->object);
}
