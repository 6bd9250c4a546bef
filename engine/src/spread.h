/*
 * Where on the whole disks lies what was loaded: files lie there in the order in which they were loaded, and what was left
 * out of each lies between.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_SPREAD_H
#define ZTUNE_SPREAD_H

#include <stddef.h>

/* Bytes up to an end: of what was loaded, and of the whole. */
typedef struct {
	double here, whole;
} spread_end_t;

typedef struct {
	spread_end_t *end; /* of each part, in the order in which they lie */
	size_t n, room;
} spread_t;

/* The next part, of so many bytes. */
void spread_add(spread_t *s, double here, double whole);

/* How many times as much the whole takes; 1 if nothing is known. */
double spread_times(const spread_t *s);

/* What lies at this share of what was loaded, 0 to 1: at which share of the whole it lies. */
double spread_share(const spread_t *s, double share);

void spread_free(spread_t *s);

#endif
