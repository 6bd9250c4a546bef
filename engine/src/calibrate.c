#include "calibrate.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memvdev.h"
#include "processor.h"
#include "put.h"
#include "replay.h"
#include "report.h"

#include "zfs.h"

#include <sys/zio_checksum.h>
#include <sys/zio_compress.h>

#define PASSES 3             /* over the whole table, of which the fastest counts: what disturbs one does not all */
#define PASS_NS 4000000      /* an entry's calls in one pass */
#define LARGEST (1ULL << 20) /* bytes */

/* A specification has to have a pool; it is not made. */
static const char tiny[] =
    "{\"version\":1,\"seed\":7,\"arc_max\":67108864,"
    "\"profiles\":{\"p\":{\"kind\":\"flash\",\"channels\":1,\"read_us\":100,\"write_us\":100,\"read_mb_s\":100,"
    "\"write_mb_s\":100,\"flush_us\":100,\"overhead_us\":0}},"
    "\"pools\":[{\"name\":\"none\",\"ashift\":12,\"vdevs\":[{\"class\":\"data\",\"kind\":\"stripe\","
    "\"disks\":[{\"profile\":\"p\",\"size\":134217728}]}]}],"
    "\"datasets\":[{\"name\":\"none/a\",\"properties\":{}}],\"files\":[],\"content\":{},\"tunables\":{}}";

static const uint64_t sizes[] = {8 << 10, 32 << 10, 128 << 10, LARGEST};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

typedef struct {
	processor_op_t op;
	int algorithm, level;
} work_t;

static const work_t table[] = {
	{PO_COMPRESS, ZIO_COMPRESS_LZ4, 0},
	{PO_COMPRESS, ZIO_COMPRESS_ZLE, 0},
	{PO_COMPRESS, ZIO_COMPRESS_LZJB, 0},
	{PO_COMPRESS, ZIO_COMPRESS_GZIP_1, 0},
	{PO_COMPRESS, ZIO_COMPRESS_GZIP_6, 0},
	{PO_COMPRESS, ZIO_COMPRESS_GZIP_9, 0},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, ZIO_ZSTD_LEVEL_FAST_1},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 1},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 3},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 6},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 9},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 12},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 15},
	{PO_COMPRESS, ZIO_COMPRESS_ZSTD, 19},
	{PO_DECOMPRESS, ZIO_COMPRESS_LZ4, 0},
	{PO_DECOMPRESS, ZIO_COMPRESS_GZIP_6, 0},
	{PO_DECOMPRESS, ZIO_COMPRESS_ZSTD, 3},
	{PO_CHECKSUM, ZIO_CHECKSUM_FLETCHER_2, 0},
	{PO_CHECKSUM, ZIO_CHECKSUM_FLETCHER_4, 0},
	{PO_CHECKSUM, ZIO_CHECKSUM_SHA256, 0},
	{PO_CHECKSUM, ZIO_CHECKSUM_SHA512, 0},
};
#define WORKS (sizeof(table) / sizeof(table[0]))

static struct {
	abd_t *plain, *packed, *unpacked;
	char *buf;
	double least[WORKS][SIZES]; /* ns per byte */
} K;

/* Half of the words come from a few hundred, half are any: about what a database's pages are. */
static void fill(uint8_t *buf, size_t len)
{
	uint64_t state = 88172645463325252ULL;

	for (size_t i = 0; i + 8 <= len; i += 8) {
		uint64_t word;

		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		word = (state & 0x300) != 0 ? ((state >> 16) & 0xff) * 0x0101010101010101ULL : state;
		memcpy(buf + i, &word, sizeof(word));
	}
}

static size_t compress(const work_t *w, uint64_t len)
{
#if OPENZFS_NUMBER >= 20300
	abd_t *to = K.packed;

	return zio_compress_data((enum zio_compress)w->algorithm, K.plain, &to, len, len - len / 8, (uint8_t)w->level);
#else
	/* 2.2 asks where to put a buffer of its own if there is none. */
	typedef size_t indirect_fn(enum zio_compress, abd_t *, void **, size_t, uint8_t);
	void *to = K.buf;
	void *where = __builtin_types_compatible_p(typeof(zio_compress_data), indirect_fn) ? (void *)&to : to;

	return zio_compress_data((enum zio_compress)w->algorithm, K.plain, where, len, (uint8_t)w->level);
#endif
}

