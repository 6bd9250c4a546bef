/* What stands for what in a sample: calls, blocks, and the space of files. */
#include "replay_impl.h"

/* Of a part of a file, how many bytes are certain. */
static double certain_bytes(const rfile_t *f, uint64_t off, uint64_t end)
{
	double n = 0;

	for (size_t i = 0; f->spec != NULL && i < f->spec->ncertain; i++) {
		uint64_t from = MAX(off, f->spec->certain[i].off);
		uint64_t to = MIN(end, f->spec->certain[i].off + f->spec->certain[i].len);

		n += to > from ? (double)(to - from) : 0.0;
	}
	return n;
}

/* For how many bytes each of a part of a file stands. */
double stands_for(const rfile_t *f, uint64_t off, uint64_t len)
{
	if (f->stands_for <= 1.0 || len == 0)
		return f->stands_for;
	return f->stands_for - (f->stands_for - 1.0) * certain_bytes(f, off, off + len) / (double)len;
}

double stands_for_call(const rfile_t *f, const op_t *o)
{
	return stands_for(f, (uint64_t)MAX(o->offset, 0), (uint64_t)MAX(o->size, 0));
}

/* How many each of a file's blocks stands for. */
void stands_set(rfile_t *f)
{
	uint64_t rs = R.spec->datasets[f->dataset].recordsize;
	const weights_file_t file = {
		.whole = (f->whole + rs - 1) / rs,
		.sampled = (MAX(f->start_size, rs) + rs - 1) / rs,
		.rate = f->stands_for,
		.sector = 1ULL << R.spec->pools[f->pool].ashift,
		.written = f->is_written,
		.certain = f->certain,
		.ncertain = f->spec != NULL ? f->spec->ncertain : 0,
	};

	if (R.spec->rate <= 1 || f->f == NULL)
		return;
	if (f->stands_for <= 1.0) {
		const weights_range_t read = {f->read_first / rs, (f->read_end + rs - 1) / rs - f->read_first / rs};

		weights_set_own(f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f), read);
		return;
	}
	weights_set(f->pool, fl_volume_objset(R.vols[f->dataset]), fl_object(f->f), &file);
}

void stands_logged(fl_file_t *file, uint64_t off, uint64_t bytes)
{
	for (size_t i = 0; R.spec->rate > 1 && i < R.spec->ndatasets; i++) {
		const spec_dataset_t *d = &R.spec->datasets[i];
		weights_block_t block;

		if (R.vols[i] != fl_volume_of(file))
			continue;
		block = (weights_block_t){
			.pool = d->pool,
			.objset = fl_volume_objset(R.vols[i]),
			.object = fl_object(file),
			.number = off / d->recordsize,
		};
		weights_logged(d->pool, block.objset, bytes, weights_of(block, 0).blocks);
	}
}

/* Of a sampled file, how many bytes would be as many in the whole, as far as the size of the ARC goes. */
static double whole_bytes(const rfile_t *f)
{
	double certain = certain_bytes(f, 0, f->start_size), rest = (double)f->start_size - certain;

	/* One that is sampled less than the rest takes a larger share of the ARC than of the whole one. */
	return certain + (f->is_read ? rest * (R.spec->rate - f->stands_for) / (R.spec->rate - 1.0) : 0.0);
}

/* Of a file, the share between the first and the last byte that is read: of a log perhaps its first page. */
static double share_read(const rfile_t *f)
{
	uint64_t end = MIN(f->read_end, f->start_size);

	return end > f->read_first ? (double)(end - f->read_first) / (double)f->start_size : 0.0;
}

/* As the caches begin to fill: what is in the ARC already, and what will be of what is read of files that are whole. */
void stands_note_whole(void)
{
	uint64_t size, evictable;

	if (R.spec->rate <= 1)
		return;
	pool_arc_size(&size, &evictable);
	R.whole = size - MIN(evictable, size);
	for (size_t i = 0; i < R.nfiles; i++) {
		const rfile_t *f = &R.files[i];
		double ratio = f->logical > 0 ? MIN(f->compressed / f->logical, 1.0) : 1.0;

		if (f->f != NULL && f->is_read && f->stands_for <= 1.0)
			R.whole += (uint64_t)((double)sampled_used(f->f) * share_read(f));
		else if (f->f != NULL && f->stands_for > 1.0)
			R.whole += (uint64_t)(whole_bytes(f) * ratio);
	}
	(void)sampled_arc_limit(R.spec->arc_max, R.whole);
}

/* As the measure begins. */
void stands_note_space(void)
{
	for (size_t i = 0; i < R.nfiles; i++) {
		rfile_t *f = &R.files[i];

		if (f->f == NULL)
			continue;
		stands_set(f);
		f->used = sampled_used(f->f);
		f->filled = sampled_filled(f->f);
		if (f->stands_for <= 1.0)
			f->space = (double)f->used + f->missing;
	}
}

