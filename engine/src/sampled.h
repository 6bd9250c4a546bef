/*
 * What OpenZFS counts while only a part of the data is there.  Records that the trace never touches are put into a file
 * as block pointers that hold their few bytes themselves (as OpenZFS does with what compresses to next to nothing): they
 * take no room and no I/O, and the indirect blocks above them are as full, and compress as badly, as with all records.
 * Dirty data of a sampled file counts as much as what it stands for, so that OpenZFS's limits stay as they are.
 */
#ifndef ZTUNE_SAMPLED_H
#define ZTUNE_SAMPLED_H

#include "filelayer.h"
#include "touched.h"

/* The pools were closed and opened again: nothing of them is dirty. */
void sampled_pools_are_new(void);
/* Which of the layout's pools a volume is on. */
void sampled_volume(const fl_volume_t *vol, int pool);

/*
 * Sets the ARC's limit: this, and what would be a smaller part of a larger ARC: so many bytes that are there whatever was
 * sampled, what is dirty of files that stand for themselves, and blocks of logs that will not stay.
 */
uint64_t sampled_arc_limit(uint64_t limit, uint64_t whole);

/*
 * A block of a log was written (zio_t).  In the ARC of a sample it would take so many times the part that it has of the
 * whole: one in so many stays there, the others go when their group has ended and the log is at another block, or two
 * groups later.  As long as they are there the ARC has room for them on top: beside what is dirty, which OpenZFS keeps
 * once more as it was written.
 */
void sampled_written(const void *zio);
/* A call begins: what a group that has ended meanwhile wrote goes. */
void sampled_let_go(void);

/*
 * Puts the records that are not touched into a file as if they were there, of those below one block of pointers: from its
 * first one up to `end`.  Nothing below that block was written yet.
 */
int sampled_fill(fl_file_t *file, uint64_t first, uint64_t end, const touched_t *touched);
/* Has a file's tree of blocks be as high as that of so many records. */
int sampled_depth(fl_file_t *file, uint64_t records);
/* Bytes on disk of a file's blocks, as of the last transaction group. */
uint64_t sampled_used(fl_file_t *file);
/* Bytes of its blocks before they are compressed, holes not counted; likewise. */
uint64_t sampled_filled(fl_file_t *file);

/* What was written of files since sampled_count(): of data, and of pointers to them. */
typedef struct {
	uint64_t indirect;                 /* blocks of pointers */
	uint64_t data_used, indirect_used; /* bytes, as a dataset counts them */
	uint64_t data_compressed, indirect_compressed;
	uint64_t used, allocated; /* bytes, as a dataset and as a pool count them */
} sampled_count_t;
void sampled_count(void);
sampled_count_t sampled_counted(void);
/* Compressed bytes for each that the dataset counts, of the blocks of its files written since the pools were opened. */
double sampled_compressed(const fl_volume_t *vol);

/* How many blocks a write of the pipeline (zio_t) stands for. */
double sampled_write_stands_for(const void *zio);

/* Reads of records that are not there. */
uint64_t sampled_missed(void);
/* Whether what is about to be decompressed is one of these; then it is zeros. */
bool sampled_is_filled(const void *abd, uint64_t len);

#endif
