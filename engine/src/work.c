#include "work.h"

#include <dlfcn.h>

#include "vtime.h"

#include "zfs.h"

#include <sys/zio_checksum.h>
#include <sys/zio_compress.h>

static const spec_t *host; /* NULL: work takes no time */

#define REAL(fn, name) \
	static fn *real; \
	if (real == NULL) \
	real = (fn *)(uintptr_t)dlsym(RTLD_NEXT, name)

void work_begin(const spec_t *spec)
{
	host = spec->cores > 0 ? spec : NULL;
	vtime_processors(spec->cores);
}

/* The rate of the blocks of this size, or of the nearest that was timed; nothing for what was not. */
static double rate(const char *operation, const char *algorithm, uint64_t size)
{
	const spec_rate_t *best = NULL;

	for (size_t i = 0; i < host->nrates; i++) {
		const spec_rate_t *r = &host->rates[i];

		if (strcmp(r->operation, operation) != 0 || strcmp(r->algorithm, algorithm) != 0)
			continue;
		if (best == NULL ||
		    (r->size >= size ? best->size < size || r->size < best->size
				     : best->size < size && r->size > best->size))
			best = r;
	}
	return best != NULL ? best->ns_per_byte : 0.0;
}

static void work(const char *operation, const char *algorithm, uint64_t size, double more)
{
	vtime_work((int64_t)(more + rate(operation, algorithm, size) * (double)size));
}

static void compression(int c, int level, char *name, size_t len)
{
	if (c == ZIO_COMPRESS_ZSTD && level != 0)
		(void)snprintf(name, len, "zstd-%d", level == ZIO_COMPLEVEL_DEFAULT ? ZIO_ZSTD_LEVEL_DEFAULT : level);
	else
		(void)snprintf(name, len, "%s", zio_compress_table[c].ci_name);
}

/*
 * Versions differ in where a result is put and in what follows the size; all have compression, source, destination and
 * size in front, and at most six arguments, which are handed on as they come.
 */
size_t timed_compress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t len, uintptr_t fifth,
    uintptr_t sixth) __asm__("zio_compress_data");

size_t timed_compress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t len, uintptr_t fifth, uintptr_t sixth)
{
	typedef size_t compress_fn(uintptr_t, uintptr_t, uintptr_t, size_t, uintptr_t, uintptr_t);
	REAL(compress_fn, "zio_compress_data");
	size_t out = real(c, src, dst, len, fifth, sixth);
	char name[32];

	if (host != NULL) {
		compression((int)c, (uint8_t)(OPENZFS_NUMBER >= 20300 ? sixth : fifth), name, sizeof(name));
		work("compress", name, len, 0.0);
	}
	return out;
}

int timed_decompress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t from, size_t len,
    uintptr_t level) __asm__("zio_decompress_data");

int timed_decompress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t from, size_t len, uintptr_t level)
{
	typedef int decompress_fn(uintptr_t, uintptr_t, uintptr_t, size_t, size_t, uintptr_t);
	REAL(decompress_fn, "zio_decompress_data");
	int error = real(c, src, dst, from, len, level);
	char name[32];

	if (host != NULL) {
		compression((int)c, 0, name, sizeof(name));
		work("decompress", name, len, 0.0);
	}
	return error;
}

/* Each block that is written passes here once. */
void zio_checksum_compute(zio_t *z, enum zio_checksum checksum, abd_t *abd, uint64_t size)
{
	typedef void compute_fn(zio_t *, enum zio_checksum, abd_t *, uint64_t);
	REAL(compute_fn, "zio_checksum_compute");

	real(z, checksum, abd, size);
	if (host != NULL)
		work("checksum", zio_checksum_table[checksum].ci_name, size, host->block_us * 1000.0);
}
