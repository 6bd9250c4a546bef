#include "replay_impl.h"

#include <sys/mman.h>

#include "footprint.h"
#include "image.h"
#include "processor.h"
#include "worktime.h"

bool replay_progress;
replay_t R;

int64_t replay_now(void)
{
	return vtime_now() - R.zero;
}

void replay_tell(const char *phase, double done, bool force)
{
	static double last;
	double now;

	if (!replay_progress)
		return;
	now = wall_now();
	if (!force && now - last < 0.2)
		return;
	last = now;
	(void)fprintf(stderr, "{\"phase\":\"%s\",\"done\":%.4f}\n", phase, done);
	(void)fflush(stderr);
}

int replay_failed(int error, const char *what, const rfile_t *f)
{
	const char *ds = R.spec->datasets[f->dataset].name;

	if (error == ENOSPC)
		(void)err_set(R.err, "The pool of %s is full: the layout's disks are too small for this workload.", ds);
	else
		(void)err_set(R.err, "%s file %u on %s failed: %s.", what, f->id, ds, strerror(error));
	return EXIT_FAILED;
}

void replay_quiesce(void)
{
	uint64_t before = UINT64_MAX;
	int same = 0;

	for (int i = 0; i < 10000 && same < 3; i++) {
		uint64_t now = memvdev_begun();

		same = now == before && memvdev_in_flight() == 0 ? same + 1 : 0;
		before = now;
		vtime_sleep_until(vtime_now() + 3000000);
	}
}

void replay_settle(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_end_tasks((int)p);
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_settle((int)p);
	replay_quiesce();
}

static void note_read(rfile_t *f, uint64_t off, uint64_t len)
{
	f->read_first = f->is_read ? MIN(f->read_first, off) : off;
	f->read_end = MAX(f->read_end, off + len);
	f->is_read = true;
}

static int prepare(void)
{
	size_t top = R.ops->nfiles;
	uint64_t largest = REPLAY_PIECE;

	if (R.ops->nops >= ORDER_NONE) {
		(void)err_set(R.err, "ops: %llu operations are more than the %u that a replay takes.",
		    (unsigned long long)R.ops->nops, ORDER_NONE - 1);
		return EXIT_INPUT;
	}
	if (R.spec->nthreads > 0 && R.spec->nthreads != R.ops->nthreads) {
		(void)err_set(R.err, "spec: spec.threads has %zu threads, and the ops have %u.", R.spec->nthreads,
		    R.ops->nthreads);
		return EXIT_INPUT;
	}
	for (size_t i = 0; i < R.spec->nfiles; i++)
		top = MAX(top, (size_t)R.spec->files[i].id + 1);
	R.nfiles = top;
	R.files = calloc(top + 1, sizeof(*R.files));
	R.vols = calloc(R.spec->ndatasets + 1, sizeof(fl_volume_t *));
	R.content = calloc(R.spec->ncontent + 1, sizeof(*R.content));
	R.threads = calloc((size_t)R.ops->nthreads + 1, sizeof(*R.threads));
	R.buf = malloc(largest);
	R.r->dataset_space = calloc(R.spec->ndatasets + 1, sizeof(space_t));
	R.r->dataset_waits = calloc(R.spec->ndatasets + 1, sizeof(dataset_waits_t));
	R.r->role_syncs = calloc(R.spec->ncontent + 1, sizeof(waits_t));
	if (R.files == NULL || R.vols == NULL || R.content == NULL || R.threads == NULL || R.buf == NULL ||
	    R.r->dataset_space == NULL || R.r->dataset_waits == NULL || R.r->role_syncs == NULL)
		abort();
	for (size_t i = 0; i < R.spec->ncontent; i++)
		if (content_open(R.spec->content[i].path, &R.content[i], R.err) != 0)
			return EXIT_INPUT;
	for (size_t i = 0; i < R.nfiles; i++)
		R.files[i].log = -1;
	for (size_t i = 0; i < R.spec->nfiles; i++) {
		const spec_file_t *sf = &R.spec->files[i];
		rfile_t *f = &R.files[sf->id];

		f->known = true;
		f->id = (uint32_t)sf->id;
		f->dataset = sf->dataset;
		f->pool = R.spec->datasets[sf->dataset].pool;
		f->start_size = sf->size;
		f->whole = sf->whole;
		f->log = sf->log;
		f->stands_for = sf->rate;
		f->spec = sf;
		f->elsewhere = sf->sampled && sf->size == 0 && sf->whole_start > 0;
		if ((f->certain = calloc(sf->ncertain + 1, sizeof(*f->certain))) == NULL)
			abort();
		for (size_t k = 0; k < sf->ncertain; k++) {
			uint64_t rs = R.spec->datasets[sf->dataset].recordsize;
			uint64_t end = sf->certain[k].off + sf->certain[k].len;

			f->certain[k].first = sf->certain[k].off / rs;
			f->certain[k].n = (end + rs - 1) / rs - f->certain[k].first;
		}
		f->content = &R.content[sf->holds];
		f->before = &R.content[sf->read];
		f->untouched = &R.content[sf->untouched];
		if (R.spec->verify) {
			f->shadow = mmap(NULL, REPLAY_SHADOW, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (f->shadow == MAP_FAILED) {
				(void)err_set(R.err,
				    "verify needs 64 GiB of address space per file, and there is no more.");
				return EXIT_FAILED;
			}
		}
	}
	for (uint64_t i = 0; i < R.ops->nops; i++) {
		const op_t *o = &R.ops->op[i];

		if ((o->op == OP_READ || o->op == OP_WARM || o->op == OP_READ_AHEAD) && o->file >= 0 &&
		    (size_t)o->file < R.nfiles)
			note_read(&R.files[o->file], (uint64_t)MAX(o->offset, 0), (uint64_t)MAX(o->size, 0));
		if ((o->op == OP_WRITE || o->op == OP_COPY) && o->file >= 0 && (size_t)o->file < R.nfiles)
			R.files[o->file].is_written = true;
	}
	return 0;
}

/* Every file, whole, must read back as last written. */
int replay_verify(void)
{
	if (!R.spec->verify)
		return 0;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];
		uint64_t got, size;

		if (f->f == NULL || f->shadow == NULL)
			continue;
		size = fl_size(f->f);
		if (files_read(f, 0, size, &got) != 0)
			return EXIT_FAILED;
		if (got != size) {
			(void)err_set(R.err, "File %u reads back %llu of its %llu bytes.", f->id,
			    (unsigned long long)got, (unsigned long long)size);
			return EXIT_FAILED;
		}
	}
	return 0;
}

