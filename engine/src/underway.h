/* Calls of a trace that had begun and not ended at a time which only goes on.  Knows nothing of OpenZFS. */
#ifndef ZTUNE_UNDERWAY_H
#define ZTUNE_UNDERWAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops.h"

typedef struct {
	uint32_t *call;
	size_t n, room;
} underway_t;

void underway_add(underway_t *u, uint32_t call);
/* Takes out a call that had ended by t, ns, from place *k on, which begins at 0; false when there is none. */
bool underway_ended(underway_t *u, const ops_t *ops, int64_t t, size_t *k, uint32_t *call);
void underway_free(underway_t *u);

#endif
