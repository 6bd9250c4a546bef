#include "clockwork.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "busy.h"

#include "zfs.h"

/* Of OpenZFS's, in no header. */
extern uint_t zfs_multilist_num_sublists;

static uint64_t random_seed = 1;
static uint64_t nthreads; /* made so far */
static __thread uint64_t thread_number;

/*
 * OpenZFS's clock, ns: stands still but for clockwork_advance(), so that nothing OpenZFS decides by time depends on
 * how fast this machine is or how busy.  It starts at a fixed time, because times are written to disk and compressed.
 */
#define CLOCK_START (1000000LL * 1000000000) /* since boot */
#define CALENDAR_START 1700000000LL          /* seconds since 1970 at that time */
static int64_t clock_ns = CLOCK_START;
static int64_t clock_zero;     /* its value at trace time 0 */
static __thread int real_time; /* >0: this thread is working out how long to sleep */

/* The L2ARC feed: its thread waits here instead of on the wall clock. */
static pthread_mutex_t feed_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t feed_cond = PTHREAD_COND_INITIALIZER;
static __thread bool is_feed_thread, is_dbuf_thread;
/* What the threads are for that this thread makes right now. */
typedef enum { MAKING_OTHER, MAKING_FEED, MAKING_REBUILD, MAKING_DBUF } making_t;
static __thread making_t making;
static int rebuilds;      /* L2ARC rebuild threads alive */
static bool feed_waiting; /* its thread is parked */
static bool feed_go;
static int64_t feed_due; /* trace time of the next feed */
static int64_t trace_now;

typedef int clock_gettime_fn(clockid_t, struct timespec *);

static int64_t virtual_ns(void)
{
	return __atomic_load_n(&clock_ns, __ATOMIC_RELAXED);
}

static clock_gettime_fn *real_clock(void)
{
	static clock_gettime_fn *fn;

	if (__builtin_expect(fn == NULL, 0))
		fn = (clock_gettime_fn *)(uintptr_t)dlsym(RTLD_NEXT, "clock_gettime");
	return fn;
}

