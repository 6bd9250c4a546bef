/*
 * What the I/O of a sampled file stands for. Of a block of data: as many as the sampling's rate. Of an indirect block:
 * as many as the whole file has of that level for each that the sample has, and where these are fewer than the rate,
 * more when few of them are written in a transaction group: above one in the whole there are that many more records, so
 * that it is written in more groups, and it is larger. Records that are certain stand for themselves; of a block above
 * one, it is itself, and the others that it stands for are as likely to be written as the rest. What is written to the
 * intent log of a sampled file stands for as many bytes as its data does. Everything else stands for itself. Knows
 * nothing of OpenZFS.
 */
#ifndef ZTUNE_WEIGHTS_H
#define ZTUNE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One byte in so many was sampled, of no file fewer; 1: all. */
void weights_begin(double rate);
double weights_rate(void);

/* Records, the first and how many. */
typedef struct {
	uint64_t first, n;
} weights_range_t;

/*
 * A sampled file.  written: by the trace; of what is not, no block tells how likely it is that one is.  certain: records
 * that stand for themselves, in order; they are of the caller's, and stay.
 */
typedef struct {
	uint64_t whole, sampled; /* records */
	double rate;             /* one byte in so many was sampled, of this file: at most what all begins with */
	uint64_t sector;         /* bytes, of its pool */
	bool written;
	const weights_range_t *certain;
	size_t ncertain;
} weights_file_t;
void weights_set(int pool, uint64_t objset, uint64_t object, const weights_file_t *file);

/* A block of a file: of a level, the first of it is 0. */
typedef struct {
	int pool;
	uint64_t objset, object;
	int64_t level;
	uint64_t number;
} weights_block_t;

/* For how many blocks one stands, and for how many times its bytes. */
typedef struct {
	double blocks, bytes;
} weight_t;
/* Of a block that is written in a transaction group, or of no group (0). */
weight_t weights_of(weights_block_t block, uint64_t txg);
/* A block is the first time dirty in a transaction group: how many more there are then of the whole. */
double weights_dirtied(weights_block_t block, uint64_t txg);

/* It is a file that stands for itself.  read: its records between the first and the last that the trace reads. */
void weights_set_own(int pool, uint64_t objset, uint64_t object, weights_range_t read);
/* Whether a block of data is of such a file, and nothing reads it: as nearly all of a log. */
bool weights_is_log(int pool, uint64_t objset, uint64_t object, uint64_t number);

/* A file's data, each byte of which stands for so many, goes to the log of its dataset with what is written to that next. */
void weights_logged(int pool, uint64_t objset, uint64_t bytes, double each);
/* How many bytes each of a block of the log stands for, the same for all disks that it goes to.  number: of the block. */
double weights_log(int pool, uint64_t objset, uint64_t number, uint64_t bytes);

#endif
