/* The threads of a trace, their calls in the order that these have, and the logs that they share. */
#include "replay_impl.h"

#include "processor.h"
#include "stalls.h"
#include "turns.h"

static void stop(int rc)
{
	if (R.rc == 0)
		R.rc = rc;
	vtime_wake(&R.waiting, true);
}

/* The call is over as far as files are concerned. */
static void leave_files(uint64_t i)
{
	const int32_t both[2] = {R.ops->op[i].file, R.ops->op[i].file2};

	for (int k = 0; k < 2; k++) {
		rfile_t *f = files_known(both[k]);

		if (f != NULL && f->unlinked && f->f != NULL && order_is_last(&R.order, both[k]))
			files_destroy(f);
	}
	order_done(&R.order, i);
	for (int k = 0; k < 2; k++)
		if (both[k] >= 0 && (size_t)both[k] < R.nfiles)
			vtime_wake(&R.files[both[k]].waiting, true);
}

/* The part of the trace's length in which a time is; the last has all that is later. */
static size_t part_of(int64_t t)
{
	return R.recorded > 0 ? MIN((size_t)(t * RESULT_PARTS / R.recorded), RESULT_PARTS - 1) : 0;
}

static bool paces(const op_t *o)
{
	return !R.by_commits || (order_syncs(o) && (!R.job.known || R.threads[o->thread].commits));
}

/* What the pace of the recorded job is told by: its commits, if it has some; its clients', where logs are told. */
#define COMMITS_LEAST 20
/* The last of them are the job's end, when not all of its threads are at work. */
#define MOST 0.95

static void find_pace(uint64_t first)
{
	uint64_t commits = 0;

	R.by_commits = true;
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		R.recorded = MAX(R.recorded, op_end(o));
		commits += paces(o);
	}
	R.by_commits = commits >= COMMITS_LEAST;
	for (uint64_t i = first; i < R.ops->nops; i++)
		if (paces(&R.ops->op[i]))
			R.r->recorded[part_of(op_end(&R.ops->op[i]))]++;
	for (size_t i = 1; i < RESULT_PARTS; i++)
		R.r->recorded[i] += R.r->recorded[i - 1];
	R.most = (uint64_t)((R.spec->first > 0 ? (double)R.spec->first / (double)R.spec->operations : MOST) *
	    (double)R.r->recorded[RESULT_PARTS - 1]);
	for (size_t i = RESULT_PARTS; i > 0 && R.r->recorded[i - 1] >= R.most; i--)
		R.r->most_recorded_s = (double)R.recorded / 1e9 * (double)i / RESULT_PARTS;
}

/* What a call takes of a processor, beside the work on its data. */
static int64_t call_ns(const op_t *o)
{
	double us = order_syncs(o) ? R.spec->sync_us : 0;

	if (o->op == OP_READ)
		us += R.spec->read_us;
	else if (o->op == OP_WRITE || o->op == OP_COPY)
		us += R.spec->write_us;
	return (int64_t)(us * 1e3);
}

/* The log whose commits go together that a call concerns; NULL: none. */
static commits_t *log_of(const op_t *o)
{
	if (o->file < 0 || (size_t)o->file >= R.nfiles || R.files[o->file].log < 0)
		return NULL;
	return &R.logs[R.files[o->file].log];
}

/* Takes the lock for a sync of the trace; false: another's sync that began since then has covered it. */
static bool take_log(commits_t *log, uint64_t mine)
{
	log->leaders++;
	while (log->held && log->covered < mine)
		(void)vtime_wait(&log->waiting, VTIME_NEVER);
	log->leaders--;
	if (log->covered >= mine) {
		vtime_wake(&log->waiting, true); /* who waits for it to take the lock waits for nobody */
		return false;
	}
	log->held = true;
	return true;
}

/* All is synced that had been asked for when the sync began. */
static void leave_log(commits_t *log, uint64_t covered)
{
	log->covered = MAX(log->covered, covered);
	log->held = false;
	vtime_wake(&log->waiting, true);
}

/* Does a call write to a log that its thread syncs then? */
static bool syncs_next(uint64_t i, const commits_t *log)
{
	uint32_t next = R.order.next_of_thread[i];

	return R.ops->op[i].op == OP_WRITE && !order_syncs(&R.ops->op[i]) && R.ops->op[i].via == VIA_SYSCALL &&
	    next != ORDER_NONE && R.ops->op[next].via == VIA_SYSCALL && R.ops->op[next].op != OP_WRITE &&
	    order_syncs(&R.ops->op[next]) && log_of(&R.ops->op[next]) == log;
}

