#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "allzero.h"

#define PAGE 4096U
#define SECTOR 512U      /* the smallest unit that OpenZFS allocates */
#define PIECE STORE_PART /* moved at a time, and the reach of a part of the map */
#define PIECE_PAGES STORE_PAGES

struct store {
	store_t *next;
	uint64_t size;
	uint8_t *mem; /* NULL: it is a file */
	int fd;
	uint8_t **used;  /* by piece, NULL as long as nothing is: of each page a bit for each sector in use */
	uint8_t **below; /* by piece, NULL where it began empty: what an image has of each page, page_t */
};

/* A page that is as the image has it takes no memory of ours; where it was written, giving it back brings the image's. */
typedef enum { NOT_THERE, AS_THERE, WRITTEN } page_t;

static store_t *stores;
static char directory[4096];
static bool on_files, files_are_memory;
static uint64_t pages_used;
static bool drop_zeros;

void store_begin(const char *dir, bool files)
{
	struct statfs fs;

	(void)snprintf(directory, sizeof(directory), "%s", dir);
	on_files = files;
	files_are_memory =
	    dir[0] != '\0' && statfs(dir, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

static int open_file(uint64_t size, err_t *err)
{
	char path[sizeof(directory) + 32];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/ztune-disk-XXXXXX", directory);
	if ((fd = mkostemp(path, O_CLOEXEC)) < 0)
		return err_set(err, "No file for a disk can be made in backing_dir %s: %s.", directory,
		    strerror(errno));
	/* Nothing stays behind, whatever ends this process. */
	(void)unlink(path);
	if (ftruncate(fd, (off_t)size) == 0)
		return fd;
	(void)err_set(err, "backing_dir %s can't hold a sparse file of %llu bytes: %s.", directory,
	    (unsigned long long)size, strerror(errno));
	(void)close(fd);
	return -1;
}

store_t *store_open(uint64_t size, err_t *err)
{
	store_t *s = calloc(1, sizeof(*s));

	if (s == NULL || (s->used = calloc(size / PIECE + 1, sizeof(*s->used))) == NULL ||
	    (s->below = calloc(size / PIECE + 1, sizeof(*s->below))) == NULL)
		abort();
	s->size = size;
	s->fd = -1;
	if (on_files) {
		if ((s->fd = open_file(size, err)) < 0)
			return NULL;
	} else {
		s->mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (s->mem == MAP_FAILED) {
			(void)err_set(err, "No address space for a disk of %llu bytes: %s.", (unsigned long long)size,
			    strerror(errno));
			return NULL;
		}
		/* Pools are sparse: a huge page for each 4 KiB written would fill the memory. */
		(void)madvise(s->mem, size, MADV_NOHUGEPAGE);
	}
	s->next = stores;
	return stores = s;
}

uint8_t *store_at(const store_t *s, int *fd)
{
	*fd = s->fd;
	return s->mem;
}

/* The sectors of a page that lie between two places of the disk. */
static uint8_t sectors(uint64_t page, uint64_t first, uint64_t end)
{
	uint64_t from = first > page * PAGE ? (first - page * PAGE) / SECTOR : 0;
	uint64_t to = end < (page + 1) * PAGE ? (end - page * PAGE + SECTOR - 1) / SECTOR : PAGE / SECTOR;

	return (uint8_t)((0xffU << from) & (0xffU >> (PAGE / SECTOR - to)));
}

/* What an image has of a page; NULL: nothing. */
static uint8_t *below_at(const store_t *s, uint64_t page)
{
	uint8_t *below = s->below[page / PIECE_PAGES];

	return below != NULL && below[page % PIECE_PAGES] != NOT_THERE ? below + page % PIECE_PAGES : NULL;
}

void store_claim(store_t *s, uint64_t offset, uint64_t len)
{
	uint64_t end = offset + len;

	if (len == 0)
		return;
	for (uint64_t p = offset / PAGE; p <= (end - 1) / PAGE; p++) {
		uint8_t **part = &s->used[p / PIECE_PAGES], *used, *below = below_at(s, p);

		if (*part == NULL && (*part = calloc(PIECE_PAGES, 1)) == NULL)
			abort();
		used = *part + p % PIECE_PAGES;
		pages_used += *used == 0 || (below != NULL && *below == AS_THERE);
		*used |= sectors(p, offset, end);
		if (below != NULL)
			*below = WRITTEN;
	}
}

static void give_back(const store_t *s, uint64_t page, uint64_t n)
{
	if (n > 0 && s->mem != NULL)
		(void)madvise(s->mem + page * PAGE, n * PAGE, MADV_DONTNEED);
}

void store_release(store_t *s, uint64_t offset, uint64_t len)
{
	uint64_t end = offset + len, n = 0, p;

	if (len == 0)
		return;
	for (p = offset / PAGE; p <= (end - 1) / PAGE; p++) {
		uint8_t *used = s->used[p / PIECE_PAGES], *below = below_at(s, p);
		bool was = used != NULL && used[p % PIECE_PAGES] != 0;

		if (was && (used[p % PIECE_PAGES] &= (uint8_t)~sectors(p, offset, end)) == 0) {
			pages_used -= below == NULL || *below == WRITTEN;
			if (below != NULL)
				*below = AS_THERE;
			n++;
			continue;
		}
		give_back(s, p - n, n);
		n = 0;
	}
	give_back(s, p - n, n);
}

void store_zeros_cost_nothing(bool begin)
{
	drop_zeros = begin;
}

void store_drop_zeros(const store_t *s, uint64_t offset, uint64_t len)
{
	uint64_t p = (offset + PAGE - 1) / PAGE, end = (offset + len) / PAGE, n = 0;

	if (!drop_zeros)
		return;
	for (; p < end; p++) {
		uint8_t *used = s->used[p / PIECE_PAGES];

		/* What is given back of an image would be its bytes, not zeros. */
		if (used != NULL && used[p % PIECE_PAGES] != 0 && below_at(s, p) == NULL &&
		    all_zero(s->mem + p * PAGE, PAGE)) {
			used[p % PIECE_PAGES] = 0;
			pages_used--;
			n++;
			continue;
		}
		give_back(s, p - n, n);
		n = 0;
	}
	give_back(s, p - n, n);
}

uint64_t store_memory_bytes(void)
{
	return on_files && !files_are_memory ? 0 : pages_used * PAGE;
}

uint64_t store_file_bytes(void)
{
	struct stat st;
	uint64_t sum = 0;

	for (const store_t *s = stores; s != NULL; s = s->next)
		if (s->fd >= 0 && fstat(s->fd, &st) == 0)
			sum += (uint64_t)st.st_blocks * 512;
	return sum;
}

/* How many pages from `page` of a piece on are in use, or are not, as that one. */
static uint64_t run_of(const uint8_t *used, uint64_t page)
{
	uint64_t n = 1;

	while (page + n < PIECE_PAGES && (used[page + n] != 0) == (used[page] != 0))
		n++;
	return n;
}

/* Makes holes of the pages of a part that are not in use. */
static void punch(const store_t *s, uint64_t part)
{
	const uint8_t *used = s->used[part];

	for (uint64_t p = 0, n; p < PIECE_PAGES; p += n) {
		n = run_of(used, p);
		if (used[p] == 0)
			(void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			    (off_t)((part * PIECE_PAGES + p) * PAGE), (off_t)(n * PAGE));
	}
}

void store_trim(void)
{
	for (const store_t *s = stores; s != NULL; s = s->next)
		for (uint64_t part = 0; s->fd >= 0 && part <= s->size / PIECE; part++)
			if (s->used[part] != NULL)
				punch(s, part);
}

bool store_can_move(void)
{
	return !on_files && directory[0] != '\0' && !files_are_memory;
}

static int write_out(const uint8_t *from, int fd, uint64_t to, uint64_t len)
{
	while (len > 0) {
		ssize_t n = pwrite(fd, from, len, (off_t)to);

		if (n < 0 && errno != EINTR)
			return -1;
		n = n > 0 ? n : 0;
		from += n;
		to += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

/* Between two files, through memory: not every file system can do it alone. */
static int copy_out(int from, uint64_t at, int to, uint64_t offset, uint64_t len)
{
	static uint8_t buf[1 << 20];

	while (len > 0) {
		ssize_t n = pread(from, buf, len < sizeof(buf) ? len : sizeof(buf), (off_t)at);

		if (n == 0)
			errno = EIO;
		if (n <= 0 && errno == EINTR)
			continue;
		if (n <= 0 || write_out(buf, to, offset, (uint64_t)n) != 0)
			return -1;
		at += (uint64_t)n;
		offset += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

uint64_t store_parts(const store_t *s)
{
	return s->size / PIECE + 1;
}

const uint8_t *store_used(const store_t *s, uint64_t part)
{
	return s->used[part];
}

int store_save(const store_t *s, uint64_t part, int fd, uint64_t at)
{
	const uint8_t *used = s->used[part];
	int rc = 0;

	for (uint64_t p = 0, n; p < PIECE_PAGES && rc == 0; p += n) {
		uint64_t from = (part * PIECE_PAGES + p) * PAGE, len;

		n = run_of(used, p);
		len = from + n * PAGE < s->size ? n * PAGE : s->size - from;
		if (used[p] == 0)
			continue;
		rc = s->mem != NULL ? write_out(s->mem + from, fd, at + p * PAGE, len)
				    : copy_out(s->fd, from, fd, at + p * PAGE, len);
		give_back(s, part * PIECE_PAGES + p, n);
	}
	return rc;
}

int store_map(store_t *s, uint64_t part, int fd, uint64_t at, const uint8_t *used)
{
	uint64_t from = part * PIECE, len = s->size - from < PIECE ? s->size - from : PIECE;

	if ((s->used[part] = malloc(PIECE_PAGES)) == NULL)
		abort();
	memcpy(s->used[part], used, PIECE_PAGES);
	if (s->mem == NULL) {
		for (uint64_t p = 0, n; p < PIECE_PAGES; p += n) {
			uint64_t end;

			n = run_of(used, p);
			end = (p + n) * PAGE < len ? (p + n) * PAGE : len;
			if (used[p] != 0 && copy_out(fd, at + p * PAGE, s->fd, from + p * PAGE, end - p * PAGE) != 0)
				return -1;
		}
		return 0;
	}
	if ((s->below[part] = malloc(PIECE_PAGES)) == NULL)
		abort();
	for (uint64_t p = 0; p < PIECE_PAGES; p++)
		s->below[part][p] = used[p] != 0 ? AS_THERE : NOT_THERE;
	if (mmap(s->mem + from, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, (off_t)at) ==
	    MAP_FAILED)
		return -1;
	(void)madvise(s->mem + from, len, MADV_NOHUGEPAGE);
	return 0;
}

/* Piece by piece: what is written is given back before the next is. */
static int move_one(store_t *s, err_t *err)
{
	int fd = open_file(s->size, err);

	if (fd < 0)
		return -1;
	for (uint64_t part = 0; part < store_parts(s); part++)
		if (s->used[part] != NULL && store_save(s, part, fd, part * PIECE) != 0) {
			(void)err_set(err, "The disks can't move from memory to files in backing_dir %s: %s.",
			    directory, strerror(errno));
			(void)close(fd);
			return -1;
		}
	(void)munmap(s->mem, s->size);
	s->mem = NULL;
	s->fd = fd;
	return 0;
}

int store_move(err_t *err)
{
	int rc = 0;

	for (store_t *s = stores; s != NULL && rc == 0; s = s->next)
		if (s->mem != NULL)
			rc = move_one(s, err);
	on_files = true;
	return rc;
}
