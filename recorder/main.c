/* ztune-recorder: loads the BPF programs, follows processes, and writes their file I/O as raw records.
 *
 *   ztune-recorder check
 *   ztune-recorder record --out DIR --status FD --control FD [--pid N]... [--exclude N]... [--sample N]
 *                         [--max-bytes N] [-- COMMAND...]
 *
 * Writes DIR/events.raw (frames, records.h) and DIR/files.raw (struct zt_file, path cut to path_bytes); with --sample at
 * the end DIR/tallies.raw (u32 number of the file, struct zt_tally). Speaks to `ztune record` by lines of JSON on the
 * status descriptor. Is told by lines on the control descriptor:
 *
 *   pause           a window ends: from now on only calls on names are recorded
 *   resume          the next one begins
 *   sample N        file N is no log by its role: of a sample it may be sampled
 *   full            nothing more is recorded, as at --max-bytes: the disk is nearly full
 *
 * Ends when the control descriptor closes, when the command ended, or when all the processes named by --pid are gone.
 * Once both files have --max-bytes nothing more is recorded, and the command is waited for.
 */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "loader.h"
#include "records.h"

#define MAX_PIDS 64
#define LOOK_EVERY_MS 50 /* a ring of 64 MiB holds 900,000 events: no hurry */
#define OUT_BUFFER (5 << 18)
#define FLUSH_EVERY_MS 1000 /* so much is lost if we are killed */
#define FRAME_ROWS 16384    /* events that are packed together: 1 MiB, which OUT_BUFFER has room for */

struct out {
	const char *name;
	int fd;
	size_t used;
	char *buffer;
	unsigned long long written;
	int error; /* errno of the first failed write */
};

struct place {
	unsigned long long t;
	unsigned int row;
};

static struct {
	struct ring_buffer *ring;
	struct out events, files;
	unsigned long long nevents, nfiles;
	struct zt_event rows[FRAME_ROWS]; /* that were not written yet */
	struct place order[FRAME_ROWS];
	unsigned char members[FRAME_ROWS * sizeof(struct zt_event)];
	unsigned int nrows;
	unsigned int sample_of;
	bool *stopped, *paused;
	bool told_full;
	unsigned int *window;
} r = {.sample_of = 1, .events = {.name = "events.raw"}, .files = {.name = "files.raw"}};

/* ---- writing ---- */

static void out_flush(struct out *out)
{
	size_t done = 0;

	while (done < out->used && !out->error) {
		ssize_t n = write(out->fd, out->buffer + done, out->used - done);

		if (n >= 0) {
			done += n;
			out->written += n;
		} else if (errno != EINTR) {
			out->error = errno;
		}
	}
	out->used = 0;
}

static void out_add(struct out *out, const void *data, size_t size)
{
	if (out->used + size > OUT_BUFFER)
		out_flush(out);
	memcpy(out->buffer + out->used, data, size);
	out->used += size;
}

static void out_open(struct out *out, const char *folder)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", folder, out->name);
	out->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out->fd < 0)
		fail(errno == ENOSPC ? "no-space" : "output", "can't make %s: %s", path, strerror(errno));
	out->buffer = malloc(OUT_BUFFER);
	if (!out->buffer)
		fail("output", "no memory");
}

static void add_frame(enum zt_frame_kind kind, unsigned int rows, const void *data, size_t size)
{
	struct zt_frame frame = {.kind = kind, .rows = rows, .bytes = size, .magic = ZT_MAGIC};

	if (r.events.used + sizeof(frame) + size > OUT_BUFFER) {
		out_flush(&r.files); /* events speak of files, so these are never behind them */
		out_flush(&r.events);
	}
	out_add(&r.events, &frame, sizeof(frame));
	out_add(&r.events, data, size);
}

static int by_time(const void *one, const void *other)
{
	const struct place *a = one, *b = other;

	if (a->t != b->t)
		return a->t < b->t ? -1 : 1;
	return a->row < b->row ? -1 : 1;
}

/* Packs the events that wait: sorted, as differences of their times, the n-th bytes of all one after the other, where
 * most are alike; and deflated.
 */
