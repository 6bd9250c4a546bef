/*
 * Disks in files that take the place of OpenZFS's file and disk vdevs, in real time: queue, head, channels and volatile
 * cache are those of the lab's shaped disk (disk/src/device.c).  What the cache holds lives in this process alone, so
 * that the end of the process without an orderly end is a power cut.
 */
#ifndef ZTUNE_LIVEDISK_H
#define ZTUNE_LIVEDISK_H

#include "account.h"
#include "spec.h"

#include <jansson.h>
#include <stdbool.h>

typedef enum { CACHE_VOLATILE, CACHE_NONE, CACHE_LAZY } cache_mode_t;

/* Opens or makes the disks' files in a directory.  instant: no modelled time at all; the cache is as volatile. */
int livedisk_open(const spec_t *spec, const char *store, bool instant, cache_mode_t cache, err_t *err);

/* Writes what the caches hold; no pool may be in use.  An errno or 0. */
int livedisk_settle(void);

/* Counters of all disks, and of causes and datasets, as JSON objects added to o; since livedisk_reset(). */
void livedisk_stats(const spec_t *spec, json_t *o);
void livedisk_reset(void);

#endif
