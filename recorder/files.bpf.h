/* Files: which one a descriptor means, its number, and what is said of it at first sight.
 *
 * Only regular files are of interest. A file is an inode: (device, inode number, generation) gets a small number at
 * first sight, before the call that shows it takes effect, so that its size at the start is known.
 *
 * Who includes this says which files are its own:
 *   static enum claim claim(struct inode *inode, struct dentry *dentry, u32 dev);
 *   static bool accept(u32 id, const struct file_key *key, struct dentry *dentry);
 *                                                               a file got its number; false: there is no room for it
 *   static void met_again(u32 id, struct file *file);           a call on a file that has its number already
 */
#ifndef ZTUNE_FILES_BPF_H
#define ZTUNE_FILES_BPF_H

#include "kernel.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "records.h"

enum claim { CLAIM_OWN, CLAIM_NEVER /* remember that it is not */, CLAIM_NOT /* cheaper to ask again */ };

struct file_key;
static __always_inline enum claim claim(struct inode *inode, struct dentry *dentry, u32 dev);
static __always_inline bool accept(u32 id, const struct file_key *key, struct dentry *dentry);
static __always_inline void met_again(u32 id, struct file *file);

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
#define NUMBER(r) ((long)(r)->orig_ax)
#else
#define ARG1(r) ((r)->regs[0])
#define ARG2(r) ((r)->regs[1])
#define ARG3(r) ((r)->regs[2])
#define ARG4(r) ((r)->regs[3])
#define ARG5(r) ((r)->regs[4])
#define ARG6(r) ((r)->regs[5])
#define O_DIRECT 0x10000
#define IS_COMPAT(r) ((r)->pstate & 0x10)
#define NUMBER(r) ((long)(r)->syscallno)
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
#define MAP_TYPE 0x0f
#define MAP_SHARED 1
#define MAP_SHARED_VALIDATE 3
#define MAP_ANONYMOUS 0x20
#define PROT_WRITE 2
#define MS_SYNC 4
#define AT_REMOVEDIR 0x200
#define POSIX_FADV_WILLNEED 3
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

/* A field of a kernel's object: by a plain load from Linux 6.2 on, before by a call of bpf_probe_read_kernel, which takes
 * longer than all else here. The way that is not taken is removed when a program is loaded.
 */
const volatile bool casts = false; /* the kernel has bpf_rdonly_cast */
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;
#define FIELD(object, field) \
	(casts ? ((typeof(object))bpf_rdonly_cast(object, bpf_core_type_id_kernel(typeof(*(object)))))->field \
	       : BPF_CORE_READ(object, field))

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

static __always_inline void dropped(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&drops, &zero);

	if (count)
		__sync_fetch_and_add(count, 1); /* the program may be preempted by another */
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

static __always_inline bool is_storage(struct super_block *sb)
{
	unsigned long magic = BPF_CORE_READ(sb, s_magic);

	return !(magic == PROC_MAGIC || magic == SYSFS_MAGIC || magic == CGROUP_MAGIC || magic == CGROUP2_MAGIC ||
	    magic == DEBUGFS_MAGIC || magic == TRACEFS_MAGIC || magic == SECURITYFS_MAGIC || magic == BPF_MAGIC ||
	    magic == HUGETLBFS_MAGIC || (BPF_CORE_READ(sb, s_flags) & SB_KERNMOUNT));
}

/* Gives an inode its number; 0 if it is none of ours. */
static __noinline u32 number_new(struct inode *inode, struct dentry *dentry, struct file_key *key, u32 created)
{
	enum claim whose = CLAIM_NEVER;
	u32 id = IGNORED, *known;
	long error;

	if (is_storage(BPF_CORE_READ(inode, i_sb)))
		whose = claim(inode, dentry, key->dev);
	if (whose == CLAIM_NOT)
		return 0;
	if (whose == CLAIM_OWN)
		id = __sync_fetch_and_add(&next_file, 1) + 1;
	if (whose == CLAIM_OWN && !accept(id, key, dentry)) {
		dropped();
		return 0;
	}
	error = bpf_map_update_elem(&files, key, &id, created ? BPF_ANY : BPF_NOEXIST);
	if (error) {
		known = bpf_map_lookup_elem(&files, key); /* another CPU was faster, or the table is full */
		if (!known) {
			dropped();
			return 0;
		}
		return *known == IGNORED ? 0 : *known;
	}
	if (whose != CLAIM_OWN)
		return 0;
	if (send_file(inode, dentry, id, created ? ZT_CREATED : ZT_SEEN)) {
		bpf_map_delete_elem(&files, key); /* try again at the next call */
		return 0;
	}
	return id;
}

static __noinline u32 number_of(struct file *file, u32 created)
{
	struct inode *inode = FIELD(file, f_inode);
	struct super_block *sb = FIELD(inode, i_sb);
	struct file_key key = {};
	u32 *known;

	if ((FIELD(inode, i_mode) & S_IFMT) != S_IFREG)
		return 0;
	key.ino = FIELD(inode, i_ino);
	key.dev = FIELD(sb, s_dev);
	key.gen = FIELD(inode, i_generation);
	if (!created) {
		known = bpf_map_lookup_elem(&files, &key);
		if (known) {
			u32 id = *known;

			if (id == IGNORED)
				return 0;
			met_again(id, file);
			return id;
		}
	}
	return number_new(inode, BPF_CORE_READ(file, f_path.dentry), &key, created);
}

static __always_inline u32 number_of_file(struct file *file)
{
	return number_of(file, 0);
}

static __always_inline u16 open_flags(u32 f)
{
	u16 synced = f & O_SYNC_BIT ? ZT_F_SYNC : f & O_DSYNC ? ZT_F_DSYNC : 0;

	return synced | (f & O_DIRECT ? ZT_F_DIRECT : 0) | (f & O_APPEND ? ZT_F_APPEND : 0);
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

#endif
