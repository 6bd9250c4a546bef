#include "sampled.h"

#include <dlfcn.h>

#include "chance.h"
#include "filelayer_impl.h"
#include "own.h"
#include "pool.h"
#include "spec.h"
#include "weights.h"

#include "zfs.h"

/*
 * Of 112 bytes that a block pointer can hold.  LZ4 makes 43 bytes of a true pointer that follows others: 32 of a checksum,
 * one or two of an address, and what it says of the rest.  It makes three fewer than this of a pointer made here.
 */
#define OWN_BYTES 46
#define POINTERS_SHIFT 10 /* block pointers in an indirect block, as weights.c has them */
static const char mark[8] = {'z', 't', 'u', 'n', 'e', ' ', 'n', 'o'};

/* --- dirty data --- */

/* What the calling thread makes dirty. */
typedef struct {
	const dmu_buf_impl_t *db; /* NULL: not known */
	int above;                /* how many levels above that block it is by now */
	weights_block_t past;     /* what goes past the ARC (Direct I/O) … */
	uint64_t past_bytes;      /* … and its bytes; 0: nothing does */
} mine_t;

static mine_t *mine(void)
{
	static own_t own;

	return own_value(&own, sizeof(mine_t));
}

#define POOLS 16
static spa_t *spas[POOLS]; /* by the number in the layout */

void sampled_volume(const fl_volume_t *vol, int pool)
{
	if (pool < POOLS)
		spas[pool] = dmu_objset_spa(vol->os);
}

static int pool_of(const spa_t *spa)
{
	int i = 0;

	while (i < POOLS && spas[i] != spa)
		i++;
	return i;
}

/* The block that is ``above`` levels above ``db``. */
static weights_block_t block_of(const dmu_buf_impl_t *db, int above)
{
	return (weights_block_t){
		.pool = pool_of(dmu_objset_spa(db->db_objset)),
		.objset = dmu_objset_id(db->db_objset),
		.object = db->db.db_object,
		.level = db->db_level + above,
		.number = above < 6 ? db->db_blkid >> (above * POINTERS_SHIFT) : 0,
	};
}

/*
 * A block becomes dirty, then the one above it, and so on up to one that is already: that is told of each, in this order.
 * What goes past the ARC tells of itself afterwards.
 */
dbuf_dirty_record_t *dbuf_dirty(dmu_buf_impl_t *db, dmu_tx_t *tx)
{
	typedef dbuf_dirty_record_t *dirty_fn(dmu_buf_impl_t *, dmu_tx_t *);
	REAL(dirty_fn, "dbuf_dirty");
	mine_t *m = mine();
	const mine_t outer = *m;
	bool past = db->db_level == 0 && db->db_state == DB_NOFILL;
	dbuf_dirty_record_t *dr;

	m->db = db;
	m->above = past ? 1 : 0;
	dr = real(db, tx);
	*m = outer;
	if (!past)
		m->past_bytes = 0;
	return dr;
}

#if OPENZFS_NUMBER >= 20300
/*
 * A block goes past the ARC: what was dirty of it in this transaction group is so no more, then what is above it becomes
 * dirty, then it itself.
 */
void dmu_buf_will_clone_or_dio(dmu_buf_t *buf, dmu_tx_t *tx)
{
	typedef void will_fn(dmu_buf_t *, dmu_tx_t *);
	REAL(will_fn, "dmu_buf_will_clone_or_dio");
	mine_t *m = mine();

	if (weights_rate() > 1.0) {
		m->past = block_of((const dmu_buf_impl_t *)(const void *)buf, 0);
		m->past_bytes = buf->db_size;
	}
	real(buf, tx);
}
#endif

/* Whether ``space`` bytes are the block that goes past the ARC, and no part of what is above it. */
static bool is_past(const mine_t *m, uint64_t space)
{
	return m->db == NULL && m->past_bytes != 0 && m->past_bytes == space;
}

/* How many bytes each of ``space`` that become dirty stands for. */
static double stands_for(uint64_t space, uint64_t txg)
{
	mine_t *m = mine();

	if (weights_rate() <= 1.0)
		return 1.0;
	if (m->db != NULL)
		return weights_dirtied(block_of(m->db, m->above++), txg);
	return is_past(m, space) ? weights_dirtied(m->past, txg) : 1.0;
}