static void decompress(const work_t *w, size_t from, uint64_t len)
{
	uint8_t level = (uint8_t)w->level;

#if OPENZFS_NUMBER >= 20300
	(void)zio_decompress_data((enum zio_compress)w->algorithm, K.packed, K.unpacked, from, len, &level);
#else
	(void)zio_decompress_data((enum zio_compress)w->algorithm, K.packed, abd_to_buf(K.unpacked), from, len, &level);
#endif
}

static void checksum(const work_t *w, uint64_t len)
{
	const zio_checksum_info_t *info = &zio_checksum_table[w->algorithm];
	zio_cksum_t sum;

	info->ci_func[0](K.plain, len, NULL, &sum);
}

static void measure(size_t i, size_t k)
{
	const work_t *w = &table[i];
	uint64_t len = sizes[k], calls = 0;
	size_t packed = 0;
	int64_t start, spent;
	double each;

	if (w->op == PO_DECOMPRESS) {
		packed = compress(w, len);
#if OPENZFS_NUMBER < 20300
		abd_copy_from_buf(K.packed, K.buf, packed);
#endif
	}
	/* Twice as many calls each time the clock is read: how long that takes, a short call's own time on some machines,
	 * is then next to nothing. */
	start = processor_ns();
	do {
		for (uint64_t more = MAX(calls, 1); more > 0; more--, calls++) {
			if (w->op == PO_COMPRESS)
				(void)compress(w, len);
			else if (w->op == PO_DECOMPRESS)
				decompress(w, packed, len);
			else
				checksum(w, len);
		}
	} while ((spent = processor_ns() - start) < PASS_NS);
	each = (double)spent / (double)calls / (double)len;
	if (K.least[i][k] == 0 || each < K.least[i][k])
		K.least[i][k] = each;
}

static int64_t real_ns(void)
{
	struct timespec ts;

	(void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static json_t *rate(const char *operation, const char *algorithm, uint64_t size, double ns)
{
	json_t *o = json_object();

	put_text(o, "operation", operation);
	put_text(o, "algorithm", algorithm);
	put(o, "size", size);
	put_real(o, "ns_per_byte", ns);
	return o;
}

json_t *calibrate_run(err_t *err)
{
	json_t *o = json_object(), *rates = json_array();
	int64_t began, spent;
	char name[64];
	spec_t spec;
	pace_t pace;

	if (spec_parse(tiny, sizeof(tiny) - 1, &spec, err) != 0 || memvdev_create(&spec, err) != 0 ||
	    replay_start(&spec, &pace, report_warn, err) != 0)
		return NULL;
	K.plain = abd_alloc_linear(LARGEST, B_FALSE);
	K.packed = abd_alloc_linear(LARGEST, B_FALSE);
	K.unpacked = abd_alloc_linear(LARGEST, B_FALSE);
	if ((K.buf = malloc(LARGEST)) == NULL)
		abort();
	fill(abd_to_buf(K.plain), LARGEST);
	began = real_ns();
	spent = processor_ns();
	for (int pass = 0; pass < PASSES; pass++)
		for (size_t i = 0; i < WORKS; i++)
			for (size_t k = 0; k < SIZES; k++)
				measure(i, k);
	(void)json_array_append_new(rates, rate("copy", "copy", 0, processor_copy_ns()));
	spent = processor_ns() - spent;
	began = real_ns() - began;
	for (size_t i = 0; i < WORKS; i++) {
		const work_t *w = &table[i];

		if (w->op == PO_CHECKSUM)
			(void)snprintf(name, sizeof(name), "%s", zio_checksum_table[w->algorithm].ci_name);
		else
			processor_compression(w->algorithm, w->op == PO_COMPRESS ? w->level : 0, name, sizeof(name));
		for (size_t k = 0; k < SIZES; k++)
			(void)json_array_append_new(rates, rate(processor_names[w->op], name, sizes[k], K.least[i][k]));
	}
	put(o, "version", 1);
	put_text(o, "openzfs", OPENZFS_STRING);
	put_real(o, "seconds", (double)began / 1e9);
	/* How much longer it took than the processor worked for it: others had it meanwhile. */
	put_real(o, "waited", (double)began / (double)MAX(spent, 1) - 1);
	(void)json_object_set_new(o, "rates", rates);
	return o;
}
