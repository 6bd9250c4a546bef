/*
 * Disks in memory (or in unlinked sparse files) that take the place of OpenZFS's file and disk vdevs.  Every physical
 * I/O passes here once: it is counted by disk, cause and dataset, and is done when the modelled disk (disk/src/device.h)
 * is done with it, in virtual time.
 */
#ifndef ZTUNE_MEMVDEV_H
#define ZTUNE_MEMVDEV_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "spread.h"
#include "store.h"

int memvdev_create(const spec_t *spec, err_t *err);
store_t *memvdev_store(const disk_t *disk);

/* Seconds since memvdev_begin() in which the disk worked. */
double memvdev_busy_s(const disk_t *disk);

/* I/Os begun so far, and those not done yet. */
uint64_t memvdev_begun(void);
int memvdev_in_flight(void);

/*
 * Without this the disks take no time.  Zeroes counters.  spread: by pool, where on the whole disks lies what these hold
 * now; what is written behind it lies behind it there, too.  It is used until memvdev_end(); NULL: as it lies here.
 */
void memvdev_begin(const spread_t *spread);
/* From here on they take none again; no I/O is under way. */
void memvdev_end(void);
/* Lets the disks do what is left of the I/O that sampled I/O stands for; none of OpenZFS's is under way. */
void memvdev_drain(void);

/* A write to this range of a file begins and ends: what is read of it meanwhile is read for that. */
void memvdev_writing(account_target_t *target);
void memvdev_written(account_target_t *target);

#endif
