/* The result as JSON. */
#ifndef ZTUNE_REPORT_H
#define ZTUNE_REPORT_H

#include "replay.h"

/* Keeps a sentence for the result's "warnings"; the same one only once. */
void report_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The result as one line of JSON, to be freed; every number is finite. */
char *report_text(const spec_t *spec, result_t *r);

#endif
