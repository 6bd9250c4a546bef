#include "report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "footprint.h"
#include "memvdev.h"
#include "processor.h"
#include "put.h"

static char *warnings[64];
static size_t nwarnings;

void report_warn(const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (size_t i = 0; i < nwarnings; i++)
		if (strcmp(warnings[i], text) == 0)
			return;
	if (nwarnings < sizeof(warnings) / sizeof(warnings[0]))
		warnings[nwarnings++] = strdup(text);
}

static int by_value(const void *a, const void *b)
{
	float x = ((const latency_t *)a)->ms, y = ((const latency_t *)b)->ms;

	return x < y ? -1 : x > y;
}

/* The value below which a share of the samples lies: nearest rank. */
static double rank(const samples_t *s, double q)
{
	double below = ceil(q * s->calls), seen = 0;

	for (uint64_t i = 0; i < s->n; i++)
		if ((seen += (double)s->one[i].stands_for) >= below || i == s->n - 1)
			return (double)s->one[i].ms;
	return 0.0;
}

static json_t *latency(samples_t *s)
{
	json_t *o = json_object();

	if (s->n > 0)
		qsort(s->one, s->n, sizeof(*s->one), by_value);
	put_sum(o, "count", s->calls);
	put_real(o, "mean", s->n > 0 ? s->sum / s->calls : 0.0);
	put_real(o, "p50", rank(s, 0.5));
	put_real(o, "p90", rank(s, 0.9));
	put_real(o, "p95", rank(s, 0.95));
	put_real(o, "p99", rank(s, 0.99));
	put_real(o, "p999", rank(s, 0.999));
	put_real(o, "max", rank(s, 1.0));
	return o;
}

static json_t *waits(const waits_t *w)
{
	json_t *o = json_object();

	put(o, "count", (uint64_t)llround(w->calls));
	put_real(o, "mean", w->calls > 0 ? w->sum_ms / w->calls : 0.0);
	return o;
}

/* Two jobs have datasets of their own, so each one's latencies are told. */
static json_t *dataset_latencies(const spec_t *spec, const result_t *r)
{
	json_t *list = json_array();

	for (size_t i = 0; i < spec->ndatasets; i++) {
		const dataset_waits_t *w = &r->dataset_waits[i];
		json_t *o;

		if (spec->datasets[i].filler)
			continue;
		o = json_object();
		put_text(o, "name", spec->datasets[i].name);
		(void)json_object_set_new(o, "sync_latency_ms", waits(&w->sync));
		(void)json_object_set_new(o, "read_latency_ms", waits(&w->read));
		(void)json_object_set_new(o, "write_latency_ms", waits(&w->write));
		(void)json_array_append_new(list, o);
	}
	return list;
}

/* Whether calls have it: what only untouched records hold is no role of its own. */
static bool is_role(const spec_t *spec, size_t content)
{
	for (size_t i = 0; i < spec->nfiles; i++)
		if (spec->files[i].content == (int)content)
			return true;
	return false;
}

/* A log's syncs are what commits wait for; a checkpoint's are beside them in the sum. */
static json_t *role_latencies(const spec_t *spec, const result_t *r)
{
	json_t *list = json_array();

	for (size_t i = 0; i < spec->ncontent; i++) {
		json_t *o;

		if (!is_role(spec, i))
			continue;
		o = json_object();
		put_text(o, "name", spec->content[i].name);
		(void)json_object_set_new(o, "sync_latency_ms", waits(&r->role_syncs[i]));
		(void)json_array_append_new(list, o);
	}
	return list;
}

static json_t *vdevs(const spec_t *spec, io_sum_t *sum, uint64_t *flushes, double *busy_max, char *busy_name,
    size_t len)
{
	json_t *list = json_array();
	size_t n;
	disk_t *d = disks_all(&n);

	*busy_max = 0.0;
	busy_name[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		io_count_t now = {0};
		json_t *o = disk_counts(spec, &d[i]);
		double busy = memvdev_busy_s(&d[i]);

		put_real(o, "busy_s", busy);
		if (d[i].vdev != NULL)
			pool_vdev_stat(d[i].vdev, &now.reads, &now.read_bytes, &now.writes, &now.write_bytes);
		put(o, "stat_reads", now.reads - d[i].stat_base.reads);
		put(o, "stat_read_bytes", now.read_bytes - d[i].stat_base.read_bytes);
		put(o, "stat_writes", now.writes - d[i].stat_base.writes);
		put(o, "stat_write_bytes", now.write_bytes - d[i].stat_base.write_bytes);
		(void)json_array_append_new(list, o);
		sum->reads += d[i].stands_for.reads;
		sum->read_bytes += d[i].stands_for.read_bytes;
		sum->writes += d[i].stands_for.writes;
		sum->write_bytes += d[i].stands_for.write_bytes;
		*flushes += d[i].count.flushes;
		/* Nobody waits for what an L2ARC is fed with, and OpenZFS feeds it less when its disk is behind; who
		 * reads from it waits for that, which is a thread's wait. */
		if (d[i].class == VC_CACHE)
			continue;
		if (busy_name[0] == '\0' || busy > *busy_max) {
			*busy_max = busy;
			(void)snprintf(busy_name, len, "%s/%s", spec->pools[d[i].pool].name, d[i].name);
		}
	}
	return list;
}

