/*
 * What the I/O of a sampled file stands for.  Of a block of data: as many as the sampling's rate.  Of an indirect block:
 * as many as the whole file has of that level for each that the sample has.  What is written to the intent log of a
 * sampled file stands for as many bytes as its data does.  Everything else stands for itself.  Knows nothing of OpenZFS.
 */
#ifndef ZTUNE_WEIGHTS_H
#define ZTUNE_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#define WEIGHT_LEVELS 8

/* One byte in so many was sampled; 1: all. */
void weights_begin(double rate);
double weights_rate(void);

/* Of an object's blocks, by their level: how many each stands for. */
void weights_set(int pool, uint64_t objset, uint64_t object, const double level[WEIGHT_LEVELS]);
double weights_of(int pool, uint64_t objset, uint64_t object, int64_t level);

/* It is a file that nothing reads, and stands for itself: a log. */
void weights_set_log(int pool, uint64_t objset, uint64_t object);
bool weights_is_log(int pool, uint64_t objset, uint64_t object);

/* How many each stands for, in a file of so many records of which some were sampled. */
void weights_levels(uint64_t whole, uint64_t sampled, double level[WEIGHT_LEVELS]);

/* A sampled file's data goes to the log of its dataset with what is written to that next. */
void weights_logged(int pool, uint64_t objset, uint64_t bytes);
/* How many bytes each of a block of the log stands for. */
double weights_log(int pool, uint64_t objset, uint64_t bytes);

#endif
