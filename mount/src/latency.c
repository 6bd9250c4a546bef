#include "latency.h"

#include <stdio.h>
#include <time.h>

#include "put.h"

#define EACH 16 /* buckets of a power of two */
#define BITS 4  /* its logarithm */

uint64_t latency_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static size_t bucket_of(uint64_t ns)
{
	unsigned power;
	size_t i;

	if (ns < EACH)
		return (size_t)ns;
	power = 63 - (unsigned)__builtin_clzll(ns);
	i = (power - BITS) * EACH + (size_t)(ns >> (power - BITS));
	return i < LATENCY_BUCKETS ? i : LATENCY_BUCKETS - 1;
}

static uint64_t middle_of(size_t bucket)
{
	size_t shift;

	if (bucket < EACH)
		return bucket;
	shift = bucket / EACH - 1;
	return ((uint64_t)(bucket % EACH + EACH) << shift) + ((uint64_t)1 << shift) / 2;
}

void latency_note(latency_t *l, uint64_t began_ns, uint64_t bytes)
{
	uint64_t ns = latency_now() - began_ns;

	(void)__atomic_add_fetch(&l->sum_ns, ns, __ATOMIC_RELAXED);
	(void)__atomic_add_fetch(&l->bytes, bytes, __ATOMIC_RELAXED);
	(void)__atomic_add_fetch(&l->bucket[bucket_of(ns)], 1, __ATOMIC_RELAXED);
}

json_t *latency_json(const latency_t *now, const latency_t *before)
{
	json_t *o = json_object(), *counts = json_object();
	char ns[24];

	put(o, "bytes", __atomic_load_n(&now->bytes, __ATOMIC_RELAXED) - before->bytes);
	put_real(o, "seconds", (double)(__atomic_load_n(&now->sum_ns, __ATOMIC_RELAXED) - before->sum_ns) / 1e9);
	for (size_t i = 0; i < LATENCY_BUCKETS; i++) {
		uint64_t count = __atomic_load_n(&now->bucket[i], __ATOMIC_RELAXED) - before->bucket[i];

		if (count == 0)
			continue;
		(void)snprintf(ns, sizeof(ns), "%llu", (unsigned long long)middle_of(i));
		put(counts, ns, count);
	}
	(void)json_object_set_new(o, "ns", counts);
	return o;
}
