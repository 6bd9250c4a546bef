/*
 * What a load leaves behind, kept in a file: the disks' contents, and what an import needs to know of the pools.  Layouts
 * that would load the same, on the same disks, begin from it; its pages are shared by all who do.
 */
#ifndef ZTUNE_IMAGE_H
#define ZTUNE_IMAGE_H

#include "age.h"
#include "err.h"
#include "pool.h"
#include "spec.h"

typedef struct {
	double wall_s, cpu_s;
	uint64_t bytes; /* of files */
	age_result_t age;
} image_load_t;

/* Exports the pools and writes the image; every file of theirs must be closed.  0, or -1 with one sentence. */
int image_save(const spec_t *spec, const char *path, const image_load_t *load, err_t *err);

/* Fills the disks, which must be new; then, when OpenZFS runs, has the pools.  0, or -1 with one sentence. */
int image_open(const spec_t *spec, const char *path, image_load_t *load, err_t *err);
int image_import(const spec_t *spec, const pace_t *pace, err_t *err);

#endif