/*
 * Writes all that has come to the log and is not written; what comes meanwhile is for who syncs next.  Who comes first is
 * first in the log: the parts follow each other as in the trace, whoever wrote them then, and those that lie one after the
 * other are written in one call.
 */
static int write_log(commits_t *log)
{
	size_t came = log->came;

	while (log->written < came) {
		op_t o = R.ops->op[log->writes[log->written++]];
		int rc;

		while (log->written < came) {
			const op_t *next = &R.ops->op[log->writes[log->written]];

			if (next->file != o.file || next->offset < o.offset || next->offset > o.offset + o.size)
				break;
			if (next->offset + next->size >= o.offset + o.size) {
				o.size = next->offset + next->size - o.offset;
				o.blank = next->blank;
			}
			log->written++;
		}
		vtime_work(call_ns(&o));
		if ((rc = files_do(&o)) != 0)
			return rc;
		log->file = o.file;
		log->end = o.offset + o.size;
	}
	return 0;
}

#define LOG_PAGE 8192 /* PostgreSQL's, the largest */
#define SMALL 0.1     /* of the writes to a log: the share that is no larger than a small one */

/* What a small commit writes to each log: one write in ten is no larger, so that an odd one says nothing. */
static void find_small(uint64_t first)
{
	uint32_t (*sizes)[LOG_PAGE + 1] = calloc(SPEC_LOGS, sizeof(*sizes));
	uint64_t writes[SPEC_LOGS] = {0};

	if (sizes == NULL)
		abort();
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];
		const commits_t *log = log_of(o);

		if (log == NULL || o->op != OP_WRITE || o->size < 1)
			continue;
		sizes[log - R.logs][MIN(o->size, LOG_PAGE)]++;
		writes[log - R.logs]++;
	}
	for (size_t k = 0; k < SPEC_LOGS; k++) {
		uint64_t found = 0;

		R.logs[k].small = 0;
		while (R.logs[k].small < LOG_PAGE && (double)found <= SMALL * (double)writes[k])
			found += sizes[k][++R.logs[k].small];
	}
	free(sizes);
}

/* The end of the log again, as much as a small commit writes: with one commit more, or several. */
static int sync_log(commits_t *log)
{
	op_t o = {.op = OP_WRITE, .file = log->file, .file2 = -1, .size = log->small};
	const rfile_t *f = files_known(log->file);
	int rc;

	if (f == NULL || f->f == NULL)
		return 0;
	o.offset = MAX(log->end - o.size, 0);
	vtime_work(call_ns(&o));
	if ((rc = files_do(&o)) != 0)
		return rc;
	o.op = OP_FDATASYNC;
	vtime_work(call_ns(&o));
	return files_do(&o);
}

/*
 * Commits what the trace has no sync for, since another thread's covered it.  Whether one does here depends on when the
 * thread comes: it waits for the lock, and is covered by a sync that begins after that, or syncs for all who wait.
 */
static void commit_with_others(commits_t *log)
{
	uint64_t mine = ++log->asked, covers;
	int rc;

	while (log->covered < mine && R.rc == 0) {
		if (log->held || log->leaders > 0) {
			(void)vtime_wait(&log->waiting, VTIME_NEVER);
			continue;
		}
		log->held = true;
		covers = log->asked;
		R.in_call++;
		if ((rc = sync_log(log)) != 0)
			stop(rc);
		R.in_call--;
		R.r->late_commits++;
		R.end = MAX(R.end, replay_now());
		leave_log(log, covers);
	}
}

/* A write to a log to which calls come as they come: who syncs it then has its lock from here to there. */
static int call_write(commits_t *log, uint64_t i)
{
	thread_t *t = &R.threads[R.ops->op[i].thread];
	uint64_t *mine = &t->asked[log - R.logs];

	log->came++;
	*mine = ++log->asked;
	if (!take_log(log, *mine))
		return 0;
	t->holds = log;
	log->covers = log->asked;
	R.begun[R.order.next_of_thread[i]] = true;
	vtime_wake(&log->waiting, true);
	return write_log(log);
}