/* Where a file lies. */
static void spread_file(spread_t *s, const rfile_t *f)
{
	double loaded = 0, records = 0;

	for (size_t i = 0; i < f->nparts; i++) {
		loaded += (double)f->part[i].loaded;
		records += (double)f->part[i].records;
	}
	for (size_t i = 0; loaded > 0 && i < f->nparts; i++) {
		double here = (double)f->part[i].loaded, all = (double)f->part[i].records;

		spread_add(s, (double)f->used * here / loaded, f->space * (R.mixed ? all : here) / records);
		if (!R.mixed && all > here)
			spread_add(s, 0, f->space * (all - here) / records);
	}
	if (loaded == 0)
		spread_add(s, (double)f->used, f->space);
}

const spread_t *stands_spread(void)
{
	if (!R.spec->touched && R.spec->rate <= 1)
		return NULL;
	/* In the order in which they were loaded. */
	for (size_t d = 0; d < R.spec->ndatasets; d++)
		for (size_t k = 0; k < R.spec->ncontent; k++)
			for (size_t i = 0; i < R.nfiles; i++) {
				const rfile_t *f = &R.files[i];
				spread_t *s = &R.spread[f->pool];

				if (f->dataset != (int)d || f->content != &R.content[k])
					continue;
				if (f->f != NULL)
					spread_file(s, f);
				else if (f->elsewhere)
					spread_add(s, 0, f->space);
			}
	return R.spread;
}

/* Compressed bytes for each on disk, of what a file had when the measure began. */
static double compressed_each(const rfile_t *f)
{
	return f->space > 0 ? f->compressed / f->space : 1.0;
}

/*
 * A range of a file was freed, its end cut off or a hole made in it.  Of what was not loaded of it, the records that lie in
 * the range take no more space, and neither do their pointers.
 */
void stands_freed(rfile_t *f, uint64_t off, uint64_t len)
{
	uint64_t rs = f->touched.recordsize, next, n = 0, nowhere = 0;
	uint64_t end = MIN(len > UINT64_MAX - off ? UINT64_MAX : off + len, f->touched.records * rs);
	uint64_t left = f->touched.records - f->touched.count;
	double lost;

	for (uint64_t at = off; at < end; at = next) {
		uint64_t window = at / (rs * LOAD_FANOUT), freed;

		next = MIN((window + 1) * rs * LOAD_FANOUT, end);
		n += freed = touched_take(&f->touched, at, next - at);
		if (!touched_has(&f->windows, window))
			nowhere += freed;
	}
	lost = n > 0 ? f->missing * (double)n / (double)left : 0.0;
	f->compressed -= lost * compressed_each(f);
	f->logical -= ((double)(nowhere * rs) + (double)n * f->pointer) * f->stands_for;
	f->missing -= lost;
	f->space -= lost;
}

/*
 * The space that all files take: what they took when the measure began, and by how much they grew since, as much as they
 * stand for.
 */
void stands_space(void)
{
	double more = 0, per_byte = R.used > 0 ? R.allocated / R.used : 1.0;

	for (size_t d = 0; d < R.spec->ndatasets; d++) {
		double logical = 0, compressed = 0;
		space_t *s = &R.r->dataset_space[d];

		for (size_t i = 0; i < R.nfiles; i++) {
			const rfile_t *f = &R.files[i];
			uint64_t begin, size;
			double used, grown;

			if (f->elsewhere && f->f == NULL && f->dataset == (int)d) {
				s->allocated += (uint64_t)llround(f->space);
				more += f->space;
				logical += f->logical;
				compressed += f->compressed;
			}
			if (f->dataset != (int)d || f->f == NULL || f->unlinked)
				continue;
			used = (double)sampled_used(f->f);
			grown = (used - (double)f->used) * (f->written > 0 ? f->stood_for / f->written : f->stands_for);
			s->allocated += (uint64_t)(int64_t)llround(f->space + grown - used);
			more += f->space + grown - used;
			begin = f->logical > 0 ? f->start_size : 0;
			size = MAX(fl_size(f->f), begin);
			logical += f->logical +
			    ((double)sampled_filled(f->f) - (double)f->filled) * stands_for(f, begin, size - begin);
			/* Copies and the parity of small blocks are space, and no part of the ratio. */
			compressed +=
			    f->compressed + grown * (grown > 0 ? sampled_compressed(R.vols[d]) : compressed_each(f));
		}
		s->logical = (uint64_t)MAX(logical, 0);
		s->ratio = compressed > 0 ? logical / compressed : 1.0;
	}
	R.r->allocated += (uint64_t)(int64_t)llround(more * per_byte);
}
