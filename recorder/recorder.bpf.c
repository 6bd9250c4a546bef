/* Sees the file I/O of chosen tasks and hands one record per call to the loader.
 *
 * The programs hang on tracepoints alone (BTF-typed: sys_enter, sys_exit, fork, exit, io_uring), because these are
 * allowed wherever eBPF tracing is: some kernels have no kprobes, and some forbid trampolines (fentry). A task that is
 * not recorded pays for a pointer test: "is recorded" is the existence of the task's local storage.
 *
 * Only regular files are of interest. A file is an inode: (device, inode number, generation) gets a small number at
 * first sight, before the call that shows it takes effect, so that its size at the start is known. Calls on names
 * (rename, unlink, ...) are handed on with the names; the reader finds the file from what it saw before.
 */
#include "kernel.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "records.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#if defined(__TARGET_ARCH_x86)
#define ARG1(r) ((r)->di)
#define ARG2(r) ((r)->si)
#define ARG3(r) ((r)->dx)
#define ARG4(r) ((r)->r10)
#define ARG5(r) ((r)->r8)
#define ARG6(r) ((r)->r9)
#define O_DIRECT 0x4000
/* A 32-bit program on a 64-bit kernel: its call numbers mean something else. */
#define IS_COMPAT(r) ((r)->cs == 0x23)
#else
#define ARG1(r) ((r)->regs[0])
#define ARG2(r) ((r)->regs[1])
#define ARG3(r) ((r)->regs[2])
#define ARG4(r) ((r)->regs[3])
#define ARG5(r) ((r)->regs[4])
#define ARG6(r) ((r)->regs[5])
#define O_DIRECT 0x10000
#define IS_COMPAT(r) ((r)->pstate & 0x10)
#endif

#define O_TRUNC 0x200
#define O_APPEND 0x400
#define O_DSYNC 0x1000
#define O_SYNC_BIT 0x100000 /* __O_SYNC */
#define O_TMPFILE_BIT 0x400000
#define FMODE_CREATED (1u << 20)
#define RWF_DSYNC 0x2
#define RWF_SYNC 0x4
#define RWF_APPEND 0x10
#define FALLOC_KEEP_SIZE 0x1
#define FALLOC_PUNCH 0x2
#define FALLOC_ZERO 0x10
#define AT_FDCWD -100
#define SB_KERNMOUNT (1 << 22) /* memfd, SysV shared memory */
#define S_IFMT 0170000
#define S_IFREG 0100000
#define PF_IO_WORKER 0x10
#define MAP_TYPE 0x0f
#define MAP_SHARED 1
#define MAP_SHARED_VALIDATE 3
#define MAP_ANONYMOUS 0x20
#define PROT_WRITE 2
#define MS_SYNC 4
#define AT_REMOVEDIR 0x200
#define IOCB_CMD_PREAD 0
#define IOCB_CMD_PWRITE 1
#define IOCB_CMD_FSYNC 2
#define IOCB_CMD_FDSYNC 3
#define IOCB_CMD_PREADV 7
#define IOCB_CMD_PWRITEV 8
#define IORING_FSYNC_DATASYNC 1
#define EBUSY 16
#define REQ_F_FIXED_FILE 1
#define IORING_OP_READV 1
#define IORING_OP_WRITEV 2
#define IORING_OP_FSYNC 3
#define IORING_OP_READ_FIXED 4
#define IORING_OP_WRITE_FIXED 5
#define IORING_OP_SYNC_FILE_RANGE 8
#define IORING_OP_FALLOCATE 17
#define IORING_OP_READ 22
#define IORING_OP_WRITE 23
#define IORING_OP_READV_FIXED 60
#define IORING_OP_WRITEV_FIXED 61