/* A sync of such a log, which may be a synchronous write too. */
static int call_sync(commits_t *log, uint64_t i)
{
	thread_t *t = &R.threads[R.ops->op[i].thread];
	uint64_t *mine = &t->asked[log - R.logs];
	op_t o = R.ops->op[i];
	int rc = 0;

	if (t->holds != log) {
		if (*mine == 0)
			*mine = ++log->asked;
		R.begun[i] = true;
		if (!take_log(log, *mine)) {
			*mine = 0;
			R.r->joined_commits++;
			return 0;
		}
		log->covers = log->asked;
		vtime_wake(&log->waiting, true);
		rc = write_log(log);
	}
	if (o.op != OP_WRITE && log->file >= 0)
		o.file = log->file;
	vtime_work(call_ns(&o));
	if (rc == 0)
		rc = files_do(&o);
	t->holds = NULL;
	*mine = 0;
	leave_log(log, log->covers);
	return rc;
}

/*
 * The thread has committed.  Where each operation of the job has a sync of its own, what a thread takes from one to the next
 * is what an operation takes: of most of them, as the pace.
 */
static void committed(thread_t *t)
{
	if (!t->operates || R.paced > R.most)
		return;
	if (t->has_committed)
		files_note(&R.r->operations, NULL, replay_now() - t->committed, 1.0);
	t->has_committed = true;
	t->committed = replay_now();
}

/* Would a truncation that cut nothing off when recorded cut off what later calls have written here? */
static bool is_overtaken(uint64_t i)
{
	const rfile_t *f = order_only_grows(&R.order, i) ? files_known(R.ops->op[i].file) : NULL;

	return f != NULL && f->f != NULL && fl_size(f->f) > (uint64_t)R.ops->op[i].size;
}

/* One call, from its beginning to its end. */
static void call(uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	commits_t *log = log_of(o);
	bool commits = log != NULL && (o->op == OP_WRITE || order_syncs(o)), leads = false;
	bool comes = log != NULL && R.order.file[o->file].arrives && (order_syncs(o) || syncs_next(i, log));
	uint64_t *asked = log != NULL ? &R.threads[o->thread].asked[log - R.logs] : NULL, covers = 0;
	int32_t file;
	int rc;

	/* It waits for its turn from here on, with what it commits. */
	commits = commits && !comes;
	if (commits && *asked == 0)
		*asked = ++log->asked;
	while (R.threads[o->thread].holds == NULL && (file = order_waits_for(&R.order, i)) >= 0) {
		turns_end(&R.threads[o->thread]); /* it may be waiting for who waits for that */
		(void)vtime_wait(&R.files[file].waiting, VTIME_NEVER);
	}
	files_note_arc();
	if (commits && order_syncs(o)) {
		leads = take_log(log, *asked);
		*asked = 0;
		R.begun[i] = true;
		vtime_wake(&log->waiting, true);
		commits = !leads; /* from here on: another did it */
		covers = log->asked;
	} else {
		commits = false;
	}
	R.in_call++;
	if (comes) {
		rc = order_syncs(o) ? call_sync(log, i) : call_write(log, i);
	} else {
		vtime_work(call_ns(o));
		rc = commits || is_overtaken(i) ? 0 : files_do(o);
	}
	R.in_call--;
	if (rc != 0)
		stop(rc);
	if (leads)
		leave_log(log, covers);
	turns_done(i);
	R.r->joined_commits += commits;
	if (!comes && o->op == OP_WRITE && log != NULL) {
		log->file = o->file;
		log->end = o->offset + o->size;
	}
	R.done++;
	R.end = MAX(R.end, replay_now());
	if (R.ended != NULL)
		R.ended[i] = replay_now();
	if (paces(o) && ++R.paced == R.most) {
		R.r->most_s = (double)replay_now() / 1e9;
		R.r->most_commits = replay_commits();
	}
	if (order_syncs(o))
		committed(&R.threads[o->thread]);
	/* What is later than the trace is long ended in none of its parts. */
	if (paces(o) && replay_now() <= R.recorded)
		R.r->ended[part_of(replay_now())]++;
	leave_files(i);
	R.r->trace_s = MAX(R.r->trace_s, (double)op_end(o) / 1e9);
	replay_tell("measure", (double)R.done / (double)R.ops->nops, false);
}

/* Takes in those of its calls under way that had ended, when recorded, before t; false: one has not ended here. */
static bool take_in(thread_t *t, int64_t recorded)
{
	for (size_t i = 0; i < t->npending;) {
		pending_t *p = &t->pending[i];

		if (p->recorded_done > recorded) {
			i++;
			continue;
		}
		if (p->done == NOT_YET)
			return false;
		t->done = MAX(t->done, p->done);
		t->recorded_done = MAX(t->recorded_done, p->recorded_done);
		*p = t->pending[--t->npending];
	}
	return true;
}

