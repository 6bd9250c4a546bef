/* Does the library that is loaded match the headers this was built with?  A tiny pool shows it. */
#ifndef ZTUNE_SELFCHECK_H
#define ZTUNE_SELFCHECK_H

#include "err.h"

/* In a child process; 0, or -1 with one sentence. */
int selfcheck_run(err_t *err);

#endif
