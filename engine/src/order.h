/*
 * Which of a trace's calls wait for which of other threads.  A thread's own calls follow each other; beyond that, what
 * concerns a file follows the trace: who gives, takes or changes its name or its size waits for all that came before in
 * the trace, and all that comes behind waits for it; and a sync waits for the writes before it, which it is there to
 * cover.
 *
 * Threads that sync the same file share a log, and have a lock for it: a sync of theirs, and a write to it, waits for
 * those syncs that had ended, when recorded, before it began.  And where the sync of one ended while another did nothing,
 * that one is taken to have waited for it, as those do whose commit somebody else writes, for as long as a sync was on;
 * where the trace tells who waited, it is as it says.
 *
 * Not so where calls come to a log as they come: nothing of the above holds for its syncs, whose caller has a lock of its
 * own for them.
 *
 * All waits are for earlier calls of the trace, so none is in a circle.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_ORDER_H
#define ZTUNE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops.h"

#define ORDER_NONE UINT32_MAX

enum {
	ORDER_STRICT = 1, /* each file's calls follow each other */
	ORDER_WAITED = 2, /* find how long threads waited */
	ORDER_TOLD = 4    /* the trace tells whom they waited for */
};

typedef struct {
	uint32_t *of_file; /* calls by file, in the order of the trace */
	struct order_file {
		uint32_t *calls;
		uint32_t n;
		uint32_t open;    /* place of the first call that is not done */
		uint32_t write;   /* … that is neither done, nor a read, nor a sync */
		uint32_t barrier; /* … that is not done and that all behind wait for */
		uint32_t left;    /* calls that are not done */
		uint32_t sync;    /* place of the first sync that is not done */
		bool shared;      /* several threads sync it */
		bool arrives;     /* calls come to it as they come, not as in the trace */
	} *file;
	size_t nfiles;
	uint32_t *next_of_thread; /* by call: the next of the same thread, or ORDER_NONE */
	uint32_t *after;          /* by call: the sync that its thread waited for before it, or ORDER_NONE */
	int64_t think;            /* what threads that share a log did between their calls, but for such waits, ns */
	int64_t *waited;          /* by call: for how long its thread had waited for such syncs, ns; NULL: not found */
	int64_t *before;          /* by call: what its thread did before the sync began that it waited for, ns, or -1 */
	uint8_t *done;            /* a bit for each call */
	uint8_t *grows;  /* … set for a truncation that cuts nothing off, and keeps nobody waiting; NULL: none is */
	bool *shares;    /* by thread: it syncs a file that others sync, too */
	uint16_t *group; /* by thread: those that sync a file together have one number, two jobs have two */
	size_t ngroups;
	uint64_t *syncer; /* sorted: file and thread */
	size_t nsyncers;
	const ops_t *ops;
	bool strict;
	bool told; /* the trace tells whom threads waited for */
} order_t;

/* Of the calls from first on.  Files are numbered below nfiles; how: ORDER_... */
void order_make(order_t *o, const ops_t *ops, uint64_t first, size_t nfiles, int how);

/* A truncation cuts nothing off: others' calls on the file need not wait for it, nor it for them. */
void order_grows(order_t *o, uint32_t call);
bool order_only_grows(const order_t *o, uint64_t call);

/* Calls come to a file as they come: a sync of it waits for no other thread's writes or syncs. */
void order_by_arrival(order_t *o, int32_t file);

void order_free(order_t *o);

/* The file for whose sake a call has to wait, or -1 if it can begin. */
int32_t order_waits_for(const order_t *o, uint64_t call);

void order_done(order_t *o, uint64_t call);

bool order_is_done(const order_t *o, uint64_t call);

/* Does a thread sync a file that others sync, too? */
bool order_shares_log(const order_t *o, uint16_t thread);

/* Does it ask for durability? */
bool order_syncs(const op_t *op);

/* Is this the last call on the file that is not done? */
bool order_is_last(const order_t *o, int32_t file);

#endif