double sampled_write_stands_for(const void *zio)
{
	const zio_t *z = zio;
	const zbookmark_phys_t *b = &z->io_bookmark;

	if (weights_rate() <= 1.0 || z->io_type != ZIO_TYPE_WRITE || b->zb_level == ZB_ZIL_LEVEL)
		return 1.0;
	return weights_of((weights_block_t){pool_of(z->io_spa), b->zb_objset, b->zb_object, b->zb_level, b->zb_blkid},
	    z->io_txg)
	    .blocks;
}

/*
 * Of each open transaction group: what was made dirty, what it counts, and what of it would not be smaller in a sample.
 */
static struct group {
	dsl_pool_t *dp;
	uint64_t txg;
	double bytes, counts, whole;
} groups[POOLS][TXG_SIZE];

static struct group *group_of(dsl_pool_t *dp, uint64_t txg)
{
	struct group *g;
	int i = 0;

	while (i < POOLS - 1 && groups[i][0].dp != NULL && groups[i][0].dp != dp)
		i++;
	groups[i][0].dp = dp;
	g = &groups[i][txg & TXG_MASK];
	if (g->txg != txg) {
		g->txg = txg;
		g->bytes = g->counts = g->whole = 0;
	}
	return g;
}

void dsl_pool_dirty_space(dsl_pool_t *dp, int64_t space, dmu_tx_t *tx)
{
	typedef void dirty_fn(dsl_pool_t *, int64_t, dmu_tx_t *);
	REAL(dirty_fn, "dsl_pool_dirty_space");
	double n = stands_for((uint64_t)space, tx->tx_txg);
	int64_t counts = n == 1.0 ? space : (int64_t)((double)space * n);
	struct group *g = group_of(dp, tx->tx_txg);
	mine_t *m = mine();

	g->bytes += (double)space;
	g->counts += (double)counts;
	if (is_past(m, (uint64_t)space))
		m->past_bytes = 0; /* the ARC has nothing of it */
	else if (weights_rate() > 1.0 && n < weights_rate())
		g->whole += (double)space * (weights_rate() - n) / (weights_rate() - 1.0);
	real(dp, counts, tx);
}

/*
 * Which of a group's is written is not known here: each byte counts what they do on average.  What goes past the ARC again
 * is known, and a doublewrite buffer does all the time.
 */
void dsl_pool_undirty_space(dsl_pool_t *dp, int64_t space, uint64_t txg)
{
	typedef void undirty_fn(dsl_pool_t *, int64_t, uint64_t);
	REAL(undirty_fn, "dsl_pool_undirty_space");
	struct group *g = group_of(dp, txg);
	int64_t counts = space;

	if (is_past(mine(), (uint64_t)space)) {
		counts = (int64_t)((double)space * weights_dirtied(mine()->past, txg));
		g->bytes -= (double)space;
		g->counts -= (double)counts;
	} else if (g->bytes > 0 && g->counts != g->bytes && (uint64_t)space != dp->dp_dirty_pertxg[txg & TXG_MASK])
		counts = (int64_t)((double)space * g->counts / g->bytes);
	real(dp, counts, txg);
}

/* Of each dataset: bytes of blocks of files, as it counts them and compressed. */
static struct born {
	const dsl_dataset_t *ds;
	double used, compressed;
} born[SPEC_DATASETS];

void sampled_pools_are_new(void)
{
	memset(groups, 0, sizeof(groups));
	memset(born, 0, sizeof(born));
}

static uint64_t to_go; /* bytes of blocks of logs that are in the ARC, and will not stay */

uint64_t sampled_arc_limit(uint64_t limit, uint64_t there)
{
	double whole = (double)there;

	if (weights_rate() <= 1.0)
		return arc_c;
	for (int i = 0; i < POOLS && groups[i][0].dp != NULL; i++)
		for (int k = 0; k < TXG_SIZE; k++)
			if (groups[i][k].txg > spa_last_synced_txg(groups[i][0].dp->dp_spa))
				whole += groups[i][k].whole;
	arc_c = limit + (uint64_t)(whole * (1.0 - 1.0 / weights_rate())) + to_go;
	return arc_c;
}

