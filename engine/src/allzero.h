/* Whether bytes are all zeros: at least one of them. */
#ifndef ZTUNE_ALLZERO_H
#define ZTUNE_ALLZERO_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool all_zero(const uint8_t *p, uint64_t n)
{
	return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

#endif