static json_t *arc_json(const result_t *r)
{
	const arc_count_t *a = &r->arc;
	json_t *o = json_object();

	put(o, "hits", a->hits);
	put(o, "misses", a->misses);
	put(o, "size_end", a->size);
	put(o, "size_max", r->arc_most);
	put(o, "size_max_pinned", r->arc_most_pinned);
	put(o, "c_max", a->c_max);
	put(o, "demand_data_hits", a->demand_data_hits);
	put(o, "demand_data_misses", a->demand_data_misses);
	put(o, "demand_metadata_hits", a->demand_metadata_hits);
	put(o, "demand_metadata_misses", a->demand_metadata_misses);
	put(o, "prefetch_data_hits", a->prefetch_data_hits);
	put(o, "prefetch_data_misses", a->prefetch_data_misses);
	put(o, "prefetch_metadata_hits", a->prefetch_metadata_hits);
	put(o, "prefetch_metadata_misses", a->prefetch_metadata_misses);
	return o;
}

static json_t *space_json(const spec_t *spec, const result_t *r)
{
	json_t *o = json_object(), *list = json_array();
	uint64_t files = 0, logical = 0;
	double compressed = 0;

	for (size_t i = 0; i < spec->ndatasets; i++) {
		const space_t *s = &r->dataset_space[i];
		json_t *d;

		if (spec->datasets[i].filler)
			continue;
		d = json_object();
		put_text(d, "name", spec->datasets[i].name);
		put(d, "files", s->files);
		put(d, "logical", s->logical);
		put(d, "allocated", s->allocated);
		put_real(d, "compressratio", s->ratio);
		(void)json_array_append_new(list, d);
		files += s->files;
		logical += s->logical;
		compressed += s->ratio > 0 ? (double)s->logical / s->ratio : 0.0;
	}
	put(o, "files", files);
	put(o, "logical", logical);
	put(o, "allocated", r->allocated);
	/* Of files: the padding of a file's last record compresses well, and nobody has it. */
	put_real(o, "compression_ratio", files > 0 && compressed > 0 ? (double)files / compressed : 1.0);
	(void)json_object_set_new(o, "datasets", list);
	return o;
}

static json_t *age_json(const spec_t *spec, const age_result_t *a)
{
	json_t *o = json_object(), *list = json_array();

	put_real(o, "wall_s", a->wall_s);
	put(o, "rewritten", a->rewritten);
	put(o, "commits", a->commits);
	for (size_t p = 0; p < spec->npools; p++) {
		const pool_filled_t *s = &a->pool[p];
		json_t *item = json_object();

		put_text(item, "name", spec->pools[p].name);
		put(item, "size", s->size);
		put(item, "allocated", s->allocated);
		put(item, "free", s->size - MIN(s->allocated, s->size));
		put(item, "filler", a->filler[p]);
		put(item, "capacity", s->size > 0 ? s->allocated * 100 / s->size : 0);
		if (s->fragmentation >= 0)
			put(item, "fragmentation", (uint64_t)s->fragmentation);
		(void)json_array_append_new(list, item);
	}
	(void)json_object_set_new(o, "pools", list);
	return o;
}

