/*
 * Numbers that look like chance and are the same each time: splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
 */
#ifndef ZTUNE_CHANCE_H
#define ZTUNE_CHANCE_H

#include <stdint.h>

/* The next number of a state, which may begin with any. */
static inline uint64_t chance_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ULL;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

#endif
