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
#include <bpf/btf.h>
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

#include "records.h"

#define MAX_PIDS 64
#define LOOK_EVERY_MS 50 /* a ring of 64 MiB holds a million events: no hurry */
#define OUT_BUFFER (1 << 20)

/* Which call is which kind; those that an architecture lacks are left out. */
static const struct {
	int number;
	enum zt_kind kind;
} calls[] = {
	{SYS_read, ZT_K_READ},
	{SYS_readv, ZT_K_READ},
	{SYS_write, ZT_K_WRITE},
	{SYS_writev, ZT_K_WRITE},
	{SYS_pread64, ZT_K_PREAD},
	{SYS_preadv, ZT_K_PREAD},
	{SYS_pwrite64, ZT_K_PWRITE},
	{SYS_pwritev, ZT_K_PWRITE},
	{SYS_preadv2, ZT_K_PREAD2},
	{SYS_pwritev2, ZT_K_PWRITE2},
	{SYS_fsync, ZT_K_FSYNC},
	{SYS_fdatasync, ZT_K_FDATASYNC},
	{SYS_sync_file_range, ZT_K_SYNC_RANGE},
	{SYS_fallocate, ZT_K_FALLOCATE},
	{SYS_ftruncate, ZT_K_FTRUNCATE},
	{SYS_truncate, ZT_K_TRUNCATE},
	{SYS_openat, ZT_K_OPENAT},
	{SYS_openat2, ZT_K_OPENAT2},
	{SYS_renameat2, ZT_K_RENAMEAT2},
	{SYS_unlinkat, ZT_K_UNLINKAT},
	{SYS_linkat, ZT_K_LINKAT},
	{SYS_copy_file_range, ZT_K_COPY},
	{SYS_splice, ZT_K_COPY},
	{SYS_sendfile, ZT_K_SENDFILE},
	{SYS_mmap, ZT_K_MMAP},
	{SYS_msync, ZT_K_MSYNC},
	{SYS_sync, ZT_K_SYNC},
	{SYS_syncfs, ZT_K_SYNC},
	{SYS_io_submit, ZT_K_IO_SUBMIT},
	{SYS_io_getevents, ZT_K_IO_GETEVENTS},
	{SYS_io_pgetevents, ZT_K_IO_GETEVENTS},
#ifdef SYS_renameat
	{SYS_renameat, ZT_K_RENAMEAT},
#endif
#ifdef SYS_open
	{SYS_open, ZT_K_OPEN},
	{SYS_creat, ZT_K_CREAT},
	{SYS_rename, ZT_K_RENAME},
	{SYS_unlink, ZT_K_UNLINK},
	{SYS_link, ZT_K_LINK},
#endif
};

extern const unsigned char bpf_object_start[], bpf_object_end[];

struct out {
	const char *name;
	int fd;
	size_t used;
	char *buffer;
	int error; /* errno of the first failed write */
};

static struct {
	struct bpf_object *object;
	struct bpf_link *links[16];
	int nlinks;
	struct ring_buffer *ring;
	struct out events, files;
	unsigned long long nevents, nfiles;
	int status;
	bool uring;
	char last_message[1024]; /* of libbpf */
} r = {.status = STDOUT_FILENO, .events = {.name = "events.raw"}, .files = {.name = "files.raw"}};

/* ---- speaking ---- */

static void escape(char *to, size_t room, const char *from)
{
	size_t used = 0;

	for (; *from && used + 2 < room; from++) {
		unsigned char c = *from;

		if (c == '"' || c == '\\')
			to[used++] = '\\';
		to[used++] = c < 0x20 || c >= 0x7f ? ' ' : c;
	}
	to[used] = 0;
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[4096];
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (length >= (int)sizeof(line) - 1)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	while (write(r.status, line, length) < 0 && errno == EINTR)
		;
}

/* Says what is wrong and ends. code: no-btf, permission, no-pid, no-command, no-space, output, kernel. */
__attribute__((format(printf, 2, 3), noreturn)) static void fail(const char *code, const char *format, ...)
{
	char text[1500], escaped[3000];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	escape(escaped, sizeof(escaped), text);
	say("{\"state\":\"error\",\"code\":\"%s\",\"message\":\"%s\"}", code, escaped);
	exit(1);
}

