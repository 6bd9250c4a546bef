/* ztune-observer: loads the BPF programs that add up file I/O in the kernel, and hands over the sums when asked.
 *
 *   ztune-observer check
 *   ztune-observer run --status FD --control FD [--sample N] [--calls | --everyone [--below]]
 *
 * --calls: all system calls of the processes are timed, not those on files alone.
 * --sample N: calls are counted for an Nth of the time; the totals are of these pieces of time, "watched_ns" of
 * "window_ns".
 *
 * Is told by lines on the control descriptor what to observe:
 *   exclude PID         none of this process's calls
 *   pid PID             this process and all that descends from it (also later, while observing)
 *   device DEV          --everyone: files on this device (the kernel's dev_t) ...
 *   root DEV INO        --below: ... that are below this folder
 *   record DEV BYTES    what calls on this device's files are aligned to; a power of two
 *   go                  begin
 *   read                hand over what was seen so far
 *   end                 stop observing, hand it over, end
 * and answers by lines of JSON on the status descriptor. {"state":"totals", ...} is followed by as many bytes as its
 * "files" (struct zt_file, cut to its path; new ones only), "totals" (struct zt_key, 4 bytes of nothing, struct
 * zt_totals), "spent" (4 bytes of number, 4 of nothing, struct zt_spent) and "pids" (4 bytes each) say, in that order.
 * Ends when the control descriptor closes. Nothing is pinned: all of it goes with the process.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loader.h"
#include "records.h"
#include "totals.h"

#define LOOK_EVERY_MS 100
#define RING_BYTES (16 << 20) /* 1,900 files at first sight within LOOK_EVERY_MS */
#define BATCH 1024
/* The kernel times the programs only now and then, as timing them costs as much as a small part of them. */
#define STATS_EVERY_NS 10000000000ull
#define STATS_FOR_NS 500000000ull
/* Calls that begin in a piece of time are counted, if they end in it or in as much time after it. */
#define PIECE_NS 200000000ull

struct bytes {
	char *data;
	size_t used, room;
};

static struct {
	struct ring_buffer *ring;
	struct bytes files;
	struct bpf_link *tally;
	bool everyone, below, calls;
	int stats;
	unsigned long long stats_since, stats_ns;
	unsigned long long ran_before, ran_ns; /* of the programs; others may have them timed as well, at other times */
} o = {.stats = -1};

/* Where calls are counted for one piece of time in so many. */
static struct {
	unsigned int of;
	enum { OFF, ON, LINGERING } phase; /* lingering: calls that began may end */
	unsigned long long next;           /* when the phase ends */
	unsigned long long before, *since; /* ns of pieces that have ended; when the last one began */
	bool *paused;
	unsigned int *renames;
} s = {.of = 1};

static void *append(struct bytes *to, const void *data, size_t size)
{
	if (to->used + size > to->room) {
		to->room = 2 * (to->used + size);
		to->data = realloc(to->data, to->room);
		if (!to->data)
			fail("output", "no memory");
	}
	if (data)
		memcpy(to->data + to->used, data, size);
	to->used += size;
	return to->data + to->used - size;
}

static int take_file(void *context, void *data, size_t size)
{
	const struct zt_file *file = data;

	(void)context;
	if (size >= ZT_FILE_HEADER && file->path_bytes <= ZT_PATH_BYTES)
		append(&o.files, data, ZT_FILE_HEADER + file->path_bytes);
	return 0;
}

/* ---- handing over ---- */

struct entry {
	struct zt_key key;
	unsigned int pad;
	struct zt_totals value;
};

static void read_totals_slowly(struct bytes *to)
{
	int fd = map_fd("totals");
	struct zt_key key, *before = NULL, last;
	struct entry entry = {};

	while (!bpf_map_get_next_key(fd, before, &key)) {
		if (!bpf_map_lookup_elem(fd, &key, &entry.value)) {
			entry.key = key;
			append(to, &entry, sizeof(entry));
		}
		last = key;
		before = &last;
	}
}

