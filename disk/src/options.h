/* What a disk is: KEY=VALUE on the command line, made by ztune from a profile. */
#ifndef ZTUNE_OPTIONS_H
#define ZTUNE_OPTIONS_H

#include "model.h"

typedef struct {
	model_profile_t profile;
	const char *socket, *control, *guest, *file;
	double size, cache, dilation;                 /* size and cache in bytes */
	double lazy, hdd, protected, ignores_flushes; /* 0 or 1 */
} options_t;

/* Ends the program with a sentence if something is wrong. */
void options_parse(options_t *o, int argc, char **argv);

void __attribute__((format(printf, 2, 3), noreturn)) fail(int code, const char *fmt, ...);

#endif
