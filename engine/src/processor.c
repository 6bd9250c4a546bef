#include "processor.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"
#include "own.h"
#include "put.h"

#include "zfs.h"

#include <sys/vdev_raidz_impl.h>
#include <sys/zio_checksum.h>
#include <sys/zio_compress.h>

#define ROWS 8192 /* a layout has a few hundred */
#define NO_LEVEL 0
#define SPLITS 5 /* reads of a clock or passes over memory, of which the fastest counts */

const char *const processor_names[PO_COUNT] = {"compress", "decompress", "checksum", "parity", "crypt", "copy"};

/* For whom: a dataset is known by its pool and objset. */
typedef struct {
	spa_t *spa;
	uint64_t objset;
} owner_t;

typedef struct {
	char pool[SPEC_NAME];
	uint64_t objset;
	int op, algorithm, level;
	uint64_t size; /* of a block, the next power of two */
	uint64_t calls, bytes, out_bytes;
	int64_t ns;
} row_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row_t rows[ROWS]; /* under lock; calls == 0: free */
static uint64_t left_out;

/* What is a thread's own. */
typedef struct {
	owner_t owner;
	bool file;    /* and it is a block of a file's data that the thread has in hand */
	int depth;    /* within a call that is counted, or one that is not to be */
	double times; /* how many blocks that one stands for; 0: it is none */
} mine_t;

static mine_t *mine(void)
{
	static own_t own;

	return own_value(&own, sizeof(mine_t));
}

/* The executable's own text: what it copies is not OpenZFS's work. */
extern const char __executable_start, etext;
#define FROM_HERE() \
	((const char *)__builtin_return_address(0) >= &__executable_start && \
	    (const char *)__builtin_return_address(0) < &etext)

