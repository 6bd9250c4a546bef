#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memvdev.h"

#define HEAD 4096
#define MAGIC "ztune-image " ENGINE_VERSION " " OPENZFS_STRING

/*
 * The file: a page with this, the parts of the disks that hold something, one after another (sparse), and a list of what
 * they are.  Only the very engine that wrote it reads it, on the machine that it was written on.
 */
typedef struct {
	char magic[256];
	uint64_t list, size; /* where the list is, bytes */
} head_t;

static struct {
	const char *at, *end; /* of what is left of the list */
	int fd;
} I;

static uint64_t place(uint64_t slot)
{
	return HEAD + slot * STORE_PART;
}

static void add(FILE *list, const void *what, size_t len)
{
	(void)fwrite(what, 1, len, list);
}

static void add_number(FILE *list, uint64_t n)
{
	add(list, &n, sizeof(n));
}

static int save_disks(FILE *list, int fd, uint64_t *slots)
{
	size_t n;
	disk_t *d = disks_all(&n);

	*slots = 0;
	add_number(list, n);
	for (size_t i = 0; i < n; i++) {
		const store_t *s = memvdev_store(&d[i]);
		uint64_t parts = 0;

		for (uint64_t p = 0; p < store_parts(s); p++)
			parts += store_used(s, p) != NULL;
		add(list, d[i].path, sizeof(d[i].path));
		add_number(list, d[i].size);
		add_number(list, parts);
		for (uint64_t p = 0; p < store_parts(s); p++) {
			if (store_used(s, p) == NULL)
				continue;
			add_number(list, p);
			add(list, store_used(s, p), STORE_PAGES);
			if (store_save(s, p, fd, place((*slots)++)) != 0)
				return -1;
		}
	}
	return 0;
}

static int write_all(int fd, const void *what, size_t len, uint64_t at)
{
	ssize_t n = pwrite(fd, what, len, (off_t)at);

	if (n >= 0 && (size_t)n < len)
		errno = ENOSPC;
	return n >= 0 && (size_t)n == len ? 0 : -1;
}

int image_save(const spec_t *spec, const char *path, const void *known, size_t size, err_t *err)
{
	head_t head = {.magic = MAGIC};
	char *text = NULL;
	uint64_t slots;
	size_t len;
	FILE *list = open_memstream(&text, &len);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), rc = -1;

	if (list == NULL)
		abort();
	add_number(list, size);
	add(list, known, size);
	for (size_t p = 0; p < spec->npools; p++) {
		char *packed;
		size_t n;

		if (pool_pack(spec, (int)p, &packed, &n, err) != 0)
			return -1;
		add_number(list, n);
		add(list, packed, n);
	}
	if (fd >= 0 && save_disks(list, fd, &slots) == 0 && fclose(list) == 0) {
		head.list = place(slots);
		head.size = len;
		/* The head says that all the rest is there: it comes last. */
		if (ftruncate(fd, (off_t)(head.list + len)) == 0 && write_all(fd, text, len, head.list) == 0 &&
		    fdatasync(fd) == 0 && write_all(fd, &head, sizeof(head), 0) == 0)
			rc = close(fd);
	}
	return rc == 0 ? 0 : err_set(err, "The image %s can't be written: %s.", path, strerror(errno));
}

static const char *next(size_t len)
{
	const char *at = I.at;

	if (at == NULL || len > (size_t)(I.end - at))
		return I.at = NULL;
	I.at += len;
	return at;
}

static uint64_t next_number(void)
{
	const char *at = next(sizeof(uint64_t));
	uint64_t n = 0;

	if (at != NULL)
		memcpy(&n, at, sizeof(n));
	return n;
}

static const void *damaged(const char *path, err_t *err)
{
	(void)err_set(err, "%s is no image that this engine wrote, or it is damaged.", path);
	return NULL;
}

static const void *unreadable(const char *path, err_t *err)
{
	(void)err_set(err, "The image %s can't be read: %s.", path, strerror(errno));
	return NULL;
}

/* What is known, the pools' configurations and the disks follow one another; the disks come first here. */
const void *image_open(const spec_t *spec, const char *path, size_t len, err_t *err)
{
	const char *known, *pools, *at;
	uint64_t slot = 0, n;
	char *list;
	head_t head;

	if ((I.fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return unreadable(path, err);
	if (pread(I.fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    memcmp(head.magic, MAGIC, sizeof(MAGIC)) != 0)
		return damaged(path, err);
	if ((list = malloc(head.size)) == NULL)
		abort();
	if (pread(I.fd, list, head.size, (off_t)head.list) != (ssize_t)head.size)
		return damaged(path, err);
	I.at = list;
	I.end = list + head.size;
	if (next_number() != len)
		return damaged(path, err);
	known = next(len);
	pools = I.at;
	for (size_t p = 0; p < spec->npools; p++)
		(void)next(next_number());
	n = next_number();
	for (uint64_t i = 0; i < n && I.at != NULL; i++) {
		const char *name = next(sizeof(((disk_t *)0)->path));
		uint64_t size = next_number(), parts = next_number();
		disk_t *d = disks_at(name);

		if (d == NULL || d->size != size) {
			(void)err_set(err, "The image %s has a disk that the layout has not.", path);
			return NULL;
		}
		for (uint64_t k = 0; k < parts; k++) {
			uint64_t part = next_number();

			at = next(STORE_PAGES);
			if (at == NULL || part >= store_parts(memvdev_store(d)))
				return damaged(path, err);
			if (store_map(memvdev_store(d), part, I.fd, place(slot++), (const uint8_t *)at) != 0)
				return unreadable(path, err);
		}
	}
	if (I.at == NULL)
		return damaged(path, err);
	I.at = pools;
	return known;
}

int image_import(const spec_t *spec, const pace_t *pace, err_t *err)
{
	for (size_t p = 0; p < spec->npools; p++) {
		size_t n = next_number();

		/* OpenZFS's type is not const. */
		if (pool_unpack(spec, pace, (int)p, (char *)(uintptr_t)next(n), n, err) != 0)
			return -1;
	}
	return 0;
}
