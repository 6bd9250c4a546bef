/* How long one thread waits for all of its calls, where a call stands for several of the whole.  Knows nothing of OpenZFS. */
#ifndef ZTUNE_WAITS_H
#define ZTUNE_WAITS_H

#include <stddef.h>

enum { WAIT_READ, WAIT_WRITE, WAIT_KINDS };

/* Of a thread: seconds of calls that stand for themselves alone, and what is known of the others. */
typedef struct {
	double exact;
	struct {
		double seconds, calls; /* of the whole */
		double weight, sum,
		    square; /* each call so many times as is the variance of its own part: 1, s and s² */
	} of[WAIT_KINDS];
} wait_sum_t;

/* A call took so many seconds, and stands for so many. */
void wait_add(wait_sum_t *w, int kind, double seconds, double each);

/*
 * The longest that one of n threads waits for, seconds.  calls: how many calls of each kind thread i has in the whole that
 * chance took a part of; NULL: as many as those that are there stand for.
 *
 * A call that waited long is not one in so many alike of its thread: it is chance whose it is.  So each thread's mean is
 * drawn to that of all, by how much of what they differ by is chance (Fay and Herriot, JASA 74, 1979).
 */
double wait_most(const wait_sum_t *w, size_t n, const double (*calls)[WAIT_KINDS]);

#endif
