#include "clockwork.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "chance.h"
#include "own.h"
#include "vtime.h"

#include "zfs.h"

/* Of any list in parts: multilist_create in module/zfs/multilist.c. */
#define FEWEST_PARTS 4

/* Of OpenZFS's, in no header. */
extern uint_t zfs_multilist_num_sublists;

static uint64_t random_seed = 1;
static int modelled_processors = 1;

double wall_now(void)
{
	typedef int clock_gettime_fn(clockid_t, struct timespec *);
	static clock_gettime_fn *real;
	struct timespec ts;

	if (real == NULL)
		real = (clock_gettime_fn *)(uintptr_t)dlsym(RTLD_NEXT, "clock_gettime");
	(void)real(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

double cpu_now(void)
{
	struct rusage ru;

	(void)getrusage(RUSAGE_SELF, &ru);
	return (double)ru.ru_utime.tv_sec + (double)ru.ru_stime.tv_sec +
	    ((double)ru.ru_utime.tv_usec + (double)ru.ru_stime.tv_usec) / 1e6;
}

void clockwork_init(uint64_t seed, int processors)
{
	random_seed = seed;
	modelled_processors = MAX(processors, 1);
}

/*
 * Each thread has random numbers of its own, so that none depends on what the others draw meanwhile: two streams, one
 * for identities and one for choices, because how often something is chosen may depend on chance.
 */
typedef struct {
	uint64_t state;
	bool seeded;
} stream_t;

typedef struct {
	stream_t identities, choices;
} local_t;

static local_t *local(void)
{
	static own_t own;

	return own_value(&own, sizeof(local_t));
}

static uint64_t next_random(stream_t *s, uint64_t salt)
{
	if (!s->seeded) {
		s->state = random_seed + salt + vtime_thread_number() * 0xd1342543de82ef95ULL;
		s->seeded = true;
	}
	return chance_next(&s->state);
}

static int fill_random(uint8_t *ptr, size_t len)
{
	/* random_in_range() asks for four bytes, and nothing else does. */
	bool choice = len == sizeof(uint32_t);

	while (len > 0) {
		uint64_t x = choice ? next_random(&local()->choices, 0x6a09e667f3bcc909ULL)
				    : next_random(&local()->identities, 0);
		size_t n = MIN(len, sizeof(x));

		memcpy(ptr, &x, n);
		ptr += n;
		len -= n;
	}
	return 0;
}

int random_get_bytes(uint8_t *ptr, size_t len)
{
	return fill_random(ptr, len);
}

int random_get_pseudo_bytes(uint8_t *ptr, size_t len)
{
	return fill_random(ptr, len);
}

/* One processor: some of OpenZFS's structures, and its threads, are as many as there are processors. */
long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF)
		return 1;
	if (real == NULL)
		real = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}

/* Those that are so many percent of the processors are of the modelled ones: more blocks are compressed side by side. */
taskq_t *taskq_create(const char *name, int threads, pri_t pri, int least, int most, uint_t flags)
{
	typedef taskq_t *create_fn(const char *, int, pri_t, int, int, uint_t);
	static create_fn *real;

	if (real == NULL)
		real = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "taskq_create");
	if ((flags & TASKQ_THREADS_CPU_PCT) != 0) {
		threads = MAX(MIN(threads, 100) * modelled_processors / 100, 1);
		flags &= ~(uint_t)TASKQ_THREADS_CPU_PCT;
	}
	return real(name, threads, pri, least, most, flags);
}

static unsigned int part_of(multilist_t *list, void *dnode)
{
	uint64_t object = ((const dnode_t *)dnode)->dn_object;

	return (unsigned int)(chance_next(&object) % multilist_get_num_sublists(list));
}

/*
 * The files that a transaction group writes are in as many parts as there are processors, four at least, and the last
 * of a part is written first: so small files that were made one after the other lie on the disk.  OpenZFS takes the part
 * from an address, which is another one each time.
 * The ARC's lists are split in the same way, and which part is evicted from first is chance: of a small ARC with large
 * records this would choose what is cached.  One list is what they all come to in a large one.
 */
void multilist_create(multilist_t *list, size_t size, size_t offset, multilist_sublist_index_func_t *part)
{
	typedef void create_fn(multilist_t *, size_t, size_t, multilist_sublist_index_func_t *);
	static create_fn *real;
	bool files = size == sizeof(dnode_t);

	if (real == NULL)
		real = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "multilist_create");
	zfs_multilist_num_sublists = files ? (uint_t)MAX(modelled_processors, FEWEST_PARTS) : 1;
	real(list, size, offset, files ? part_of : part);
}

/* What OpenZFS keeps of decompressed blocks is a share of this; it looks once a second whether it keeps more. */
#define LOOKS 2

static bool no_buffers;

uint64_t arc_target_bytes(void)
{
	typedef uint64_t target_fn(void);
	static target_fn *real;

	if (real == NULL)
		real = (target_fn *)(uintptr_t)dlsym(RTLD_NEXT, "arc_target_bytes");
	return no_buffers ? 0 : real();
}

void clockwork_drop_buffers(void)
{
	no_buffers = true;
	for (int i = 0; i < LOOKS; i++)
		vtime_sleep_until(vtime_now() + NANOSEC);
	no_buffers = false;
}