static int64_t real_ns(void)
{
	struct timespec ts;

	(void)real_clock()(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

double wall_now(void)
{
	return (double)real_ns() / 1e9;
}

double cpu_now(void)
{
	struct rusage ru;

	(void)getrusage(RUSAGE_SELF, &ru);
	return (double)ru.ru_utime.tv_sec + (double)ru.ru_stime.tv_sec +
	    ((double)ru.ru_utime.tv_usec + (double)ru.ru_stime.tv_usec) / 1e6;
}

void clockwork_init(uint64_t seed)
{
	random_seed = seed;
	/*
	 * The ARC's lists are split by processor, four at least, and which part is evicted from first is chance: of a small ARC
	 * with large records this would choose what is cached.  One list is what they all come to in a large one.
	 */
	zfs_multilist_num_sublists = 1;
}

void clockwork_start(void)
{
	clock_zero = virtual_ns();
	trace_now = 0;
}

void clockwork_advance(int64_t trace_ns)
{
	int64_t want = clock_zero + trace_ns;

	trace_now = trace_ns;
	if (want > virtual_ns())
		__atomic_store_n(&clock_ns, want, __ATOMIC_RELAXED);
}

/* OpenZFS's gethrtime() ends here: the age of cached blocks. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	if (id == CLOCK_MONOTONIC) {
		int64_t ns = virtual_ns();

		ts->tv_sec = ns / 1000000000;
		ts->tv_nsec = ns % 1000000000;
		return 0;
	}
	return real_clock()(id, ts);
}

/* And its gethrestime() here: the age of prefetch streams.  Only sleeping needs the time of day. */
int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	int64_t ns = virtual_ns() - CLOCK_START;

	(void)zone;
	if (real_time > 0) {
		struct timespec ts;

		(void)real_clock()(CLOCK_REALTIME, &ts);
		tv->tv_sec = ts.tv_sec;
		tv->tv_usec = ts.tv_nsec / 1000;
		return 0;
	}
	tv->tv_sec = CALENDAR_START + ns / 1000000000;
	tv->tv_usec = ns % 1000000000 / 1000;
	return 0;
}

/*
 * Each thread has random numbers of its own, so that none depends on what the others draw meanwhile: two streams, one
 * for identities and one for choices, because how often something is chosen may depend on chance.  Threads count in the
 * order in which they are made.
 */
typedef struct {
	uint64_t state;
	bool seeded;
} stream_t;

static __thread stream_t identities, choices;

static uint64_t next_random(stream_t *s, uint64_t salt)
{
	uint64_t x;

	if (!s->seeded) {
		s->state = random_seed + salt + thread_number * 0xd1342543de82ef95ULL;
		s->seeded = true;
	}
	x = s->state += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static int fill_random(uint8_t *ptr, size_t len)
{
	/* random_in_range() asks for four bytes, and nothing else does. */
	bool choice = len == sizeof(uint32_t);

	while (len > 0) {
		uint64_t x = choice ? next_random(&choices, 0x6a09e667f3bcc909ULL) : next_random(&identities, 0);
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

/*
 * One processor, whatever this machine has: more would race for the next free block, and some of OpenZFS's structures
 * are as many as there are processors.
 */
long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF)
		return 1;
	if (real == NULL)
		real = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}

/*
 * The feed thread is recognised by who starts it: l2arc_start() is called once, while the library comes up, and
 * creates this one thread.
 */
void l2arc_start(void)
{
	void (*real)(void) = (void (*)(void))(uintptr_t)dlsym(RTLD_NEXT, "l2arc_start");

	making = MAKING_FEED;
	real();
	making = MAKING_OTHER;
}

/* What a pool's import finds on its cache devices is read by threads of their own; they end by themselves. */
void l2arc_spa_rebuild_start(spa_t *spa)
{
	void (*real)(spa_t *) = (void (*)(spa_t *))(uintptr_t)dlsym(RTLD_NEXT, "l2arc_spa_rebuild_start");

	making = MAKING_REBUILD;
	real(spa);
	making = MAKING_OTHER;
}

/* The thread that lets go of blocks in use lately is made here; it too would look again every second of the wall clock. */
void dbuf_init(void)
{
	void (*real)(void) = (void (*)(void))(uintptr_t)dlsym(RTLD_NEXT, "dbuf_init");

	making = MAKING_DBUF;
	real();
	making = MAKING_OTHER;
}

bool clockwork_rebuilding(void)
{
	return __atomic_load_n(&rebuilds, __ATOMIC_ACQUIRE) > 0;
}

typedef struct {
	void (*func)(void *);
	void *arg;
	making_t what;
	uint64_t number;
} thread_start_t;

static void thread_ended(void *alive)
{
	if (alive != NULL)
		(void)__atomic_sub_fetch((int *)alive, 1, __ATOMIC_RELEASE);
}

static void thread_main(void *arg)
{
	thread_start_t ts = *(thread_start_t *)arg;

	free(arg);
	thread_number = ts.number;
	is_feed_thread = ts.what == MAKING_FEED;
	is_dbuf_thread = ts.what == MAKING_DBUF;
	/* What it lets go of the ARC can evict: that is waited for. */
	if (is_dbuf_thread)
		busy_enter();
	/* OpenZFS's threads end in thread_exit(), not here. */
	pthread_cleanup_push(thread_ended, ts.what == MAKING_REBUILD ? &rebuilds : NULL);
	ts.func(ts.arg);
	pthread_cleanup_pop(1);
}

#if OPENZFS_NUMBER >= 20200
#define NAME_PARAM const char *name,
#define NAME_TYPE const char *,
#define NAME_ARG name,
#else
#define NAME_PARAM
#define NAME_TYPE
#define NAME_ARG
#endif

kthread_t *zk_thread_create(NAME_PARAM void (*func)(void *), void *arg, size_t stksize, int state)
{
	typedef kthread_t *create_fn(NAME_TYPE void (*)(void *), void *, size_t, int);
	static create_fn *real;
	thread_start_t *ts = malloc(sizeof(*ts));

	if (real == NULL)
		real = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "zk_thread_create");
	if (ts == NULL)
		abort();
	*ts = (thread_start_t){func, arg, making, __atomic_add_fetch(&nthreads, 1, __ATOMIC_RELAXED)};
	if (making == MAKING_REBUILD)
		(void)__atomic_add_fetch(&rebuilds, 1, __ATOMIC_RELAXED);
	return real(NAME_ARG thread_main, ts, stksize, state);
}

/* The feed's sleep: only clockwork_feed_l2arc() wakes it. */
static void feed_sleep(kmutex_t *mp, int64_t ns)
{
	static bool fed;

	mutex_exit(mp);
	if (fed)
		busy_leave();
	(void)pthread_mutex_lock(&feed_lock);
	feed_due = trace_now + MAX(ns, 0);
	feed_waiting = true;
	(void)pthread_cond_broadcast(&feed_cond);
	while (!feed_go)
		(void)pthread_cond_wait(&feed_cond, &feed_lock);
	feed_go = feed_waiting = false;
	(void)pthread_mutex_unlock(&feed_lock);
	busy_enter();
	fed = true;
	mutex_enter(mp);
}

int cv_timedwait(kcondvar_t *cv, kmutex_t *mp, clock_t abstime)
{
	typedef int wait_fn(kcondvar_t *, kmutex_t *, clock_t);
	static wait_fn *real;
	static kmutex_t *feed_mutex;
	int rc;

	/* The feed also waits for its I/O; its sleep between feeds is the first wait of its life. */
	if (is_feed_thread && feed_mutex == NULL)
		feed_mutex = mp;
	if (is_feed_thread && mp == feed_mutex) {
		/* A tick is 2^23 ns in user space. */
		feed_sleep(mp, (abstime - (clock_t)ddi_get_lbolt()) * (1LL << 23));
		return -1;
	}
	if (real == NULL)
		real = (wait_fn *)(uintptr_t)dlsym(RTLD_NEXT, "cv_timedwait");
	real_time++;
	busy_sleep(cv);
	rc = real(cv, mp, abstime);
	busy_wake();
	real_time--;
	return rc;
}

int cv_timedwait_hires(kcondvar_t *cv, kmutex_t *mp, hrtime_t time, hrtime_t resolution, int flag)
{
	typedef int wait_fn(kcondvar_t *, kmutex_t *, hrtime_t, hrtime_t, int);
	static wait_fn *real;
	int rc;

	if (is_dbuf_thread) {
		cv_wait(cv, mp);
		return 1;
	}
	if (real == NULL)
		real = (wait_fn *)(uintptr_t)dlsym(RTLD_NEXT, "cv_timedwait_hires");
	real_time++;
	busy_sleep(cv);
	rc = real(cv, mp, time, resolution, flag);
	busy_wake();
	real_time--;
	return rc;
}

void clockwork_feed_l2arc(int64_t trace_ns)
{
	(void)pthread_mutex_lock(&feed_lock);
	/* After a long silence in the trace a few feeds empty the lists; the rest would find nothing. */
	if (feed_waiting && trace_ns - feed_due > 60 * 1000000000LL)
		feed_due = trace_ns - 60 * 1000000000LL;
	while (feed_waiting && feed_due <= trace_ns) {
		feed_go = true;
		(void)pthread_cond_broadcast(&feed_cond);
		while (feed_go || !feed_waiting)
			(void)pthread_cond_wait(&feed_cond, &feed_lock);
	}
	(void)pthread_mutex_unlock(&feed_lock);
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
static __thread bool exact;  /* this thread knows the ARC's size exactly */

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

	if (exact)
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

	/* What is being read or let go of right now can't be evicted, or only by chance. */
	busy_wait_idle();
	clockwork_wait_evicted();
	if (aggsum_value(&arc_sums.arcstat_size) <= arc_c)
		return 0;
	exact = true;
	ARC_EVICT();
	exact = false;
	clockwork_wait_evicted();
	return wmsum_value(&arc_sums.arcstat_evict_skip) - too_young;
}
