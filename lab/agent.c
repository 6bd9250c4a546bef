/*
 * The first and only resident process of the lab's guest.
 *
 * As /init of the initial ramdisk it loads the kernel modules in /modules, in the order of their names, and says so on
 * a virtio-serial port. There the saved state is taken, with nothing mounted but kernel file systems. After each resume
 * the host sends SETUP: the clock is set, the random generator reseeded, the host's files mounted read-only below a
 * writable layer in memory. From then on it runs commands for the host, several at a time, over the same port.
 *
 * It also does what udev would: links in /dev/disk/by-id, and the entries in /run/udev/data that libzfs waits for.
 *
 * A guest in user mode (UML, told by "ztune.port=" on the kernel's command line) is booted each time. Its port is a
 * serial line, the host's files come by hostfs, and its disks are virtio's, which have no serial numbers: the host
 * names them, in their order.
 *
 * In C and static because it must be there in the saved state, before any of the host's files, and because forking a
 * small process is cheap even when the processor is emulated.
 *
 * A frame, both ways, little-endian: 'Z', type, 2 bytes 0, id of the command (4), length (4), payload.
 * The types and payloads are listed below; src/ztune/lab/wire.py is the other end.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/random.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {               /* from the host */
	F_HELLO = 1, /* any bytes; answered by HELLO with the same bytes */
	F_SETUP,     /* u64 clock in ns, 32 bytes of seed, lines KEY=VALUE */
	F_RUN, /* u32 flags, u16 rows, u16 columns, u32 n of arguments, then strings: directory, arguments, environment */
	F_STDIN,  /* bytes */
	F_EOF,    /* no more stdin */
	F_CREDIT, /* u32: so many bytes of output have been taken */
	F_SIGNAL, /* u32: to the command's process group */
	F_RESIZE, /* u16 rows, u16 columns */
	/* from the guest */
	F_BOOTED = 16, /* text */
	F_READY,       /* SETUP is done */
	F_FAILED,      /* text: SETUP or RUN could not be done */
	F_STDOUT,
	F_STDERR,
	F_EXIT,  /* u32: exit code, 128 + signal if killed */
	F_TAKEN, /* u32: so many bytes of stdin have been written */
};
#define RUN_PTY 1u

#define HEADER 12
#define PAYLOAD (32 * 1024 - HEADER)
#define WINDOW (256 * 1024) /* bytes under way per command and direction; wire.py has the same */
#define COMMANDS 64
#define LOST_S 5 /* the host is gone for so long: nobody will ever stop this guest */

struct command {
	uint32_t id;
	pid_t pid;
	int used, in, out, err, pty;
	int eof;       /* close stdin when what is pending is written */
	int status;    /* -1 while it runs */
	size_t credit; /* bytes that may still be sent */
	char *pending; /* stdin not yet written */
	size_t start, length;
};

#define DISKS 26 /* of a guest in user mode: vda to vdz */

static struct command commands[COMMANDS];
static int port = -1, uevents = -1, set_up, user_mode;
static char serials[DISKS][64]; /* of a guest in user mode */

static void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