/*
 * When a thread's next call begins.  Closed: after what the thread did when recorded since its last call, or since the
 * last answer that was there, but for the time in which it waited for others' syncs; and no sooner after the last of
 * these than when recorded.  Open: when it was recorded, or at once if that has passed; what copies goes on as if closed.
 */
static int64_t due(const thread_t *t, uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	int64_t free_since = MAX(t->began, t->done), waited = R.order.waited != NULL ? R.order.waited[i] : 0, when;
	uint32_t after = R.order.after[i];

	if (!R.spec->closed && (o->flags & OPF_PAUSES) == 0)
		return MAX(o->t, free_since);
	when = free_since + MAX(o->t - MAX(t->recorded_began, t->recorded_done) - waited, 0);
	if (!R.spec->closed || after == ORDER_NONE)
		return when;
	return MAX(when, R.ended[after] + o->t - op_end(&R.ops->op[after]));
}

/*
 * The thread has waited for a call, of that for room among what is dirty.  This wait stands for itself alone, whatever the
 * call stands for: what is dirty is written at one pace, and one call of the sample waits until there is room for all that
 * it stands for.
 */
static void waited(thread_t *t, const op_t *o, int64_t ns, int64_t room)
{
	const rfile_t *f = o->op == OP_READ || o->op == OP_WRITE || o->op == OP_COPY ? files_known(o->file) : NULL;
	double each = f != NULL ? stands_for_call(f, o) : 1.0;

	room = MIN(room, ns);
	t->wait.exact += (double)room / 1e9 * MIN(each, 1.0);
	wait_add(&t->wait, o->op == OP_READ ? WAIT_READ : WAIT_WRITE, (double)(ns - room) / 1e9, each);
}

typedef struct {
	thread_t *thread;
	uint64_t call;
} async_t;

static void async_main(void *arg)
{
	async_t a = *(async_t *)arg;
	const op_t *o = &R.ops->op[a.call];
	thread_t *t = a.thread;
	int64_t start = replay_now(), now;
	uint64_t room = fl_room_waited();

	free(arg);
	call(a.call);
	room = fl_room_waited() - room;
	now = replay_now();
	/* Requests handed over in a batch are waited for together. */
	if (now > t->async_until) {
		waited(t, o, now - MAX(start, t->async_until), (int64_t)room);
		t->async_until = now;
	} else {
		waited(t, o, 0, 0);
	}
	for (size_t i = 0; i < t->npending; i++)
		if (t->pending[i].done == NOT_YET && t->pending[i].recorded_done == op_end(o)) {
			t->pending[i].done = now;
			break;
		}
	vtime_wake(&t->waiting, true);
}

/*
 * Does the thread go on before the call is done?  OpenZFS knows no asynchronous I/O: who hands in a read or a write by AIO
 * does it there and then, one after another.  A ring gives each to a thread of its own, and AIO its syncs.
 */
static bool goes_aside(const op_t *o)
{
	return o->via == VIA_URING || (o->via == VIA_AIO && o->op != OP_READ && o->op != OP_WRITE);
}

static void note_pending(thread_t *t, const op_t *o, int64_t done)
{
	if (t->npending == t->pending_room) {
		t->pending_room = t->pending_room * 2 + 16;
		t->pending = realloc(t->pending, t->pending_room * sizeof(*t->pending));
	}
	if (t->pending == NULL)
		abort();
	t->pending[t->npending++] = (pending_t){op_end(o), done};
}

static void begin_async(thread_t *t, uint64_t i)
{
	const op_t *o = &R.ops->op[i];
	async_t *a = malloc(sizeof(*a));

	if (a == NULL)
		abort();
	note_pending(t, o, NOT_YET);
	*a = (async_t){t, i};
	vtime_start(async_main, a);
}

static void wait_for_call(uint32_t call)
{
	while (!order_is_done(&R.order, call))
		(void)vtime_wait(&R.files[R.ops->op[call].file].waiting, VTIME_NEVER);
}

/* Lets the thread do what it did when recorded before call i, until a time. */
static void think(int64_t until, uint64_t i)
{
	int64_t left = until - replay_now();

	if (left <= 0)
		return;
	/* Who has a log's lock has a processor too: it was at work when it got the lock. */
	if (R.busy == 0 || R.threads[R.ops->op[i].thread].holds != NULL ||
	    !order_shares_log(&R.order, R.ops->op[i].thread)) {
		vtime_sleep_until(R.zero + until);
		return;
	}
	vtime_think((int64_t)((double)left * R.busy));
}

