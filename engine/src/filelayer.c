#include "filelayer_impl.h"
#include "processor.h"

int64_t fl_immediate_write_sz = 32768;
void (*fl_logged)(fl_file_t *, uint64_t, uint64_t);

/* zfs_read() works in pieces that end at multiples of this, and of the other with Direct I/O. */
#define READ_CHUNK (1ULL << 20)
#define READ_DIRECT_CHUNK ((uint64_t)DMU_MAX_ACCESS)
/* A transaction takes at most half of what one may touch. */
#define WRITE_CHUNK (DMU_MAX_ACCESS >> 1)

/* How the log reads what a record carries: from 2.4 on it leaves how long that is kept as it was. */
#if OPENZFS_NUMBER >= 20400
#define FOR_THE_LOG (DMU_READ_NO_PREFETCH | DMU_KEEP_CACHING)
#else
#define FOR_THE_LOG DMU_READ_NO_PREFETCH
#endif

/* --- the intent log asks for data --- */

/* A write goes to the log: its record, and so many bytes of data. */
static void logged(fl_file_t *f, uint64_t offset, uint64_t bytes)
{
	if (fl_logged != NULL)
		fl_logged(f, offset, sizeof(lr_write_t) + bytes);
}

static void got_data(zgd_t *zgd, int error)
{
	fl_file_t *f = zgd->zgd_private;

	(void)error;
	if (zgd->zgd_db != NULL)
		dmu_buf_rele(zgd->zgd_db, zgd);
	zfs_rangelock_exit(zgd->zgd_lr);
	fl_unuse(f);
	kmem_free(zgd, sizeof(*zgd));
}

/* Whether a write of the group went past the cache: its block is in its place already, and here is where. */
static bool written_directly(dmu_buf_t *buf, uint64_t txg, blkptr_t *bp)
{
#if OPENZFS_NUMBER >= 20300
	dmu_buf_impl_t *db = (dmu_buf_impl_t *)buf;
	dbuf_dirty_record_t *dr;
	bool direct;

	mutex_enter(&db->db_mtx);
	dr = dbuf_find_dirty_eq(db, txg);
	direct = dr != NULL && dr->dt.dl.dr_diowrite;
	if (direct)
		*bp = dr->dt.dl.dr_overridden_by;
	mutex_exit(&db->db_mtx);
	return direct;
#else
	(void)buf, (void)txg, (void)bp;
	return false;
#endif
}