static void pack(void)
{
	static unsigned char deflated[OUT_BUFFER - sizeof(struct zt_frame)];
	unsigned long long before = 0, t;
	uLongf size = sizeof(deflated);
	unsigned int n = r.nrows;

	if (!n)
		return;
	for (unsigned int i = 0; i < n; i++)
		r.order[i] = (struct place){r.rows[i].t, i};
	qsort(r.order, n, sizeof(r.order[0]), by_time);
	for (unsigned int i = 0; i < n; i++) {
		struct zt_event *event = &r.rows[r.order[i].row];
		const unsigned char *bytes = (const unsigned char *)event;

		t = event->t;
		event->t -= before;
		before = t;
		for (size_t k = 0; k < sizeof(*event); k++)
			r.members[k * n + i] = bytes[k];
	}
	if (compress2(deflated, &size, r.members, n * sizeof(struct zt_event), 1) != Z_OK)
		fail("output", "no memory");
	add_frame(ZT_EVENTS, n, deflated, size);
	r.nrows = 0;
}

static void flush(void)
{
	pack();
	out_flush(&r.files);
	out_flush(&r.events);
}

static void add_edge(enum zt_frame_kind kind, unsigned long long monotonic, unsigned long long unix_ns)
{
	unsigned long long when[2] = {monotonic, unix_ns};

	pack();
	add_frame(kind, 0, when, sizeof(when));
}

static int take_record(void *context, void *data, size_t size)
{
	(void)context;
	if (size == sizeof(struct zt_event)) {
		r.rows[r.nrows++] = *(const struct zt_event *)data;
		r.nevents++;
		if (r.nrows == FRAME_ROWS)
			pack();
	} else if (size >= ZT_FILE_HEADER) {
		const struct zt_file *file = data;

		if (file->path_bytes <= ZT_PATH_BYTES && file->user_bytes <= ZT_PATH_BYTES) {
			out_add(&r.files, data, ZT_FILE_HEADER + file->path_bytes);
			out_add(&r.files, file->user_path, file->user_bytes);
			r.nfiles++;
		}
	}
	return 0;
}

/* ---- the command ---- */

