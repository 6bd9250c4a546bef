/*
 * A disk on which each request may stand for several.  The disk has to do the others too: whoever asks meanwhile waits as
 * if they were there.
 *
 * Spread they come after it, reads over a second or writes as fast as they followed each other before, and a request's own
 * time counts once.  No more are on the disk at a time than OpenZFS sends there; the rest wait in the order of their times,
 * so that a disk which is too slow for all of them holds up the sampled ones as long.  In turn they go to the disk one
 * after the other behind it, and it is done when the last one is.
 */
#ifndef ZTUNE_CROWD_H
#define ZTUNE_CROWD_H

#include "device.h"
#include "spread.h"

#define CROWD_AT_ONCE 10 /* zfs_vdev_sync_read_max_active and its like: requests of a kind that OpenZFS has on a disk */

typedef struct crowd crowd_t;

/* What was loaded lies between these offsets; on the whole disk as spread says, and the rest begins behind it. */
typedef struct {
	uint64_t from, to;
	const spread_t *spread;
} stretch_t;

/* number: of the disk, for the random numbers. */
crowd_t *crowd_new(device_t *device, uint64_t number, stretch_t stretch);

/* Requests that one stands for, besides itself. */
typedef struct {
	req_op_t op;
	uint32_t left, len;
	uint64_t off; /* of the next one, if each begins where the one before ends */
	bool in_row;
	int64_t within; /* spread they come in so long */
} crowd_others_t;

/* Puts a read or write where it is on the whole disk, which stands for so many, of so many bytes in all. */
crowd_others_t crowd_place(crowd_t *c, request_t *r, double ios, double bytes);

/* The first n of them, which are taken off. */
crowd_others_t crowd_part(crowd_others_t *others, uint32_t n);

/* The next of them, for the disk. */
request_t *crowd_other(crowd_t *c, crowd_others_t *others);

/* A read or write goes to the disk, and the others come after it; NULL: they alone. */
void crowd_spread(crowd_t *c, request_t *r, crowd_others_t others, int64_t now);

/* A write goes to the disk, or a flush, which has no others; the others follow in turn. */
void crowd_in_turn(crowd_t *c, request_t *r, crowd_others_t others);

/* When something happens next; DEVICE_NEVER if nothing. */
int64_t crowd_next(const crowd_t *c);

/* A request of the caller's that is done by now; NULL if there is none.  The caller frees it. */
request_t *crowd_done(crowd_t *c, int64_t now);

/* Lets the disk do what is left of the others, whatever time that takes. */
void crowd_drain(crowd_t *c);

#endif
