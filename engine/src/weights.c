#include "weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spec.h"

#define FANOUT 1024.0 /* block pointers of 128 bytes in an indirect block of 128 KiB, as OpenZFS has them by default */
#define LEVELS 8
/* Of a block pointer, what no compression makes smaller: most of a checksum, and of an address. */
#define POINTER 40.0
#define LOGGED 16 /* blocks of a log that are on their way to several disks */
#define GROUPS 4  /* transaction groups that are under way, as OpenZFS has them */

typedef struct {
	uint64_t objset, object; /* object 0: free */
	int pool;
	bool own;             /* it stands for itself */
	weights_range_t read; /* then */
	double rate;          /* of the file */
	const weights_range_t *certain;
	size_t ncertain;
	double level[LEVELS];  /* blocks of the whole for each of the sample's */
	double larger[LEVELS]; /* how many times as large one of these is */
} entry_t;

static double rate = 1.0;
static entry_t *table;
static size_t room, used; /* room: a power of two */

static struct {
	int pool;
	uint64_t objset;
	double pending;   /* bytes of sampled files that are on their way to the log */
	double stand_for; /* … for so many */
	struct {
		uint64_t number;
		double each;
	} logged[LOGGED]; /* each 0: none */
	unsigned next;
	double blocks[LEVELS]; /* of sampled files that are written */
	struct {
		uint64_t txg;
		double dirty[LEVELS]; /* … of these */
	} group[GROUPS];
} datasets[SPEC_DATASETS];
static size_t ndatasets;

void weights_begin(double of)
{
	rate = of;
}

double weights_rate(void)
{
	return rate;
}

static entry_t *find(entry_t *t, size_t n, int pool, uint64_t objset, uint64_t object)
{
	uint64_t h = (objset * 0x9e3779b97f4a7c15ULL) ^ (object * 0xbf58476d1ce4e5b9ULL) ^ (uint64_t)pool;
	size_t i = (size_t)((h ^ (h >> 29)) & (n - 1));

	while (t[i].object != 0 && (t[i].object != object || t[i].objset != objset || t[i].pool != pool))
		i = (i + 1) & (n - 1);
	return &t[i];
}

static void grow(void)
{
	size_t n = room == 0 ? 1024 : room * 2;
	entry_t *t = calloc(n, sizeof(*t));

	if (t == NULL)
		abort();
	for (size_t i = 0; i < room; i++)
		if (table[i].object != 0)
			*find(t, n, table[i].pool, table[i].objset, table[i].object) = table[i];
	free(table);
	table = t;
	room = n;
}

static size_t dataset_of(int pool, uint64_t objset)
{
	for (size_t i = 0; i < ndatasets; i++)
		if (datasets[i].pool == pool && datasets[i].objset == objset)
			return i;
	if (ndatasets == SPEC_DATASETS)
		return SPEC_DATASETS;
	datasets[ndatasets].pool = pool;
	datasets[ndatasets].objset = objset;
	return ndatasets++;
}

/* Returns whether it was not there. */
static bool make(int pool, uint64_t objset, uint64_t object, entry_t **e)
{
	bool is_new;

	if (2 * used >= room)
		grow();
	*e = find(table, room, pool, objset, object);
	is_new = (*e)->object == 0;
	used += is_new;
	**e = (entry_t){.pool = pool, .objset = objset, .object = object};
	return is_new;
}

/* Bytes on disk of a block of pointers to so many. */
static double pointers(double n, double sector)
{
	return ceil(fmin(n, FANOUT) * POINTER / sector) * sector;
}

void weights_set(int pool, uint64_t objset, uint64_t object, const weights_file_t *file)
{
	double all, part, reach = 1.0;
	uint64_t certain = 0;
	size_t d = dataset_of(pool, objset);
	entry_t *e;
	bool is_new = make(pool, objset, object, &e);

	for (size_t i = 0; i < file->ncertain; i++)
		certain += file->certain[i].n;
	e->rate = file->rate;
	e->certain = file->certain;
	e->ncertain = file->ncertain;
	/* What chance took part in. */
	all = (double)(file->whole > certain ? file->whole - certain : 1);
	part = (double)(file->sampled > certain ? file->sampled - certain : 1);
	for (int k = 0; k < LEVELS; k++, reach *= FANOUT) {
		/* As dense in blocks of this level as the whole file is. */
		double each = file->rate * (ceil(all / reach) / all) / (ceil(part / reach) / part);

		e->level[k] = each < 1.0 ? 1.0 : each > file->rate ? file->rate : each;
		e->larger[k] = k == 0 ? 1.0
				      : pointers(ceil(all / reach * FANOUT) / ceil(all / reach), (double)file->sector) /
			pointers(ceil(part / reach * FANOUT) / ceil(part / reach), (double)file->sector);
		if (is_new && file->written && d < SPEC_DATASETS)
			datasets[d].blocks[k] += ceil(part / reach);
	}
}

static const entry_t *known(weights_block_t b)
{
	const entry_t *e;

	if (used == 0 || b.object == 0 || b.level < 0)
		return NULL;
	e = find(table, room, b.pool, b.objset, b.object);
	return e->object == 0 ? NULL : e;
}