int fl_get_data(void *arg, uint64_t gen, lr_write_t *lr, char *buf, struct lwb *lwb, zio_t *zio)
{
	fl_file_t *f;
	uint64_t offset = lr->lr_offset, size;
	zgd_t *zgd;
	int error = fl_use(arg, lr->lr_foid, gen, &f);

	if (error != 0)
		return error;
	zgd = kmem_zalloc(sizeof(*zgd), KM_SLEEP);
	zgd->zgd_lwb = lwb;
	zgd->zgd_private = f;
	if (buf != NULL) {
		/* The record carries the data. */
		zgd->zgd_lr = zfs_rangelock_enter(&f->lock, offset, lr->lr_length, RL_READER);
		if (offset >= f->size)
			error = SET_ERROR(ENOENT);
		else
			error = dmu_read_by_dnode(f->dn, offset, lr->lr_length, buf, FOR_THE_LOG);
		if (error == 0) {
			processor_copied(f->vol->os, lr->lr_length);
			logged(f, offset, lr->lr_length);
		}
		got_data(zgd, error);
		return error;
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
	if (error == 0) {
#if OPENZFS_NUMBER >= 20200
		error = dmu_buf_hold_noread(f->vol->os, f->object, offset, zgd, &zgd->zgd_db);
#else
		/* The older dmu_sync() reads no block that its group has written and that has left the cache since. */
		error = dmu_buf_hold(f->vol->os, f->object, offset, zgd, &zgd->zgd_db, DMU_READ_NO_PREFETCH);
#endif
	}
	if (error == 0 && written_directly(zgd->zgd_db, lr->lr_common.lrc_txg, &lr->lr_blkptr)) {
		logged(f, offset, 0);
		got_data(zgd, 0);
		return 0;
	}
	if (error == 0) {
		logged(f, offset, 0);
		zgd->zgd_bp = &lr->lr_blkptr;
		error = dmu_sync(zio, lr->lr_common.lrc_txg, got_data, zgd);
		if (error == 0)
			return 0; /* got_data() follows when the block is written */
		if (error == EALREADY) {
			/* An earlier record already points to this block. */
			lr->lr_common.lrc_txtype = TX_WRITE2;
			zgd->zgd_bp = NULL;
			BP_ZERO(&lr->lr_blkptr);
			error = 0;
		}
	}
	got_data(zgd, error);
	return error;
}

/* --- data --- */

#define DAY_S 86400

/* As relatime has it: once after each change, and once a day.  Written with the next change, or when the file is left. */
static void accessed(fl_file_t *f)
{
	uint64_t now[2];

	fl_now(now);
	mutex_enter(&f->attr_lock);
	if (!f->vol->relatime || f->atime[0] < f->mtime[0] || f->atime[0] < f->ctime[0] ||
	    (f->atime[0] == f->mtime[0] && f->atime[1] <= f->mtime[1]) || now[0] > f->atime[0] + DAY_S) {
		memcpy(f->atime, now, sizeof(f->atime));
		f->atime_dirty = true;
	}
	mutex_exit(&f->attr_lock);
}

/* How the data of a call goes: through the ARC, through it without being kept for long, or past it. */
typedef enum { WAY_CACHED, WAY_UNCACHED, WAY_DIRECT } way_t;

/* What is asked for with O_DIRECT and not done so. */
#define WAY_BESIDE (OPENZFS_NUMBER >= 20400 ? WAY_UNCACHED : WAY_CACHED)
#if OPENZFS_NUMBER >= 20400
#define KEPT(way) ((way) == WAY_CACHED ? DMU_READ_PREFETCH : DMU_READ_PREFETCH | DMU_UNCACHEDIO)
#else
#define KEPT(way) DMU_READ_PREFETCH
#endif

/*
 * As zfs_setup_direct() decides by O_DIRECT, the property `direct` and whole pages.  OpenZFS 2.3 refuses a call of
 * O_DIRECT that is not of whole pages; it goes through the ARC here, as it does from 2.4 on.
 */
static way_t way_of(const fl_file_t *f, uint64_t offset, uint64_t len, bool writes, int flags)
{
#if OPENZFS_NUMBER >= 20300
	bool asked = (flags & FL_DIRECT) != 0, always = f->vol->os->os_direct == ZFS_DIRECT_ALWAYS;
	/* A recorded read is as long as what it got: at the end of its file that need be no whole page. */
	bool ends = !writes && offset + len >= f->size;
	bool pages = offset % PAGESIZE == 0 && (ends || len % PAGESIZE == 0), part = writes && len < f->block;

	if (!asked && !always)
		return WAY_CACHED;
	if (f->vol->os->os_direct == ZFS_DIRECT_DISABLED || !pages)
		return WAY_BESIDE;
	/* Of less than a record nothing goes past the ARC.  2.3 takes it for Direct I/O if it was asked for. */
	if (part && (OPENZFS_NUMBER >= 20400 || !asked))
		return WAY_BESIDE;
	return WAY_DIRECT;
#else
	(void)f, (void)offset, (void)len, (void)writes, (void)flags;
	return WAY_CACHED;
#endif
}

/* Bytes of whole records, from the disks. */
static int read_past(fl_file_t *f, uint64_t offset, void *buf, uint64_t len)
{
#if OPENZFS_NUMBER >= 20300
	abd_t *abd = abd_get_from_buf(buf, len);
	int error = dmu_read_abd(f->dn, offset, len, abd, DMU_DIRECTIO);

	abd_free(abd);
	return error;
#else
	(void)f, (void)offset, (void)buf, (void)len;
	return SET_ERROR(ENOTSUP);
#endif
}

int fl_read(fl_file_t *f, uint64_t offset, void *buf, uint64_t len, int flags, uint64_t *got)
{
	zfs_locked_range_t *lr;
	uint64_t done = 0, past = 0;
	int error = 0;
	way_t way;

	*got = 0;
	if (len == 0)
		return 0;
	if (fl_always_sync(f->vol))
		fl_commit_file(f);
	if (f->vol->atime)
		accessed(f);
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_READER);
	if (offset < f->size) {
		way = way_of(f, offset, len, false, flags);
		len = MIN(len, f->size - offset);
		/* The end of a file that is no whole page comes from the ARC. */
		if (way == WAY_DIRECT)
			past = P2ALIGN_TYPED(len, (uint64_t)PAGESIZE, uint64_t);
		while (done < past && error == 0) {
			uint64_t at = offset + done,
				 n = MIN(past - done, READ_DIRECT_CHUNK - P2PHASE(at, READ_DIRECT_CHUNK));

			error = read_past(f, at, (char *)buf + done, n);
			if (error == 0)
				done += n;
		}
		while (done < len && error == 0) {
			uint64_t at = offset + done, n = MIN(len - done, READ_CHUNK - P2PHASE(at, READ_CHUNK));

			error = dmu_read_by_dnode(f->dn, at, n, (char *)buf + done, KEPT(way));
			if (error == 0) {
				processor_copied(f->vol->os, n);
				done += n;
			}
		}
	}
	zfs_rangelock_exit(lr);
	*got = done;
	return error;
}

