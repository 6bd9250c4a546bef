#include "hostmemory.h"

#include "zfs.h"

static uint64_t host_memory = 4ULL << 30;
static uint64_t arc_limit = 1ULL << 30;

void hostmemory_init(uint64_t memory, uint64_t arc_max)
{
	host_memory = memory;
	arc_limit = arc_max;
}

/* The modelled host never runs short of memory: the ARC alone limits itself. */
int64_t arc_available_memory(void)
{
	return INT64_MAX;
}

uint64_t arc_free_memory(void)
{
	return host_memory;
}

uint64_t arc_all_memory(void)
{
	return host_memory;
}

/* OpenZFS takes a small zfs_arc_max only if its own first choice is as small. */
uint64_t arc_default_max(uint64_t min, uint64_t allmem)
{
	(void)min, (void)allmem;
	return arc_limit;
}