static int keep_message(enum libbpf_print_level level, const char *format, va_list args)
{
	if (getenv("ZTUNE_RECORDER_VERBOSE"))
		return vfprintf(stderr, format, args);
	if (level == LIBBPF_WARN && !r.last_message[0]) {
		vsnprintf(r.last_message, sizeof(r.last_message), format, args);
		r.last_message[strcspn(r.last_message, "\n")] = 0;
	}
	return 0;
}

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
		fail(errno == ENOSPC ? "no-space" : "output", "cannot make %s: %s", path, strerror(errno));
	out->buffer = malloc(OUT_BUFFER);
	if (!out->buffer)
		fail("output", "no memory");
}

static int take_record(void *context, void *data, size_t size)
{
	(void)context;
	if (size == sizeof(struct zt_event)) {
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

/* ---- the BPF object ---- */

/* A global variable of the BPF programs; those of .bss are shared with them once loaded. */
static void *global(const char *section_name, const char *name, size_t *size)
{
	const struct btf *btf = bpf_object__btf(r.object);
	int id = btf__find_by_name_kind(btf, section_name, BTF_KIND_DATASEC);
	const struct btf_type *section;
	const struct btf_var_secinfo *var;
	struct bpf_map *map;
	size_t bytes;
	char *memory = NULL;

	bpf_object__for_each_map(map, r.object)
	{
		const char *map_name = bpf_map__name(map), *dot = strrchr(map_name, '.');

		if (dot && !strcmp(dot, section_name))
			memory = (char *)bpf_map__initial_value(map, &bytes);
	}
	if (!memory || id < 0)
		fail("kernel", "the BPF object has no section %s", section_name);
	section = btf__type_by_id(btf, id);
	var = btf_var_secinfos(section);
	for (int i = 0; i < btf_vlen(section); i++, var++)
		if (!strcmp(btf__name_by_offset(btf, btf__type_by_id(btf, var->type)->name_off), name)) {
			*size = var->size;
			return memory + var->offset;
		}
	fail("kernel", "the BPF object has no variable %s", name);
}

/* The tracepoint that a program hangs on, or NULL for other kinds of program. */
static const char *tracepoint_of(const struct bpf_program *program)
{
	const char *section = bpf_program__section_name(program);

	return strncmp(section, "tp_btf/", 7) ? NULL : section + 7;
}

/* Leaves out what this kernel does not have: some lack io_uring, and one of its tracepoints was renamed. */
static void choose_programs(const struct btf *kernel)
{
	struct bpf_program *program;
	bool submit = false, types;

	types = btf__find_by_name_kind(kernel, "io_rw", BTF_KIND_STRUCT) > 0 &&
		btf__find_by_name_kind(kernel, "io_sync", BTF_KIND_STRUCT) > 0 &&
		btf__find_by_name_kind(kernel, "io_cqe", BTF_KIND_STRUCT) > 0;
	bpf_object__for_each_program(program, r.object)
	{
		const char *tracepoint = tracepoint_of(program);
		char name[128];

		if (!tracepoint || strncmp(tracepoint, "io_uring_", 9))
			continue;
		snprintf(name, sizeof(name), "btf_trace_%s", tracepoint);
		if (!types || btf__find_by_name_kind(kernel, name, BTF_KIND_TYPEDEF) < 0)
			bpf_program__set_autoload(program, false);
		else if (!strncmp(tracepoint, "io_uring_submit", 15))
			submit = true;
	}
	r.uring = submit && types;
}

static void choose_calls(void)
{
	unsigned char *kinds;
	size_t size;

	kinds = global(".rodata", "kinds", &size);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (calls[i].number >= 0 && calls[i].number < (int)size)
			kinds[calls[i].number] = calls[i].kind;
}

static void open_object(unsigned int ring_bytes)
{
	struct btf *kernel = btf__load_vmlinux_btf();
	struct bpf_map *ring;

	if (!kernel)
		fail("no-btf", "the kernel has no type information (/sys/kernel/btf/vmlinux): it was built without "
			       "CONFIG_DEBUG_INFO_BTF");
	r.object = bpf_object__open_mem(bpf_object_start, bpf_object_end - bpf_object_start, NULL);
	if (!r.object)
		fail("kernel", "cannot read the BPF object: %s", r.last_message);
	choose_programs(kernel);
	choose_calls();
	btf__free(kernel);
	ring = bpf_object__find_map_by_name(r.object, "ring");
	if (ring_bytes && bpf_map__set_max_entries(ring, ring_bytes))
		fail("output", "the ring cannot have %u bytes", ring_bytes);
	/* Kernels before 5.11 count BPF memory against this limit. */
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
	if (bpf_object__load(r.object)) {
		if (errno == EPERM) /* EACCES comes from the verifier */
			fail("permission", "the kernel does not allow it to load eBPF programs: run as root, or give it "
					   "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE");
		fail("kernel", "the kernel refuses the eBPF programs: %s", r.last_message);
	}
}

static int map_fd(const char *name)
{
	return bpf_object__find_map_fd_by_name(r.object, name);
}

static void attach(void)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, r.object)
	{
		struct bpf_link *link;

		if (!bpf_program__autoload(program) || !strncmp(bpf_program__section_name(program), "iter/", 5))
			continue;
		link = bpf_program__attach(program);
		if (!link)
			fail(errno == EPERM ? "permission" : "kernel", "cannot hang the eBPF program %s on the kernel: %s",
			     bpf_program__name(program), strerror(errno));
		r.links[r.nlinks++] = link;
	}
}

