#include "selfcheck.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filelayer.h"
#include "memvdev.h"
#include "pool.h"
#include "processor.h"
#include "replay.h"
#include "report.h"
#include "spec.h"

static const char tiny[] =
    "{\"version\":1,\"seed\":7,\"arc_max\":67108864,"
    "\"profiles\":{\"p\":{\"kind\":\"flash\",\"channels\":1,\"read_us\":100,\"write_us\":100,\"read_mb_s\":100,"
    "\"write_mb_s\":100,\"flush_us\":100,\"overhead_us\":0}},"
    "\"pools\":[{\"name\":\"check\",\"ashift\":12,\"vdevs\":[{\"class\":\"data\",\"kind\":\"stripe\","
    "\"disks\":[{\"profile\":\"p\",\"size\":134217728}]}]}],"
    "\"datasets\":[{\"name\":\"check/a\",\"properties\":{\"recordsize\":\"16384\",\"compression\":\"off\"}},"
    "{\"name\":\"check/b\",\"properties\":{\"sync\":\"disabled\"}}],"
    "\"files\":[],\"content\":{},\"tunables\":{}}";

#define BYTES (256 << 10)

static bool stats_agree(void)
{
	size_t n;
	disk_t *d = disks_all(&n);
	io_count_t s = {0};

	pool_vdev_stat(d->vdev, &s.reads, &s.read_bytes, &s.writes, &s.write_bytes);
	s.reads -= d->stat_base.reads;
	s.read_bytes -= d->stat_base.read_bytes;
	s.writes -= d->stat_base.writes;
	s.write_bytes -= d->stat_base.write_bytes;
	return s.reads == d->count.reads && s.read_bytes == d->count.read_bytes && s.writes == d->count.writes &&
	    s.write_bytes == d->count.write_bytes && s.writes > 0;
}

/* What is wrong with the machine, and not with the library. */
static const char coarse[] =
    "This kernel counts a thread's processor time in clock ticks, as one in user mode does, so the engine can't tell "
    "what OpenZFS's work takes: replay on another machine.";
#define EXIT_MACHINE (EXIT_SELFCHECK + 1)

/* Does the clock of a thread's processor time stand still between ticks? */
static bool clock_ticks(void)
{
	const int64_t tick = 1000000; /* ns; they are 1 to 10 ms, and a clock that counts moves between two readings */
	int64_t start = processor_ns(), now;

	do
		now = processor_ns();
	while (now == start);
	return now - start >= tick;
}

/* Are the calls seen in which OpenZFS works on data? */
static bool work_seen(const spec_t *spec)
{
	json_t *found = processor_json(spec);
	bool seen = json_real_value(json_object_get(found, "compress_s")) > 0 &&
	    json_real_value(json_object_get(found, "checksum_s")) > 0 &&
	    json_real_value(json_object_get(found, "copy_s")) > 0;

	json_decref(found);
	return seen;
}

