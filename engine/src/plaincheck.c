/*
 * The parsers, the order of calls, what is touched and what stands for what, alone, built under sanitizers for the tests:
 *   plain-check spec FILE | ops FILE | content FILE   exit 0 or, with one sentence on stderr, 2
 *   plain-check order FILE NFILES strict|loose|told   reads lines: "waits CALL" prints which file it waits for,
 *                                                     "after CALL" which sync, or -1; "waited CALL" how long, ns;
 *                                                     "done CALL" and "arrives FILE" print nothing
 *   plain-check store DIR memory|file                 an image of a disk made there begins another one
 *   plain-check touched FILE RECORDSIZE RECORDS       prints the records of file 0 that the operations touch
 *   plain-check weights RATE                          reads lines: "set OBJECT WHOLE SAMPLED WRITTEN" and "log OBJECT"
 *                                                     print nothing, "of …", "bytes …" and "dirtied OBJECT LEVEL TXG"
 *                                                     and "logged BYTES BLOCK" a weight
 */
#include <inttypes.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "content.h"
#include "ops.h"
#include "order.h"
#include "spec.h"
#include "spread.h"
#include "store.h"
#include "touched.h"
#include "waits.h"
#include "weights.h"

#define PAGE 4096U

static int bad(const err_t *e)
{
	(void)fprintf(stderr, "%s\n", e->text);
	return EXIT_INPUT;
}

static int run_order(const char *path, const char *nfiles, int how)
{
	char line[64];
	order_t order;
	ops_t o;
	err_t e;
	uint64_t call;

	if (ops_read(path, &o, &e) != 0)
		return bad(&e);
	order_make(&order, &o, 0, strtoul(nfiles, NULL, 10), how);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (sscanf(line, "waits %" SCNu64, &call) == 1 && call < o.nops)
			(void)printf("%" PRId32 "\n", order_waits_for(&order, call));
		else if (sscanf(line, "after %" SCNu64, &call) == 1 && call < o.nops)
			(void)printf("%" PRId32 "\n", (int32_t)order.after[call]);
		else if (sscanf(line, "waited %" SCNu64, &call) == 1 && call < o.nops)
			(void)printf("%" PRId64 "\n", order.waited[call]);
		else if (sscanf(line, "done %" SCNu64, &call) == 1 && call < o.nops)
			order_done(&order, call);
		else if (sscanf(line, "arrives %" SCNu64, &call) == 1 && call < order.nfiles)
			order_by_arrival(&order, (int32_t)call);
		else
			return EXIT_FAILED;
	}
	order_free(&order);
	ops_free(&o);
	return 0;
}

static void put_page(store_t *s, uint64_t page, uint8_t byte)
{
	uint8_t buf[PAGE], *mem;
	int fd;

	store_claim(s, page * PAGE, PAGE);
	if ((mem = store_at(s, &fd)) != NULL) {
		memset(mem + page * PAGE, byte, PAGE);
		return;
	}
	memset(buf, byte, PAGE);
	if (pwrite(fd, buf, PAGE, (off_t)(page * PAGE)) != PAGE)
		abort();
}

static bool page_is(const store_t *s, uint64_t page, uint8_t byte)
{
	uint8_t buf[PAGE], *mem;
	int fd;

	if ((mem = store_at(s, &fd)) != NULL)
		memcpy(buf, mem + page * PAGE, PAGE);
	else if (pread(fd, buf, PAGE, (off_t)(page * PAGE)) != PAGE)
		return false;
	for (size_t i = 0; i < PAGE; i++)
		if (buf[i] != byte)
			return false;
	return true;
}