/* Not by the library's name for it, which the clockwork replaces. */
int64_t processor_ns(void)
{
	struct timespec ts;

	(void)syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

double processor_clock_ns(void)
{
	static double least;
	const int reads = 400;

	if (least > 0)
		return least;
	for (int i = 0; i < SPLITS; i++) {
		int64_t start = processor_ns();
		double each;

		for (int k = 0; k < reads; k++)
			(void)processor_ns();
		each = (double)(processor_ns() - start) / (reads + 1);
		if (least == 0 || each < least)
			least = each;
	}
	return least;
}

double processor_copy_ns(void)
{
	static double least;
	const size_t block = 128 << 10, room = 4 << 20; /* more than most second-level caches hold */
	char *from, *to;

	if (least > 0)
		return least;
	if ((from = malloc(room)) == NULL || (to = malloc(room)) == NULL)
		abort();
	memset(from, 1, room);
	memset(to, 2, room);
	for (int i = 0; i < SPLITS; i++) {
		int64_t start = processor_ns();
		double each;

		for (size_t at = 0; at < room; at += block) {
			memcpy(to + at, from + room - block - at, block);
			__asm__ volatile("" : : "r"(to) : "memory");
		}
		each = (double)(processor_ns() - start) / (double)room;
		if (least == 0 || each < least)
			least = each;
	}
	free(from);
	free(to);
	return least;
}

void processor_reset(void)
{
	(void)processor_clock_ns();
	(void)pthread_mutex_lock(&lock);
	memset(rows, 0, sizeof(rows));
	left_out = 0;
	(void)pthread_mutex_unlock(&lock);
}

static uint64_t block_size(uint64_t bytes)
{
	uint64_t size = 512;

	while (size < bytes && size < (1ULL << 40))
		size *= 2;
	return size;
}

static void count(owner_t who, processor_op_t op, int algorithm, int level, uint64_t bytes, uint64_t out, int64_t ns)
{
	const char *pool = who.spa != NULL ? spa_name(who.spa) : "";
	uint64_t size = op == PO_COPY ? 0 : block_size(bytes);
	uint64_t hash = who.objset * 31 + (uint64_t)op;
	row_t *r = NULL;

	hash = (((hash * 31 + (uint64_t)algorithm) * 31 + (uint64_t)level) * 31 + size / 512) * 0x9E3779B97F4A7C15ULL;
	(void)pthread_mutex_lock(&lock);
	for (int i = 0; i < ROWS; i++) {
		r = &rows[(hash + (uint64_t)i) % ROWS];
		if (r->calls == 0 ||
		    (r->objset == who.objset && r->op == (int)op && r->algorithm == algorithm && r->level == level &&
			r->size == size && strcmp(r->pool, pool) == 0))
			break;
		r = NULL;
	}
	if (r == NULL) {
		left_out++;
	} else {
		if (r->calls == 0) {
			(void)snprintf(r->pool, sizeof(r->pool), "%s", pool);
			r->objset = who.objset;
			r->op = (int)op;
			r->algorithm = algorithm;
			r->level = level;
			r->size = size;
		}
		r->calls++;
		r->bytes += bytes;
		r->out_bytes += out;
		r->ns += ns;
	}
	(void)pthread_mutex_unlock(&lock);
}

/* The processor time since start, without reading the clock. */
static int64_t since(int64_t start)
{
	return MAX(processor_ns() - start - (int64_t)processor_clock_ns(), 0);
}

bool processor_unread;
double (*processor_stands_for)(const void *zio);
bool (*processor_is_zeros)(const void *abd, uint64_t len);
void (*processor_done)(processor_op_t op, int algorithm, int level, uint64_t bytes, uint64_t out, uint64_t blank);

double processor_times(void)
{
	return mine()->times > 0 ? mine()->times : 1.0;
}

static int64_t begin(void)
{
	mine()->depth++;
	return processor_ns();
}

static void end(owner_t who, processor_op_t op, int algorithm, int level, uint64_t bytes, uint64_t out, int64_t start)
{
	count(who, op, algorithm, level, bytes, out, since(start));
	mine()->depth--;
	if (processor_done != NULL && op != PO_COMPRESS)
		processor_done(op, algorithm, level, bytes, out, 0);
}

static void copied(owner_t who, uint64_t bytes)
{
	count(who, PO_COPY, 0, NO_LEVEL, bytes, bytes, 0);
	if (processor_done != NULL)
		processor_done(PO_COPY, 0, NO_LEVEL, bytes, bytes, 0);
}

void processor_copied(const void *objset, uint64_t bytes)
{
	objset_t *os = (objset_t *)(uintptr_t)objset;

	copied((owner_t){dmu_objset_spa(os), dmu_objset_id(os)}, bytes);
}

/* --- functions that take the place of the library's --- */

static bool of_file(const blkptr_t *bp)
{
	return bp != NULL && BP_GET_LEVEL(bp) == 0 && BP_GET_TYPE(bp) == DMU_OT_PLAIN_FILE_CONTENTS;
}

/* What a thread of the pipeline does is for the block that it has in hand, or one of the same dataset above it. */
void zio_execute(void *arg)
{
	typedef void execute_fn(void *);
	REAL(execute_fn, "zio_execute");
	mine_t *m = mine();
	mine_t before = *m;
	zio_t *z = arg;

	if (z->io_bookmark.zb_objset != 0)
		m->owner = (owner_t){z->io_spa, z->io_bookmark.zb_objset};
	m->file = of_file(z->io_bp);
	m->times = processor_stands_for != NULL ? processor_stands_for(z) : 0;
	real(z);
	m->owner = before.owner;
	m->file = before.file;
	m->times = before.times;
}

int arc_read(zio_t *pio, spa_t *spa, const blkptr_t *bp, arc_read_done_func_t *done, void *priv,
    zio_priority_t priority, int flags, arc_flags_t *arc_flags, const zbookmark_phys_t *zb)
{
	typedef int read_fn(zio_t *, spa_t *, const blkptr_t *, arc_read_done_func_t *, void *, zio_priority_t, int,
	    arc_flags_t *, const zbookmark_phys_t *);
	REAL(read_fn, "arc_read");
	mine_t *m = mine();
	mine_t before = *m;
	int error;

	m->owner = (owner_t){spa, zb->zb_objset};
	m->file = of_file(bp);
	error = real(pio, spa, bp, done, priv, priority, flags, arc_flags, zb);
	m->owner = before.owner;
	m->file = before.file;
	return error;
}

static int count_blank(void *buf, size_t len, void *sum)
{
	uint64_t *blank = sum, word;

	for (size_t i = 0; i + sizeof(word) <= len; i += sizeof(word)) {
		memcpy(&word, (char *)buf + i, sizeof(word));
		*blank += word == 0 ? sizeof(word) : 0;
	}
	return 0;
}

/*
 * Versions differ in where a result is put and in what follows the size; all have compression, source, destination and
 * size in front, and at most six arguments, which are handed on as they come.
 */
size_t counted_compress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t len, uintptr_t fifth,
    uintptr_t sixth) __asm__("zio_compress_data");

