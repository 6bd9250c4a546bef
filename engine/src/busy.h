/*
 * Has OpenZFS nothing left to do?  Its pipeline's jobs, its other task queues and the threads that write transaction
 * groups are counted while they are queued or run, but not while they sleep.  Nothing here goes by time.
 */
#ifndef ZTUNE_BUSY_H
#define ZTUNE_BUSY_H

#include <stdbool.h>

/* The calling thread works from here to busy_leave(); calls may be nested. */
void busy_enter(void);
void busy_leave(void);

/* Around a sleep of the calling thread on a condition variable. */
void busy_sleep(void *cv);
void busy_wake(void);

bool busy_now(void);

/* Returns when nothing is left to do, or after a second: then something sleeps in a way that is not seen here. */
void busy_wait_idle(void);

#endif
