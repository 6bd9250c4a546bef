/* Pools and datasets: made from the spec in this process, never the host's. */
#ifndef ZTUNE_POOL_H
#define ZTUNE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "filelayer.h"
#include "spec.h"

typedef struct {
	uint64_t hits, misses, size, c_max;
	uint64_t demand_data_hits, demand_data_misses, demand_metadata_hits, demand_metadata_misses;
	uint64_t prefetch_data_hits, prefetch_data_misses, prefetch_metadata_hits, prefetch_metadata_misses;
	uint64_t l2_hits, l2_misses, l2_size, l2_write_bytes;
} arc_count_t;

typedef struct {
	uint64_t files;   /* bytes of the files, by their sizes: whoever knows the files adds them up */
	uint64_t logical; /* of all records, the last one's padding included, and of metadata */
	uint64_t allocated;
	double ratio; /* logical over compressed */
} space_t;

/* Settings of the POSIX layer, the txg clock and the device model that OpenZFS's library does not apply itself. */
typedef struct {
	int64_t txg_timeout_s;
	uint64_t dirty_max; /* bytes */
	int64_t dirty_sync_percent;
	int64_t delay_min_percent;
	int64_t delay_scale;
	bool no_prefetch; /* and the library's switch is a constant */
} pace_t;

/* What a layout asks for that this library can't do, but that does not make its numbers wrong. */
typedef void warn_fn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Memory of the modelled host, bytes. */
uint64_t pool_host_memory(const spec_t *spec);

/* Starts OpenZFS in this process; nothing of the host is opened. */
int pool_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err);
/* Are the datasets' properties values that OpenZFS knows?  After pool_start(). */
int pool_check_properties(const spec_t *spec, err_t *err);
/* Lets OpenZFS itself end transaction groups and slow writers down, by its clock. */
void pool_live(const pace_t *pace);
/* A pool's disks: those that hold files, and its log's and its caches', which can come later. */
enum { POOL_HOLDS = 1, POOL_HELPS = 2 };

/* Makes the pools, of those disks, and their datasets. */
int pool_create_all(const spec_t *spec, const pace_t *pace, int parts, err_t *err);
int pool_open_volumes(const spec_t *spec, fl_volume_t **vols, err_t *err);
/* A pool's configuration, as a file; and the pool's import by it, as after a crash if it was not exported. */
int pool_save_config(int pool, const char *path, err_t *err);
int pool_import(const spec_t *spec, int pool, const char *path, err_t *err);
int pool_export(const spec_t *spec, int pool, err_t *err);
/*
 * Exports a pool of POOL_HOLDS, with what an import needs to know of it; no volume of it may be open.  And imports it,
 * adds POOL_HELPS and sets its datasets' properties.
 */
int pool_pack(const spec_t *spec, int pool, char **packed, size_t *len, err_t *err);
int pool_unpack(const spec_t *spec, const pace_t *pace, int pool, char *packed, size_t len, err_t *err);
/* The same by the file of pool_save_config(), which has to be written anew after it. */
int pool_take_over(const spec_t *spec, const pace_t *pace, int pool, const char *path, err_t *err);

/* Writes the open transaction group and waits. */
void pool_sync(int pool);
uint64_t pool_dirty_bytes(int pool);
uint64_t pool_last_txg(int pool);
/* Ends the open transaction group and goes on; it is written meanwhile. */
void pool_next_txg(int pool);
/* Ends what OpenZFS does in the background, for good. */
void pool_end_tasks(int pool);
/* Writes what is left. */
void pool_settle(int pool);

/* Limits for the load: what ends its transaction groups is pool_next_txg() alone. */
void pool_loading(uint64_t arc_max);
/* Bytes of files that the load puts into one transaction group. */
uint64_t pool_load_group(uint64_t arc_max);

void pool_stat_base(void);
void pool_vdev_stat(void *vdev, uint64_t *reads, uint64_t *read_bytes, uint64_t *writes, uint64_t *write_bytes);
void pool_arc(arc_count_t *c);
/* The ARC's size now, and what of it could be evicted, bytes. */
void pool_arc_size(uint64_t *size, uint64_t *evictable);
uint64_t pool_over_max(void);

/* What OpenZFS did about too much dirty data, times. */
typedef struct {
	uint64_t delays, over_max;
} throttle_t;
void pool_throttle(throttle_t *t);
uint64_t pool_allocated(int pool);
uint64_t pool_free(int pool);

/* As `zpool list` has them: bytes, and percent.  What was freed counts as free. */
typedef struct {
	uint64_t size, allocated;
	int fragmentation; /* of free space; -1 where OpenZFS does not know */
} pool_filled_t;

void pool_filled(int pool, pool_filled_t *state);
/* 0 or an errno value. */
int pool_snapshot(const char *dataset, const char *name);
/* Of this snapshot, as POOL/ztune-clone-NUMBER-INDEX. */
int pool_clone(const char *dataset, const char *snapshot, int number, size_t index);
int pool_dataset_space(const char *name, space_t *s);

#endif
