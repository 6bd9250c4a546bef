/*
 * A disk on which each request may stand for several.  The others come after it, evenly over a second or, writes, as fast
 * as they followed each other before, and the disk has to do them too: whoever asks meanwhile waits as if they were there.  A request's
 * own time counts once.  Of those that stand for others no more are on the disk at a time than OpenZFS sends there; the
 * rest wait in the order of their times, so that a disk which is too slow for all of them holds up the sampled ones as
 * long.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_CROWD_H
#define ZTUNE_CROWD_H

#include "device.h"

typedef struct crowd crowd_t;

/* What lies between these offsets lies so many times as far apart on the whole disk; the rest begins behind it. */
typedef struct {
	uint64_t from, to;
	double times;
} stretch_t;

/* number: of the disk, for the random numbers. */
crowd_t *crowd_new(device_t *device, uint64_t number, stretch_t stretch);

/* The request stands for so many, of so many bytes in all. */
void crowd_submit(crowd_t *c, request_t *r, double ios, double bytes, int64_t now);

/* When something happens next; DEVICE_NEVER if nothing. */
int64_t crowd_next(const crowd_t *c);

/* A request of the caller's that is done by now; NULL if there is none.  The caller frees it. */
request_t *crowd_done(crowd_t *c, int64_t now);

/* Lets the disk do what is left of the others, whatever time that takes. */
void crowd_drain(crowd_t *c);

#endif