size_t counted_compress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t len, uintptr_t fifth, uintptr_t sixth)
{
	typedef size_t compress_fn(uintptr_t, uintptr_t, uintptr_t, size_t, uintptr_t, uintptr_t);
	REAL(compress_fn, "zio_compress_data");
#if OPENZFS_NUMBER >= 20300
	int level = (uint8_t)sixth;
#else
	int level = (uint8_t)fifth;
#endif
	uint64_t blank = 0;
	int64_t start;
	size_t out;

	if (mine()->depth > 0)
		return real(c, src, dst, len, fifth, sixth);
	start = begin();
	out = real(c, src, dst, len, fifth, sixth);
	end(mine()->owner, PO_COMPRESS, (int)c, level, len, out, start);
	if (processor_done != NULL) {
		(void)abd_iterate_func((abd_t *)src, 0, len, count_blank, &blank);
		processor_done(PO_COMPRESS, (int)c, level, len, out, blank);
	}
	return out;
}

int counted_decompress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t from, size_t len,
    uintptr_t level) __asm__("zio_decompress_data");

int counted_decompress(uintptr_t c, uintptr_t src, uintptr_t dst, size_t from, size_t len, uintptr_t level)
{
	typedef int decompress_fn(uintptr_t, uintptr_t, uintptr_t, size_t, size_t, uintptr_t);
	REAL(decompress_fn, "zio_decompress_data");
	int64_t start;
	int error;

	if (mine()->depth > 0)
		return real(c, src, dst, from, len, level);
	if ((processor_unread && mine()->file) ||
	    (processor_is_zeros != NULL && processor_is_zeros((const void *)src, from))) {
#if OPENZFS_NUMBER >= 20300
		abd_zero((abd_t *)dst, len);
#else
		memset((void *)dst, 0, len);
#endif
		return 0;
	}
	start = begin();
	error = real(c, src, dst, from, len, level);
	end(mine()->owner, PO_DECOMPRESS, (int)c, NO_LEVEL, len, from, start);
	return error;
}

void zio_checksum_compute(zio_t *z, enum zio_checksum checksum, abd_t *abd, uint64_t size)
{
	typedef void compute_fn(zio_t *, enum zio_checksum, abd_t *, uint64_t);
	REAL(compute_fn, "zio_checksum_compute");
	owner_t who = {z->io_spa, z->io_bookmark.zb_objset};
	int64_t start;

	start = begin();
	real(z, checksum, abd, size);
	end(who, PO_CHECKSUM, (int)checksum, NO_LEVEL, size, size, start);
}

/* Of a block that was read; what follows in this thread is for it. */
int zio_checksum_error(zio_t *z, zio_bad_cksum_t *out)
{
	typedef int error_fn(zio_t *, zio_bad_cksum_t *);
	REAL(error_fn, "zio_checksum_error");

	if (z->io_bookmark.zb_objset != 0)
		mine()->owner = (owner_t){z->io_spa, z->io_bookmark.zb_objset};
	return real(z, out);
}

int zio_checksum_error_impl(spa_t *spa, const blkptr_t *bp, enum zio_checksum checksum, abd_t *abd, uint64_t size,
    uint64_t offset, zio_bad_cksum_t *info)
{
	typedef int impl_fn(spa_t *, const blkptr_t *, enum zio_checksum, abd_t *, uint64_t, uint64_t,
	    zio_bad_cksum_t *);
	REAL(impl_fn, "zio_checksum_error_impl");
	int64_t start;
	int error;

	start = begin();
	error = real(spa, bp, checksum, abd, size, offset, info);
	end(mine()->owner, PO_CHECKSUM, (int)checksum, NO_LEVEL, size, size, start);
	return error;
}

void vdev_raidz_generate_parity_row(raidz_map_t *rm, raidz_row_t *rr)
{
	typedef void parity_fn(raidz_map_t *, raidz_row_t *);
	REAL(parity_fn, "vdev_raidz_generate_parity_row");
	uint64_t bytes = 0;
	int64_t start;

	for (int c = (int)rr->rr_firstdatacol; c < (int)rr->rr_cols; c++)
		bytes += rr->rr_col[c].rc_size;
	start = begin();
	real(rm, rr);
	end(mine()->owner, PO_PARITY, (int)rr->rr_firstdatacol, NO_LEVEL, bytes, bytes, start);
}

