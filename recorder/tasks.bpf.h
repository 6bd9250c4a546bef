/* Which tasks are followed: chosen processes, and all that descends from them. "Is followed" is the existence of the
 * task's local storage; a bit per process id spares all others from looking for it.
 *
 * Who includes this says whether all tasks are followed, and what is to be done when one is from now on, and when it
 * ends (both may do nothing):
 *   #define EVERYONE
 *   static void joined(struct state *state, struct task_struct *task);
 *   static void left(struct state *state, struct task_struct *task);
 */
#ifndef ZTUNE_TASKS_BPF_H
#define ZTUNE_TASKS_BPF_H

#include "files.bpf.h"

#define PF_IO_WORKER 0x10

struct state {
	u64 t;      /* start of the call under way */
	s64 offset; /* msync: what to add to an address */
	u32 kind;   /* enum zt_kind; ZT_K_NONE: nothing of interest under way */
	u32 file;
	u32 file2;
	u32 flags;
	u32 number; /* of the system call */
	/* The recorder's: what the task waited for since its last call. */
	u64 slept;  /* since when it is on no processor */
	u64 synced; /* when its last sync ended, or the one that it was woken by, until it is asked for something else */
	u64 queued; /* when the sync ended that it was woken by last */
	u64 after;  /* … if it was asked for something since, or woken by another */
	u64 waited; /* for such syncs, ns */
	u32 window; /* in which that was */
	bool syncs; /* it has synced something */
	/* The observer's. */
	u32 touched; /* a file of interest; 2: and has ended */
	u64 end;     /* of the call under way */
	s64 before;  /* the file's size before it */
	u64 ran;     /* ns on a processor, and switches, when it was followed first */
	u64 voluntary;
	u64 involuntary;
};

static __always_inline void joined(struct state *state, struct task_struct *task);
static __always_inline void left(struct state *state, struct task_struct *task);

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct state);
} tasks SEC(".maps");

/* Followed processes; for finding descendants at the start, and for io_uring's workers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u8);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u8);
} excluded SEC(".maps");

u32 found = 0; /* processes added by the task iterator */
bool stopped = false;
/* Process ids, folded, one of which is followed, or was: where not, there is no need to look for the task's storage,
 * which costs more than all else that every call on the host has to pay.
 */
#define FOLDED (1 << 16)
u64 maybe_followed[FOLDED / 64] = {};

static __always_inline void note_followed(u32 tgid)
{
	__sync_fetch_and_or(&maybe_followed[tgid % FOLDED / 64], 1ull << (tgid % 64));
}

static __always_inline bool may_be_followed(u32 tgid)
{
	return EVERYONE || (maybe_followed[tgid % FOLDED / 64] >> (tgid % 64) & 1);
}

/* The state of the current task, if it is followed. */
static __always_inline struct state *followed(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 tgid = task->tgid;
	struct state *state;

	if (!may_be_followed(tgid))
		return 0;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (state)
		return stopped ? 0 : state;
	if (stopped || !(EVERYONE || (task->flags & PF_IO_WORKER))) /* workers are made without sched_process_fork */
		return 0;
	if (EVERYONE ? !!bpf_map_lookup_elem(&excluded, &tgid) : !bpf_map_lookup_elem(&processes, &tgid))
		return 0;
	state = bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (state)
		joined(state, task);
	return state;
}

SEC("tp_btf/sched_process_fork") int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
	u32 tgid = child->tgid;
	struct state *state;
	u8 one = 1;

	if (EVERYONE || !bpf_task_storage_get(&tasks, parent, 0, 0))
		return 0;
	state = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (bpf_map_update_elem(&processes, &tgid, &one, BPF_ANY) || !state)
		dropped();
	note_followed(tgid);
	if (state)
		joined(state, child);
	return 0;
}

SEC("tp_btf/sched_process_exit") int BPF_PROG(exited, struct task_struct *task)
{
	struct state *state = bpf_task_storage_get(&tasks, task, 0, 0);
	u32 tgid = task->tgid;

	if (!state)
		return 0;
	left(state, task);
	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

/* Marks the tasks of the named processes and of their descendants. Run until it finds no more. */
SEC("iter/task") int mark(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct state *state;
	u32 tgid, parent;
	u8 one = 1;

	if (!task)
		return 0;
	tgid = task->tgid;
	if (bpf_map_lookup_elem(&excluded, &tgid))
		return 0;
	if (!bpf_map_lookup_elem(&processes, &tgid)) {
		parent = BPF_CORE_READ(task, real_parent, tgid);
		if (!bpf_map_lookup_elem(&processes, &parent))
			return 0;
		if (bpf_map_update_elem(&processes, &tgid, &one, BPF_ANY))
			return 0;
		__sync_fetch_and_add(&found, 1);
	}
	note_followed(tgid);
	if (!bpf_task_storage_get(&tasks, task, 0, 0)) {
		state = bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (state) {
			__sync_fetch_and_add(&found, 1);
			joined(state, task);
		} else {
			dropped();
		}
	}
	return 0;
}

#endif
