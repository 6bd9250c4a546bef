/*
 * What OpenZFS takes from its surroundings: random numbers and the number of processors.  The library's own user-space
 * versions are chance or this machine's; the functions here take their place (the dynamic linker finds the executable's
 * first).  Its threads and clocks: vtime.h.
 */
#ifndef ZTUNE_CLOCKWORK_H
#define ZTUNE_CLOCKWORK_H

#include <stdbool.h>
#include <stdint.h>

/* Before kernel_init: seed of the random numbers; processors of the modelled host, 0 = one. */
void clockwork_init(uint64_t seed, int processors);

/*
 * Lets go of the blocks that OpenZFS keeps decompressed for its next reader, beside the ARC; it takes a virtual second
 * or two.
 */
void clockwork_drop_buffers(void);

/* Monotonic wall clock and processor time of this process, seconds. */
double wall_now(void);
double cpu_now(void);

#endif
