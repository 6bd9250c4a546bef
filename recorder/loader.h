/* What ztune's BPF loaders share: speaking to ztune in lines of JSON, and the BPF object that is within the program. */
#ifndef ZTUNE_LOADER_H
#define ZTUNE_LOADER_H

#include <bpf/libbpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

extern struct loader {
	struct bpf_object *object;
	struct bpf_link *links[128];
	struct bpf_program *linked[128]; /* of each link its program */
	int nlinks;
	bool functions; /* the programs hang on the functions of the system calls, not on sys_enter and sys_exit */
	int status;     /* the descriptor that say() writes to */
	bool uring;     /* io_uring requests can be seen */
	char last_message[1024]; /* of libbpf */
} l;

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Says what is wrong and ends. code: no-btf, permission, no-pid, no-command, no-space, output, kernel. */
__attribute__((format(printf, 2, 3), noreturn)) void fail(const char *code, const char *format, ...);

/* Loads the programs and hangs them on the kernel. set says what is in .rodata, and how .bss begins.
 * names: also the calls that make, rename and remove files, or change their size. functions: hang on the functions of
 * the calls where the kernel allows it, so that no other call pays; without, on sys_enter and sys_exit, which see each.
 */
void load(bool names, bool functions, unsigned int ring_bytes /* 0: as the object says */, void (*set)(void));

/* Takes a program off the kernel, or hangs it on again. */
void hang(const char *program, bool on);

/* For ztune: what they hang on. */
const char *attached(void);

/* A global variable of the BPF programs; those of .bss are shared with them once loaded. */
void *global(const char *section_name, const char *name, size_t *size);

int map_fd(const char *name);

/* Before the object is loaded: how many entries a map may have. */
void set_entries(const char *map, unsigned int entries);

/* Runs a task iterator to its end. */
void run_iterator(struct bpf_link *link);
struct bpf_link *iterator(const char *program);

/* Marks the tasks of the processes in the map, and their descendants. */
void mark_tasks(void);

unsigned long long count_drops(void);

/* What the programs took, if BPF statistics are on; and how often one did not run because another task, that was
 * interrupted within it, waited for the same processor.
 */
struct ran {
	unsigned long long ns, missed;
};

struct ran programs_ran(void);
unsigned long long now(clockid_t clock); /* ns */

#endif
