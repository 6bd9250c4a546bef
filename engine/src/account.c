#include "account.h"

#include <math.h>

#include "processor.h"
#include "weights.h"

#include "zfs.h"

typedef struct {
	int pool;
	uint64_t objset;
} known_dataset_t;

const char *const cause_names[CAUSE_COUNT] = {"data", "metadata", "zil", "other"};

static io_totals_t totals;
static known_dataset_t *known;
static int nknown;

void account_create(size_t n)
{
	known = calloc(n + 1, sizeof(*known));
	totals.dataset = calloc(n + 1, sizeof(*totals.dataset));
	totals.dataset_zil = calloc(n + 1, sizeof(*totals.dataset_zil));
	totals.dataset_own = calloc(n + 1, sizeof(*totals.dataset_own));
	if (known == NULL || totals.dataset == NULL || totals.dataset_zil == NULL || totals.dataset_own == NULL)
		abort();
	nknown = (int)n;
}

io_totals_t *account_totals(void)
{
	return &totals;
}

void account_register(int dataset, int pool, uint64_t objset)
{
	known[dataset] = (known_dataset_t){pool, objset};
}

void account_reset(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++) {
		memset(&d[i].count, 0, sizeof(d[i].count));
		memset(&d[i].stands_for, 0, sizeof(d[i].stands_for));
	}
	memset(totals.cause, 0, sizeof(totals.cause));
	memset(totals.dataset, 0, (size_t)nknown * sizeof(*totals.dataset));
	memset(totals.dataset_zil, 0, (size_t)nknown * sizeof(*totals.dataset_zil));
	memset(totals.dataset_own, 0, (size_t)nknown * sizeof(*totals.dataset_own));
	totals.rmw_reads = totals.rmw_read_bytes = totals.slog_writes = totals.slog_bytes = 0;
	totals.cache_write_bytes = 0;
	processor_reset();
}

static void count_io(io_sum_t *c, bool write, double bytes, double ios)
{
	if (write) {
		c->writes += ios;
		c->write_bytes += bytes;
	} else {
		c->reads += ios;
		c->read_bytes += bytes;
	}
}

int account_dataset(int pool, uint64_t objset)
{
	for (int i = 0; i < nknown; i++)
		if (known[i].objset == objset && known[i].pool == pool && objset != 0)
			return i;
	return -1;
}

static bool is_file_data(const zio_t *z)
{
	const zio_t *logical = z->io_logical;
	dmu_object_type_t type = DMU_OT_PLAIN_FILE_CONTENTS;

	if (logical != NULL && logical->io_type == ZIO_TYPE_WRITE)
		type = logical->io_prop.zp_type;
	else if (logical != NULL && logical->io_bp != NULL)
		type = BP_GET_TYPE(logical->io_bp);
	return type == DMU_OT_PLAIN_FILE_CONTENTS;
}

static cause_t cause_of(const zio_t *z, const disk_t *d, int ds)
{
	const zbookmark_phys_t *b = &z->io_bookmark;

	if (b->zb_level == ZB_ZIL_LEVEL)
		return CAUSE_ZIL;
	/* Labels, uberblocks and cache devices have no bookmark. */
	if (d->class == VC_CACHE || (b->zb_objset == 0 && b->zb_object == 0 && b->zb_level == 0 && b->zb_blkid == 0))
		return CAUSE_OTHER;
	if (ds >= 0 && b->zb_level == 0 && (int64_t)b->zb_object > 0 && is_file_data(z))
		return CAUSE_DATA;
	return CAUSE_METADATA;
}

static bool is_target(const account_target_t *w, const disk_t *d, const zio_t *z)
{
	const zbookmark_phys_t *b = &z->io_bookmark;
	const zio_t *logical = z->io_logical;
	uint64_t size = logical != NULL && logical->io_bp != NULL ? BP_GET_LSIZE(logical->io_bp) : 0;

	for (; w != NULL; w = w->next)
		if (w->pool == d->pool && w->objset == b->zb_objset && w->object == b->zb_object &&
		    (size == 0 || (b->zb_blkid * size < w->end && (b->zb_blkid + 1) * size > w->offset)))
			return true;
	return false;
}

#define LOG_BLOCK (128 << 10) /* of the log the largest block: what a sampled file's bytes stand for comes in such */

/* How many blocks of a log one is, of so many bytes, that stands for more: what it has room for goes into it. */
static double log_blocks(uint64_t bytes, double stands_for)
{
	double blocks = stands_for / LOG_BLOCK;

	return bytes < LOG_BLOCK ? MAX(ceil(blocks), 1.0) : MAX(blocks, 1.0);
}

typedef struct {
	cause_t cause;
	int dataset;
	standing_t stands;
} part_t;

