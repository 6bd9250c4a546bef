/* Adds up the file I/O of chosen tasks, or of all tasks on chosen files, in maps. No event leaves the kernel; of each
 * file there is one record at first sight, and one at the first call after it was renamed.
 *
 * What a call does to a file is told by the same code as the recorder's (calls.bpf.h).
 */
#include "kernel.h"

#include <bpf/bpf_helpers.h>

#include "totals.h"

/* Chosen are files, not processes: those on `devices` and, where `below` is set, below one of `roots`. */
const volatile bool everyone = false;
const volatile bool below = false;
/* All calls of chosen processes are timed, not those on files alone. */
const volatile bool every_call = false;

bool paused = false; /* between the pieces of time in which calls are counted */
u64 since = 0;       /* when the last one began: a call that began before it ends at a time that nobody saw */

#define EVERYONE everyone
#define PAUSED paused
#define SINCE since
#define KEEP_SIZES true
#define ENDED(state) ((state)->end)
#include "calls.bpf.h"

#define IO_URING_ENTER 426 /* on every architecture */
#define PAGE 4096
/* Of one file: two links that are written by turns would be told of at every call. */
#define MOST_NAMES 64

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct zt_key);
	__type(value, struct zt_totals);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ZT_SYSCALLS);
	__type(key, u32);
	__type(value, struct zt_spent);
} spent SEC(".maps");

struct traits {
	u64 next[2]; /* 1 + where the last read, and write, ended */
	u64 record;  /* bytes: what calls are aligned to */
	u64 dentry;  /* by which it was called last */
	u64 name;    /* what tells that it has another name than when it was last told of */
	u32 names;   /* how often it was told of */
	u32 renames; /* of the host when its name was looked at last */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ZT_FILES);
	__type(key, u32);
	__type(value, struct traits);
} traits SEC(".maps");

/* Device (the kernel's dev_t) -> record size, a power of two; others have PAGE. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u64);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u8);
} devices SEC(".maps");

struct root {
	u64 ino;
	u64 dev;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct root);
	__type(value, u8);
} roots SEC(".maps");

struct zt_sums alive = {}; /* of tasks that live, made by `tally` */
struct zt_sums ended = {};
u64 processes_seen = 0;
/* Calls that gave any file of the host another name. A file's own is looked at once after each, and where it is called by
 * another link, as to look at every call took a tenth of what observing it costs. Of renames by io_uring nothing is told.
 */
u32 renames = 0;

static const struct zt_totals nothing = {};

/* ---- which files ---- */

static __always_inline bool is_below(struct dentry *dentry, u32 dev)
{
	struct root key = {.dev = dev};

	for (int depth = 0; depth < ZT_PATH_DEPTH; depth++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);

		key.ino = BPF_CORE_READ(dentry, d_inode, i_ino);
		if (bpf_map_lookup_elem(&roots, &key))
			return true;
		if (parent == dentry || !parent)
			return false;
		dentry = parent;
	}
	return false;
}

static __always_inline enum claim claim(struct inode *inode, struct dentry *dentry, u32 dev)
{
	if (!everyone)
		return CLAIM_OWN;
	if (!bpf_map_lookup_elem(&devices, &dev))
		return CLAIM_NOT;
	return !below || is_below(dentry, dev) ? CLAIM_OWN : CLAIM_NEVER;
}

/* Its directory and the hash of its last name; that a directory above was renamed is not told. */
static __always_inline u64 name_of(struct dentry *dentry)
{
	return BPF_CORE_READ(dentry, d_name.hash_len) ^ (u64)BPF_CORE_READ(dentry, d_parent);
}

static __always_inline void met_again(u32 id, struct file *file)
{
	struct traits *known = bpf_map_lookup_elem(&traits, &id);
	struct dentry *dentry = FIELD(file, f_path.dentry);
	u32 now = renames;
	u64 name;

	if (!known || (known->renames == now && known->dentry == (u64)dentry) || known->names >= MOST_NAMES)
		return;
	known->renames = now;
	known->dentry = (u64)dentry;
	name = name_of(dentry);
	if (name == known->name)
		return;
	if (send_file(BPF_CORE_READ(file, f_inode), dentry, id, ZT_SEEN)) {
		known->renames = now - 1; /* at the next call */
		return;
	}
	known->name = name;
	known->names++;
}