static void subtract_arc(arc_count_t *a, const arc_count_t *b)
{
	a->hits -= b->hits;
	a->misses -= b->misses;
	a->demand_data_hits -= b->demand_data_hits;
	a->demand_data_misses -= b->demand_data_misses;
	a->demand_metadata_hits -= b->demand_metadata_hits;
	a->demand_metadata_misses -= b->demand_metadata_misses;
	a->prefetch_data_hits -= b->prefetch_data_hits;
	a->prefetch_data_misses -= b->prefetch_data_misses;
	a->prefetch_metadata_hits -= b->prefetch_metadata_hits;
	a->prefetch_metadata_misses -= b->prefetch_metadata_misses;
	a->l2_hits -= b->l2_hits;
	a->l2_misses -= b->l2_misses;
	a->l2_write_bytes -= b->l2_write_bytes;
}

static void sum_zil(fl_itx_t *itx)
{
	memset(itx, 0, sizeof(*itx));
	for (size_t i = 0; i < R.spec->ndatasets; i++) {
		fl_itx_t x;

		fl_volume_itx(R.vols[i], &x);
		itx->indirect += x.indirect;
		itx->copied += x.copied;
		itx->needcopy += x.needcopy;
		itx->bytes += x.bytes;
	}
}

uint64_t replay_commits(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < R.spec->ndatasets; i++)
		sum += fl_volume_commits(R.vols[i]);
	return sum - R.commits_before;
}

static void note_txgs(void)
{
	for (size_t p = 0; p < R.spec->npools; p++)
		R.txg_start[p] = pool_last_txg((int)p);
}

int replay_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err)
{
	clockwork_init(spec->seed, spec->cores);
	if (pool_start(spec, pace, warn, err) != 0)
		return -1;
	return 0;
}

/* What is known of a load, beside what it leaves on the disks; a file's come after it, one for each. */
typedef struct {
	double wall_s, cpu_s;
	uint64_t bytes; /* of files */
	double used, allocated;
	age_result_t age;
} loaded_t;

typedef struct {
	double space, missing, logical, compressed, pointer;
} loaded_file_t;

static size_t loaded_size(void)
{
	return sizeof(loaded_t) + R.nfiles * sizeof(loaded_file_t);
}

static void take_over(const loaded_t *l)
{
	const loaded_file_t *files = (const loaded_file_t *)(l + 1);

	R.r->load_wall_s = l->wall_s;
	R.r->load_cpu_s = l->cpu_s;
	R.r->load_bytes = l->bytes;
	R.r->age = l->age;
	R.used = l->used;
	R.allocated = l->allocated;
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		f->space = files[i].space;
		f->missing = files[i].missing;
		f->logical = files[i].logical;
		f->compressed = files[i].compressed;
		f->pointer = files[i].pointer;
	}
}

static int hand_over(double wall, double cpu, const char *image)
{
	loaded_t *l = calloc(1, loaded_size());
	loaded_file_t *files = (loaded_file_t *)(l + 1);
	int rc;

	if (l == NULL)
		abort();
	*l = (loaded_t){wall, cpu, R.r->load_bytes, R.used, R.allocated, R.r->age};
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];

		files[i] = (loaded_file_t){f->space, f->missing, f->logical, f->compressed, f->pointer};
	}
	rc = image_save(R.spec, image, l, loaded_size(), R.err);
	free(l);
	return rc;
}