static void read_totals(struct bytes *to)
{
	static struct zt_key keys[BATCH];
	static struct zt_totals values[BATCH];
	unsigned int place, *in = NULL, count;
	int fd = map_fd("totals"), error;

	do {
		count = BATCH;
		error = bpf_map_lookup_batch(fd, in, &place, keys, values, &count, NULL);
		if (error && errno != ENOENT) { /* before Linux 5.6, or many keys fell into one bucket */
			to->used = 0;
			read_totals_slowly(to);
			return;
		}
		for (unsigned int i = 0; i < count; i++) {
			struct entry *entry = append(to, NULL, sizeof(*entry));

			entry->key = keys[i];
			entry->pad = 0;
			entry->value = values[i];
		}
		in = &place;
	} while (!error);
}

static void read_spent(struct bytes *to)
{
	int fd = map_fd("spent"), cpus = libbpf_num_possible_cpus();
	struct zt_spent *each = calloc(cpus, sizeof(*each));

	if (!each)
		fail("output", "no memory");
	for (unsigned int number = 0; number < ZT_SYSCALLS; number++) {
		struct {
			unsigned int number, pad;
			struct zt_spent sum;
		} call = {.number = number};
		unsigned long long calls = 0;

		if (bpf_map_lookup_elem(fd, &number, each))
			continue;
		for (int cpu = 0; cpu < cpus; cpu++) {
			call.sum.ns += each[cpu].ns;
			call.sum.errors += each[cpu].errors;
			for (int i = 0; i < ZT_LATENCIES; i++) {
				call.sum.latency[i] += each[cpu].latency[i];
				calls += each[cpu].latency[i];
			}
		}
		if (calls)
			append(to, &call, sizeof(call));
	}
	free(each);
}

static void read_pids(struct bytes *to)
{
	int fd = map_fd("processes");
	unsigned int pid, last, *before = NULL;

	while (!bpf_map_get_next_key(fd, before, &pid)) {
		append(to, &pid, sizeof(pid));
		last = pid;
		before = &last;
	}
}

static void stats_on(void)
{
	o.stats = bpf_enable_stats(BPF_STATS_RUN_TIME); /* fails before Linux 5.8 */
	o.stats_since = now(CLOCK_MONOTONIC);
	o.ran_before = programs_ran().ns;
}

static void stats_off(void)
{
	if (o.stats < 0)
		return;
	o.stats_ns += now(CLOCK_MONOTONIC) - o.stats_since;
	o.ran_ns += programs_ran().ns - o.ran_before;
	close(o.stats);
	o.stats = -1;
}

static void give(struct bytes *part)
{
	size_t done = 0;

	while (done < part->used) {
		ssize_t n = write(l.status, part->data + done, part->used - done);

		if (n >= 0)
			done += n;
		else if (errno != EINTR)
			exit(1); /* no one listens any more */
	}
	part->used = 0;
}

/* ---- pieces of time ---- */

static void sample(unsigned long long t)
{
	const unsigned long long between = (s.of - 2) * PIECE_NS; /* one piece is counted, and one lingered */

	if (t < s.next)
		return;
	switch (s.phase) {
	case OFF:
		++*s.renames;          /* of those between nothing was seen */
		*s.since = UINT64_MAX; /* what the programs see while they are hung on is of no piece */
		hang("leave", true);
		hang("enter", true);
		*s.since = now(CLOCK_MONOTONIC);
		*s.paused = false;
		s.next = *s.since + PIECE_NS;
		break;
	case ON:
		*s.paused = true;
		hang("enter", false);
		t = now(CLOCK_MONOTONIC);
		s.before += t - *s.since;
		s.next = t + PIECE_NS;
		break;
	case LINGERING:
		hang("leave", false);
		/* By chance half to one and a half of that time, as a database may do something each second. Not in
		 * ns: random() has 31 bits. */
		s.next = now(CLOCK_MONOTONIC) + between / 2 + random() % (between / 1000 + 1) * 1000;
		break;
	}
	s.phase = (s.phase + 1) % 3;
}

static unsigned long long watched(unsigned long long begun, unsigned long long t)
{
	return s.of == 1 ? t - begun : s.before + (s.phase == ON ? t - *s.since : 0);
}

