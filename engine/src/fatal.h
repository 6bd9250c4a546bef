/* What ends a program inside OpenZFS. */
#ifndef ZTUNE_FATAL_H
#define ZTUNE_FATAL_H

/*
 * From now on a failed check of OpenZFS's own (abort), a division by zero or a wrong address ends the process with exit
 * code 1, after where it was and a sentence: "OpenZFS stopped itself <while> (...)".
 */
void fatal_catch(const char *while_);

#endif
