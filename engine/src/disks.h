/* The disks of a layout, whatever stands behind them. */
#ifndef ZTUNE_DISKS_H
#define ZTUNE_DISKS_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "spec.h"

typedef struct {
	uint64_t reads, read_bytes, writes, write_bytes, flushes;
} io_count_t;

/* What these stand for: the same, unless a part of the data was sampled. */
typedef struct {
	double reads, read_bytes, writes, write_bytes;
} io_sum_t;

typedef struct {
	char path[300]; /* what OpenZFS knows it by; no file */
	char name[64];  /* "data-0/1" */
	int pool;
	vclass_t class;
	const model_profile_t *profile;
	uint64_t size, span;  /* of the pool's part; of the disk, for the model */
	io_count_t count;     /* since account_reset() */
	io_sum_t stands_for;  /* … and what that stands for */
	io_count_t stat_base; /* OpenZFS's own counters at that time */
	void *vdev;           /* vdev_t while open */
	void *backing;        /* of the vdev operations */
} disk_t;

int disks_create(const spec_t *spec, err_t *err);
disk_t *disks_all(size_t *n);
disk_t *disks_at(const char *path); /* NULL if there is none */
const disk_t *disks_find(int pool, vclass_t class, int entry, int disk);

#endif
