/*
 * The memory of the host that OpenZFS believes to run on.  The library's own user-space functions draw it at random, to
 * be tested by it; those here take their place.
 */
#ifndef ZTUNE_HOSTMEMORY_H
#define ZTUNE_HOSTMEMORY_H

#include <stdint.h>

/* Before kernel_init: bytes of memory, and the ARC's limit. */
void hostmemory_init(uint64_t memory, uint64_t arc_max);

#endif
