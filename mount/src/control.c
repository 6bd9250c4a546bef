#include "control.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "livedisk.h"
#include "pool.h"
#include "processor.h"
#include "put.h"

typedef struct {
	fl_itx_t itx;
	uint64_t commits;
	calls_t calls;
} volume_count_t;

static struct {
	const spec_t *spec;
	fl_volume_t **vols;
	const calls_t *calls; /* [ndatasets] */
	int listener;
	pthread_mutex_t answering;
	/* what was counted before control_reset() */
	struct timespec since;
	arc_count_t arc;
	volume_count_t *volume;
	uint64_t txg[16];
} C = {.answering = PTHREAD_MUTEX_INITIALIZER};

void control_reset(void)
{
	livedisk_reset();
	pool_stat_base();
	(void)clock_gettime(CLOCK_MONOTONIC, &C.since);
	pool_arc(&C.arc);
	for (size_t i = 0; i < C.spec->ndatasets; i++) {
		fl_volume_itx(C.vols[i], &C.volume[i].itx);
		C.volume[i].commits = fl_volume_commits(C.vols[i]);
		C.volume[i].calls = C.calls[i];
	}
	for (size_t p = 0; p < C.spec->npools; p++)
		C.txg[p] = pool_last_txg((int)p);
}

static json_t *arc_json(void)
{
	json_t *o = json_object();
	arc_count_t a;

	pool_arc(&a);
	put(o, "size", a.size);
	put(o, "max", a.c_max);
#define SINCE(name) put(o, #name, a.name - C.arc.name)
	SINCE(hits);
	SINCE(misses);
	SINCE(demand_data_hits);
	SINCE(demand_data_misses);
	SINCE(demand_metadata_hits);
	SINCE(demand_metadata_misses);
	SINCE(prefetch_data_hits);
	SINCE(prefetch_data_misses);
	SINCE(prefetch_metadata_hits);
	SINCE(prefetch_metadata_misses);
	SINCE(l2_hits);
	SINCE(l2_misses);
	SINCE(l2_write_bytes);
#undef SINCE
	put(o, "l2_size", a.l2_size);
	return o;
}

static void dataset_json(size_t i, json_t *o)
{
	const volume_count_t *before = &C.volume[i];
	json_t *calls = json_object();
	fl_itx_t itx;
	space_t space;

	fl_volume_itx(C.vols[i], &itx);
	(void)pool_dataset_space(C.spec->datasets[i].name, &space);
	put(o, "logical", space.logical);
	put(o, "allocated", space.allocated);
	put_real(o, "ratio", space.ratio);
	put(o, "commits", fl_volume_commits(C.vols[i]) - before->commits);
	put(o, "itx_indirect", itx.indirect - before->itx.indirect);
	put(o, "itx_copied", itx.copied - before->itx.copied);
	put(o, "itx_needcopy", itx.needcopy - before->itx.needcopy);
	put(o, "itx_bytes", itx.bytes - before->itx.bytes);
	(void)json_object_set_new(calls, "sync", latency_json(&C.calls[i].sync, &before->calls.sync));
	(void)json_object_set_new(calls, "read", latency_json(&C.calls[i].read, &before->calls.read));
	(void)json_object_set_new(calls, "write", latency_json(&C.calls[i].write, &before->calls.write));
	(void)json_object_set_new(o, "calls", calls);
}

static json_t *stats(void)
{
	json_t *o = json_object(), *list, *item;
	pool_filled_t filled;
	struct timespec now;
	uint64_t txgs = 0;
	size_t i;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	put_real(o, "seconds", (double)(now.tv_sec - C.since.tv_sec) + (double)(now.tv_nsec - C.since.tv_nsec) / 1e9);
	livedisk_stats(C.spec, o);
	json_array_foreach(json_object_get(o, "datasets"), i, item)
		dataset_json(i, item);
	(void)json_object_set_new(o, "arc", arc_json());
	list = json_array();
	for (size_t p = 0; p < C.spec->npools; p++) {
		item = json_object();
		put_text(item, "name", C.spec->pools[p].name);
		put(item, "allocated", pool_allocated((int)p));
		put(item, "free", pool_free((int)p));
		pool_filled((int)p, &filled);
		put(item, "size", filled.size);
		put(item, "capacity", filled.size > 0 ? filled.allocated * 100 / filled.size : 0);
		if (filled.fragmentation >= 0)
			put(item, "fragmentation", (uint64_t)filled.fragmentation);
		(void)json_array_append_new(list, item);
		txgs += pool_last_txg((int)p) - C.txg[p];
	}
	(void)json_object_set_new(o, "pools", list);
	put(o, "txgs", txgs);
	/* Not call by call: what reads this twice takes differences of lists that stay as they are. */
	item = processor_json(C.spec);
	(void)json_object_del(item, "calls");
	(void)json_object_set_new(o, "processor", item);
	return o;
}

