/* What this process takes of the machine: it goes last in line, and ends itself at its limits. */
#ifndef ZTUNE_FOOTPRINT_H
#define ZTUNE_FOOTPRINT_H

#include <stdint.h>

/* Gives way to every other process: processor, disk, and the kernel's choice when memory runs out. */
void footprint_yield(void);

/*
 * From now on this process is watched.  Near memory_max (bytes; 0 = none) its disks move to files, if they can; at the
 * limit, or where the files need more than file_max (0 = none), the process ends with one sentence and EXIT_LIMIT.  Once
 * the disks are made.
 */
void footprint_watch(uint64_t memory_max, uint64_t file_max);

/* The most memory that was seen, bytes; pages of files that the kernel can drop are not counted. */
uint64_t footprint_peak(void);

#endif
