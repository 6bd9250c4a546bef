/* JSON objects, filled. */
#ifndef ZTUNE_PUT_H
#define ZTUNE_PUT_H

#include <jansson.h>
#include <stdint.h>

#include "disks.h"
#include "spec.h"

void put(json_t *o, const char *key, uint64_t value);
void put_real(json_t *o, const char *key, double value); /* 0 for what is no number */
void put_text(json_t *o, const char *key, const char *value);

void put_sum(json_t *o, const char *key, double value); /* a count, rounded */

/* reads, read_bytes, writes, write_bytes */
json_t *counts(const io_sum_t *c);

/* What was counted of a disk, and which it is; of each cause; of each dataset. */
json_t *disk_counts(const spec_t *spec, const disk_t *d);
json_t *cause_counts(void);
json_t *dataset_counts(const spec_t *spec);

#endif
