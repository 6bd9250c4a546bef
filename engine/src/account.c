#include "account.h"

#include "processor.h"

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
	if (known == NULL || totals.dataset == NULL || totals.dataset_zil == NULL)
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

	for (size_t i = 0; i < n; i++)
		memset(&d[i].count, 0, sizeof(d[i].count));
	memset(totals.cause, 0, sizeof(totals.cause));
	memset(totals.dataset, 0, (size_t)nknown * sizeof(*totals.dataset));
	memset(totals.dataset_zil, 0, (size_t)nknown * sizeof(*totals.dataset_zil));
	totals.rmw_reads = totals.rmw_read_bytes = totals.slog_writes = totals.slog_bytes = 0;
	totals.cache_write_bytes = 0;
	processor_reset();
}

static void count_io(io_count_t *c, bool write, uint64_t bytes, bool op)
{
	if (write) {
		c->writes += op;
		c->write_bytes += bytes;
	} else {
		c->reads += op;
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

/* One constituent's bytes; returns its cause. */
static cause_t count_part(const zio_t *z, const disk_t *d, bool write, uint64_t bytes, const account_target_t *writing,
    int *dataset)
{
	int ds = account_dataset(d->pool, z->io_bookmark.zb_objset);
	cause_t c = cause_of(z, d, ds);

	count_io(&totals.cause[c], write, bytes, false);
	if (ds >= 0) {
		if (c == CAUSE_ZIL && write)
			totals.dataset_zil[ds] += bytes;
		else
			count_io(&totals.dataset[ds], write, bytes, false);
	}
	if (c == CAUSE_DATA && !write && is_target(writing, d, z))
		totals.rmw_read_bytes += bytes;
	if (c == CAUSE_ZIL && write && d->class == VC_LOG)
		totals.slog_bytes += bytes;
	*dataset = ds;
	return c;
}

const void *account_io(const void *zio, disk_t *d, const account_target_t *writing)
{
	zio_t *z = (zio_t *)(uintptr_t)zio;
	const zio_t *part = z;
	bool write = z->io_type == ZIO_TYPE_WRITE;
	uint64_t by_cause[CAUSE_COUNT] = {0}, left = z->io_size, best_part = 0;
	int ds = -1, best_ds = -1;
	cause_t top = CAUSE_OTHER;
	zio_link_t *zl = NULL;
	zio_t *p;

	if (ZIO_IS_FLUSH(z)) {
		d->count.flushes++;
		return z;
	}
	if (z->io_flags & ZIO_FLAG_DELEGATED) {
		while ((p = zio_walk_parents(z, &zl)) != NULL) {
			uint64_t n = MIN(p->io_size, left);

			by_cause[count_part(p, d, write, n, writing, &ds)] += n;
			left -= n;
			if (n > best_part) {
				best_part = n;
				best_ds = ds;
				part = p;
			}
		}
		/* Gaps that were read over. */
		count_io(&totals.cause[CAUSE_OTHER], write, left, false);
		by_cause[CAUSE_OTHER] += left;
	} else {
		by_cause[count_part(z, d, write, left, writing, &ds)] += left;
		best_ds = ds;
	}
	for (int c = 0; c < CAUSE_COUNT; c++)
		if (by_cause[c] > by_cause[top])
			top = (cause_t)c;
	count_io(&totals.cause[top], write, 0, true);
	count_io(&d->count, write, z->io_size, true);
	if (best_ds >= 0 && top != CAUSE_ZIL && top != CAUSE_OTHER)
		count_io(&totals.dataset[best_ds], write, 0, true);
	if (top == CAUSE_DATA && !write && is_target(writing, d, part))
		totals.rmw_reads++;
	if (top == CAUSE_ZIL && write && d->class == VC_LOG)
		totals.slog_writes++;
	if (d->class == VC_CACHE && write)
		totals.cache_write_bytes += z->io_size;
	return part;
}
