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
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "records.h"

extern const unsigned char bpf_object_start[], bpf_object_end[];

struct loader l = {.status = STDOUT_FILENO};

/* Numbers on other architectures alone. */
#ifndef SYS_open
#define SYS_open -1
#define SYS_creat -1
#define SYS_rename -1
#define SYS_unlink -1
#define SYS_link -1
#endif
#ifndef SYS_renameat
#define SYS_renameat -1
#endif

#define SYS_sendfile64 SYS_sendfile /* the kernel's function has this name; that of the other is of 32-bit programs */

#define CALL(name, kind) {#name, SYS_##name, ZT_K_##kind},
static const struct call {
	const char *name;
	int number;
	enum zt_kind kind;
} calls[ZT_CALLS] = {ZT_DATA_CALLS(CALL) ZT_RENAME_CALLS(CALL) ZT_NAME_CALLS(CALL)}; /* by enum zt_call */
#define ONE(name, kind) +1
static const int fewest_calls = 0 ZT_DATA_CALLS(ONE) ZT_RENAME_CALLS(ONE);

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

/* What follows the prefix in the name of a program's section, or NULL where it has another one. */
static const char *after(const struct bpf_program *program, const char *prefix)
{
	const char *section = bpf_program__section_name(program);

	return strncmp(section, prefix, strlen(prefix)) ? NULL : section + strlen(prefix);
}

/* Leaves out what this kernel does not have: some lack io_uring, and one of its tracepoints was renamed. */
static void choose_uring(const struct btf *kernel)
{
	struct bpf_program *program;
	bool submit = false, types;

	types = btf__find_by_name_kind(kernel, "io_rw", BTF_KIND_STRUCT) > 0 &&
	    btf__find_by_name_kind(kernel, "io_sync", BTF_KIND_STRUCT) > 0 &&
	    btf__find_by_name_kind(kernel, "io_cqe", BTF_KIND_STRUCT) > 0;
	bpf_object__for_each_program(program, l.object)
	{
		const char *tracepoint = after(program, "tp_btf/io_uring_");
		char name[128];

		if (!tracepoint)
			continue;
		snprintf(name, sizeof(name), "btf_trace_io_uring_%s", tracepoint);
		if (!types || btf__find_by_name_kind(kernel, name, BTF_KIND_TYPEDEF) < 0)
			bpf_program__set_autoload(program, false);
		else if (!strncmp(tracepoint, "submit", 6))
			submit = true;
	}
	l.uring = submit && types;
}

static void choose_calls(bool names)
{
	int n = names ? ZT_CALLS : fewest_calls;
	unsigned char *kinds;
	unsigned short *numbers;
	size_t size;

	kinds = global(".rodata", "kinds", &size);
	numbers = global(".rodata", "numbers", &size);
	for (int i = 0; i < n; i++)
		if (calls[i].number >= 0) {
			kinds[calls[i].number] = calls[i].kind;
			numbers[i] = calls[i].number;
		}
}

/* One without arguments has no such function of its own on x86. */
#if defined(__x86_64__)
static const char *const functions[] = {"__x64_sys_%s", "__do_sys_%s"};
#else
static const char *const functions[] = {"__arm64_sys_%s"};
#endif

static bool choose_function(struct bpf_program *program, const struct btf *kernel, const char *call)
{
	char name[128];

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		snprintf(name, sizeof(name), functions[i], call);
		if (btf__find_by_name_kind(kernel, name, BTF_KIND_FUNC) > 0)
			return !bpf_program__set_attach_target(program, 0, name);
	}
	return false;
}

static bool has_call(const char *name)
{
	for (int i = 0; i < ZT_CALLS; i++)
		if (!strcmp(calls[i].name, name))
			return calls[i].number >= 0;
	return false;
}

/* Of the two ways to see system calls. Says whether there is a function for each call. */
static bool choose_programs(const struct btf *kernel, bool functions_too)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, l.object)
	{
		const char *call = after(program, "fentry/");

		if (!call)
			call = after(program, "fexit/");
		if (after(program, "tp_btf/sys_"))
			bpf_program__set_autoload(program, !functions_too);
		else if (call && (!functions_too || !has_call(call)))
			bpf_program__set_autoload(program, false);
		else if (call && !choose_function(program, kernel, call))
			return false;
	}
	return true;
}

#if defined(__x86_64__)
static bool has_symbol(const char *wanted)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	char line[1024], name[512];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = sscanf(line, "%*s %*s %511s", name) == 1 && !strcmp(name, wanted);
	if (file)
		fclose(file);
	return found;
}
#endif

/* One of the two programs that see who wakes whom. That a symbol has a type does not say that the kernel knows its address. */
static void choose_waking(void)
{
	struct bpf_program *exact = bpf_object__find_program_by_name(l.object, "waking"),
			   *rough = bpf_object__find_program_by_name(l.object, "waking_by_any");
	bool known = true;

	if (!exact || !rough)
		return;
#if defined(__x86_64__)
	known = has_symbol("__preempt_count") || has_symbol("pcpu_hot");
#endif
	bpf_program__set_autoload(exact, known);
	bpf_program__set_autoload(rough, !known);
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

static bool attach(void)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, l.object)
	{
		struct bpf_link *link;

		if (!bpf_program__autoload(program) || after(program, "iter/"))
			continue;
		link = bpf_program__attach(program);
		if (!link)
			return false;
		l.linked[l.nlinks] = program;
		l.links[l.nlinks++] = link;
	}
	return true;
}

