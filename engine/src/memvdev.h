/*
 * Disks in memory (or in unlinked sparse files) that take the place of OpenZFS's file and disk vdevs.  Every physical
 * I/O passes here once: it is counted by disk, cause and dataset, and its cost is asked of the device model.
 */
#ifndef ZTUNE_MEMVDEV_H
#define ZTUNE_MEMVDEV_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "model.h"

int memvdev_create(const spec_t *spec, err_t *err);

/* The least time in which the disk could have done all since memvdev_reset(), seconds. */
double memvdev_busy_s(const disk_t *disk);

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
