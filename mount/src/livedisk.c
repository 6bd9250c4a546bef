#include "livedisk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "diskvdev.h"
#include "put.h"

typedef struct {
	int fd;
	bool instant, lazy, ignores_flushes;
	device_t device; /* with modelled times */
	cache_t cache;   /* without: its own volatile cache */
	uint64_t cache_size, seq;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	request_t *inbox, **inbox_end; /* came in since the disk looked */
	int64_t late_ns;               /* after their modelled ends, of all answers */
} live_t;

static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;

static live_t *live_of(const disk_t *d)
{
	return d->backing;
}

static int64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* OpenZFS would suspend the pool and wait for ever; the end of the process gives everybody an error instead. */
static void __attribute__((noreturn)) give_up(const disk_t *d, const char *what, int error)
{
	(void)fprintf(stderr, "ztune-mount: the file of disk %s can't be %s: %s; the mount ends.\n", d->name, what,
	    error < 0 ? "end of file" : strerror(error));
	_exit(EXIT_FAILED);
}

/* --- a disk without times --- */

static int write_extent(const live_t *l, const extent_t *e)
{
	for (uint32_t done = 0; done < e->len;) {
		ssize_t n = pwrite(l->fd, e->data + done, e->len - done, (off_t)(e->off + done));

		if (n < 0 && errno != EINTR)
			return errno;
		done += n > 0 ? (uint32_t)n : 0;
	}
	return 0;
}

/* Writes out what is older than `before`, and what is too much.  Under the lock. */
static int write_out(live_t *l, uint64_t most, int64_t before)
{
	const extent_t *oldest;
	int error = 0;

	while (error == 0 && (oldest = cache_oldest(&l->cache)) != NULL &&
	    (l->cache.bytes > most || oldest->time < before)) {
		extent_t *e = cache_take(&l->cache, oldest->off);

		error = write_extent(l, e);
		extent_free(e);
	}
	return error;
}

/* As a flash disk's cache without its times (disk/src/device.c): written out by a flush, when full, or after a second. */
static int cached_io(live_t *l, zio_t *z)
{
	uint8_t *buf;
	int error = 0;

	(void)pthread_mutex_lock(&l->lock);
	if (ZIO_IS_FLUSH(z)) {
		error = l->ignores_flushes ? 0 : write_out(l, 0, INT64_MAX);
	} else if (z->io_type == ZIO_TYPE_READ) {
		error = disk_file_io(l->fd, z);
		buf = abd_borrow_buf_copy(z->io_abd, z->io_size);
		cache_read(&l->cache, z->io_offset, (uint32_t)z->io_size, buf);
		abd_return_buf_copy(z->io_abd, buf, z->io_size);
	} else {
		int64_t now = now_ns();

		buf = abd_borrow_buf_copy(z->io_abd, z->io_size);
		(void)cache_write(&l->cache, z->io_offset, (uint32_t)z->io_size, buf, ++l->seq, now);
		abd_return_buf(z->io_abd, buf, z->io_size);
		error = write_out(l, l->cache_size, l->lazy ? 0 : now - DEVICE_FLASH_AGE);
	}
	(void)pthread_mutex_unlock(&l->lock);
	return error;
}

/* --- the disk's thread --- */

static void finish(disk_t *d, request_t *r)
{
	zio_t *z = r->owner;

	if (r->error != 0)
		give_up(d, r->op == REQ_READ ? "read" : "written", r->error);
	if (r->op == REQ_READ)
		abd_copy_from_buf(z->io_abd, r->data, z->io_size);
	request_free(r);
	zio_interrupt(z);
}

static void wait_until(live_t *l, int64_t ns)
{
	struct timespec t = {ns / 1000000000, ns % 1000000000};

	if (ns == DEVICE_NEVER)
		(void)pthread_cond_wait(&l->wake, &l->lock);
	else
		(void)pthread_cond_timedwait(&l->wake, &l->lock, &t);
}

