/* Sees the file I/O of chosen tasks and hands one record per call to the loader.
 *
 * The programs hang on tracepoints alone (BTF-typed: sys_enter, sys_exit, fork, exit, switch, waking, io_uring), because these are
 * allowed wherever eBPF tracing is: some kernels have no kprobes, and some forbid trampolines (fentry). A task that is
 * not recorded pays for a pointer test: "is recorded" is the existence of the task's local storage.
 *
 * Only regular files are of interest. A file is an inode: (device, inode number, generation) gets a small number at
 * first sight, before the call that shows it takes effect, so that its size at the start is known. Calls on names
 * (rename, unlink, ...) are handed on with the names; the reader finds the file from what it saw before.
 */
#define EVERYONE false
#define PAUSED paused
#define SINCE 0
#define KEEP_SIZES false
#define ENDED(state) bpf_ktime_get_ns()
#include <stdbool.h>

bool paused = false; /* between windows: calls on names alone, so that it stays known which file is which */
#include "calls.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline enum claim claim(struct inode *inode, struct dentry *dentry, u32 dev)
{
	return CLAIM_OWN;
}

/* ---- a sample: one address region in so many of the large files, and all of the rest ---- */

const volatile u32 sample_of = 1; /* one region in so many is recorded; 1: all */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, u32);
	__type(value, struct zt_tally);
} tallies SEC(".maps");

/* Files that are no logs by their role, as ztune said. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, u32);
	__type(value, u8);
} samplable SEC(".maps");

/* As trace/regions.py has them, and says why. */
#define SMALL (8ll << 20)
#define FEW 64
#define LOG_WRITES 16
#define REGIONS_LOOKED_AT 8

static __always_inline bool accept(u32 id, const struct file_key *key, struct dentry *dentry)
{
	struct zt_tally new = {.ino = key->ino};

	return sample_of <= 1 || !bpf_map_update_elem(&tallies, &id, &new, BPF_ANY);
}

/* The calls that rename are recorded. */
static __always_inline void met_again(u32 id, struct file *file)
{
}

/* Of so many that follow each other one is, by the finaliser of splitmix64. */
static __always_inline bool is_taken(u64 ino, u64 region)
{
	u64 x = (ino << 32 ^ ino >> 32) + region / sample_of;

	x *= 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	x ^= x >> 31;
	return (x >> 32) % sample_of == region % sample_of;
}

static __always_inline bool any_taken(u64 ino, s64 offset, s64 size)
{
	u64 first = offset >> ZT_REGION_SHIFT, last = size > 0 ? (offset + size - 1) >> ZT_REGION_SHIFT : first;

	if (last - first >= REGIONS_LOOKED_AT)
		return true;
	for (int i = 0; i < REGIONS_LOOKED_AT; i++)
		if (first + i <= last && is_taken(ino, first + i))
			return true;
	return false;
}

static __always_inline bool like_a_log(const struct zt_tally *t)
{
	return t->writes >= LOG_WRITES && t->in_order * 10 >= (t->writes - 1) * 9 && t->syncs * 8 >= t->writes;
}

