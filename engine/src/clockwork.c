#include "clockwork.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "zfs.h"

static uint64_t host_memory = 4ULL << 30;
static uint64_t arc_limit = 1ULL << 30;
static uint64_t random_state = 1;

/* Offset from the wall clock to OpenZFS's clock, and the wall clock's value at trace time 0 (ns). */
static int64_t clock_ahead;
static int64_t clock_zero = -1;

/* The L2ARC feed: its thread waits here instead of on the wall clock. */
static pthread_mutex_t feed_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t feed_cond = PTHREAD_COND_INITIALIZER;
static __thread bool is_feed_thread;
static bool starting_feed;
static bool feed_waiting;	/* its thread is parked */
static bool feed_go;
static int64_t feed_due;	/* trace time of the next feed */
static int64_t trace_now;

typedef int clock_gettime_fn(clockid_t, struct timespec *);

static clock_gettime_fn *
real_clock(void)
{
	static clock_gettime_fn *fn;

	if (__builtin_expect(fn == NULL, 0))
		fn = (clock_gettime_fn *)(uintptr_t)dlsym(RTLD_NEXT, "clock_gettime");
	return (fn);
}

static int64_t
real_ns(void)
{
	struct timespec ts;

	(void) real_clock()(CLOCK_MONOTONIC, &ts);
	return ((int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec);
}

double
wall_now(void)
{
	return ((double)real_ns() / 1e9);
}

double
cpu_now(void)
{
	struct rusage ru;

	(void) getrusage(RUSAGE_SELF, &ru);
	return ((double)ru.ru_utime.tv_sec + (double)ru.ru_stime.tv_sec +
	    ((double)ru.ru_utime.tv_usec + (double)ru.ru_stime.tv_usec) / 1e6);
}

void
clockwork_init(uint64_t seed, uint64_t memory, uint64_t arc_max)
{
	random_state = seed;
	host_memory = memory;
	arc_limit = arc_max;
}

void
clockwork_start(void)
{
	clock_zero = real_ns();
}

void
clockwork_advance(int64_t trace_ns)
{
	int64_t ahead, want = clock_zero + trace_ns - real_ns();

	trace_now = trace_ns;
	ahead = __atomic_load_n(&clock_ahead, __ATOMIC_RELAXED);
	if (want > ahead)
		__atomic_store_n(&clock_ahead, want, __ATOMIC_RELAXED);
}

/* OpenZFS's gethrtime() ends here: the ages of cached blocks and prefetch streams are then in trace time. */
int
clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = real_clock()(id, ts);
	int64_t ahead = __atomic_load_n(&clock_ahead, __ATOMIC_RELAXED);

	if (rc == 0 && id == CLOCK_MONOTONIC && ahead != 0) {
		int64_t ns = (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec + ahead;

		ts->tv_sec = ns / 1000000000;
		ts->tv_nsec = ns % 1000000000;
	}
	return (rc);
}

static uint64_t
next_random(void)
{
	uint64_t x = __atomic_add_fetch(&random_state, 0x9e3779b97f4a7c15ULL, __ATOMIC_RELAXED);

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return (x ^ (x >> 31));
}

static int
fill_random(uint8_t *ptr, size_t len)
{
	while (len > 0) {
		uint64_t x = next_random();
		size_t n = MIN(len, sizeof (x));

		memcpy(ptr, &x, n);
		ptr += n;
		len -= n;
	}
	return (0);
}

int
random_get_bytes(uint8_t *ptr, size_t len)
{
	return (fill_random(ptr, len));
}

int
random_get_pseudo_bytes(uint8_t *ptr, size_t len)
{
	return (fill_random(ptr, len));
}

/* The modelled host never runs short of memory: the ARC alone limits itself. */
int64_t
arc_available_memory(void)
{
	return (INT64_MAX);
}

uint64_t
arc_free_memory(void)
{
	return (host_memory);
}

uint64_t
arc_all_memory(void)
{
	return (host_memory);
}

/* OpenZFS takes a small zfs_arc_max only if its own first choice is as small. */
uint64_t
arc_default_max(uint64_t min, uint64_t allmem)
{
	(void) min, (void) allmem;
	return (arc_limit);
}

/*
 * The feed thread is recognised by who starts it: l2arc_start() is called once, while the library comes up, and
 * creates this one thread.
 */
void
l2arc_start(void)
{
	void (*real)(void) = (void (*)(void))(uintptr_t)dlsym(RTLD_NEXT, "l2arc_start");

	starting_feed = true;
	real();
	starting_feed = false;
}

typedef struct {
	void (*func)(void *);
	void *arg;
} feed_start_t;

static void
feed_main(void *arg)
{
	feed_start_t fs = *(feed_start_t *)arg;

	free(arg);
	is_feed_thread = true;
	fs.func(fs.arg);
}

#if OPENZFS_NUMBER >= 20200
#define	NAME_PARAM const char *name,
#define	NAME_TYPE const char *,
#define	NAME_ARG name,
#else
#define	NAME_PARAM
#define	NAME_TYPE
#define	NAME_ARG
#endif

kthread_t *
zk_thread_create(NAME_PARAM void (*func)(void *), void *arg, size_t stksize, int state)
{
	typedef kthread_t *create_fn(NAME_TYPE void (*)(void *), void *, size_t, int);
	static create_fn *real;

	if (real == NULL)
		real = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "zk_thread_create");
	if (starting_feed) {
		feed_start_t *fs = malloc(sizeof (*fs));

		if (fs == NULL)
			abort();
		fs->func = func;
		fs->arg = arg;
		return (real(NAME_ARG feed_main, fs, stksize, state));
	}
	return (real(NAME_ARG func, arg, stksize, state));
}