static bool arrives(uint32_t i)
{
	return R.order.file[R.ops->op[i].file].arrives;
}

/* True for this share of the times that it is asked, evenly. */
static bool is_due(double share, double *owed)
{
	*owed += share;
	if (*owed < 1.0)
		return false;
	*owed -= 1.0;
	return true;
}

/* Did the thread commit before this call, by the sync of another? */
static bool followed(uint32_t i)
{
	commits_t *log = log_of(&R.ops->op[R.order.after[i]]);

	return log != NULL && R.order.before[i] >= 0 && is_due(log->share, &log->owed);
}

/* Does the thread wait for the sync that it waited for, before this call, when recorded? */
static bool waits(uint32_t i)
{
	return !arrives(R.order.after[i]) || is_due(R.rows, &R.rows_owed);
}

#define COVERS_NS 100000 /* a thread waits so long for the sync that is to cover it, at least */

/*
 * Does the sync that covered the thread's commit when recorded do so here?  The thread came some time after its last call
 * and before that sync began: half-way, for all that is known.  If by then the sync has begun it covers nothing of the
 * thread's; and if it does not begin for long after the time when it should, nobody waits for it.
 */
static bool is_covered(const thread_t *t, uint32_t i)
{
	uint32_t sync = R.order.after[i];
	int64_t since = MAX(t->began, t->done), work = R.order.before[i], until;
	vqueue_t *waiting = &log_of(&R.ops->op[sync])->waiting;
	bool late;

	if (!R.spec->closed)
		since = MAX(since, R.ops->op[sync].t - work);
	until = since + work + work / 2 + COVERS_NS;

	think(since + work / 2, i);
	late = R.begun[sync];
	think(since + work, i);
	while (!late && !R.begun[sync] && replay_now() < until)
		(void)vtime_wait(waiting, R.zero + until);
	return !late && R.begun[sync];
}

static void follow(thread_t *t, uint32_t i)
{
	const op_t *sync = &R.ops->op[R.order.after[i]];
	int64_t came;
	bool covered = false;

	if (R.spec->closed && arrives(R.order.after[i]))
		think(MAX(t->began, t->done) + R.order.before[i] / 2, i);
	else
		covered = is_covered(t, i);
	came = replay_now();
	if (covered)
		wait_for_call(R.order.after[i]);
	else
		commit_with_others(log_of(sync));
	t->done = replay_now();
	t->wait.exact += (double)(t->done - came) / 1e9;
	t->recorded_done = MAX(t->recorded_done, op_end(sync));
	R.order.waited[i] = 0;
	R.order.after[i] = ORDER_NONE;
}

/* Has the sync that the thread waited for before the call ended before what it waited for in the background? */
static bool syncs_first(uint32_t i)
{
	uint32_t stall = stalls_for(i), sync = R.order.after[i];

	return stall != ORDER_NONE && sync != ORDER_NONE && op_end(&R.ops->op[sync]) <= op_end(&R.ops->op[stall]);
}

/* Closed: the thread could not go on before what writes back had come so far, if it waited for that. */
static void stall(thread_t *t, uint32_t i)
{
	uint32_t stall = stalls_for(i);
	int64_t recorded = MAX(t->recorded_began, t->recorded_done), ended;

	if (stall == ORDER_NONE)
		return;
	ended = op_end(&R.ops->op[stall]);
	if (!t->background)
		think(MAX(t->began, t->done) + MIN(stalls_work(), MAX(ended - recorded, 0)), i);
	if (!order_is_done(&R.order, stall))
		turns_end(t); /* what writes back may be waiting for clients who wait for it */
	wait_for_call(stall);
	t->done = replay_now();
	t->recorded_done = MAX(t->recorded_done, ended);
}

/*
 * Closed: a checkpointer or a page cleaner has as much to do as the clients give it, and on a layout on which they do a
 * tenth of what they did when recorded it has a tenth to do.  So its calls begin when the clients have come, on average, to
 * where they were then.  Who only reads is a client too.
 */
#define COMMITS_SHARE 10 /* of the most: who has fewer commits is none of the clients */
#define COMMITS_ENOUGH 2 /* … who has more is one, also if it writes other files more often than it commits */

/* In a log, where these are told: page cleaners sync files together, too. */
static bool is_of_log(const op_t *o)
{
	if (o->file < 0 || (size_t)o->file >= R.nfiles)
		return false;
	return R.spec->nlogs > 0 ? R.files[o->file].log >= 0 : R.order.file[o->file].shared;
}

