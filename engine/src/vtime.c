#include "vtime.h"

#include <errno.h>
#include <pthread.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "err.h"

#define NS 1000000000LL
#define CLOCK_START (1000000LL * NS)       /* since boot */
#define CALENDAR_START (1700000000LL * NS) /* since 1970 at that time: times are written to disk and compressed */
#define KEYS 64
#define STACK (256UL << 10) /* OpenZFS's own choice for its threads; pages that are never touched take no memory */
#define GUARD 4096UL
#define LOOK_EVERY 256  /* switches */
#define YIELDS_MOST 100 /* in a row: then time has to pass */
#define TRIES_MOST 100  /* of locks that others have, since somebody slept */
#define SLICE 100000    /* ns: threads that think take turns */

struct vthread {
	jmp_buf at;
	ucontext_t begin;
	bool begun, detached, ended;
	void *(*func)(void *);
	void *arg, *result;
	uint8_t *stack;
	size_t stack_size;
	uint64_t number;
	/* Where it waits, if it does: in one queue, by the clock, or both. */
	vqueue_t *queue;
	vthread_t *next, *previous;
	bool woken;
	int64_t until;
	uint64_t turn; /* of those with the same time the first comes first */
	size_t place;  /* in the heap, from 1; 0 = not there */
	vqueue_t joiners;
	const void *key[KEYS];
};

static vthread_t first_thread = {.begun = true};
static vthread_t *self = &first_thread;
static uint64_t threads_made = 1;
static vqueue_t runnable;
static int64_t clock_ns;

/* --- queues --- */

static void append(vqueue_t *q, vthread_t *t)
{
	t->queue = q;
	t->next = NULL;
	t->previous = q->last;
	if (q->last != NULL)
		q->last->next = t;
	else
		q->first = t;
	q->last = t;
}

static void take(vthread_t *t)
{
	vqueue_t *q = t->queue;

	*(t->previous != NULL ? &t->previous->next : &q->first) = t->next;
	*(t->next != NULL ? &t->next->previous : &q->last) = t->previous;
	t->queue = NULL;
}

/* --- the clock: a heap of who waits for it --- */

static vthread_t **heap;
static size_t heap_n, heap_room;
static uint64_t turns;

static bool earlier(const vthread_t *a, const vthread_t *b)
{
	return a->until != b->until ? a->until < b->until : a->turn < b->turn;
}

static void put(size_t i, vthread_t *t)
{
	heap[i] = t;
	t->place = i;
}

static void sift_up(size_t i, vthread_t *t)
{
	for (; i > 1 && earlier(t, heap[i / 2]); i /= 2)
		put(i, heap[i / 2]);
	put(i, t);
}

static void sift_down(size_t i, vthread_t *t)
{
	for (size_t child; (child = 2 * i) <= heap_n; i = child) {
		if (child < heap_n && earlier(heap[child + 1], heap[child]))
			child++;
		if (!earlier(heap[child], t))
			break;
		put(i, heap[child]);
	}
	put(i, t);
}

static void clock_add(vthread_t *t)
{
	if (heap_n + 2 > heap_room) {
		heap_room = heap_room * 2 + 256;
		if ((heap = realloc(heap, heap_room * sizeof(vthread_t *))) == NULL)
			abort();
	}
	t->turn = ++turns;
	sift_up(++heap_n, t);
}

static void clock_remove(vthread_t *t)
{
	size_t i = t->place;
	vthread_t *last = heap[heap_n--];

	t->place = 0;
	if (last == t)
		return;
	if (i > 1 && earlier(last, heap[i / 2]))
		sift_up(i, last);
	else
		sift_down(i, last);
}

int64_t vtime_now(void)
{
	return CLOCK_START + clock_ns;
}

/* --- going from one thread to another --- */

static void (*watcher)(void);
static int yields, tries;

void vtime_watch(void (*look)(void))
{
	watcher = look;
}

static volatile unsigned switches;

