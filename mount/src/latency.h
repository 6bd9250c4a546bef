/* The calls of a dataset: their bytes, and how long they took inside OpenZFS, FUSE not in it. */
#ifndef ZTUNE_LATENCY_H
#define ZTUNE_LATENCY_H

#include <jansson.h>
#include <stdint.h>

/* 16 for each power of two: a bucket's middle is within 1/32 of every time in it.  Up to 2^43 ns, two hours. */
#define LATENCY_BUCKETS (16 * 40)

typedef struct {
	uint64_t sum_ns, bytes;
	uint64_t bucket[LATENCY_BUCKETS];
} latency_t;

/* Of one dataset; of the same calls as a replay's latencies (engine/src/replay.c), a write's commit not in the write. */
typedef struct {
	latency_t sync, read, write;
} calls_t;

/* When a call begins, and when it is done, of so many bytes; any thread. */
uint64_t latency_now(void);
void latency_note(latency_t *l, uint64_t began_ns, uint64_t bytes);

/* {"bytes", "seconds": all of them together, "ns": {a bucket's middle: how many}}, of what came since. */
json_t *latency_json(const latency_t *now, const latency_t *before);

#endif