static bool is_commit(const op_t *o)
{
	return order_syncs(o) && is_of_log(o);
}

static void find_background(uint64_t first)
{
	uint64_t *syncs = calloc(3 * (size_t)R.ops->nthreads + 3, sizeof(*syncs)), *writes = syncs + R.ops->nthreads,
		 *other = writes + R.ops->nthreads, most = 0;

	if (syncs == NULL)
		abort();
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		writes[o->thread] += o->op == OP_WRITE;
		other[o->thread] += o->op == OP_WRITE && !is_of_log(o);
		if (is_commit(o)) {
			syncs[o->thread]++;
			most = MAX(most, syncs[o->thread]);
		}
	}
	for (uint32_t i = 0; i < R.ops->nthreads && most >= COMMITS_LEAST; i++) {
		thread_t *t = &R.threads[i];

		if (t->next == ORDER_NONE)
			continue;
		t->commits = syncs[i] * (other[i] > syncs[i] ? COMMITS_ENOUGH : COMMITS_SHARE) >= most;
		t->background = !t->commits && writes[i] > 0;
		t->at = R.ops->op[t->next].t;
		R.job.threads += t->commits;
		R.job.sum += t->commits ? t->at : 0;
	}
	R.job.known = R.spec->nlogs > 0 && R.job.threads > 0;
	R.job.least = INT64_MAX;
	free(syncs);
}

#define OWN 0.1 /* Share of the operations by which there may be more syncs, or fewer, and each still has one. */

/* Closed: finds the threads of which each operation has a sync, if the job's have.  Those with few syncs are not the job's. */
static void find_operations(uint64_t first)
{
	uint64_t *syncs, most = 0;
	double all = 0;

	if (R.spec->operations == 0)
		return;
	syncs = calloc((size_t)R.ops->nthreads + 1, sizeof(*syncs));
	if (syncs == NULL)
		abort();
	for (uint64_t i = first; i < R.ops->nops; i++)
		syncs[R.ops->op[i].thread] += order_syncs(&R.ops->op[i]);
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		most = MAX(most, syncs[i]);
	for (uint32_t i = 0; i < R.ops->nthreads && most >= COMMITS_LEAST; i++) {
		R.threads[i].operates = syncs[i] * COMMITS_SHARE >= most;
		all += R.threads[i].operates ? (double)syncs[i] : 0;
	}
	if (fabs(all / (double)R.spec->operations - 1.0) > OWN)
		for (uint32_t i = 0; i < R.ops->nthreads; i++)
			R.threads[i].operates = false;
	free(syncs);
}

static void has_come(thread_t *t, int64_t at, bool ends)
{
	if (!t->commits)
		return;
	R.job.threads -= ends;
	R.job.sum += (ends ? 0 : at) - t->at;
	t->at = at;
	if (R.job.threads == 0 || R.job.sum / (int64_t)R.job.threads >= R.job.least) {
		R.job.least = INT64_MAX;
		vtime_wake(&R.job.waiting, true);
	}
}

static void wait_for_job(int64_t at)
{
	while (R.job.threads > 0 && R.job.sum / (int64_t)R.job.threads < at) {
		R.job.least = MIN(R.job.least, at);
		(void)vtime_wait(&R.job.waiting, VTIME_NEVER);
	}
}

static void add_write(commits_t *log, uint32_t call)
{
	if ((log->nwrites & (log->nwrites - 1)) == 0 &&
	    (log->writes = realloc(log->writes, MAX(log->nwrites * 2, 1) * sizeof(*log->writes))) == NULL)
		abort();
	log->writes[log->nwrites++] = call;
}

/* What is written to the logs that the replay is told of is so in the order of the trace, whoever comes first. */
static void come_as_they_come(uint64_t first)
{
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].known && R.files[i].log >= 0)
			order_by_arrival(&R.order, (int32_t)i);
	for (uint64_t i = first; i < R.ops->nops; i++) {
		commits_t *log = log_of(&R.ops->op[i]);

		if (log != NULL && syncs_next(i, log))
			add_write(log, (uint32_t)i);
	}
}

/*
 * Closed: of the operations, the share that waits for a row until another has committed, where threads come to their logs as
 * they come and the trace does not tell whom they waited for.  That another's sync ended while a thread was in no call may be
 * such a wait, one for the log, which comes about here by itself, or chance.  So as many of these are kept as this makes.
 * Found on PostgreSQL, whose eight clients change eight rows of one table.
 */
#define ROWS 0.5