/* Pseudo file systems: their "regular files" are no storage. */
#define PROC_MAGIC 0x9fa0
#define SYSFS_MAGIC 0x62656572
#define CGROUP_MAGIC 0x27e0eb
#define CGROUP2_MAGIC 0x63677270
#define DEBUGFS_MAGIC 0x64626720
#define TRACEFS_MAGIC 0x74726163
#define SECURITYFS_MAGIC 0x73636673
#define BPF_MAGIC 0xcafe4a11
#define HUGETLBFS_MAGIC 0x958458f6
#define IGNORED 0xffffffffu

struct state {
	u64 t;	    /* start of the call under way */
	s64 offset; /* msync: what to add to an address */
	u32 kind; /* enum zt_kind; ZT_K_NONE: nothing of interest under way */
	u32 file;
	u32 file2;
	u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct state);
} tasks SEC(".maps");

/* Recorded processes; for finding descendants at the start, and for io_uring's workers. */
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

struct file_key {
	u64 ino;
	u32 dev;
	u32 gen;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct file_key);
	__type(value, u32);
} files SEC(".maps");

struct pending {
	u64 t;
	s64 offset;
	s64 size;
	u32 file;
	u32 pid;
	u32 tid;
	u16 flags;
	u8 op;
	u8 append;
};

struct aio_key {
	u64 context; /* what io_setup gave the process */
	u64 iocb;    /* user address */
	u64 tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct aio_key);
	__type(value, struct pending);
} aio SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u64); /* the kernel's request */
	__type(value, struct pending);
} uring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} drops SEC(".maps");

u32 next_file = 0; /* numbers given so far */
u32 found = 0;	   /* processes added by the task iterator */
bool stopped = false;
const volatile u8 kinds[ZT_SYSCALLS] = {}; /* system call number -> enum zt_kind */

static __always_inline void dropped(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&drops, &zero);

	if (count)
		__sync_fetch_and_add(count, 1); /* the program may be preempted by another */
}

/* The state of the current task, if it is recorded. */
static __always_inline struct state *recorded(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct state *state = bpf_task_storage_get(&tasks, task, 0, 0);

	if (state)
		return stopped ? 0 : state;
	if (task->flags & PF_IO_WORKER) { /* made without sched_process_fork */
		u32 tgid = task->tgid;

		if (!stopped && bpf_map_lookup_elem(&processes, &tgid))
			return bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	}
	return 0;
}

static __always_inline void emit_as(u64 t, u64 end, u32 pid, u32 tid, u8 op, u8 via, u16 flags, u32 file,
				    u32 file2, s64 offset, s64 size)
{
	struct zt_event *event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);

	if (!event) {
		dropped();
		return;
	}
	event->t = t;
	event->dur = end - t;
	event->offset = offset;
	event->size = size;
	event->file = file;
	event->file2 = file2;
	event->pid = pid;
	event->tid = tid;
	event->flags = flags;
	event->op = op;
	event->via = via;
	event->pad = 0;
	/* The loader looks often enough; waking it for each event would cost more than the event. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void emit(u64 t, u8 op, u16 flags, u32 file, u32 file2, s64 offset, s64 size)
{
	u64 who = bpf_get_current_pid_tgid();

	emit_as(t, bpf_ktime_get_ns(), who >> 32, (u32)who, op, ZT_SYSCALL, flags, file, file2, offset, size);
}

static __always_inline struct file *descriptor(u32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	/* Plain loads from a typed pointer cost less than calls of bpf_probe_read_kernel. */
	struct fdtable *table = task->files->fdt;
	struct file *file = 0;

	if (fd >= table->max_fds)
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), table->fd + fd);
	return file;
}

/* Writes the names from a dentry to the root of its file system; each is ended by NUL. */
static __always_inline void walk(struct zt_file *record, struct dentry *dentry)
{
	u32 used = 0;
	int depth;

	record->truncated = 1;
	for (depth = 0; depth < ZT_PATH_DEPTH; depth++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);
		long length;

		if (parent == dentry || !parent) {
			record->truncated = 0;
			break;
		}
		if (used > ZT_PATH_ROOM)
			break;
		length = bpf_probe_read_kernel_str(record->path + used, 256, BPF_CORE_READ(dentry, d_name.name));
		if (length <= 0 || length > 256)
			break;
		used += length;
		dentry = parent;
	}
	record->path_bytes = used;
}

