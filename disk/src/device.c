#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* --- queues ----------------------------------------------------------------------------------------------------- */

static void append(queue_t *q, request_t *r)
{
	r->next = NULL;
	if (q->last != NULL)
		q->last->next = r;
	else
		q->first = r;
	q->last = r;
	q->count++;
}

static request_t *take_after(queue_t *q, request_t *previous)
{
	request_t **link = previous != NULL ? &previous->next : &q->first, *r = *link;

	if (r == NULL)
		return NULL;
	*link = r->next;
	if (q->last == r)
		q->last = previous;
	q->count--;
	r->next = NULL;
	return r;
}

static void insert_by_time(queue_t *q, request_t *r)
{
	request_t *previous = NULL;

	if (q->last != NULL && q->last->time <= r->time) { /* the usual case */
		append(q, r);
		return;
	}
	for (request_t *at = q->first; at != NULL && at->time <= r->time; at = at->next)
		previous = at;
	if (previous == NULL) {
		r->next = q->first;
		q->first = r;
		if (q->last == NULL)
			q->last = r;
	} else {
		r->next = previous->next;
		previous->next = r;
		if (q->last == previous)
			q->last = r;
	}
	q->count++;
}

void request_free(request_t *r)
{
	if (r != NULL) {
		free(r->data);
		free(r);
	}
}

/* --- the medium ------------------------------------------------------------------------------------------------- */

