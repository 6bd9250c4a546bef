/*
 * What OpenZFS takes from its surroundings: time, random numbers, the pace of the L2ARC feed.  The
 * library's own user-space versions are random or run by the wall clock; the functions here take their place
 * (the dynamic linker finds the executable's first) and follow the trace.
 */
#ifndef ZTUNE_CLOCKWORK_H
#define ZTUNE_CLOCKWORK_H

#include <stdbool.h>
#include <stdint.h>

/* Before kernel_init: seed of the random numbers. */
void clockwork_init(uint64_t seed);

/* From now on OpenZFS's clock is trace time; it stands still in between and never goes back. */
void clockwork_start(void);
void clockwork_advance(int64_t trace_ns);

/* Lets the L2ARC feed thread do what is due until trace time; returns when it sleeps again. */
void clockwork_feed_l2arc(int64_t trace_ns);
/* Is a pool's import still looking at what its cache devices hold? */
bool clockwork_rebuilding(void);

/* Returns when the ARC's eviction thread, if it was woken, sleeps again. */
void clockwork_wait_evicted(void);
/*
 * Evicts what the ARC holds beyond its limit, as far as OpenZFS will; returns when that is done, with the number of
 * blocks that it passed over because they were prefetched less than a second ago.
 */
uint64_t clockwork_evict(void);

/* Monotonic wall clock and processor time of this process, seconds. */
double wall_now(void);
double cpu_now(void);

#endif
