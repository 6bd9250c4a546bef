#include "footprint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clockwork.h"
#include "err.h"
#include "store.h"
#include "vtime.h"

#define EVERY_S 0.02 /* an engine writes some 10 MB of its pools meanwhile */
#define NEAR 85      /* percent of a limit: memory moves to files, files are trimmed */
/* Address space that is taken but never touched: stacks, arenas of the allocator. */
#define UNTOUCHED (512ULL << 20)

static uint64_t memory_max, file_max, peak;

typedef struct {
	uint64_t size, mine; /* bytes of address space, of memory that no file holds */
} taken_t;

/* proc_pid_statm(5): pages of size, resident, shared (files and the like). */
static taken_t taken(void)
{
	static int fd = -1;
	unsigned long long size, resident, shared, page = (unsigned long long)sysconf(_SC_PAGESIZE);
	char text[256];
	ssize_t n;

	if (fd < 0)
		fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	n = pread(fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	if (sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3)
		return (taken_t){0, 0};
	return (taken_t){size * page, (resident - shared) * page};
}

void footprint_yield(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	/* None of them needs a right; where one can't be had the others still help. */
	(void)!nice(10);
	(void)syscall(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, 0, 2 << 13 | 7 /* IOPRIO_CLASS_BE, the last */);
	if (fd >= 0) {
		(void)!write(fd, "1000", 4);
		(void)close(fd);
	}
}

static void __attribute__((noreturn)) end(const char *sentence)
{
	(void)fprintf(stderr, "%s\n", sentence);
	(void)fflush(stderr);
	_exit(EXIT_LIMIT);
}

/* The heap can't pass the limit between two looks: the kernel refuses it address space. */
static void wall(const taken_t *t)
{
	struct rlimit r;
	uint64_t most = t->size - t->mine + memory_max + UNTOUCHED;

	if (getrlimit(RLIMIT_AS, &r) != 0)
		return;
	r.rlim_cur = r.rlim_max != RLIM_INFINITY && r.rlim_max < most ? r.rlim_max : most;
	(void)setrlimit(RLIMIT_AS, &r);
}

static void look(void)
{
	taken_t t = taken();
	uint64_t files = store_file_bytes(), mine = t.mine + (files > 0 ? store_memory_bytes() : 0);
	static uint64_t trimmed; /* what the files took after they were last trimmed */
	err_t e;

	if (mine > peak)
		peak = mine;
	if (memory_max > 0 && mine >= memory_max / 100 * NEAR && store_can_move()) {
		if (store_move(&e) != 0)
			end(e.text);
		t = taken();
		wall(&t);
		return;
	}
	if (memory_max > 0 && mine >= memory_max) {
		uint64_t pools = store_memory_bytes();

		(void)err_set(&e,
		    "The replay needs more than the %llu MiB of memory that it may take: %llu MiB for what is in its "
		    "pools, %llu MiB beside them.",
		    (unsigned long long)memory_max >> 20, (unsigned long long)pools >> 20,
		    (unsigned long long)(mine > pools ? mine - pools : 0) >> 20);
		end(e.text);
	}
	if (file_max > 0 && files >= file_max / 100 * NEAR && files >= trimmed + file_max / 100 * (100 - NEAR) / 2) {
		store_trim();
		trimmed = files = store_file_bytes();
	}
	if (file_max > 0 && files >= file_max) {
		(void)err_set(&e, "The replay's pools need more than the %llu MiB of files that they may take.",
		    (unsigned long long)file_max >> 20);
		end(e.text);
	}
}

static void watch(void)
{
	static double next;
	double now = wall_now();

	if (now < next)
		return;
	next = now + EVERY_S;
	look();
}

void footprint_watch(uint64_t memory, uint64_t file)
{
	taken_t t = taken();

	memory_max = memory;
	file_max = file;
	if (memory_max > 0)
		wall(&t);
	vtime_watch(watch);
}

uint64_t footprint_peak(void)
{
	return peak;
}
