#include "age.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "chance.h"
#include "clockwork.h"
#include "store.h"

#include "zfs.h"

#define UNIT (128ULL << 10)      /* the smallest file of the filler; the largest is 64 times that */
#define FILL_GROUP (64ULL << 20) /* filler in one transaction group */
#define CHURN 10                 /* a tenth of the filler goes in each round */
#define TXG_WRITES 512           /* a transaction group ends after so many writes */
#define TXG_BYTES (32 << 20)     /* or when their records are so many bytes */
#define COMMIT_WRITES 128        /* writes between two commits of a file that has any */

typedef struct {
	uint32_t number;
	uint64_t size;
} filler_file_t;

typedef struct {
	int dataset; /* -1: it is not filled */
	filler_file_t *file;
	size_t nfiles, room;
	uint32_t named;
} filler_t;

static struct {
	const spec_t *spec;
	fl_volume_t **vols;
	const age_files_t *files;
	age_result_t *result;
	err_t *err;
	uint64_t random;
	filler_t filler[16];
	uint8_t *zeros;
	uint64_t writes, dirty; /* in the open transaction group */
	uint64_t done, total;   /* bytes, for the progress */
} A;

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a few lines, so that the trial program can draw the same numbers. */
static uint64_t draw(uint64_t below)
{
	return chance_next(&A.random) % below;
}

static int too_full(int pool)
{
	pool_filled_t s;

	pool_filled(pool, &s);
	(void)err_set(A.err,
	    "The age can't fit: the database's files and snapshots take %llu %% of the pool %s, which is to be %d %% full; "
	    "take larger disks, fewer snapshots or a higher fill.",
	    (unsigned long long)(s.allocated * 100 / MAX(s.size, 1)), A.spec->pools[pool].name, A.spec->age.fill);
	return EXIT_FAILED;
}

static int failed(int error, int pool)
{
	if (error == ENOSPC)
		(void)err_set(A.err,
		    "The age can't fit: the pool %s has no room left at a fill of %d %%; take larger disks or a lower fill.",
		    A.spec->pools[pool].name, A.spec->age.fill);
	else
		(void)err_set(A.err, "The pool %s can't be aged: %s.", A.spec->pools[pool].name, strerror(error));
	return EXIT_FAILED;
}

/* --- other files --- */

static void name_of(uint32_t number, char *name, size_t len)
{
	(void)snprintf(name, len, "filler%08u", number);
}

/* One more file, of a size that chance has chosen, but no larger than what the pool lacks. */
static int add_file(int pool, uint64_t lacks, uint64_t *written)
{
	static const fl_new_t new_file = {.mode = S_IFREG | 0600};
	filler_t *f = &A.filler[pool];
	uint64_t size = UNIT << draw(7);
	fl_file_t *file;
	char name[32];
	bool commit;
	int error;

	while (size > UNIT && size > lacks)
		size /= 2;
	if (f->nfiles == f->room) {
		f->room = f->room == 0 ? 256 : f->room * 2;
		if ((f->file = realloc(f->file, f->room * sizeof(*f->file))) == NULL)
			abort();
	}
	name_of(f->named, name, sizeof(name));
	if ((error = fl_create(fl_root(A.vols[f->dataset]), name, &new_file, &file, &commit)) != 0)
		return failed(error, pool);
	f->file[f->nfiles++] = (filler_file_t){f->named++, size};
	for (uint64_t off = 0; off < size && error == 0; off += 1 << 20)
		error = fl_write(file, off, A.zeros, MIN(size - off, 1ULL << 20), 0, &commit);
	fl_release(file, 1);
	*written += size;
	return error != 0 ? failed(error, pool) : 0;
}

static int remove_file(int pool, uint64_t *removed)
{
	filler_t *f = &A.filler[pool];
	size_t i = draw(f->nfiles);
	char name[32];
	bool commit;
	int error;

	name_of(f->file[i].number, name, sizeof(name));
	if ((error = fl_unlink(fl_root(A.vols[f->dataset]), name, false, &commit)) != 0)
		return failed(error, pool);
	*removed += f->file[i].size;
	f->file[i] = f->file[--f->nfiles];
	return 0;
}

/* Brings the pool to its fill: with more files, or with fewer where the database has grown or snapshots hold blocks. */
static int adjust(int pool)
{
	filler_t *f = &A.filler[pool];
	uint64_t target, bytes;
	pool_filled_t s;
	int rc = 0;

	if (f->dataset < 0)
		return 0;
	pool_sync(pool);
	pool_filled(pool, &s);
	target = s.size / 100 * (uint64_t)A.spec->age.fill;
	while (rc == 0 && s.allocated > target + UNIT) {
		if (f->nfiles == 0)
			return too_full(pool);
		for (bytes = 0; rc == 0 && f->nfiles > 0 && bytes < MIN(s.allocated - target, FILL_GROUP);)
			rc = remove_file(pool, &bytes);
		pool_sync(pool);
		pool_filled(pool, &s);
	}
	while (rc == 0 && s.allocated + UNIT < target) {
		for (bytes = 0; rc == 0 && bytes < MIN(target - s.allocated, FILL_GROUP);)
			rc = add_file(pool, target - s.allocated - bytes, &bytes);
		pool_sync(pool);
		pool_filled(pool, &s);
		A.files->progress((double)A.done / (double)MAX(A.total, 1));
	}
	return rc;
}