void fl_read_ahead(fl_file_t *f, uint64_t offset, uint64_t len)
{
#if OPENZFS_NUMBER >= 20200 /* before, OpenZFS left it to Linux, in whose page cache it would be read; not done here */
	if (len > 0)
		dmu_prefetch(f->vol->os, f->object, 0, offset, len, ZIO_PRIORITY_ASYNC_READ);
#else
	(void)f, (void)offset, (void)len;
#endif
}

/* Which kind of record a write gets, as the POSIX layer chooses. */
static itx_wr_state_t record_kind(const fl_file_t *f, uint64_t len, way_t way, bool commit)
{
	zilog_t *zil = f->vol->zil;

#if OPENZFS_NUMBER >= 20400
	return zil_write_state(zil, len, f->block, way == WAY_DIRECT, commit);
#else
	if (zil->zl_logbias == ZFS_LOGBIAS_THROUGHPUT || way == WAY_DIRECT)
		return WR_INDIRECT;
	if (!spa_has_slogs(zil->zl_spa) && (int64_t)len >= fl_immediate_write_sz)
		return WR_INDIRECT;
	return commit ? WR_COPIED : WR_NEED_COPY;
#endif
}

static void log_write(fl_file_t *f, dmu_tx_t *tx, uint64_t offset, uint64_t len, way_t way, bool commit)
{
	fl_volume_t *vol = f->vol;
	itx_wr_state_t kind = record_kind(f, len, way, commit);
	uint64_t left = len;

	if (zil_replaying(vol->zil, tx) || f->unlinked)
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
		itx = zil_itx_create(TX_WRITE, sizeof(*lr) + (k == WR_COPIED ? n : 0));
		lr = (lr_write_t *)&itx->itx_lr;
		if (k == WR_COPIED && dmu_read_by_dnode(f->dn, offset, n, lr + 1, FOR_THE_LOG) != 0) {
#if OPENZFS_NUMBER >= 20400
			zil_itx_destroy(itx, 0);
#else
			zil_itx_destroy(itx);
#endif
			itx = zil_itx_create(TX_WRITE, sizeof(*lr));
			lr = (lr_write_t *)&itx->itx_lr;
			k = WR_NEED_COPY;
		}
		if (k == WR_COPIED) {
			processor_copied(f->vol->os, n);
			logged(f, offset, n);
		}
		itx->itx_wr_state = k;
		lr->lr_foid = f->object;
		lr->lr_offset = offset;
		lr->lr_length = n;
		lr->lr_blkoff = 0;
		BP_ZERO(&lr->lr_blkptr);
		itx->itx_private = vol;
		/* Behind what the log has of this file so far: the commit that follows takes all of it, in order. */
		itx->itx_sync = B_FALSE;
		itx->itx_gen = f->gen;
		switch (k) {
		case WR_INDIRECT:
			(void)__atomic_add_fetch(&vol->itx.indirect, 1, __ATOMIC_RELAXED);
			break;
		case WR_COPIED:
			(void)__atomic_add_fetch(&vol->itx.copied, 1, __ATOMIC_RELAXED);
			break;
		default:
			(void)__atomic_add_fetch(&vol->itx.needcopy, 1, __ATOMIC_RELAXED);
			break;
		}
		(void)__atomic_add_fetch(&vol->itx.bytes, n, __ATOMIC_RELAXED);
		zil_itx_assign(vol->zil, itx, tx);
		offset += n;
		left -= n;
	}
	if (kind != WR_INDIRECT) {
		(void)__atomic_add_fetch(&vol->itx.in_log, len, __ATOMIC_RELAXED);
		dsl_pool_wrlog_count(dmu_objset_pool(vol->os), (int64_t)len, tx->tx_txg);
	}
}