/*
 * OpenZFS begins to evict where a lower bound of the ARC's size, too low by 16 and more of the blocks last counted, is
 * above the limit by a block of the largest size.  Of an ARC that stands for a larger one both are a part.
 */
int64_t aggsum_lower_bound(aggsum_t *sum)
{
	typedef int64_t bound_fn(aggsum_t *);
	REAL(bound_fn, "aggsum_lower_bound");
	int64_t bound = real(sum);
	uint64_t size, evictable;

	if (weights_rate() <= 1.0 || sum != &arc_sums.arcstat_size)
		return bound;
	pool_arc_size(&size, &evictable);
	return bound + (int64_t)((double)((int64_t)size - bound + ARC_ALLOWANCE) * (1.0 - 1.0 / weights_rate()));
}

/*
 * OpenZFS has writers wait when more than half of the ARC is dirty, or about to be.  Here a part of the ARC stands for the
 * whole, and what counts as dirty is the whole: so it is asked of these, and OpenZFS itself only to take note.
 */
int arc_tempreserve_space(spa_t *spa, uint64_t reserve, uint64_t txg)
{
	typedef int reserve_fn(spa_t *, uint64_t, uint64_t);
	REAL(reserve_fn, "arc_tempreserve_space");
	double arc = (double)arc_c * weights_rate(), dirty = (double)spa_get_dsl(spa)->dp_dirty_total;
	uint64_t limit = arc_c;
	int error;

	if (weights_rate() <= 1.0)
		return real(spa, reserve, txg);
	if (dirty + (double)reserve > arc / 2 && dirty > arc / 4)
		return SET_ERROR(ERESTART);
	arc_c = MAX(limit, 1ULL << 40);
	error = real(spa, reserve, txg);
	arc_c = limit;
	return error;
}

/* Blocks of logs that will not stay in the ARC. */
typedef struct {
	spa_t *spa;
	uint64_t objset, object, number;
	blkptr_t bp;
} written_t;
static written_t *written;
static size_t nwritten, written_room;

/* Of some files, the block that was written last. */
static struct {
	uint64_t objset, object, number;
} latest[256];

static size_t place_of(uint64_t objset, uint64_t object)
{
	return (size_t)((objset * 0x9e3779b97f4a7c15ULL + object * 0xbf58476d1ce4e5b9ULL) >> 56);
}

/* Whether a log has gone on to another block.  One that it goes on in would be read again. */
static bool is_left(const written_t *w)
{
	size_t i = place_of(w->objset, w->object);

	return latest[i].objset == w->objset && latest[i].object == w->object && latest[i].number != w->number;
}

/* Older versions do not tell whether a block is in the ARC: there it is as is likely. */
static bool is_in_arc(const written_t *w, bool likely)
{
#if OPENZFS_NUMBER >= 20300
	(void)likely;
	return (arc_cached(w->spa, &w->bp) & ARC_CACHED_IN_L1) != 0;
#else
	(void)w;
	return likely;
#endif
}

void sampled_written(const void *zio)
{
	const zio_t *z = zio, *logical = z->io_logical;
	const zbookmark_phys_t *b = &z->io_bookmark;
	uint64_t h = (b->zb_object * 0x9e3779b97f4a7c15ULL + b->zb_blkid) * 0xbf58476d1ce4e5b9ULL;
	const written_t *last = nwritten > 0 ? &written[nwritten - 1] : NULL;
	size_t i = place_of(b->zb_objset, b->zb_object);

	if (logical == NULL || logical->io_bp == NULL || logical->io_type != ZIO_TYPE_WRITE || b->zb_level != 0 ||
	    (int64_t)b->zb_object <= 0 || logical->io_prop.zp_type != DMU_OT_PLAIN_FILE_CONTENTS)
		return;
	latest[i].objset = b->zb_objset;
	latest[i].object = b->zb_object;
	latest[i].number = b->zb_blkid;
	if ((double)(h >> 32) * weights_rate() < 4294967296.0)
		return;
	/* A record that several syncs of a group write is there once. */
	if (last != NULL && last->objset == b->zb_objset && last->object == b->zb_object &&
	    last->number == b->zb_blkid) {
		to_go -= MIN(BP_GET_PSIZE(&last->bp), to_go);
		nwritten--;
	}
	if (nwritten == written_room &&
	    (written = realloc(written, (written_room = written_room * 2 + 1024) * sizeof(*written))) == NULL)
		abort();
	written[nwritten++] = (written_t){z->io_spa, b->zb_objset, b->zb_object, b->zb_blkid, *logical->io_bp};
	to_go += BP_GET_PSIZE(logical->io_bp);
}