static void *disk_main(void *arg)
{
	disk_t *d = arg;
	live_t *l = live_of(d);
	request_t *r, *done, **end;
	int64_t now;

	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	(void)pthread_mutex_lock(&l->lock);
	for (;;) {
		/* First what the disk did in the meantime: it didn't know yet of what has just come. */
		device_advance(&l->device, now_ns());
		while ((r = l->inbox) != NULL) {
			if ((l->inbox = r->next) == NULL)
				l->inbox_end = &l->inbox;
			r->next = NULL;
			device_submit(&l->device, r);
		}
		device_advance(&l->device, now_ns());
		done = NULL;
		end = &done;
		now = now_ns();
		while ((r = device_done(&l->device)) != NULL) {
			l->late_ns += now - r->time;
			*end = r;
			end = &r->next;
		}
		*end = NULL;
		if (done == NULL) {
			wait_until(l, device_next(&l->device));
			continue;
		}
		(void)pthread_mutex_unlock(&l->lock);
		while ((r = done) != NULL) {
			done = r->next;
			finish(d, r);
		}
		(void)pthread_mutex_lock(&l->lock);
	}
	return NULL;
}

static int start_thread(disk_t *d)
{
	live_t *l = live_of(d);
	pthread_condattr_t attr;
	pthread_t t;

	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&l->wake, &attr);
	(void)pthread_condattr_destroy(&attr);
	return pthread_create(&t, NULL, disk_main, d) != 0 ? -1 : 0;
}

int livedisk_open(const spec_t *spec, const char *store, bool instant, cache_mode_t cache, err_t *err)
{
	disk_t *d = NULL;
	size_t n = 0;

	account_create(spec->ndatasets);
	if (disks_create(spec, err) != 0)
		return -1;
	d = disks_all(&n);
	for (size_t i = 0; i < n; i++) {
		live_t *l = calloc(1, sizeof(*l));
		char path[4500], name[64];
		struct stat st;

		if (l == NULL)
			abort();
		d[i].backing = l;
		(void)snprintf(name, sizeof(name), "%s", d[i].name);
		*strchr(name, '/') = '-';
		(void)snprintf(path, sizeof(path), "%s/disk-%s-%s.img", store, spec->pools[d[i].pool].name, name);
		if ((l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0 || fstat(l->fd, &st) != 0)
			return err_set(err, "%s can't be opened: %s.", path, strerror(errno));
		if (st.st_size != 0 && (uint64_t)st.st_size != d[i].size)
			return err_set(err, "%s has %lld bytes, not the disk's %llu.", path, (long long)st.st_size,
			    (unsigned long long)d[i].size);
		if (st.st_size == 0 && ftruncate(l->fd, (off_t)d[i].size) != 0)
			return err_set(err, "%s can't be made %llu bytes long: %s.", path,
			    (unsigned long long)d[i].size, strerror(errno));
		l->instant = instant;
		l->lazy = cache == CACHE_LAZY;
		l->ignores_flushes = d[i].profile->ignores_flushes;
		l->cache_size = cache == CACHE_NONE ? 0 : (uint64_t)(d[i].profile->cache_mb * (1 << 20));
		/* Nothing of a protected cache can be lost; without times there is nothing else to it. */
		if (instant && d[i].profile->protected)
			l->cache_size = 0;
		l->inbox_end = &l->inbox;
		(void)pthread_mutex_init(&l->lock, NULL);
		if (instant)
			continue;
		device_init(&l->device, d[i].profile, d[i].span, l->cache_size, l->fd, l->lazy);
		if (start_thread(&d[i]) != 0)
			return err_set(err, "No thread for a disk: %s.", strerror(errno));
	}
	return 0;
}

int livedisk_settle(void)
{
	int error = 0, failed;
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++) {
		live_t *l = live_of(&d[i]);

		(void)pthread_mutex_lock(&l->lock);
		failed = l->instant ? write_out(l, 0, INT64_MAX) : device_settle(&l->device);
		(void)pthread_mutex_unlock(&l->lock);
		error = error != 0 ? error : failed;
	}
	return error;
}

/* --- counters --- */

