/* Every physical I/O by disk, cause and dataset.  The caller holds a lock of its own around counting and reading. */
#ifndef ZTUNE_ACCOUNT_H
#define ZTUNE_ACCOUNT_H

#include "disks.h"

typedef enum { CAUSE_DATA, CAUSE_METADATA, CAUSE_ZIL, CAUSE_OTHER, CAUSE_COUNT } cause_t;

extern const char *const cause_names[CAUSE_COUNT];

typedef struct {
	io_sum_t cause[CAUSE_COUNT];
	io_sum_t *dataset;   /* [ndatasets], without the ZIL */
	double *dataset_zil; /* bytes written to the log */
	double *dataset_own; /* bytes of both that were read and written here, whatever they stand for */
	double rmw_reads, rmw_read_bytes;
	double slog_writes, slog_bytes;
	double cache_write_bytes;
} io_totals_t;

/* What an I/O stands for: so many, of so many bytes in all; and under what they are counted. */
typedef struct {
	double ios, bytes;
	cause_t cause;
	int dataset; /* -1: none, or a log's */
} standing_t;

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
 * (zio_t) with most of its bytes; stands, which may be NULL, is what it stands for (weights.h).
 */
const void *account_io(const void *zio, disk_t *disk, const account_target_t *writing, standing_t *stands);

/* A write that has been counted stands for fewer, of the same bytes. */
void account_fewer(const standing_t *stands, disk_t *disk, double fewer);

/* By how much what was read and written for a dataset stands for more than itself. */
double account_share(int dataset);

#endif
