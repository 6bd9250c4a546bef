/* Times calls on sockets and of a cached file while another program watches: for bench/attached_cost.py.
 *
 *   attached_cost FILE TELL [PROGRAM ARGUMENT...]
 *
 * PROGRAM is a recorder or observer that speaks on its stdout and is told on its stdin: TELL first, with ; for the ends of
 * lines. An argument SELF stands for this process, OTHER for one that sleeps. Prints the least ns of a pair of sendto and
 * recvfrom and of a pread of 512 bytes, of many batches: so short that few of them are interrupted.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCHES 400
#define CALLS 50

static int file, ends[2];
static char byte[512];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void pair(void)
{
	if (send(ends[0], byte, 1, 0) != 1 || recv(ends[1], byte, 1, 0) != 1)
		abort();
}

static void read_one(void)
{
	if (pread(file, byte, sizeof(byte), 0) != sizeof(byte))
		abort();
}

static double least(void (*what)(void))
{
	double best = 1e18;

	for (int i = 0; i < BATCHES; i++) {
		double t = now();

		for (int k = 0; k < CALLS; k++)
			what();
		t = (now() - t) / CALLS;
		if (t < best)
			best = t;
	}
	return best;
}

/* Starts the program and waits for its first line; what closes *control ends it. */
static pid_t watch(char **command, const char *tell, int *control)
{
	int in[2], out[2];
	char line[4096];
	pid_t pid;
	ssize_t n;

	if (pipe(in) || pipe(out))
		abort();
	pid = fork();
	if (!pid) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		execv(command[0], command);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	*control = in[1];
	for (; *tell; tell++)
		if (write(in[1], *tell == ';' ? "\n" : tell, 1) != 1)
			abort();
	n = read(out[0], line, sizeof(line) - 1);
	line[n > 0 ? n : 0] = 0;
	if (!strstr(line, "\"recording\"") && !strstr(line, "\"observing\"")) {
		fprintf(stderr, "%s\n", line);
		exit(1);
	}
	fprintf(stderr, "%s\n", strstr(line, "\"attached\":\"functions\"") ? "functions" : "tracepoints");
	return pid;
}

int main(int argc, char **argv)
{
	int control = -1, status;
	char self[16], other[16];
	pid_t sleeper, watcher = 0;

	if (argc < 3)
		return 2;
	file = open(argv[1], O_RDONLY);
	if (file < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
		return 1;
	sleeper = fork();
	if (!sleeper)
		for (;;)
			pause();
	snprintf(self, sizeof(self), "%d", getpid());
	snprintf(other, sizeof(other), "%d", sleeper);
	for (int i = 3; i < argc; i++)
		argv[i] = !strcmp(argv[i], "SELF") ? self : !strcmp(argv[i], "OTHER") ? other : argv[i];
	if (argc > 3)
		watcher = watch(argv + 3, argv[2], &control);
	printf("%.0f ", least(pair));
	printf("%.0f\n", least(read_one));
	kill(sleeper, SIGKILL);
	if (watcher) {
		close(control);
		waitpid(watcher, &status, 0);
	}
	return 0;
}