static void look_at_switches(int signal)
{
	static const char words[] =
	    "One of OpenZFS's threads goes on for ever: it waits for what none of the others does.\n";
	static unsigned seen;

	(void)signal;
	if (switches == seen) {
		(void)!write(STDERR_FILENO, words, sizeof(words) - 1);
		_exit(EXIT_FAILED);
	}
	seen = switches;
}

void vtime_limit(int seconds)
{
	/* It is noticed by two looks between which nobody took turns; the last turn may be just after the one before. */
	struct itimerval every = {{seconds, 0}, {seconds, 0}};
	struct sigaction look = {.sa_handler = look_at_switches, .sa_flags = SA_RESTART};

	switches++;
	if (sigaction(SIGPROF, &look, NULL) != 0 || setitimer(ITIMER_PROF, &every, NULL) != 0)
		abort();
}

static void make_runnable(vthread_t *t)
{
	if (t->queue != NULL)
		take(t);
	if (t->place != 0)
		clock_remove(t);
	append(&runnable, t);
}

static void __attribute__((noinline)) go_to(vthread_t *t)
{
	vthread_t *from = self;

	switches++;
	if (t == from)
		return;
	if (_setjmp(from->at) != 0)
		return;
	self = t;
	if (t->begun)
		_longjmp(t->at, 1);
	t->begun = true;
	(void)setcontext(&t->begin);
	abort();
}

/* The calling thread has put itself where it waits. */
static void next_thread(void)
{
	static int until_look;
	vthread_t *t;

	if (--until_look <= 0) {
		until_look = LOOK_EVERY;
		if (watcher != NULL)
			watcher();
	}
	while ((t = runnable.first) == NULL) {
		if (heap_n == 0) {
			(void)fprintf(stderr, "OpenZFS's threads wait for each other: nothing can go on.\n");
			_exit(EXIT_FAILED);
		}
		t = heap[1];
		if (t->until > clock_ns)
			clock_ns = t->until;
		make_runnable(t);
	}
	take(t);
	go_to(t);
}

static bool sleep_in(vqueue_t *q, int64_t until)
{
	vthread_t *t = self;

	yields = tries = 0;
	t->woken = false;
	if (q != NULL)
		append(q, t);
	if (until != VTIME_NEVER) {
		t->until = until;
		clock_add(t);
	}
	next_thread();
	return t->woken;
}

bool vtime_wait(vqueue_t *q, int64_t until)
{
	return sleep_in(q, until == VTIME_NEVER ? until : until - CLOCK_START);
}

void vtime_sleep_until(int64_t until)
{
	(void)vtime_wait(NULL, until);
}

void vtime_wake(vqueue_t *q, bool all)
{
	vthread_t *t;

	while ((t = q->first) != NULL) {
		t->woken = true;
		make_runnable(t);
		if (!all)
			return;
	}
}

static int processors, working;
static vqueue_t want_processor, want_to_think, thinking; /* who thinks has a processor, and waits for the clock */

void vtime_processors(int n)
{
	processors = n;
}

/* Who waits longest is given it: else this thread, which goes on, might take it again before that one runs. */
static void leave_processor(void)
{
	if (want_processor.first != NULL)
		vtime_wake(&want_processor, false);
	else if (want_to_think.first != NULL)
		vtime_wake(&want_to_think, false);
	else
		working--;
}

void vtime_work(int64_t ns)
{
	if (processors == 0 || ns <= 0)
		return;
	if (working < processors)
		working++;
	else if (thinking.first != NULL)
		vtime_wake(&thinking, false);
	else
		(void)sleep_in(&want_processor, VTIME_NEVER);
	(void)sleep_in(NULL, clock_ns + ns);
	leave_processor();
}

