/* System calls, asynchronous I/O and io_uring: what was asked of which file, and what came of it.
 *
 * Who includes this says what becomes of each finished call, when that was, and whether it wants the file's size
 * before the call:
 *   static void emit_as(struct state *state, const struct done *d);   state: of its task; asynchronous: NULL
 *   static enum order in_order(u32 file, u8 op, s64 offset, s64 size);   of asynchronous I/O, when it is asked for
 *   #define ENDED(state)
 *   #define KEEP_SIZES
 *   #define PAUSED      no io_uring requests are taken just now
 *   #define SINCE       when that was so last, ns: of what is asked for before, the end may not have been seen
 *   static void begin(struct state *state, struct pt_regs *regs, u32 kind, u32 number);   a followed task's call
 *   static void finish(struct state *state, struct pt_regs *regs, u32 kind, long result); of state->kind
 */
#ifndef ZTUNE_CALLS_BPF_H
#define ZTUNE_CALLS_BPF_H

#include "calls.h"
#include "files.bpf.h"
#include "tasks.bpf.h"

/* Does a transfer begin where the last of its kind ended? */
enum order { ORDER_UNKNOWN, ORDER_NEXT, ORDER_ELSEWHERE };

struct done {
	u64 t;
	u64 end;
	s64 offset;
	s64 size;
	s64 before; /* the file's size before; KEEP_SIZES */
	u32 file;
	u32 file2;
	u32 pid; /* of asynchronous I/O, the task that asked; else it is the current one */
	u32 tid;
	u16 flags;
	u16 call; /* number of the system call; io_uring has none */
	u8 op;
	u8 via;
	u8 order; /* enum order */
};

static __always_inline void emit_as(struct state *state, const struct done *d);
static __always_inline enum order in_order(u32 file, u8 op, s64 offset, s64 size);
static __always_inline void begin(struct state *state, struct pt_regs *regs, u32 kind, u32 number);
static __always_inline void finish(struct state *state, struct pt_regs *regs, u32 kind, long result);

