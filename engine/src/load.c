/* What is there when a trace begins: its files, and the past of their pools. */
#include "replay_impl.h"

#include "image.h"
#include "worktime.h"

static void group_grew(int pool, uint64_t bytes)
{
	if ((R.group[pool] += bytes) >= pool_load_group(R.spec->arc_max)) {
		pool_next_txg(pool);
		R.group[pool] = 0;
	}
}

/* Writes a part of a file. */
static int load_bytes(rfile_t *f, const content_t *content, uint64_t from, uint64_t end, uint64_t *done, uint64_t total)
{
	uint64_t piece = MAX(R.spec->datasets[f->dataset].recordsize, 1ULL << 20);
	bool commit;
	int error;

	for (uint64_t off = from; off < end; off += piece) {
		uint64_t n = MIN(piece, end - off);

		/* Without a stamp records would repeat, and so checksums: blocks of pointers would be half as large. */
		content_fill(content, f->id, off, n, CONTENT_LOADED + f->id, R.buf);
		files_shadow(f, off, n, R.buf);
		if ((error = fl_write(f->f, off, R.buf, n, 0, &commit)) != 0)
			return replay_failed(error, "Filling", f);
		*done += n;
		group_grew(f->pool, n);
		replay_tell("load", total > 0 ? (double)*done / (double)total : 1.0, false);
	}
	return 0;
}

static int load_file(rfile_t *f, uint64_t *done, uint64_t total)
{
	const touched_t *t = &f->touched;
	char name[64];
	bool commit;
	int error, rc = 0;

	files_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &files_new, &f->f, &commit)) != 0)
		return replay_failed(error, "Creating", f);
	if (t->records == 0)
		return load_bytes(f, f->before, 0, f->start_size, done, total);
	for (uint64_t i = 0, n; i < t->records && rc == 0; i += n) {
		bool touched = touched_has(t, i);

		for (n = 1; i + n < t->records && touched_has(t, i + n) == touched; n++)
			;
		rc = load_bytes(f, touched ? f->before : f->untouched, i * t->recordsize,
		    MIN((i + n) * t->recordsize, f->start_size), done, total);
	}
	return rc;
}

/* --- what the trace touches --- */

#define LOADED_LEAST 32            /* records of the files of a kind, to know what they come to … */
#define LOADED_BYTES (8ULL << 20)  /* … and bytes of them */
#define SMALL_BYTES (256ULL << 20) /* … and of files of one record that nothing touches: more come to what these do */
#define UNTOUCHED "untouched"      /* a file that is there only for that */

/* Files of one dataset and content: their records come to the same. */
static bool of_kind(const rfile_t *f, int dataset, const content_t *content)
{
	return f->known && f->start_size > 0 && f->dataset == dataset && f->content == content;
}

/* … or it would be, were anything of it in the sample. */
static bool counts_as(const rfile_t *f, int dataset, const content_t *content)
{
	return of_kind(f, dataset, content) || (f->elsewhere && f->dataset == dataset && f->content == content);
}

/* A file of a kind whose untouched records hold something else, NULL if those of none do. */
static const rfile_t *of_kind_with_other(int dataset, const content_t *content)
{
	for (size_t i = 0; i < R.nfiles; i++)
		if (of_kind(&R.files[i], dataset, content) && R.files[i].untouched != R.files[i].before)
			return &R.files[i];
	return NULL;
}

/* Loads so much that it is known what a record comes to; a file of one record has that as its block. */
static void touch_some(int dataset, const content_t *content)
{
	uint64_t rs = R.spec->datasets[dataset].recordsize, records = 0, count = 0, at = 0, small = 0;
	uint64_t wanted, every;

	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		if (!of_kind(f, dataset, content))
			continue;
		if (f->whole <= rs && f->touched.count == 0 && (small += f->whole) <= SMALL_BYTES)
			touched_mark(&f->touched, 0, 1);
		records += f->touched.records;
		count += f->touched.count;
	}
	wanted = MAX(LOADED_LEAST, LOADED_BYTES / rs);
	if (count >= wanted || of_kind_with_other(dataset, content) != NULL)
		return;
	every = MAX(records / (wanted - count), 1);
	for (size_t i = 0; i < R.nfiles; i++) {
		touched_t *t = &R.files[i].touched;

		if (!of_kind(&R.files[i], dataset, content))
			continue;
		for (; at < t->records; at += every)
			touched_mark(t, at, 1);
		at -= t->records;
	}
}

