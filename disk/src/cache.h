/*
 * The volatile write cache of a disk: what was acknowledged and is not on the medium.  Lives in memory only, so that
 * dropping it is a power cut.
 */
#ifndef ZTUNE_CACHE_H
#define ZTUNE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that lie next to each other.  Extents never overlap. */
typedef struct extent {
	uint64_t off;
	uint32_t len, room; /* bytes used and allocated */
	uint8_t *data;
	uint64_t seq; /* of its oldest write: a flush waits for all that is not younger than itself */
	int64_t time; /* of its oldest write */
	/* treap by offset */
	uint32_t priority;
	uint64_t min_seq; /* least seq below and here */
	struct extent *left, *right;
} extent_t;

typedef struct {
	extent_t *root;
	uint64_t bytes, extents;
	uint64_t random;
} cache_t;

#define CACHE_RUN (1u << 20) /* longest extent, and most that is written to the medium at once */

/* Takes a copy; of no data (NULL) the place alone.  Returns true if it was merged with an extent that was there, so that the medium sees one write less. */
bool cache_write(cache_t *c, uint64_t off, uint32_t len, const uint8_t *data, uint64_t seq, int64_t time);

/* Lays what is cached over buf, the medium's bytes at off. */
void cache_read(const cache_t *c, uint64_t off, uint32_t len, uint8_t *buf);

/* Whether all of a range is cached. */
bool cache_covers(const cache_t *c, uint64_t off, uint64_t len);

/* Forgets a range. */
void cache_drop(cache_t *c, uint64_t off, uint64_t len);

/* The first extent at off or behind; NULL if there is none. */
extent_t *cache_at(const cache_t *c, uint64_t off);

/* The extent with the oldest write; NULL if empty. */
extent_t *cache_oldest(const cache_t *c);

/* UINT64_MAX if empty. */
uint64_t cache_min_seq(const cache_t *c);

/* Takes an extent out; the caller frees it. */
extent_t *cache_take(cache_t *c, uint64_t off);

void extent_free(extent_t *e);
void cache_clear(cache_t *c);

#endif