/* Sends what is known of an inode. */
static __noinline int send_file(struct inode *inode, struct dentry *dentry, u32 id, u32 kind)
{
	struct zt_file *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);
	struct super_block *sb;
	u64 who;

	if (!record) {
		dropped();
		return -1;
	}
	who = bpf_get_current_pid_tgid();
	sb = BPF_CORE_READ(inode, i_sb);
	record->t = bpf_ktime_get_ns();
	record->dur = 0;
	record->ino = BPF_CORE_READ(inode, i_ino);
	record->size = kind == ZT_CREATED ? 0 : BPF_CORE_READ(inode, i_size);
	record->id = id;
	record->dev = BPF_CORE_READ(sb, s_dev);
	record->gen = BPF_CORE_READ(inode, i_generation);
	record->links = BPF_CORE_READ(inode, i_nlink);
	record->pid = who >> 32;
	record->tid = (u32)who;
	record->kind = kind;
	record->op = 0;
	record->part = 0;
	record->user_bytes = 0;
	record->pad = 0;
	walk(record, dentry);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
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

/* Gives an inode its number; 0 if it is none of ours. */
static __noinline u32 number_new(struct inode *inode, struct dentry *dentry, struct file_key *key, u32 created)
{
	struct super_block *sb = BPF_CORE_READ(inode, i_sb);
	unsigned long magic = BPF_CORE_READ(sb, s_magic);
	u32 id = IGNORED, *known;
	bool ignore = magic == PROC_MAGIC || magic == SYSFS_MAGIC || magic == CGROUP_MAGIC || magic == CGROUP2_MAGIC ||
		      magic == DEBUGFS_MAGIC || magic == TRACEFS_MAGIC || magic == SECURITYFS_MAGIC ||
		      magic == BPF_MAGIC || magic == HUGETLBFS_MAGIC || (BPF_CORE_READ(sb, s_flags) & SB_KERNMOUNT);
	long error;

	if (!ignore)
		id = __sync_fetch_and_add(&next_file, 1) + 1;
	error = bpf_map_update_elem(&files, key, &id, created ? BPF_ANY : BPF_NOEXIST);
	if (error) {
		known = bpf_map_lookup_elem(&files, key); /* another CPU was faster, or the table is full */
		if (!known) {
			dropped();
			return 0;
		}
		return *known == IGNORED ? 0 : *known;
	}
	if (ignore)
		return 0;
	if (send_file(inode, dentry, id, created ? ZT_CREATED : ZT_SEEN)) {
		bpf_map_delete_elem(&files, key); /* try again at the next call */
		return 0;
	}
	return id;
}

static __always_inline u32 number_of(struct file *file, u32 created)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	struct file_key key = {};
	u32 *known;

	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	key.ino = BPF_CORE_READ(inode, i_ino);
	key.dev = BPF_CORE_READ(inode, i_sb, s_dev);
	key.gen = BPF_CORE_READ(inode, i_generation);
	if (!created) {
		known = bpf_map_lookup_elem(&files, &key);
		if (known)
			return *known == IGNORED ? 0 : *known;
	}
	return number_new(inode, BPF_CORE_READ(file, f_path.dentry), &key, created);
}

static __always_inline u32 number_of_file(struct file *file)
{
	return number_of(file, 0);
}

static __always_inline u16 open_flags(u32 f)
{
	return (f & O_SYNC_BIT ? ZT_F_SYNC : f & O_DSYNC ? ZT_F_DSYNC : 0) | (f & O_DIRECT ? ZT_F_DIRECT : 0) |
	       (f & O_APPEND ? ZT_F_APPEND : 0);
}

