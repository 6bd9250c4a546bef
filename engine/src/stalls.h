/*
 * Closed: clients that wait for what writes back.  A database whose cache is full of changed pages lets nobody read
 * before some of them are written.  Nothing in a trace says so, but clients that do nothing, far more often while
 * a page cleaner writes than while none does.
 */
#ifndef ZTUNE_STALLS_H
#define ZTUNE_STALLS_H

#include "replay_impl.h"

/* Finds them; threads' commits and background are known. */
void stalls_find(uint64_t first);
/* The call for which the thread waits before call i, ORDER_NONE: none. */
uint32_t stalls_for(uint64_t i);
/* What a thread does before it waits so, ns: as much as it mostly does between two calls. */
int64_t stalls_work(void);

#endif
