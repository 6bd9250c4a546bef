/* ztune-recorder: loads the BPF programs, follows processes, and writes their file I/O as raw records.
 *
 *   ztune-recorder check
 *   ztune-recorder record --out DIR --status FD --control FD [--pid N]... [--exclude N]... [-- COMMAND...]
 *
 * Writes DIR/events.raw (struct zt_event) and DIR/files.raw (struct zt_file, path cut to path_bytes). Speaks to
 * `ztune record` by lines of JSON on the status descriptor; ends when the control descriptor closes or says a byte,
 * when the command ended, or when all the processes named by --pid are gone.
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

#include "loader.h"
#include "records.h"

#define MAX_PIDS 64
#define LOOK_EVERY_MS 50 /* a ring of 64 MiB holds a million events: no hurry */
#define OUT_BUFFER (1 << 20)
#define FLUSH_EVERY_MS 1000 /* so much is lost if we are killed */

struct out {
	const char *name;
	int fd;
	size_t used;
	char *buffer;
	int error; /* errno of the first failed write */
};

static struct {
	struct ring_buffer *ring;
	struct out events, files;
	unsigned long long nevents, nfiles;
} r = {.events = {.name = "events.raw"}, .files = {.name = "files.raw"}};

/* ---- writing ---- */

static void out_flush(struct out *out)
{
	size_t done = 0;

	while (done < out->used && !out->error) {
		ssize_t n = write(out->fd, out->buffer + done, out->used - done);

		if (n >= 0)
			done += n;
		else if (errno != EINTR)
			out->error = errno;
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

static int take_record(void *context, void *data, size_t size)
{
	(void)context;
	if (size == sizeof(struct zt_event)) {
		if (r.events.used + size > OUT_BUFFER)
			out_flush(&r.files); /* events speak of files, so these are never behind them */
		out_add(&r.events, data, size);
		r.nevents++;
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

static int record(int argc, char **argv)
{
	static const struct option options[] = {
		{"out", required_argument, NULL, 'o'},
		{"status", required_argument, NULL, 's'},
		{"control", required_argument, NULL, 'c'},
		{"pid", required_argument, NULL, 'p'},
		{"exclude", required_argument, NULL, 'x'},
		{"ring-bytes", required_argument, NULL, 'r'},
		{0},
	};
	unsigned int pids[MAX_PIDS], excluded[8], npids = 0, nexcluded = 0, ring_bytes = 0, me = getpid();
	unsigned long long started_monotonic, started_unix, ended, flushed = 0;
	int control = -1, option, go = -1, failed = -1, status = 0;
	const char *folder = NULL, *why = "control";
	int pidfds[MAX_PIDS];
	unsigned char one = 1;
	pid_t child = 0;
	size_t size;
	bool *stopped;

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
	open_object();
	choose_calls(true);
	load_object(ring_bytes);
	r.ring = ring_buffer__new(map_fd("ring"), take_record, NULL, NULL);
	if (!r.ring)
		fail("kernel", "can't map the ring buffer: %s", strerror(errno));
	attach();
	stopped = global(".bss", "stopped", &size);

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
	mark_tasks();
	if (child) {
		release(argv[optind], go, failed);
		npids--;
	}
	say("{\"state\":\"recording\",\"monotonic\":%llu,\"unix\":%llu,\"child\":%d,\"uring\":%s}", started_monotonic,
	    started_unix, child, l.uring ? "true" : "false");

	for (;;) {
		struct pollfd fds[1] = {{.fd = control, .events = POLLIN}};
		unsigned int gone = 0;

		if (poll(fds, 1, LOOK_EVERY_MS) > 0)
			break;
		ring_buffer__consume(r.ring);
		if (now(CLOCK_MONOTONIC) - flushed > FLUSH_EVERY_MS * 1000000ULL) {
			out_flush(&r.files);
			out_flush(&r.events);
			flushed = now(CLOCK_MONOTONIC);
		}
		if (r.events.error || r.files.error)
			break;
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
	ended = now(CLOCK_MONOTONIC);
	*stopped = true;
	ring_buffer__consume(r.ring);
	out_flush(&r.events);
	out_flush(&r.files);
	if (r.events.error || r.files.error) {
		int error = r.events.error ? r.events.error : r.files.error;

		fail(error == ENOSPC || error == EDQUOT ? "no-space" : "output",
		    "can't write what was recorded, after %llu events: %s", r.nevents, strerror(error));
	}
	say("{\"state\":\"done\",\"why\":\"%s\",\"events\":%llu,\"files\":%llu,\"dropped\":%llu,\"ended\":%llu,\"wait\":%d}",
	    why, r.nevents, r.nfiles, count_drops(), ended, status);
	exit(0); /* the links go with the process */
}

static int check(void)
{
	open_object();
	choose_calls(true);
	load_object(0);
	attach();
	say("{\"state\":\"ok\",\"programs\":%d,\"uring\":%s}", l.nlinks, l.uring ? "true" : "false");
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
