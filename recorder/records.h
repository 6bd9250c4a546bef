/* What the BPF programs hand to the loader, and the loader writes to disk. Little or big endian as the host;
 * recorders/ebpf.py holds the same layout as numpy types. Keep in step. */
#ifndef ZTUNE_RECORDS_H
#define ZTUNE_RECORDS_H

#define ZT_PATH_BYTES 4096
#define ZT_PATH_ROOM (ZT_PATH_BYTES - 256) /* a name is at most 255 bytes and its NUL */
#define ZT_PATH_DEPTH 64

/* The system calls, by what they mean to the recorder; the loader fills the table number -> kind. */
enum zt_kind {
	ZT_K_NONE = 0,
	ZT_K_READ,
	ZT_K_WRITE,
	ZT_K_PREAD,
	ZT_K_PWRITE,
	ZT_K_PREAD2,
	ZT_K_PWRITE2,
	ZT_K_FSYNC,
	ZT_K_FDATASYNC,
	ZT_K_SYNC_RANGE,
	ZT_K_FALLOCATE,
	ZT_K_FTRUNCATE,
	ZT_K_TRUNCATE,
	ZT_K_OPEN,
	ZT_K_CREAT,
	ZT_K_OPENAT,
	ZT_K_OPENAT2,
	ZT_K_RENAME,
	ZT_K_RENAMEAT,
	ZT_K_RENAMEAT2,
	ZT_K_UNLINK,
	ZT_K_UNLINKAT,
	ZT_K_LINK,
	ZT_K_LINKAT,
	ZT_K_COPY,
	ZT_K_SENDFILE,
	ZT_K_MMAP,
	ZT_K_MSYNC,
	ZT_K_SYNC,
	ZT_K_IO_SUBMIT,
	ZT_K_IO_GETEVENTS,
	ZT_K_FADVISE,
	ZT_K_READAHEAD,
};
#define ZT_SYSCALLS 512
/* OpenZFS begins to read no more for one call (dmu_prefetch_max), whatever is asked for. */
#define ZT_MOST_AHEAD (128 << 20)

/* Codes of src/ztune/trace/schema.py (Op, Via, Flag). */
enum zt_op {
	ZT_READ = 1,
	ZT_WRITE = 2,
	ZT_FSYNC = 3,
	ZT_FDATASYNC = 4,
	ZT_SYNC_RANGE = 5,
	ZT_TRUNCATE = 6,
	ZT_FALLOCATE = 7,
	ZT_CREATE = 8,
	ZT_UNLINK = 9,
	ZT_RENAME = 10,
	ZT_COPY = 11,
	ZT_MMAP = 12,
	ZT_MSYNC = 13,
	ZT_SYNC = 14,
	ZT_READ_AHEAD = 16,
	/* Not an event of the trace: a shared mapping that is only read; it becomes a warning. */
	ZT_MMAP_READ = 100,
};

enum zt_via { ZT_SYSCALL = 0, ZT_AIO = 1, ZT_URING = 2 };

enum zt_flag {
	ZT_F_SYNC = 1,
	ZT_F_DSYNC = 2,
	ZT_F_DIRECT = 4,
	ZT_F_APPEND = 8,
	ZT_F_KEEP_SIZE = 16,
	ZT_F_PUNCH = 32,
	ZT_F_ZERO = 64,
	ZT_F_POSITIONED = 128,
};

struct zt_event {
	unsigned long long t;   /* CLOCK_MONOTONIC, ns, at the start */
	unsigned long long dur; /* ns */
	long long offset;
	long long size;
	unsigned int file; /* number given at first sight, from 1; 0: none */
	unsigned int file2;
	unsigned int pid;
	unsigned int tid;
	unsigned short flags;
	unsigned char op;
	unsigned char via;
	unsigned int since_sync; /* ns from another's sync's end, for which the task waited, to t; 0: of none */
	unsigned int waited;     /* ns that it waited for such syncs since its last call */
	unsigned int pad;
};

enum zt_file_kind {
	ZT_SEEN = 1,    /* a file at first sight, as it was before the call that showed it */
	ZT_CREATED = 2, /* likewise, and that call made it */
	ZT_CALL = 3,    /* a call on names ended well; rename and link are two records, old name and new */
};

/* Numbers of enum zt_op, and for calls on names that are no event: */
#define ZT_LINK 101

struct zt_file {
	unsigned long long t;
	unsigned long long dur;
	unsigned long long ino;
	long long size; /* of the file; of ZT_TRUNCATE the new size */
	unsigned int id;
	unsigned int dev; /* the kernel's dev_t: 12 bits major, 20 bits minor */
	unsigned int gen;
	unsigned int links;
	unsigned int pid;
	unsigned int tid;
	unsigned char kind;
	unsigned char op;
	unsigned char part;      /* 0: the old name or the only one; 1: the new one */
	unsigned char truncated; /* the path is too long or too deep to be known whole */
	/* names from inside to outside, each ended by NUL: of the file, or of the folder that a relative user_path begins at */
	unsigned int path_bytes;
	unsigned int user_bytes; /* the path that the call named, ended by NUL */
	unsigned int pad;
	char path[ZT_PATH_BYTES];
	char user_path[ZT_PATH_BYTES];
};
#define ZT_FILE_HEADER (sizeof(struct zt_file) - 2 * ZT_PATH_BYTES)

/* events.raw is a row of frames: this header, and as many bytes as it says. */
enum zt_frame_kind {
	ZT_EVENTS = 1, /* events by t: the bytes of their members one after the other, t as differences, deflated */
	ZT_BEGIN = 2,  /* a window begins: two numbers, CLOCK_MONOTONIC and CLOCK_REALTIME in ns */
	ZT_END = 3,    /* and ends: likewise */
};

struct zt_frame {
	unsigned int kind;
	unsigned int rows;  /* of events */
	unsigned int bytes; /* that follow */
	unsigned int magic;
};
#define ZT_MAGIC 0x6d72665a /* "Zfrm" */

/* What was done to a file, also where its events are not handed on. Counted where a sample is recorded. */
struct zt_tally {
	unsigned long long ino;
	unsigned long long reads;
	unsigned long long read_bytes;
	unsigned long long writes;
	unsigned long long write_bytes;
	unsigned long long syncs;    /* fsync, fdatasync, msync and writes of files opened with O_SYNC or O_DSYNC */
	unsigned long long in_order; /* writes that go on where the one before ended, or write its end again */
	long long begin;             /* of the last write */
	long long end;
	long long size;       /* how far anything was read or written */
	unsigned int sampled; /* from now on events of regions outside the sample are left out */
	unsigned int pad;
};

#define ZT_REGION_SHIFT 20

#endif
