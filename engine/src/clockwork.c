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
	/*
	 * The ARC's lists are split by processor, four at least, and which part is evicted from first is chance: of a small ARC
	 * with large records this would choose what is cached.  One list is what they all come to in a large one.
	 */
	zfs_multilist_num_sublists = 1;
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
	bool exact; /* this thread knows the ARC's size exactly */
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

/* --- the ARC's eviction --- */

/*
 * A thread evicts while others go on, and begins only when the ARC is larger than its limit by a block of the largest
 * size (16 MiB) and by what its sums don't know exactly (16 times the block last counted): a quarter and more of a small
 * ARC.  The replay has it done whenever nothing else is under way, and exactly, so that what is cached for the next
 * operation depends neither on how fast that thread was nor on these allowances.
 */
static zthr_t *evict_thread;
static zthr_checkfunc_t *evict_check;
static pthread_mutex_t evict_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t evict_cond = PTHREAD_COND_INITIALIZER;
static uint64_t evict_asked; /* times the thread was woken */
static uint64_t evict_done;  /* how many of them it has answered */

/* The thread's state is locked while it checks: who wakes it comes before the check, or when it sleeps again. */
static boolean_t check_evict(void *arg, zthr_t *t)
{
	uint64_t asked = __atomic_load_n(&evict_asked, __ATOMIC_SEQ_CST);
	boolean_t more = evict_check(arg, t);

	if (!more && asked != __atomic_load_n(&evict_done, __ATOMIC_RELAXED)) {
		(void)pthread_mutex_lock(&evict_lock);
		__atomic_store_n(&evict_done, asked, __ATOMIC_RELAXED);
		(void)pthread_cond_broadcast(&evict_cond);
		(void)pthread_mutex_unlock(&evict_lock);
	}
	return more;
}

zthr_t *zthr_create_timer(const char *name, zthr_checkfunc_t *check, zthr_func_t *func, void *arg, hrtime_t wait,
    pri_t pri)
{
	typedef zthr_t *create_fn(const char *, zthr_checkfunc_t *, zthr_func_t *, void *, hrtime_t, pri_t);
	static create_fn *real;

	if (real == NULL)
		real = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "zthr_create_timer");
	if (strcmp(name, "arc_evict") != 0)
		return real(name, check, func, arg, wait, pri);
	evict_check = check;
	evict_thread = real(name, check_evict, func, arg, wait, pri);
	return evict_thread;
}

zthr_t *zthr_create(const char *name, zthr_checkfunc_t *check, zthr_func_t *func, void *arg, pri_t pri)
{
	return zthr_create_timer(name, check, func, arg, 0, pri);
}

void zthr_wakeup(zthr_t *t)
{
	typedef void wakeup_fn(zthr_t *);
	static wakeup_fn *real;

	if (real == NULL)
		real = (wakeup_fn *)(uintptr_t)dlsym(RTLD_NEXT, "zthr_wakeup");
	if (t == evict_thread)
		(void)__atomic_add_fetch(&evict_asked, 1, __ATOMIC_SEQ_CST);
	real(t);
}

/* Only asked of the ARC's sizes, by what decides whether to evict. */
int64_t aggsum_lower_bound(aggsum_t *sum)
{
	typedef int64_t bound_fn(aggsum_t *);
	static bound_fn *real;

	if (local()->exact)
		return (int64_t)aggsum_value(sum) + (sum == &arc_sums.arcstat_size ? ARC_ALLOWANCE : 0);
	if (real == NULL)
		real = (bound_fn *)(uintptr_t)dlsym(RTLD_NEXT, "aggsum_lower_bound");
	return real(sum);
}

void clockwork_wait_evicted(void)
{
	uint64_t asked = __atomic_load_n(&evict_asked, __ATOMIC_SEQ_CST);

	if (asked == __atomic_load_n(&evict_done, __ATOMIC_RELAXED))
		return;
	(void)pthread_mutex_lock(&evict_lock);
	while (evict_done < asked)
		(void)pthread_cond_wait(&evict_cond, &evict_lock);
	(void)pthread_mutex_unlock(&evict_lock);
}

uint64_t clockwork_evict(void)
{
	uint64_t too_young = wmsum_value(&arc_sums.arcstat_evict_skip);

	clockwork_wait_evicted();
	if (aggsum_value(&arc_sums.arcstat_size) <= arc_c)
		return 0;
	local()->exact = true;
	ARC_EVICT();
	local()->exact = false;
	clockwork_wait_evicted();
	return wmsum_value(&arc_sums.arcstat_evict_skip) - too_young;
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