int zio_do_crypt_abd(boolean_t encrypt, zio_crypt_key_t *key, dmu_object_type_t ot, boolean_t byteswap, uint8_t *salt,
    uint8_t *iv, uint8_t *mac, uint_t len, abd_t *plain, abd_t *cipher, boolean_t *no_crypt)
{
	typedef int crypt_fn(boolean_t, zio_crypt_key_t *, dmu_object_type_t, boolean_t, uint8_t *, uint8_t *,
	    uint8_t *, uint_t, abd_t *, abd_t *, boolean_t *);
	REAL(crypt_fn, "zio_do_crypt_abd");
	int64_t start;
	int error;

	start = begin();
	error = real(encrypt, key, ot, byteswap, salt, iv, mac, len, plain, cipher, no_crypt);
	end(mine()->owner, PO_CRYPT, encrypt ? 1 : 0, NO_LEVEL, len, len, start);
	return error;
}

/* Copies between buffers inside OpenZFS; those that a disk of ours makes in its place are not OpenZFS's. */
void abd_copy_off(abd_t *to, abd_t *from, size_t to_off, size_t from_off, size_t size)
{
	typedef void copy_fn(abd_t *, abd_t *, size_t, size_t, size_t);
	REAL(copy_fn, "abd_copy_off");

	if (mine()->depth == 0 && !FROM_HERE())
		copied(mine()->owner, size);
	real(to, from, to_off, from_off, size);
}

void abd_copy_from_buf_off(abd_t *abd, const void *buf, size_t off, size_t size)
{
	typedef void copy_fn(abd_t *, const void *, size_t, size_t);
	REAL(copy_fn, "abd_copy_from_buf_off");

	if (mine()->depth == 0 && !FROM_HERE())
		copied(mine()->owner, size);
	real(abd, buf, off, size);
}

void abd_copy_to_buf_off(void *buf, abd_t *abd, size_t off, size_t size)
{
	typedef void copy_fn(void *, abd_t *, size_t, size_t);
	REAL(copy_fn, "abd_copy_to_buf_off");

	if (mine()->depth == 0 && !FROM_HERE())
		copied(mine()->owner, size);
	real(buf, abd, off, size);
}

/* These copy by the two above, for a disk of ours too. */
void *abd_borrow_buf_copy(abd_t *abd, size_t n)
{
	typedef void *borrow_fn(abd_t *, size_t);
	REAL(borrow_fn, "abd_borrow_buf_copy");
	int ours = FROM_HERE();
	void *buf;

	mine()->depth += ours;
	buf = real(abd, n);
	mine()->depth -= ours;
	return buf;
}

void abd_return_buf_copy(abd_t *abd, void *buf, size_t n)
{
	typedef void return_fn(abd_t *, void *, size_t);
	REAL(return_fn, "abd_return_buf_copy");
	int ours = FROM_HERE();

	mine()->depth += ours;
	real(abd, buf, n);
	mine()->depth -= ours;
}

/* --- the result --- */

void processor_compression(int compress, int level, char *name, size_t len)
{
	static const int fast[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000};

	if (compress < 0 || compress >= ZIO_COMPRESS_FUNCTIONS)
		(void)snprintf(name, len, "%d", compress);
	else if (compress != ZIO_COMPRESS_ZSTD || level == ZIO_COMPLEVEL_INHERIT)
		(void)snprintf(name, len, "%s", zio_compress_table[compress].ci_name);
	else if (level == ZIO_COMPLEVEL_DEFAULT)
		(void)snprintf(name, len, "zstd-%d", ZIO_ZSTD_LEVEL_DEFAULT);
	else if (level >= ZIO_ZSTD_LEVEL_FAST_1 && level <= ZIO_ZSTD_LEVEL_FAST_1000)
		(void)snprintf(name, len, "zstd-fast-%d", fast[level - ZIO_ZSTD_LEVEL_FAST_1]);
	else
		(void)snprintf(name, len, "zstd-%d", level);
}

void processor_algorithm(processor_op_t op, int algorithm, int level, char *name, size_t len)
{
	switch (op) {
	case PO_COMPRESS:
	case PO_DECOMPRESS:
		processor_compression(algorithm, level, name, len);
		break;
	case PO_CHECKSUM:
		(void)snprintf(name, len, "%s", zio_checksum_table[algorithm].ci_name);
		break;
	case PO_PARITY:
		(void)snprintf(name, len, "raidz%d", algorithm);
		break;
	case PO_CRYPT:
		(void)snprintf(name, len, "%s", algorithm != 0 ? "encrypt" : "decrypt");
		break;
	default:
		(void)snprintf(name, len, "copy");
	}
}