/* One constituent's bytes. */
static part_t count_part(const zio_t *z, const disk_t *d, bool write, uint64_t bytes, const account_target_t *writing)
{
	const zbookmark_phys_t *b = &z->io_bookmark;
	int ds = account_dataset(d->pool, b->zb_objset);
	part_t p = {.cause = cause_of(z, d, ds), .dataset = ds};
	double n = (double)bytes, log = 1.0;
	weight_t each = {1.0, 1.0};

	/* What is cached is nearly all data: that it was sampled is not known of each. */
	if (d->class == VC_CACHE)
		each = (weight_t){weights_rate(), weights_rate()};
	else if (p.cause == CAUSE_ZIL)
		log = write ? weights_log(d->pool, b->zb_objset, b->zb_blkid,
				  z->io_logical != NULL ? z->io_logical->io_size : bytes)
			    : 1.0;
	else if (ds >= 0)
		each = weights_of((weights_block_t){d->pool, b->zb_objset, b->zb_object, b->zb_level, b->zb_blkid},
		    write ? z->io_txg : 0);
	p.stands.bytes = n * each.bytes * log;
	p.stands.ios = p.cause == CAUSE_ZIL ? log_blocks(bytes, p.stands.bytes) : each.blocks;
	count_io(&totals.cause[p.cause], write, p.stands.bytes, 0);
	if (ds >= 0) {
		totals.dataset_own[ds] += n;
		if (p.cause == CAUSE_ZIL && write)
			totals.dataset_zil[ds] += p.stands.bytes;
		else
			count_io(&totals.dataset[ds], write, p.stands.bytes, 0);
	}
	if (p.cause == CAUSE_DATA && !write && is_target(writing, d, z))
		totals.rmw_read_bytes += p.stands.bytes;
	if (p.cause == CAUSE_ZIL && write && d->class == VC_LOG)
		totals.slog_bytes += p.stands.bytes;
	return p;
}

/* So many I/Os, whose bytes are counted elsewhere. */
static void count_all(const standing_t *s, disk_t *d, bool write, double ios)
{
	count_io(&totals.cause[s->cause], write, 0, ios);
	count_io(&d->stands_for, write, 0, ios);
	if (s->dataset >= 0)
		count_io(&totals.dataset[s->dataset], write, 0, ios);
	if (s->cause == CAUSE_ZIL && write && d->class == VC_LOG)
		totals.slog_writes += ios;
}

const void *account_io(const void *zio, disk_t *d, const account_target_t *writing, standing_t *stands)
{
	zio_t *z = (zio_t *)(uintptr_t)zio;
	const zio_t *part = z;
	bool write = z->io_type == ZIO_TYPE_WRITE;
	uint64_t by_cause[CAUSE_COUNT] = {0}, left = z->io_size, best_part = 0;
	standing_t all = {0};
	int best_ds = -1;
	cause_t top = CAUSE_OTHER;
	zio_link_t *zl = NULL;
	zio_t *p;

	if (stands != NULL)
		*stands = (standing_t){.ios = 1.0, .bytes = (double)z->io_size, .cause = CAUSE_OTHER, .dataset = -1};
	if (ZIO_IS_FLUSH(z)) {
		d->count.flushes++;
		return z;
	}
	if (z->io_flags & ZIO_FLAG_DELEGATED) {
		while ((p = zio_walk_parents(z, &zl)) != NULL) {
			uint64_t n = MIN(p->io_size, left);
			part_t one = count_part(p, d, write, n, writing);

			by_cause[one.cause] += n;
			all.bytes += one.stands.bytes;
			all.ios += one.stands.ios * (double)n;
			left -= n;
			if (n > best_part) {
				best_part = n;
				best_ds = one.dataset;
				part = p;
			}
		}
		/* It stands for as many as its parts do, by their bytes. */
		all.ios = left < z->io_size ? all.ios / (double)(z->io_size - left) : 1.0;
		/* Gaps that were read over. */
		count_io(&totals.cause[CAUSE_OTHER], write, (double)left * all.ios, 0);
		all.bytes += (double)left * all.ios;
		by_cause[CAUSE_OTHER] += left;
	} else {
		part_t one = count_part(z, d, write, left, writing);

		by_cause[one.cause] += left;
		all = one.stands;
		best_ds = one.dataset;
	}
	for (int c = 0; c < CAUSE_COUNT; c++)
		if (by_cause[c] > by_cause[top])
			top = (cause_t)c;
	all.cause = top;
	all.dataset = top != CAUSE_ZIL && top != CAUSE_OTHER ? best_ds : -1;
	if (write) {
		d->count.writes++;
		d->count.write_bytes += z->io_size;
	} else {
		d->count.reads++;
		d->count.read_bytes += z->io_size;
	}
	count_io(&d->stands_for, write, all.bytes, 0);
	count_all(&all, d, write, all.ios);
	if (top == CAUSE_DATA && !write && is_target(writing, d, part))
		totals.rmw_reads += all.ios;
	if (d->class == VC_CACHE && write)
		totals.cache_write_bytes += all.bytes;
	if (stands != NULL)
		*stands = all;
	return part;
}

void account_fewer(const standing_t *stands, disk_t *d, double fewer)
{
	count_all(stands, d, true, -fewer);
}

double account_share(int ds)
{
	const io_sum_t *c = &totals.dataset[ds];
	double all = c->read_bytes + c->write_bytes + totals.dataset_zil[ds];

	return totals.dataset_own[ds] > 0 ? all / totals.dataset_own[ds] : 1.0;
}
