/*
 * The parsers and the order of calls alone, built under sanitizers for the tests:
 *   plain-check spec FILE | ops FILE | content FILE   exit 0 or, with one sentence on stderr, 2
 *   plain-check order FILE NFILES strict|loose        reads lines: "waits CALL" prints which file it waits for,
 *                                                     "after CALL" which sync, or -1; "waited CALL" how long, ns;
 *                                                     "done CALL" prints nothing
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "ops.h"
#include "order.h"
#include "spec.h"

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
		else
			return EXIT_FAILED;
	}
	order_free(&order);
	ops_free(&o);
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
		return run_order(argv[2], argv[3], (strcmp(argv[4], "strict") == 0 ? ORDER_STRICT : 0) | ORDER_WAITED);
	} else {
		return EXIT_FAILED;
	}
	return rc != 0 ? bad(&e) : 0;
}
