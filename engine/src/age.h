/*
 * A pool's past, between the load and the measure: other files fill it and come and go, the database's are rewritten,
 * snapshots keep old blocks.  What happens, in which order, is in docs/age.md; onhost/trial/age.py does the same to a
 * mounted pool.
 */
#ifndef ZTUNE_AGE_H
#define ZTUNE_AGE_H

#include <stdint.h>

#include "err.h"
#include "filelayer.h"
#include "pool.h"
#include "spec.h"

/* What the replay does for it.  write() returns an exit code, with its sentence. */
typedef struct {
	int (*write)(const spec_file_t *file, uint64_t offset, uint64_t len);
	fl_file_t *(*open)(const spec_file_t *file);
	void (*progress)(double done);
} age_files_t;

typedef struct {
	double wall_s;
	uint64_t rewritten; /* bytes of files */
	uint64_t commits;
	pool_filled_t pool[16]; /* when it was over */
	uint64_t filler[16];    /* bytes that the filler takes of each */
} age_result_t;

/* Returns an exit code, with one sentence.  Every pool's filler dataset is among vols. */
int age_run(const spec_t *spec, fl_volume_t **vols, const age_files_t *files, age_result_t *result, err_t *err);

#endif