/* Starts the command, waiting for a byte before it becomes the program; *go lets it. */
static pid_t spawn(char **command, int *go, int *failed)
{
	int barrier[2], report[2];
	pid_t pid;

	if (pipe2(barrier, O_CLOEXEC) || pipe2(report, O_CLOEXEC))
		fail("output", "can't make a pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		fail("output", "can't start a process: %s", strerror(errno));
	if (!pid) {
		sigset_t none;
		char byte;
		int error;

		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGQUIT, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		prctl(PR_SET_PDEATHSIG, 0);
		close(barrier[1]);
		if (read(barrier[0], &byte, 1) != 1)
			_exit(127); /* the recorder failed */
		execvp(command[0], command);
		error = errno;
		if (write(report[1], &error, sizeof(error)) < 0)
			_exit(126);
		_exit(127);
	}
	close(barrier[0]);
	close(report[1]);
	*go = barrier[1];
	*failed = report[0];
	return pid;
}

static void release(const char *name, int go, int failed)
{
	int error = 0;

	if (write(go, "g", 1) != 1)
		fail("no-command", "the command ended before it started");
	close(go);
	if (read(failed, &error, sizeof(error)) == sizeof(error))
		fail("no-command", "can't run %s: %s", name, strerror(error));
	close(failed);
}

/* ---- recording ---- */

static void pause_or_go_on(bool pause)
{
	unsigned long long monotonic = now(CLOCK_MONOTONIC), unix_ns = now(CLOCK_REALTIME);

	if (*r.stopped || *r.paused == pause)
		return;
	if (!pause)
		++*r.window;
	*r.paused = pause;
	ring_buffer__consume(r.ring);
	add_edge(pause ? ZT_END : ZT_BEGIN, monotonic, unix_ns);
	flush();
	say("{\"state\":\"%s\"}", pause ? "paused" : "resumed");
}

static void obey(const char *line)
{
	unsigned int file;
	unsigned char one = 1;

	if (!strcmp(line, "pause") || !strcmp(line, "resume"))
		pause_or_go_on(*line == 'p');
	else if (!strcmp(line, "full"))
		r.told_full = true;
	else if (sscanf(line, "sample %u", &file) == 1)
		bpf_map_update_elem(map_fd("samplable"), &file, &one, BPF_ANY);
}

/* Returns whether we are to go on. */
static bool listen_to(int control)
{
	static char text[4096];
	static size_t used;
	ssize_t n = read(control, text + used, sizeof(text) - 1 - used);
	char *line = text, *end;

	if (n <= 0)
		return n < 0 && errno == EINTR;
	used += n;
	text[used] = 0;
	for (; (end = strchr(line, '\n')); line = end + 1) {
		*end = 0;
		obey(line);
	}
	used = strlen(line);
	memmove(text, line, used);
	return used < sizeof(text) - 1;
}

/* What was done to each file, whether it was recorded or not. */
static void write_tallies(const char *folder)
{
	struct out out = {.name = "tallies.raw"};
	unsigned int key, *before = NULL;
	struct zt_tally tally;
	int fd = map_fd("tallies");

	out_open(&out, folder);
	while (!bpf_map_get_next_key(fd, before, &key)) {
		before = &key;
		if (!bpf_map_lookup_elem(fd, &key, &tally)) {
			out_add(&out, &key, sizeof(key));
			out_add(&out, &tally, sizeof(tally));
		}
	}
	out_flush(&out);
	close(out.fd);
	free(out.buffer);
	if (out.error)
		r.files.error = out.error;
}

static void set_variables(void)
{
	size_t size;

	*(unsigned int *)global(".rodata", "sample_of", &size) = r.sample_of ? r.sample_of : 1;
	/* A map takes 16 bytes for each entry that it may have; these are of samples alone. */
	if (r.sample_of <= 1) {
		set_entries("tallies", 1);
		set_entries("samplable", 1);
	}
}

static int record(int argc, char **argv)
{
	static const struct option options[] = {
		{"out", required_argument, NULL, 'o'},
		{"status", required_argument, NULL, 's'},
		{"control", required_argument, NULL, 'c'},
		{"pid", required_argument, NULL, 'p'},
		{"exclude", required_argument, NULL, 'x'},
		{"ring-bytes", required_argument, NULL, 'r'},
		{"sample", required_argument, NULL, 'n'},
		{"max-bytes", required_argument, NULL, 'm'},
		{0},
	};
	unsigned int pids[MAX_PIDS], excluded[8], npids = 0, nexcluded = 0, ring_bytes = 0, me = getpid();
	unsigned long long started_monotonic, started_unix, ended = 0, flushed = 0, max_bytes = 0;
	int control = -1, option, go = -1, failed = -1, status = 0;
	const char *folder = NULL, *why = "control";
	int pidfds[MAX_PIDS];
	unsigned char one = 1;
	pid_t child = 0;
	size_t size;
	bool full = false;

	while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		unsigned long number = optarg ? strtoul(optarg, NULL, 10) : 0;

		switch (option) {
		case 'o':
			folder = optarg;
			break;
		case 's':
			l.status = number;
			break;
		case 'c':
			control = number;
			break;
		case 'r':
			ring_bytes = number;
			break;
		case 'n':
			r.sample_of = number;
			break;
		case 'm':
			max_bytes = number;
			break;
		case 'p':
			if (npids == MAX_PIDS)
				fail("no-pid", "at most %d processes can be named", MAX_PIDS);
			pids[npids++] = number;
			break;
		case 'x':
			if (nexcluded < 8)
				excluded[nexcluded++] = number;
			break;
		default:
			return 2;
		}
	}
	if (!folder || control < 0)
		return 2;
	fcntl(l.status, F_SETFD, FD_CLOEXEC);
	fcntl(control, F_SETFD, FD_CLOEXEC);
	/* Ctrl-C is for the command; ztune tells us when to end. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);

	for (unsigned int i = 0; i < npids; i++) {
		pidfds[i] = syscall(SYS_pidfd_open, pids[i], 0);
		if (pidfds[i] < 0)
			fail("no-pid", "there is no process %u", pids[i]);
	}
	out_open(&r.events, folder);
	out_open(&r.files, folder);
	load(true, true, ring_bytes, set_variables);
	r.ring = ring_buffer__new(map_fd("ring"), take_record, NULL, NULL);
	if (!r.ring)
		fail("kernel", "can't map the ring buffer: %s", strerror(errno));
	r.stopped = global(".bss", "stopped", &size);
	r.paused = global(".bss", "paused", &size);
	r.window = global(".bss", "window", &size);

	if (optind < argc)
		child = spawn(argv + optind, &go, &failed);
	if (child)
		pids[npids++] = child;
	bpf_map_update_elem(map_fd("excluded"), &me, &one, BPF_ANY);
	for (unsigned int i = 0; i < nexcluded; i++)
		bpf_map_update_elem(map_fd("excluded"), &excluded[i], &one, BPF_ANY);
	for (unsigned int i = 0; i < npids; i++)
		bpf_map_update_elem(map_fd("processes"), &pids[i], &one, BPF_ANY);
	started_unix = now(CLOCK_REALTIME);
	started_monotonic = now(CLOCK_MONOTONIC);
	add_edge(ZT_BEGIN, started_monotonic, started_unix);
	mark_tasks();
	if (child) {
		release(argv[optind], go, failed);
		npids--;
	}
	say("{\"state\":\"recording\",\"monotonic\":%llu,\"unix\":%llu,\"child\":%d,\"uring\":%s,\"attached\":\"%s\"}",
	    started_monotonic, started_unix, child, l.uring ? "true" : "false", attached());

	for (;;) {
		struct pollfd fds[1] = {{.fd = control, .events = POLLIN}};
		unsigned int gone = 0;

		if (poll(fds, 1, LOOK_EVERY_MS) > 0 && !listen_to(control))
			break;
		ring_buffer__consume(r.ring);
		if (now(CLOCK_MONOTONIC) - flushed > FLUSH_EVERY_MS * 1000000ULL) {
			flush();
			flushed = now(CLOCK_MONOTONIC);
		}
		if (!full && (r.told_full || (max_bytes && r.events.written + r.files.written > max_bytes))) {
			full = true;
			ended = now(CLOCK_MONOTONIC);
			*r.stopped = true;
			if (!child) {
				why = "full";
				break;
			}
		}
		if (r.events.error || r.files.error) {
			if (!child)
				break;
			*r.stopped = true; /* what is recorded is no reason to end what somebody runs */
		}
		if (child && waitpid(child, &status, WNOHANG) == child) {
			why = "command";
			break;
		}
		for (unsigned int i = 0; i < npids; i++) {
			struct pollfd one_pid = {.fd = pidfds[i], .events = POLLIN};

			gone += poll(&one_pid, 1, 0) > 0;
		}
		if (npids && gone == npids) {
			why = "pids";
			break;
		}
	}
	if (!full)
		ended = now(CLOCK_MONOTONIC);
	*r.stopped = true;
	ring_buffer__consume(r.ring);
	if (!*r.paused)
		add_edge(ZT_END, ended, now(CLOCK_REALTIME));
	flush();
	if (r.sample_of > 1)
		write_tallies(folder);
	if (r.events.error || r.files.error) {
		int error = r.events.error ? r.events.error : r.files.error;

		fail(error == ENOSPC || error == EDQUOT ? "no-space" : "output",
		    "can't write what was recorded, after %llu events: %s", r.nevents, strerror(error));
	}
	say("{\"state\":\"done\",\"why\":\"%s\",\"events\":%llu,\"files\":%llu,\"dropped\":%llu,\"ended\":%llu,\"wait\":%d,\"full\":%s}",
	    why, r.nevents, r.nfiles, count_drops(), ended, status, full ? "true" : "false");
	exit(0); /* the links go with the process */
}

static int check(void)
{
	load(true, true, 0, set_variables);
	say("{\"state\":\"ok\",\"programs\":%d,\"uring\":%s,\"attached\":\"%s\"}", l.nlinks, l.uring ? "true" : "false",
	    attached());
	exit(0);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "check"))
		return check();
	if (argc > 2 && !strcmp(argv[1], "record")) {
		int code = record(argc - 1, argv + 1);

		if (code != 2)
			return code;
	}
	fprintf(stderr, "ztune-recorder is started by `ztune record`; by hand: ztune-recorder check\n");
	return 2;
}