/*
 * Below each indirect block that the trace comes to all records are there, with content or without, so that the block is
 * as large as in truth; where it does not come to one, nothing is.
 */
static int load_touched(rfile_t *f, uint64_t *done, uint64_t total)
{
	const touched_t *t = &f->touched;
	char name[64];
	bool commit;
	int error, rc = 0;

	files_name(f, name, sizeof(name));
	if ((error = fl_create(fl_root(R.vols[f->dataset]), name, &files_new, &f->f, &commit)) != 0 ||
	    (error = fl_truncate(f->f, f->start_size, &commit)) != 0 ||
	    (error = sampled_depth(f->f, (f->whole + t->recordsize - 1) / t->recordsize)) != 0)
		return replay_failed(error, "Creating", f);
	for (uint64_t w = 0; w < t->records; w += LOAD_FANOUT) {
		uint64_t end = MIN(w + LOAD_FANOUT, t->records), n, i = w;

		if (!touched_has(&f->windows, w / LOAD_FANOUT))
			continue;
		while (!touched_has(t, i))
			i++;
		if ((error = sampled_fill(f->f, w, end, t)) != 0)
			return replay_failed(error, "Filling", f);
		group_grew(f->pool, LOAD_POINTERS);
		for (; i < end && rc == 0; i += n) {
			for (n = 1; i + n < end && touched_has(t, i + n); n++)
				;
			rc = load_bytes(f, f->before, i * t->recordsize, MIN((i + n) * t->recordsize, f->start_size),
			    done, total);
			for (; i + n < end && !touched_has(t, i + n); n++)
				;
		}
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* What records of a kind came to, and how many full ones they are: of small files each has a short one. */
typedef struct {
	sampled_count_t count;
	double full;
} weighed_t;

/* Loads some records with the content of what is not touched, to know what one comes to; they are gone again after. */
static int weigh_untouched(const rfile_t *like, weighed_t *w)
{
	/* All of the content as often: what a part of it comes to is chance. */
	uint64_t rs = R.spec->datasets[like->dataset].recordsize, records = MAX(LOADED_LEAST, LOADED_BYTES / rs);
	uint64_t all = MAX(like->untouched->len / rs, 1);
	fl_file_t *root = fl_root(R.vols[like->dataset]), *file;
	bool commit;
	int error;

	if ((error = fl_create(root, UNTOUCHED, &files_new, &file, &commit)) != 0)
		return replay_failed(error, "Creating records like those of", like);
	records = (records + all - 1) / all * all;
	sampled_count();
	for (uint64_t i = 0; i < records; i++) {
		content_in_turn(like->untouched, i * rs, rs, CONTENT_LOADED + like->id, R.buf);
		if ((error = fl_write(file, i * rs, R.buf, rs, 0, &commit)) != 0)
			return replay_failed(error, "Writing records like those of", like);
		group_grew(like->pool, rs);
	}
	pool_sync(like->pool);
	*w = (weighed_t){sampled_counted(), (double)records};
	if ((error = fl_unlink(root, UNTOUCHED, false, &commit)) != 0)
		return replay_failed(error, "Removing records like those of", like);
	fl_release(file, 1);
	pool_sync(like->pool);
	return 0;
}

static double each(uint64_t bytes, double blocks)
{
	return blocks > 0 ? (double)bytes / blocks : 0.0;
}

static bool compresses(const spec_dataset_t *d)
{
	for (size_t i = 0; i < d->nprops; i++)
		if (strcmp(d->props[i].key, "compression") == 0)
			return strcmp(d->props[i].value, "off") != 0;
	return true; /* OpenZFS's default */
}

/*
 * How many full records the records of a file of a size come to.  The last has nothing behind the file's end, which
 * compression leaves out; and a file of one record has a smaller one.
 */
static double full_records(const rfile_t *f, uint64_t size)
{
	uint64_t rs = f->touched.recordsize, whole = size / rs, end = size % rs;

	if (end > 0 && whole > 0 && !compresses(&R.spec->datasets[f->dataset]))
		end = rs;
	return (double)whole + (double)end / (double)rs;
}

/* … and of those the loaded ones. */
static double loaded_full_records(const rfile_t *f)
{
	const touched_t *t = &f->touched;
	double last = full_records(f, f->start_size) - (double)(t->records - 1);

	return (double)t->count - (touched_has(t, t->records - 1) ? 1.0 - last : 0.0);
}

static double records_of(const rfile_t *f)
{
	return ceil((double)f->spec->whole_start / (double)f->touched.recordsize);
}

/*
 * Of small files the sample has all or nothing.  What share of those that it has nothing of is touched: as much as the others
 * have beyond their own records, of what their touched ones stand for.
 */
static double touched_elsewhere(int dataset, const content_t *content)
{
	double beyond = 0, elsewhere = 0;

	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];

		if (!counts_as(f, dataset, content))
			continue;
		if (f->elsewhere)
			elsewhere += records_of(f);
		else
			beyond += MAX((double)f->touched.count * f->stands_for - records_of(f), 0.0);
	}
	return elsewhere > 0 ? MIN(beyond / elsewhere, 1.0) : 0.0;
}

