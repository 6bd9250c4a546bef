/*
 * What an I/O costs on a disk that this machine need not have.  Pure arithmetic: no clock, no threads, no OpenZFS.
 * Times are nanoseconds of trace time.  Formulas and their sources: docs/engine.md.
 */
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
	double cache_mb; /* MiB of volatile write cache */
} model_profile_t;

typedef enum { MIO_SYNC_READ, MIO_SYNC_WRITE, MIO_ASYNC_READ, MIO_ASYNC_WRITE, MIO_COUNT } model_class_t;

#define MODEL_MAX_CHANNELS 256

typedef struct {
	const model_profile_t *p;
	uint64_t size;                    /* bytes of this disk */
	int limit[MIO_COUNT];             /* most I/Os of a class in flight; 0 = the disk's own */
	uint64_t head;                    /* byte behind the last transfer */
	int64_t sync_until;               /* hdd: when the last synchronous I/O is done */
	int64_t async_until;              /* when all asynchronous I/O handed over so far is done */
	int64_t last_async_cost;          /* what is in flight when a synchronous I/O comes */
	int64_t lane[MODEL_MAX_CHANNELS]; /* flash: when each channel is free */
	int nlanes;
	int64_t bus_until;  /* flash: when the interface is free */
	double service_ns;  /* hdd: sum of service times; flash: of channel times */
	double transfer_ns; /* flash: sum of transfer times */
	double flush_ns;    /* sum of flush times */
} model_device_t;

void model_init(model_device_t *d, const model_profile_t *p, uint64_t size);

/* An I/O arrives; returns when it is finished (>= arrival). */
int64_t model_io(model_device_t *d, int64_t arrival, model_class_t class, uint64_t offset, uint64_t size);

/* A cache flush arrives: waits for earlier writes; background = part of a txg sync, behind the asynchronous I/O. */
int64_t model_flush(model_device_t *d, int64_t arrival, bool background);

/* The least time in which the disk could have done all it was given, seconds. */
double model_busy_s(const model_device_t *d);

/* Milliseconds to move the head by this share of the disk (0..1). */
double model_seek_ms(const model_profile_t *p, double share);

#endif