static json_t *measure(const spec_t *spec, result_t *r)
{
	io_totals_t *t = account_totals();
	io_sum_t sum = {0};
	uint64_t flushes = 0;
	json_t *m = json_object(), *o, *list;
	double busy;
	char busy_name[256];

	put_real(m, "wall_s", r->wall_s);
	put_real(m, "cpu_s", r->cpu_s);
	put(m, "txgs", r->txgs);

	o = json_object();
	put_sum(o, "reads", r->reads);
	put_sum(o, "read_bytes", r->read_bytes);
	put_sum(o, "writes", r->writes);
	put_sum(o, "write_bytes", r->write_bytes);
	put(o, "syncs", r->syncs);
	(void)json_object_set_new(m, "logical", o);

	list = vdevs(spec, &sum, &flushes, &busy, busy_name, sizeof(busy_name));
	o = counts(&sum);
	put(o, "flushes", flushes);
	(void)json_object_set_new(m, "physical", o);
	(void)json_object_set_new(m, "by_vdev", list);

	(void)json_object_set_new(m, "by_cause", cause_counts());
	(void)json_object_set_new(m, "by_dataset", dataset_counts(spec));
	put_sum(m, "rmw_reads", t->rmw_reads);
	put_sum(m, "rmw_read_bytes", t->rmw_read_bytes);
	put_real(m, "write_amplification", r->write_bytes > 0 ? sum.write_bytes / r->write_bytes : 0.0);
	(void)json_object_set_new(m, "arc", arc_json(r));

	o = json_object();
	put(o, "hits", r->arc.l2_hits);
	put(o, "misses", r->arc.l2_misses);
	put(o, "size_end", r->arc.l2_size);
	put_sum(o, "write_bytes", t->cache_write_bytes);
	(void)json_object_set_new(m, "l2arc", o);

	o = json_object();
	put(o, "commits", r->zil_commits);
	put(o, "itx_indirect", r->itx.indirect);
	put(o, "itx_copied", r->itx.copied);
	put(o, "itx_needcopy", r->itx.needcopy);
	put_sum(o, "writes", t->cause[CAUSE_ZIL].writes);
	put_sum(o, "bytes", t->cause[CAUSE_ZIL].write_bytes);
	put_sum(o, "slog_writes", t->slog_writes);
	put_sum(o, "slog_bytes", t->slog_bytes);
	(void)json_object_set_new(m, "zil", o);

	o = json_object();
	put(o, "delays", r->throttle.delays);
	put(o, "over_max", r->throttle.over_max);
	(void)json_object_set_new(m, "dirty_throttle", o);

	(void)json_object_set_new(m, "space", space_json(spec, r));
	(void)json_object_set_new(m, "processor", processor_json(spec));

	o = json_object();
	put_real(o, "trace_s", r->trace_s);
	put_real(o, "elapsed_s", r->elapsed_s);
	put_real(o, "most_s", r->most_s);
	put_real(o, "most_recorded_s", r->most_recorded_s);
	put(o, "most_commits", r->most_commits);
	list = json_array();
	for (size_t i = 0; i < RESULT_PARTS; i++)
		(void)json_array_append_new(list,
		    json_real(r->recorded[i] > 0 ? (double)r->ended[i] / (double)r->recorded[i] : 1.0));
	(void)json_object_set_new(o, "kept", list);
	put_real(o, "modelled_s", busy > r->thread_wait_s_max ? busy : r->thread_wait_s_max);
	put_real(o, "busy_s_max", busy);
	put_text(o, "busy_vdev", busy_name);
	put_real(o, "thread_wait_s_max", r->thread_wait_s_max);
	put_real(o, "lag_s", r->lag_s);
	put_sum(o, "late_commits", r->late_commits);
	put_sum(o, "joined_commits", r->joined_commits);
	(void)json_object_set_new(o, "sync_latency_ms", latency(&r->sync_lat));
	(void)json_object_set_new(o, "read_latency_ms", latency(&r->read_lat));
	(void)json_object_set_new(o, "write_latency_ms", latency(&r->write_lat));
	if (r->operations.n > 0)
		(void)json_object_set_new(o, "operation_latency_ms", latency(&r->operations));
	(void)json_object_set_new(o, "by_dataset", dataset_latencies(spec, r));
	(void)json_object_set_new(o, "by_role", role_latencies(spec, r));
	(void)json_object_set_new(m, "model", o);
	return m;
}

char *report_text(const spec_t *spec, result_t *r)
{
	json_t *root = json_object(), *o = json_object(), *list = json_array();
	char *text;

	put_text(o, "version", ENGINE_VERSION);
	put_text(o, "openzfs", OPENZFS_STRING);
	(void)json_object_set_new(root, "engine", o);
	put_text(root, "status", "ok");
	put(root, "seed", spec->seed);

	o = json_object();
	put_real(o, "wall_s", r->load_wall_s);
	put_real(o, "cpu_s", r->load_cpu_s);
	put(o, "write_bytes", r->load_bytes);
	put(o, "warm_bytes", r->warm_bytes);
	if (spec->touched)
		put(o, "missed", r->missed);
	(void)json_object_set_new(root, "load", o);
	put(root, "memory_peak", footprint_peak());
	if (spec->age.fill > 0 || spec->age.rewrites > 0)
		(void)json_object_set_new(root, "age", age_json(spec, &r->age));

	(void)json_object_set_new(root, "measure", measure(spec, r));
	for (size_t i = 0; i < nwarnings; i++)
		(void)json_array_append_new(list, json_string(warnings[i]));
	(void)json_object_set_new(root, "warnings", list);
	text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(12));
	json_decref(root);
	return text;
}