/*
 * What a file would have on disk were all of it there, of blocks that come to what its kind's do on average: those that
 * are touched, and the others.  elsewhere: which share of its records is touched, where the sample has nothing of it.
 */
static void estimate(rfile_t *f, const weighed_t *weighed, const weighed_t *weighed_others, double elsewhere)
{
	const sampled_count_t *c = &weighed->count, *others = &weighed_others->count;
	const touched_t *t = &f->touched;
	uint64_t rs = t->recordsize, whole;
	double records, above; /* indirect blocks */
	double touched, rest;  /* records, as full ones */
	double full;           /* which one is on average */
	/* One of zeros alone is no block, and takes none: it counts all the same. */
	double data = each(c->data_used, weighed->full), other = each(others->data_used, weighed_others->full);
	double indirect = c->indirect > 0 ? each(c->indirect_used, (double)c->indirect)
					  : each(others->indirect_used, (double)others->indirect);

	rest = t->records > 0 ? full_records(f, f->start_size) / (double)t->records : 0;
	f->missing =
	    other * rest * (double)(t->records - t->count) + indirect * (double)(f->windows.records - f->windows.count);
	whole = f->spec->whole_start;
	records = records_of(f);
	above = records > 1 ? ceil(records / LOAD_FANOUT) : 0.0;
	touched = f->elsewhere ? records * elsewhere : MIN(records, (double)t->count * MAX(f->stands_for, 1.0));
	full = records > 0 ? full_records(f, whole) / records : 0;
	rest = (records - touched) * full;
	touched *= full;
	if (f->stands_for > 1.0) {
		f->space = data * touched + other * rest + indirect * above;
		f->missing *= f->stands_for;
	}
	indirect = each(c->indirect_compressed, (double)c->indirect);
	/* Of metadata OpenZFS takes what is compressed for what is not: BP_GET_UCSIZE() of its sys/spa.h. */
	f->pointer = records > 1 ? above * indirect / records : 0;
	f->logical = records * (double)MIN(rs, MAX(whole, 1)) + above * indirect;
	f->compressed = touched * each(c->data_compressed, weighed->full) +
	    rest * each(others->data_compressed, weighed_others->full) + above * indirect;
}

/* Which records of each file the trace touches. */
static void find_touched(void)
{
	touched_t *touched = calloc(R.nfiles + 1, sizeof(*touched));

	if (touched == NULL)
		abort();
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];
		uint64_t rs = f->known ? R.spec->datasets[f->dataset].recordsize : 1;

		touched[i].recordsize = rs;
		touched[i].records = f->known ? (f->start_size + rs - 1) / rs : 0;
	}
	touched_find(R.ops, touched, R.nfiles);
	for (size_t i = 0; i < R.nfiles; i++)
		R.files[i].touched = touched[i];
	free(touched);
}

/* Which blocks of pointers are loaded of a file. */
static void find_windows(rfile_t *f)
{
	touched_t *w = &f->windows;

	w->records = (f->touched.records + LOAD_FANOUT - 1) / LOAD_FANOUT;
	if ((w->bits = calloc(w->records / 64 + 1, sizeof(*w->bits))) == NULL)
		abort();
	for (uint64_t i = 0; i < f->touched.records; i++)
		if (touched_has(&f->touched, i))
			touched_mark(w, i / LOAD_FANOUT, 1);
}

#define PARTS (1U << 20) /* of all files: of more of them several are one */

/* Does a row of loaded records begin here? */
static bool begins(const touched_t *t, uint64_t record)
{
	return touched_has(t, record) && (record == 0 || !touched_has(t, record - 1));
}

