#include "memvdev.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "busy.h"
#include "store.h"

#include "diskvdev.h"

/* One lock for counters, models and tracks: an I/O spends far less time here than in OpenZFS's own queues. */
static pthread_mutex_t io_lock = PTHREAD_MUTEX_INITIALIZER;
static bool modelling;
static int in_flight;
static uint64_t begun;

/* What the dispatcher is at.  Depth orders dependent reads: a block pointer must be read before what it points to. */
#define DEPTHS 24
static struct {
	doing_t what;
	int pool;
	uint64_t objset, object;
	int64_t t, end;
	int64_t depth_end[DEPTHS];
} doing;
static int64_t now_ns;

/* The commit under way, and the modelled end of its I/O so far. */
static bool committing;
static int64_t commit_end;
static int64_t log_write_end;

/* Prefetched blocks that are still on their way in the model. */
#define PREFETCH_SLOTS 65536
static struct {
	uint64_t key;
	int64_t finish;
} prefetch[PREFETCH_SLOTS];

static uint64_t block_key(int pool, uint64_t objset, uint64_t object, uint64_t blkid)
{
	uint64_t x = blkid + object * 0x9e3779b97f4a7c15ULL + (objset + ((uint64_t)pool << 32)) * 0xbf58476d1ce4e5b9ULL;

	x = (x ^ (x >> 31)) * 0x94d049bb133111ebULL;
	return (x ^ (x >> 29)) | 1;
}

/* What stands behind a disk_t. */
typedef struct {
	model_device_t model;
	store_t *store;
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
	model_init(&d->model, disk->profile, disk->span);
	return (d->store = store_open(disk->size, err)) == NULL ? -1 : 0;
}

int memvdev_create(const spec_t *spec, err_t *err)
{
	disk_t *d;
	size_t n;

	account_create(spec->ndatasets);
	if (disks_create(spec, err) != 0)
		return -1;
	store_begin(spec->backing_dir, spec->file_backing);
	d = disks_all(&n);
	for (size_t i = 0; i < n; i++)
		if (open_backing(&d[i], err) != 0)
			return -1;
	return 0;
}

double memvdev_busy_s(const disk_t *d)
{
	return model_busy_s(&backing_of(d)->model);
}

void memvdev_limit(model_class_t class, int limit)
{
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++)
		backing_of(&d[i])->model.limit[class] = limit;
}

uint64_t memvdev_begun(void)
{
	return __atomic_load_n(&begun, __ATOMIC_RELAXED);
}

int memvdev_in_flight(void)
{
	return __atomic_load_n(&in_flight, __ATOMIC_RELAXED);
}

void memvdev_reset(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	(void)pthread_mutex_lock(&io_lock);
	account_reset();
	for (size_t i = 0; i < n; i++) {
		model_device_t *m = &backing_of(&d[i])->model;
		int limit[MIO_COUNT];

		memcpy(limit, m->limit, sizeof(limit));
		model_init(m, d[i].profile, d[i].span);
		memcpy(m->limit, limit, sizeof(limit));
	}
	modelling = true;
	(void)pthread_mutex_unlock(&io_lock);
}

void memvdev_time(int64_t t)
{
	(void)pthread_mutex_lock(&io_lock);
	now_ns = t;
	(void)pthread_mutex_unlock(&io_lock);
}

void memvdev_begin(doing_t what, int64_t t, int pool, uint64_t objset, uint64_t object)
{
	(void)pthread_mutex_lock(&io_lock);
	now_ns = t;
	doing.what = what;
	doing.pool = pool;
	doing.objset = objset;
	doing.object = object;
	doing.t = doing.end = t;
	for (int i = 0; i < DEPTHS; i++)
		doing.depth_end[i] = t;
	(void)pthread_mutex_unlock(&io_lock);
}

int64_t memvdev_end(void)
{
	int64_t end;

	(void)pthread_mutex_lock(&io_lock);
	end = doing.end;
	doing.what = DO_NOTHING;
	(void)pthread_mutex_unlock(&io_lock);
	return end;
}

void memvdev_commit_begin(int64_t t)
{
	(void)pthread_mutex_lock(&io_lock);
	now_ns = commit_end = t;
	committing = true;
	(void)pthread_mutex_unlock(&io_lock);
}