static int medium_read(const device_t *d, uint8_t *buf, uint32_t len, uint64_t off)
{
	while (len > 0) {
		ssize_t n = pread(d->fd, buf, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? errno : EIO;
		buf += n;
		off += (uint64_t)n;
		len -= (uint32_t)n;
	}
	return 0;
}

static int store(device_t *d, const uint8_t *buf, uint32_t len, uint64_t off)
{
	while (len > 0 && d->fd != DEVICE_NO_DATA) {
		ssize_t n = pwrite(d->fd, buf, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			d->count.errors++;
			return n < 0 ? errno : EIO;
		}
		buf += n;
		off += (uint64_t)n;
		len -= (uint32_t)n;
	}
	return 0;
}

/* What a protected cache holds is stored already: going out takes time, but nothing can be lost on the way. */
static bool keeps(const device_t *d)
{
	return d->p->protected && d->cache_size > 0;
}

static int medium_write(device_t *d, const uint8_t *buf, uint32_t len, uint64_t off)
{
	d->count.medium_writes++;
	d->count.medium_write_bytes += len;
	return keeps(d) ? 0 : store(d, buf, len, off);
}

static int medium_zero(device_t *d, uint64_t off, uint64_t len)
{
	static const uint8_t zeros[1 << 16];

	if (d->fd == DEVICE_NO_DATA)
		return 0;
	while (fallocate(d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) != 0) {
		if (errno == EINTR)
			continue;
		if (errno != EOPNOTSUPP)
			return errno;
		for (; len > 0;) {
			uint32_t n = (uint32_t)MIN(len, sizeof(zeros));
			int error = store(d, zeros, n, off);

			if (error != 0)
				return error;
			off += n;
			len -= n;
		}
		break;
	}
	return 0;
}

/* --- what both kinds share -------------------------------------------------------------------------------------- */

static double transfer_ns(const device_t *d, bool write, uint64_t len)
{
	return (double)len * 1000.0 / (write ? d->p->write_mb_s : d->p->read_mb_s);
}

static void finish(device_t *d, request_t *r, int64_t time, int error)
{
	r->time = time;
	r->error = error;
	d->in_flight--;
	append(&d->done, r);
}

static bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

/* What the host must see: the medium, over it what is on its way out, over it the cache. */
static int see(device_t *d, uint8_t *buf, uint32_t len, uint64_t off)
{
	const extent_t *run = d->run;
	int error;

	if (d->fd == DEVICE_NO_DATA)
		return 0;
	if ((error = medium_read(d, buf, len, off)) != 0)
		return error;
	if (run != NULL && overlap(off, len, run->off, run->len)) {
		uint64_t from = MAX(off, run->off), to = MIN(off + len, run->off + run->len);

		memcpy(buf + (from - off), run->data + (from - run->off), to - from);
	}
	cache_read(&d->cache, off, len, buf);
	return 0;
}

/* TRIM and write-zeroes change tables, not the medium: nothing of them can be lost. */
static int zero(device_t *d, uint64_t off, uint64_t len)
{
	extent_t *run = d->run;

	cache_drop(&d->cache, off, len);
	if (run != NULL && run->data != NULL && overlap(off, len, run->off, run->len)) {
		uint64_t from = MAX(off, run->off), to = MIN(off + len, run->off + run->len);

		memset(run->data + (from - run->off), 0, to - from);
	}
	return medium_zero(d, off, len);
}

static bool flushes_at_once(const device_t *d)
{
	return d->p->ignores_flushes || keeps(d);
}

/* Where a flush has nothing to do the cache is a controller's, which has room for more than a disk's own. */
static uint64_t most_writes(const device_t *d)
{
	return flushes_at_once(d) ? MAX(DEVICE_WRITES, d->cache_size / DEVICE_STRIP) : DEVICE_WRITES;
}

static bool has_room(const device_t *d, uint32_t len)
{
	uint64_t bytes = d->cache.bytes + (d->run != NULL ? d->run->len : 0);

	if (bytes == 0)
		return true;
	return bytes + len <= d->cache_size && (!d->p->hdd || d->cache.extents < most_writes(d));
}

/* As a disk that reports a deferred error: whoever waits for a flush hears of it, else the next one who asks. */
static void defer(device_t *d, int error)
{
	if (error == 0)
		return;
	if (d->flushes.first == NULL)
		d->deferred = error;
	for (request_t *r = d->flushes.first; r != NULL; r = r->next)
		r->error = error;
}

static int take_deferred(device_t *d)
{
	int error = d->deferred;

	d->deferred = 0;
	return error;
}

/* The FUA bit is a flush after the write. */
static void acknowledge(device_t *d, request_t *r, int64_t time)
{
	if (r->fua && !flushes_at_once(d)) {
		r->time = time;
		r->seq = d->seq;
		append(&d->flushes, r);
	} else {
		finish(d, r, time, 0);
	}
}

static void into_cache(device_t *d, request_t *r, int64_t time)
{
	int error = keeps(d) ? store(d, r->data, r->len, r->off) : 0;

	if (error != 0) {
		finish(d, r, time, error);
		return;
	}
	if (cache_write(&d->cache, r->off, r->len, r->data, ++d->seq, time))
		d->count.merged++;
	acknowledge(d, r, time);
}

/* Writes that waited for room. */
static void admit(device_t *d, int64_t time)
{
	while (d->blocked.first != NULL && has_room(d, d->blocked.first->len))
		into_cache(d, take_after(&d->blocked, NULL), time);
}

static uint64_t oldest_seq(const device_t *d)
{
	uint64_t seq = cache_min_seq(&d->cache);

	return d->run != NULL ? MIN(seq, d->run->seq) : seq;
}

/* --- disks: one head -------------------------------------------------------------------------------------------- */

static double rotation_ns(const device_t *d)
{
	return 60.0e9 / d->p->rpm;
}

typedef struct {
	double seek, wait;
} position_t;

/*
 * From where the head is to off, beginning at time t.  The platter turns with the clock: where a byte is on it
 * follows from its offset, because a track is what passes in one rotation.  What goes on where the last transfer ended
 * costs nothing, even after a pause: the disk reads ahead into its buffer, and what its cache writes late the flush
 * pays for.  Without a cache the place has passed, and comes again in a rotation.
 */
static position_t position(const device_t *d, bool write, uint64_t off, int64_t t)
{
	uint64_t gap = off > d->head ? off - d->head : d->head - off;
	double rotation = rotation_ns(d), track = (write ? d->p->write_mb_s : d->p->read_mb_s) * rotation / 1000.0;
	position_t to = {0.0, 0.0};
	double at, target, pass;

	if (gap == 0 && (!write || d->cache_size > 0 || t <= d->mech_until))
		return to;
	to.seek = model_seek_ms(d->p, (double)gap / (double)d->span) * 1e6;
	at = fmod(((double)t + to.seek) / rotation, 1.0);
	target = fmod((double)off / track, 1.0);
	to.wait = (target - at + (target < at ? 1.0 : 0.0)) * rotation;
	/* A small gap ahead just passes under the head. */
	pass = transfer_ns(d, write, gap);
	if (off > d->head && pass < to.seek + to.wait) {
		to.seek = 0.0;
		to.wait = pass;
	}
	return to;
}

static void move(device_t *d, bool write, uint64_t off, uint32_t len, int64_t t)
{
	position_t to = position(d, write, off, t);
	double transfer = transfer_ns(d, write, len), cost = to.seek + to.wait + transfer;

	d->count.seek_ns += to.seek;
	d->count.rotation_ns += to.wait;
	d->count.transfer_ns += transfer;
	*(write ? &d->count.write_busy_ns : &d->count.read_busy_ns) += cost;
	d->count.working_ns += cost;
	d->head = off + len;
	d->mech_until = t + (int64_t)MAX(cost, 1.0);
}

/* What ends where r begins, of those that the disk knows; NULL if nothing does. */
static request_t *predecessor(const device_t *d, const request_t *r, request_t **previous)
{
	int known = 0;

	*previous = NULL;
	for (request_t *q = d->ready.first; q != NULL && known < DEVICE_QUEUE; *previous = q, q = q->next, known++)
		if (q != r && q->op == r->op && q->off + q->len == r->off)
			return q;
	return NULL;
}

/*
 * The request that the head reaches first, of those that the disk knows; one that was passed by too often goes first.
 * A stream is begun at its beginning: who jumped into its middle would come back for the rest again and again.
 */
static request_t *nearest(device_t *d, int64_t t)
{
	request_t *best = NULL, *best_previous = NULL, *previous = NULL;
	double least = INFINITY;
	int known = 0;

	for (request_t *r = d->ready.first; r != NULL && known < DEVICE_QUEUE; previous = r, r = r->next, known++) {
		position_t to = position(d, r->op == REQ_WRITE, r->off, t);

		if (r->passed >= DEVICE_PASSED) {
			best = r;
			best_previous = previous;
			break;
		}
		if (to.seek + to.wait < least) {
			least = to.seek + to.wait;
			best = r;
			best_previous = previous;
		}
	}
	for (int n = 0; n < DEVICE_QUEUE; n++) {
		request_t *earlier = predecessor(d, best, &previous);

		if (earlier == NULL)
			break;
		best = earlier;
		best_previous = previous;
	}
	for (request_t *r = d->ready.first; r != best; r = r->next)
		r->passed++;
	return take_after(&d->ready, best_previous);
}

/* Next in the direction of the sweep; what lies next to it goes with it. */
static void write_out(device_t *d, int64_t t)
{
	extent_t *e = cache_at(&d->cache, d->head), *more;

	if (e == NULL)
		e = cache_at(&d->cache, 0);
	d->run = e = cache_take(&d->cache, e->off);
	while (e->len < CACHE_RUN && (more = cache_at(&d->cache, e->off + e->len)) != NULL &&
	    more->off == e->off + e->len && e->len + more->len <= CACHE_RUN) {
		uint8_t *data = e->data;

		if (data != NULL && (data = realloc(data, e->len + more->len)) == NULL)
			break;
		more = cache_take(&d->cache, more->off);
		if (data != NULL)
			memcpy(data + e->len, more->data, more->len);
		e->data = data;
		e->len += more->len;
		e->room = e->len;
		e->seq = MIN(e->seq, more->seq);
		d->count.merged++;
		extent_free(more);
	}
	move(d, true, e->off, e->len, t);
	d->mech = MECH_RUN;
	d->mech_read_last = false;
}

static bool begin_flush(device_t *d, int64_t t)
{
	request_t *r = d->flushes.first;
	double cost;

	if (r == NULL || oldest_seq(d) <= r->seq)
		return false;
	r = take_after(&d->flushes, NULL);
	/* Nothing written since the last one, or nothing that could be lost: nothing to do. */
	cost = r->seq > d->flushed_seq && d->cache_size > 0 ? rotation_ns(d) + d->p->flush_ms * 1e6 : 0.0;
	d->flushed_seq = MAX(d->flushed_seq, r->seq);
	d->count.flush_ns += cost;
	d->count.working_ns += cost;
	d->serving = r;
	d->mech = MECH_FLUSH;
	d->mech_until = t + (int64_t)cost;
	return true;
}

static void dispatch(device_t *d, int64_t t)
{
	bool urgent = d->flushes.first != NULL || d->blocked.first != NULL, reads = d->ready.first != NULL;

	if (d->mech != MECH_IDLE)
		return;
	t = MAX(t, d->mech_until);
	if (begin_flush(d, t))
		return;
	/* Reads go first, but one for one when somebody waits for the cache. */
	if (reads && !(urgent && d->mech_read_last && d->cache.root != NULL)) {
		request_t *r = nearest(d, t);

		if (r->op == REQ_READ) {
			d->count.medium_reads++;
			d->count.medium_read_bytes += r->len;
		}
		move(d, r->op == REQ_WRITE, r->off, r->len, t);
		d->serving = r;
		d->mech = MECH_REQUEST;
		d->mech_read_last = true;
	} else if (d->cache.root != NULL && (urgent || !d->lazy)) {
		write_out(d, t);
	}
}

static void mech_done(device_t *d)
{
	int64_t t = d->mech_until;
	request_t *r = d->serving;
	extent_t *run = d->run;
	mech_t was = d->mech;
	int error;

	d->mech = MECH_IDLE;
	d->serving = NULL;
	if (was == MECH_FLUSH) {
		finish(d, r, t, r->error);
	} else if (was == MECH_RUN) {
		error = medium_write(d, run->data, run->len, run->off);
		defer(d, error);
		d->run = NULL;
		extent_free(run);
		admit(d, t);
	} else if (r->op == REQ_READ) {
		finish(d, r, t, see(d, r->data, r->len, r->off));
	} else {
		d->seq++;
		error = medium_write(d, r->data, r->len, r->off);
		if (error != 0)
			finish(d, r, t, error);
		else
			acknowledge(d, r, t);
	}
}

static void hdd_submit(device_t *d, request_t *r)
{
	r->time = r->arrival + (int64_t)(d->p->overhead_us * 1e3);
	if (r->op == REQ_WRITE && d->cache_size > 0) {
		int64_t start = MAX(r->time, d->link_until);

		d->link_until = r->time = start + (int64_t)((double)r->len * 1000.0 / DEVICE_HDD_LINK_MB_S);
	}
	insert_by_time(&d->timed, r);
}

/* The command is there, a write's data too. */
static void hdd_timed(device_t *d, request_t *r)
{
	switch (r->op) {
	case REQ_READ:
		if (cache_covers(&d->cache, r->off, r->len)) /* the head has nothing to do */
			finish(d, r, r->time + (int64_t)((double)r->len * 1000.0 / DEVICE_HDD_LINK_MB_S),
			    see(d, r->data, r->len, r->off));
		else
			append(&d->ready, r);
		break;
	case REQ_WRITE:
		if (d->cache_size == 0)
			append(&d->ready, r);
		else if (d->blocked.first == NULL && has_room(d, r->len))
			into_cache(d, r, r->time);
		else
			append(&d->blocked, r);
		break;
	case REQ_FLUSH:
		if (flushes_at_once(d)) {
			finish(d, r, r->time, take_deferred(d));
			break;
		}
		r->seq = d->seq;
		r->error = take_deferred(d);
		append(&d->flushes, r);
		break;
	case REQ_TRIM:
	case REQ_ZERO:
		finish(d, r, r->time, zero(d, r->off, r->len));
		admit(d, r->time);
		break;
	}
}

/* --- flash: channels and a bus ---------------------------------------------------------------------------------- */

/* Channels and flushes at work, counted: the time in which there is any is the disk's. */
static void begin_work(device_t *d, int64_t t)
{
	if (d->working++ == 0)
		d->working_since = t;
}

static void end_work(device_t *d, int64_t t)
{
	if (--d->working == 0)
		d->count.working_ns += (double)(t - d->working_since);
}

/* A request holds a channel for its latency, then the bus for its transfer; the bus goes to who is ready first. */
static void flash_start(device_t *d)
{
	const model_profile_t *p = d->p;
	request_t *r;

	while (!d->held && (r = d->ready.first) != NULL) {
		bool write = r->op == REQ_WRITE;
		double overhead = p->overhead_us * 1e3, lat;
		int best = -1;

		if (r->op == REQ_FLUSH || r->flushing) {
			/* Waits for all that came before and holds up what comes behind. */
			if (d->busy > 0)
				return;
			(void)take_after(&d->ready, NULL);
			r->time = r->arrival;
			for (int i = 0; i < d->lanes; i++)
				r->time = MAX(r->time, d->lane[i]);
			lat = overhead + p->flush_us * 1e3;
			begin_work(d, r->time);
			r->time += (int64_t)lat;
			d->count.flush_ns += lat;
			d->held = true;
			insert_by_time(&d->timed, r);
			continue;
		}
		for (int i = 0; i < d->lanes; i++)
			if (d->lane[i] != DEVICE_NEVER && (best < 0 || d->lane[i] < d->lane[best]))
				best = i;
		if (best < 0)
			return;
		(void)take_after(&d->ready, NULL);
		/* The profile's latency is of a 4 KiB request, its transfer included. */
		lat = MAX((write ? p->write_us : p->read_us) * 1e3 - transfer_ns(d, write, 4096), 0.0) + overhead;
		r->time = MAX(r->arrival, d->lane[best]);
		begin_work(d, r->time);
		r->time += (int64_t)lat;
		r->lane = best;
		r->transferring = false;
		d->lane[best] = DEVICE_NEVER;
		d->busy++;
		d->count.latency_ns += lat;
		*(write ? &d->count.write_busy_ns : &d->count.read_busy_ns) += lat;
		insert_by_time(&d->timed, r);
	}
}

static void flash_submit(device_t *d, request_t *r)
{
	if (r->op == REQ_TRIM || r->op == REQ_ZERO || (r->op == REQ_FLUSH && d->p->ignores_flushes)) {
		r->time = r->arrival + (int64_t)(d->p->overhead_us * 1e3);
		insert_by_time(&d->timed, r);
		return;
	}
	append(&d->ready, r);
	flash_start(d);
}

/* To the medium, oldest first, until no more than this is left, and nothing from before the time. */
static int flash_write_out(device_t *d, uint64_t left, int64_t before, uint64_t seq)
{
	extent_t *e;
	int error = 0;

	while ((e = cache_oldest(&d->cache)) != NULL && (d->cache.bytes > left || e->time < before || e->seq <= seq)) {
		int failed;

		e = cache_take(&d->cache, e->off);
		failed = medium_write(d, e->data, e->len, e->off);
		error = error != 0 ? error : failed;
		extent_free(e);
	}
	return error;
}

static void flash_flushed(device_t *d, request_t *r)
{
	int error = flash_write_out(d, UINT64_MAX, INT64_MIN, d->seq), earlier = take_deferred(d);

	d->held = false;
	end_work(d, r->time);
	for (int i = 0; i < d->lanes; i++)
		d->lane[i] = r->time;
	finish(d, r, r->time, error != 0 ? error : earlier);
	flash_start(d);
}

/* The transfer of a read or write is over. */
static void flash_transferred(device_t *d, request_t *r)
{
	int error = 0;

	d->lane[r->lane] = r->time;
	d->busy--;
	end_work(d, r->time);
	if (r->op == REQ_READ) {
		d->count.medium_reads++;
		d->count.medium_read_bytes += r->len;
		error = see(d, r->data, r->len, r->off);
	} else if (d->cache_size == 0) {
		d->seq++;
		error = medium_write(d, r->data, r->len, r->off);
	} else {
		error = keeps(d) ? store(d, r->data, r->len, r->off) : 0;
		if (cache_write(&d->cache, r->off, r->len, r->data, ++d->seq, r->time))
			d->count.merged++;
		defer(d, flash_write_out(d, d->cache_size, INT64_MIN, 0));
	}
	if (r->fua && error == 0 && !d->p->ignores_flushes) {
		r->flushing = true;
		r->arrival = r->time;
		append(&d->ready, r);
	} else {
		finish(d, r, r->time, error);
	}
	flash_start(d);
}

static void flash_timed(device_t *d, request_t *r)
{
	double xfer;

	if (r->op == REQ_TRIM || r->op == REQ_ZERO) {
		finish(d, r, r->time, zero(d, r->off, r->len));
	} else if (r->op == REQ_FLUSH && d->p->ignores_flushes) {
		finish(d, r, r->time, take_deferred(d));
	} else if (r->op == REQ_FLUSH || r->flushing) {
		flash_flushed(d, r);
	} else if (r->transferring) {
		flash_transferred(d, r);
	} else {
		xfer = transfer_ns(d, r->op == REQ_WRITE, r->len);
		d->count.transfer_ns += xfer;
		*(r->op == REQ_WRITE ? &d->count.write_busy_ns : &d->count.read_busy_ns) += xfer;
		d->link_until = r->time = MAX(r->time, d->link_until) + (int64_t)MAX(xfer, 1.0);
		r->transferring = true;
		insert_by_time(&d->timed, r);
	}
}

/* --- the whole -------------------------------------------------------------------------------------------------- */

void device_init(device_t *d, const model_profile_t *p, uint64_t span, uint64_t cache_size, int fd, bool lazy)
{
	memset(d, 0, sizeof(*d));
	d->p = p;
	d->span = span;
	d->cache_size = cache_size;
	d->fd = fd;
	d->lazy = lazy;
	d->mech_until = INT64_MIN / 2;
	d->lanes = (int)MIN(MAX(p->channels, 1.0), (double)MODEL_MAX_CHANNELS);
}

void device_submit(device_t *d, request_t *r)
{
	static const size_t counter[] = {
		[REQ_READ] = offsetof(device_counters_t, reads),
		[REQ_WRITE] = offsetof(device_counters_t, writes),
		[REQ_FLUSH] = offsetof(device_counters_t, flushes),
		[REQ_TRIM] = offsetof(device_counters_t, trims),
		[REQ_ZERO] = offsetof(device_counters_t, zeroes),
	};
	uint64_t *n = (uint64_t *)(void *)((char *)&d->count + counter[r->op]);

	(*n)++;
	d->count.read_bytes += r->op == REQ_READ ? r->len : 0;
	d->count.write_bytes += r->op == REQ_WRITE ? r->len : 0;
	d->count.fua += r->fua ? 1 : 0;
	d->count.depth[MIN(d->in_flight, DEVICE_DEPTHS - 1)]++;
	d->in_flight++;
	r->passed = 0;
	r->error = 0;
	r->flushing = false;
	if (d->p->hdd)
		hdd_submit(d, r);
	else
		flash_submit(d, r);
}

static int64_t background(const device_t *d)
{
	const extent_t *e = d->p->hdd || d->lazy ? NULL : cache_oldest(&d->cache);

	return e != NULL ? e->time + DEVICE_FLASH_AGE + 1 : DEVICE_NEVER;
}

int64_t device_next(const device_t *d)
{
	int64_t t = background(d);

	if (d->timed.first != NULL)
		t = MIN(t, d->timed.first->time);
	if (d->mech != MECH_IDLE)
		t = MIN(t, d->mech_until);
	return t;
}

void device_advance(device_t *d, int64_t now)
{
	for (;;) {
		int64_t t = device_next(d);

		if (t > now)
			break;
		if (d->timed.first != NULL && d->timed.first->time <= t) {
			request_t *r = take_after(&d->timed, NULL);

			if (d->p->hdd)
				hdd_timed(d, r);
			else
				flash_timed(d, r);
		} else if (d->mech != MECH_IDLE && d->mech_until <= t) {
			mech_done(d);
		} else {
			defer(d, flash_write_out(d, UINT64_MAX, t - DEVICE_FLASH_AGE, 0));
		}
		/* What comes at the same moment is known before the head moves. */
		if (d->p->hdd && (d->timed.first == NULL || d->timed.first->time > t))
			dispatch(d, t);
	}
}

request_t *device_done(device_t *d)
{
	return take_after(&d->done, NULL);
}

static void drop_all(queue_t *q)
{
	request_t *r;

	while ((r = take_after(q, NULL)) != NULL)
		request_free(r);
}

void device_cut(device_t *d)
{
	d->count.cuts++;
	d->count.cut_bytes += keeps(d) ? 0 : d->cache.bytes + (d->run != NULL ? d->run->len : 0);
	drop_all(&d->timed);
	drop_all(&d->ready);
	drop_all(&d->blocked);
	drop_all(&d->flushes);
	drop_all(&d->done);
	request_free(d->serving);
	d->serving = NULL;
	extent_free(d->run);
	d->run = NULL;
	cache_clear(&d->cache);
	d->mech = MECH_IDLE;
	d->mech_until = d->link_until = INT64_MIN / 2;
	memset(d->lane, 0, sizeof(d->lane));
	d->busy = d->working = 0;
	d->held = false;
	d->deferred = 0;
	d->in_flight = 0;
	d->flushed_seq = d->seq;
}

static void orphan(const queue_t *q, const void *owner)
{
	for (request_t *r = q->first; r != NULL; r = r->next)
		if (r->owner == owner)
			r->owner = NULL;
}

void device_orphan(device_t *d, const void *owner)
{
	orphan(&d->timed, owner);
	orphan(&d->ready, owner);
	orphan(&d->blocked, owner);
	orphan(&d->flushes, owner);
	orphan(&d->done, owner);
	if (d->serving != NULL && d->serving->owner == owner)
		d->serving->owner = NULL;
}

int device_settle(device_t *d)
{
	extent_t *e;
	int error = take_deferred(d), failed;

	if (d->run != NULL) {
		failed = medium_write(d, d->run->data, d->run->len, d->run->off);
		error = error != 0 ? error : failed;
		extent_free(d->run);
		d->run = NULL;
		d->mech = MECH_IDLE;
	}
	while ((e = cache_oldest(&d->cache)) != NULL) {
		e = cache_take(&d->cache, e->off);
		failed = medium_write(d, e->data, e->len, e->off);
		error = error != 0 ? error : failed;
		extent_free(e);
	}
	return error;
}