static __always_inline bool accept(u32 id, const struct file_key *key, struct dentry *dentry)
{
	u32 dev = key->dev;
	struct traits *file = bpf_map_lookup_elem(&traits, &id);
	u64 *record = bpf_map_lookup_elem(&records, &dev);

	if (!file)
		return false;
	file->record = record ? *record : PAGE;
	file->renames = renames;
	file->dentry = (u64)dentry;
	file->name = name_of(dentry);
	return true;
}

/* ---- which tasks ---- */

static __always_inline void count_from_now(struct state *state, struct task_struct *task)
{
	state->touched = 1;
	state->ran = task->se.sum_exec_runtime;
	state->voluntary = task->nvcsw;
	state->involuntary = task->nivcsw;
}

static __always_inline void joined(struct state *state, struct task_struct *task)
{
	if (everyone)
		return;
	count_from_now(state, task);
	if (task->pid == task->tgid)
		__sync_fetch_and_add(&processes_seen, 1);
}

/* Where all tasks are followed, those count that came to a chosen file, from then on. */
static __always_inline void touch(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct state *state = bpf_task_storage_get(&tasks, task, 0, 0);
	u32 tgid;
	u8 one = 1;

	if (!state || state->touched)
		return;
	count_from_now(state, task);
	tgid = task->tgid;
	if (!bpf_map_update_elem(&processes, &tgid, &one, BPF_NOEXIST))
		__sync_fetch_and_add(&processes_seen, 1);
}

static __always_inline void left(struct state *state, struct task_struct *task)
{
	if (state->touched != 1)
		return;
	state->touched = 2;
	__sync_fetch_and_add(&ended.ran, task->se.sum_exec_runtime - state->ran);
	__sync_fetch_and_add(&ended.voluntary, task->nvcsw - state->voluntary);
	__sync_fetch_and_add(&ended.involuntary, task->nivcsw - state->involuntary);
	__sync_fetch_and_add(&ended.tasks, 1);
}

/* Run when asked what the tasks have used; the loader clears `alive` before. */
SEC("iter/task") int tally(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct state *state;

	if (!task)
		return 0;
	state = bpf_task_storage_get(&tasks, task, 0, 0);
	if (!state || state->touched != 1)
		return 0;
	__sync_fetch_and_add(&alive.ran, task->se.sum_exec_runtime - state->ran);
	__sync_fetch_and_add(&alive.voluntary, task->nvcsw - state->voluntary);
	__sync_fetch_and_add(&alive.involuntary, task->nivcsw - state->involuntary);
	__sync_fetch_and_add(&alive.tasks, 1);
	return 0;
}

/* ---- adding up; atomic, as a program may be preempted by another on its processor ---- */

static __always_inline u32 bucket(u64 value, u32 buckets)
{
	u32 i = 0;

	if (value >> 32) {
		i += 32;
		value >>= 32;
	}
	if (value >> 16) {
		i += 16;
		value >>= 16;
	}
	if (value >> 8) {
		i += 8;
		value >>= 8;
	}
	if (value >> 4) {
		i += 4;
		value >>= 4;
	}
	if (value >> 2) {
		i += 2;
		value >>= 2;
	}
	i += (value >> 1) + (value ? 1 : 0);
	return i < buckets ? i : buckets - 1;
}

static __always_inline struct zt_totals *totals_of(struct zt_key *key)
{
	struct zt_totals *sum = bpf_map_lookup_elem(&totals, key);

	if (sum)
		return sum;
	bpf_map_update_elem(&totals, key, &nothing, BPF_NOEXIST);
	return bpf_map_lookup_elem(&totals, key);
}