static __always_inline u16 call_flags(u32 rwf)
{
	return (rwf & RWF_SYNC ? ZT_F_SYNC : 0) | (rwf & RWF_DSYNC ? ZT_F_DSYNC : 0) |
	       (rwf & RWF_APPEND ? ZT_F_APPEND : 0);
}

static __always_inline u16 fallocate_flags(u32 mode)
{
	return (mode & FALLOC_KEEP_SIZE ? ZT_F_KEEP_SIZE : 0) | (mode & FALLOC_PUNCH ? ZT_F_PUNCH : 0) |
	       (mode & FALLOC_ZERO ? ZT_F_ZERO : 0);
}

/* ---- before a call ---- */

static __always_inline void enter_fd(struct state *state, u32 fd)
{
	struct file *file = descriptor(fd);

	state->file = file ? number_of_file(file) : 0;
	if (!state->file) {
		state->kind = ZT_K_NONE;
		return;
	}
	state->flags = open_flags(BPF_CORE_READ(file, f_flags));
}

static __always_inline void enter_pair(struct state *state, u32 in, u32 out)
{
	struct file *from = descriptor(in), *to = descriptor(out);

	state->file2 = from ? number_of_file(from) : 0;
	state->file = to ? number_of_file(to) : 0;
	if (state->file)
		state->flags = open_flags(BPF_CORE_READ(to, f_flags));
	else if (state->file2)
		state->flags = open_flags(BPF_CORE_READ(from, f_flags));
	else
		state->kind = ZT_K_NONE;
}

struct mapping {
	u32 file;
	s64 offset; /* from address to offset in the file: what to add */
};

static long of_mapping(struct task_struct *task, struct vm_area_struct *area, struct mapping *mapping)
{
	struct file *file = BPF_CORE_READ(area, vm_file);

	if (file) {
		mapping->file = number_of_file(file);
		mapping->offset = (BPF_CORE_READ(area, vm_pgoff) << 12) - BPF_CORE_READ(area, vm_start);
	}
	return 0;
}

struct submission {
	unsigned long context;
	unsigned long user; /* address of an array: of pointers to iocbs, or of events */
	u64 t;
	u64 done; /* forget those from here on: they were not taken */
	u64 tgid;
};

static __always_inline void emit_pending(const struct pending *p, u8 via, u64 end, s64 offset, s64 size)
{
	emit_as(p->t, end, p->pid, p->tid, p->op, via, p->flags, p->file, 0, offset, size);
}

static __always_inline s64 end_minus(struct file *file, s64 result)
{
	s64 size = BPF_CORE_READ(file, f_inode, i_size);

	return size >= result ? size - result : 0;
}

static long submit_one(u32 index, struct submission *s)
{
	struct aio_key key = {.context = s->context, .tgid = s->tgid};
	struct pending p = {.t = s->t}, *before;
	u64 who = bpf_get_current_pid_tgid();
	struct user_iocb iocb;
	struct file *file;

	if (bpf_probe_read_user(&key.iocb, 8, (void *)(s->user + 8ul * index)) ||
	    bpf_probe_read_user(&iocb, sizeof(iocb), (void *)key.iocb)) {
		dropped();
		return 0;
	}
	file = descriptor(iocb.fd);
	if (!file)
		return 0;
	p.file = number_of_file(file);
	if (!p.file)
		return 0;
	switch (iocb.opcode) {
	case IOCB_CMD_PREAD:
	case IOCB_CMD_PREADV:
		p.op = ZT_READ;
		break;
	case IOCB_CMD_PWRITE:
	case IOCB_CMD_PWRITEV:
		p.op = ZT_WRITE;
		break;
	case IOCB_CMD_FSYNC:
		p.op = ZT_FSYNC;
		break;
	case IOCB_CMD_FDSYNC:
		p.op = ZT_FDATASYNC;
		break;
	default:
		return 0;
	}
	p.offset = p.op == ZT_READ || p.op == ZT_WRITE ? iocb.offset : -1;
	p.size = p.op == ZT_READ || p.op == ZT_WRITE ? iocb.nbytes : 0;
	p.pid = who >> 32;
	p.tid = (u32)who;
	p.flags = open_flags(BPF_CORE_READ(file, f_flags));
	if (p.size)
		p.flags |= call_flags(iocb.rw_flags);
	if (p.op == ZT_WRITE && (p.flags & ZT_F_APPEND))
		p.offset = BPF_CORE_READ(file, f_inode, i_size);
	before = bpf_map_lookup_elem(&aio, &key);
	if (before) /* its end was read from the ring in user memory: it was done, no one knows when */
		emit_pending(before, ZT_AIO, before->t, before->offset, before->size);
	if (bpf_map_update_elem(&aio, &key, &p, BPF_ANY))
		dropped();
	return 0;
}

