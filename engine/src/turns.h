/*
 * Turns at a file that several threads sync, in a closed replay of a job each of whose operations has a sync of its own.  Its
 * database lets one thread at a time commit, and the next is who comes first: on other disks that is another thread.
 */
#ifndef ZTUNE_TURNS_H
#define ZTUNE_TURNS_H

#include "replay_impl.h"

/* Finds the calls with which turns begin; none where not each operation has such a sync. */
void turns_find(uint64_t first);

/* Does a turn of its thread begin with this call? */
bool turns_begin(uint64_t call);

/* Waits until it is the thread's turn. */
void turns_take(thread_t *t);

/* The thread's turn is over, if it has one. */
void turns_end(thread_t *t);

/* A call is done; a turn may end with it. */
void turns_done(uint64_t call);

#endif