static int churn(int pool)
{
	filler_t *f = &A.filler[pool];
	uint64_t removed = 0;
	int rc = 0;

	for (size_t n = f->nfiles / CHURN; rc == 0 && n > 0; n--)
		rc = remove_file(pool, &removed);
	if (f->dataset >= 0)
		pool_sync(pool);
	return rc;
}

/* --- the database's --- */

static int snapshot(int number)
{
	char name[64];
	int error;

	(void)snprintf(name, sizeof(name), "ztune-age-%d", number);
	for (size_t i = 0; i < A.spec->ndatasets; i++)
		if (!A.spec->datasets[i].filler &&
		    ((error = pool_snapshot(A.spec->datasets[i].name, name)) != 0 ||
			(number <= A.spec->age.clones &&
			    (error = pool_clone(A.spec->datasets[i].name, name, number, i)) != 0)))
			return failed(error, A.spec->datasets[i].pool);
	return 0;
}

static void end_group(int pool)
{
	pool_sync(pool);
	A.writes = A.dirty = 0;
}

static void commit(fl_file_t *file)
{
	fl_commit_file(file);
	A.result->commits++;
}

static int rewrite(const spec_file_t *f)
{
	uint64_t n = (f->size + f->rewrite - 1) / f->rewrite;
	uint64_t record = A.spec->datasets[f->dataset].recordsize;
	int pool = A.spec->datasets[f->dataset].pool, rc = 0;
	fl_file_t *file = A.files->open(f);
	uint32_t *at;

	if (file == NULL || n == 0 || n > UINT32_MAX)
		return 0;
	if ((at = malloc(n * sizeof(*at))) == NULL)
		abort();
	for (uint64_t i = 0; i < n; i++)
		at[i] = (uint32_t)i;
	for (uint64_t i = n - 1; !f->in_order && i > 0; i--) {
		uint64_t k = draw(i + 1);
		uint32_t other = at[i];

		at[i] = at[k];
		at[k] = other;
	}
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		uint64_t off = at[i] * f->rewrite, len = MIN(f->rewrite, f->size - off);

		rc = A.files->write(f, off, len);
		A.result->rewritten += len;
		A.done += len;
		A.dirty += f->in_order ? len : MAX(len, record);
		A.writes++;
		if (f->commits && (i % COMMIT_WRITES == COMMIT_WRITES - 1 || i == n - 1))
			commit(file);
		if (A.writes >= TXG_WRITES || A.dirty >= TXG_BYTES)
			end_group(pool);
		A.files->progress((double)A.done / (double)MAX(A.total, 1));
	}
	free(at);
	if (A.writes > 0)
		end_group(pool);
	return rc;
}

static int round_of(int number)
{
	const spec_t *spec = A.spec;
	int taken = spec->age.snapshots, rc = 0;

	/* They are spread evenly over the rounds; the first comes before the first round. */
	for (int i = 0; i < taken && rc == 0; i++)
		if (i * spec->age.rewrites / taken == number)
			rc = snapshot(i + 1);
	for (size_t p = 0; p < spec->npools && rc == 0; p++)
		rc = churn((int)p);
	for (size_t i = 0; i < spec->nfiles && rc == 0; i++)
		if (spec->files[i].rewrite > 0)
			rc = rewrite(&spec->files[i]);
	for (size_t p = 0; p < spec->npools && rc == 0; p++)
		rc = adjust((int)p);
	return rc;
}

int age_run(const spec_t *spec, fl_volume_t **vols, const age_files_t *files, age_result_t *result, err_t *err)
{
	double wall = wall_now();
	int rc = 0;

	A.spec = spec;
	A.vols = vols;
	A.files = files;
	A.result = result;
	A.err = err;
	A.random = spec->seed;
	if ((A.zeros = calloc(1, 1 << 20)) == NULL)
		abort();
	for (size_t p = 0; p < spec->npools; p++)
		A.filler[p].dataset = -1;
	for (size_t i = 0; i < spec->ndatasets; i++)
		if (spec->datasets[i].filler && spec->age.fill > 0)
			A.filler[spec->datasets[i].pool].dataset = (int)i;
	for (size_t i = 0; i < spec->nfiles; i++)
		if (spec->files[i].rewrite > 0)
			A.total += spec->files[i].size * (uint64_t)spec->age.rewrites;
	store_zeros_cost_nothing(true);
	for (size_t p = 0; p < spec->npools && rc == 0; p++)
		rc = adjust((int)p);
	for (int i = 0; i < spec->age.rewrites && rc == 0; i++)
		rc = round_of(i);
	for (size_t p = 0; p < spec->npools && rc == 0; p++) {
		space_t space = {0};

		pool_settle((int)p);
		pool_filled((int)p, &result->pool[p]);
		if (A.filler[p].dataset >= 0)
			(void)pool_dataset_space(spec->datasets[A.filler[p].dataset].name, &space);
		result->filler[p] = space.allocated;
	}
	store_zeros_cost_nothing(false);
	for (size_t p = 0; p < spec->npools; p++)
		free(A.filler[p].file);
	free(A.zeros);
	result->wall_s = wall_now() - wall;
	return rc;
}