/* Pages at the beginning, in the middle, on both sides of a part's end, and the last. */
static int run_store(const char *dir, bool files)
{
	const uint64_t size = 3 * STORE_PART + 5 * PAGE, last = size / PAGE - 1;
	const uint64_t pages[] = {0, 7, STORE_PAGES - 1, STORE_PAGES, 2 * STORE_PAGES + 3, last};
	const size_t n = sizeof(pages) / sizeof(pages[0]);
	char path[4096];
	uint64_t slot = 0;
	store_t *from, *to;
	err_t e;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/image", dir);
	store_begin(dir, files);
	if ((fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0 ||
	    (from = store_open(size, &e)) == NULL || (to = store_open(size, &e)) == NULL)
		return EXIT_FAILED;
	for (size_t i = 0; i < n; i++)
		put_page(from, pages[i], (uint8_t)(i + 1));
	for (uint64_t p = 0; p < store_parts(from); p++) {
		if (store_used(from, p) == NULL)
			continue;
		if (store_save(from, p, fd, slot * STORE_PART) != 0 ||
		    ftruncate(fd, (off_t)((slot + 1) * STORE_PART)) != 0 ||
		    store_map(to, p, fd, slot * STORE_PART, store_used(from, p)) != 0)
			return EXIT_FAILED;
		slot++;
	}
	store_release(from, 0, size);
	for (size_t i = 0; i < n; i++)
		if (!page_is(to, pages[i], (uint8_t)(i + 1)))
			return EXIT_FAILED;
	if (!page_is(to, 1, 0) || store_memory_bytes() != 0)
		return EXIT_FAILED;
	/* What is written is one's own, and given back; the image stays as it was, and what was there comes again. */
	put_page(to, pages[1], 100);
	put_page(to, 9, 101);
	if (!page_is(to, pages[1], 100) || !page_is(to, 9, 101) || store_memory_bytes() != (files ? 0 : 2 * PAGE))
		return EXIT_FAILED;
	store_release(to, 0, STORE_PART);
	put_page(to, pages[0], 102);
	if (!page_is(to, pages[0], 102) || store_memory_bytes() != (files ? 0 : PAGE))
		return EXIT_FAILED;
	/* And so does a disk that moves from memory to a file, the image's pages with it. */
	if (!files && store_can_move() && store_move(&e) != 0)
		return EXIT_FAILED;
	if (!page_is(to, pages[0], 102) || !page_is(to, pages[3], 4) || !page_is(to, last, (uint8_t)n))
		return EXIT_FAILED;
	return 0;
}

static int run_touched(const char *path, const char *recordsize, const char *records)
{
	touched_t t = {.recordsize = strtoul(recordsize, NULL, 10), .records = strtoul(records, NULL, 10)};
	uint64_t n = 0;
	ops_t o;
	err_t e;

	if (ops_read(path, &o, &e) != 0)
		return bad(&e);
	touched_find(&o, &t, 1);
	for (uint64_t i = 0; i < t.records; i++)
		if (touched_has(&t, i)) {
			(void)printf("%" PRIu64 "\n", i);
			n++;
		}
	if (n != t.count || touched_has(&t, t.records))
		return EXIT_FAILED;
	touched_free(&t);
	ops_free(&o);
	return 0;
}

static int run_weights(const char *rate)
{
	char line[128];
	uint64_t object, a, b, block = 0;
	static weights_range_t certain[64];
	size_t ncertain = 0;
	int64_t level;
	int written;
	double of_file = strtod(rate, NULL);

	weights_begin(of_file);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		b = UINT32_MAX; /* no block's number */
		if (sscanf(line, "set %" SCNu64 " %" SCNu64 " %" SCNu64 " %d", &object, &a, &b, &written) == 4)
			weights_set(0, 1, object,
			    &(weights_file_t){
				    .whole = a,
				    .sampled = b,
				    .rate = of_file,
				    .sector = 4096,
				    .written = written != 0,
				    .certain = certain,
				    .ncertain = ncertain,
			    });
		else if (sscanf(line, "rate %lf", &of_file) == 1)
			continue;
		else if (sscanf(line, "certain %" SCNu64 " %" SCNu64, &a, &b) == 2 && ncertain < 64)
			certain[ncertain++] = (weights_range_t){a, b};
		else if (sscanf(line, "own %" SCNu64 " %" SCNu64 " %" SCNu64, &object, &a, &b) == 3)
			weights_set_own(0, 1, object, (weights_range_t){a, b});
		else if (sscanf(line, "log %" SCNu64 " %" SCNu64, &object, &a) == 2)
			(void)printf("%d\n", weights_is_log(0, 1, object, a));
		else if (sscanf(line, "of %" SCNu64 " %" SCNd64 " %" SCNu64 " %" SCNu64, &object, &level, &a, &b) >= 3)
			(void)printf("%.6f\n", weights_of((weights_block_t){0, 1, object, level, b}, a).blocks);
		else if (sscanf(line, "bytes %" SCNu64 " %" SCNd64 " %" SCNu64 " %" SCNu64, &object, &level, &a, &b) >=
		    3)
			(void)printf("%.6f\n", weights_of((weights_block_t){0, 1, object, level, b}, a).bytes);
		else if (sscanf(line, "dirtied %" SCNu64 " %" SCNd64 " %" SCNu64 " %" SCNu64, &object, &level, &a,
			     &b) >= 3)
			(void)printf("%.6f\n", weights_dirtied((weights_block_t){0, 1, object, level, b}, a));
		else if (sscanf(line, "logged %" SCNu64 " %" SCNu64, &a, &b) == 2) {
			weights_logged(0, 1, a, of_file);
			(void)printf("%.6f\n", weights_log(0, 1, ++block, b));
		} else if (strcmp(line, "again\n") == 0) {
			(void)printf("%.6f\n", weights_log(0, 1, block, 4096));
		} else {
			return EXIT_FAILED;
		}
	}
	return 0;
}

