/*
 * Disks in memory (or in unlinked sparse files) that take the place of OpenZFS's file and disk vdevs.  Every physical
 * I/O passes here once: it is counted by disk, cause and dataset, and its cost is asked of the device model.
 */
#ifndef ZTUNE_MEMVDEV_H
#define ZTUNE_MEMVDEV_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "model.h"
#include "spec.h"

typedef enum { CAUSE_DATA, CAUSE_METADATA, CAUSE_ZIL, CAUSE_OTHER, CAUSE_COUNT } cause_t;

typedef struct {
	uint64_t reads, read_bytes, writes, write_bytes, flushes;
} io_count_t;

typedef struct {
	char path[300];
	char name[64];		/* "data-0/1" */
	int pool;
	vclass_t class;
	const model_profile_t *profile;
	uint64_t size;
	io_count_t count;	/* since memvdev_reset() */
	io_count_t stat_base;	/* OpenZFS's own counters at that time */
	model_device_t model;
	uint8_t *mem;
	int fd;
	void *vdev;		/* vdev_t while open */
} memdisk_t;

typedef struct {
	io_count_t cause[CAUSE_COUNT];
	io_count_t *dataset;	/* [ndatasets], without the ZIL */
	uint64_t *dataset_zil;	/* bytes written to the log */
	uint64_t rmw_reads, rmw_read_bytes;
	uint64_t slog_writes, slog_bytes;
	uint64_t cache_write_bytes;
} io_totals_t;

int memvdev_create(const spec_t *spec, err_t *err);
memdisk_t *memvdev_disks(size_t *n);
const memdisk_t *memvdev_disk(int pool, vclass_t class, int entry, int disk);
io_totals_t *memvdev_totals(void);

/* The dataset's objset number, and the object that holds its names (not file data). */
void memvdev_register_dataset(int dataset, int pool, uint64_t objset, uint64_t dirobj);

/* I/Os begun so far, and those not done yet. */
uint64_t memvdev_begun(void);
int memvdev_in_flight(void);

/* Zeroes counters and the device models; the model runs only from here on. */
void memvdev_reset(void);

/* --- what the replay tells, so that I/O can be put to the operation that caused it --- */

typedef enum { DO_NOTHING, DO_READ, DO_WRITE, DO_TXG } doing_t;

/* Trace time that arriving I/O gets. */
void memvdev_time(int64_t trace_ns);

/* The dispatcher begins an operation; object is its file's, 0 if none. */
void memvdev_begin(doing_t what, int64_t trace_ns, int pool, uint64_t objset, uint64_t object);
/* Ends it; returns the modelled end of the reads it waited for (the start time if none). */
int64_t memvdev_end(void);

/* A commit begins; returns the modelled end of all log I/O that came meanwhile (the start time if none). */
void memvdev_commit_begin(int64_t trace_ns);
int64_t memvdev_commit_end(void);

/* When a block that was prefetched arrives in the model, 0 if it is not on its way. */
int64_t memvdev_prefetch_finish(int pool, uint64_t objset, uint64_t object, uint64_t blkid);

/* Modelled end of a pool's asynchronous I/O. */
int64_t memvdev_async_until(int pool);

/* Most I/Os of a class in flight, for limits that the library keeps to itself; 0 = none. */
void memvdev_limit(model_class_t class, int limit);

#endif