/* Everything up to OpenZFS itself: the disks, with what they hold, and the process that it runs in. */
static int get_ready(const spec_t *spec, const ops_t *ops, const char *image, result_t *r, warn_fn *warn, err_t *err)
{
	int rc;

	memset(r, 0, sizeof(*r));
	weights_begin((double)spec->rate);
	fl_logged = stands_logged;
	if (spec->rate > 1)
		processor_stands_for = sampled_write_stands_for;
	if (spec->touched)
		processor_is_zeros = sampled_is_filled;
	R.spec = spec;
	R.ops = ops;
	R.r = r;
	R.err = err;
	if ((rc = prepare()) != 0)
		return rc;
	if (memvdev_create(spec, err) != 0)
		return EXIT_INPUT;
	if (image != NULL) {
		const loaded_t *loaded = image_open(spec, image, loaded_size(), err);

		if (loaded == NULL)
			return EXIT_INPUT;
		take_over(loaded);
	}
	footprint_watch(spec->memory_limit, spec->file_limit);
	if (replay_start(spec, &R.pace, warn, err) != 0 || pool_check_properties(spec, err) != 0)
		return EXIT_INPUT;
	return 0;
}

int replay_load(const spec_t *spec, const ops_t *ops, const char *image, warn_fn *warn, err_t *err)
{
	double wall, cpu;
	result_t r;
	int rc;

	if ((rc = get_ready(spec, ops, NULL, &r, warn, err)) != 0)
		return rc;
	wall = wall_now();
	cpu = cpu_now();
	replay_tell("load", 0.0, true);
	if ((rc = load_all()) != 0)
		return rc;
	if (hand_over(wall_now() - wall, cpu_now() - cpu, image) != 0)
		return EXIT_FAILED;
	replay_tell("load", 1.0, true);
	return 0;
}

int replay_run(const spec_t *spec, const ops_t *ops, const char *image, result_t *r, warn_fn *warn, err_t *err)
{
	throttle_t throttle0;
	arc_count_t arc0;
	fl_itx_t itx0;
	uint64_t first;
	double wall, cpu;
	int rc;

	if ((rc = get_ready(spec, ops, image, r, warn, err)) != 0)
		return rc;
	if ((rc = load_begin(image != NULL)) != 0)
		return rc;
	stands_note_whole();
	if ((rc = threads_warm(&first)) != 0 || (rc = files_begin_logs()) != 0)
		return rc;
	files_note_arc();

	note_txgs();
	stands_note_space();
	memvdev_begin(stands_spread());
	worktime_begin(spec);
	pool_stat_base();
	pool_arc(&arc0);
	sum_zil(&itx0);
	R.commits_before = replay_commits();
	pool_throttle(&throttle0);
	wall = wall_now();
	cpu = cpu_now();
	replay_tell("measure", 0.0, true);
	if ((rc = threads_run(first)) != 0)
		return rc;
	r->elapsed_s = (double)R.end / 1e9;
	r->lag_s = MAX(r->elapsed_s - r->trace_s, 0.0);
	for (size_t i = 1; i < RESULT_PARTS; i++)
		r->ended[i] += r->ended[i - 1];
	if (!spec->closed && r->trace_s > r->elapsed_s)
		vtime_sleep_until(R.zero + (int64_t)(r->trace_s * 1e9));
	for (size_t p = 0; p < spec->npools; p++)
		pool_sync((int)p);
	pool_throttle(&r->throttle);
	r->wall_s = wall_now() - wall;
	r->cpu_s = cpu_now() - cpu;
	replay_tell("measure", 1.0, true);
	replay_quiesce();
	memvdev_drain();
	r->missed = sampled_missed();

	for (size_t p = 0; p < spec->npools; p++) {
		r->txgs += pool_last_txg((int)p) - R.txg_start[p];
		r->allocated += pool_allocated((int)p);
	}
	for (size_t p = 0; p < spec->npools; p++)
		r->allocated -= MIN(r->age.filler[p], r->allocated);
	r->throttle.delays -= throttle0.delays;
	r->throttle.over_max -= throttle0.over_max;
	pool_arc(&r->arc);
	subtract_arc(&r->arc, &arc0);
	sum_zil(&r->itx);
	r->zil_commits = replay_commits();
	r->itx.indirect -= itx0.indirect;
	r->itx.copied -= itx0.copied;
	r->itx.needcopy -= itx0.needcopy;
	for (size_t i = 0; i < spec->ndatasets; i++)
		(void)pool_dataset_space(spec->datasets[i].name, &r->dataset_space[i]);
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].elsewhere && R.files[i].f == NULL)
			r->dataset_space[R.files[i].dataset].files += R.files[i].spec->whole_start;
		else if (R.files[i].f != NULL && !R.files[i].unlinked)
			r->dataset_space[R.files[i].dataset].files +=
			    R.files[i].stands_for > 1.0 ? R.files[i].whole : fl_size(R.files[i].f);
	if (spec->touched || spec->rate > 1)
		stands_space();
	/*
	 * Where the disk can't keep up, a sample's call waits until the others that came before are done, and so counts too
	 * often; but no thread waits for longer than they all take.
	 */
	r->thread_wait_s_max = MIN(threads_most_waited(), r->elapsed_s);
	if (r->skipped > 0)
		warn("%" PRIu64
		     " operations were left out: their file is not in the layout, or did not exist at that time.",
		    r->skipped);
	return 0;
}