static void add_part(rfile_t *f, part_t part)
{
	if ((f->nparts & (f->nparts + 1)) == 0 &&
	    (f->part = realloc(f->part, (f->nparts + 1) * 2 * sizeof(*f->part))) == NULL)
		abort();
	f->part[f->nparts++] = part;
}

/* Where in a file that is which is loaded: rows of records that are, each with those behind it that are not; least records. */
static void find_parts(rfile_t *f, uint64_t least)
{
	const touched_t *t = &f->touched;
	part_t part = {0, 0};

	f->nparts = 0;
	for (uint64_t i = 0; i < t->records; i++) {
		if (part.records >= least && begins(t, i)) {
			add_part(f, part);
			part = (part_t){0, 0};
		}
		part.loaded += touched_has(t, i);
		part.records++;
	}
	if (part.records > 0)
		add_part(f, part);
}

/* Which records of each file are loaded, and which blocks of pointers. */
static void find_loaded(void)
{
	uint64_t parts = 0, records = 0;

	find_touched();
	for (size_t d = 0; d < R.spec->ndatasets; d++)
		for (size_t k = 0; k < R.spec->ncontent; k++)
			touch_some((int)d, &R.content[k]);
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		find_windows(f);
		records += f->touched.records;
		for (uint64_t n = 0; n < f->touched.records; n++)
			parts += begins(&f->touched, n);
	}
	R.mixed = parts > PARTS;
	for (size_t i = 0; i < R.nfiles; i++)
		find_parts(&R.files[i], R.mixed ? records / PARTS + 1 : 1);
}

/* Whether the trace frees a part of a file. */
static bool frees_part(const op_t *o)
{
	return o->op == OP_TRUNCATE || (o->op == OP_FALLOCATE && (o->flags & (OPF_PUNCH | OPF_ZERO)) != 0);
}

/* Forgets what is loaded, but of files of which the trace frees a part. */
static void forget_touched(void)
{
	bool *kept = calloc(R.nfiles + 1, sizeof(*kept));

	if (kept == NULL)
		abort();
	for (uint64_t i = 0; R.spec->touched && i < R.ops->nops; i++)
		if (frees_part(&R.ops->op[i]) && files_known(R.ops->op[i].file) != NULL)
			kept[R.ops->op[i].file] = true;
	for (size_t i = 0; i < R.nfiles; i++)
		if (!kept[i]) {
			touched_free(&R.files[i].touched);
			touched_free(&R.files[i].windows);
		}
	free(kept);
}

static int load_all_touched(void)
{
	uint64_t total = 0;
	int rc;

	find_loaded();
	for (size_t i = 0; i < R.nfiles; i++)
		total += R.files[i].touched.count * R.files[i].touched.recordsize;
	for (size_t d = 0; d < R.spec->ndatasets; d++)
		for (size_t k = 0; k < R.spec->ncontent; k++) {
			weighed_t weighed, others;
			const rfile_t *apart = of_kind_with_other((int)d, &R.content[k]);
			double elsewhere, full = 0;

			sampled_count();
			for (size_t i = 0; i < R.nfiles; i++) {
				if (!of_kind(&R.files[i], (int)d, &R.content[k]))
					continue;
				full += loaded_full_records(&R.files[i]);
				if ((rc = load_touched(&R.files[i], &R.r->load_bytes, total)) != 0)
					return rc;
			}
			if (full <= 0 && apart == NULL)
				continue;
			pool_sync(R.spec->datasets[d].pool);
			others = weighed = (weighed_t){sampled_counted(), full};
			R.used += (double)weighed.count.used;
			R.allocated += (double)weighed.count.allocated;
			if (apart != NULL && (rc = weigh_untouched(apart, &others)) != 0)
				return rc;
			elsewhere = touched_elsewhere((int)d, &R.content[k]);
			for (size_t i = 0; i < R.nfiles; i++)
				if (counts_as(&R.files[i], (int)d, &R.content[k]))
					estimate(&R.files[i], &weighed, &others, elsewhere);
		}
	return 0;
}

/* --- age --- */

static fl_file_t *aging_file(const spec_file_t *f)
{
	return R.files[f->id].f;
}

static void aging_progress(double done)
{
	replay_tell("age", done, false);
}

