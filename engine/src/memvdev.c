#include "memvdev.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "crowd.h"
#include "device.h"
#include "sampled.h"
#include "store.h"
#include "vtime.h"
#include "weights.h"

#include "diskvdev.h"

static bool modelling;
static int in_flight;
static uint64_t begun;
static account_target_t *targets; /* of writes under way */
/* The most bytes that OpenZFS puts together, as its man page of module parameters has them. */
static int64_t joins_rotating = 1 << 20, joins_flash = 128 << 10;

/* What stands behind a disk_t. */
typedef struct {
	device_t device;
	crowd_t *crowd; /* where requests stand for others too; else NULL */
	store_t *store;
	size_t waited_for;   /* of writes that are on the disk, those of data that somebody waits for */
	zio_t *first;        /* of these the only one so far */
	crowd_others_t held; /* those that it stands for */
	/* The last that came at once, for which there was room. */
	int64_t came;
	double taken;      /* so many are on the disk, of all that they stand for */
	standing_t leader; /* what the first of them was counted as, and by how many too many if it is not alone */
	double too_many;
	uint64_t blocks, block_bytes; /* of all so far that stand for more than themselves */
} memdisk_t;

static memdisk_t *backing_of(const disk_t *d)
{
	return d->backing;
}

static int open_backing(disk_t *disk, err_t *err)
{
	memdisk_t *d = calloc(1, sizeof(*d));

	if (d == NULL)
		abort();
	disk->backing = d;
	return (d->store = store_open(disk->size, err)) == NULL ? -1 : 0;
}

uint64_t memvdev_begun(void)
{
	return begun;
}

int memvdev_in_flight(void)
{
	return in_flight;
}

void memvdev_writing(account_target_t *target)
{
	target->next = targets;
	targets = target;
}

void memvdev_written(account_target_t *target)
{
	account_target_t **p = &targets;

	while (*p != target)
		p = &(*p)->next;
	*p = target->next;
}

/* --- the thread that plays the disks --- */

static vqueue_t disks_wait;
static zio_t **instant; /* I/Os that take no time */
static size_t ninstant, instant_room;

static void complete(zio_t *z)
{
	in_flight--;
	zio_interrupt(z);
}

/*
 * Without times, as in the load, an I/O is done when OpenZFS has nothing else to do: so that what waits in its queues is
 * put together to larger I/O.
 */
static void do_instant(void)
{
	zio_t **list = instant;
	size_t n = ninstant;

	instant = NULL;
	ninstant = instant_room = 0;
	for (size_t i = 0; i < n; i++)
		complete(list[i]);
	free(list);
}

static void end_stand_in(zio_t *z)
{
	free(z->io_private);
}

static bool stands_in(const zio_t *z)
{
	return z->io_done == end_stand_in;
}

/* A write of data, alone or put together, that somebody waits for. */
static bool is_waited_for(const zio_t *z)
{
	return z->io_type == ZIO_TYPE_WRITE && z->io_priority == ZIO_PRIORITY_SYNC_WRITE && !stands_in(z) &&
	    z->io_bookmark.zb_level != ZB_ZIL_LEVEL;
}

static void play(disk_t *d)
{
	memdisk_t *m = backing_of(d);
	int64_t now = vtime_now();
	request_t *r;

	device_advance(&m->device, now);
	while ((r = m->crowd != NULL ? crowd_done(m->crowd, now) : device_done(&m->device)) != NULL) {
		zio_t *z = r->owner;

		request_free(r);
		if (is_waited_for(z)) {
			m->waited_for--;
			/* Nothing came meanwhile: it may be the only one in the whole too, and the others are of other times. */
			if (m->held.left > 0)
				crowd_spread(m->crowd, NULL, m->held, now);
			m->held.left = 0;
		}
		complete(z);
	}
}

static int64_t next_of(const memdisk_t *m)
{
	return m->crowd != NULL ? crowd_next(m->crowd) : device_next(&m->device);
}

static void disks_main(void *arg)
{
	size_t n;
	disk_t *d = disks_all(&n);

	(void)arg;
	for (;;) {
		int64_t next = ninstant > 0 ? vtime_now() : VTIME_NEVER;

		if (modelling)
			for (size_t i = 0; i < n; i++)
				next = MIN(next, next_of(backing_of(&d[i])));
		/* Woken for what is new, it waits all the same until everything else that comes at this time is there. */
		if (vtime_wait(&disks_wait, next))
			vtime_sleep_until(vtime_now());
		do_instant();
		if (modelling)
			for (size_t i = 0; i < n; i++)
				play(&d[i]);
	}
}

