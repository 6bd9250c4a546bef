/*
 * Threads in virtual time.  OpenZFS's threads, locks and clocks are POSIX's, and the functions of vtime.c take the place
 * of the C library's: all threads run in the one of this process, one at a time, each until it sleeps.  So nothing here
 * depends on chance, and it is known exactly when nothing can go on: then the clock jumps to the next time that somebody
 * waits for.  Work takes no virtual time but what is asked for.
 */
#ifndef ZTUNE_VTIME_H
#define ZTUNE_VTIME_H

#include <stdbool.h>
#include <stdint.h>

#define VTIME_NEVER INT64_MAX

typedef struct vthread vthread_t;

/* Threads that wait for the same thing, in the order in which they came.  All zeros is an empty one. */
typedef struct {
	vthread_t *first, *last;
} vqueue_t;

/* Virtual nanoseconds since an arbitrary time; never goes back. */
int64_t vtime_now(void);

/*
 * Sleeps until woken (true) or until a time (false).  Times are reached only when no thread can go on: to sleep until now
 * is to let all others go first.
 */
bool vtime_wait(vqueue_t *q, int64_t until);
void vtime_wake(vqueue_t *q, bool all);
void vtime_sleep_until(int64_t until);

/* How many threads can work at a time; 0, as it begins: any number, and work takes no time. */
void vtime_processors(int n);
/* The calling thread works for so long; others may go on meanwhile. */
void vtime_work(int64_t ns);
/*
 * The same for what a program does between its calls: such threads take turns, and whoever works takes a processor from
 * them at once, as the kernel does for OpenZFS's threads, which have the highest priority.
 */
void vtime_think(int64_t ns);

/* A new thread, that nobody joins. */
void vtime_start(void (*func)(void *), void *arg);

/* Threads count in the order in which they are made, the first is 0. */
uint64_t vtime_thread_number(void);

/*
 * Ends the process, and says so, where one thread goes on and never sleeps: after so many seconds of processor time, at
 * most twice as many.
 */
void vtime_limit(int seconds);

/* Called every few switches between threads; it must not sleep. */
void vtime_watch(void (*look)(void));

#endif
