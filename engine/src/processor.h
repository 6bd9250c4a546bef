/*
 * What OpenZFS does to data, and the processor time of it: compression, decompression, checksums, parity, encryption
 * and copies, by dataset, algorithm and size of block.  Measured in those calls alone, in the time of the thread that
 * makes them; the debugging around them is not in it.
 */
#ifndef ZTUNE_PROCESSOR_H
#define ZTUNE_PROCESSOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spec.h"

typedef enum { PO_COMPRESS, PO_DECOMPRESS, PO_CHECKSUM, PO_PARITY, PO_CRYPT, PO_COPY, PO_COUNT } processor_op_t;

extern const char *const processor_names[PO_COUNT];

/* From here on everything is counted anew. */
void processor_reset(void);

/* The calling thread's processor time, ns: the real one, whatever OpenZFS takes for a clock. */
int64_t processor_ns(void);

/* What reading that clock twice takes, and copying a byte from one block of 128 KiB to another; ns, measured once. */
double processor_clock_ns(void);
double processor_copy_ns(void);

/* Bytes copied between a program's memory and a file of this objset (objset_t). */
void processor_copied(const void *objset, uint64_t bytes);

/* seconds, *_s of each operation, datasets[], calls[]: docs/engine.md. */
json_t *processor_json(const spec_t *spec);

/*
 * Called, if set, in the thread that made it and after each call that is counted; it may sleep.  Level: of compression
 * alone.  Bytes and out: of a block before and after it is compressed, else twice the same.
 */
extern void (*processor_done)(processor_op_t op, int algorithm, int level, uint64_t bytes, uint64_t out,
    uint64_t blank);

/* Asked, if set, for how many the block stands of a call of the pipeline (zio_t). */
extern double (*processor_stands_for)(const void *zio);
/* … of the one that the calling thread has in hand; the work on the others is done as well. */
double processor_times(void);

/* Asked, if set, of what is about to be decompressed (abd_t): whether that is zeros, whatever is in it. */
extern bool (*processor_is_zeros)(const void *abd, uint64_t len);

/* Set, what is decompressed of files is zeros: for who reads them and looks at nothing. */
extern bool processor_unread;

/* An algorithm's name as a property has it: "lz4", "gzip-6", "zstd-3", "zstd-fast-10"; for parity "raidz1". */
void processor_algorithm(processor_op_t op, int algorithm, int level, char *name, size_t len);
void processor_compression(int compress, int level, char *name, size_t len);

#endif