struct pending {
	u64 t;
	s64 offset;
	s64 size;
	s64 before; /* the file's size */
	u32 file;
	u32 pid;
	u32 tid;
	u16 flags;
	u16 call;
	u8 op;
	u8 append;
	u8 order;
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

const volatile u8 kinds[ZT_SYSCALLS] = {}; /* system call number -> enum zt_kind */
const volatile u16 numbers[ZT_CALLS] = {}; /* enum zt_call -> system call number */

/* The call that returns from a signal has no number at its end. */
static __always_inline u32 kind_of(long number)
{
	return number < 0 || number >= ZT_SYSCALLS ? ZT_K_NONE : kinds[number];
}

static __always_inline s64 size_of(struct file *file)
{
	struct inode *inode;

	if (!KEEP_SIZES)
		return 0;
	inode = FIELD(file, f_inode);
	return FIELD(inode, i_size);
}

static __always_inline void emit(struct state *state, u8 op, u16 flags, u32 file, u32 file2, s64 offset, s64 size)
{
	struct done d = {
		.t = state->t,
		.end = ENDED(state),
		.offset = offset,
		.size = size,
		.before = state->before,
		.file = file,
		.file2 = file2,
		.flags = flags,
		.call = state->number,
		.op = op,
		.via = ZT_SYSCALL,
	};

	emit_as(state, &d);
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
	state->flags = open_flags(FIELD(file, f_flags));
	state->before = size_of(file);
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
	if (to)
		state->before = size_of(to);
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
	u32 number;
};

/* A function of its own: Linux before 6.6 lets a program and those that it calls have 512 bytes of stack, each rounded up
 * to 32, and submit_one has most of them.
 */
static __noinline int emit_pending(const struct pending *p, u32 via, u64 end, s64 offset, s64 size)
{
	struct done d = {
		.t = p->t,
		.end = end,
		.offset = offset,
		.size = size,
		.before = p->before,
		.file = p->file,
		.pid = p->pid,
		.tid = p->tid,
		.flags = p->flags,
		.call = p->call,
		.op = p->op,
		.via = via,
		.order = p->order,
	};

	emit_as(0, &d);
	return 0;
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
	p.flags = open_flags(FIELD(file, f_flags));
	p.before = size_of(file);
	p.call = s->number;
	if (p.size)
		p.flags |= call_flags(iocb.rw_flags);
	if (p.op == ZT_WRITE && (p.flags & ZT_F_APPEND))
		p.offset = BPF_CORE_READ(file, f_inode, i_size);
	/* Of others, nbytes is a number of parts. */
	if (iocb.opcode == IOCB_CMD_PREAD || iocb.opcode == IOCB_CMD_PWRITE)
		p.order = in_order(p.file, p.op, p.offset, p.size);
	before = bpf_map_lookup_elem(&aio, &key);
	/* Its end was read from the ring in user memory: it was done, no one knows when. */
	if (before && before->t >= SINCE)
		emit_pending(before, ZT_AIO, before->t, before->offset, before->size);
	if (bpf_map_update_elem(&aio, &key, &p, BPF_ANY))
		dropped();
	return 0;
}

/* Before a call of this kind; state->kind is ZT_K_NONE then, if it is of no interest. */
static __always_inline void enter_call(struct state *state, struct pt_regs *regs, u32 kind)
{
	struct submission s = {};
	struct mapping mapping = {};
	u32 type;

	state->kind = kind;
	state->file2 = 0;
	switch (kind) {
	case ZT_K_READ ... ZT_K_FTRUNCATE:
	case ZT_K_FADVISE:
	case ZT_K_READAHEAD:
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
		s.number = state->number;
		if ((long)ARG2(regs) > 0)
			bpf_loop(ARG2(regs), submit_one, &s, 0);
		break;
	}
}

/* ---- after a call ---- */

static __always_inline void transferred(struct state *state, u32 fd, s64 offset, u32 rwf, long result, u8 op)
{
	u16 flags = state->flags | call_flags(rwf) | (offset >= 0 ? ZT_F_POSITIONED : 0);

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
	emit(state, op, flags, state->file, 0, offset, result);
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
	if (event.res >= 0 && p->t >= SINCE) /* else this may be the end of another that has its place */
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

/* After a call of one file that moved data or made it durable, and ended well. */
static __always_inline void leave_io(struct state *state, struct pt_regs *regs, u32 kind, long result)
{
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
		emit(state, ZT_FSYNC, state->flags, state->file, 0, -1, 0);
		break;
	case ZT_K_FDATASYNC:
		emit(state, ZT_FDATASYNC, state->flags, state->file, 0, -1, 0);
		break;
	case ZT_K_SYNC_RANGE:
		emit(state, ZT_SYNC_RANGE, state->flags, state->file, 0, ARG2(regs), ARG3(regs));
		break;
	}
}

/* ---- the kernel's function of each call, where programs may hang on functions ---- */

/* The section ends with the call's name: the loader finds the function by it. Each program has the code of its kind
 * alone, as that is a constant here.
 */
#define FUNCTION(name, meaning) \
	SEC("fentry/" #name) int BPF_PROG(enter_##name, struct pt_regs *regs) \
	{ \
		struct state *state = followed(); \
\
		if (state) \
			begin(state, regs, ZT_K_##meaning, numbers[ZT_C_##name]); \
		return 0; \
	} \
\
	SEC("fexit/" #name) int BPF_PROG(leave_##name, struct pt_regs *regs, long result) \
	{ \
		struct state *state = followed(); \
\
		if (state && state->kind == ZT_K_##meaning) \
			finish(state, regs, ZT_K_##meaning, result); \
		return 0; \
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
	struct state *state = followed();
	u64 who, key = (u64)req;
	struct pending p = {};
	struct file *file;
	struct io_sync *sync = (struct io_sync *)req;
	struct io_rw *rw = (struct io_rw *)req;
	u8 opcode;

	if (!state || PAUSED)
		return 0;
	opcode = BPF_CORE_READ(req, opcode);
	switch (opcode) {
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
		p.before = size_of(file);
		p.flags = open_flags(FIELD(file, f_flags));
	}
	if (p.op == ZT_READ || p.op == ZT_WRITE) {
		p.offset = BPF_CORE_READ(rw, kiocb.ki_pos);
		p.flags |= call_flags(BPF_CORE_READ(rw, flags));
		if (file && p.op == ZT_WRITE && (p.flags & ZT_F_APPEND))
			p.append = 1;
		else if (file && p.offset < 0)
			p.offset = BPF_CORE_READ(file, f_pos);
		if (file && !p.append && p.offset >= 0 &&
		    (opcode == IORING_OP_READ || opcode == IORING_OP_WRITE || opcode == IORING_OP_READ_FIXED ||
			opcode == IORING_OP_WRITE_FIXED))
			p.order = in_order(p.file, p.op, p.offset, BPF_CORE_READ(rw, len));
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
			p->before = size_of(file); /* after, not before: nothing else is known */
			p->flags |= open_flags(FIELD(file, f_flags));
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

#endif
