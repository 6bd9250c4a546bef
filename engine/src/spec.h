/* The layout to replay against, read from spec.json.  Knows nothing of OpenZFS. */
#ifndef ZTUNE_SPEC_H
#define ZTUNE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "model.h"
#include "waits.h"

#define SPEC_NAME 128
#define SPEC_DATASETS 256 /* at most */

typedef enum { VC_DATA, VC_LOG, VC_CACHE, VC_SPECIAL, VC_COUNT } vclass_t;
typedef enum { VK_STRIPE, VK_MIRROR, VK_RAIDZ1, VK_RAIDZ2, VK_RAIDZ3, VK_COUNT } vkind_t;

extern const char *const vclass_names[VC_COUNT];
extern const char *const vkind_names[VK_COUNT];

typedef struct {
	int profile;   /* index into spec_t.profiles */
	uint64_t size; /* bytes */
	uint64_t span; /* bytes: the disk of which it is a part, for the model's seeks; its size if not said */
} spec_disk_t;

typedef struct {
	vclass_t class;
	vkind_t kind;
	spec_disk_t *disks;
	size_t ndisks;
} spec_vdev_t;

typedef struct {
	char name[SPEC_NAME];
	int ashift;
	spec_vdev_t *vdevs;
	size_t nvdevs;
} spec_pool_t;

typedef struct {
	char key[SPEC_NAME];
	char value[SPEC_NAME];
} spec_prop_t;

typedef struct {
	char name[SPEC_NAME];
	int pool;            /* index into spec_t.pools */
	uint64_t recordsize; /* bytes */
	bool filler;         /* holds what fills the pool, and no file of the trace */
	spec_prop_t *props;
	size_t nprops;
} spec_dataset_t;

typedef struct {
	int32_t id;           /* the file's number in the ops */
	int dataset;          /* index into spec_t.datasets */
	int content;          /* index into spec_t.content: its role's */
	int holds;            /* … of what it holds, where that is another */
	int read;             /* … of what records that the trace touches hold at the start */
	int untouched;        /* … of records that the trace does not touch */
	uint64_t size;        /* bytes at the start */
	uint64_t rewrite;     /* bytes of each write while the pool ages; 0 = it is not rewritten */
	bool sampled;         /* its bytes are a sample of a larger file's */
	int rate;             /* … of which one in so many is there */
	uint64_t whole;       /* bytes of that one at most */
	uint64_t whole_start; /* … and at the start; 0: it is made later */
	/* Of a sampled file, what every sample has, and what stands for itself: in order. */
	struct spec_range {
		uint64_t off, len;
	} *certain;
	size_t ncertain;
	bool in_order; /* from start to end, not at random */
	bool commits;  /* and is committed now and then */
	int log;       /* which of the logs it is a part of, -1: of none */
} spec_file_t;

/* What happens to the pools between the load and the measure: docs/age.md. */
typedef struct {
	int fill; /* percent of each pool with a filler dataset; 0 = none */
	int rewrites;
	int snapshots;
	int clones; /* of the first snapshots */
} spec_age_t;

typedef struct {
	char name[SPEC_NAME];
	char path[4096];
} spec_content_t;

typedef struct {
	char name[SPEC_NAME];
	int64_t value;
} spec_tunable_t;

/* How long a processor works on data; sizes are those of the blocks that were timed. */
typedef struct {
	char operation[16], algorithm[32];
	uint64_t size;
	double ns_per_byte;
} spec_rate_t;

#define SPEC_LOGS 8

typedef struct spec {
	uint64_t seed;
	uint64_t arc_max;                  /* bytes */
	uint64_t host_memory;              /* bytes; 0 = derived from arc_max */
	int64_t operations;                /* of the recorded job, each with a commit; 0: not known */
	int64_t first;                     /* of these: the throughput is that of so many; 0: of most */
	bool waits;                        /* the operations tell whose commits their threads waited for */
	size_t nlogs;                      /* whose commits go together; spec_file_t.log says which files are theirs */
	int64_t log_operations[SPEC_LOGS]; /* of the job whose log it is; of one job all have its operations */
	bool closed;                       /* threads go on as soon as they would have, not when they were recorded */
	bool verify;
	int rate;                      /* of sampled files one byte in so many is there; 1: nothing was sampled */
	double (*threads)[WAIT_KINDS]; /* how many calls each thread has in the whole of what chance took part of */
	size_t nthreads;               /* 0: not known */
	bool touched;                  /* of files that records alone are loaded that the trace touches */
	bool file_backing;
	char backing_dir[4096];            /* "" = none */
	uint64_t memory_limit, file_limit; /* bytes that the process may take here; 0 = any */
	model_profile_t *profiles;
	size_t nprofiles;
	spec_pool_t *pools;
	size_t npools;
	spec_dataset_t *datasets;
	size_t ndatasets;
	spec_file_t *files;
	size_t nfiles;
	spec_content_t *content;
	size_t ncontent;
	spec_tunable_t *tunables;
	size_t ntunables;
	spec_age_t age;
	int cores;                         /* 0 = no processor is given: work takes no time */
	int recorded_cores;                /* of the host that the trace was recorded on */
	double read_us, write_us, sync_us; /* what each call takes of a processor, beside the work on its data */
	spec_rate_t *rates;
	size_t nrates;
} spec_t;

/* Reads and checks; 0, or -1 with one sentence that names the key. */
int spec_read(const char *path, spec_t *spec, err_t *err);
int spec_parse(const char *text, size_t len, spec_t *spec, err_t *err);
void spec_free(spec_t *spec);

/* "128K", "16M", "512" or plain bytes; false if it is none of these. */
bool spec_bytes(const char *text, uint64_t *bytes);

#endif