static void power_off(void)
{
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

/* ---- the port ---------------------------------------------------------------------------------------------------- */

static void put32(unsigned char *at, uint32_t value)
{
	memcpy(at, &value, 4);
}

static uint32_t get32(const unsigned char *at)
{
	uint32_t value;
	memcpy(&value, at, 4);
	return value;
}

static int write_all(int fd, const void *data, size_t length)
{
	const char *at = data;
	while (length) {
		ssize_t n = write(fd, at, length);
		if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
			struct pollfd wait = {fd, POLLOUT, 0};
			poll(&wait, 1, 100);
			if (wait.revents & POLLHUP)
				return -1;
			continue;
		}
		if (n <= 0)
			return -1;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

static void send_frame(int type, uint32_t id, const void *payload, size_t length)
{
	unsigned char frame[HEADER + PAYLOAD] = {'Z', (unsigned char)type, 0, 0};
	if (length > PAYLOAD)
		length = PAYLOAD;
	put32(frame + 4, id);
	put32(frame + 8, (uint32_t)length);
	if (length)
		memcpy(frame + HEADER, payload, length);
	write_all(port, frame, HEADER + length);
}

static void send_number(int type, uint32_t id, uint32_t value)
{
	unsigned char bytes[4];
	put32(bytes, value);
	send_frame(type, id, bytes, 4);
}

static void send_text(int type, uint32_t id, const char *format, ...)
{
	char text[1024];
	va_list list;
	va_start(list, format);
	int n = vsnprintf(text, sizeof text, format, list);
	va_end(list);
	send_frame(type, id, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static int read_small(const char *path, char *into, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, into, size - 1);
	close(fd);
	if (n < 0)
		return -1;
	into[n] = 0;
	return (int)n;
}

static void write_small(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd >= 0) {
		write_all(fd, text, strlen(text));
		close(fd);
	}
}

/* ---- start-up ---------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Each module in /modules, with its parameters from NAME.par beside it. */
static void load_modules(void)
{
	char *names[256];
	int count = 0;
	DIR *dir = opendir("/modules");
	struct dirent *entry;
	while (dir && (entry = readdir(dir)) && count < 256) {
		size_t n = strlen(entry->d_name);
		if (n > 3 && !strcmp(entry->d_name + n - 3, ".ko"))
			names[count++] = strdup(entry->d_name);
	}
	if (dir)
		closedir(dir);
	qsort(names, (size_t)count, sizeof *names, by_name);
	for (int i = 0; i < count; i++) {
		char path[300], parameters[512] = "";
		snprintf(path, sizeof path, "/modules/%s.par", names[i]);
		read_small(path, parameters, sizeof parameters);
		snprintf(path, sizeof path, "/modules/%s", names[i]);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (syscall(SYS_finit_module, fd, parameters, 0) != 0 && errno != EEXIST)
			say("ztune-lab: module %s can't be loaded: %s", names[i], strerror(errno));
		close(fd);
		unlink(path); /* its memory would be part of the saved state */
	}
}

/* The value of a word KEY=VALUE of the kernel's command line; NULL: it is not there. */
static char *told(const char *key)
{
	static char line[4096];
	size_t n = strlen(key);
	if (read_small("/proc/cmdline", line, sizeof line) < 0)
		return NULL;
	for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"))
		if (!strncmp(word, key, n) && word[n] == '=')
			return word + n + 1;
	return NULL;
}

static int serial_line(const char *path)
{
	struct termios mode;
	int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || tcgetattr(fd, &mode))
		return -1;
	cfmakeraw(&mode);
	return tcsetattr(fd, TCSANOW, &mode) ? -1 : fd;
}

static int find_port(void)
{
	char *line = told("ztune.port");
	if (line)
		return serial_line(line);
	for (int i = 0; i < 2000; i++) {
		DIR *dir = opendir("/sys/class/virtio-ports");
		struct dirent *entry;
		while (dir && (entry = readdir(dir))) {
			char path[300], name[64];
			snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
			if (entry->d_name[0] == '.' || read_small(path, name, sizeof name) < 0 ||
			    strcmp(name, "ztune\n"))
				continue;
			snprintf(path, sizeof path, "/dev/%s", entry->d_name);
			int fd = open(path, O_RDWR | O_CLOEXEC);
			if (fd >= 0) {
				closedir(dir);
				return fd;
			}
		}
		if (dir)
			closedir(dir);
		usleep(5000);
	}
	return -1;
}

/* The value of a line KEY=VALUE; NULL: it is not there. */
static char *option(char *lines, const char *key)
{
	size_t n = strlen(key);
	for (char *at = lines; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
		if (!strncmp(at, key, n) && at[n] == '=') {
			char *end = strchrnul(at, '\n');
			return strndup(at + n + 1, (size_t)(end - at) - n - 1);
		}
	return NULL;
}

/* ---- what udev would do --------------------------------------------------------------------------------------------- */

/* Serial number of a SCSI disk such as "sda", from page 0x80 of its vital product data; of "vda" what the host said. */
static int serial_of(const char *disk, char *serial, size_t size)
{
	if (user_mode) {
		unsigned n = (unsigned)(disk[2] - 'a');
		snprintf(serial, size, "%s", n < DISKS && !disk[3] ? serials[n] : "");
		return serial[0] ? 0 : -1;
	}
	char path[300], page[256];
	snprintf(path, sizeof path, "/sys/block/%s/device/vpd_pg80", disk);
	int n = read_small(path, page, sizeof page);
	if (n < 5)
		return -1;
	char *at = page + 4, *end = page + n;
	while (at < end && *at == ' ')
		at++;
	while (end > at && (end[-1] == ' ' || end[-1] == 0))
		end--;
	snprintf(serial, size, "%.*s", (int)(end - at), at);
	return serial[0] ? 0 : -1;
}

/* A disk or partition came or went: /devices/…/block/sda or /devices/…/block/sda/sda1. */
static void block_event(int add, const char *devpath, unsigned major_, unsigned minor_)
{
	char disk[64], part[64] = "", serial[128], link[256], text[600], data[64], target[80];
	const char *at = strstr(devpath, "/block/");
	if (!at || sscanf(at, "/block/%63[^/]/%63[^/]", disk, part) < 1 || strncmp(disk, user_mode ? "vd" : "sd", 2))
		return;
	snprintf(data, sizeof data, "/run/udev/data/b%u:%u", major_, minor_);
	if (!add) {
		/* The serial is gone with the disk: the link is found by where it points. */
		DIR *dir = opendir("/dev/disk/by-id");
		struct dirent *entry;
		char want[80];
		snprintf(want, sizeof want, "../../%s", part[0] ? part : disk);
		while (dir && (entry = readdir(dir))) {
			snprintf(link, sizeof link, "/dev/disk/by-id/%.200s", entry->d_name);
			ssize_t n = readlink(link, target, sizeof target - 1);
			if (n > 0 && (target[n] = 0, !strcmp(target, want)))
				unlink(link);
		}
		if (dir)
			closedir(dir);
		unlink(data);
		return;
	}
	if (serial_of(disk, serial, sizeof serial))
		return;
	for (char *c = serial; *c; c++)
		if (*c == ' ' || *c == '/')
			*c = '_';
	if (part[0])
		snprintf(link, sizeof link, "disk/by-id/ztune-%s-part%s", serial, part + strlen(disk));
	else
		snprintf(link, sizeof link, "disk/by-id/ztune-%s", serial);
	snprintf(text, sizeof text, "/dev/%s", link);
	snprintf(target, sizeof target, "../../%s", part[0] ? part : disk);
	unlink(text);
	if (symlink(target, text) && errno != EEXIST)
		say("ztune-lab: %s: %s", text, strerror(errno));
	snprintf(text, sizeof text, "S:%s\nI:%ld\nE:ID_SERIAL=%s\nE:ID_BUS=scsi\nG:systemd\nQ:systemd\nV:1\n", link,
	    (long)time(NULL), serial);
	write_small(data, text);
}

static void read_uevents(void)
{
	char buffer[8192];
	ssize_t n;
	while ((n = recv(uevents, buffer, sizeof buffer - 1, MSG_DONTWAIT)) > 0) {
		char *action = "", *devpath = "", *subsystem = "";
		unsigned major_ = 0, minor_ = 0;
		buffer[n] = 0;
		for (char *at = buffer; at < buffer + n; at += strlen(at) + 1) {
			if (!strncmp(at, "ACTION=", 7))
				action = at + 7;
			else if (!strncmp(at, "DEVPATH=", 8))
				devpath = at + 8;
			else if (!strncmp(at, "SUBSYSTEM=", 10))
				subsystem = at + 10;
			else if (!strncmp(at, "MAJOR=", 6))
				major_ = (unsigned)atoi(at + 6);
			else if (!strncmp(at, "MINOR=", 6))
				minor_ = (unsigned)atoi(at + 6);
		}
		if (set_up && !strcmp(subsystem, "block"))
			block_event(strcmp(action, "remove") != 0, devpath, major_, minor_);
	}
}

/* A guest in user mode has its disks from the beginning. DISKn=SERIAL ROTATIONAL of the lines tells what they are. */
static void name_disks(char *lines)
{
	for (unsigned i = 0; i < DISKS; i++) {
		char key[16], path[64], device[32], event[64];
		unsigned major_, minor_;
		snprintf(key, sizeof key, "disk%u", i);
		char *text = option(lines, key), *turns = text ? strchr(text, ' ') : NULL;
		if (!turns)
			return;
		*turns++ = 0;
		snprintf(serials[i], sizeof serials[i], "%s", text);
		snprintf(path, sizeof path, "/sys/block/vd%c/queue/rotational", 'a' + i);
		write_small(path, turns);
		/* What serves it does not say that it has a write cache: nothing would be flushed. */
		snprintf(path, sizeof path, "/sys/block/vd%c/cache_type", 'a' + i);
		write_small(path, "write back");
		snprintf(path, sizeof path, "/sys/block/vd%c/dev", 'a' + i);
		if (read_small(path, device, sizeof device) > 0 && sscanf(device, "%u:%u", &major_, &minor_) == 2) {
			snprintf(event, sizeof event, "/block/vd%c", 'a' + i);
			block_event(1, event, major_, minor_);
		}
		free(text);
	}
}

static void listen_uevents(void)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = 1};
	int size = 1 << 20;
	uevents = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
	setsockopt(uevents, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	if (bind(uevents, (struct sockaddr *)&address, sizeof address))
		say("ztune-lab: uevents: %s", strerror(errno));
}

/* ---- after each resume ---------------------------------------------------------------------------------------------- */

static void interface_up(const char *name, const char *address)
{
	struct ifreq request = {0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
	if (address) {
		struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
		in->sin_family = AF_INET;
		inet_aton(address, &in->sin_addr);
		ioctl(fd, SIOCSIFADDR, &request);
		inet_aton("255.255.255.0", &in->sin_addr);
		ioctl(fd, SIOCSIFNETMASK, &request);
	}
	ioctl(fd, SIOCGIFFLAGS, &request);
	request.ifr_flags |= IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		say("ztune-lab: %s: %s", name, strerror(errno));
	close(fd);
}

static char failure[512];

static int mount_it(const char *what, const char *where, const char *type, unsigned long flags, const char *options)
{
	mkdir(where, 0755);
	if (mount(what, where, type, flags, options) == 0)
		return 0;
	snprintf(failure, sizeof failure, "%s can't be mounted on %s: %s", type, where, strerror(errno));
	return -1;
}

/* Files of the host, read-only. In user mode a line of the host's, TAG=PATH, says where they are. */
static int share(const char *tag, const char *where, const char *cache, char *lines)
{
	char options[256], *path = user_mode ? option(lines, tag) : NULL;
	if (user_mode)
		return mount_it(tag, where, "hostfs", MS_RDONLY, path ? path : "/");
	snprintf(options, sizeof options, "trans=virtio,version=9p2000.L,msize=524288,access=any,cache=%s", cache);
	return mount_it(tag, where, "9p", MS_RDONLY, options);
}

static int setup(unsigned char *payload, size_t length)
{
	char options[256], lower[64];
	struct timespec now;
	uint64_t clock;
	struct {
		int bits, size;
		unsigned char seed[32];
	} entropy = {256, 32, {0}};

	snprintf(failure, sizeof failure, "the request is too short");
	if (length < 40)
		return -1;
	memcpy(&clock, payload, 8);
	memcpy(entropy.seed, payload + 8, 32);
	char *lines = strndup((char *)payload + 40, length - 40);
	now.tv_sec = (time_t)(clock / 1000000000u);
	now.tv_nsec = (long)(clock % 1000000000u);
	clock_settime(CLOCK_REALTIME, &now);
	/* Every resume starts with the same generator: two guests would draw the same numbers. */
	int random = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	ioctl(random, RNDADDENTROPY, &entropy);
	ioctl(random, RNDRESEEDCRNG, 0);
	close(random);

	interface_up("lo", NULL);
	if (mount_it("lower", "/lower", "tmpfs", 0, "mode=755"))
		return -1;
	if (share("root", "/lower/root", "loose", lines) || share("tools", "/lower/tools", "loose", lines))
		return -1;
	if (mount_it("upper", "/upper", "tmpfs", 0, "mode=755"))
		return -1;
	mkdir("/upper/files", 0755);
	mkdir("/upper/work", 0755);
	snprintf(lower, sizeof lower, "lowerdir=/lower/tools:/lower/root");
	snprintf(options, sizeof options, "%s,upperdir=/upper/files,workdir=/upper/work", lower);
	if (mount_it("lab", "/new", "overlay", 0, options))
		return -1;
	/* The host's files as they are now, /tmp included; nothing of it is kept in the guest's memory. */
	if (share("host", "/new/host", "none", lines))
		return -1;
	/* Pools of the host are none of ours. */
	unlink("/new/etc/zfs/zpool.cache");
	if (mount("/dev", "/new/dev", NULL, MS_MOVE, NULL) || mount("/proc", "/new/proc", NULL, MS_MOVE, NULL) ||
	    mount("/sys", "/new/sys", NULL, MS_MOVE, NULL)) {
		snprintf(failure, sizeof failure, "kernel file systems can't be moved: %s", strerror(errno));
		return -1;
	}
	mkdir("/new/tmp", 0755);
	mkdir("/new/run", 0755);
	mkdir("/new/var", 0755);
	if (mount_it("tmp", "/new/tmp", "tmpfs", MS_NODEV, "mode=1777") ||
	    mount_it("run", "/new/run", "tmpfs", MS_NODEV, "mode=755") ||
	    mount_it("vartmp", "/new/var/tmp", "tmpfs", MS_NODEV, "mode=1777"))
		return -1;
	mkdir("/new/run/lock", 01777);
	mkdir("/new/run/udev", 0755);
	mkdir("/new/run/udev/data", 0755);
	mkdir("/new/dev/disk", 0755);
	mkdir("/new/dev/disk/by-id", 0755);
	if (chdir("/new") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) {
		snprintf(failure, sizeof failure, "the new root can't be entered: %s", strerror(errno));
		return -1;
	}
	char *net = option(lines, "net"), *hostname = option(lines, "hostname");
	if (hostname)
		sethostname(hostname, strlen(hostname));
	if (net)
		interface_up("eth0", net);
	set_up = 1;
	if (user_mode)
		name_disks(lines);
	free(lines);
	return 0;
}

/* ---- commands ------------------------------------------------------------------------------------------------------ */

static struct command *find(uint32_t id)
{
	for (int i = 0; i < COMMANDS; i++)
		if (commands[i].used && commands[i].id == id)
			return &commands[i];
	return NULL;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void set_size(int fd, const unsigned char *at)
{
	uint16_t rows, columns;
	memcpy(&rows, at, 2);
	memcpy(&columns, at + 2, 2);
	struct winsize size = {rows, columns, 0, 0};
	ioctl(fd, TIOCSWINSZ, &size);
}

/* @disk SERIAL SECONDS: waits for the disk and prints its link, device, size in bytes, and whether it turns. */
static void wait_for_disk(char **argv)
{
	char link[256], target[128], path[300], size[64], turns[16];
	if (!argv[1] || !argv[2])
		_exit(2);
	snprintf(link, sizeof link, "/dev/disk/by-id/ztune-%.200s", argv[1]);
	for (long waited = 0; waited < atol(argv[2]) * 500; waited++) {
		ssize_t n = readlink(link, target, sizeof target - 1);
		if (n > 0) {
			target[n] = 0;
			char *name = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
			snprintf(path, sizeof path, "/sys/block/%s/size", name);
			if (read_small(path, size, sizeof size) < 0)
				_exit(1);
			snprintf(path, sizeof path, "/sys/block/%s/queue/rotational", name);
			if (read_small(path, turns, sizeof turns) < 0)
				_exit(1);
			dprintf(1, "%s /dev/%s %lld %d\n", link, name, atoll(size) * 512, atoi(turns));
			_exit(0);
		}
		usleep(2000);
	}
	_exit(1);
}

static void child(const char *directory, char **argv, char **env, int in, int out, int err, int terminal)
{
	sigset_t none;
	struct rlimit files = {65536, 65536}, core = {0, 0};
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setrlimit(RLIMIT_NOFILE, &files);
	setrlimit(RLIMIT_CORE, &core);
	setsid();
	dup2(in, 0);
	dup2(out, 1);
	dup2(err, 2);
	if (terminal)
		ioctl(0, TIOCSCTTY, 0);
	if (!strcmp(argv[0], "@disk"))
		wait_for_disk(argv);
	if (chdir(directory)) {
		dprintf(2, "ztune-lab: %s: %s\n", directory, strerror(errno));
		_exit(127);
	}
	environ = env;
	execvp(argv[0], argv);
	dprintf(2, "ztune-lab: %s: %s\n", argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

static void run(uint32_t id, unsigned char *payload, size_t length)
{
	struct command *c = NULL;
	for (int i = 0; i < COMMANDS && !c; i++)
		if (!commands[i].used)
			c = &commands[i];
	if (!c || length < 14 || payload[length - 1] != 0) {
		send_text(F_FAILED, id, c ? "the request is cut short" : "too many commands at a time");
		return;
	}
	uint32_t flags = get32(payload), arguments = get32(payload + 8), count = 0;
	for (size_t i = 12; i < length; i++)
		count += payload[i] == 0;
	if (arguments < 1 || count < arguments + 1) {
		send_text(F_FAILED, id, "the request names no command");
		return;
	}
	char **strings = calloc(count + 2, sizeof *strings);
	char *at = (char *)payload + 12, *directory = at;
	at += strlen(at) + 1;
	/* argv, NULL, environment, NULL */
	for (uint32_t i = 0; i + 1 < count; i++, at += strlen(at) + 1)
		strings[i < arguments ? i : i + 1] = at;

	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, terminal = (flags & RUN_PTY) != 0, bad;
	if (terminal) {
		char name[64];
		int unlock = 0, number = 0;
		in[1] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
		ioctl(in[1], TIOCSPTLCK, &unlock);
		ioctl(in[1], TIOCGPTN, &number);
		snprintf(name, sizeof name, "/dev/pts/%d", number);
		in[0] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
		bad = in[1] < 0 || in[0] < 0;
		if (!bad)
			set_size(in[1], payload + 4);
	} else {
		bad = pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC);
	}
	pid_t pid = bad ? -1 : fork();
	if (pid == 0) {
		char **env = strings + arguments + 1;
		if (terminal)
			child(directory, strings, env, in[0], in[0], in[0], 1);
		child(directory, strings, env, in[0], out[1], err[1], 0);
	}
	if (pid < 0)
		send_text(F_FAILED, id, "can't start a process: %s", strerror(errno));
	close_fd(&in[0]);
	close_fd(&out[1]);
	close_fd(&err[1]);
	if (pid < 0) {
		close_fd(&in[1]);
		close_fd(&out[0]);
		close_fd(&err[0]);
		free(strings);
		return;
	}
	free(strings);
	if (terminal)
		out[0] = fcntl(in[1], F_DUPFD_CLOEXEC, 0);
	*c = (struct command){
		.id = id,
		.pid = pid,
		.used = 1,
		.in = in[1],
		.out = out[0],
		.err = err[0],
		.pty = terminal,
		.status = -1,
		.credit = WINDOW,
	};
	c->pending = malloc(WINDOW);
	fcntl(c->in, F_SETFL, O_NONBLOCK);
	fcntl(c->out, F_SETFL, O_NONBLOCK);
	if (c->err >= 0)
		fcntl(c->err, F_SETFL, O_NONBLOCK);
}

/* Writes what stdin takes now. */
static void feed(struct command *c)
{
	uint32_t taken = 0;
	while (c->length && c->in >= 0) {
		size_t chunk = c->start + c->length > WINDOW ? WINDOW - c->start : c->length;
		ssize_t n = write(c->in, c->pending + c->start, chunk);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n < 0) { /* it reads no more: the rest is lost, as in any pipe */
			taken += (uint32_t)c->length;
			c->length = 0;
			close_fd(&c->in);
			break;
		}
		c->start = (c->start + (size_t)n) % WINDOW;
		c->length -= (size_t)n;
		taken += (uint32_t)n;
	}
	if (c->in < 0) {
		taken += (uint32_t)c->length;
		c->length = 0;
	}
	if (taken)
		send_number(F_TAKEN, c->id, taken);
	if (c->eof && !c->length && c->in >= 0) {
		/* A terminal that is full takes its end later: nobody else waits for it. */
		if (c->pty && write(c->in, "\004", 1) < 0 && errno == EAGAIN)
			return;
		close_fd(&c->in);
	}
}

/* Sends what a pipe holds, as far as the host has room; closes it at its end. 1: there may be more. */
static int drain(struct command *c, int *fd, int type)
{
	char buffer[PAYLOAD];
	if (*fd < 0 || !c->credit)
		return 0;
	ssize_t n = read(*fd, buffer, c->credit < sizeof buffer ? c->credit : sizeof buffer);
	if (n > 0) {
		c->credit -= (size_t)n;
		send_frame(type, c->id, buffer, (size_t)n);
		return 1;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		/* Empty. Something that it left behind may hold the other end for ever: the command itself is over. */
		if (c->status >= 0)
			close_fd(fd);
		return 0;
	}
	close_fd(fd);
	return 0;
}

static void end_if_over(struct command *c)
{
	if (c->status < 0 || c->out >= 0 || c->err >= 0)
		return;
	close_fd(&c->in);
	send_number(F_EXIT, c->id, (uint32_t)c->status);
	free(c->pending);
	c->used = 0;
}

static void reap(void)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < COMMANDS; i++)
			if (commands[i].used && commands[i].pid == pid && commands[i].status < 0)
				commands[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void handle(int type, uint32_t id, unsigned char *payload, size_t length)
{
	struct command *c = find(id);
	switch (type) {
	case F_HELLO:
		send_frame(F_HELLO, id, payload, length);
		break;
	case F_SETUP:
		if (set_up)
			send_text(F_READY, id, "already");
		else if (setup(payload, length))
			send_text(F_FAILED, id, "%s", failure);
		else
			send_text(F_READY, id, "ready");
		break;
	case F_RUN:
		run(id, payload, length);
		break;
	case F_STDIN:
		if (!c)
			break;
		for (size_t i = 0; i < length && c->length < WINDOW;) {
			size_t end = (c->start + c->length) % WINDOW;
			size_t room = end >= c->start && c->length < WINDOW ? WINDOW - end : c->start - end;
			size_t n = length - i < room ? length - i : room;
			memcpy(c->pending + end, payload + i, n);
			c->length += n;
			i += n;
		}
		feed(c);
		break;
	case F_EOF:
		if (c) {
			c->eof = 1;
			feed(c);
		}
		break;
	case F_CREDIT:
		if (c && length == 4)
			c->credit += get32(payload);
		break;
	case F_SIGNAL:
		/* Just begun, it has no group of its own yet. */
		if (c && length == 4 && c->status < 0 && kill(-c->pid, (int)get32(payload)))
			kill(c->pid, (int)get32(payload));
		break;
	case F_RESIZE:
		if (c && c->pty && length == 4)
			set_size(c->out, payload);
		break;
	}
}

static void serve(int signals)
{
	static unsigned char input[HEADER + (1 << 20)];
	size_t have = 0;
	struct timespec lost = {0, 0};
	for (;;) {
		struct pollfd fds[3 + 3 * COMMANDS];
		int n = 0, busy = 0;
		fds[n++] = (struct pollfd){port, POLLIN, 0};
		fds[n++] = (struct pollfd){signals, POLLIN, 0};
		fds[n++] = (struct pollfd){uevents, POLLIN, 0};
		for (int i = 0; i < COMMANDS; i++) {
			struct command *c = &commands[i];
			if (!c->used)
				continue;
			if (c->in >= 0 && (c->length || c->eof))
				fds[n++] = (struct pollfd){c->in, POLLOUT, 0};
			if (c->credit && c->out >= 0)
				fds[n++] = (struct pollfd){c->out, POLLIN, 0};
			if (c->credit && c->err >= 0)
				fds[n++] = (struct pollfd){c->err, POLLIN, 0};
		}
		int wait = lost.tv_sec ? 50 : -1;
		if (poll(fds, (nfds_t)n, wait) < 0 && errno != EINTR)
			say("ztune-lab: poll: %s", strerror(errno));
		if (fds[1].revents) {
			struct signalfd_siginfo info;
			if (read(signals, &info, sizeof info) > 0)
				reap();
		}
		if (fds[2].revents)
			read_uevents();
		if (fds[0].revents & POLLIN) {
			ssize_t got = read(port, input + have, sizeof input - have);
			if (got > 0) {
				lost.tv_sec = 0;
				have += (size_t)got;
			}
		}
		if (fds[0].revents & POLLHUP) {
			/* For a moment after a resume this is so; for longer, the host's end was closed without a word. */
			struct timespec now;
			clock_gettime(CLOCK_MONOTONIC, &now);
			if (!lost.tv_sec)
				lost = now;
			else if (now.tv_sec - lost.tv_sec >= LOST_S)
				power_off();
			usleep(5000);
		} else {
			lost.tv_sec = 0;
		}
		size_t at = 0;
		while (have - at >= HEADER) {
			uint32_t length = get32(input + at + 8);
			if (input[at] != 'Z' || length > (1 << 20) - 1) { /* not ours: look for the next frame */
				at++;
				continue;
			}
			if (have - at < HEADER + length)
				break;
			handle(input[at + 1], get32(input + at + 4), input + at + HEADER, length);
			at += HEADER + length;
		}
		memmove(input, input + at, have -= at);
		for (int i = 0; i < COMMANDS; i++) {
			struct command *c = &commands[i];
			if (!c->used)
				continue;
			if (c->length || c->eof)
				feed(c);
			/* After its end a command's pipes are emptied at once, as credit allows. */
			do
				busy = drain(c, &c->out, F_STDOUT) | drain(c, &c->err, F_STDERR);
			while (busy && c->status >= 0);
			end_if_over(c);
		}
	}
}

int main(void)
{
	sigset_t set;
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, "mode=755");
	int console = open("/dev/console", O_RDWR);
	dup2(console, 0);
	dup2(console, 1);
	dup2(console, 2);
	if (console > 2)
		close(console);
	say("ztune-lab: kernel is up");
	mkdir("/dev/pts", 0755);
	mkdir("/dev/shm", 0755);
	mount("devpts", "/dev/pts", "devpts", 0, "mode=620,ptmxmode=666,gid=5");
	mount("shm", "/dev/shm", "tmpfs", 0, "mode=1777");
	mount("cgroup", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700");
	if (symlink("/proc/self/fd", "/dev/fd") || symlink("/proc/self/fd/0", "/dev/stdin") ||
	    symlink("/proc/self/fd/1", "/dev/stdout") || symlink("/proc/self/fd/2", "/dev/stderr"))
		say("ztune-lab: /dev: %s", strerror(errno));
	sigfillset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	signal(SIGPIPE, SIG_IGN);
	load_modules();
	listen_uevents();
	user_mode = told("ztune.port") != NULL;
	port = find_port();
	if (port < 0) {
		say("ztune-lab: no port to the host");
		power_off();
	}
	char version[256] = "";
	read_small("/sys/module/zfs/version", version, sizeof version);
	version[strcspn(version, "\n")] = 0;
	say("ztune-lab: up, OpenZFS %s", version[0] ? version : "none");
	send_text(F_BOOTED, 0, "%s", version);
	serve(signals);
}
