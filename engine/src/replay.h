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

/* Latencies, kept one by one: what each is, and how many calls it stands for. */
typedef struct {
	float ms, stands_for;
} latency_t;

typedef struct {
	latency_t *one;
	uint64_t n, room;
	double sum, calls;
} samples_t;

/* The same of one dataset: how many, and their sum. */
typedef struct {
	double calls, sum_ms;
} waits_t;

typedef struct {
	waits_t sync, read, write;
} dataset_waits_t;

#define RESULT_PARTS 100

typedef struct {
	double load_wall_s, load_cpu_s;
	uint64_t load_bytes, warm_bytes;
	double wall_s, cpu_s;
	uint64_t txgs;
	double reads, read_bytes, writes, write_bytes; /* what was asked for, and what that stands for */
	uint64_t syncs;
	uint64_t missed;  /* records that were read although they had not been loaded */
	uint64_t skipped; /* operations on files that do not exist (any more) */
	throttle_t throttle;
	arc_count_t arc;          /* during the measure; size and limit at its end */
	uint64_t arc_most;        /* bytes: the most that the ARC held before an operation */
	uint64_t arc_most_pinned; /* of that, what could not be evicted */
	uint64_t zil_commits, late_commits,
	    joined_commits; /* late: closed, commits that had been covered by others' syncs */
	fl_itx_t itx;
	space_t *dataset_space;         /* [ndatasets] */
	dataset_waits_t *dataset_waits; /* [ndatasets] */
	waits_t *role_syncs;            /* [ncontent]: of files of one role */
	uint64_t allocated;             /* bytes on all pools, what fills an aged one left out */
	age_result_t age;
	double trace_s, elapsed_s, thread_wait_s_max, lag_s;
	double most_s, most_recorded_s; /* when most of what tells the job's pace had ended: here, when recorded */
	uint64_t most_commits;          /* of zil_commits those until then */
	/* Commits, or calls where there are next to none, that had ended by the end of each part of the trace's length. */
	uint64_t ended[RESULT_PARTS], recorded[RESULT_PARTS];
	samples_t sync_lat, read_lat, write_lat;
	samples_t operations; /* closed: from one commit of a client to its next */
} result_t;

extern bool replay_progress;

/* pool_start(), with the replay's clock and disks set as it asks. */
int replay_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err);

/*
 * Runs load and measure.  Returns an exit code (0, EXIT_FAILED, EXIT_INPUT) with one sentence.  With an image (NULL:
 * none) the load is that of the replay_load() that made it.
 */
int replay_run(const spec_t *spec, const ops_t *ops, const char *image, result_t *r, warn_fn *warn, err_t *err);

/* Runs the load alone, the pool's age included, and keeps what it leaves behind. */
int replay_load(const spec_t *spec, const ops_t *ops, const char *image, warn_fn *warn, err_t *err);

/* With "verify": reads every file whole and compares; 0 or EXIT_FAILED.  Its I/O must not be reported. */
int replay_verify(void);

#endif