SEC("tp_btf/sys_enter") int BPF_PROG(enter, struct pt_regs *regs, long number)
{
	struct state *state = recorded();
	struct submission s = {};
	struct mapping mapping = {};
	u32 type;

	if (!state)
		return 0;
	state->kind = ZT_K_NONE;
	if (number < 0 || number >= ZT_SYSCALLS || IS_COMPAT(regs))
		return 0;
	state->kind = kinds[number];
	if (state->kind == ZT_K_NONE)
		return 0;
	state->file2 = 0;
	switch (state->kind) {
	case ZT_K_READ ... ZT_K_FTRUNCATE:
		enter_fd(state, ARG1(regs));
		break;
	case ZT_K_COPY:
		enter_pair(state, ARG1(regs), ARG3(regs));
		break;
	case ZT_K_SENDFILE:
		enter_pair(state, ARG2(regs), ARG1(regs));
		break;
	case ZT_K_MMAP:
		type = ARG4(regs) & MAP_TYPE;
		if ((type != MAP_SHARED && type != MAP_SHARED_VALIDATE) || (ARG4(regs) & MAP_ANONYMOUS))
			state->kind = ZT_K_NONE;
		else
			enter_fd(state, ARG5(regs));
		break;
	case ZT_K_MSYNC:
		if ((ARG3(regs) & MS_SYNC) &&
		    bpf_find_vma(bpf_get_current_task_btf(), ARG1(regs), of_mapping, &mapping, 0) == -EBUSY)
			dropped(); /* another thread is changing the mappings */
		state->file = mapping.file;
		state->offset = mapping.offset;
		if (!state->file)
			state->kind = ZT_K_NONE;
		break;
	case ZT_K_IO_SUBMIT:
		s.context = ARG1(regs);
		s.user = ARG3(regs);
		s.tgid = bpf_get_current_pid_tgid() >> 32;
		s.t = bpf_ktime_get_ns();
		if ((long)ARG2(regs) > 0)
			bpf_loop(ARG2(regs), submit_one, &s, 0);
		break;
	}
	state->t = bpf_ktime_get_ns();
	return 0;
}

/* ---- after a call ---- */

static __always_inline void transferred(struct state *state, u32 fd, s64 offset, u32 rwf, long result, u8 op)
{
	u16 flags = state->flags | call_flags(rwf);

	if (offset < 0 || (op == ZT_WRITE && (flags & ZT_F_APPEND))) {
		struct file *file = descriptor(fd);

		/* Known afterwards only: O_APPEND, and threads that share the position, move it before the call. */
		if (!file) { /* another thread closed it: no one can tell where this was */
			dropped();
			return;
		}
		if (offset < 0)
			offset = BPF_CORE_READ(file, f_pos) - result;
		else
			offset = end_minus(file, result);
		if (offset < 0)
			offset = 0;
	}
	emit(state->t, op, flags, state->file, 0, offset, result);
}

/* Where a transfer of result bytes began: the offset argument, or the position, was advanced by it. */
static __always_inline s64 began(u32 fd, unsigned long user_offset, long result)
{
	s64 end = 0;

	if (user_offset) {
		bpf_probe_read_user(&end, sizeof(end), (void *)user_offset);
	} else {
		struct file *file = descriptor(fd);

		if (file)
			end = BPF_CORE_READ(file, f_pos);
	}
	return end >= result ? end - result : 0;
}