void vtime_think(int64_t ns)
{
	if (processors == 0)
		return;
	while (ns > 0) {
		int64_t begin;

		if (working < processors)
			working++;
		else
			(void)sleep_in(&want_to_think, VTIME_NEVER);
		begin = clock_ns;
		/* Woken: another has the processor. */
		if (!sleep_in(&thinking, begin + (ns < SLICE ? ns : SLICE)))
			leave_processor();
		ns -= clock_ns - begin;
	}
}

uint64_t vtime_thread_number(void)
{
	return self->number;
}

/* --- threads --- */

/* Stacks of threads that have ended, all of the usual size; and the thread that has just ended, still on its own. */
#define SPARE_STACKS 128 /* a few touched pages each */
static uint8_t *free_stacks;
static int nfree_stacks;
static vthread_t *ended;

static uint8_t *new_stack(size_t size)
{
	uint8_t *stack = free_stacks;

	if (size == STACK && stack != NULL) {
		memcpy(&free_stacks, stack + GUARD, sizeof(free_stacks));
		nfree_stacks--;
		return stack;
	}
	stack = mmap(NULL, GUARD + size, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) != 0)
		return NULL;
	return stack;
}

static void bury(void)
{
	vthread_t *t = ended;

	if (t == NULL)
		return;
	ended = NULL;
	if (t->stack_size == STACK && nfree_stacks < SPARE_STACKS) {
		nfree_stacks++;
		memcpy(t->stack + GUARD, &free_stacks, sizeof(free_stacks));
		free_stacks = t->stack;
	} else {
		(void)munmap(t->stack, GUARD + t->stack_size);
	}
	t->stack = NULL;
	if (t->detached)
		free(t);
}

static pthread_key_t keys;
static void (*destructor[KEYS])(void *);

static void __attribute__((noreturn)) end_thread(void *result)
{
	vthread_t *t = self;

	for (pthread_key_t k = 0; k < keys; k++) {
		void *value = (void *)(uintptr_t)t->key[k];

		t->key[k] = NULL;
		if (value != NULL && destructor[k] != NULL)
			destructor[k](value);
	}
	bury();
	t->result = result;
	t->ended = true;
	ended = t;
	vtime_wake(&t->joiners, true);
	next_thread();
	abort();
}

static void begin_thread(void)
{
	end_thread(self->func(self->arg));
}

static vthread_t *make_thread(void *(*func)(void *), void *arg, size_t stack_size, bool detached)
{
	vthread_t *t;

	bury();
	if (posix_memalign((void **)&t, 64, sizeof(*t)) != 0)
		return NULL;
	memset(t, 0, sizeof(*t));
	if ((t->stack = new_stack(stack_size)) == NULL) {
		free(t);
		return NULL;
	}
	t->func = func;
	t->arg = arg;
	t->stack_size = stack_size;
	t->detached = detached;
	t->number = threads_made++;
	(void)getcontext(&t->begin);
	t->begin.uc_stack.ss_sp = t->stack + GUARD;
	t->begin.uc_stack.ss_size = stack_size;
	t->begin.uc_link = NULL;
	makecontext(&t->begin, begin_thread, 0);
	append(&runnable, t);
	return t;
}

typedef struct {
	void (*func)(void *);
	void *arg;
} start_t;

static void *run_start(void *arg)
{
	start_t s = *(start_t *)arg;

	free(arg);
	s.func(s.arg);
	return NULL;
}

void vtime_start(void (*func)(void *), void *arg)
{
	start_t *s = malloc(sizeof(*s));

	if (s == NULL)
		abort();
	*s = (start_t){func, arg};
	if (make_thread(run_start, s, STACK, true) == NULL)
		abort();
}

/* --- functions that take the place of the C library's --- */

static vthread_t *of(pthread_t id)
{
	return (vthread_t *)(uintptr_t)id;
}