/* Whether what the trace does not touch holds something else. What ages is written over everywhere. */
static bool holds_other(void)
{
	if (R.spec->age.fill > 0 || R.spec->age.rewrites > 0)
		return false;
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].known && R.files[i].untouched != R.files[i].before)
			return true;
	return false;
}

/* Every file, and the pool's past. */
int load_all(void)
{
	uint64_t total = 0;
	int rc;

	if (pool_create_all(R.spec, &R.pace, POOL_HOLDS, R.err) != 0 || pool_open_volumes(R.spec, R.vols, R.err) != 0)
		return EXIT_FAILED;
	replay_settle();
	for (size_t i = 0; i < R.nfiles; i++)
		total += R.files[i].known ? R.files[i].start_size : 0;
	pool_loading(R.spec->arc_max);
	/*
	 * Blocks that came to the disks all at once, as if to compress them took no time, would be done at once too, and
	 * OpenZFS would take the next ones in an order in which no host lays them on its disks.
	 */
	worktime_begin(R.spec);
	if (R.spec->touched && (rc = load_all_touched()) != 0)
		return rc;
	if (!R.spec->touched && holds_other())
		find_touched();
	for (size_t i = 0; i < R.nfiles && !R.spec->touched; i++) {
		rfile_t *f = &R.files[i];

		/* An empty file is made by its first operation. */
		if (f->known && f->start_size > 0 && (rc = load_file(f, &R.r->load_bytes, total)) != 0)
			return rc;
	}
	forget_touched();
	for (size_t p = 0; p < R.spec->npools; p++)
		pool_sync((int)p);
	if (R.spec->cores > 0)
		replay_quiesce(); /* who is at work on a processor is to give it back */
	worktime_end();
	if (R.spec->age.fill > 0 || R.spec->age.rewrites > 0) {
		static const age_files_t files = {files_age, aging_file, aging_progress};

		/* In which order blocks are put on the disks depends on who is slower, these or the processors. */
		memvdev_begin(NULL);
		worktime_begin(R.spec);
		if ((rc = age_run(R.spec, R.vols, &files, &R.r->age, R.err)) != 0)
			return rc;
		replay_quiesce();
		worktime_end();
		memvdev_end();
	}
	for (size_t i = 0; i < R.nfiles; i++)
		if (R.files[i].f != NULL)
			fl_release(R.files[i].f, 1);
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		fl_volume_close(R.vols[i]);
	return 0;
}

/* A pool's export and import: the ARC is empty then. */
static int again(int pool)
{
	char *packed;
	size_t len;

	if (pool_pack(R.spec, pool, &packed, &len, R.err) != 0)
		return -1;
	return pool_unpack(R.spec, &R.pace, pool, packed, len, R.err);
}

/* The files that were loaded, of pools that were imported. */
static int open_files(void)
{
	char name[64];
	int error;

	sampled_pools_are_new();
	if (pool_open_volumes(R.spec, R.vols, R.err) != 0)
		return EXIT_FAILED;
	for (size_t i = 0; i < R.spec->ndatasets; i++)
		sampled_volume(R.vols[i], R.spec->datasets[i].pool);
	for (size_t i = 0; i < R.nfiles; i++) {
		if (!R.files[i].known || R.files[i].start_size == 0)
			continue;
		files_name(&R.files[i], name, sizeof(name));
		if ((error = fl_lookup(fl_root(R.vols[R.files[i].dataset]), name, &R.files[i].f)) != 0)
			return replay_failed(error, "Opening", &R.files[i]);
	}
	return 0;
}

/* Has the files as they were when the trace began: loaded here, or by who made the image. */
int load_begin(bool imaged)
{
	double wall = wall_now(), cpu = cpu_now();
	int rc;

	replay_tell("load", 0.0, true);
	if (imaged) {
		pool_loading(R.spec->arc_max);
		if (image_import(R.spec, &R.pace, R.err) != 0)
			return EXIT_FAILED;
		if (R.spec->touched) {
			find_loaded();
			forget_touched();
		}
	} else {
		if ((rc = load_all()) != 0)
			return rc;
		for (size_t p = 0; p < R.spec->npools; p++)
			if (again((int)p) != 0)
				return EXIT_FAILED;
	}
	if ((rc = open_files()) != 0)
		return rc;
	pool_live(&R.pace);
	replay_settle();
	R.r->load_wall_s += wall_now() - wall;
	R.r->load_cpu_s += cpu_now() - cpu;
	replay_tell("load", 1.0, true);
	return 0;
}
