/*
 * What stands behind the modelled disks: memory, or unlinked sparse files.  Memory holds what is in use and no more: a
 * page is given back once everything in it has been freed.  Files are cleared when asked, since a file system writes a
 * page out before it frees it.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_STORE_H
#define ZTUNE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

typedef struct store store_t;

/* Where the files are, "" for nowhere; and whether to begin with files.  Before the first store_open(). */
void store_begin(const char *dir, bool files);

/* A disk of so many bytes, all zeros; NULL with one sentence. */
store_t *store_open(uint64_t size, err_t *err);

/* Returns the disk's memory, or NULL and the file that it is: until another thread runs. */
uint8_t *store_at(const store_t *s, int *fd);

/* This range will be written. */
void store_claim(store_t *s, uint64_t offset, uint64_t len);
/* Between these, pages of zeros that are written to memory take none of it; store_drop_zeros() comes after the writing. */
void store_zeros_cost_nothing(bool begin);
void store_drop_zeros(const store_t *s, uint64_t offset, uint64_t len);
/* Nothing in this range is needed any more; it reads as zeros or as it was. */
void store_release(store_t *s, uint64_t offset, uint64_t len);

/* What the disks take, bytes: of memory, and of room on the file system. */
uint64_t store_memory_bytes(void);
uint64_t store_file_bytes(void);
/* Frees the room in the files that is not in use. */
void store_trim(void);

/* Is there a directory to which the disks could still go, and is that no memory itself? */
bool store_can_move(void);
/* Moves every disk from memory to a file.  0, or -1 with one sentence. */
int store_move(err_t *err);

#endif
