/* What the parts of a replay share. */
#ifndef ZTUNE_REPLAY_IMPL_H
#define ZTUNE_REPLAY_IMPL_H

#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clockwork.h"
#include "content.h"
#include "memvdev.h"
#include "order.h"
#include "sampled.h"
#include "touched.h"
#include "vtime.h"
#include "waits.h"
#include "weights.h"

#include "zfs.h"

#define REPLAY_PIECE (32ULL << 20) /* bytes: one call is done in pieces of at most this, as OpenZFS does it */
#define REPLAY_SHADOW (1ULL << 36) /* verify: address space per file */

/* Of a part of a file, how many records there are, and how many of them are loaded. */
typedef struct {
	uint64_t loaded, records;
} part_t;

typedef struct {
	fl_file_t *f; /* NULL: does not exist now */
	bool known;   /* the layout has this file */
	bool unlinked, making;
	bool elsewhere; /* it is there, and nothing of it is in the sample */
	int dataset, pool;
	uint32_t id, names;
	int log;          /* in R.logs, -1: of none */
	vqueue_t waiting; /* calls that wait for others on it */
	bool ring_writes; /* a write that was handed to a ring is on */
	vqueue_t ring_waiting;
	uint64_t start_size;
	const content_t *content; /* what is written */
	const content_t *before,
	    *untouched; /* what records hold at the start: those that the trace touches, and others */
	uint8_t *shadow;
	bool is_read, is_written; /* by the trace */
	uint64_t read_first, read_end;
	double stands_for; /* of a sampled file: how many of its calls each of them does */
	uint64_t whole;    /* bytes of the file of which this is the sample, or its own */
	const spec_file_t *spec;
	weights_range_t *certain;  /* its records that stand for themselves */
	double written, stood_for; /* bytes that calls wrote, and what these stand for */
	touched_t touched;         /* where not all is loaded, or not all with one content; then also what was freed */
	touched_t windows;         /* its blocks of pointers that were loaded */
	part_t *part;              /* where not all is loaded */
	size_t nparts;
	/* Bytes on disk that this file stands for, and its own, when the measure began. */
	double space, missing;               /* missing: of space, what was not loaded */
	double logical, compressed, pointer; /* pointer: of a record's, in the block above */
	uint64_t used, filled;               /* filled: bytes of its blocks before compression */
} rfile_t;

/* The lock of a log that threads share, and commits without a sync of their own in the trace. */
typedef struct {
	double share, owed; /* of waits for another's sync: how many are commits */
	bool held;
	uint32_t leaders;        /* who wait for the lock with a sync of the trace */
	uint64_t asked, covered; /* commits that others are to sync, and how many they have */
	int32_t file;            /* where it was written last, -1: nowhere */
	int64_t end, small;      /* small: bytes that a small commit writes */
	uint32_t *writes; /* calls that write it, in the order of the trace: what is written, whoever comes when */
	size_t nwrites, came, written;
	uint64_t covers; /* commits that its holder has written */
	vqueue_t waiting;
} commits_t;

/* A call that its thread does not wait for before the next. */
typedef struct {
	int64_t recorded_done;
	int64_t done; /* trace time, NOT_YET */
} pending_t;
#define NOT_YET INT64_MIN

typedef struct {
	uint32_t next; /* its next call, ORDER_NONE if it has no more */
	wait_sum_t wait;
	int64_t async_until; /* up to when its waits for asynchronous calls are counted */
	int64_t began;       /* when its last call began */
	int64_t recorded_began;
	int64_t done;              /* when the last of those that had to be done before its next call was */
	int64_t recorded_done;     /* … when recorded */
	commits_t *holds;          /* it has written this log and is to sync it */
	bool has_turn;             /* turns.h */
	uint64_t asked[SPEC_LOGS]; /* by log: which of its commits its own is that is under way, 0: none */
	bool commits;              /* closed: it is one of those whose commits are the job's */
	bool operates;             /* closed: each of its operations has a sync of its own */
	bool has_committed;        /* … and at committed, trace time, it had its last */
	int64_t committed;
	bool background; /* closed: it writes what they have made dirty */
	int64_t at;      /* trace time of the call that it has come to */
	pending_t *pending;
	size_t npending, pending_room;
	vqueue_t waiting;
} thread_t;