/* The first thing that is not as it must be, or NULL. */
static const char *check(err_t *e)
{
	static uint8_t out[BYTES], in[BYTES];
	spec_t spec;
	pace_t pace;
	fl_volume_t *vols[2];
	fl_new_t new = {.mode = S_IFREG | 0600};
	fl_file_t *f;
	fl_itx_t itx;
	arc_count_t a0, a1;
	uint64_t txg, got, zil, data;
	char *packed;
	size_t len;
	bool commit;

	for (size_t i = 0; i < BYTES; i++)
		out[i] = (uint8_t)(i * 2654435761U >> 13);
	if (spec_parse(tiny, sizeof(tiny) - 1, &spec, e) != 0 || memvdev_create(&spec, e) != 0 ||
	    replay_start(&spec, &pace, report_warn, e) != 0 || pool_create_all(&spec, &pace, POOL_HOLDS, e) != 0 ||
	    pool_open_volumes(&spec, vols, e) != 0)
		return e->text;
	pool_loading(spec.arc_max);
	pool_end_tasks(0);
	pool_settle(0);
	memvdev_begin(NULL);
	pool_stat_base();
	pool_arc(&a0);
	if (a0.c_max != spec.arc_max)
		return "the ARC's limit is not the one that was set";
	if (fl_volume_sync_property(vols[0]) != 0 || fl_volume_sync_property(vols[1]) != 2)
		return "the sync property is read wrong";
	if (fl_create(fl_root(vols[0]), "x", &new, &f, &commit) != 0 || fl_write(f, 0, out, BYTES, 0, &commit) != 0 ||
	    commit)
		return "a file can't be written";
	if (fl_block_size(f) != 16384 || fl_size(f) != BYTES)
		return "a file's block size is wrong";
	pool_sync(0);
	if (!stats_agree())
		return "the disks' statistics differ from the I/O seen";
	if (!work_seen(&spec))
		return clock_ticks() ? coarse : "processor time is not recognised";
	data = account_totals()->cause[CAUSE_DATA].write_bytes;
	if (data != BYTES)
		return "data writes are not recognised";
	if (pool_dirty_bytes(0) != 0)
		return "dirty data is counted wrong";
	zil = account_totals()->cause[CAUSE_ZIL].writes;
	if (fl_write(f, 8192, out, 8192, 0, &commit) != 0 || pool_dirty_bytes(0) == 0)
		return "dirty data is not counted";
	fl_commit_file(f);
	fl_volume_itx(vols[0], &itx);
	if (itx.indirect + itx.needcopy < 2 || itx.copied != 0 || account_totals()->cause[CAUSE_ZIL].writes <= zil ||
	    fl_volume_commits(vols[0]) != 1)
		return "the intent log is not recognised";
	pool_sync(0);
	/* Only now: the first commit makes the log, and waits for a group of its own. */
	txg = pool_last_txg(0);
	pool_sync(0);
	if (pool_last_txg(0) != txg + 1)
		return "transaction groups are not one by one";
	memcpy(out + 8192, out, 8192);
	if (fl_read(f, 0, in, BYTES, 0, &got) != 0 || got != BYTES || memcmp(in, out, BYTES) != 0)
		return "a file reads back wrong";
	fl_release(f, 1);
	fl_volume_close(vols[0]);
	fl_volume_close(vols[1]);
	if (pool_pack(&spec, 0, &packed, &len, e) != 0 || pool_unpack(&spec, &pace, 0, packed, len, e) != 0 ||
	    pool_open_volumes(&spec, vols, e) != 0)
		return e->text;
	if (fl_lookup(fl_root(vols[0]), "x", &f) != 0 || fl_size(f) != BYTES || fl_block_size(f) != 16384)
		return "a file is not as it was before the pool's import";
	pool_arc(&a0);
	if (fl_read(f, 0, in, BYTES, 0, &got) != 0 || memcmp(in, out, BYTES) != 0)
		return "a file reads back wrong after the pool's import";
	pool_arc(&a1);
	if (a1.misses <= a0.misses)
		return "the ARC's counters are read wrong";
	return NULL;
}

int selfcheck_run(err_t *err)
{
	int fd[2], status = 0;
	ssize_t n;
	pid_t pid;
	char text[600];

	if (pipe(fd) != 0 || (pid = fork()) < 0)
		return err_set(err, "The self-check can't start a process.");
	if (pid == 0) {
		err_t e = {""};
		const char *wrong;

		(void)close(fd[0]);
		(void)freopen("/dev/null", "w", stderr);
		wrong = check(&e);
		if (wrong != NULL)
			(void)!write(fd[1], wrong, strlen(wrong));
		_exit(wrong == NULL ? 0 : wrong == coarse ? EXIT_MACHINE : EXIT_SELFCHECK);
	}
	(void)close(fd[1]);
	n = read(fd[0], text, sizeof(text) - 1);
	(void)close(fd[0]);
	while (waitpid(pid, &status, 0) < 0)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	text[n > 0 ? n : 0] = '\0';
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_MACHINE)
		return err_set(err, "%s", text);
	return err_set(err,
	    "The OpenZFS library does not match the headers (%s) that the engine was built with (%s): rebuild "
	    "the engine with `make -C engine clean all`.",
	    OPENZFS_STRING, n > 0 ? text : "it crashed");
}