static __always_inline void leave_pair(struct state *state, u32 in, unsigned long in_offset, u32 out,
				       unsigned long out_offset, long result)
{
	if (state->file && state->file2)
		emit(state->t, ZT_COPY, state->flags, state->file, state->file2, began(out, out_offset, result), result);
	else if (state->file)
		emit(state->t, ZT_WRITE, state->flags, state->file, 0, began(out, out_offset, result), result);
	else
		emit(state->t, ZT_READ, state->flags, state->file2, 0, began(in, in_offset, result), result);
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
		emit(state->t, created ? ZT_CREATE : ZT_TRUNCATE, open_flags(flags), id, 0, -1, 0);
}

static __always_inline u64 openat2_flags(unsigned long user_how)
{
	u64 flags = 0;

	bpf_probe_read_user(&flags, sizeof(flags), (void *)user_how);
	return flags;
}

static long submitted_one(u32 index, struct submission *s)
{
	struct aio_key key = {.context = s->context, .tgid = s->tgid};
	struct pending *p;

	if (bpf_probe_read_user(&key.iocb, 8, (void *)(s->user + 8ul * index)))
		return 0;
	p = bpf_map_lookup_elem(&aio, &key);
	if (p && index >= s->done)
		bpf_map_delete_elem(&aio, &key);
	return 0;
}

static long reaped_one(u32 index, struct submission *s)
{
	struct aio_key key = {.context = s->context, .tgid = s->tgid};
	struct user_io_event event;
	struct pending *p;

	if (bpf_probe_read_user(&event, sizeof(event), (void *)(s->user + sizeof(event) * index))) {
		dropped();
		return 0;
	}
	key.iocb = event.obj;
	p = bpf_map_lookup_elem(&aio, &key);
	if (!p)
		return 0;
	if (event.res >= 0)
		emit_pending(p, ZT_AIO, s->t, p->offset, p->size ? event.res : 0);
	bpf_map_delete_elem(&aio, &key);
	return 0;
}

static __always_inline void leave_aio(u32 kind, unsigned long context, long count, unsigned long user, long result)
{
	struct submission s = {.context = context, .user = user};

	s.tgid = bpf_get_current_pid_tgid() >> 32;
	if (kind == ZT_K_IO_SUBMIT) {
		s.done = result > 0 ? result : 0;
		if (count > 0 && result < count)
			bpf_loop(count, submitted_one, &s, 0);
	} else if (result > 0) {
		s.t = bpf_ktime_get_ns();
		bpf_loop(result, reaped_one, &s, 0);
	}
}