#define WAIT_THREADS 256

static int run_waits(void)
{
	static wait_sum_t w[WAIT_THREADS];
	static double whole[WAIT_THREADS][WAIT_KINDS];
	char line[128];
	unsigned int thread, kind;
	double a, b;
	bool told = false;

	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (sscanf(line, "wait %u %u %lf %lf", &thread, &kind, &a, &b) == 4 && thread < WAIT_THREADS &&
		    kind < WAIT_KINDS) {
			wait_add(&w[thread], (int)kind, a, b);
		} else if (sscanf(line, "whole %u %lf %lf", &thread, &a, &b) == 3 && thread < WAIT_THREADS) {
			whole[thread][WAIT_READ] = a;
			whole[thread][WAIT_WRITE] = b;
			told = true;
		} else {
			return EXIT_FAILED;
		}
	}
	(void)printf("%.9f\n", wait_most(w, WAIT_THREADS, told ? whole : NULL));
	return 0;
}

/* Reads "add HERE WHOLE" and "at SHARE", each a line; says how many times as much the whole is, and each share of it. */
static int run_spread(void)
{
	spread_t s = {0};
	char line[128];
	double a, b;

	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (sscanf(line, "add %lf %lf", &a, &b) == 2)
			spread_add(&s, a, b);
		else if (sscanf(line, "at %lf", &a) == 1)
			(void)printf("%.9f\n", spread_share(&s, a));
		else
			return EXIT_FAILED;
	}
	(void)printf("%.9f\n", spread_times(&s));
	spread_free(&s);
	return 0;
}

int main(int argc, char **argv)
{
	err_t e;
	int rc = 0;

	if (argc == 3 && strcmp(argv[1], "spec") == 0) {
		spec_t s;
		rc = spec_read(argv[2], &s, &e);
		spec_free(&s);
	} else if (argc == 3 && strcmp(argv[1], "ops") == 0) {
		ops_t o;
		rc = ops_read(argv[2], &o, &e);
		ops_free(&o);
	} else if (argc == 3 && strcmp(argv[1], "content") == 0) {
		content_t c;
		uint8_t buf[20000];
		if ((rc = content_open(argv[2], &c, &e)) == 0)
			content_fill(&c, 7, 3 * CONTENT_CHUNK - 9999, sizeof(buf), 5, buf);
		content_close(&c);
	} else if (argc == 5 && strcmp(argv[1], "order") == 0) {
		return run_order(argv[2], argv[3],
		    (strcmp(argv[4], "strict") == 0 ? ORDER_STRICT : 0) |
			(strcmp(argv[4], "told") == 0 ? ORDER_TOLD : 0) | ORDER_WAITED);
	} else if (argc == 5 && strcmp(argv[1], "touched") == 0) {
		return run_touched(argv[2], argv[3], argv[4]);
	} else if (argc == 3 && strcmp(argv[1], "weights") == 0) {
		return run_weights(argv[2]);
	} else if (argc == 2 && strcmp(argv[1], "waits") == 0) {
		return run_waits();
	} else if (argc == 2 && strcmp(argv[1], "spread") == 0) {
		return run_spread();
	} else if (argc == 4 && strcmp(argv[1], "store") == 0) {
		return run_store(argv[2], strcmp(argv[3], "file") == 0);
	} else {
		return EXIT_FAILED;
	}
	return rc != 0 ? bad(&e) : 0;
}