/* The file is one block as long as it fits a record: give it a larger one. */
static void grow_block(fl_file_t *f, uint64_t block, dmu_tx_t *tx)
{
	u_longlong_t blocks;

	if (block <= f->block || (f->block != 0 && f->size > f->block))
		return;
	if (dmu_object_set_blocksize(f->vol->os, f->object, block, 0, tx) == 0)
		sa_object_size(f->sa, &f->block, &blocks);
}

/* The block size that a single-block file takes when it grows to `end`. */
static uint64_t grown_block(const fl_file_t *f, uint64_t end)
{
	uint64_t block = f->vol->recordsize;

	if (f->block > f->vol->recordsize && !ISP2(f->block))
		block = 1ULL << highbit64(f->block);
	block = MIN(block, P2ROUNDUP(end, (uint64_t)SPA_MINBLOCKSIZE));
	return MAX(block, f->block);
}

/* Writes to different parts of a file go on at the same time, and each may be its new end. */
static void reach(fl_file_t *f, uint64_t end)
{
	uint64_t size = __atomic_load_n(&f->size, __ATOMIC_RELAXED);

	while (size < end &&
	    !__atomic_compare_exchange_n(&f->size, &size, end, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Whole records, to the disks before this returns. */
static int write_past(fl_file_t *f, uint64_t offset, const void *buf, uint64_t len, dmu_tx_t *tx)
{
#if OPENZFS_NUMBER >= 20300
	abd_t *abd = abd_get_from_buf((void *)(uintptr_t)buf, len);
	int error = dmu_write_abd(f->dn, offset, len, abd, DMU_DIRECTIO, tx);

	abd_free(abd);
	return error;
#else
	(void)f, (void)offset, (void)buf, (void)len, (void)tx;
	return SET_ERROR(ENOTSUP);
#endif
}

static int write_cached(fl_file_t *f, uint64_t offset, const void *buf, uint64_t len, way_t way, dmu_tx_t *tx)
{
	int error = DN_WRITE(f->dn, offset, len, buf, tx, KEPT(way));

	(void)way; /* older versions keep all */
	if (error == 0)
		processor_copied(f->vol->os, len);
	return error;
}

/* Direct I/O passes whole records by the ARC; what lies before and behind them goes through it. */
static int write_data(fl_file_t *f, uint64_t offset, const void *buf, uint64_t len, way_t way, dmu_tx_t *tx)
{
	uint64_t block = f->dn->dn_datablksz, n;
	int error = 0;

	for (uint64_t done = 0; done < len && error == 0; done += n) {
		uint64_t at = offset + done, phase = at % block;
		const char *from = (const char *)buf + done;

		n = len - done;
		if (way != WAY_DIRECT || n < block) {
			error = write_cached(f, at, from, n, way, tx);
		} else if (phase == 0) {
			n -= n % block;
			error = write_past(f, at, from, n, tx);
		} else {
			/* As many bytes as the record has before it, until one begins: so dmu_write_uio_dnode(). */
			n = phase;
			error = write_cached(f, at, from, n, way, tx);
		}
	}
	return error;
}

int fl_write(fl_file_t *f, uint64_t offset, const void *buf, uint64_t len, int flags, bool *commit)
{
	zfs_locked_range_t *lr;
	uint64_t done = 0, end, block;
	way_t way, asked;
	int error = 0;

	*commit = (flags & FL_SYNC) != 0 || fl_always_sync(f->vol);
	if (len == 0)
		return 0;
	asked = way_of(f, offset, len, true, flags);
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_WRITER);
	end = MAX(f->size, offset + len);
	while (done < len) {
		uint64_t at = offset + done, n;
		dmu_tx_t *tx;

		/* A block that is to grow is read from the ARC, so what it gets goes there. */
		way = asked == WAY_DIRECT && lr->lr_length == UINT64_MAX ? WAY_BESIDE : asked;

		block = f->block;
		if (lr->lr_length == UINT64_MAX && f->size <= f->block)
			block = grown_block(f, end);
		/*
		 * Appending whole blocks, the POSIX layer takes one block per transaction (and so per log record).
		 */
		if (way != WAY_DIRECT && len - done >= block && at >= f->size && at % block == 0 &&
		    (block >= SPA_OLD_MAXBLOCKSIZE || len - done < 4 * block))
			n = block;
		else
			n = MIN(len - done, WRITE_CHUNK - (ISP2(block) ? P2PHASE(at, block) : at % block));
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_sa(tx, f->sa, B_FALSE);
		dmu_tx_hold_write_by_dnode(tx, f->dn, at, (int)n);
		if ((error = fl_begin(tx)) != 0)
			break;
		if (lr->lr_length == UINT64_MAX) {
			grow_block(f, block, tx);
			zfs_rangelock_reduce(lr, at, len - done);
		}
		error = write_data(f, at, (const char *)buf + done, n, way, tx);
		if (error != 0) {
			dmu_tx_commit(tx);
			break;
		}
		reach(f, f->vol->replay_eof != 0 ? MIN(at + n, f->vol->replay_eof) : at + n);
		fl_touch(f, tx);
		log_write(f, tx, at, n, way, *commit);
		dmu_tx_commit(tx);
		done += n;
	}
	zfs_rangelock_exit(lr);
	return error;
}

static void log_truncate(fl_file_t *f, uint64_t offset, uint64_t len)
{
	dmu_tx_t *tx = dmu_tx_create(f->vol->os);
	lr_truncate_t *lr;
	itx_t *itx;

	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	if (fl_begin(tx) != 0)
		return;
	fl_touch(f, tx);
	if (!zil_replaying(f->vol->zil, tx) && !f->unlinked) {
		itx = zil_itx_create(TX_TRUNCATE, sizeof(*lr));
		lr = (lr_truncate_t *)&itx->itx_lr;
		lr->lr_foid = f->object;
		lr->lr_offset = offset;
		lr->lr_length = len;
		itx->itx_sync = B_FALSE;
		zil_itx_assign(f->vol->zil, itx, tx);
	}
	dmu_tx_commit(tx);
}

static int extend(fl_file_t *f, uint64_t end)
{
	zfs_locked_range_t *lr = zfs_rangelock_enter(&f->lock, 0, UINT64_MAX, RL_WRITER);
	uint64_t block = 0;
	dmu_tx_t *tx;
	int error = 0;

	if (end > f->size) {
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_sa(tx, f->sa, B_FALSE);
		if (end > f->block && (!ISP2(f->block) || f->block < f->vol->recordsize)) {
			block = grown_block(f, end);
			dmu_tx_hold_write_by_dnode(tx, f->dn, 0, (int)block);
		}
		if ((error = fl_begin(tx)) == 0) {
			if (block != 0)
				grow_block(f, block, tx);
			f->size = end;
			fl_touch(f, tx);
			dmu_tx_commit(tx);
		}
	}
	zfs_rangelock_exit(lr);
	return error;
}

static int shorten(fl_file_t *f, uint64_t end)
{
	zfs_locked_range_t *lr = zfs_rangelock_enter(&f->lock, 0, UINT64_MAX, RL_WRITER);
	dmu_tx_t *tx;
	int error = 0;

	if (end < f->size && (error = dmu_free_long_range(f->vol->os, f->object, end, DMU_OBJECT_END)) == 0) {
		tx = dmu_tx_create(f->vol->os);
		dmu_tx_hold_sa(tx, f->sa, B_FALSE);
		dmu_tx_mark_netfree(tx);
		if ((error = fl_begin(tx)) == 0) {
			f->size = end;
			fl_touch(f, tx);
			dmu_tx_commit(tx);
		}
	}
	zfs_rangelock_exit(lr);
	return error;
}

int fl_truncate(fl_file_t *f, uint64_t size, bool *commit)
{
	int error = size > f->size ? extend(f, size) : shorten(f, size);

	*commit = fl_always_sync(f->vol);
	if (error == 0)
		log_truncate(f, size, 0);
	return error;
}

int fl_allocate(fl_file_t *f, uint64_t offset, uint64_t len, bool keep_size, bool *commit)
{
	*commit = false;
	if (keep_size || offset + len <= f->size)
		return 0;
	return extend(f, offset + len);
}

int fl_zero(fl_file_t *f, uint64_t offset, uint64_t len, bool keep_size, bool *commit)
{
	zfs_locked_range_t *lr;
	uint64_t end = offset + len;
	int error = 0;

	*commit = fl_always_sync(f->vol);
	/* What a punched hole has beyond the end is not there. */
	if (keep_size && end > f->size) {
		end = MAX(f->size, offset);
		len = end - offset;
	}
	if (len == 0)
		return 0;
	lr = zfs_rangelock_enter(&f->lock, offset, len, RL_WRITER);
	if (offset < f->size)
		error = dmu_free_long_range(f->vol->os, f->object, offset, MIN(end, f->size) - offset);
	zfs_rangelock_exit(lr);
	if (error == 0 && !keep_size && end > f->size)
		error = extend(f, end);
	if (error == 0)
		log_truncate(f, offset, len);
	return error;
}

int fl_seek(fl_file_t *f, bool hole, uint64_t *offset)
{
	zfs_locked_range_t *lr;
	uint64_t at = *offset;
	int error;

	if (at >= f->size)
		return ENXIO;
	lr = zfs_rangelock_enter(&f->lock, 0, UINT64_MAX, RL_READER);
	error = dmu_offset_next(f->vol->os, f->object, hole, &at);
	zfs_rangelock_exit(lr);
	if (error == ESRCH)
		error = ENXIO;
	/* There is a hole at the end of every file. */
	if (hole && (error == ENXIO || (error == 0 && at > f->size))) {
		at = f->size;
		error = 0;
	} else if (error == EBUSY) {
		/* Not on disk yet: all of it counts as data. */
		at = hole ? f->size : *offset;
		error = 0;
	} else if (!hole && error == 0 && at >= f->size) {
		error = ENXIO;
	}
	*offset = MAX(at, *offset);
	return error;
}

/* --- commits --- */

static void commit_log(fl_volume_t *vol, uint64_t object)
{
	if (vol->os->os_sync == ZFS_SYNC_DISABLED)
		return;
	(void)__atomic_add_fetch(&vol->commits, 1, __ATOMIC_RELAXED);
#if OPENZFS_NUMBER >= 20400
	VERIFY0(zil_commit(vol->zil, object));
#else
	zil_commit(vol->zil, object);
#endif
}

void fl_commit_file(fl_file_t *f)
{
	commit_log(f->vol, f->object);
}

void fl_commit_volume(fl_volume_t *vol)
{
	commit_log(vol, 0);
}

uint64_t fl_size(const fl_file_t *f)
{
	return f->size;
}

uint64_t fl_block_size(const fl_file_t *f)
{
	return f->block;
}

uint64_t fl_object(const fl_file_t *f)
{
	return f->object;
}
