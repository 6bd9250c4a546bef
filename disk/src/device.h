/*
 * A disk that this machine need not have: queue, head, channels, volatile cache.  It knows no clock: the caller says
 * what time it is, so the same code runs in real time behind a socket and in no time in tests.
 *
 * Times are nanoseconds of the disk.  Formulas and why they are as they are: docs/disks.md.
 */
#ifndef ZTUNE_DEVICE_H
#define ZTUNE_DEVICE_H

#include "cache.h"
#include "model.h" /* the engine's: profile and seek curve */

#include <stdbool.h>
#include <stdint.h>

#define DEVICE_NEVER INT64_MAX
#define DEVICE_NO_DATA (-1)           /* in place of the medium: times alone, requests come without data */
#define DEVICE_QUEUE 32               /* requests that a disk chooses from: SATA's native command queueing */
#define DEVICE_PASSED 64              /* times that others may go first */
#define DEVICE_WRITES 512             /* separate writes that a cache holds at most, hdd */
#define DEVICE_STRIP (64u << 10)      /* a RAID controller's cache holds one for each so many bytes of it */
#define DEVICE_HDD_LINK_MB_S 550.0    /* into the cache of an hdd: SATA at 6 Gbit/s less its overhead */
#define DEVICE_FLASH_AGE 1000000000ll /* flash: background write-out of what is older than a second */
#define DEVICE_DEPTHS 65

typedef enum { REQ_READ, REQ_WRITE, REQ_FLUSH, REQ_TRIM, REQ_ZERO } req_op_t;

typedef struct request {
	req_op_t op;
	bool fua;
	uint64_t off;
	uint32_t len;
	uint8_t *data;         /* read: filled when it is done; write: taken over with the request */
	void *owner;           /* the caller's; NULL = nobody waits any more */
	uint64_t cookie;       /* the caller's */
	int error;             /* errno, when it is done */
	int64_t arrival, time; /* when it came; when it goes on to its next stage, in the end when it was done */
	/* the device's */
	uint64_t seq;
	int passed;
	bool flushing;     /* flash: a write with the FUA bit is written and waits like a flush */
	bool transferring; /* flash: its latency is over */
	int lane;          /* flash: the channel that it holds */
	struct request *next;
} request_t;

typedef struct {
	request_t *first, *last;
	uint64_t count;
} queue_t;

typedef struct {
	uint64_t reads, read_bytes, writes, write_bytes, flushes, trims, zeroes, fua; /* asked for */
	uint64_t medium_reads, medium_read_bytes, medium_writes, medium_write_bytes;  /* done by head or channels */
	uint64_t merged; /* writes that went out together with, or were overwritten by, another */
	uint64_t cut_bytes, cuts, errors;
	double seek_ns, rotation_ns, transfer_ns, latency_ns, flush_ns, read_busy_ns, write_busy_ns;
	double working_ns;             /* in which head or channels did anything; not the sum of what these did */
	uint64_t depth[DEVICE_DEPTHS]; /* requests there when one more came; the last counts all beyond */
} device_counters_t;

typedef enum { MECH_IDLE, MECH_REQUEST, MECH_RUN, MECH_FLUSH } mech_t;

typedef struct {
	const model_profile_t *p;
	uint64_t span, cache_size; /* bytes; span: from one end of the disk to the other, for seeks */
	int fd;                    /* the medium */
	bool lazy;                 /* write out only when asked to or when full */
	device_counters_t count;

	cache_t cache;
	uint64_t seq, flushed_seq; /* of the last write; of the last write that a flush covered */
	uint64_t in_flight;
	queue_t timed;   /* by time: what happens at a known time */
	queue_t ready;   /* what waits for the head, or for a channel */
	queue_t blocked; /* writes that wait for room in the cache */
	queue_t flushes;
	queue_t done;
	int64_t link_until;
	int deferred; /* errno of a write that was acknowledged before it failed; the next flush reports it */

	/* hdd */
	uint64_t head; /* byte behind the last transfer */
	mech_t mech;
	bool mech_read_last;
	int64_t mech_until;
	request_t *serving;
	extent_t *run; /* on its way out */
	/* flash */
	int64_t lane[MODEL_MAX_CHANNELS]; /* since when it is free; DEVICE_NEVER: it is not */
	int lanes, busy;
	bool held;   /* a flush is on */
	int working; /* channels and flushes */
	int64_t working_since;
} device_t;

/* cache_size 0: a write is on the medium when it is acknowledged. */
void device_init(device_t *d, const model_profile_t *p, uint64_t span, uint64_t cache_size, int fd, bool lazy);

/* r->arrival is set.  It may lie a little before what device_advance was told last. */
void device_submit(device_t *d, request_t *r);

/* Does all that happens until now. */
void device_advance(device_t *d, int64_t now);

/* When something happens next; DEVICE_NEVER if nothing. */
int64_t device_next(const device_t *d);

/* A request that is done, in the order of time; NULL if there is none.  The caller frees it. */
request_t *device_done(device_t *d);

/* Power cut: all that is not on the medium is gone, requests too. */
void device_cut(device_t *d);

/* Nobody waits for the requests of this owner any more; they are carried out all the same. */
void device_orphan(device_t *d, const void *owner);

/* Writes the cache to the medium, at once: an orderly end.  Returns an errno or 0. */
int device_settle(device_t *d);

void request_free(request_t *r);

#endif
