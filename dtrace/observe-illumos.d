#!/usr/sbin/dtrace -Zs
/*
 * What a process and its children read, write and sync on illumos: per file and call, histograms of
 * sizes and latencies; per system call, how many and how long. Everything is added up in the kernel.
 *
 *     dtrace -q -Zs dtrace/observe-illumos.d -p PID [SECONDS] > observed.txt
 *     ztune observe --from observed.txt
 *
 * Without SECONDS it runs until it is interrupted. It reads only; see README.md for what it needs.
 * fds[] names each descriptor's file; sockets, pipes and devices are left out.
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
	printf("#ztune platform illumos\n");
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

syscall::read:entry,
syscall::readv:entry,
syscall::pread:entry,
syscall::pread64:entry,
syscall::preadv:entry
/(pid == $target || progenyof($target)) && fds[arg0].fi_fs != "<none>" && fds[arg0].fi_fs != "sockfs" &&
    fds[arg0].fi_fs != "fifofs" && fds[arg0].fi_fs != "specfs" && fds[arg0].fi_fs != "proc"/
{
	self->path = fds[arg0].fi_pathname;
	self->read = timestamp;
}

syscall::write:entry,
syscall::writev:entry,
syscall::pwrite:entry,
syscall::pwrite64:entry,
syscall::pwritev:entry
/(pid == $target || progenyof($target)) && fds[arg0].fi_fs != "<none>" && fds[arg0].fi_fs != "sockfs" &&
    fds[arg0].fi_fs != "fifofs" && fds[arg0].fi_fs != "specfs" && fds[arg0].fi_fs != "proc"/
{
	self->path = fds[arg0].fi_pathname;
	self->write = timestamp;
}

syscall::fdsync:entry
/(pid == $target || progenyof($target)) && fds[arg0].fi_fs != "<none>" && fds[arg0].fi_fs != "sockfs" &&
    fds[arg0].fi_fs != "fifofs" && fds[arg0].fi_fs != "specfs" && fds[arg0].fi_fs != "proc"/
{
	self->path = fds[arg0].fi_pathname;
	self->sync = timestamp;
}

syscall::read:return,
syscall::readv:return,
syscall::pread:return,
syscall::pread64:return,
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
syscall::pread64:return,
syscall::preadv:return
/self->read/
{
	self->read = 0;
	self->path = 0;
}

syscall::write:return,
syscall::writev:return,
syscall::pwrite:return,
syscall::pwrite64:return,
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
syscall::pwrite64:return,
syscall::pwritev:return
/self->write/
{
	self->write = 0;
	self->path = 0;
}

syscall::fdsync:return
/self->sync && (int64_t)arg1 >= 0/
{
	@sync_latency[probefunc, self->path] = quantize(timestamp - self->sync);
}

syscall::fdsync:return
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