/* Whether the block is certain, or above one that is. */
static bool is_certain(const entry_t *e, weights_block_t b)
{
	double reach = 1.0, first;

	for (int64_t k = 0; k < b.level; k++)
		reach *= FANOUT;
	first = (double)b.number * reach;
	for (size_t i = 0; i < e->ncertain; i++)
		if ((double)e->certain[i].first < first + reach &&
		    first < (double)(e->certain[i].first + e->certain[i].n))
			return true;
	return false;
}

/*
 * Of blocks of the whole, the share that is dirty where in the sample this share is.  A block of the whole has times as
 * many records below it, each as likely to be dirty.
 */
static double share_of_whole(double share, double times)
{
	return 1.0 - pow(1.0 - (share < 1.0 ? share : 1.0), times);
}

/* Of a dataset's blocks of a level in the sample, the share that is dirty in a transaction group; 0: not known. */
static double share_of_dirty(size_t d, size_t level, uint64_t txg)
{
	if (txg == 0 || d == SPEC_DATASETS || datasets[d].group[txg % GROUPS].txg != txg ||
	    datasets[d].blocks[level] <= 0)
		return 0;
	return datasets[d].group[txg % GROUPS].dirty[level] / datasets[d].blocks[level];
}

weight_t weights_of(weights_block_t b, uint64_t txg)
{
	const entry_t *e = known(b);
	size_t l = (size_t)(b.level < LEVELS ? b.level : LEVELS - 1);
	double share = 0, blocks;

	if (e == NULL || (b.level == 0 && is_certain(e, b)))
		return (weight_t){1.0, 1.0};
	blocks = e->level[l];
	if (!e->own && b.level > 0)
		share = share_of_dirty(dataset_of(b.pool, b.objset), l, txg);
	if (share > 0 && share < 1 && is_certain(e, b))
		blocks = 1.0 + (blocks - 1.0) * share;
	else if (share > 0 && share < 1 && blocks < e->rate)
		blocks *= share_of_whole(share, e->rate / blocks) / share;
	return (weight_t){blocks, blocks * e->larger[l]};
}

double weights_dirtied(weights_block_t b, uint64_t txg)
{
	const entry_t *e = known(b);
	size_t d, l = (size_t)(b.level < LEVELS ? b.level : LEVELS - 1);
	double before, each;

	if (e == NULL || (b.level == 0 && is_certain(e, b)))
		return 1.0;
	d = dataset_of(b.pool, b.objset);
	if (e->own || b.level == 0 || d == SPEC_DATASETS || datasets[d].blocks[l] <= 0)
		return e->level[l];
	if (datasets[d].group[txg % GROUPS].txg != txg) {
		memset(&datasets[d].group[txg % GROUPS], 0, sizeof(datasets[d].group[0]));
		datasets[d].group[txg % GROUPS].txg = txg;
	}
	each = 1.0 / datasets[d].blocks[l];
	before = datasets[d].group[txg % GROUPS].dirty[l]++ * each;
	if (is_certain(e, b))
		return 1.0 + (e->level[l] - 1.0) * fmin(before, 1.0);
	if (e->level[l] >= e->rate)
		return e->level[l];
	return e->level[l] / each *
	    (share_of_whole(before + each, e->rate / e->level[l]) - share_of_whole(before, e->rate / e->level[l]));
}

void weights_set_own(int pool, uint64_t objset, uint64_t object, weights_range_t read)
{
	entry_t *e;

	(void)make(pool, objset, object, &e);
	for (int k = 0; k < LEVELS; k++)
		e->level[k] = e->larger[k] = 1.0;
	e->own = true;
	e->read = read;
}

bool weights_is_log(int pool, uint64_t objset, uint64_t object, uint64_t number)
{
	const entry_t *e = used > 0 && object != 0 ? find(table, room, pool, objset, object) : NULL;

	return e != NULL && e->own && (number < e->read.first || number >= e->read.first + e->read.n);
}

void weights_logged(int pool, uint64_t objset, uint64_t bytes, double each)
{
	size_t i = each > 1.0 ? dataset_of(pool, objset) : SPEC_DATASETS;

	if (i == SPEC_DATASETS)
		return;
	datasets[i].pending += (double)bytes;
	datasets[i].stand_for += (double)bytes * each;
}

double weights_log(int pool, uint64_t objset, uint64_t number, uint64_t bytes)
{
	size_t i = rate > 1.0 ? dataset_of(pool, objset) : SPEC_DATASETS;
	double mine, stand_for, each = 1.0;

	if (i == SPEC_DATASETS || bytes == 0)
		return 1.0;
	for (unsigned k = 0; k < LOGGED; k++)
		if (datasets[i].logged[k].number == number && datasets[i].logged[k].each > 0)
			return datasets[i].logged[k].each;
	if (datasets[i].pending > 0) {
		mine = fmin(datasets[i].pending, (double)bytes);
		stand_for = datasets[i].stand_for * mine / datasets[i].pending;
		datasets[i].pending -= mine;
		datasets[i].stand_for -= stand_for;
		each = 1.0 + (stand_for - mine) / (double)bytes;
	}
	datasets[i].logged[datasets[i].next].number = number;
	datasets[i].logged[datasets[i].next].each = each;
	datasets[i].next = (datasets[i].next + 1) % LOGGED;
	return each;
}
