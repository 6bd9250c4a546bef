/* What ztune's BPF loaders share: speaking to ztune in lines of JSON, and the BPF object that is within the program. */
#ifndef ZTUNE_LOADER_H
#define ZTUNE_LOADER_H

#include <bpf/libbpf.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

extern struct loader {
	struct bpf_object *object;
	struct bpf_link *links[16];
	int nlinks;
	int status;              /* the descriptor that say() writes to */
	bool uring;              /* io_uring requests can be seen */
	char last_message[1024]; /* of libbpf */
} l;

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* Says what is wrong and ends. code: no-btf, permission, no-pid, no-command, no-space, output, kernel. */
__attribute__((format(printf, 2, 3), noreturn)) void fail(const char *code, const char *format, ...);

/* In this order; what is in .rodata can be set until load_object. */
void open_object(void);
void choose_calls(bool names); /* names: also those that make, rename and remove files, or change their size */
void load_object(unsigned int ring_bytes); /* 0: as the object says */
void attach(void);

/* A global variable of the BPF programs; those of .bss are shared with them once loaded. */
void *global(const char *section_name, const char *name, size_t *size);

int map_fd(const char *name);

/* Runs a task iterator to its end. */
void run_iterator(struct bpf_link *link);
struct bpf_link *iterator(const char *program);

/* Marks the tasks of the processes in the map, and their descendants. */
void mark_tasks(void);

unsigned long long count_drops(void);
unsigned long long now(clockid_t clock); /* ns */

#endif