/* The replay that this process does. */
typedef struct {
	const spec_t *spec;
	const ops_t *ops;
	result_t *r;
	pace_t pace;
	fl_volume_t **vols;
	content_t *content;
	rfile_t *files;
	size_t nfiles;
	thread_t *threads;
	uint8_t *buf; /* of the load */
	order_t order;
	double busy;    /* closed: how much of what threads that share a log do between calls is the processors' work */
	int64_t *ended; /* by sync, the trace time at which it was done */
	bool *begun;    /* by sync of such a log */
	int64_t zero;   /* virtual time at which the trace began */
	uint64_t done, in_call;
	uint32_t threads_left;
	int64_t end;      /* trace time at which the last call was done */
	int64_t recorded; /* … when recorded */
	bool by_commits;
	uint64_t most, paced; /* of what tells the pace: how many are most, and how many have ended */
	int rc;
	vqueue_t waiting;          /* who waits for the threads */
	double rows, rows_owed;    /* closed: of waits for another's sync that are no commits, how many are for a row */
	commits_t logs[SPEC_LOGS]; /* whose commits go together */
	/* Closed: how far those have come whose commits are the job's, and who waits for that. */
	struct {
		bool known; /* by the logs that are told */
		uint64_t threads;
		int64_t sum;   /* of their trace times */
		int64_t least; /* that somebody waits for */
		vqueue_t waiting;
	} job;
	/* per pool */
	uint64_t group[16]; /* bytes loaded in the open transaction group */
	uint64_t txg_start[16];
	uint64_t commits_before; /* the measure */
	/* Bytes of files' blocks: what was loaded, as datasets and as pools count it; when the measure began, and for all. */
	double used, allocated;
	spread_t spread[16]; /* by pool, where on the whole disks lies what was loaded */
	bool mixed;          /* files' parts have records that are loaded anywhere, else at their beginning */
	uint64_t whole;      /* bytes in the ARC whatever was sampled */
	err_t *err;
} replay_t;
extern replay_t R;

/* The trace's time, ns. */
int64_t replay_now(void);
/* Commits that have reached the log since the measure began. */
uint64_t replay_commits(void);
/* Says how far a phase is, if that is wanted: now, or a few times a second. */
void replay_tell(const char *phase, double done, bool force);
/* What could not be done with a file of a pool, as the replay's error; EXIT_FAILED. */
int replay_failed(int error, const char *what, const rfile_t *f);
/* Waits until OpenZFS has nothing to do and no I/O is under way. */
void replay_quiesce(void);
/* … after its own tasks have ended. */
void replay_settle(void);

/* load.c: every file, and the pool's past. */
#define LOAD_FANOUT 1024          /* records below an indirect block */
#define LOAD_POINTERS (128 << 10) /* bytes of one */
int load_all(void);
/* Has the files as they were when the trace began: loaded here, or by who made the image. */
int load_begin(bool imaged);

/* stands.c: for how many bytes each of a part of a file stands. */
double stands_for(const rfile_t *f, uint64_t off, uint64_t len);
double stands_for_call(const rfile_t *f, const op_t *o);
/* A file has come to be: how many each of its blocks stands for. */
void stands_set(rfile_t *f);
/* What fl_logged calls. */
void stands_logged(fl_file_t *file, uint64_t off, uint64_t bytes);
/* As the caches begin to fill: what is in the ARC already, and what will be of files that are read whole. */
void stands_note_whole(void);
/* As the measure begins. */
void stands_note_space(void);
/* By pool, where on the whole disks lies what is on these; after stands_note_space(). */
const spread_t *stands_spread(void);
/* Has the result say the space that all files take, as much as they stand for. */
void stands_space(void);
/* A range of a file was freed. */
void stands_freed(rfile_t *f, uint64_t off, uint64_t len);

/* files.c: what calls do to files. */
extern const fl_new_t files_new;
void files_name(const rfile_t *f, char *name, size_t len);
rfile_t *files_known(int32_t id);
int files_do(const op_t *o);
/* Keeps what a call took, and of which dataset, if that is asked for. */
void files_note(samples_t *s, waits_t *dataset, int64_t ns, double calls);
int files_read(rfile_t *f, uint64_t off, uint64_t left, uint64_t *total);
/* What a call that warms the caches read or wrote. */
int files_warm(const op_t *o, rfile_t *f, uint64_t *total);
/* Nobody has it open any more. */
void files_destroy(rfile_t *f);
/* verify: bytes of a file are written; NULL: as zeros. */
void files_shadow(rfile_t *f, uint64_t off, uint64_t len, const uint8_t *buf);
/* A write of the pool's past. */
int files_age(const spec_file_t *f, uint64_t off, uint64_t len);
/*
 * Before the measure.  A database in use has its intent logs; without them each first commit would wait for the transaction
 * group that makes one.
 */
int files_begin_logs(void);
/* Before an operation: how large the ARC is, and how large it may be where a part of it stands for the whole. */
void files_note_arc(void);

/* threads.c: brings into the caches what the trace begins with; done: how many of its operations that are. */
int threads_warm(uint64_t *done);
/* Lets the trace's threads run, each from its first call on, until all are done. */
int threads_run(uint64_t first);
/* The most seconds that one of them waited for its calls, and those that these stand for. */
double threads_most_waited(void);

#endif
