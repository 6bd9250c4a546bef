/*
 * The parsers and the device model alone, built under sanitizers for the tests:
 *   plain-check spec FILE | ops FILE | content FILE   exit 0 or, with one sentence on stderr, 2
 *   plain-check model SPEC PROFILE                    reads "io ARRIVAL CLASS OFFSET SIZE" and "flush ARRIVAL
 *                                                     BACKGROUND" lines, prints each finish, then the busy seconds
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "ops.h"
#include "spec.h"

static int bad(const err_t *e)
{
	(void)fprintf(stderr, "%s\n", e->text);
	return EXIT_INPUT;
}

static int run_model(const char *path, const char *profile)
{
	char line[256];
	model_device_t d;
	spec_t s;
	err_t e;
	size_t i;

	if (spec_read(path, &s, &e) != 0) {
		spec_free(&s);
		return bad(&e);
	}
	for (i = 0; i < s.nprofiles && strcmp(s.profiles[i].name, profile) != 0; i++)
		;
	if (i == s.nprofiles)
		return EXIT_FAILED;
	model_init(&d, &s.profiles[i], s.profiles[i].size);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		int64_t at;
		uint64_t off, size;
		int c;

		if (sscanf(line, "io %" SCNd64 " %d %" SCNu64 " %" SCNu64, &at, &c, &off, &size) == 4 && c >= 0 &&
		    c < MIO_COUNT)
			(void)printf("%" PRId64 "\n", model_io(&d, at, (model_class_t)c, off, size));
		else if (sscanf(line, "flush %" SCNd64 " %d", &at, &c) == 2)
			(void)printf("%" PRId64 "\n", model_flush(&d, at, c != 0));
		else
			return EXIT_FAILED;
	}
	(void)printf("%.9f\n", model_busy_s(&d));
	spec_free(&s);
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
	} else if (argc == 4 && strcmp(argv[1], "model") == 0) {
		return run_model(argv[2], argv[3]);
	} else {
		return EXIT_FAILED;
	}
	return rc != 0 ? bad(&e) : 0;
}
