/* One dataset as a FUSE file system. */
#ifndef ZTUNE_FRONT_H
#define ZTUNE_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "filelayer.h"
#include "latency.h"
#include "spec.h"

typedef struct front front_t;

/*
 * Mounts a volume and serves it with threads of its own from here on.  page_cache: the kernel's page cache holds what
 * was read and written, as with other FUSE file systems; else it all passes through, as with ZFS itself.  calls: where
 * it is noted how long they take.
 */
int front_mount(fl_volume_t *vol, calls_t *calls, const spec_dataset_t *dataset, const char *directory, bool page_cache,
    front_t **front, err_t *err);

/* Was it unmounted from outside? */
bool front_ended(const front_t *front);

/* Unmounts; what is open gets errors from now on (returns true then).  All that was begun is done when it returns. */
bool front_unmount(front_t *front);

#endif
