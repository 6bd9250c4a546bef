/*
 * Which records of the files a trace touches: those that it reads, writes or changes, and those that OpenZFS would read
 * ahead of that.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_TOUCHED_H
#define ZTUNE_TOUCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops.h"

/* Where OpenZFS expects a file's next read, as it keeps it for files below 128 MiB: one place. */
typedef struct {
	bool there;
	uint64_t record;
	int64_t t;    /* when anything was read that it takes for part of it */
	uint64_t row; /* bytes that were read up to there, in a row */
} touched_stream_t;

typedef struct {
	uint64_t recordsize, records; /* of the file at the start; 0 records: it is left out */
	uint64_t *bits;
	uint64_t count; /* of records that are touched */
	touched_stream_t stream;
} touched_t;

/* Of each file, by its number, recordsize and records are set; the rest is found. */
void touched_find(const ops_t *ops, touched_t *files, size_t nfiles);

bool touched_has(const touched_t *t, uint64_t record);
void touched_mark(touched_t *t, uint64_t first, uint64_t n);

/* Marks the records that lie whole in a range of the file, and returns how many were not marked. */
uint64_t touched_take(touched_t *t, uint64_t off, uint64_t len);

void touched_free(touched_t *t);

#endif