/* Marks the tasks of the processes in the map, and their descendants. */
static void mark_tasks(void)
{
	struct bpf_program *program = bpf_object__find_program_by_name(r.object, "mark");
	struct bpf_link *link = bpf_program__attach_iter(program, NULL);
	volatile unsigned int *found;
	unsigned int before;
	size_t size;
	char buffer[64];

	if (!link)
		fail("kernel", "cannot go through the tasks: %s", strerror(errno));
	found = global(".bss", "found", &size);
	do {
		int fd = bpf_iter_create(bpf_link__fd(link));

		before = *found;
		if (fd < 0)
			fail("kernel", "cannot go through the tasks: %s", strerror(errno));
		while (read(fd, buffer, sizeof(buffer)) > 0)
			;
		close(fd);
	} while (*found != before);
	bpf_link__destroy(link);
}

static unsigned long long count_drops(void)
{
	int cpus = libbpf_num_possible_cpus(), fd = map_fd("drops");
	unsigned long long values[cpus], sum = 0;
	unsigned int zero = 0;

	if (bpf_map_lookup_elem(fd, &zero, values))
		return 0;
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

/* ---- the command ---- */

/* Starts the command, waiting for a byte before it becomes the program; *go lets it. */
static pid_t spawn(char **command, int *go, int *failed)
{
	int barrier[2], report[2];
	pid_t pid;

	if (pipe2(barrier, O_CLOEXEC) || pipe2(report, O_CLOEXEC))
		fail("output", "cannot make a pipe: %s", strerror(errno));
	pid = fork();
	if (pid < 0)
		fail("output", "cannot start a process: %s", strerror(errno));
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
		fail("no-command", "cannot run %s: %s", name, strerror(error));
	close(failed);
}

/* ---- recording ---- */

static unsigned long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int record(int argc, char **argv)
{
	static const struct option options[] = {
		{"out", required_argument, NULL, 'o'},	   {"status", required_argument, NULL, 's'},
		{"control", required_argument, NULL, 'c'}, {"pid", required_argument, NULL, 'p'},
		{"exclude", required_argument, NULL, 'x'}, {"ring-bytes", required_argument, NULL, 'r'},
		{0},
	};
	unsigned int pids[MAX_PIDS], excluded[8], npids = 0, nexcluded = 0, ring_bytes = 0, me = getpid();
	unsigned long long started_monotonic, started_unix, ended;
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
			r.status = number;
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
	fcntl(r.status, F_SETFD, FD_CLOEXEC);
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
	open_object(ring_bytes);
	r.ring = ring_buffer__new(map_fd("ring"), take_record, NULL, NULL);
	if (!r.ring)
		fail("kernel", "cannot map the ring buffer: %s", strerror(errno));
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
	say("{\"state\":\"recording\",\"monotonic\":%llu,\"unix\":%llu,\"child\":%d,\"uring\":%s}",
	    started_monotonic, started_unix, child, r.uring ? "true" : "false");

	for (;;) {
		struct pollfd fds[1] = {{.fd = control, .events = POLLIN}};
		unsigned int gone = 0;

		if (poll(fds, 1, LOOK_EVERY_MS) > 0)
			break;
		ring_buffer__consume(r.ring);
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
		     "cannot write what was recorded, after %llu events: %s", r.nevents, strerror(error));
	}
	say("{\"state\":\"done\",\"why\":\"%s\",\"events\":%llu,\"files\":%llu,\"dropped\":%llu,\"ended\":%llu,\"wait\":%d}",
	    why, r.nevents, r.nfiles, count_drops(), ended, status);
	exit(0); /* the links go with the process */
}

static int check(void)
{
	open_object(0);
	attach();
	say("{\"state\":\"ok\",\"programs\":%d,\"uring\":%s}", r.nlinks, r.uring ? "true" : "false");
	exit(0);
}

int main(int argc, char **argv)
{
	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	libbpf_set_print(keep_message);
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
