/* The system calls that matter, each with what it means (enum zt_kind, records.h). Those that an architecture lacks are
 * left out by the loader. */
#ifndef ZTUNE_CALLS_H
#define ZTUNE_CALLS_H

/* Those that move data, or make it durable. */
#define ZT_DATA_CALLS(X) \
	X(read, READ) \
	X(readv, READ) \
	X(write, WRITE) \
	X(writev, WRITE) \
	X(pread64, PREAD) \
	X(preadv, PREAD) \
	X(pwrite64, PWRITE) \
	X(pwritev, PWRITE) \
	X(preadv2, PREAD2) \
	X(pwritev2, PWRITE2) \
	X(fsync, FSYNC) \
	X(fdatasync, FDATASYNC) \
	X(sync_file_range, SYNC_RANGE) \
	X(copy_file_range, COPY) \
	X(splice, COPY) \
	X(sendfile64, SENDFILE) \
	X(mmap, MMAP) \
	X(msync, MSYNC) \
	X(io_submit, IO_SUBMIT) \
	X(io_getevents, IO_GETEVENTS) \
	X(io_pgetevents, IO_GETEVENTS)

/* Those that give a file another name. */
#define ZT_RENAME_CALLS(X) \
	X(rename, RENAME) \
	X(renameat, RENAMEAT) \
	X(renameat2, RENAMEAT2) \
	X(link, LINK) \
	X(linkat, LINKAT)

/* Those that make and remove files, or change their size, or ask for what will be read; and sync, which is about no file. */
#define ZT_NAME_CALLS(X) \
	X(fallocate, FALLOCATE) \
	X(ftruncate, FTRUNCATE) \
	X(truncate, TRUNCATE) \
	X(open, OPEN) \
	X(creat, CREAT) \
	X(openat, OPENAT) \
	X(openat2, OPENAT2) \
	X(unlink, UNLINK) \
	X(unlinkat, UNLINKAT) \
	X(fadvise64, FADVISE) \
	X(readahead, READAHEAD) \
	X(sync, SYNC) \
	X(syncfs, SYNC)

#define ZT_CALL_INDEX(name, kind) ZT_C_##name,
enum zt_call { ZT_DATA_CALLS(ZT_CALL_INDEX) ZT_RENAME_CALLS(ZT_CALL_INDEX) ZT_NAME_CALLS(ZT_CALL_INDEX) ZT_CALLS };

#endif