int memvdev_create(const spec_t *spec, err_t *err)
{
	disk_t *d;
	size_t n;

	for (size_t i = 0; i < spec->ntunables; i++) {
		const spec_tunable_t *t = &spec->tunables[i];

		if (strcmp(t->name, "zfs_vdev_aggregation_limit") == 0)
			joins_rotating = t->value;
		if (strcmp(t->name, "zfs_vdev_aggregation_limit_non_rotating") == 0)
			joins_flash = t->value;
	}
	account_create(spec->ndatasets);
	if (disks_create(spec, err) != 0)
		return -1;
	store_begin(spec->backing_dir, spec->file_backing);
	d = disks_all(&n);
	for (size_t i = 0; i < n; i++)
		if (open_backing(&d[i], err) != 0)
			return -1;
	vtime_start(disks_main, NULL);
	return 0;
}

store_t *memvdev_store(const disk_t *d)
{
	return backing_of(d)->store;
}

double memvdev_busy_s(const disk_t *d)
{
	return backing_of(d)->device.count.working_ns / 1e9;
}

void memvdev_drain(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++)
		if (backing_of(&d[i])->crowd != NULL)
			crowd_drain(backing_of(&d[i])->crowd);
}

/* Where most of what a disk holds is: of the rows of its parts that hold anything, the one that holds most. */
static stretch_t loaded(const store_t *s, const spread_t *spread)
{
	const uint64_t page = STORE_PART / STORE_PAGES;
	stretch_t row = {0, 0, spread}, best = row;
	uint64_t pages = 0, most = 0;

	for (uint64_t i = 0; i < store_parts(s); i++) {
		const uint8_t *used = store_used(s, i);

		if (used == NULL)
			pages = 0;
		for (uint64_t p = 0; used != NULL && p < STORE_PAGES; p++) {
			if (used[p] == 0)
				continue;
			if (pages++ == 0)
				row.from = i * STORE_PART + p * page;
			row.to = i * STORE_PART + (p + 1) * page;
		}
		if (pages > most) {
			most = pages;
			best = row;
		}
	}
	return best;
}

void memvdev_begin(const spread_t *spread)
{
	static const spread_t nothing;
	size_t n;
	disk_t *d = disks_all(&n);

	account_reset();
	for (size_t i = 0; i < n; i++) {
		const spread_t *mine = spread != NULL ? &spread[d[i].pool] : &nothing;
		memdisk_t *m = backing_of(&d[i]);

		device_init(&m->device, d[i].profile, d[i].span, (uint64_t)(d[i].profile->cache_mb * (1 << 20)),
		    DEVICE_NO_DATA, false);
		if (spread_times(mine) > 1.0 || weights_rate() > 1.0)
			m->crowd = crowd_new(&m->device, i, loaded(m->store, mine));
	}
	modelling = true;
}

void memvdev_end(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++)
		(void)device_settle(&backing_of(&d[i])->device);
	modelling = false;
}

/* --- the vdev operations --- */

static request_t *request_of(zio_t *z)
{
	request_t *r = calloc(1, sizeof(*r));

	if (r == NULL)
		abort();
	r->owner = z;
	r->op = ZIO_IS_FLUSH(z) ? REQ_FLUSH : z->io_type == ZIO_TYPE_WRITE ? REQ_WRITE : REQ_READ;
	if (r->op != REQ_FLUSH) {
		r->off = z->io_offset;
		r->len = (uint32_t)z->io_size;
	}
	r->arrival = vtime_now();
	return r;
}

/* As vdev_queue_pending_add() in OpenZFS, which takes it out again when it is done, and looks what can go next. */
static void take_place(zio_t *z)
{
	vdev_queue_t *q = &z->io_vd->vdev_queue;

	z->io_timestamp = gethrtime();
	mutex_enter(&q->vq_lock);
	if (++q->vq_ia_active == 1)
		q->vq_nia_credit = 1;
#if OPENZFS_NUMBER >= 20200
	q->vq_cactive[z->io_priority]++;
	q->vq_active++;
	z->io_queue_state = ZIO_QS_ACTIVE;
	list_insert_tail(&q->vq_active_list, z);
#else
	typedef void add_fn(avl_tree_t *, void *);
	REAL(add_fn, "avl_add"); /* of a library that isn't linked with */

	q->vq_class[z->io_priority].vqc_active++;
	real(&q->vq_active_tree, z);
#endif
	mutex_exit(&q->vq_lock);
}