void hang(const char *name, bool on)
{
	for (int i = 0; i < l.nlinks; i++) {
		if (strcmp(bpf_program__name(l.linked[i]), name) || on == !!l.links[i])
			continue;
		if (on) {
			l.links[i] = bpf_program__attach(l.linked[i]);
			if (!l.links[i])
				fail("kernel", "can't hang %s on the kernel again: %s", name, strerror(errno));
		} else {
			bpf_link__destroy(l.links[i]);
			l.links[i] = NULL;
		}
	}
}

void set_entries(const char *map, unsigned int entries)
{
	if (bpf_map__set_max_entries(bpf_object__find_map_by_name(l.object, map), entries))
		fail("output", "the map %s can't have %u entries", map, entries);
}

/* False, and errno: it could not be loaded, or not hung on the kernel. */
static bool try(const struct btf *kernel, bool names, bool functions_too, unsigned int ring_bytes, void (*set)(void))
{
	size_t size;
	int error;

	l.object = bpf_object__open_mem(bpf_object_start, bpf_object_end - bpf_object_start, NULL);
	if (!l.object)
		fail("kernel", "can't read the BPF object: %s", l.last_message);
	choose_uring(kernel);
	choose_calls(names);
	choose_waking();
	*(bool *)global(".rodata", "casts", &size) =
	    btf__find_by_name_kind(kernel, "bpf_rdonly_cast", BTF_KIND_FUNC) > 0;
	set();
	if (ring_bytes)
		set_entries("ring", ring_bytes);
	if (choose_programs(kernel, functions_too) && !bpf_object__load(l.object)) {
		share_variables();
		if (attach())
			return true;
	}
	error = errno;
	while (l.nlinks)
		bpf_link__destroy(l.links[--l.nlinks]);
	bpf_object__close(l.object);
	errno = error;
	return false;
}

/* Whether a task may be interrupted by another anywhere in the kernel, or that is not known. A program at a function then
 * misses what others call until the interrupted task goes on: more than a third of all calls were lost so. Tracepoints keep the
 * processor for themselves.
 */
static bool preempts_everywhere(void)
{
	FILE *file = fopen("/sys/kernel/debug/sched/preempt", "r");
	char modes[128] = "";
	struct utsname name;

	if (file) {
		if (!fgets(modes, sizeof(modes), file))
			modes[0] = 0;
		fclose(file);
	}
	uname(&name);
	if (modes[0] && !strstr(name.version, "PREEMPT_RT"))
		return strstr(modes, "(full)");
	return strstr(name.version, "PREEMPT");
}

void load(bool names, bool functions_too, unsigned int ring_bytes, void (*set)(void))
{
	struct btf *kernel;

	libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
	libbpf_set_print(keep_message);
	kernel = btf__load_vmlinux_btf();
	if (!kernel)
		fail("no-btf",
		    "the kernel has no type information (/sys/kernel/btf/vmlinux): it was built without "
		    "CONFIG_DEBUG_INFO_BTF");
	/* Kernels before 5.11 count BPF memory against this limit. */
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
	l.functions = functions_too && !getenv("ZTUNE_RECORDER_TRACEPOINTS") && !preempts_everywhere() &&
	    try(kernel, names, true, ring_bytes, set);
	l.last_message[0] = 0;
	if (!l.functions && !try(kernel, names, false, ring_bytes, set)) {
		if (errno == EPERM) /* EACCES comes from the verifier */
			fail("permission",
			    "the kernel does not allow it to load eBPF programs: run as root, or give it "
			    "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE");
		fail("kernel", "the kernel refuses the eBPF programs: %s",
		    l.last_message[0] ? l.last_message : strerror(errno));
	}
	btf__free(kernel);
}

const char *attached(void)
{
	return l.functions ? "functions" : "tracepoints";
}

int map_fd(const char *name)
{
	return bpf_object__find_map_fd_by_name(l.object, name);
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

struct ran programs_ran(void)
{
	struct bpf_program *program;
	struct ran sum = {};

	bpf_object__for_each_program(program, l.object)
	{
		struct bpf_prog_info info = {};
		unsigned int size = sizeof(info);
		int fd = bpf_program__fd(program);

		/* The iterators' time is within this process's own. */
		if (fd < 0 || after(program, "iter/") || bpf_obj_get_info_by_fd(fd, &info, &size))
			continue;
		sum.ns += info.run_time_ns;
		sum.missed += info.recursion_misses;
	}
	return sum;
}

unsigned long long count_drops(void)
{
	int cpus = libbpf_num_possible_cpus(), fd = map_fd("drops");
	unsigned long long values[cpus], sum = programs_ran().missed;
	unsigned int zero = 0;

	if (bpf_map_lookup_elem(fd, &zero, values))
		return sum;
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
