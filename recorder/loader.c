#define _GNU_SOURCE
#include "loader.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "records.h"

extern const unsigned char bpf_object_start[], bpf_object_end[];

struct loader l = {.status = STDOUT_FILENO};

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

static bool moves_data(enum zt_kind kind)
{
	switch (kind) {
	case ZT_K_READ ... ZT_K_SYNC_RANGE:
	case ZT_K_COPY ... ZT_K_MSYNC:
	case ZT_K_IO_SUBMIT:
	case ZT_K_IO_GETEVENTS:
		return true;
	default:
		return false;
	}
}

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

void say(const char *format, ...)
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
	while (write(l.status, line, length) < 0 && errno == EINTR)
		;
}

void fail(const char *code, const char *format, ...)
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
	if (level == LIBBPF_WARN && !l.last_message[0]) {
		vsnprintf(l.last_message, sizeof(l.last_message), format, args);
		l.last_message[strcspn(l.last_message, "\n")] = 0;
	}
	return 0;
}

/* ---- the BPF object ---- */

void *global(const char *section_name, const char *name, size_t *size)
{
	const struct btf *btf = bpf_object__btf(l.object);
	int id = btf__find_by_name_kind(btf, section_name, BTF_KIND_DATASEC);
	const struct btf_type *section;
	const struct btf_var_secinfo *var;
	struct bpf_map *map;
	size_t bytes;
	char *memory = NULL;

	bpf_object__for_each_map(map, l.object)
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
	bpf_object__for_each_program(program, l.object)
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
	l.uring = submit && types;
}

void choose_calls(bool names)
{
	unsigned char *kinds;
	size_t size;

	kinds = global(".rodata", "kinds", &size);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (calls[i].number >= 0 && calls[i].number < (int)size && (names || moves_data(calls[i].kind)))
			kinds[calls[i].number] = calls[i].kind;
}

void open_object(void)
{
	struct btf *kernel;

	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	libbpf_set_print(keep_message);
	kernel = btf__load_vmlinux_btf();
	if (!kernel)
		fail("no-btf",
		    "the kernel has no type information (/sys/kernel/btf/vmlinux): it was built without "
		    "CONFIG_DEBUG_INFO_BTF");
	l.object = bpf_object__open_mem(bpf_object_start, bpf_object_end - bpf_object_start, NULL);
	if (!l.object)
		fail("kernel", "can't read the BPF object: %s", l.last_message);
	choose_programs(kernel);
	btf__free(kernel);
}

/* libbpf maps variables onto those of the programs only for generated skeletons; others get a copy. */
static void share_variables(void)
{
	struct bpf_map *map;

	bpf_object__for_each_map(map, l.object)
	{
		const char *dot = strrchr(bpf_map__name(map), '.');
		size_t size;
		void *memory;

		if (!dot || strcmp(dot, ".bss"))
			continue;
		memory = (void *)bpf_map__initial_value(map, &size);
		if (mmap(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, bpf_map__fd(map), 0) ==
		    MAP_FAILED)
			fail("kernel", "can't map the variables of the eBPF programs: %s", strerror(errno));
	}
}

void load_object(unsigned int ring_bytes)
{
	struct bpf_map *ring = bpf_object__find_map_by_name(l.object, "ring");

	if (ring_bytes && bpf_map__set_max_entries(ring, ring_bytes))
		fail("output", "the ring can't have %u bytes", ring_bytes);
	/* Kernels before 5.11 count BPF memory against this limit. */
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
	if (bpf_object__load(l.object)) {
		if (errno == EPERM) /* EACCES comes from the verifier */
			fail("permission",
			    "the kernel does not allow it to load eBPF programs: run as root, or give it "
			    "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE");
		fail("kernel", "the kernel refuses the eBPF programs: %s", l.last_message);
	}
	share_variables();
}

int map_fd(const char *name)
{
	return bpf_object__find_map_fd_by_name(l.object, name);
}

void attach(void)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, l.object)
	{
		struct bpf_link *link;

		if (!bpf_program__autoload(program) || !strncmp(bpf_program__section_name(program), "iter/", 5))
			continue;
		link = bpf_program__attach(program);
		if (!link)
			fail(errno == EPERM ? "permission" : "kernel",
			    "can't hang the eBPF program %s on the kernel: %s", bpf_program__name(program),
			    strerror(errno));
		l.links[l.nlinks++] = link;
	}
}

struct bpf_link *iterator(const char *program)
{
	struct bpf_link *link = bpf_program__attach_iter(bpf_object__find_program_by_name(l.object, program), NULL);

	if (!link)
		fail("kernel", "can't go through the tasks: %s", strerror(errno));
	return link;
}

void run_iterator(struct bpf_link *link)
{
	int fd = bpf_iter_create(bpf_link__fd(link));
	char buffer[64];

	if (fd < 0)
		fail("kernel", "can't go through the tasks: %s", strerror(errno));
	while (read(fd, buffer, sizeof(buffer)) > 0)
		;
	close(fd);
}

void mark_tasks(void)
{
	struct bpf_link *link = iterator("mark");
	volatile unsigned int *found;
	unsigned int before;
	size_t size;

	found = global(".bss", "found", &size);
	do {
		before = *found;
		run_iterator(link);
	} while (*found != before);
	bpf_link__destroy(link);
}

unsigned long long count_drops(void)
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

unsigned long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}
