/* How fast this processor is at what OpenZFS does to data. */
#ifndef ZTUNE_CALIBRATE_H
#define ZTUNE_CALIBRATE_H

#include <jansson.h>

#include "err.h"

/*
 * Times each algorithm on blocks of several sizes, by OpenZFS's own functions, on data that compress to about half.
 * Takes seconds.  NULL with one sentence if OpenZFS can't be started.
 */
json_t *calibrate_run(err_t *err);

#endif
