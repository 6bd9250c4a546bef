/* The few kernel types that the recorder reads, with only the fields it reads.
 *
 * preserve_access_index makes the loader look each field up in the running kernel's BTF, so neither kernel
 * headers nor a generated vmlinux.h are needed to build, and one object fits many kernels.
 */
#ifndef ZTUNE_KERNEL_H
#define ZTUNE_KERNEL_H

#include <stdbool.h>

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

/* linux/bpf.h can't be included beside own types; these are its (stable) values. */
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_RB_NO_WAKEUP = 1 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r10, r9, r8, dx, si, di, orig_ax;
	u16 cs;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	unsigned long regs[31];
	u64 pstate;
	s32 syscallno;
};
#else
#error "the recorder knows x86 and arm64"
#endif

struct super_block {
	u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
};

struct inode {
	u16 i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_nlink;
	s64 i_size;
	u32 i_generation;
};

struct qstr {
	u64 hash_len; /* in a union without a name */
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct super_block *d_sb;
};

struct path {
	struct dentry *dentry;
};

struct file {
	u32 f_mode;
	struct inode *f_inode;
	unsigned int f_flags;
	struct path f_path;
	s64 f_pos;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct fs_struct {
	struct path pwd;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct thread_info {
	struct {
		u32 count;
	} preempt; /* not on x86 */
};

struct pcpu_hot { /* x86, Linux 6.2 to 6.14 */
	int preempt_count;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	struct sched_entity se;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct files_struct *files;
	struct fs_struct *fs;
	struct signal_struct *signal;
	unsigned long nvcsw;
	unsigned long nivcsw;
};

struct kiocb {
	s64 ki_pos;
};

/* io_uring */
struct io_cqe {
	s32 res;
	int fd; /* until the request has its file */
};

/* Registered files, since Linux 6.13. */
struct io_rsrc_node {
	unsigned long file_ptr;
};

struct io_rsrc_data {
	unsigned int nr;
	struct io_rsrc_node **nodes;
};

struct io_file_table {
	struct io_rsrc_data data;
};

struct io_ring_ctx {
	struct io_file_table file_table;
};

struct io_kiocb {
	struct file *file;
	u8 opcode;
	u64 flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
};

struct io_rw {
	struct kiocb kiocb;
	u32 len;
	u32 flags;
};

struct io_sync {
	s64 len;
	s64 off;
	int flags;
	int mode;
};

#pragma clang attribute pop

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* The user's struct iocb is ABI (linux/aio_abi.h): read as it is, without relocation. */
struct user_iocb {
	u64 data;
	u32 key;
	u32 rw_flags;
	u16 opcode;
	__s16 reqprio;
	u32 fd;
	u64 buf;
	u64 nbytes;
	s64 offset;
	u64 reserved;
	u32 flags;
	u32 resfd;
};

struct user_io_event {
	u64 data;
	u64 obj; /* address of the iocb */
	s64 res;
	s64 res2;
};

#endif