static __noinline bool counted_out(const struct done *d)
{
	struct zt_tally *t;
	u32 file;

	if (!d)
		return false;
	file = d->file;
	t = bpf_map_lookup_elem(&tallies, &file);
	if (!t)
		return false;
	switch (d->op) {
	case ZT_READ:
		__sync_fetch_and_add(&t->reads, 1);
		__sync_fetch_and_add(&t->read_bytes, d->size);
		break;
	case ZT_WRITE:
	case ZT_COPY:
		__sync_fetch_and_add(&t->writes, 1);
		__sync_fetch_and_add(&t->write_bytes, d->size);
		if (d->offset <= t->end && d->offset + d->size >= t->begin)
			__sync_fetch_and_add(&t->in_order, 1);
		t->begin = d->offset;
		t->end = d->offset + d->size;
		if (d->flags & (ZT_F_SYNC | ZT_F_DSYNC))
			__sync_fetch_and_add(&t->syncs, 1);
		break;
	case ZT_SYNC_RANGE:
	case ZT_READ_AHEAD:
		break;
	case ZT_FSYNC:
	case ZT_FDATASYNC:
	case ZT_MSYNC:
		__sync_fetch_and_add(&t->syncs, 1);
		return false;
	default:
		return false;
	}
	if (d->op != ZT_SYNC_RANGE && d->op != ZT_READ_AHEAD && d->offset + d->size > t->size)
		t->size = d->offset + d->size;
	if (!t->sampled && t->size > SMALL && t->reads + t->writes >= FEW && !like_a_log(t) &&
	    bpf_map_lookup_elem(&samplable, &file))
		t->sampled = 1;
	return t->sampled && !any_taken(t->ino, d->offset, d->size);
}

static __always_inline void joined(struct state *state, struct task_struct *task)
{
}

static __always_inline void left(struct state *state, struct task_struct *task)
{
}

static __always_inline enum order in_order(u32 file, u8 op, s64 offset, s64 size)
{
	return ORDER_UNKNOWN;
}

/* ---- who waits for whose commit ---- */

unsigned int window = 0; /* grows as a window begins: what was before counts for nothing in it */

/* Kernels have the count in one of these places on x86, and by task elsewhere. */
extern const int __preempt_count __ksym __weak;
extern const struct pcpu_hot pcpu_hot __ksym __weak;

#define IN_INTERRUPT 0xff0100 /* the kernel's preempt_count: at a soft interrupt, a hard one or an NMI */

static __always_inline bool in_interrupt(struct task_struct *task)
{
	int count = 0;

	if (bpf_core_field_exists(task->thread_info.preempt.count))
		count = BPF_CORE_READ(task, thread_info.preempt.count);
	else if (&__preempt_count)
		count = *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (bpf_core_field_exists(struct pcpu_hot, preempt_count) && &pcpu_hot)
		count = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	return count & IN_INTERRUPT;
}

static __always_inline struct state *in_window(struct task_struct *task)
{
	struct state *state = may_be_followed(task->tgid) ? bpf_task_storage_get(&tasks, task, 0, 0) : 0;

	if (state && state->window != window) {
		state->window = window;
		state->slept = state->synced = state->queued = state->after = state->waited = 0;
	}
	return state;
}

SEC("tp_btf/sched_switch") int BPF_PROG(switching, bool preempted, struct task_struct *task)
{
	struct state *state = stopped || paused || !task->__state ? 0 : in_window(task);

	if (state)
		state->slept = bpf_ktime_get_ns();
	return 0;
}

/* A task wakes another. One that has synced, and not been asked for something else since, gives others what they wait for:
 * the log, or a row that it had changed. So does one that it woke for that, if it commits by others' syncs, or is of its
 * process: a database may have a thread that tells of commits. One that never syncs is a client: it asks for something.
 * So does an interrupt, which brings a packet or ends a time; whoever it interrupts.
 */
static __always_inline int woke(struct task_struct *task, bool interrupted)
{
	struct task_struct *me = bpf_get_current_task_btf();
	struct state *woken = stopped || paused ? 0 : in_window(task), *waker;
	u64 now, slept, synced;

	if (!woken || woken->kind != ZT_K_NONE)
		return 0;
	slept = woken->slept;
	woken->slept = 0;
	waker = interrupted ? 0 : in_window(me);
	synced = waker ? waker->synced : 0;
	if (!synced && waker && waker->syncs)
		return 0;
	if (woken->queued)
		woken->after = woken->queued;
	woken->queued = synced;
	woken->synced = woken->syncs || task->tgid == me->tgid ? synced : 0;
	if (synced && slept) {
		now = bpf_ktime_get_ns();
		woken->waited += now > slept ? now - slept : 0;
	}
	return 0;
}

