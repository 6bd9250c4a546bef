/*
 * The processor time that OpenZFS's work on data takes on the modelled host, in virtual time: of compression,
 * decompression and checksums what a calibration says, and of each block a fixed time for the way through the pipeline.
 */
#ifndef ZTUNE_WORK_H
#define ZTUNE_WORK_H

#include "spec.h"

/* From here on work takes the time that the spec's processor needs; without one it takes none, as before. */
void work_begin(const spec_t *spec);

#endif
