/*
 * A layout's disks in the place of OpenZFS's file and disk vdevs: what is the same whatever stands behind them.  A
 * program has one disk_begin() and one disk_end(), which do the I/O.
 */
#ifndef ZTUNE_DISKVDEV_H
#define ZTUNE_DISKVDEV_H

#include "disks.h"
#include "zfs.h"

/* A read, a write or a flush within the disk begins; it is over with zio_interrupt(). */
void disk_begin(zio_t *zio, disk_t *disk);
/* What began is over. */
void disk_end(void);

/* Reads or writes the file behind a disk: 0, an errno, or -1 at its end. */
int disk_file_io(int fd, zio_t *zio);

#endif
