#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fail(int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)fputs("ztune-disk: ", stderr);
	(void)vfprintf(stderr, fmt, ap);
	(void)fputc('\n', stderr);
	va_end(ap);
	exit(code);
}

static const struct {
	const char *name;
	size_t at;
	double least, most;
} numbers[] = {
	{"size", offsetof(options_t, size), 1 << 20, 1e18},
	{"cache", offsetof(options_t, cache), 0, 1 << 30},
	{"dilation", offsetof(options_t, dilation), 1e-3, 1e6},
	{"lazy", offsetof(options_t, lazy), 0, 1},
	{"hdd", offsetof(options_t, hdd), 0, 1},
	{"protected", offsetof(options_t, protected), 0, 1},
	{"ignores_flushes", offsetof(options_t, ignores_flushes), 0, 1},
	{"rpm", offsetof(options_t, profile.rpm), 1, 1e6},
	{"seek_track_ms", offsetof(options_t, profile.seek_track_ms), 0, 1e6},
	{"seek_avg_ms", offsetof(options_t, profile.seek_avg_ms), 0, 1e6},
	{"seek_full_ms", offsetof(options_t, profile.seek_full_ms), 0, 1e6},
	{"flush_ms", offsetof(options_t, profile.flush_ms), 0, 1e6},
	{"channels", offsetof(options_t, profile.channels), 1, MODEL_MAX_CHANNELS},
	{"read_us", offsetof(options_t, profile.read_us), 0, 1e9},
	{"write_us", offsetof(options_t, profile.write_us), 0, 1e9},
	{"flush_us", offsetof(options_t, profile.flush_us), 0, 1e9},
	{"read_mb_s", offsetof(options_t, profile.read_mb_s), 1e-3, 1e6},
	{"write_mb_s", offsetof(options_t, profile.write_mb_s), 1e-3, 1e6},
	{"overhead_us", offsetof(options_t, profile.overhead_us), 0, 1e9},
};

void options_parse(options_t *o, int argc, char **argv)
{
	memset(o, 0, sizeof(*o));
	o->dilation = 1.0;
	o->profile.channels = 1.0;
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '='), *end;
		size_t n, count = sizeof(numbers) / sizeof(numbers[0]);

		if (value == NULL)
			fail(2, "'%s' is not KEY=VALUE", argv[i]);
		*value++ = '\0';
		if (strcmp(argv[i], "socket") == 0) {
			o->socket = value;
			continue;
		}
		if (strcmp(argv[i], "control") == 0) {
			o->control = value;
			continue;
		}
		if (strcmp(argv[i], "guest") == 0) {
			o->guest = value;
			continue;
		}
		if (strcmp(argv[i], "file") == 0) {
			o->file = value;
			continue;
		}
		for (n = 0; n < count && strcmp(argv[i], numbers[n].name) != 0; n++)
			;
		if (n == count)
			fail(2, "unknown key '%s'", argv[i]);
		errno = 0;
		double number = strtod(value, &end);
		if (end == value || *end != '\0' || errno != 0 ||
		    !(number >= numbers[n].least && number <= numbers[n].most))
			fail(2, "%s=%s is not a number from %g to %g", argv[i], value, numbers[n].least,
			    numbers[n].most);
		*(double *)(void *)((char *)o + numbers[n].at) = number;
	}
	o->profile.hdd = o->profile.rotational = o->hdd != 0.0;
	o->profile.protected = o->protected != 0.0;
	o->profile.ignores_flushes = o->ignores_flushes != 0.0;
	if (o->size == 0.0 || o->profile.read_mb_s == 0.0 || o->profile.write_mb_s == 0.0 ||
	    (o->profile.hdd && o->profile.rpm == 0.0))
		fail(2, "needed are size=, read_mb_s=, write_mb_s=, with hdd=1 also rpm=");
}
