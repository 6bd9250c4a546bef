#include "content.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "allzero.h"
#include "chance.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

static uint64_t mix(uint64_t x)
{
	return chance_next(&x);
}

int content_open(const char *path, content_t *c, err_t *err)
{
	struct stat st;
	void *map;
	int fd;

	memset(c, 0, sizeof(*c));
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return err_set(err, "The content pool %s can't be opened: %s.", path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size % CONTENT_CHUNK != 0) {
		(void)close(fd);
		return err_set(err, "The content pool %s must be a file of one or more whole MiB.", path);
	}
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	if (map == MAP_FAILED)
		return err_set(err, "The content pool %s can't be mapped: %s.", path, strerror(errno));
	c->data = map;
	c->len = (size_t)st.st_size;
	c->chunks = (uint64_t)st.st_size / CONTENT_CHUNK;
	return 0;
}

void content_close(content_t *c)
{
	if (c->data != NULL)
		(void)munmap((void *)(uintptr_t)c->data, c->len);
	memset(c, 0, sizeof(*c));
}

static void stamp_pages(uint64_t offset, uint64_t len, uint64_t stamp, uint8_t *buf)
{
	if (stamp == 0)
		return;
	for (uint64_t at = (offset + CONTENT_STAMP - 1) / CONTENT_STAMP * CONTENT_STAMP; at + 8 <= offset + len;
	    at += CONTENT_STAMP) {
		uint64_t v = mix(stamp ^ (at << 1)), page = offset + len - at;

		if ((stamp & CONTENT_LOADED) != 0 &&
		    all_zero(buf + (at - offset), page < CONTENT_STAMP ? page : CONTENT_STAMP))
			continue;
		memcpy(buf + (at - offset), &v, sizeof(v));
	}
}

void content_fill(const content_t *c, uint32_t file, uint64_t offset, uint64_t len, uint64_t stamp, uint8_t *buf)
{
	for (uint64_t done = 0, n; done < len; done += n) {
		uint64_t at = offset + done, in = at % CONTENT_CHUNK;
		uint64_t chunk = mix(((uint64_t)file << 40) ^ (at / CONTENT_CHUNK)) % c->chunks;

		n = MIN(CONTENT_CHUNK - in, len - done);
		memcpy(buf + done, c->data + chunk * CONTENT_CHUNK + in, n);
	}
	stamp_pages(offset, len, stamp, buf);
}

void content_in_turn(const content_t *c, uint64_t offset, uint64_t len, uint64_t stamp, uint8_t *buf)
{
	for (uint64_t done = 0, n; done < len; done += n) {
		uint64_t at = (offset + done) % c->len;

		n = MIN(c->len - at, len - done);
		memcpy(buf + done, c->data + at, n);
	}
	stamp_pages(offset, len, stamp, buf);
}