/*
 * Which logs' commits go together, and of waits for another's sync which share are commits: those operations that have no
 * sync of their own.  Threads come to these logs as they come.  A closed replay that is not told of logs takes all shared
 * files for one, to which they come as when recorded.  Where no such operations are, its logs are shared in turns.
 */
static void find_logs(uint64_t first)
{
	uint64_t syncs[SPEC_LOGS] = {0}, waits[SPEC_LOGS] = {0};
	double most = 0, others = 0; /* operations; waits that are no commits */
	bool told = R.spec->nlogs > 0, shares = !R.spec->closed;

	for (size_t i = 0; i < R.nfiles && !told; i++)
		R.files[i].log = R.order.file[i].shared ? 0 : -1;
	for (uint64_t i = first; i < R.ops->nops; i++) {
		const commits_t *log = log_of(&R.ops->op[i]);

		if (log != NULL && order_syncs(&R.ops->op[i]))
			syncs[log - R.logs]++;
		if (R.order.after[i] == ORDER_NONE || (log = log_of(&R.ops->op[R.order.after[i]])) == NULL)
			continue;
		others++;
		waits[log - R.logs] += R.order.before[i] >= 0;
	}
	for (size_t k = 0; k < SPEC_LOGS; k++) {
		double operations = (double)R.spec->log_operations[k];
		double commits = MIN(MAX(operations - (double)syncs[k], 0.0), (double)waits[k]);

		most = MAX(most, operations);
		others -= commits;
		R.logs[k].file = -1;
		if (waits[k] > 0)
			R.logs[k].share = commits / (double)waits[k];
		shares = shares || R.logs[k].share > 0;
	}
	find_small(first);
	if (R.spec->closed && R.order.told)
		R.rows = 1.0;
	else if (R.spec->closed && others > 0)
		R.rows = MIN(1.0, ROWS * most / others);
	if (shares && told)
		come_as_they_come(first);
	if (shares)
		return;
	for (size_t i = 0; i < R.nfiles; i++)
		R.files[i].log = -1;
	turns_find(first);
}

/* Closed: the thread waits for its turn when what it did before it waited is done, and does the rest of it then. */
static void begin_turn(thread_t *t, uint32_t i)
{
	uint32_t after = R.order.after[i];
	const op_t *o = &R.ops->op[i], *sync = after != ORDER_NONE ? &R.ops->op[after] : NULL;
	int64_t rest = sync != NULL ? o->t - op_end(sync) : 0;

	R.order.after[i] = ORDER_NONE; /* it waits for its turn, not for that sync */
	think(due(t, i) - rest, i);
	turns_take(t);
	think(replay_now() + rest, i);
}

/* What the thread waits for before a call: its own calls under way, others' syncs, and what writes back. */
static void wait_for_others(thread_t *t, uint32_t i)
{
	bool later = syncs_first(i);

	while (!take_in(t, R.ops->op[i].t))
		(void)vtime_wait(&t->waiting, VTIME_NEVER);
	if (!later)
		stall(t, i);
	if (R.order.after[i] != ORDER_NONE && followed(i))
		follow(t, i);
	else if (R.order.after[i] != ORDER_NONE && waits(i))
		wait_for_call(R.order.after[i]);
	if (later) {
		stall(t, i);
		R.order.waited[i] = 0;
		R.order.after[i] = ORDER_NONE;
	}
}

static void thread_main(void *arg)
{
	thread_t *t = arg;
	uint64_t room;

	for (uint32_t i = t->next; i != ORDER_NONE; i = R.order.next_of_thread[i]) {
		const op_t *o = &R.ops->op[i];

		has_come(t, o->t, false);
		/* Who has a log's lock waits for nobody: all that it might wait for may be waiting for the log. */
		if (t->holds == NULL)
			wait_for_others(t, i);
		if (t->background && t->holds == NULL)
			wait_for_job(o->t);
		else if (turns_begin(i))
			begin_turn(t, i);
		else
			think(due(t, i), i);
		t->began = replay_now();
		t->recorded_began = o->t;
		if (goes_aside(o)) {
			begin_async(t, i);
			continue;
		}
		room = fl_room_waited();
		call(i);
		room = fl_room_waited() - room;
		t->done = replay_now();
		/* By AIO it came back later when recorded; what the thread did until then it does here. */
		if (o->via == VIA_AIO)
			note_pending(t, o, t->done);
		else
			t->recorded_done = MAX(t->recorded_done, op_end(o));
		waited(t, o, t->done - t->began, (int64_t)room);
	}
	while (!take_in(t, INT64_MAX))
		(void)vtime_wait(&t->waiting, VTIME_NEVER);
	free(t->pending);
	turns_end(t);
	has_come(t, t->at, true);
	R.threads_left--;
	vtime_wake(&R.waiting, true);
}