/* Of every dataset but the filler; how far it came is in the error. */
static json_t *snapshot(const char *name)
{
	char why[256];

	for (size_t i = 0; i < C.spec->ndatasets; i++) {
		int error = C.spec->datasets[i].filler ? 0 : pool_snapshot(C.spec->datasets[i].name, name);

		if (error == 0)
			continue;
		(void)snprintf(why, sizeof(why), "no snapshot %s of %s: %s", name, C.spec->datasets[i].name,
		    strerror(error));
		return json_pack("{s:s}", "error", why);
	}
	return json_pack("{s:b}", "ok", 1);
}

/* "NAME NUMBER": a clone of the snapshot NAME of every dataset but the filler. */
static json_t *cloned(const char *words)
{
	char name[64], why[256];
	int number;

	if (sscanf(words, "%63s %d", name, &number) != 2)
		return json_pack("{s:s}", "error", "clone takes a snapshot and a number");
	for (size_t i = 0; i < C.spec->ndatasets; i++) {
		const spec_dataset_t *d = &C.spec->datasets[i];
		int error = d->filler ? 0 : pool_clone(d->name, name, number, i);

		if (error == 0)
			continue;
		(void)snprintf(why, sizeof(why), "no clone of %s@%s: %s", d->name, name, strerror(error));
		return json_pack("{s:s}", "error", why);
	}
	return json_pack("{s:b}", "ok", 1);
}

static json_t *answer(const char *line)
{
	if (strcmp(line, "stats") == 0)
		return stats();
	if (strncmp(line, "snapshot ", 9) == 0)
		return snapshot(line + 9);
	if (strncmp(line, "clone ", 6) == 0)
		return cloned(line + 6);
	if (strcmp(line, "reset") == 0) {
		control_reset();
	} else if (strcmp(line, "sync") == 0) {
		for (size_t p = 0; p < C.spec->npools; p++)
			pool_sync((int)p);
	} else if (strcmp(line, "stop") == 0) {
		(void)kill(getpid(), SIGTERM);
	} else {
		return json_pack("{s:s}", "error", "stats, reset, sync, snapshot, clone and stop are the commands");
	}
	return json_pack("{s:b}", "ok", 1);
}

static void *serve(void *arg)
{
	struct timeval patience = {.tv_sec = 5};

	for (;;) {
		int fd = accept4(C.listener, NULL, NULL, SOCK_CLOEXEC);
		char line[64] = "", *text;
		json_t *o;
		ssize_t n;
		size_t len, sent = 0;

		if (fd < 0)
			continue;
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		n = recv(fd, line, sizeof(line) - 1, 0);
		line[n > 0 ? n : 0] = '\0';
		line[strcspn(line, "\r\n")] = '\0';
		(void)pthread_mutex_lock(&C.answering);
		o = answer(line);
		(void)pthread_mutex_unlock(&C.answering);
		text = json_dumps(o, JSON_COMPACT);
		json_decref(o);
		len = strlen(text) + 1;
		text[len - 1] = '\n'; /* in place of the zero */
		while (sent < len && (n = send(fd, text + sent, len - sent, MSG_NOSIGNAL)) > 0)
			sent += (size_t)n;
		free(text);
		(void)close(fd);
	}
	return arg;
}

void control_end(void)
{
	(void)pthread_mutex_lock(&C.answering);
}

/* By way of its directory: a socket's path has at most 107 bytes, that of a store may have more. */
static int bind_at(int fd, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	const char *name = strrchr(path, '/') + 1; /* what is in a store has the store's path before it */
	char *parent = strndup(path, (size_t)(name - path));
	int n, rc, dir = parent == NULL ? -1 : open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);

	free(parent);
	if (dir < 0)
		return -1;
	n = snprintf(a.sun_path, sizeof(a.sun_path), "/proc/self/fd/%d/%s", dir, name);
	assert(n < (int)sizeof(a.sun_path)); /* "control" */
	rc = bind(fd, (struct sockaddr *)&a, sizeof(a));
	(void)close(dir);
	return rc;
}

int control_start(const char *path, const spec_t *spec, fl_volume_t **vols, const calls_t *calls, err_t *err)
{
	pthread_t t;

	C.spec = spec;
	C.vols = vols;
	C.calls = calls;
	if ((C.volume = calloc(spec->ndatasets + 1, sizeof(*C.volume))) == NULL)
		abort();
	control_reset();
	(void)unlink(path);
	C.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (C.listener < 0 || bind_at(C.listener, path) != 0 || chmod(path, 0600) != 0 || listen(C.listener, 16) != 0 ||
	    pthread_create(&t, NULL, serve, NULL) != 0)
		return err_set(err, "%s can't be opened: %s.", path, strerror(errno));
	return 0;
}
