/* A unix socket that answers questions about the mount: one line in, one line of JSON out. */
#ifndef ZTUNE_CONTROL_H
#define ZTUNE_CONTROL_H

#include "err.h"
#include "filelayer.h"
#include "latency.h"
#include "spec.h"

/* Serves with a thread of its own from here on. */
int control_start(const char *path, const spec_t *spec, fl_volume_t **vols, const calls_t *calls, err_t *err);
void control_reset(void);
/* What is asked from here on is never answered: volumes and pools may go. */
void control_end(void);

#endif