static void hand_over(unsigned long long begun, bool last)
{
	static struct bytes totals, spent, pids;
	unsigned long long ended = now(CLOCK_MONOTONIC), timed = o.stats_ns, ran = o.ran_ns;
	struct zt_sums *alive, *gone, sum;
	unsigned long long *seen;
	struct rusage own;
	size_t size;

	alive = global(".bss", "alive", &size);
	gone = global(".bss", "ended", &size);
	seen = global(".bss", "processes_seen", &size);
	memset(alive, 0, sizeof(*alive));
	run_iterator(o.tally);
	sum = *gone;
	ring_buffer__consume(o.ring);
	read_totals(&totals);
	/* Totals of a file that was seen first just now need its record. */
	ring_buffer__consume(o.ring);
	read_spent(&spent);
	read_pids(&pids);
	if (o.stats >= 0) {
		timed += now(CLOCK_MONOTONIC) - o.stats_since;
		ran += programs_ran().ns - o.ran_before;
	}
	getrusage(RUSAGE_SELF, &own);
	say("{\"state\":\"totals\",\"last\":%s,\"window_ns\":%llu,\"watched_ns\":%llu,\"files\":%zu,\"totals\":%zu,\"spent\":%zu,\"pids\":%zu,"
	    "\"dropped\":%llu,\"processes\":%llu,\"ran_ns\":%llu,\"voluntary\":%llu,\"involuntary\":%llu,"
	    "\"tasks_alive\":%llu,\"own_us\":%llu,\"programs_ns\":%llu,\"timed_ns\":%llu}",
	    last ? "true" : "false", ended - begun, watched(begun, ended), o.files.used, totals.used, spent.used,
	    pids.used, count_drops(), *seen, alive->ran + sum.ran, alive->voluntary + sum.voluntary,
	    alive->involuntary + sum.involuntary, alive->tasks,
	    1000000ull * (own.ru_utime.tv_sec + own.ru_stime.tv_sec) + own.ru_utime.tv_usec + own.ru_stime.tv_usec, ran,
	    timed);
	give(&o.files);
	give(&totals);
	give(&spent);
	give(&pids);
}

/* ---- being told ---- */

static void put(const char *map, const void *key, const void *value)
{
	if (bpf_map_update_elem(map_fd(map), key, value, BPF_ANY))
		fail("kernel", "can't enter what to observe into the map %s: %s", map, strerror(errno));
}

/* What a line asks for, beyond what it enters into maps: 'g'o, 'r'ead, 'e'nd, 'm'ark new processes, or 0. */
static char obey(const char *line)
{
	unsigned long long a, b;
	unsigned int id;
	unsigned char one = 1;

	if (!strcmp(line, "go"))
		return 'g';
	if (!strcmp(line, "read"))
		return 'r';
	if (!strcmp(line, "end"))
		return 'e';
	if (sscanf(line, "exclude %u", &id) == 1) {
		put("excluded", &id, &one);
	} else if (sscanf(line, "pid %u", &id) == 1) {
		put("processes", &id, &one);
		return 'm';
	} else if (sscanf(line, "device %u", &id) == 1) {
		put("devices", &id, &one);
	} else if (sscanf(line, "root %llu %llu", &a, &b) == 2) {
		struct {
			unsigned long long ino, dev;
		} root = {.ino = b, .dev = a};

		put("roots", &root, &one);
	} else if (sscanf(line, "record %u %llu", &id, &b) == 2 && b && !(b & (b - 1))) {
		put("records", &id, &b);
	} else {
		fail("output", "it was told what it does not know: %s", line);
	}
	return 0;
}

