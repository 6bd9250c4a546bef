/*
 * ztune-disk: a disk with the service times of a profile, served on unix sockets: as NBD, and to one guest's kernel as a
 * virtio disk.  One thread: it sleeps until a request comes or the modelled disk has something to do.
 */
#include "nbd.h"
#include "options.h"
#include "vhost.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))

#define LAG_MAX_NS 100000000.0 /* a reply that is later than this is not made up for */
#define HURRIED 1e-4           /* of the disk's time */

static int open_medium(const char *path, uint64_t size)
{
	struct stat st;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		fail(1, "%s can't be opened: %s", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) != 0)
		fail(1, "%s is in use by another disk", path);
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		fail(1, "%s is not a file", path);
	if (st.st_size == 0 && ftruncate(fd, (off_t)size) != 0)
		fail(1, "%s can't be made %" PRIu64 " bytes long: %s", path, size, strerror(errno));
	if (st.st_size != 0 && (uint64_t)st.st_size != size)
		fail(1, "%s has %lld bytes, not the disk's %" PRIu64, path, (long long)st.st_size, size);
	return fd;
}

static int listen_at(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (strlen(path) >= sizeof(a.sun_path))
		fail(2, "the path of a socket has at most %zu bytes: %s", sizeof(a.sun_path) - 1, path);
	(void)strcpy(a.sun_path, path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 64) != 0)
		fail(1, "%s: %s", path, strerror(errno));
	return fd;
}

/* --- time ------------------------------------------------------------------------------------------------------- */

static int64_t began;
static double dilation;

static int64_t real_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t disk_now(void)
{
	return (int64_t)((double)(real_now() - began) / dilation);
}

/* The disk's clock goes on from where it is, so much faster that nothing takes time any more. */
static void hurry(void)
{
	int64_t now = disk_now();

	dilation = HURRIED;
	began = real_now() - (int64_t)((double)now * dilation);
}

