/*
 * The time that OpenZFS's work on data takes on the modelled host's processors, in virtual time: what the specification's
 * rates say for each of the calls that processor.h counts, of data and metadata alike.
 */
#ifndef ZTUNE_WORKTIME_H
#define ZTUNE_WORKTIME_H

#include "spec.h"

/* From here on work takes time; without a processor in the specification it takes none, as before. */
void worktime_begin(const spec_t *spec);
/* … and from here on none again; nobody works. */
void worktime_end(void);

#endif
