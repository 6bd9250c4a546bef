/*
 * What is a thread's own, zeros at first.  By a key of POSIX's, since the engine's threads (vtime.h) are not the kernel's:
 * what the compiler would keep for each thread is one for all of them.
 */
#ifndef ZTUNE_OWN_H
#define ZTUNE_OWN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* All zeros: nobody has asked yet. */
typedef struct {
	pthread_key_t key;
	bool is_made;
} own_t;

/* The calling thread's; size: always the same. */
void *own_value(own_t *own, size_t size);

#endif