int pthread_create(pthread_t *restrict id, const pthread_attr_t *restrict attr, void *(*func)(void *),
    void *restrict arg)
{
	int state = PTHREAD_CREATE_JOINABLE;
	size_t size = STACK;
	vthread_t *t;

	if (attr != NULL) {
		(void)pthread_attr_getdetachstate(attr, &state);
		(void)pthread_attr_getstacksize(attr, &size);
	}
	if ((t = make_thread(func, arg, size > STACK ? size : STACK, state == PTHREAD_CREATE_DETACHED)) == NULL)
		return EAGAIN;
	*id = (pthread_t)(uintptr_t)t;
	return 0;
}

void pthread_exit(void *result)
{
	end_thread(result);
}

int pthread_join(pthread_t id, void **result)
{
	vthread_t *t = of(id);

	while (!t->ended)
		(void)sleep_in(&t->joiners, VTIME_NEVER);
	if (ended == t)
		bury();
	if (result != NULL)
		*result = t->result;
	free(t);
	return 0;
}

int pthread_detach(pthread_t id)
{
	of(id)->detached = true;
	return 0;
}

pthread_t pthread_self(void)
{
	return (pthread_t)(uintptr_t)self;
}

int pthread_setname_np(pthread_t id, const char *name)
{
	(void)id, (void)name;
	return 0;
}

int pthread_key_create(pthread_key_t *key, void (*at_end)(void *))
{
	if (keys == KEYS)
		return EAGAIN;
	destructor[keys] = at_end;
	*key = keys++;
	return 0;
}

int pthread_key_delete(pthread_key_t key)
{
	destructor[key] = NULL;
	return 0;
}

void *pthread_getspecific(pthread_key_t key)
{
	return (void *)(uintptr_t)self->key[key];
}

int pthread_setspecific(pthread_key_t key, const void *value)
{
	self->key[key] = value;
	return 0;
}

/* What these take of the C library's types; a static initialiser is all zeros. */
typedef struct {
	vthread_t *owner;
	vqueue_t waiting;
} lock_t;

typedef struct {
	vthread_t *writer;
	uint64_t readers;
	vqueue_t waiting; /* those that want to write say so in "woken" */
} rwlock_t;

_Static_assert(sizeof(lock_t) <= sizeof(pthread_mutex_t), "a lock fits");
_Static_assert(sizeof(rwlock_t) <= sizeof(pthread_rwlock_t), "a lock fits");
_Static_assert(sizeof(vqueue_t) <= sizeof(pthread_cond_t), "a condition fits");

int pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
	(void)attr;
	memset(m, 0, sizeof(*m));
	return 0;
}

int pthread_mutex_destroy(pthread_mutex_t *m)
{
	return ((lock_t *)(void *)m)->owner != NULL ? EBUSY : 0;
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	lock_t *l = (lock_t *)(void *)m;

	/* Who lets go hands it over. */
	if (l->owner == NULL)
		l->owner = self;
	else
		(void)sleep_in(&l->waiting, VTIME_NEVER);
	return 0;
}

int pthread_mutex_trylock(pthread_mutex_t *m)
{
	lock_t *l = (lock_t *)(void *)m;

	if (l->owner == NULL) {
		l->owner = self;
		return 0;
	}
	/* Who tries until somebody lets go, as the eviction of a cache does, has to let time pass for that. */
	if (++tries > TRIES_MOST)
		(void)sleep_in(NULL, clock_ns + 1000);
	return EBUSY;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
	lock_t *l = (lock_t *)(void *)m;

	l->owner = l->waiting.first;
	vtime_wake(&l->waiting, false);
	return 0;
}

int pthread_rwlock_init(pthread_rwlock_t *restrict l, const pthread_rwlockattr_t *restrict attr)
{
	(void)attr;
	memset(l, 0, sizeof(*l));
	return 0;
}

int pthread_rwlock_destroy(pthread_rwlock_t *l)
{
	(void)l;
	return 0;
}

/* Readers go before writers that wait, as the C library has it: a reader may take the lock twice. */
int pthread_rwlock_tryrdlock(pthread_rwlock_t *p)
{
	rwlock_t *l = (rwlock_t *)(void *)p;

	if (l->writer != NULL)
		return EBUSY;
	l->readers++;
	return 0;
}

