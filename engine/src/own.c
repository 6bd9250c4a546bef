#include "own.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void make(own_t *own)
{
	(void)pthread_mutex_lock(&lock);
	if (!own->is_made && pthread_key_create(&own->key, free) != 0)
		abort();
	__atomic_store_n(&own->is_made, true, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&lock);
}

void *own_value(own_t *own, size_t size)
{
	void *value;

	if (!__atomic_load_n(&own->is_made, __ATOMIC_ACQUIRE))
		make(own);
	if ((value = pthread_getspecific(own->key)) != NULL)
		return value;
	if ((value = calloc(1, size)) == NULL || pthread_setspecific(own->key, value) != 0)
		abort();
	return value;
}
