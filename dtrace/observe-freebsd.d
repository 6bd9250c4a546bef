#!/usr/sbin/dtrace -Zs
/*
 * What a process and its children read, write and sync on FreeBSD: per file and call, histograms of
 * sizes and latencies; per system call, how many and how long. Everything is added up in the kernel.
 *
 *     dtrace -q -Zs dtrace/observe-freebsd.d -p PID [SECONDS] > observed.txt
 *     ztune observe --from observed.txt
 *
 * Without SECONDS it runs until it is interrupted. It reads only; see README.md for what it needs.
 * There is no fds[] here: files are named as they are opened, and a descriptor that was open before
 * the script began is named PROCESS:DESCRIPTOR (procstat -f PROCESS tells what it is).
 */

#pragma D option quiet
#pragma D option defaultargs
#pragma D option aggsize=8m
#pragma D option bufsize=4m
#pragma D option dynvarsize=32m
#pragma D option strsize=512

dtrace:::BEGIN
{
	begun = timestamp;
	ticks = 0;
	printf("#ztune observe.d 1\n");
	printf("#ztune platform freebsd\n");
}

profile:::tick-1sec
/$1 > 0/
{
	ticks++;
}

profile:::tick-1sec
/$1 > 0 && ticks >= $1/
{
	exit(0);
}

/* The name is copied at the return, when the kernel has read it and its page is there. */
syscall::open:entry
/(pid == $target || progenyof($target))/
{
	self->name = arg0;
	self->opening = 1;
}

syscall::openat:entry
/(pid == $target || progenyof($target))/
{
	self->name = arg1;
	self->opening = 1;
}

syscall::open:return,
syscall::openat:return
/self->opening && (int64_t)arg1 >= 0/
{
	named[pid, (uint64_t)arg1] = 1;
	path[pid, (uint64_t)arg1] = copyinstr(self->name);
}

syscall::open:return,
syscall::openat:return
/self->opening/
{
	self->opening = 0;
	self->name = 0;
}

/* Sockets and pipes take the numbers of closed files. */
syscall::close:entry
/(pid == $target || progenyof($target)) && named[pid, (uint64_t)arg0]/
{
	named[pid, (uint64_t)arg0] = 0;
	path[pid, (uint64_t)arg0] = 0;
}

syscall::read:entry,
syscall::readv:entry,
syscall::pread:entry,
syscall::preadv:entry
/(pid == $target || progenyof($target))/
{
	self->path = named[pid, (uint64_t)arg0] ? path[pid, (uint64_t)arg0] :
	    strjoin(lltostr(pid), strjoin(":", lltostr(arg0)));
	self->read = timestamp;
}

syscall::write:entry,
syscall::writev:entry,
syscall::pwrite:entry,
syscall::pwritev:entry
/(pid == $target || progenyof($target))/
{
	self->path = named[pid, (uint64_t)arg0] ? path[pid, (uint64_t)arg0] :
	    strjoin(lltostr(pid), strjoin(":", lltostr(arg0)));
	self->write = timestamp;
}

syscall::fsync:entry,
syscall::fdatasync:entry
/(pid == $target || progenyof($target))/
{
	self->path = named[pid, (uint64_t)arg0] ? path[pid, (uint64_t)arg0] :
	    strjoin(lltostr(pid), strjoin(":", lltostr(arg0)));
	self->sync = timestamp;
}

syscall::read:return,
syscall::readv:return,
syscall::pread:return,
syscall::preadv:return
/self->read && (int64_t)arg1 >= 0/
{
	@read_sizes[probefunc, self->path] = quantize(arg1);
	@read_bytes[probefunc, self->path] = sum(arg1);
	@read_latency[probefunc, self->path] = quantize(timestamp - self->read);
}

syscall::read:return,
syscall::readv:return,
syscall::pread:return,
syscall::preadv:return
/self->read/
{
	self->read = 0;
	self->path = 0;
}

syscall::write:return,
syscall::writev:return,
syscall::pwrite:return,
syscall::pwritev:return
/self->write && (int64_t)arg1 >= 0/
{
	@write_sizes[probefunc, self->path] = quantize(arg1);
	@write_bytes[probefunc, self->path] = sum(arg1);
	@write_latency[probefunc, self->path] = quantize(timestamp - self->write);
}

syscall::write:return,
syscall::writev:return,
syscall::pwrite:return,
syscall::pwritev:return
/self->write/
{
	self->write = 0;
	self->path = 0;
}

syscall::fsync:return,
syscall::fdatasync:return
/self->sync && (int64_t)arg1 >= 0/
{
	@sync_latency[probefunc, self->path] = quantize(timestamp - self->sync);
}

syscall::fsync:return,
syscall::fdatasync:return
/self->sync/
{
	self->sync = 0;
	self->path = 0;
}

syscall:::entry
/(pid == $target || progenyof($target))/
{
	self->call = timestamp;
}

syscall:::return
/self->call && (int64_t)arg1 == -1/
{
	@errors[probefunc] = count();
}

syscall:::return
/self->call/
{
	@calls[probefunc] = count();
	@call_ns[probefunc] = sum(timestamp - self->call);
	self->call = 0;
}

dtrace:::END
{
	printf("#ztune seconds %d.%03d\n", (timestamp - begun) / 1000000000,
	    ((timestamp - begun) / 1000000) % 1000);
	printf("#ztune write-sizes call path\n");
	printa("\n  %s  %s%@d\n", @write_sizes);
	printf("#ztune write-latency call path\n");
	printa("\n  %s  %s%@d\n", @write_latency);
	printf("#ztune read-sizes call path\n");
	printa("\n  %s  %s%@d\n", @read_sizes);
	printf("#ztune read-latency call path\n");
	printa("\n  %s  %s%@d\n", @read_latency);
	printf("#ztune sync-latency call path\n");
	printa("\n  %s  %s%@d\n", @sync_latency);
	printf("#ztune write-bytes call path\n");
	printa("  %s  %s  %@d\n", @write_bytes);
	printf("#ztune read-bytes call path\n");
	printa("  %s  %s  %@d\n", @read_bytes);
	printf("#ztune calls call\n");
	printa("  %s  %@d\n", @calls);
	printf("#ztune call-ns call\n");
	printa("  %s  %@d\n", @call_ns);
	printf("#ztune errors call\n");
	printa("  %s  %@d\n", @errors);
	printf("#ztune end\n");
}