int64_t memvdev_commit_end(void)
{
	int64_t end;

	(void)pthread_mutex_lock(&io_lock);
	committing = false;
	end = commit_end;
	(void)pthread_mutex_unlock(&io_lock);
	return end;
}

int64_t memvdev_prefetch_finish(int pool, uint64_t objset, uint64_t object, uint64_t blkid)
{
	uint64_t key = block_key(pool, objset, object, blkid);
	int64_t f;

	(void)pthread_mutex_lock(&io_lock);
	f = prefetch[key % PREFETCH_SLOTS].key == key ? prefetch[key % PREFETCH_SLOTS].finish : 0;
	(void)pthread_mutex_unlock(&io_lock);
	return f;
}

int64_t memvdev_async_until(int pool)
{
	size_t n;
	const disk_t *d = disks_all(&n);
	int64_t t = 0;

	(void)pthread_mutex_lock(&io_lock);
	for (size_t i = 0; i < n; i++)
		if (d[i].pool == pool && d[i].class != VC_CACHE)
			t = MAX(t, backing_of(&d[i])->model.async_until);
	(void)pthread_mutex_unlock(&io_lock);
	return t;
}

/* --- accounting --- */

static void track_commit(int64_t finish)
{
	if (committing)
		commit_end = MAX(commit_end, finish);
}

static bool is_label(const disk_t *d, const zio_t *z)
{
	uint64_t front = VDEV_LABEL_START_SIZE, back = d->size - VDEV_LABEL_END_SIZE;

	return z->io_offset < front || z->io_offset >= back;
}

/* How far down the chain of pointers a read is: the dnode, then indirect blocks from the top, then data. */
static int read_depth(const zio_t *z)
{
	const zbookmark_phys_t *b = &z->io_bookmark;
	int level = (int)MAX(b->zb_level, 0);

	if (b->zb_object == DMU_META_DNODE_OBJECT)
		return MAX(DEPTHS / 2 - 1 - level, 0);
	return MAX(DEPTHS - 1 - level, DEPTHS / 2);
}

static void model_read(disk_t *d, const zio_t *z, const zio_t *part)
{
	bool ahead = z->io_priority != ZIO_PRIORITY_SYNC_READ && z->io_priority != ZIO_PRIORITY_NOW;
	const zbookmark_phys_t *b = &part->io_bookmark;
	int64_t arrival = MAX(now_ns, doing.t), end;
	int depth = read_depth(part);

	if (doing.what == DO_READ || doing.what == DO_WRITE)
		for (int i = 0; i < depth; i++)
			arrival = MAX(arrival, doing.depth_end[i]);
	if (doing.what == DO_TXG || ahead) {
		end = model_io(&backing_of(d)->model, arrival, MIO_ASYNC_READ, z->io_offset, z->io_size);
		if (ahead) {
			uint64_t key = block_key(d->pool, b->zb_objset, b->zb_object, b->zb_blkid);

			prefetch[key % PREFETCH_SLOTS].key = key;
			prefetch[key % PREFETCH_SLOTS].finish = end;
		}
		return;
	}
	end = model_io(&backing_of(d)->model, arrival, MIO_SYNC_READ, z->io_offset, z->io_size);
	if (doing.what == DO_READ || doing.what == DO_WRITE) {
		doing.depth_end[depth] = MAX(doing.depth_end[depth], end);
		doing.end = MAX(doing.end, end);
	} else {
		track_commit(end);
	}
}

static void model_write(disk_t *d, const zio_t *z)
{
	int64_t end;

	if (z->io_priority != ZIO_PRIORITY_SYNC_WRITE || is_label(d, z) || (!committing && doing.what == DO_TXG)) {
		(void)model_io(&backing_of(d)->model, now_ns, MIO_ASYNC_WRITE, z->io_offset, z->io_size);
		return;
	}
	end = model_io(&backing_of(d)->model, now_ns, MIO_SYNC_WRITE, z->io_offset, z->io_size);
	log_write_end = MAX(log_write_end, end);
	track_commit(end);
}

static void account(zio_t *z, disk_t *d)
{
	const account_target_t target = {doing.pool, doing.objset, doing.object};
	const zio_t *part;

	(void)pthread_mutex_lock(&io_lock);
	part = account_io(z, d, doing.what == DO_WRITE ? &target : NULL);
	if (modelling && ZIO_IS_FLUSH(z)) {
		if (!committing)
			(void)model_flush(&backing_of(d)->model, now_ns, true);
		else
			track_commit(model_flush(&backing_of(d)->model, MAX(now_ns, log_write_end), false));
	} else if (modelling && z->io_type == ZIO_TYPE_WRITE) {
		model_write(d, z);
	} else if (modelling) {
		model_read(d, z, part);
	}
	(void)pthread_mutex_unlock(&io_lock);
}

