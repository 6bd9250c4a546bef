/* The trace's operations, read from the ops file.  Knows nothing of OpenZFS. */
#ifndef ZTUNE_OPS_H
#define ZTUNE_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef enum {
	OP_READ = 1,
	OP_WRITE,
	OP_FSYNC,
	OP_FDATASYNC,
	OP_SYNC_RANGE,
	OP_TRUNCATE,
	OP_FALLOCATE,
	OP_CREATE,
	OP_UNLINK,
	OP_RENAME,
	OP_COPY,
	OP_MMAP,
	OP_MSYNC,
	OP_SYNC,
	OP_WARM,       /* read before the trace begins, into the caches; ahead of all others */
	OP_READ_AHEAD, /* what is going to be read */
	OP_LAST = OP_READ_AHEAD
} op_code_t;

enum { VIA_SYSCALL = 0, VIA_AIO = 1, VIA_URING = 2, VIA_LAST = VIA_URING };

enum {
	OPF_SYNC = 1,
	OPF_DSYNC = 2,
	OPF_DIRECT = 4,
	OPF_APPEND = 8,
	OPF_KEEP_SIZE = 16,
	OPF_PUNCH = 32,
	OPF_ZERO = 64,
	OPF_PAUSES = 1 << 16, /* its thread goes on after the pause that it made when recorded, whenever that is */
	OPF_ALL = 127 | OPF_PAUSES
};

/* As stored, little endian. */
typedef struct {
	int64_t t;      /* ns since the trace began */
	int64_t dur;    /* ns */
	int64_t offset; /* bytes, -1 where it means nothing */
	int64_t size;   /* bytes, -1 where it means nothing */
	int32_t file;   /* -1 for none */
	int32_t file2;  /* -1 for none */
	uint16_t thread;
	uint8_t op;
	uint8_t via;
	uint32_t flags;
	uint32_t blank;      /* of a write: so many bytes at its end are zeros */
	uint32_t since_sync; /* ns from another's sync's end, for which its thread waited, to t; 0: of none */
	uint32_t waited;     /* ns that its thread waited for others' syncs since its last call */
	uint32_t arc;        /* of what warms the caches: the MiB of ARC from which on it does; 0: any */
} op_t;

typedef struct {
	const op_t *op; /* mapped, read-only */
	uint64_t nops;
	uint32_t nfiles;
	uint32_t nthreads;
	void *map;
	size_t map_len;
} ops_t;

#define OPS_MAX_FILE_BYTES (INT64_C(1) << 50) /* one file may reach 1 PiB */
#define OPS_MAX_SIZE (INT64_C(1) << 40)       /* one call */

/* When a call ended, ns since the trace began. */
static inline int64_t op_end(const op_t *op)
{
	return op->t + op->dur;
}

/* Maps and checks every record; 0, or -1 with one sentence. */
int ops_read(const char *path, ops_t *ops, err_t *err);
void ops_free(ops_t *ops);

#endif
