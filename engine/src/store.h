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

#define STORE_PART (64ULL << 20) /* bytes: what is saved and mapped at a time */
#define STORE_PAGES 16384U       /* in each */

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

/*
 * An image: what disks hold, kept in a file, part by part.  store_used() is what store_map() needs to know of a part:
 * a byte for each page, 0 where nothing is; NULL if it is empty.  store_save() writes a part to the file and gives its
 * memory back.  store_map() makes a part of an empty disk begin as the file has it; the file is never written, and its
 * pages are shared by all who map it.  0, or -1 with errno.
 */
uint64_t store_parts(const store_t *s);
const uint8_t *store_used(const store_t *s, uint64_t part);
int store_save(const store_t *s, uint64_t part, int fd, uint64_t at);
int store_map(store_t *s, uint64_t part, int fd, uint64_t at, const uint8_t *used);

/* Is there a directory to which the disks could still go, and is that no memory itself? */
bool store_can_move(void);
/* Moves every disk from memory to a file.  0, or -1 with one sentence. */
int store_move(err_t *err);

#endif