/* An I/O in OpenZFS's queue for some of those that a write stands for. */
static void begin_stand_in(zio_t *z, memdisk_t *m)
{
	crowd_others_t *mine = z->io_private;
	request_t *r = crowd_other(m->crowd, mine);

	r->owner = z;
	r->arrival = vtime_now();
	crowd_in_turn(m->crowd, r, *mine);
}

/*
 * Of writes that somebody waits for, such as the pages of an fsync, those that find no room on the disk are put together
 * meanwhile.  So the others take places in OpenZFS's queue, as many as it has, and the write waits for them as an fsync does
 * for all its pages.
 */
static void stand_in(zio_t *z, crowd_others_t others)
{
	others.in_row = true;
	for (uint32_t n = MIN(others.left, CROWD_AT_ONCE - 1); n > 0; n--) {
		crowd_others_t *mine = malloc(sizeof(*mine));
		zio_t *one;

		if (mine == NULL)
			abort();
		*mine = crowd_part(&others, (others.left + n - 1) / n);
		/* No part of what OpenZFS counts. */
		one = zio_vdev_delegated_io(z->io_vd, z->io_offset, NULL, z->io_size, ZIO_TYPE_WRITE, z->io_priority,
		    ZIO_FLAG_DONT_QUEUE | ZIO_FLAG_IO_BYPASS, end_stand_in, mine);
		zio_add_child(z, one);
		take_place(one);
		zio_nowait(one);
	}
}

static uint64_t blocks_of(zio_t *z)
{
	zio_link_t *zl = NULL;
	uint64_t n = 0;

	if (z->io_flags & ZIO_FLAG_DELEGATED)
		while (zio_walk_parents(z, &zl) != NULL)
			n++;
	return MAX(n, 1);
}

/*
 * How many writes so many like this one are if OpenZFS puts them together: with as many blocks more as there is room for, of
 * the size that they have here.  At least one, and no more than they are.
 */
static double joined(zio_t *z, const memdisk_t *m, double ios)
{
	uint64_t most = (uint64_t)(z->io_vd->vdev_nonrot ? joins_flash : joins_rotating);
	uint64_t blocks = blocks_of(z), more;

	if (ios <= 1.0)
		return ios;
	more = most > z->io_size ? (most - z->io_size) * m->blocks / m->block_bytes : 0;
	return MAX(ios * (double)blocks / (double)(blocks + more), 1.0);
}

static bool has_waited(const zio_t *z)
{
	return z->io_timestamp != 0 && gethrtime() > z->io_timestamp;
}

/*
 * A write that somebody waits for goes to the disk.  In the whole those are put together that find no room there, and a
 * sample may have too few of them for that.  So it counts as if they were: what has waited; and of those that came at the
 * same time, as the pages of an fsync do, what is more than the disk takes at once.  Whether the first of these is alone is
 * known when the second comes.
 */
static void join(zio_t *z, disk_t *d, standing_t *stands)
{
	memdisk_t *m = backing_of(d);
	double room = 0, rest, fewer;

	if (stands->ios > 1.0) {
		m->blocks += blocks_of(z);
		m->block_bytes += z->io_size;
	}
	if (!has_waited(z) && (m->waited_for == 0 || gethrtime() != m->came)) {
		rest = MAX(stands->ios - CROWD_AT_ONCE, 0);
		m->came = gethrtime();
		m->taken = stands->ios;
		m->leader = *stands;
		m->too_many = rest - joined(z, m, rest);
		return;
	}
	if (!has_waited(z)) {
		account_fewer(&m->leader, d, m->too_many);
		m->too_many = 0;
		room = MAX(CROWD_AT_ONCE - m->taken, 0);
		m->taken += stands->ios;
	}
	rest = MAX(stands->ios - room, 0);
	fewer = rest - joined(z, m, rest);
	if (fewer > 0) {
		account_fewer(stands, d, fewer);
		stands->ios = ceil(stands->ios - fewer - 1e-9); /* the disk does whole ones, of all the bytes */
	}
}

static void submit(zio_t *z, disk_t *d, standing_t stands)
{
	memdisk_t *m = backing_of(d);
	request_t *r = request_of(z);
	crowd_others_t others = {0};
	bool waited_for = is_waited_for(z), first;

	if (waited_for && m->crowd != NULL)
		join(z, d, &stands);
	first = waited_for && m->waited_for++ == 0 && !has_waited(z);

	if (m->crowd == NULL) {
		device_submit(&m->device, r);
		return;
	}
	if (r->op != REQ_FLUSH)
		others = crowd_place(m->crowd, r, stands.ios, stands.bytes);
	if (first) {
		m->first = z;
		m->held = others;
		others.left = 0;
		crowd_spread(m->crowd, r, others, r->arrival);
	} else if (waited_for) {
		crowd_in_turn(m->crowd, r, (crowd_others_t){0});
		stand_in(m->first, m->held);
		stand_in(z, others);
		m->held.left = 0;
	} else if (r->op == REQ_FLUSH || (r->op == REQ_WRITE && z->io_priority != ZIO_PRIORITY_SYNC_WRITE)) {
		/* A transaction group is written one after the other: it takes one place for as long. */
		crowd_in_turn(m->crowd, r, others);
	} else {
		crowd_spread(m->crowd, r, others, r->arrival);
	}
}