static void set_timer(int fd, int64_t disk_time)
{
	struct itimerspec when = {0};

	if (disk_time != DEVICE_NEVER) {
		int64_t real = began + (int64_t)ceil((double)disk_time * dilation);

		real = real > 0 ? real : 1;
		when.it_value.tv_sec = real / 1000000000;
		when.it_value.tv_nsec = real % 1000000000;
	}
	(void)timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* --- counters --------------------------------------------------------------------------------------------------- */

static void write_stats(FILE *f, const device_t *d, int64_t since, const options_t *o, int64_t late_ns,
    uint64_t replies)
{
	const device_counters_t *n = &d->count;
	int last = DEVICE_DEPTHS - 1;

	(void)fprintf(f, "{\"seconds\":%.6f,\"dilation\":%g,\"lazy\":%s", (double)(disk_now() - since) / 1e9, dilation,
	    o->lazy != 0.0 ? "true" : "false");
	(void)fprintf(f,
	    ",\"reads\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"writes\":%" PRIu64 ",\"write_bytes\":%" PRIu64
	    ",\"flushes\":%" PRIu64 ",\"fua\":%" PRIu64 ",\"trims\":%" PRIu64 ",\"zeroes\":%" PRIu64,
	    n->reads, n->read_bytes, n->writes, n->write_bytes, n->flushes, n->fua, n->trims, n->zeroes);
	(void)fprintf(f,
	    ",\"medium\":{\"reads\":%" PRIu64 ",\"read_bytes\":%" PRIu64 ",\"writes\":%" PRIu64
	    ",\"write_bytes\":%" PRIu64 "},\"merged\":%" PRIu64,
	    n->medium_reads, n->medium_read_bytes, n->medium_writes, n->medium_write_bytes, n->merged);
	(void)fprintf(f,
	    ",\"cache\":{\"size\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"cuts\":%" PRIu64 ",\"cut_bytes\":%" PRIu64
	    "},\"errors\":%" PRIu64,
	    d->cache_size, d->cache.bytes + (d->run != NULL ? d->run->len : 0), n->cuts, n->cut_bytes, n->errors);
	(void)fprintf(f,
	    ",\"busy_s\":{\"seek\":%.6f,\"rotation\":%.6f,\"latency\":%.6f,\"transfer\":%.6f,\"flush\":%.6f,"
	    "\"for_reads\":%.6f,\"for_writes\":%.6f},\"working_s\":%.6f",
	    n->seek_ns / 1e9, n->rotation_ns / 1e9, n->latency_ns / 1e9, n->transfer_ns / 1e9, n->flush_ns / 1e9,
	    n->read_busy_ns / 1e9, n->write_busy_ns / 1e9, n->working_ns / 1e9);
	while (last > 0 && n->depth[last] == 0)
		last--;
	(void)fprintf(f, ",\"queue_depth\":[");
	for (int i = 0; i <= last; i++)
		(void)fprintf(f, "%s%" PRIu64, i > 0 ? "," : "", n->depth[i]);
	(void)fprintf(f, "],\"reply_late_us\":%.1f}\n", replies > 0 ? (double)late_ns / (double)replies / 1e3 : 0.0);
}

/* --- the server ------------------------------------------------------------------------------------------------- */

typedef struct {
	options_t o;
	device_t device;
	int poll, timer, signals, listener, control, guests;
	conn_t *conns;
	vhost_t *guest; /* NULL: none */
	int kicks;      /* of the guest, what is watched; -1: nothing */
	int64_t since;  /* of the counters, disk's clock */
	int64_t late_ns;
	uint64_t replies;
	bool stop;
} server_t;

static void watch(const server_t *s, int fd, void *what, uint32_t events, int how)
{
	struct epoll_event e = {.events = events, .data.ptr = what};

	if (epoll_ctl(s->poll, how, fd, &e) != 0)
		fail(1, "epoll: %s", strerror(errno));
}

static void drop_conn(server_t *s, conn_t *c)
{
	conn_t **link = &s->conns;

	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	device_orphan(&s->device, c);
	conn_free(c);
}

/* The guest has the file, too: closed here alone, it would be watched on. Returns false if it can't be watched. */
static bool watch_kicks(server_t *s, int kicks)
{
	struct epoll_event word = {.events = EPOLLIN, .data.ptr = &s->kicks};

	if (s->kicks >= 0)
		(void)epoll_ctl(s->poll, EPOLL_CTL_DEL, s->kicks, NULL);
	s->kicks = kicks;
	return kicks < 0 || epoll_ctl(s->poll, EPOLL_CTL_ADD, kicks, &word) == 0;
}

static void drop_guest(server_t *s)
{
	if (s->guest == NULL)
		return;
	(void)watch_kicks(s, -1);
	device_orphan(&s->device, s->guest);
	vhost_free(s->guest);
	s->guest = NULL;
}

static void cut(server_t *s)
{
	/* A disk without power answers nobody. */
	drop_guest(s);
	while (s->conns != NULL)
		drop_conn(s, s->conns);
	device_cut(&s->device);
}

/* Connections close behind the caller's back: he must not go on with a list of events. Returns false then. */
static bool after(server_t *s, conn_t *c, conn_state_t state)
{
	if (state == CONN_LOST) {
		cut(s);
		return false;
	}
	if (state == CONN_LEFT) {
		conn_write(c);
		drop_conn(s, c);
		return false;
	}
	watch(s, c->fd, c, (conn_wants_in(c) ? EPOLLIN : 0u) | (conn_wants_out(c) ? EPOLLOUT : 0u), EPOLL_CTL_MOD);
	return true;
}

/* What is done goes out. */
static void deliver(server_t *s)
{
	request_t *r;

	while ((r = device_done(&s->device)) != NULL) {
		if (r->owner != NULL) {
			if (r->owner == s->guest)
				vhost_reply(s->guest, r);
			else
				conn_reply(r->owner, r);
			s->late_ns += disk_now() - r->time;
			s->replies++;
		}
		request_free(r);
	}
	if (s->guest != NULL)
		vhost_sent(s->guest, disk_now(), (int64_t)(LAG_MAX_NS / dilation));
	for (conn_t *c = s->conns, *next; c != NULL; c = next) {
		next = c->next;
		if (c->late.sending || conn_wants_out(c)) {
			conn_write(c);
			conn_sent(c, disk_now(), (int64_t)(LAG_MAX_NS / dilation));
			(void)after(s, c, CONN_OPEN);
		}
	}
}

static void accept_conn(server_t *s)
{
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
	conn_t *c;

	if (fd < 0)
		return;
	c = conn_new(fd, (uint64_t)s->o.size, s->device.p->hdd);
	c->next = s->conns;
	s->conns = c;
	watch(s, fd, c, EPOLLIN, EPOLL_CTL_ADD);
	conn_write(c);
	(void)after(s, c, CONN_OPEN);
}

static void accept_guest(server_t *s)
{
	int fd = accept4(s->guests, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (s->guest != NULL) {
		(void)close(fd); /* a disk is in one machine */
		return;
	}
	s->guest = vhost_new(fd, (uint64_t)s->o.size);
	watch(s, fd, &s->guest, EPOLLIN, EPOLL_CTL_ADD);
}

/* A message, or word of requests; a guest that is gone has lost its disk's power. Returns false then. */
static bool serve_guest(server_t *s, bool message, int64_t now)
{
	uint64_t times;

	if (message)
		(void)watch_kicks(s, -1); /* a message may close it */
	else
		(void)!read(s->kicks, &times, sizeof(times));
	if (message ? !vhost_message(s->guest, &s->device, now) : !vhost_take(s->guest, &s->device, now)) {
		cut(s);
		return false;
	}
	if (!message)
		return true;
	if (!watch_kicks(s, vhost_kicks(s->guest)))
		cut(s); /* the guest gave a file */
	/* Of another that was watched there may be word. */
	return false;
}

/* One line in, one line out. The other end is ours: it sends its line at once. */
static void serve_control(server_t *s)
{
	int fd = accept4(s->control, NULL, NULL, SOCK_CLOEXEC);
	struct timeval patience = {.tv_usec = 200000};
	char line[64] = "";
	ssize_t n;
	FILE *f;

	if (fd < 0)
		return;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	n = recv(fd, line, sizeof(line) - 1, 0);
	line[n > 0 ? n : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	f = fdopen(fd, "w");
	if (f == NULL) {
		(void)close(fd);
		return;
	}
	if (strcmp(line, "stats") == 0) {
		write_stats(f, &s->device, s->since, &s->o, s->late_ns, s->replies);
	} else if (strcmp(line, "reset") == 0) {
		memset(&s->device.count, 0, sizeof(s->device.count));
		s->since = disk_now();
		s->late_ns = 0;
		s->replies = 0;
		(void)fputs("{\"ok\":true}\n", f);
	} else if (strcmp(line, "hurry") == 0) {
		hurry();
		(void)fputs("{\"ok\":true}\n", f);
	} else if (strcmp(line, "cut") == 0) {
		cut(s);
		(void)fputs("{\"ok\":true}\n", f);
	} else if (strcmp(line, "stop") == 0) {
		s->stop = true;
		(void)fputs("{\"ok\":true}\n", f);
	} else {
		(void)fputs("{\"error\":\"stats, reset, hurry, cut and stop are the commands\"}\n", f);
	}
	(void)fclose(f);
}

static void serve(server_t *s)
{
	struct epoll_event events[64];

	while (!s->stop) {
		int n;
		int64_t now;
		bool whole = true; /* no connection was closed: the events below still mean something */

		set_timer(s->timer, device_next(&s->device));
		n = epoll_wait(s->poll, events, 64, -1);
		if (n < 0 && errno != EINTR)
			fail(1, "epoll: %s", strerror(errno));
		now = disk_now();
		/* First what the disk did in the meantime: it didn't know yet of what has just come. */
		device_advance(&s->device, now);
		deliver(s);
		for (int i = 0; i < n && whole; i++) {
			void *what = events[i].data.ptr;

			if (what == &s->timer) {
				uint64_t times;

				(void)!read(s->timer, &times, sizeof(times));
			} else if (what == &s->signals) {
				s->stop = true;
			} else if (what == &s->o) { /* stdin: whoever started us is gone */
				char c;

				if (read(STDIN_FILENO, &c, 1) <= 0)
					s->stop = true;
			} else if (what == &s->listener) {
				accept_conn(s);
				whole = false;
			} else if (what == &s->control) {
				serve_control(s);
				whole = false;
			} else if (what == &s->guests) {
				accept_guest(s);
			} else if (what == &s->guest || what == &s->kicks) {
				whole = serve_guest(s, what == &s->guest, now);
			} else {
				conn_t *c = what;
				conn_state_t state = CONN_OPEN;

				if (events[i].events & EPOLLOUT) {
					conn_write(c);
					conn_sent(c, disk_now(), (int64_t)(LAG_MAX_NS / dilation));
				}
				if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
					state = conn_read(c, &s->device, now);
				/* Gone without taking what he had asked for. */
				if (state == CONN_OPEN && (events[i].events & (EPOLLHUP | EPOLLERR)) &&
				    !conn_wants_in(c))
					state = CONN_LOST;
				whole = after(s, c, state);
			}
		}
		/* What came may be done by now. Events that were left out come again. */
		device_advance(&s->device, disk_now());
		deliver(s);
		if (s->guest != NULL && vhost_broken(s->guest))
			cut(s);
	}
}

int main(int argc, char **argv)
{
	static server_t s;
	sigset_t set;
	int fd, error;

	options_parse(&s.o, argc - 1, argv + 1);
	if (s.o.socket == NULL || s.o.control == NULL || s.o.guest == NULL || s.o.file == NULL)
		fail(2, "needed are socket=, control=, guest= and file=");
	dilation = s.o.dilation;
	began = real_now();
	fd = open_medium(s.o.file, (uint64_t)s.o.size);
	device_init(&s.device, &s.o.profile, (uint64_t)s.o.size, (uint64_t)s.o.cache, fd, s.o.lazy != 0.0);

	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	/* Wake when due, before whoever only computes; both are allowed to fail. */
	(void)prctl(PR_SET_TIMERSLACK, 1ul);
	/* Buffers are kept: fresh pages for each request cost more than copying it. */
	(void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
	(void)setpriority(PRIO_PROCESS, 0, -15);

	s.poll = epoll_create1(EPOLL_CLOEXEC);
	s.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	s.signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (s.poll < 0 || s.timer < 0 || s.signals < 0)
		fail(1, "no timer: %s", strerror(errno));
	s.listener = listen_at(s.o.socket);
	s.control = listen_at(s.o.control);
	s.guests = listen_at(s.o.guest);
	s.kicks = -1;
	watch(&s, s.timer, &s.timer, EPOLLIN, EPOLL_CTL_ADD);
	watch(&s, s.signals, &s.signals, EPOLLIN, EPOLL_CTL_ADD);
	watch(&s, s.listener, &s.listener, EPOLLIN, EPOLL_CTL_ADD);
	watch(&s, s.control, &s.control, EPOLLIN, EPOLL_CTL_ADD);
	watch(&s, s.guests, &s.guests, EPOLLIN, EPOLL_CTL_ADD);
	watch(&s, STDIN_FILENO, &s.o, EPOLLIN, EPOLL_CTL_ADD);
	(void)puts("ready");
	(void)fflush(stdout);

	serve(&s);

	while (s.conns != NULL)
		drop_conn(&s, s.conns);
	drop_guest(&s);
	error = device_settle(&s.device);
	device_cut(&s.device);
	(void)unlink(s.o.socket);
	(void)unlink(s.o.control);
	(void)unlink(s.o.guest);
	if (error != 0)
		fail(1, "%s: what was cached can't be written: %s", s.o.file, strerror(error));
	return 0;
}