static void follow(int control)
{
	unsigned long long begun = 0, timing = 0;
	bool *stopped = global(".bss", "stopped", &(size_t){0});
	char text[4096];
	size_t used = 0;

	for (;;) {
		struct pollfd fds[1] = {{.fd = control, .events = POLLIN}};
		int wait = LOOK_EVERY_MS;
		bool mark = false;
		unsigned long long t;
		char *line, *end;
		ssize_t n;

		t = now(CLOCK_MONOTONIC);
		if (begun && s.of > 1 && s.next < t + wait * 1000000ull)
			wait = s.next > t ? (s.next - t) / 1000000 + 1 : 0;
		if (poll(fds, 1, wait) > 0) {
			n = read(control, text + used, sizeof(text) - 1 - used);
			if (n <= 0)
				return; /* ztune is gone */
			used += n;
			text[used] = 0;
			for (line = text; (end = strchr(line, '\n')); line = end + 1) {
				*end = 0;
				switch (obey(line)) {
				case 'g':
					*stopped = false;
					begun = now(CLOCK_MONOTONIC);
					mark_tasks();
					mark = false;
					timing = s.next = begun;
					stats_on();
					say("{\"state\":\"observing\",\"uring\":%s,\"timed\":%s,\"attached\":\"%s\"}",
					    l.uring ? "true" : "false", o.stats >= 0 ? "true" : "false", attached());
					break;
				case 'm':
					mark = begun;
					break;
				case 'r':
					hand_over(begun, false);
					break;
				case 'e':
					*stopped = true;
					stats_off();
					hand_over(begun, true);
					return;
				}
			}
			used -= line - text;
			memmove(text, line, used);
			if (mark)
				mark_tasks();
		}
		if (!begun)
			continue;
		ring_buffer__consume(o.ring);
		t = now(CLOCK_MONOTONIC);
		if (s.of > 1)
			sample(t); /* and the programs are timed all the while */
		else if (o.stats >= 0 && t - o.stats_since >= STATS_FOR_NS) {
			stats_off();
		} else if (o.stats < 0 && t - timing >= STATS_EVERY_NS) {
			timing = t;
			stats_on();
		}
	}
}

static void set_variables(void)
{
	size_t size;

	*(bool *)global(".rodata", "everyone", &size) = o.everyone;
	*(bool *)global(".rodata", "below", &size) = o.below;
	*(bool *)global(".rodata", "every_call", &size) = o.calls;
	*(bool *)global(".bss", "stopped", &size) = true; /* until told to go */
}

static int run(int argc, char **argv)
{
	static const struct option options[] = {
		{"status", required_argument, NULL, 's'},
		{"control", required_argument, NULL, 'c'},
		{"everyone", no_argument, NULL, 'e'},
		{"below", no_argument, NULL, 'b'},
		{"calls", no_argument, NULL, 'a'},
		{"sample", required_argument, NULL, 'n'},
		{0},
	};
	int control = -1, option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			l.status = atoi(optarg);
			break;
		case 'c':
			control = atoi(optarg);
			break;
		case 'e':
			o.everyone = true;
			break;
		case 'b':
			o.below = true;
			break;
		case 'a':
			o.calls = true;
			break;
		case 'n':
			s.of = atoi(optarg);
			break;
		default:
			return 2;
		}
	}
	if (control < 0 || optind != argc || s.of < 1)
		return 2;
	signal(SIGINT, SIG_IGN); /* ztune tells us when to end */
	signal(SIGPIPE, SIG_IGN);
	/* Two programs are hung on and taken off in milliseconds; those at functions are dozens. */
	load(false, !o.calls && s.of == 1, RING_BYTES, set_variables);
	if (s.of > 1) {
		s.paused = global(".bss", "paused", &(size_t){0});
		s.since = global(".bss", "since", &(size_t){0});
		s.renames = global(".bss", "renames", &(size_t){0});
		*s.paused = true;
		hang("enter", false);
		hang("leave", false);
		srandom(now(CLOCK_MONOTONIC));
	}
	o.ring = ring_buffer__new(map_fd("ring"), take_file, NULL, NULL);
	if (!o.ring)
		fail("kernel", "can't map the ring buffer: %s", strerror(errno));
	o.tally = iterator("tally");
	put("excluded", &(unsigned int){getpid()}, &(unsigned char){1});
	follow(control);
	exit(0); /* the links go with the process */
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "check")) {
		o.everyone = true; /* all that it may need */
		load(false, true, RING_BYTES, set_variables);
		say("{\"state\":\"ok\",\"programs\":%d,\"uring\":%s,\"attached\":\"%s\"}", l.nlinks,
		    l.uring ? "true" : "false", attached());
		exit(0);
	}
	if (argc > 2 && !strcmp(argv[1], "run")) {
		int code = run(argc - 1, argv + 1);

		if (code != 2)
			return code;
	}
	fprintf(stderr, "ztune-observer is started by `ztune observe`; by hand: ztune-observer check\n");
	return 2;
}