void sampled_let_go(void)
{
	static uint64_t before;
	uint64_t ended = 0, there = 0;
	size_t n = 0;

	for (int i = 0; i < POOLS; i++)
		ended += spas[i] != NULL ? spa_last_synced_txg(spas[i]) : 0;
	if (ended == before)
		return;
	before = ended;
	for (size_t i = 0; i < nwritten; i++) {
		const written_t w = written[i];
		uint64_t birth = BP_BIRTH(&w.bp), synced = spa_last_synced_txg(w.spa);
		bool goes = birth + 2 <= synced || (birth <= synced && is_left(&w));

		if (goes)
			arc_freed(w.spa, &w.bp);
		if (birth + 2 <= synced)
			continue;
		/* One that is still in use has not gone, and is tried again. */
		if (is_in_arc(&w, !goes))
			there += BP_GET_PSIZE(&w.bp);
		written[n++] = w;
	}
	nwritten = n;
	to_go = there;
}

/* --- records that are not there --- */

static uint64_t missed;

uint64_t sampled_missed(void)
{
	return missed;
}

bool sampled_is_filled(const void *abd, uint64_t len)
{
	char first[sizeof(mark)];

	if (len != OWN_BYTES)
		return false;
	abd_copy_to_buf_off(first, (abd_t *)(uintptr_t)abd, 0, sizeof(first));
	if (memcmp(first, mark, sizeof(mark)) != 0)
		return false;
	missed++;
	return true;
}

/* The pointer of a record that is not there: with bytes of its own, others each time. */
static void make_pointer(blkptr_t *bp, const fl_file_t *f, uint64_t *state, uint64_t txg)
{
	uint8_t own[OWN_BYTES];

	memcpy(own, mark, sizeof(mark));
	for (size_t k = sizeof(mark); k < sizeof(own); k += sizeof(*state)) {
		uint64_t x = chance_next(state);

		memcpy(own + k, &x, MIN(sizeof(x), sizeof(own) - k));
	}
	encode_embedded_bp_compressed(bp, own, ZIO_COMPRESS_LZ4, (int)f->block, sizeof(own));
	BPE_SET_ETYPE(bp, BP_EMBEDDED_TYPE_DATA);
	BP_SET_TYPE(bp, f->dn->dn_type);
	BP_SET_LEVEL(bp, 0);
	BP_SET_BYTEORDER(bp, ZFS_HOST_BYTEORDER);
	SET_BIRTH(bp, txg);
}

static bool is_filled(const blkptr_t *bp)
{
	uint8_t own[OWN_BYTES];

	if (!BP_IS_EMBEDDED(bp) || BP_GET_LEVEL(bp) != 0 || BPE_GET_PSIZE(bp) != OWN_BYTES)
		return false;
	decode_embedded_bp_compressed(bp, own);
	return memcmp(own, mark, sizeof(mark)) == 0;
}

/* Where a file is cut or removed: nobody counted such a record as born, and OpenZFS checks that no more dies than was. */
int dsl_dataset_block_kill(dsl_dataset_t *ds, const blkptr_t *bp, dmu_tx_t *tx, boolean_t async)
{
	typedef int kill_fn(dsl_dataset_t *, const blkptr_t *, dmu_tx_t *, boolean_t);
	REAL(kill_fn, "dsl_dataset_block_kill");

	return is_filled(bp) ? 0 : real(ds, bp, tx, async);
}

