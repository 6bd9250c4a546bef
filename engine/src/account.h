/* Every physical I/O by disk, cause and dataset.  The caller holds a lock of its own around counting and reading. */
#ifndef ZTUNE_ACCOUNT_H
#define ZTUNE_ACCOUNT_H

#include "disks.h"

typedef enum { CAUSE_DATA, CAUSE_METADATA, CAUSE_ZIL, CAUSE_OTHER, CAUSE_COUNT } cause_t;

extern const char *const cause_names[CAUSE_COUNT];

typedef struct {
	io_count_t cause[CAUSE_COUNT];
	io_count_t *dataset;   /* [ndatasets], without the ZIL */
	uint64_t *dataset_zil; /* bytes written to the log */
	uint64_t rmw_reads, rmw_read_bytes;
	uint64_t slog_writes, slog_bytes;
	uint64_t cache_write_bytes;
} io_totals_t;

void account_create(size_t ndatasets);
io_totals_t *account_totals(void);

/* The dataset's objset number; what is read and written for it is known by that. */
void account_register(int dataset, int pool, uint64_t objset);

/* Which dataset that is, -1: none of the layout's. */
int account_dataset(int pool, uint64_t objset);

/* Zeroes the counters, those of the disks too. */
void account_reset(void);

/* Bytes of an object that are being written: reads of the blocks that hold them are reads for the sake of writing. */
typedef struct account_target {
	struct account_target *next;
	int pool;
	uint64_t objset, object, offset, end;
} account_target_t;

/*
 * Counts an I/O (zio_t), a flush or an aggregated one by its parts.  writing may be NULL, or several.  Returns the part
 * (zio_t) with most of its bytes.
 */
const void *account_io(const void *zio, disk_t *disk, const account_target_t *writing);

#endif