/* In the order in which calls were asked for; those that end early are no less in order. */
static __always_inline enum order in_order(u32 id, u8 op, s64 offset, s64 size)
{
	struct traits *file = bpf_map_lookup_elem(&traits, &id);
	u32 which = op == ZT_WRITE;
	enum order order;

	if (!file)
		return ORDER_UNKNOWN;
	order = file->next[which] == offset + 1ull ? ORDER_NEXT : ORDER_ELSEWHERE;
	file->next[which] = offset + size + 1ull;
	return order;
}

static __noinline int add(const struct done *d, u32 what)
{
	struct zt_key key = {.file = d->file, .call = d->call, .what = what, .cpu = bpf_get_smp_processor_id()};
	u64 duration = d->end - d->t;
	s64 overwritten;
	struct zt_totals *sum;
	struct traits *file;
	u32 id = d->file, i, order;

	if (everyone)
		touch();
	sum = totals_of(&key);
	file = bpf_map_lookup_elem(&traits, &id);
	if (!sum || !file) {
		dropped();
		return 0;
	}
	i = bucket(duration, ZT_LATENCIES);
	if (i < ZT_LATENCIES)
		__sync_fetch_and_add(&sum->latency[i], 1);
	__sync_fetch_and_add(&sum->ns, duration);
	if (what > ZT_WRITES)
		return 0;
	i = bucket(d->size, ZT_SIZES);
	if (i < ZT_SIZES)
		__sync_fetch_and_add(&sum->sizes[i], 1);
	__sync_fetch_and_add(&sum->bytes, d->size);
	order = d->order;
	if (order == ORDER_UNKNOWN)
		order = in_order(id, what == ZT_WRITES ? ZT_WRITE : ZT_READ, d->offset, d->size);
	if (order == ORDER_NEXT)
		__sync_fetch_and_add(&sum->sequential, 1);
	if (!((d->offset | d->size) & (file->record - 1)))
		__sync_fetch_and_add(&sum->aligned, 1);
	if (d->flags & ZT_F_DIRECT)
		__sync_fetch_and_add(&sum->direct, 1);
	if (what != ZT_WRITES)
		return 0;
	if (d->flags & (ZT_F_SYNC | ZT_F_DSYNC))
		__sync_fetch_and_add(&sum->synced, 1);
	overwritten = d->before - d->offset;
	if (overwritten > d->size)
		overwritten = d->size;
	if (overwritten > 0)
		__sync_fetch_and_add(&sum->overwritten, overwritten);
	return 0;
}

static __always_inline void emit_as(struct state *state, const struct done *d)
{
	struct done call = *d;

	if (!d->file)
		return;
	if (d->via == ZT_URING)
		call.call = IO_URING_ENTER;
	switch (d->op) {
	case ZT_READ:
		add(&call, ZT_READS);
		break;
	case ZT_WRITE:
		add(&call, ZT_WRITES);
		break;
	case ZT_FSYNC:
	case ZT_FDATASYNC:
	case ZT_SYNC_RANGE:
	case ZT_MSYNC:
		add(&call, ZT_SYNCS);
		break;
	case ZT_MMAP:
		add(&call, ZT_MAPPED_WRITABLE);
		break;
	case ZT_MMAP_READ:
		add(&call, ZT_MAPPED);
		break;
	}
}

static __always_inline void spend(u32 number, u64 ns, long result)
{
	struct zt_spent *call = bpf_map_lookup_elem(&spent, &number);
	u32 i = bucket(ns, ZT_LATENCIES);

	if (!call)
		return;
	__sync_fetch_and_add(&call->ns, ns);
	if (i < ZT_LATENCIES)
		__sync_fetch_and_add(&call->latency[i], 1);
	if (result < 0 && result >= -4095)
		__sync_fetch_and_add(&call->errors, 1);
}

/* ---- calls ---- */

