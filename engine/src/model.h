/* What a disk can do, whoever plays it: disk/src/device.h does, with what the formulas here say. */
#ifndef ZTUNE_MODEL_H
#define ZTUNE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
	char name[64];
	bool hdd;
	bool rotational; /* what OpenZFS is told; decides its aggregation limit */
	uint64_t size;   /* bytes; 0 = none given */
	/* hdd */
	double rpm, seek_track_ms, seek_avg_ms, seek_full_ms, flush_ms;
	/* flash */
	double channels, read_us, write_us, flush_us;
	/* both */
	double read_mb_s, write_mb_s, overhead_us;
	double cache_mb;      /* MiB of write cache */
	bool protected;       /* a power cut leaves the cache as it is, so a flush has nothing to do */
	bool ignores_flushes; /* a flush is answered, and the cache stays volatile */
} model_profile_t;

#define MODEL_MAX_CHANNELS 256

/* Milliseconds to move the head by this share of the disk (0..1). */
double model_seek_ms(const model_profile_t *p, double share);

#endif
