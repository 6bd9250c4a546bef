/*
 * What a load leaves behind, kept in a file: the disks' contents, and what an import needs to know of the pools.  Layouts
 * that would load the same, on the same disks, begin from it; its pages are shared by all who do.
 */
#ifndef ZTUNE_IMAGE_H
#define ZTUNE_IMAGE_H

#include <stddef.h>

#include "err.h"
#include "pool.h"
#include "spec.h"

/*
 * Exports the pools and writes the image; every file of theirs must be closed.  With it go the bytes `known`, what the
 * loader knows of what it loaded.  0, or -1 with one sentence.
 */
int image_save(const spec_t *spec, const char *path, const void *known, size_t len, err_t *err);

/*
 * Fills the disks, which must be new, and returns so many bytes as the loader knew, for good; NULL with one sentence.
 * Then, when OpenZFS runs, has the pools: 0, or -1 with one sentence.
 */
const void *image_open(const spec_t *spec, const char *path, size_t len, err_t *err);
int image_import(const spec_t *spec, const pace_t *pace, err_t *err);

#endif