static __always_inline void begin(struct state *state, struct pt_regs *regs, u32 kind, u32 number)
{
	state->t = 0;
	state->kind = ZT_K_NONE;
	if (IS_COMPAT(regs))
		return;
	state->number = number;
	if (kind != ZT_K_NONE)
		enter_call(state, regs, kind);
	if (every_call || state->kind != ZT_K_NONE)
		state->t = bpf_ktime_get_ns();
}

static __always_inline void leave_pair(struct state *state, u32 in, unsigned long in_offset, u32 out,
    unsigned long out_offset, long result)
{
	if (state->file2)
		emit(state, ZT_READ, 0, state->file2, 0, began(in, in_offset, result), result);
	if (state->file)
		emit(state, ZT_WRITE, state->flags, state->file, 0, began(out, out_offset, result), result);
}

static __always_inline void leave_file(struct state *state, struct pt_regs *regs, u32 kind, long result)
{
	switch (kind) {
	case ZT_K_READ ... ZT_K_SYNC_RANGE:
		leave_io(state, regs, kind, result);
		break;
	case ZT_K_COPY:
		leave_pair(state, ARG1(regs), ARG2(regs), ARG3(regs), ARG4(regs), result);
		break;
	case ZT_K_SENDFILE:
		leave_pair(state, ARG2(regs), ARG3(regs), ARG1(regs), 0, result);
		break;
	case ZT_K_MMAP:
		emit(state, ARG3(regs) & PROT_WRITE ? ZT_MMAP : ZT_MMAP_READ, 0, state->file, 0, 0, 0);
		break;
	case ZT_K_MSYNC:
		emit(state, ZT_MSYNC, 0, state->file, 0, 0, 0);
		break;
	}
}

static __always_inline void finish(struct state *state, struct pt_regs *regs, u32 kind, long result)
{
	if (!state->t || state->t < since) /* it began before we did */
		return;
	state->end = bpf_ktime_get_ns();
	/* Which files a batch is about is not known here; whose it is tells enough. */
	if (!everyone || state->touched || (kind != ZT_K_IO_SUBMIT && kind != ZT_K_IO_GETEVENTS))
		spend(state->number, state->end - state->t, result);
	if (kind == ZT_K_IO_SUBMIT || kind == ZT_K_IO_GETEVENTS)
		leave_aio(kind, ARG1(regs), ARG2(regs), kind == ZT_K_IO_SUBMIT ? ARG3(regs) : ARG4(regs), result);
	else if (kind != ZT_K_NONE && !(result < 0 && result >= -4095))
		leave_file(state, regs, kind, result);
	state->t = 0;
}

static __always_inline void count_rename(void)
{
	__sync_fetch_and_add(&renames, 1);
}

/* Where every call is timed, those on sockets too, the tracepoints see all. */
#define RENAMED(name, meaning) \
	SEC("fexit/" #name) int BPF_PROG(renamed_by_##name, struct pt_regs *regs, long result) \
	{ \
		count_rename(); \
		return 0; \
	}
ZT_DATA_CALLS(FUNCTION)
ZT_RENAME_CALLS(RENAMED)

static __always_inline bool renames_a_file(u32 kind)
{
	return (kind >= ZT_K_RENAME && kind <= ZT_K_RENAMEAT2) || kind == ZT_K_LINK || kind == ZT_K_LINKAT;
}

SEC("tp_btf/sys_enter") int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	u32 kind = kind_of(number);
	struct state *state;

	if (number < 0 || number >= ZT_SYSCALLS)
		return 0;
	if (renames_a_file(kind))
		kind = ZT_K_NONE; /* what it is about counts for no file */
	if (!every_call && kind == ZT_K_NONE)
		return 0;
	state = followed();
	if (state)
		begin(state, regs, kind, number);
	return 0;
}

SEC("tp_btf/sys_exit") int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	u32 kind = kind_of(NUMBER(regs));
	struct state *state;

	if (renames_a_file(kind)) {
		count_rename();
		kind = ZT_K_NONE;
	}
	if (!every_call && kind == ZT_K_NONE)
		return 0;
	state = followed();
	if (state)
		finish(state, regs, state->kind, result);
	return 0;
}
