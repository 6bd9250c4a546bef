/* A trace's calls, done to files by threads as they were recorded, in virtual time. */
#ifndef ZTUNE_REPLAY_H
#define ZTUNE_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "age.h"
#include "err.h"
#include "ops.h"
#include "pool.h"
#include "spec.h"

/* Latencies in ms, kept one by one. */
typedef struct {
	float *ms;
	uint64_t n, room;
	double sum;
} samples_t;

#define RESULT_PARTS 100

typedef struct {
	double load_wall_s, load_cpu_s;
	uint64_t load_bytes, warm_bytes;
	double wall_s, cpu_s;
	uint64_t txgs;
	uint64_t reads, read_bytes, writes, write_bytes, syncs;
	uint64_t skipped; /* operations on files that do not exist (any more) */
	throttle_t throttle;
	arc_count_t arc;          /* during the measure; size and limit at its end */
	uint64_t arc_most;        /* bytes: the most that the ARC held before an operation */
	uint64_t arc_most_pinned; /* of that, what could not be evicted */
	uint64_t zil_commits;
	fl_itx_t itx;
	space_t *dataset_space; /* [ndatasets] */
	uint64_t allocated;     /* bytes on all pools, what fills an aged one left out */
	age_result_t age;
	double trace_s, elapsed_s, thread_wait_s_max, lag_s;
	double most_s, most_recorded_s; /* when most of what tells the job's pace had ended: here, when recorded */
	/* Commits, or calls where there are next to none, that had ended by the end of each part of the trace's length. */
	uint64_t ended[RESULT_PARTS], recorded[RESULT_PARTS];
	samples_t sync_lat, read_lat, write_lat;
} result_t;

extern bool replay_progress;

/* pool_start(), with the replay's clock and disks set as it asks. */
int replay_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err);

/* Runs load and measure.  Returns an exit code (0, EXIT_FAILED, EXIT_INPUT) with one sentence. */
int replay_run(const spec_t *spec, const ops_t *ops, result_t *r, warn_fn *warn, err_t *err);

/* With "verify": reads every file whole and compares; 0 or EXIT_FAILED.  Its I/O must not be reported. */
int replay_verify(void);

#endif