int pthread_rwlock_trywrlock(pthread_rwlock_t *p)
{
	rwlock_t *l = (rwlock_t *)(void *)p;

	if (l->writer != NULL || l->readers > 0)
		return EBUSY;
	l->writer = self;
	return 0;
}

int pthread_rwlock_rdlock(pthread_rwlock_t *p)
{
	while (pthread_rwlock_tryrdlock(p) != 0)
		(void)sleep_in(&((rwlock_t *)(void *)p)->waiting, VTIME_NEVER);
	return 0;
}

int pthread_rwlock_wrlock(pthread_rwlock_t *p)
{
	while (pthread_rwlock_trywrlock(p) != 0)
		(void)sleep_in(&((rwlock_t *)(void *)p)->waiting, VTIME_NEVER);
	return 0;
}

int pthread_rwlock_unlock(pthread_rwlock_t *p)
{
	rwlock_t *l = (rwlock_t *)(void *)p;

	if (l->writer != NULL)
		l->writer = NULL;
	else
		l->readers--;
	if (l->readers == 0)
		vtime_wake(&l->waiting, true);
	return 0;
}

int pthread_cond_init(pthread_cond_t *restrict c, const pthread_condattr_t *restrict attr)
{
	(void)attr;
	memset(c, 0, sizeof(*c));
	return 0;
}

int pthread_cond_destroy(pthread_cond_t *c)
{
	(void)c;
	return 0;
}

int pthread_cond_wait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m)
{
	(void)pthread_mutex_unlock(m);
	(void)sleep_in((vqueue_t *)(void *)c, VTIME_NEVER);
	return pthread_mutex_lock(m);
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict ts)
{
	/* OpenZFS reckons from a clock of microseconds: it must not wake before its time, or it would again and again. */
	int64_t until = ts->tv_sec * NS + ts->tv_nsec - CALENDAR_START + 1000;
	bool woken;

	(void)pthread_mutex_unlock(m);
	woken = sleep_in((vqueue_t *)(void *)c, until > clock_ns ? until : clock_ns);
	(void)pthread_mutex_lock(m);
	return woken ? 0 : ETIMEDOUT;
}

int pthread_cond_signal(pthread_cond_t *c)
{
	vtime_wake((vqueue_t *)(void *)c, false);
	return 0;
}

int pthread_cond_broadcast(pthread_cond_t *c)
{
	vtime_wake((vqueue_t *)(void *)c, true);
	return 0;
}

int sched_yield(void)
{
	/* What it waits for may need time. */
	if (++yields > YIELDS_MOST)
		return sleep_in(NULL, clock_ns + 1000), 0;
	if (runnable.first != NULL) {
		append(&runnable, self);
		next_thread();
	}
	return 0;
}

int nanosleep(const struct timespec *ts, struct timespec *left)
{
	int64_t ns = ts->tv_sec * NS + ts->tv_nsec;

	(void)left;
	(void)sleep_in(NULL, clock_ns + (ns > 0 ? ns : 0));
	return 0;
}

int usleep(useconds_t us)
{
	(void)sleep_in(NULL, clock_ns + (int64_t)us * 1000);
	return 0;
}

/* OpenZFS sleeps in it. */
int poll(struct pollfd *fds, nfds_t n, int ms)
{
	(void)fds;
	if (n > 0 || ms < 0)
		abort();
	return usleep((useconds_t)ms * 1000);
}

/* OpenZFS's gethrtime() ends here, and its gethrestime() in the next. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	int64_t ns = clock_ns + (id == CLOCK_MONOTONIC ? CLOCK_START : CALENDAR_START);

	ts->tv_sec = ns / NS;
	ts->tv_nsec = ns % NS;
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	int64_t ns = clock_ns + CALENDAR_START;

	(void)zone;
	tv->tv_sec = ns / NS;
	tv->tv_usec = ns % NS / 1000;
	return 0;
}