SEC("tp_btf/sys_exit") int BPF_PROG(leave, struct pt_regs *regs, long result)
{
	struct state *state = recorded();
	u32 kind;

	if (!state)
		return 0;
	kind = state->kind;
	if (kind == ZT_K_NONE)
		return 0;
	state->kind = ZT_K_NONE;
	if (kind == ZT_K_IO_SUBMIT) {
		leave_aio(kind, ARG1(regs), ARG2(regs), ARG3(regs), result);
		return 0;
	}
	if (result < 0 && result >= -4095)
		return 0;
	switch (kind) {
	case ZT_K_READ:
		transferred(state, ARG1(regs), -1, 0, result, ZT_READ);
		break;
	case ZT_K_WRITE:
		transferred(state, ARG1(regs), -1, 0, result, ZT_WRITE);
		break;
	case ZT_K_PREAD: /* and preadv: on 64 bit the low word of the offset is the whole offset */
		transferred(state, ARG1(regs), ARG4(regs), 0, result, ZT_READ);
		break;
	case ZT_K_PWRITE:
		transferred(state, ARG1(regs), ARG4(regs), 0, result, ZT_WRITE);
		break;
	case ZT_K_PREAD2:
		transferred(state, ARG1(regs), ARG4(regs), ARG6(regs), result, ZT_READ);
		break;
	case ZT_K_PWRITE2:
		transferred(state, ARG1(regs), ARG4(regs), ARG6(regs), result, ZT_WRITE);
		break;
	case ZT_K_FSYNC:
		emit(state->t, ZT_FSYNC, state->flags, state->file, 0, -1, 0);
		break;
	case ZT_K_FDATASYNC:
		emit(state->t, ZT_FDATASYNC, state->flags, state->file, 0, -1, 0);
		break;
	case ZT_K_SYNC_RANGE:
		emit(state->t, ZT_SYNC_RANGE, state->flags, state->file, 0, ARG2(regs), ARG3(regs));
		break;
	case ZT_K_FALLOCATE:
		emit(state->t, ZT_FALLOCATE, state->flags | fallocate_flags(ARG2(regs)), state->file, 0, ARG3(regs),
		     ARG4(regs));
		break;
	case ZT_K_FTRUNCATE:
		emit(state->t, ZT_TRUNCATE, state->flags, state->file, 0, -1, ARG2(regs));
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
		emit(state->t, ARG3(regs) & PROT_WRITE ? ZT_MMAP : ZT_MMAP_READ, state->flags, state->file, 0, ARG6(regs),
		     ARG2(regs));
		break;
	case ZT_K_MSYNC:
		emit(state->t, ZT_MSYNC, 0, state->file, 0, ARG1(regs) + state->offset, ARG2(regs));
		break;
	case ZT_K_SYNC:
		emit(state->t, ZT_SYNC, 0, 0, 0, -1, 0);
		break;
	case ZT_K_IO_GETEVENTS:
		leave_aio(kind, ARG1(regs), 0, ARG4(regs), result);
		break;
	}
	return 0;
}

/* ---- io_uring: from submission to completion; a request that a worker tries again stays one ---- */

static __always_inline struct file *request_file(struct io_kiocb *req)
{
	int fd = BPF_CORE_READ(req, cqe.fd);
	struct io_ring_ctx *ctx;
	struct io_rsrc_node **nodes, *node = 0;

	if (!(BPF_CORE_READ(req, flags) & REQ_F_FIXED_FILE))
		return descriptor(fd);
	/* Older kernels keep registered files otherwise; the file is then seen at completion. */
	if (!bpf_core_field_exists(struct io_rsrc_data, nodes) || !bpf_core_field_exists(struct io_file_table, data))
		return 0;
	ctx = BPF_CORE_READ(req, ctx);
	if (fd < 0 || fd >= (int)BPF_CORE_READ(ctx, file_table.data.nr))
		return 0;
	nodes = BPF_CORE_READ(ctx, file_table.data.nodes);
	bpf_probe_read_kernel(&node, sizeof(node), nodes + fd);
	if (!node)
		return 0;
	return (struct file *)(BPF_CORE_READ(node, file_ptr) & ~7ul); /* the low bits are flags */
}

