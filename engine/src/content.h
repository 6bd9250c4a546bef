/* What files hold: blocks sampled from the real ones, or made to compress like them.  Knows nothing of OpenZFS. */
#ifndef ZTUNE_CONTENT_H
#define ZTUNE_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

#define CONTENT_CHUNK (1U << 20)
#define CONTENT_STAMP 4096U
/* In a stamp that no write has: pages of zeros stay such, since OpenZFS makes holes of them. */
#define CONTENT_LOADED (1ULL << 62)

typedef struct {
	const uint8_t *data;
	uint64_t chunks;
	size_t len;
} content_t;

/* Maps a pool; 0, or -1 with one sentence. */
int content_open(const char *path, content_t *c, err_t *err);
void content_close(content_t *c);

/*
 * Fills buf with what the file holds at offset.  Every 4 KiB boundary of the file inside the range gets 8 bytes that
 * depend on the stamp, so that an overwrite changes each block; stamp 0 writes the sample unchanged.
 */
void content_fill(const content_t *c, uint32_t file, uint64_t offset, uint64_t len, uint64_t stamp, uint8_t *buf);

/* Fills it likewise with the pool from its start to its end, and again: so many bytes as it has are all of it. */
void content_in_turn(const content_t *c, uint64_t offset, uint64_t len, uint64_t stamp, uint8_t *buf);

#endif