/* --- disks slower than the processor --- */

/*
 * A disk is busy while OpenZFS goes on queueing the rest of a transaction group, and what waits in the queue is put
 * together to larger I/O; and all blocks of a commit are on their way before the first is written.  Memory would finish
 * each write at once and nothing would ever wait.  So the writes that are on a disk are finished only when OpenZFS has
 * nothing else to do.  This also makes their number far less dependent on chance.
 */
static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_cond = PTHREAD_COND_INITIALIZER;
static zio_t **parked, **leaving;
static size_t nparked, park_room, leave_room;
static bool park_started;

static int by_place(const void *a, const void *b)
{
	const zio_t *x = *(zio_t *const *)a, *y = *(zio_t *const *)b;
	uintptr_t dx = (uintptr_t)x->io_vd->vdev_tsd, dy = (uintptr_t)y->io_vd->vdev_tsd;

	if (dx != dy)
		return dx < dy ? -1 : 1;
	return x->io_offset < y->io_offset ? -1 : x->io_offset > y->io_offset;
}

static void *park_main(void *arg)
{
	for (;;) {
		zio_t **list;
		size_t n, room;

		(void)pthread_mutex_lock(&park_lock);
		while (nparked == 0)
			(void)pthread_cond_wait(&park_cond, &park_lock);
		(void)pthread_mutex_unlock(&park_lock);
		busy_wait_idle();
		(void)pthread_mutex_lock(&park_lock);
		list = parked;
		n = nparked;
		parked = leaving;
		leaving = list;
		nparked = 0;
		room = park_room;
		park_room = leave_room;
		leave_room = room;
		(void)pthread_mutex_unlock(&park_lock);
		/* One after the other, so that what follows from each does not race with what follows from the next. */
		qsort(list, n, sizeof(*list), by_place);
		for (size_t i = 0; i < n; i++) {
			zio_interrupt(list[i]);
			if (modelling)
				busy_wait_idle();
		}
	}
	return arg;
}

static void park(zio_t *z)
{
	(void)pthread_mutex_lock(&park_lock);
	if (!park_started) {
		pthread_t t;

		if (pthread_create(&t, NULL, park_main, NULL) != 0)
			abort();
		park_started = true;
	}
	if (nparked == park_room) {
		park_room = park_room == 0 ? 1024 : park_room * 2;
		if ((parked = realloc(parked, park_room * sizeof(zio_t *))) == NULL)
			abort();
	}
	parked[nparked++] = z;
	if (nparked == 1)
		(void)pthread_cond_signal(&park_cond);
	(void)pthread_mutex_unlock(&park_lock);
}

/* --- the vdev operations --- */

void disk_begin(zio_t *z, disk_t *d)
{
	store_t *s = backing_of(d)->store;
	int error = 0, fd;
	uint8_t *mem;

	(void)__atomic_add_fetch(&in_flight, 1, __ATOMIC_RELAXED);
	(void)__atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
	account(z, d);
	if (ZIO_IS_FLUSH(z)) {
		zio_interrupt(z);
		return;
	}
	mem = store_enter(s, &fd);
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
	store_leave();
	if (error != 0) {
		/* OpenZFS would suspend the pool and wait for ever. */
		(void)fprintf(stderr, "The backing files of the disks can't be %s: %s.\n",
		    z->io_type == ZIO_TYPE_READ ? "read" : "written", error < 0 ? "end of file" : strerror(error));
		_exit(EXIT_FAILED);
	}
	if (z->io_type == ZIO_TYPE_WRITE)
		park(z);
	else
		zio_interrupt(z);
}

void disk_end(void)
{
	(void)__atomic_sub_fetch(&in_flight, 1, __ATOMIC_RELAXED);
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
	static done_fn *real;

	if (real == NULL)
		real = (done_fn *)(uintptr_t)dlsym(RTLD_NEXT, "metaslab_sync_done");
	zfs_range_tree_walk(ms->ms_freed, release, ms->ms_group->mg_vd);
	real(ms, txg);
}
