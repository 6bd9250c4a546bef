/*
 * ztune-engine: replays a trace of file I/O through OpenZFS in user space.
 *
 *   ztune-engine replay --spec spec.json --ops ops.bin [--image file] [--progress]
 *   ztune-engine load --spec spec.json --ops ops.bin --image file [--progress]
 *   ztune-engine selfcheck | calibrate | version
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "calibrate.h"
#include "fatal.h"
#include "footprint.h"
#include "replay.h"
#include "report.h"
#include "selfcheck.h"
#include "vtime.h"

/* Seconds of processor time.  A block of 16M by zstd-19, the longest that no thread sleeps in, takes a few. */
#define STILL_MOST 600

static const char usage[] =
    "usage: ztune-engine replay --spec SPEC.json --ops OPS.bin [--image FILE] [--progress]\n"
    "       ztune-engine load --spec SPEC.json --ops OPS.bin --image FILE [--progress]\n"
    "       ztune-engine selfcheck\n"
    "       ztune-engine calibrate\n"
    "       ztune-engine version\n"
    "\n"
    "Replays recorded file I/O through OpenZFS " OPENZFS_STRING " in this process, on disks that exist only in memory\n"
    "(or in unlinked files), and prints what it would have cost as JSON.  Nothing of this machine's pools is touched.\n"
    "\n"
    "\"load\" writes the files that the trace begins with and keeps the pools in an image; \"replay\" begins from one\n"
    "that was loaded with the same disks, properties of what is stored, files and age.\n"
    "\n"
    "Example: ztune-engine replay --spec layout.json --ops trace.ops --progress > result.json\n"
    "\n"
    "Exit codes: 0 done, 1 failed (for example a full pool), 2 bad input, 4 the OpenZFS library does not match,\n"
    "5 a limit of memory or files that the spec sets is reached.\n"
    "What goes in and comes out is described in docs/engine.md.\n";

/* Nothing is on disk and nothing must be undone. */
static void on_signal(int sig)
{
	(void)sig;
	_exit(EXIT_SIGNAL);
}

/*
 * Begins again, with memory at the same addresses each time.  OpenZFS salts directories with addresses, and by the salt a
 * block comes to a few bytes more or less, to another place on the disk, and all after it too.  Where this is not allowed
 * (in some containers), a replay repeats only nearly.
 */
static void fix_addresses(char **argv)
{
	static const char again[] = "ZTUNE_ENGINE_AGAIN"; /* set where it has begun again, whatever came of it */
	int now = personality(0xffffffff);
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (now == -1 || (now & ADDR_NO_RANDOMIZE) != 0 || n <= 0 || getenv(again) != NULL)
		return;
	self[n] = '\0';
	if (personality((unsigned long)(now | ADDR_NO_RANDOMIZE)) != -1 && setenv(again, "1", 1) == 0)
		(void)execv(self, argv);
}

static int complain(int code, const err_t *e)
{
	(void)fprintf(stderr, "%s\n", e->text);
	return code;
}

static int run(const char *command, int argc, char **argv)
{
	const char *spec_path = NULL, *ops_path = NULL, *image = NULL;
	bool load = strcmp(command, "load") == 0;
	result_t result;
	spec_t spec;
	ops_t ops;
	err_t e = {""};
	char *text;
	int rc;

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--progress") == 0)
			replay_progress = true;
		else if (strcmp(argv[i], "--spec") == 0 && i + 1 < argc)
			spec_path = argv[++i];
		else if (strcmp(argv[i], "--ops") == 0 && i + 1 < argc)
			ops_path = argv[++i];
		else if (strcmp(argv[i], "--image") == 0 && i + 1 < argc)
			image = argv[++i];
		else {
			(void)err_set(&e, "ztune-engine %s does not know \"%s\"; see ztune-engine --help.", command,
			    argv[i]);
			return complain(EXIT_INPUT, &e);
		}
	}
	if (spec_path == NULL || ops_path == NULL || (load && image == NULL)) {
		(void)err_set(&e, "ztune-engine %s needs --spec FILE%s --ops FILE%s.", command, load ? "," : " and",
		    load ? " and --image FILE" : "");
		return complain(EXIT_INPUT, &e);
	}
	footprint_yield();
	if (spec_read(spec_path, &spec, &e) != 0 || ops_read(ops_path, &ops, &e) != 0)
		return complain(EXIT_INPUT, &e);
	if (selfcheck_run(&e) != 0)
		return complain(EXIT_SELFCHECK, &e);
	vtime_limit(STILL_MOST);
	if (load)
		return (rc = replay_load(&spec, &ops, image, report_warn, &e)) != 0 ? complain(rc, &e) : 0;
	if ((rc = replay_run(&spec, &ops, image, &result, report_warn, &e)) != 0)
		return complain(rc, &e);
	text = report_text(&spec, &result);
	if ((rc = replay_verify()) != 0)
		return complain(rc, &e);
	(void)printf("%s\n", text);
	return 0;
}

static int run_selfcheck(void)
{
	err_t e = {""};
	bool ok = selfcheck_run(&e) == 0;

	(void)printf("{\"openzfs\":\"%s\",\"ok\":%s}\n", OPENZFS_STRING, ok ? "true" : "false");
	(void)fflush(stdout);
	return ok ? 0 : complain(EXIT_SELFCHECK, &e);
}

static int run_calibrate(void)
{
	err_t e = {""};
	json_t *o;
	char *text;

	if (selfcheck_run(&e) != 0)
		return complain(EXIT_SELFCHECK, &e);
	if ((o = calibrate_run(&e)) == NULL)
		return complain(EXIT_FAILED, &e);
	text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
	(void)printf("%s\n", text);
	return 0;
}

int main(int argc, char **argv)
{
	int rc;

	(void)signal(SIGINT, on_signal);
	(void)signal(SIGTERM, on_signal);
	fatal_catch("while replaying this layout");
	(void)prctl(PR_SET_TIMERSLACK, 1000);
	if (argc >= 2 && (strcmp(argv[1], "replay") == 0 || strcmp(argv[1], "load") == 0)) {
		fix_addresses(argv);
		json_object_seed(1); /* by it a table's entries are freed in another order */
		rc = run(argv[1], argc - 2, argv + 2);
	} else if (argc == 2 && strcmp(argv[1], "selfcheck") == 0) {
		rc = run_selfcheck();
	} else if (argc == 2 && strcmp(argv[1], "calibrate") == 0) {
		rc = run_calibrate();
	} else if (argc == 2 && strcmp(argv[1], "version") == 0) {
		(void)printf("{\"version\":\"%s\",\"openzfs\":\"%s\"}\n", ENGINE_VERSION, OPENZFS_STRING);
		rc = 0;
	} else if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		(void)fputs(usage, stdout);
		rc = 0;
	} else {
		(void)fputs(usage, stderr);
		rc = EXIT_INPUT;
	}
	(void)fflush(stdout);
	/* Taking OpenZFS down properly takes more than a second and frees what the kernel frees anyway. */
	_exit(rc);
}
