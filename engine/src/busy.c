#include "busy.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "store.h"

#include "zfs.h"

/* A sleeping thread that counts as working otherwise. */
typedef struct sleeper {
	struct sleeper *next;
	void *cv;
	bool woken; /* counts again: somebody has signalled */
} sleeper_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle_cond = PTHREAD_COND_INITIALIZER;
static sleeper_t *sleepers; /* under lock, the oldest first */
static int nsleepers;
static int working; /* jobs queued or running, threads at work */
static int watchers;

static __thread int depth; /* of busy_enter() */
static __thread int in_queue_wait;
static __thread bool asleep;
static __thread sleeper_t self;

#define REAL(fn, name) \
	static fn *real; \
	if (real == NULL) \
	real = (fn *)(uintptr_t)dlsym(RTLD_NEXT, name)

static void begin(void)
{
	(void)__atomic_add_fetch(&working, 1, __ATOMIC_SEQ_CST);
}

static void end(void)
{
	if (__atomic_sub_fetch(&working, 1, __ATOMIC_SEQ_CST) == 0 &&
	    __atomic_load_n(&watchers, __ATOMIC_SEQ_CST) > 0) {
		(void)pthread_mutex_lock(&lock);
		(void)pthread_cond_broadcast(&idle_cond);
		(void)pthread_mutex_unlock(&lock);
	}
}

void busy_enter(void)
{
	if (depth++ == 0)
		begin();
}

void busy_leave(void)
{
	if (--depth == 0)
		end();
}

bool busy_now(void)
{
	return __atomic_load_n(&working, __ATOMIC_SEQ_CST) > 0;
}

void busy_wait_idle(void)
{
	struct timespec until;

	(void)pthread_mutex_lock(&lock);
	(void)__atomic_add_fetch(&watchers, 1, __ATOMIC_SEQ_CST);
	do {
		(void)clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		while (busy_now() && pthread_cond_timedwait(&idle_cond, &lock, &until) != ETIMEDOUT)
			;
		/* While the disks move to files all I/O stands still, for longer than that. */
	} while (busy_now() && store_moving());
	(void)__atomic_sub_fetch(&watchers, 1, __ATOMIC_SEQ_CST);
	(void)pthread_mutex_unlock(&lock);
}

/* A thread that waits for a task queue waits for work, not for a disk: it stays counted. */
void busy_sleep(void *cv)
{
	sleeper_t **p;

	if (depth == 0 || in_queue_wait > 0)
		return;
	self.cv = cv;
	self.woken = false;
	self.next = NULL;
	asleep = true;
	(void)pthread_mutex_lock(&lock);
	for (p = &sleepers; *p != NULL; p = &(*p)->next)
		;
	*p = &self;
	(void)__atomic_add_fetch(&nsleepers, 1, __ATOMIC_SEQ_CST);
	(void)pthread_mutex_unlock(&lock);
	end();
}

void busy_wake(void)
{
	sleeper_t **p, *s;

	if (!asleep)
		return;
	asleep = false;
	(void)pthread_mutex_lock(&lock);
	for (p = &sleepers; *p != &self; p = &(*p)->next)
		;
	*p = self.next;
	(void)__atomic_sub_fetch(&nsleepers, 1, __ATOMIC_SEQ_CST);
	if (!self.woken) {
		/* One signal wakes one thread; it was thought to be another one. */
		for (s = sleepers; s != NULL && (s->cv != self.cv || !s->woken); s = s->next)
			;
		if (s != NULL)
			s->woken = false;
		else
			begin();
	}
	(void)pthread_mutex_unlock(&lock);
}

/* From the signal on a sleeper counts, not only when the system lets it run. */
static void signalled(void *cv, bool all)
{
	if (__atomic_load_n(&nsleepers, __ATOMIC_SEQ_CST) == 0)
		return;
	(void)pthread_mutex_lock(&lock);
	for (sleeper_t *s = sleepers; s != NULL; s = s->next) {
		if (s->cv == cv && !s->woken) {
			s->woken = true;
			begin();
			if (!all)
				break;
		}
	}
	(void)pthread_mutex_unlock(&lock);
}

/* --- functions that take the place of the library's --- */

void cv_wait(kcondvar_t *cv, kmutex_t *mp)
{
	typedef void wait_fn(kcondvar_t *, kmutex_t *);
	REAL(wait_fn, "cv_wait");

	busy_sleep(cv);
	real(cv, mp);
	busy_wake();
}

void cv_signal(kcondvar_t *cv)
{
	typedef void signal_fn(kcondvar_t *);
	REAL(signal_fn, "cv_signal");

	signalled(cv, false);
	real(cv);
}

void cv_broadcast(kcondvar_t *cv)
{
	typedef void signal_fn(kcondvar_t *);
	REAL(signal_fn, "cv_broadcast");

	signalled(cv, true);
	real(cv);
}

void taskq_wait(taskq_t *tq)
{
	typedef void wait_fn(taskq_t *);
	REAL(wait_fn, "taskq_wait");

	in_queue_wait++;
	real(tq);
	in_queue_wait--;
}

typedef struct {
	task_func_t *func;
	void *arg;
} job_t;

/* The job has been counted since it was queued. */
static void run_job(void *arg)
{
	job_t job = *(job_t *)arg;

	free(arg);
	depth++;
	job.func(job.arg);
	depth--;
	end();
}

taskqid_t taskq_dispatch(taskq_t *tq, task_func_t func, void *arg, uint_t flags)
{
	typedef taskqid_t dispatch_fn(taskq_t *, task_func_t, void *, uint_t);
	REAL(dispatch_fn, "taskq_dispatch");
	job_t *job = malloc(sizeof(*job));
	taskqid_t id;

	if (job == NULL)
		abort();
	*job = (job_t){func, arg};
	begin();
	if ((id = real(tq, run_job, job, flags)) == 0) {
		end();
		free(job);
	}
	return id;
}

static void run_zio(void *zio)
{
	depth++;
	zio_execute(zio);
	depth--;
	end();
}

void taskq_dispatch_ent(taskq_t *tq, task_func_t func, void *arg, uint_t flags, taskq_ent_t *ent)
{
	typedef void dispatch_fn(taskq_t *, task_func_t, void *, uint_t, taskq_ent_t *);
	REAL(dispatch_fn, "taskq_dispatch_ent");

	if (func == (task_func_t *)zio_execute) {
		begin();
		func = run_zio;
	}
	real(tq, func, arg, flags, ent);
}

void spa_sync(spa_t *spa, uint64_t txg)
{
	typedef void sync_fn(spa_t *, uint64_t);
	REAL(sync_fn, "spa_sync");

	busy_enter();
	real(spa, txg);
	busy_leave();
}