static void wait_instant(zio_t *z)
{
	if (ninstant == instant_room) {
		instant_room = instant_room == 0 ? 64 : instant_room * 2;
		if ((instant = realloc(instant, instant_room * sizeof(zio_t *))) == NULL)
			abort();
	}
	instant[ninstant++] = z;
}

/* Blocks of logs, by the parts of an aggregated write. */
static void note_written(zio_t *z, const disk_t *d)
{
	const zbookmark_phys_t *b = &z->io_bookmark;
	zio_link_t *zl = NULL;
	zio_t *p;

	if (z->io_flags & ZIO_FLAG_DELEGATED)
		while ((p = zio_walk_parents(z, &zl)) != NULL)
			note_written(p, d);
	else if (d->class != VC_CACHE && weights_is_log(d->pool, b->zb_objset, b->zb_object, b->zb_blkid))
		sampled_written(z);
}

void disk_begin(zio_t *z, disk_t *d)
{
	store_t *s = backing_of(d)->store;
	standing_t stands;
	int error = 0, fd;
	uint8_t *mem;

	in_flight++;
	begun++;
	if (stands_in(z)) {
		begin_stand_in(z, backing_of(d));
		vtime_wake(&disks_wait, true);
		return;
	}
	(void)account_io(z, d, targets, &stands);
	if (modelling && weights_rate() > 1.0 && z->io_type == ZIO_TYPE_WRITE)
		note_written(z, d);
	if (!ZIO_IS_FLUSH(z)) {
		mem = store_at(s, &fd);
		if (z->io_type == ZIO_TYPE_WRITE)
			store_claim(s, z->io_offset, z->io_size);
		if (mem == NULL)
			error = disk_file_io(fd, z);
		else if (z->io_type == ZIO_TYPE_READ)
			abd_copy_from_buf_off(z->io_abd, mem + z->io_offset, 0, z->io_size);
		else
			abd_copy_to_buf_off(mem + z->io_offset, z->io_abd, 0, z->io_size);
		if (mem != NULL && z->io_type == ZIO_TYPE_WRITE)
			store_drop_zeros(s, z->io_offset, z->io_size);
	}
	if (error != 0) {
		/* OpenZFS would suspend the pool and wait for ever. */
		(void)fprintf(stderr, "The backing files of the disks can't be %s: %s.\n",
		    z->io_type == ZIO_TYPE_READ ? "read" : "written", error < 0 ? "end of file" : strerror(error));
		_exit(EXIT_FAILED);
	}
	if (modelling)
		submit(z, d, stands);
	else
		wait_instant(z);
	vtime_wake(&disks_wait, true);
}

void disk_end(void)
{
}

/* --- what OpenZFS frees is given back --- */
static void release_on_disk(void *disk, zfs_range_seg64_t *r)
{
	store_release(backing_of(disk)->store, r->rs_start + VDEV_LABEL_START_SIZE, r->rs_end - r->rs_start);
}

/* A range of a top-level vdev, on each of its disks. */
static void release(void *top, uint64_t start, uint64_t size)
{
	const zfs_range_seg64_t range = {.rs_start = start, .rs_end = start + size};
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++) {
		vdev_t *leaf = d[i].vdev;

		if (leaf != NULL && leaf->vdev_top == top && leaf->vdev_ops->vdev_op_leaf)
			vdev_xlate_walk(leaf, &range, release_on_disk, &d[i]);
	}
}

/*
 * The end of a transaction group for a part of a disk.  What the group freed OpenZFS would keep for two more, so that an
 * older uberblock could be gone back to; nothing here ever does, and until then it can't be allocated again.
 */
void metaslab_sync_done(metaslab_t *ms, uint64_t txg)
{
	typedef void done_fn(metaslab_t *, uint64_t);
	REAL(done_fn, "metaslab_sync_done");

	zfs_range_tree_walk(ms->ms_freed, release, ms->ms_group->mg_vd);
	real(ms, txg);
}