/* Nothing of OpenZFS waits so long for anything but a disk. */
#define STUCK_NS (3600 * 1000000000LL)

/* Lets the threads run, each from its first call on, until all are done. */
int threads_run(uint64_t first)
{
	uint64_t before;
	int64_t until;

	order_make(&R.order, R.ops, first, R.nfiles,
	    (R.spec->verify ? ORDER_STRICT : 0) | (R.spec->closed || R.spec->nlogs > 0 ? ORDER_WAITED : 0) |
		(R.spec->waits ? ORDER_TOLD : 0));
	if ((R.spec->closed || R.spec->nlogs > 0) &&
	    ((R.ended = calloc(R.ops->nops + 1, sizeof(*R.ended))) == NULL ||
		(R.begun = calloc(R.ops->nops + 1, sizeof(*R.begun))) == NULL))
		abort();
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		R.threads[i].next = ORDER_NONE;
	for (uint64_t i = R.ops->nops; i > first; i--) {
		thread_t *t = &R.threads[R.ops->op[i - 1].thread];

		R.threads_left += t->next == ORDER_NONE;
		t->next = (uint32_t)(i - 1);
	}
	if (R.spec->closed) {
		find_background(first);
		find_operations(first);
	}
	find_pace(first);
	if (R.spec->closed || R.spec->nlogs > 0)
		find_logs(first);
	if (R.spec->closed)
		stalls_find(first);
	if (R.spec->closed && R.order.think > 0)
		R.busy = MIN(1.0, R.spec->recorded_cores * (double)R.recorded / (double)R.order.think);
	R.zero = vtime_now();
	for (uint64_t i = first; i < R.ops->nops && R.rc == 0; i++) {
		const op_t *o = &R.ops->op[i];

		if (R.threads[o->thread].next != i)
			continue;
		if (o->t > replay_now())
			vtime_sleep_until(R.zero + o->t);
		vtime_start(thread_main, &R.threads[o->thread]);
	}
	while (R.threads_left > 0 && R.rc == 0) {
		before = R.done;
		/* Closed: between calls no thread does anything for longer than the recording took. */
		until = vtime_now() + STUCK_NS + (R.spec->closed ? R.recorded : 0);
		if (!vtime_wait(&R.waiting, until) && R.done == before && (R.in_call > 0 || R.spec->closed))
			return err_set(R.err, "%s: %llu of %llu are done.",
				   R.in_call > 0 ? "OpenZFS does not answer a call of the trace"
						 : "The trace's threads wait for each other's calls for ever",
				   (unsigned long long)R.done, (unsigned long long)(R.ops->nops - first)),
			       EXIT_FAILED;
	}
	return R.rc;
}

/*
 * Brings into the caches what the program had read or written before the trace began, in that order.  Blocks that it
 * wrote are read as they are now: what counts is that the ARC holds them.  What a larger one alone would hold is left
 * out.
 */
int threads_warm(uint64_t *done)
{
	/* The whole one, of which a sample has a part. */
	uint64_t i, got, arc = R.spec->arc_max * (uint64_t)R.spec->rate;
	int rc;

	/* Nobody looks at what is read, and to decompress it is most of the work. */
	processor_unread = !R.spec->verify;
	for (i = 0; i < R.ops->nops && R.ops->op[i].op == OP_WARM; i++) {
		const op_t *o = &R.ops->op[i];
		rfile_t *f = files_known(o->file);

		if (f == NULL || f->f == NULL || (uint64_t)o->arc << 20 > arc)
			continue;
		if ((rc = files_warm(o, f, &got)) != 0)
			return rc;
		R.r->warm_bytes += got;
	}
	if (i > 0) {
		replay_quiesce();
		clockwork_drop_buffers();
	}
	processor_unread = false;
	*done = i;
	return 0;
}

double threads_most_waited(void)
{
	wait_sum_t *all = calloc((size_t)R.ops->nthreads + 1, sizeof(*all));
	double most;

	if (all == NULL)
		abort();
	for (uint32_t i = 0; i < R.ops->nthreads; i++)
		all[i] = R.threads[i].wait;
	most = wait_most(all, R.ops->nthreads, R.spec->nthreads > 0 ? R.spec->threads : NULL);
	free(all);
	return most;
}