void livedisk_reset(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	(void)pthread_mutex_lock(&count_lock);
	account_reset();
	(void)pthread_mutex_unlock(&count_lock);
	for (size_t i = 0; i < n; i++) {
		live_t *l = live_of(&d[i]);

		if (l->instant)
			continue;
		(void)pthread_mutex_lock(&l->lock);
		memset(&l->device.count, 0, sizeof(l->device.count));
		l->late_ns = 0;
		(void)pthread_mutex_unlock(&l->lock);
	}
}

void livedisk_stats(const spec_t *spec, json_t *stats)
{
	json_t *list = json_array(), *o;
	const io_totals_t *t = account_totals();
	size_t n;
	disk_t *d = disks_all(&n);

	(void)pthread_mutex_lock(&count_lock);
	for (size_t i = 0; i < n; i++) {
		live_t *l = live_of(&d[i]);
		double busy = 0.0, late = 0.0;

		if (!l->instant) {
			(void)pthread_mutex_lock(&l->lock);
			busy = l->device.count.working_ns / 1e9;
			late = (double)l->late_ns / 1e9;
			(void)pthread_mutex_unlock(&l->lock);
		}
		o = disk_counts(spec, &d[i]);
		put_real(o, "busy_s", busy);
		put_real(o, "late_s", late);
		(void)json_array_append_new(list, o);
	}
	(void)json_object_set_new(stats, "disks", list);
	(void)json_object_set_new(stats, "causes", cause_counts());
	(void)json_object_set_new(stats, "datasets", dataset_counts(spec));
	put_sum(stats, "slog_writes", t->slog_writes);
	put_sum(stats, "slog_bytes", t->slog_bytes);
	put_sum(stats, "cache_write_bytes", t->cache_write_bytes);
	(void)pthread_mutex_unlock(&count_lock);
}

/* --- the vdev operations --- */

static void submit(disk_t *d, zio_t *z)
{
	live_t *l = live_of(d);
	request_t *r = calloc(1, sizeof(*r));

	if (r == NULL)
		abort();
	r->owner = z;
	if (ZIO_IS_FLUSH(z)) {
		r->op = REQ_FLUSH;
	} else {
		r->op = z->io_type == ZIO_TYPE_WRITE ? REQ_WRITE : REQ_READ;
		r->off = z->io_offset;
		r->len = (uint32_t)z->io_size;
		if ((r->data = malloc(z->io_size)) == NULL)
			abort();
		if (r->op == REQ_WRITE)
			abd_copy_to_buf(r->data, z->io_abd, z->io_size);
	}
	(void)pthread_mutex_lock(&l->lock);
	r->arrival = now_ns();
	*l->inbox_end = r;
	l->inbox_end = &r->next;
	(void)pthread_cond_signal(&l->wake);
	(void)pthread_mutex_unlock(&l->lock);
}

/*
 * An I/O that is done at once goes on in the thread that began it, as those do that the kernel's disks need not be
 * asked for: handing it to another takes longer than the I/O.  Completing one may begin the next of the queue; that
 * one is handed on, or the stack would grow with the queue.
 */
static void complete(zio_t *z)
{
	static __thread bool completing;

	if (completing) {
		zio_interrupt(z);
		return;
	}
	completing = true;
	zio_execute(z);
	completing = false;
}

void disk_begin(zio_t *z, disk_t *d)
{
	live_t *l = live_of(d);
	int error = 0;

	(void)pthread_mutex_lock(&count_lock);
	(void)account_io(z, d, NULL, NULL);
	(void)pthread_mutex_unlock(&count_lock);
	if (!l->instant) {
		submit(d, z);
		return;
	}
	/* Without a cache a flush has nothing to do: the page cache keeps what this process wrote, whatever ends it. */
	if (l->cache_size > 0)
		error = cached_io(l, z);
	else if (!ZIO_IS_FLUSH(z))
		error = disk_file_io(l->fd, z);
	if (error != 0)
		give_up(d, z->io_type == ZIO_TYPE_READ ? "read" : "written", error);
	complete(z);
}

void disk_end(void)
{
}