static __noinline int submit_request(struct io_kiocb *req)
{
	struct state *state = recorded();
	u64 who, key = (u64)req;
	struct pending p = {};
	struct file *file;
	struct io_sync *sync = (struct io_sync *)req;
	struct io_rw *rw = (struct io_rw *)req;

	if (!state)
		return 0;
	switch (BPF_CORE_READ(req, opcode)) {
	case IORING_OP_READV:
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
	case IORING_OP_READV_FIXED:
		p.op = ZT_READ;
		break;
	case IORING_OP_WRITEV:
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
	case IORING_OP_WRITEV_FIXED:
		p.op = ZT_WRITE;
		break;
	case IORING_OP_FSYNC:
		p.op = BPF_CORE_READ(sync, flags) & IORING_FSYNC_DATASYNC ? ZT_FDATASYNC : ZT_FSYNC;
		break;
	case IORING_OP_SYNC_FILE_RANGE:
		p.op = ZT_SYNC_RANGE;
		break;
	case IORING_OP_FALLOCATE:
		p.op = ZT_FALLOCATE;
		break;
	default:
		return 0;
	}
	file = request_file(req);
	if (file) {
		p.file = number_of_file(file);
		if (!p.file)
			return 0; /* a socket, a pipe */
		p.flags = open_flags(BPF_CORE_READ(file, f_flags));
	}
	if (p.op == ZT_READ || p.op == ZT_WRITE) {
		p.offset = BPF_CORE_READ(rw, kiocb.ki_pos);
		p.flags |= call_flags(BPF_CORE_READ(rw, flags));
		if (file && p.op == ZT_WRITE && (p.flags & ZT_F_APPEND))
			p.append = 1;
		else if (file && p.offset < 0)
			p.offset = BPF_CORE_READ(file, f_pos);
	} else if (p.op == ZT_FSYNC || p.op == ZT_FDATASYNC) {
		p.offset = -1;
	} else {
		p.offset = BPF_CORE_READ(sync, off);
		p.size = BPF_CORE_READ(sync, len);
		if (p.op == ZT_FALLOCATE)
			p.flags |= fallocate_flags(BPF_CORE_READ(sync, mode));
	}
	who = bpf_get_current_pid_tgid();
	p.pid = who >> 32;
	p.tid = (u32)who;
	p.t = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&uring, &key, &p, BPF_ANY))
		dropped();
	return 0;
}

/* The tracepoint's name until Linux 6.2, and since. */
SEC("tp_btf/io_uring_submit_sqe") int BPF_PROG(submit_uring_sqe, void *req)
{
	return submit_request(req);
}

SEC("tp_btf/io_uring_submit_req") int BPF_PROG(submit_uring_req, void *req)
{
	return submit_request(req);
}

SEC("tp_btf/io_uring_complete") int BPF_PROG(complete_uring, void *context, void *request)
{
	struct io_kiocb *req = request;
	u64 key = (u64)req;
	struct pending *p;
	struct file *file;
	s32 result;
	s64 offset;

	if (!req)
		return 0;
	p = bpf_map_lookup_elem(&uring, &key);
	if (!p)
		return 0;
	result = BPF_CORE_READ(req, cqe.res);
	file = BPF_CORE_READ(req, file);
	if (result >= 0 && !stopped && file) {
		if (!p->file) {
			p->file = number_of_file(file);
			p->flags |= open_flags(BPF_CORE_READ(file, f_flags));
			if (p->op == ZT_WRITE && (p->flags & ZT_F_APPEND))
				p->append = 1;
		}
		offset = p->offset;
		if (p->append)
			offset = end_minus(file, result);
		else if (offset < 0 && (p->op == ZT_READ || p->op == ZT_WRITE))
			offset = BPF_CORE_READ(file, f_pos) - result;
		if (p->file)
			emit_pending(p, ZT_URING, bpf_ktime_get_ns(), offset,
				     p->op == ZT_READ || p->op == ZT_WRITE ? result : p->size);
	}
	bpf_map_delete_elem(&uring, &key);
	return 0;
}

/* ---- who is recorded ---- */

SEC("tp_btf/sched_process_fork") int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
	u32 tgid = child->tgid;
	u8 one = 1;

	if (!bpf_task_storage_get(&tasks, parent, 0, 0))
		return 0;
	if (bpf_map_update_elem(&processes, &tgid, &one, BPF_ANY) ||
	    !bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
		dropped();
	return 0;
}

SEC("tp_btf/sched_process_exit") int BPF_PROG(exited, struct task_struct *task)
{
	u32 tgid = task->tgid;

	if (bpf_task_storage_get(&tasks, task, 0, 0) && BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

/* Marks the tasks of the named processes and of their descendants. Run until it finds no more. */
SEC("iter/task") int mark(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
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
	if (!bpf_task_storage_get(&tasks, task, 0, 0)) {
		if (bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
			__sync_fetch_and_add(&found, 1);
		else
			dropped();
	}
	return 0;
}