SEC("tp_btf/sched_waking") int BPF_PROG(waking, struct task_struct *task)
{
	return woke(task, in_interrupt(bpf_get_current_task_btf()));
}

/* For kernels that do not say where their preempt_count is: what an interrupt wakes is woken by whom it interrupted. */
SEC("tp_btf/sched_waking") int BPF_PROG(waking_by_any, struct task_struct *task)
{
	return woke(task, false);
}

#define U32_MAX 0xffffffffull

/* Whom its task had waited for before the call, which may be a sync that others wait for.
 *
 * Who waits for a log writes it at once when woken: that comes about by itself in a replay. So it counts as a wait for
 * another's commit only if the task did something else between.
 */
static __always_inline void note_waits(struct state *state, const struct done *d, struct zt_event *event)
{
	bool syncs =
	    d->op == ZT_FSYNC || d->op == ZT_FDATASYNC || (d->op == ZT_WRITE && (d->flags & (ZT_F_SYNC | ZT_F_DSYNC)));
	u64 after = state->queued && !syncs && d->op != ZT_WRITE ? state->queued : state->after;

	if (state->window == window) {
		event->since_sync = after && d->t - after <= U32_MAX ? d->t - after : 0;
		event->waited = state->waited < U32_MAX ? state->waited : U32_MAX;
	}
	state->window = window;
	state->slept = state->queued = state->after = state->waited = 0;
	state->synced = syncs ? d->end : 0;
	state->syncs |= syncs;
}

static __always_inline void emit_as(struct state *state, const struct done *d)
{
	u64 who = bpf_get_current_pid_tgid();
	struct zt_event *event;

	if (sample_of > 1 && counted_out(d))
		return;
	event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);
	if (!event) {
		dropped();
		return;
	}
	event->t = d->t;
	event->dur = d->end - d->t;
	event->offset = d->offset;
	event->size = d->size;
	event->file = d->file;
	event->file2 = d->file2;
	event->pid = d->via == ZT_SYSCALL ? who >> 32 : d->pid;
	event->tid = d->via == ZT_SYSCALL ? (u32)who : d->tid;
	event->flags = d->flags;
	event->op = d->op;
	event->via = d->via;
	event->since_sync = event->waited = 0;
	if (state)
		note_waits(state, d, event);
	event->pad = 0;
	/* The loader looks often enough; waking it for each event would cost more than the event. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Sends a path that a call named, and the folder it begins at. */