int sampled_fill(fl_file_t *f, uint64_t first, uint64_t end, const touched_t *t)
{
	uint64_t state = f->object * 0xd1342543de82ef95ULL + first;
	dmu_buf_impl_t *above;
	dmu_tx_t *tx;
	blkptr_t *bp;
	int error;

	/* A file of one record has no block of pointers. */
	if (f->dn->dn_nlevels < 2)
		return 0;
	tx = dmu_tx_create(f->vol->os);
	dmu_tx_hold_write_by_dnode(tx, f->dn, first * f->block, (int)f->block);
	if ((error = fl_begin(tx)) != 0)
		return error;
	rw_enter(&f->dn->dn_struct_rwlock, RW_WRITER);
	dnode_new_blkid(f->dn, end - 1, tx, B_FALSE, B_FALSE);
	above = dbuf_hold_level(f->dn, 1, first >> POINTERS_SHIFT, FTAG);
	rw_exit(&f->dn->dn_struct_rwlock);
	/* OpenZFS itself writes there only when it syncs; as nothing below it is dirty yet, it does not now. */
	dmu_buf_will_dirty(&above->db, tx);
	rw_enter(&above->db_rwlock, RW_WRITER);
	bp = above->db.db_data;
	for (uint64_t i = first; i < end; i++)
		if (!touched_has(t, i))
			make_pointer(&bp[i - first], f, &state, tx->tx_txg);
	rw_exit(&above->db_rwlock);
	dbuf_rele(above, FTAG);
	dmu_tx_commit(tx);
	return 0;
}

int sampled_depth(fl_file_t *f, uint64_t records)
{
	uint64_t fanout = 1ULL << (f->dn->dn_indblkshift - SPA_BLKPTRSHIFT), reach = f->dn->dn_nblkptr;
	int levels = 1, error;
	dmu_tx_t *tx;

	for (; reach < records; reach *= fanout)
		levels++;
	if (levels <= f->dn->dn_nlevels)
		return 0;
	tx = dmu_tx_create(f->vol->os);
	dmu_tx_hold_write_by_dnode(tx, f->dn, 0, (int)f->block);
	if ((error = fl_begin(tx)) != 0)
		return error;
	error = dmu_object_set_nlevels(f->vol->os, f->object, levels, tx);
	dmu_tx_commit(tx);
	return error;
}

uint64_t sampled_used(fl_file_t *f)
{
	return DN_USED_BYTES(f->dn->dn_phys);
}

uint64_t sampled_filled(fl_file_t *f)
{
	dmu_object_info_t info;

	dmu_object_info_from_dnode(f->dn, &info);
	return info.doi_fill_count * info.doi_data_block_size;
}

/* --- what the blocks come to --- */

static sampled_count_t counted;

double sampled_compressed(const fl_volume_t *vol)
{
	const dsl_dataset_t *ds = dmu_objset_ds(vol->os);

	for (int i = 0; i < SPEC_DATASETS && born[i].ds != NULL; i++)
		if (born[i].ds == ds && born[i].used > 0)
			return born[i].compressed / born[i].used;
	return 1.0;
}

static void note_born(const dsl_dataset_t *ds, uint64_t used, uint64_t compressed)
{
	int i = 0;

	while (i < SPEC_DATASETS - 1 && born[i].ds != NULL && born[i].ds != ds)
		i++;
	born[i].ds = ds;
	born[i].used += (double)used;
	born[i].compressed += (double)compressed;
}

void sampled_count(void)
{
	memset(&counted, 0, sizeof(counted));
}

sampled_count_t sampled_counted(void)
{
	return counted;
}

void dsl_dataset_block_born(dsl_dataset_t *ds, const blkptr_t *bp, dmu_tx_t *tx)
{
	typedef void born_fn(dsl_dataset_t *, const blkptr_t *, dmu_tx_t *);
	REAL(born_fn, "dsl_dataset_block_born");
	uint64_t used = bp_get_dsize_sync(tx->tx_pool->dp_spa, bp);

	if (used > 0 && BP_GET_TYPE(bp) == DMU_OT_PLAIN_FILE_CONTENTS) {
		if (BP_GET_LEVEL(bp) == 0) {
			counted.data_used += used;
			counted.data_compressed += BP_GET_PSIZE(bp);
		} else if (BP_GET_LEVEL(bp) == 1) {
			counted.indirect++;
			counted.indirect_used += used;
			counted.indirect_compressed += BP_GET_PSIZE(bp);
		}
		note_born(ds, used, BP_GET_PSIZE(bp));
		counted.used += used;
		for (int i = 0; i < BP_GET_NDVAS(bp); i++)
			counted.allocated += DVA_GET_ASIZE(&bp->blk_dva[i]);
	}
	real(ds, bp, tx);
}
