#include "worktime.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "processor.h"
#include "vtime.h"

#include "zfs.h"

#define SLOTS 256 /* of a table in which a layout has a few dozen entries */

static const spec_t *host;

static struct {
	bool known;
	int op, algorithm, level, size; /* log2 */
	double ns_per_byte;
} slot[SLOTS];

/* What is not timed goes by another of its kind: their inner loops are alike (as places/calibration.py has it). */
static const char *const like[][2] = {{"zilog2", "fletcher4"}, {"zilog", "fletcher2"}, {"label", "sha256"},
	{"gang_header", "sha256"}};

/* "zstd-9" is zstd at level 9, "zstd-fast-10" zstd at level -10; returns how much of the name is the family. */
static size_t family(const char *name, int *level)
{
	const char *dash = strchr(name, '-');
	bool fast = dash != NULL && strncmp(dash, "-fast-", 6) == 0;

	*level = dash == NULL ? 0 : fast ? -atoi(dash + 6) : atoi(dash + 1);
	return dash == NULL ? strlen(name) : (size_t)(dash - name);
}

/* The rate of this algorithm, else of the nearest level of its family; of this size, else of the nearest. */
static double look_up(const char *operation, const char *name, double size)
{
	const spec_rate_t *best = NULL;
	double best_far = 0;
	int level;
	size_t len = family(name, &level);

	for (size_t i = 0; i < host->nrates; i++) {
		const spec_rate_t *r = &host->rates[i];
		int other;
		double far;

		if (strcmp(r->operation, operation) != 0 || family(r->algorithm, &other) != len ||
		    strncmp(r->algorithm, name, len) != 0)
			continue;
		far = 1000.0 * abs(other - level) + fabs(log2((double)r->size + 1) - size);
		if (best == NULL || far < best_far) {
			best = r;
			best_far = far;
		}
	}
	return best != NULL ? best->ns_per_byte : 0.0;
}

static double rate(processor_op_t op, int algorithm, int level, uint64_t bytes)
{
	int size = bytes > 1 ? 64 - __builtin_clzll(bytes - 1) : 0;
	unsigned i = ((unsigned)op * 31 + (unsigned)algorithm) * 31 + (unsigned)level * 7 + (unsigned)size;
	char name[64];

	i %= SLOTS;
	if (slot[i].known && slot[i].op == (int)op && slot[i].algorithm == algorithm && slot[i].level == level &&
	    slot[i].size == size)
		return slot[i].ns_per_byte;
	processor_algorithm(op, algorithm, level, name, sizeof(name));
	for (size_t k = 0; k < sizeof(like) / sizeof(like[0]); k++)
		if (op == PO_CHECKSUM && strcmp(name, like[k][0]) == 0)
			(void)snprintf(name, sizeof(name), "%s", like[k][1]);
	slot[i].known = true;
	slot[i].op = (int)op;
	slot[i].algorithm = algorithm;
	slot[i].level = level;
	slot[i].size = size;
	/* Parity is vector code as that checksum is. */
	slot[i].ns_per_byte = op == PO_PARITY ? look_up(processor_names[PO_CHECKSUM], "fletcher4", size)
					      : look_up(processor_names[op], name, size);
	return slot[i].ns_per_byte;
}

/*
 * How much of the calibrated time a block takes to compress: zeros next to none, what does not compress at all less than
 * the calibration's words, since all algorithms skip over it.  Measured by processor.c (lz4 on 128 KiB; those words: 1.7 ns
 * per byte): fio's blocks, half noise and half zeros, 0.53, indirect blocks, nearly all zeros, 0.11.  More than half of the
 * calibrated time has no database's block, by how many writes reach a mount's disks together; measured alone, PostgreSQL's
 * take 1.5.  In steps: some metadata comes to a byte more or less in another replay.
 */
#define NOISE 0.6
#define MOST 0.5

static double by_content(processor_op_t op, uint64_t bytes, uint64_t out, uint64_t blank)
{
	double packed = (double)(1 + 32 * out / MAX(bytes, 1)) / 32, full, left;

	if (op == PO_DECOMPRESS)
		return MIN(packed, MOST);
	if (op != PO_COMPRESS)
		return 1.0;
	full = (double)(1 + 32 * (bytes - MIN(blank, bytes)) / MAX(bytes, 1)) / 33;
	left = MIN(packed / full, 1.0); /* of what is no zeros */
	return MIN(MIN(packed, full * (left < 0.75 ? 1.0 : 1.0 - (1.0 - NOISE) * (left - 0.75) / 0.25)), MOST);
}

static void done(processor_op_t op, int algorithm, int level, uint64_t bytes, uint64_t out, uint64_t blank)
{
	double ns = rate(op, algorithm, level, bytes) * by_content(op, bytes, out, blank) * (double)bytes;

	vtime_work((int64_t)(ns * processor_times()));
}

void worktime_begin(const spec_t *spec)
{
	host = spec;
	vtime_processors(spec->cores);
	if (spec->cores > 0)
		processor_done = done;
}

void worktime_end(void)
{
	processor_done = NULL;
	vtime_processors(0);
}
