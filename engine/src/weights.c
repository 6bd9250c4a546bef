#include "weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FANOUT 1024.0 /* block pointers of 128 bytes in an indirect block of 128 KiB, as OpenZFS has them by default */
#define LOGS 64

typedef struct {
	uint64_t objset, object; /* object 0: free */
	int pool;
	bool log;
	double level[WEIGHT_LEVELS];
} entry_t;

static double rate = 1.0;
static entry_t *table;
static size_t room, used; /* room: a power of two */

static struct {
	int pool;
	uint64_t objset;
	double pending; /* bytes of sampled files that are on their way to the log */
} logs[LOGS];
static size_t nlogs;

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

void weights_set(int pool, uint64_t objset, uint64_t object, const double level[WEIGHT_LEVELS])
{
	entry_t *e;

	if (2 * used >= room)
		grow();
	e = find(table, room, pool, objset, object);
	used += e->object == 0;
	e->log = false;
	e->pool = pool;
	e->objset = objset;
	e->object = object;
	memcpy(e->level, level, sizeof(e->level));
}

double weights_of(int pool, uint64_t objset, uint64_t object, int64_t level)
{
	const entry_t *e;

	if (used == 0 || object == 0 || level < 0)
		return 1.0;
	e = find(table, room, pool, objset, object);
	return e->object == 0 ? 1.0 : e->level[level < WEIGHT_LEVELS ? level : WEIGHT_LEVELS - 1];
}

void weights_set_log(int pool, uint64_t objset, uint64_t object)
{
	static const double once[WEIGHT_LEVELS] = {1, 1, 1, 1, 1, 1, 1, 1};

	weights_set(pool, objset, object, once);
	find(table, room, pool, objset, object)->log = true;
}

bool weights_is_log(int pool, uint64_t objset, uint64_t object)
{
	return used > 0 && object != 0 && find(table, room, pool, objset, object)->log;
}

void weights_levels(uint64_t whole, uint64_t sampled, double level[WEIGHT_LEVELS])
{
	double all = (double)(whole > 0 ? whole : 1), part = (double)(sampled > 0 ? sampled : 1), reach = 1.0;

	for (int k = 0; k < WEIGHT_LEVELS; k++, reach *= FANOUT) {
		/* As dense in blocks of this level as the whole file is. */
		double each = rate * (ceil(all / reach) / all) / (ceil(part / reach) / part);

		level[k] = each < 1.0 ? 1.0 : each > rate ? rate : each;
	}
}

static size_t log_of(int pool, uint64_t objset)
{
	for (size_t i = 0; i < nlogs; i++)
		if (logs[i].pool == pool && logs[i].objset == objset)
			return i;
	if (nlogs == LOGS)
		return LOGS;
	logs[nlogs].pool = pool;
	logs[nlogs].objset = objset;
	return nlogs++;
}

void weights_logged(int pool, uint64_t objset, uint64_t bytes)
{
	size_t i = log_of(pool, objset);

	if (i < LOGS)
		logs[i].pending += (double)bytes;
}

double weights_log(int pool, uint64_t objset, uint64_t bytes)
{
	size_t i = rate > 1.0 ? log_of(pool, objset) : LOGS;
	double mine;

	if (i == LOGS || bytes == 0)
		return 1.0;
	mine = logs[i].pending < (double)bytes ? logs[i].pending : (double)bytes;
	logs[i].pending -= mine;
	return 1.0 + (rate - 1.0) * mine / (double)bytes;
}