/* NULL: not of a dataset, but of the pool. */
static const char *dataset_of(const spec_t *spec, const row_t *r)
{
	for (size_t p = 0; p < spec->npools; p++) {
		int ds = strcmp(spec->pools[p].name, r->pool) == 0 ? account_dataset((int)p, r->objset) : -1;

		if (ds >= 0)
			return spec->datasets[ds].name;
	}
	return NULL;
}

static int number_of(const spec_t *spec, const char *dataset)
{
	for (size_t i = 0; i < spec->ndatasets; i++)
		if (strcmp(spec->datasets[i].name, dataset) == 0)
			return (int)i;
	return -1;
}

static double seconds_of(const row_t *r)
{
	return r->op == PO_COPY ? (double)r->bytes * processor_copy_ns() / 1e9 : (double)r->ns / 1e9;
}

static int by_owner(const void *a, const void *b)
{
	const row_t *x = a, *y = b;
	int order = strcmp(x->pool, y->pool);

#define ORDER(field) \
	if (order == 0) \
	order = (x->field > y->field) - (x->field < y->field)
	ORDER(objset);
	ORDER(op);
	ORDER(algorithm);
	ORDER(level);
	ORDER(size);
#undef ORDER
	return order;
}

static json_t *row_json(const spec_t *spec, const row_t *r, double share)
{
	const char *ds = dataset_of(spec, r);
	char name[64];
	json_t *o = json_object();

	processor_algorithm((processor_op_t)r->op, r->algorithm, r->level, name, sizeof(name));
	(void)json_object_set_new(o, "dataset", ds != NULL ? json_string(ds) : json_null());
	put_text(o, "operation", processor_names[r->op]);
	put_text(o, "algorithm", name);
	put(o, "size", r->size);
	put_sum(o, "calls", (double)r->calls * share);
	put_sum(o, "bytes", (double)r->bytes * share);
	put_sum(o, "out_bytes", (double)r->out_bytes * share);
	put_real(o, "seconds", seconds_of(r) * share);
	return o;
}

static void add(json_t *o, const char *key, double seconds)
{
	put_real(o, key, json_real_value(json_object_get(o, key)) + seconds);
}

static json_t *sums(void)
{
	json_t *o = json_object();
	char key[32];

	put_real(o, "seconds", 0);
	for (int i = 0; i < PO_COUNT; i++) {
		(void)snprintf(key, sizeof(key), "%s_s", processor_names[i]);
		put_real(o, key, 0);
	}
	return o;
}

json_t *processor_json(const spec_t *spec)
{
	json_t *all = sums(), *datasets = json_array(), *calls = json_array();
	row_t *found = malloc(sizeof(rows));
	size_t n = 0;

	if (found == NULL)
		abort();
	(void)pthread_mutex_lock(&lock);
	for (int i = 0; i < ROWS; i++)
		if (rows[i].calls > 0)
			found[n++] = rows[i];
	put(all, "left_out", left_out);
	(void)pthread_mutex_unlock(&lock);
	qsort(found, n, sizeof(*found), by_owner);
	for (size_t i = 0; i < spec->ndatasets; i++) {
		json_t *o = sums();

		put_text(o, "name", spec->datasets[i].name);
		(void)json_array_append_new(datasets, o);
	}
	for (size_t i = 0; i < n; i++) {
		const char *ds = dataset_of(spec, &found[i]);
		int number = ds != NULL ? number_of(spec, ds) : -1;
		double share = number >= 0 ? account_share(number) : 1.0, seconds = seconds_of(&found[i]) * share;
		char key[32];
		size_t k;
		json_t *o;

		(void)snprintf(key, sizeof(key), "%s_s", processor_names[found[i].op]);
		add(all, "seconds", seconds);
		add(all, key, seconds);
		json_array_foreach(datasets, k, o)
			if (ds != NULL && strcmp(ds, spec->datasets[k].name) == 0) {
				add(o, "seconds", seconds);
				add(o, key, seconds);
			}
		(void)json_array_append_new(calls, row_json(spec, &found[i], share));
	}
	free(found);
	(void)json_object_set_new(all, "datasets", datasets);
	(void)json_object_set_new(all, "calls", calls);
	return all;
}