int
cv_timedwait(kcondvar_t *cv, kmutex_t *mp, clock_t abstime)
{
	typedef int wait_fn(kcondvar_t *, kmutex_t *, clock_t);
	static wait_fn *real;
	static kmutex_t *feed_mutex;
	int64_t ticks;

	/* The feed also waits for its I/O; its sleep between feeds is the first wait of its life. */
	if (is_feed_thread && feed_mutex == NULL)
		feed_mutex = mp;
	if (!is_feed_thread || mp != feed_mutex) {
		if (real == NULL)
			real = (wait_fn *)(uintptr_t)dlsym(RTLD_NEXT, "cv_timedwait");
		return (real(cv, mp, abstime));
	}
	/* A tick is 2^23 ns in user space.  Only clockwork_feed_l2arc() wakes the feed. */
	ticks = abstime - (clock_t)ddi_get_lbolt();
	mutex_exit(mp);
	(void) pthread_mutex_lock(&feed_lock);
	feed_due = trace_now + (MAX(ticks, 0) << 23);
	feed_waiting = true;
	(void) pthread_cond_broadcast(&feed_cond);
	while (!feed_go)
		(void) pthread_cond_wait(&feed_cond, &feed_lock);
	feed_go = feed_waiting = false;
	(void) pthread_mutex_unlock(&feed_lock);
	mutex_enter(mp);
	return (-1);
}

void
clockwork_feed_l2arc(int64_t trace_ns)
{
	(void) pthread_mutex_lock(&feed_lock);
	/* After a long silence in the trace a few feeds empty the lists; the rest would find nothing. */
	if (feed_waiting && trace_ns - feed_due > 60 * 1000000000LL)
		feed_due = trace_ns - 60 * 1000000000LL;
	while (feed_waiting && feed_due <= trace_ns) {
		feed_go = true;
		(void) pthread_cond_broadcast(&feed_cond);
		while (feed_go || !feed_waiting)
			(void) pthread_cond_wait(&feed_cond, &feed_lock);
	}
	(void) pthread_mutex_unlock(&feed_lock);
}
