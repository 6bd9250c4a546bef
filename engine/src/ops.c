#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The ops file is little endian and read as it lies in memory."
#endif

typedef struct {
	char magic[8];
	uint32_t version;
	uint32_t record_size;
	uint64_t nops;
	uint32_t nfiles;
	uint32_t nthreads;
} header_t;

_Static_assert(sizeof(header_t) == 32, "ops header");
_Static_assert(sizeof(op_t) == 64, "ops record");

static int check_op(const ops_t *ops, uint64_t i, const char *path, err_t *err)
{
	const op_t *o = &ops->op[i];
	unsigned long long n = i;

	if (o->op < OP_READ || o->op > OP_LAST)
		return err_set(err, "%s: operation %llu has the unknown code %u (1 to %d are known).", path, n, o->op,
		    OP_LAST);
	if (o->via > VIA_LAST)
		return err_set(err, "%s: operation %llu has the unknown way into the kernel %u (0 to %d are known).",
		    path, n, o->via, VIA_LAST);
	if (o->flags & ~(uint32_t)OPF_ALL)
		return err_set(err, "%s: operation %llu has unknown flags 0x%x.", path, n, o->flags);
	if (o->t < 0 || o->t > (INT64_MAX >> 2) || o->dur < 0 || o->dur > (INT64_MAX >> 2))
		return err_set(err, "%s: operation %llu has an impossible time (start %lld ns, duration %lld ns).",
		    path, n, (long long)o->t, (long long)o->dur);
	if (i > 0 && o->t < ops->op[i - 1].t)
		return err_set(err,
		    "%s: operation %llu starts before the one ahead of it; the file must be sorted by time.", path, n);
	if (o->thread >= ops->nthreads)
		return err_set(err, "%s: operation %llu has thread %u, but the header says %u threads.", path, n,
		    o->thread, ops->nthreads);
	if (o->file < -1 || o->file >= (int64_t)ops->nfiles || o->file2 < -1 || o->file2 >= (int64_t)ops->nfiles)
		return err_set(err, "%s: operation %llu names file %d (second file %d), but the header says %u files.",
		    path, n, o->file, o->file2, ops->nfiles);
	if (o->offset < -1 || o->offset > OPS_MAX_FILE_BYTES)
		return err_set(err, "%s: operation %llu has the impossible offset %lld.", path, n,
		    (long long)o->offset);
	switch (o->op) {
	case OP_READ:
	case OP_WRITE:
	case OP_FALLOCATE:
	case OP_COPY:
	case OP_WARM:
	case OP_READ_AHEAD:
		if (o->offset < 0 || o->size < 0 || o->size > OPS_MAX_SIZE || o->offset + o->size > OPS_MAX_FILE_BYTES)
			return err_set(err, "%s: operation %llu has an impossible range (offset %lld, size %lld).",
			    path, n, (long long)o->offset, (long long)o->size);
		break;
	case OP_TRUNCATE:
		if (o->size < 0 || o->size > OPS_MAX_FILE_BYTES)
			return err_set(err, "%s: operation %llu truncates to the impossible size %lld.", path, n,
			    (long long)o->size);
		break;
	default:
		break;
	}
	if (o->blank != 0 && (o->op != OP_WRITE || (int64_t)o->blank > o->size))
		return err_set(err, "%s: operation %llu can't end in %u bytes of zeros.", path, n, o->blank);
	if (o->op == OP_WARM && (o->t != 0 || (i > 0 && ops->op[i - 1].op != OP_WARM)))
		return err_set(err, "%s: operation %llu warms the caches, but is not at the beginning.", path, n);
	if (o->file == -1 && o->op != OP_SYNC)
		return err_set(err, "%s: operation %llu needs a file but has none.", path, n);
	return 0;
}

int ops_read(const char *path, ops_t *ops, err_t *err)
{
	struct stat st;
	header_t h;
	int fd;

	memset(ops, 0, sizeof(*ops));
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return err_set(err, "The ops file %s can't be opened: %s.", path, strerror(errno));
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		(void)close(fd);
		return err_set(err, "%s is not a regular file.", path);
	}
	if ((uint64_t)st.st_size < sizeof(h)) {
		(void)close(fd);
		return err_set(err, "%s is too short for an ops file: %lld bytes, the header alone has %zu.", path,
		    (long long)st.st_size, sizeof(h));
	}
	ops->map_len = (size_t)st.st_size;
	ops->map = mmap(NULL, ops->map_len, PROT_READ, MAP_PRIVATE, fd, 0);
	(void)close(fd);
	if (ops->map == MAP_FAILED) {
		ops->map = NULL;
		return err_set(err, "%s can't be mapped: %s.", path, strerror(errno));
	}
	memcpy(&h, ops->map, sizeof(h));
	if (memcmp(h.magic, "ZTOPS\0\0\0", 8) != 0)
		return err_set(err, "%s is not an ops file: it does not begin with ZTOPS.", path);
	if (h.version != 3)
		return err_set(err, "%s has version %u of the ops format; this engine reads version 3.", path,
		    h.version);
	if (h.record_size != sizeof(op_t))
		return err_set(err, "%s has records of %u bytes; version 3 has %zu.", path, h.record_size,
		    sizeof(op_t));
	if (h.nops > (UINT64_MAX - sizeof(h)) / sizeof(op_t) || sizeof(h) + h.nops * sizeof(op_t) != ops->map_len)
		return err_set(err,
		    "%s should have %llu operations of %zu bytes, but its length is %zu: it was cut or is foreign.",
		    path, (unsigned long long)h.nops, sizeof(op_t), ops->map_len);
	if (h.nfiles > 10000000 || h.nthreads > 65536)
		return err_set(err, "%s claims %u files and %u threads; at most 10000000 and 65536 are possible.", path,
		    h.nfiles, h.nthreads);
	ops->op = (const op_t *)((const char *)ops->map + sizeof(h));
	ops->nops = h.nops;
	ops->nfiles = h.nfiles;
	ops->nthreads = h.nthreads;
	for (uint64_t i = 0; i < h.nops; i++)
		if (check_op(ops, i, path, err) != 0)
			return -1;
	return 0;
}

void ops_free(ops_t *ops)
{
	if (ops->map != NULL)
		(void)munmap(ops->map, ops->map_len);
	memset(ops, 0, sizeof(*ops));
}