static __noinline int send_path(struct state *state, int dirfd, unsigned long user_path, u32 op_part, s64 size)
{
	struct zt_file *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	struct dentry *folder = 0;
	u64 who;
	long length;

	if (!record) {
		dropped();
		return 0;
	}
	who = bpf_get_current_pid_tgid();
	record->t = state->t;
	record->dur = bpf_ktime_get_ns() - state->t;
	record->ino = 0;
	record->size = size;
	record->id = 0;
	record->dev = 0;
	record->gen = 0;
	record->links = 0;
	record->pid = who >> 32;
	record->tid = (u32)who;
	record->kind = ZT_CALL;
	record->op = op_part & 0xff;
	record->part = op_part >> 8;
	record->truncated = 0;
	record->path_bytes = 0;
	record->pad = 0;
	length = bpf_probe_read_user_str(record->user_path, ZT_PATH_BYTES, (void *)user_path);
	if (length <= 0 || length > ZT_PATH_BYTES) {
		bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
		dropped();
		return 0;
	}
	record->user_bytes = length;
	if (record->user_path[0] != '/') {
		if (dirfd == AT_FDCWD) {
			struct task_struct *task = bpf_get_current_task_btf();

			folder = BPF_CORE_READ(task, fs, pwd.dentry);
		} else {
			struct file *file = descriptor(dirfd);

			if (file)
				folder = BPF_CORE_READ(file, f_path.dentry);
		}
		if (folder) {
			record->dev = BPF_CORE_READ(folder, d_sb, s_dev);
			walk(record, folder);
		}
	}
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline void opened(struct state *state, u32 fd)
{
	struct file *file = descriptor(fd);
	bool created;
	u32 flags, id;

	if (!file)
		return;
	flags = BPF_CORE_READ(file, f_flags);
	created = (BPF_CORE_READ(file, f_mode) & FMODE_CREATED) || (flags & O_TMPFILE_BIT);
	if (!created && !(state->flags & O_TRUNC))
		return;
	id = number_of(file, created);
	if (id)
		emit(state, created ? ZT_CREATE : ZT_TRUNCATE, open_flags(flags), id, 0, -1, 0);
}

static __always_inline u64 openat2_flags(unsigned long user_how)
{
	u64 flags = 0;

	bpf_probe_read_user(&flags, sizeof(flags), (void *)user_how);
	return flags;
}

/* What belongs to no window when it is asked for between them. Requests of a window may be reaped after it. */
static __always_inline bool only_in_windows(u32 kind)
{
	return kind <= ZT_K_FALLOCATE || (kind >= ZT_K_COPY && kind != ZT_K_MMAP && kind != ZT_K_IO_GETEVENTS);
}

static __always_inline void begin(struct state *state, struct pt_regs *regs, u32 kind, u32 number)
{
	state->kind = ZT_K_NONE;
	if (IS_COMPAT(regs) || (paused && only_in_windows(kind)))
		return;
	enter_call(state, regs, kind);
	state->t = bpf_ktime_get_ns();
}

static __always_inline void leave_pair(struct state *state, u32 in, unsigned long in_offset, u32 out,
    unsigned long out_offset, long result)
{
	if (state->file && state->file2)
		emit(state, ZT_COPY, state->flags, state->file, state->file2, began(out, out_offset, result), result);
	else if (state->file)
		emit(state, ZT_WRITE, state->flags, state->file, 0, began(out, out_offset, result), result);
	else
		emit(state, ZT_READ, state->flags, state->file2, 0, began(in, in_offset, result), result);
}

/* What is asked to be read ahead, as far as the file goes; a length of 0 means up to its end. */
static __always_inline void read_ahead(struct state *state, u32 fd, s64 offset, u64 length)
{
	struct file *file = descriptor(fd);
	s64 there = file && offset >= 0 ? BPF_CORE_READ(file, f_inode, i_size) - offset : 0;

	if (there > ZT_MOST_AHEAD)
		there = ZT_MOST_AHEAD;
	if (there > 0)
		emit(state, ZT_READ_AHEAD, state->flags, state->file, 0, offset,
		    length > 0 && length < (u64)there ? (s64)length : there);
}

static __always_inline void finish(struct state *state, struct pt_regs *regs, u32 kind, long result)
{
	state->kind = ZT_K_NONE;
	if (kind == ZT_K_IO_SUBMIT) {
		leave_aio(kind, ARG1(regs), ARG2(regs), ARG3(regs), result);
		return;
	}
	if (result < 0 && result >= -4095)
		return;
	switch (kind) {
	case ZT_K_READ ... ZT_K_SYNC_RANGE:
		leave_io(state, regs, kind, result);
		break;
	case ZT_K_FALLOCATE:
		emit(state, ZT_FALLOCATE, state->flags | fallocate_flags(ARG2(regs)), state->file, 0, ARG3(regs),
		    ARG4(regs));
		break;
	case ZT_K_FTRUNCATE:
		emit(state, ZT_TRUNCATE, state->flags, state->file, 0, -1, ARG2(regs));
		break;
	case ZT_K_OPEN:
		state->flags = ARG2(regs);
		opened(state, result);
		break;
	case ZT_K_CREAT:
		state->flags = O_TRUNC;
		opened(state, result);
		break;
	case ZT_K_OPENAT:
		state->flags = ARG3(regs);
		opened(state, result);
		break;
	case ZT_K_OPENAT2:
		state->flags = openat2_flags(ARG3(regs));
		opened(state, result);
		break;
	case ZT_K_TRUNCATE:
		send_path(state, AT_FDCWD, ARG1(regs), ZT_TRUNCATE, ARG2(regs));
		break;
	case ZT_K_RENAME:
		send_path(state, AT_FDCWD, ARG1(regs), ZT_RENAME, 0);
		send_path(state, AT_FDCWD, ARG2(regs), ZT_RENAME | 1 << 8, 0);
		break;
	case ZT_K_RENAMEAT:
		send_path(state, ARG1(regs), ARG2(regs), ZT_RENAME, 0);
		send_path(state, ARG3(regs), ARG4(regs), ZT_RENAME | 1 << 8, 0);
		break;
	case ZT_K_RENAMEAT2:
		send_path(state, ARG1(regs), ARG2(regs), ZT_RENAME, ARG5(regs));
		send_path(state, ARG3(regs), ARG4(regs), ZT_RENAME | 1 << 8, ARG5(regs));
		break;
	case ZT_K_UNLINK:
		send_path(state, AT_FDCWD, ARG1(regs), ZT_UNLINK, 0);
		break;
	case ZT_K_UNLINKAT:
		if (!(ARG3(regs) & AT_REMOVEDIR))
			send_path(state, ARG1(regs), ARG2(regs), ZT_UNLINK, 0);
		break;
	case ZT_K_LINK:
		send_path(state, AT_FDCWD, ARG1(regs), ZT_LINK, 0);
		send_path(state, AT_FDCWD, ARG2(regs), ZT_LINK | 1 << 8, 0);
		break;
	case ZT_K_LINKAT:
		send_path(state, ARG1(regs), ARG2(regs), ZT_LINK, 0);
		send_path(state, ARG3(regs), ARG4(regs), ZT_LINK | 1 << 8, 0);
		break;
	case ZT_K_COPY:
		leave_pair(state, ARG1(regs), ARG2(regs), ARG3(regs), ARG4(regs), result);
		break;
	case ZT_K_SENDFILE:
		leave_pair(state, ARG2(regs), ARG3(regs), ARG1(regs), 0, result);
		break;
	case ZT_K_MMAP:
		emit(state, ARG3(regs) & PROT_WRITE ? ZT_MMAP : ZT_MMAP_READ, state->flags, state->file, 0, ARG6(regs),
		    ARG2(regs));
		break;
	case ZT_K_MSYNC:
		emit(state, ZT_MSYNC, 0, state->file, 0, ARG1(regs) + state->offset, ARG2(regs));
		break;
	case ZT_K_SYNC:
		emit(state, ZT_SYNC, 0, 0, 0, -1, 0);
		break;
	case ZT_K_FADVISE:
		if (ARG4(regs) == POSIX_FADV_WILLNEED)
			read_ahead(state, ARG1(regs), ARG2(regs), ARG3(regs));
		break;
	case ZT_K_READAHEAD:
		read_ahead(state, ARG1(regs), ARG2(regs), ARG3(regs));
		break;
	case ZT_K_IO_GETEVENTS:
		leave_aio(kind, ARG1(regs), 0, ARG4(regs), result);
		break;
	}
}

ZT_DATA_CALLS(FUNCTION)
ZT_RENAME_CALLS(FUNCTION)
ZT_NAME_CALLS(FUNCTION)

SEC("tp_btf/sys_enter") int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	u32 kind = kind_of(number);
	struct state *state = kind == ZT_K_NONE ? 0 : followed();

	if (state)
		begin(state, regs, kind, number);
	return 0;
}

SEC("tp_btf/sys_exit") int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	struct state *state = kind_of(NUMBER(regs)) == ZT_K_NONE ? 0 : followed();

	if (state && state->kind != ZT_K_NONE)
		finish(state, regs, state->kind, result);
	return 0;
}
