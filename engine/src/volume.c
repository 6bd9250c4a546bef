/* Volumes of the file layer, and which of their files are known. */
#include "filelayer_impl.h"

/* --- the table of files --- */

/* A write that makes the block size grow locks the whole file, as does an append. */
static void widen_lock(zfs_locked_range_t *new, void *arg)
{
	fl_file_t *f = arg;
	uint64_t end;

	if (new->lr_type == RL_APPEND) {
		new->lr_offset = f->size;
		new->lr_type = RL_WRITER;
	}
	end = MAX(f->size, new->lr_offset + new->lr_length);
	if (end > f->block && (!ISP2(f->block) || f->block < f->vol->recordsize)) {
		new->lr_offset = 0;
		new->lr_length = UINT64_MAX;
	}
}

static int read_attributes(fl_file_t *f)
{
	const sa_attr_type_t *a = f->vol->attr;
	sa_bulk_attr_t bulk[12];
	int n = 0, error;

	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MODE], NULL, &f->mode, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_SIZE], NULL, &f->size, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_GEN], NULL, &f->gen, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_UID], NULL, &f->uid, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_GID], NULL, &f->gid, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_PARENT], NULL, &f->parent, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_FLAGS], NULL, &f->flags, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_LINKS], NULL, &f->links, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_ATIME], NULL, f->atime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MTIME], NULL, f->mtime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_CTIME], NULL, f->ctime, 16);
	if ((error = sa_bulk_lookup(f->sa, bulk, n)) != 0)
		return error;
	if (S_ISCHR(f->mode) || S_ISBLK(f->mode))
		error = sa_lookup(f->sa, a[ZPL_RDEV], &f->rdev, 8);
	return error;
}

static void let_go(fl_file_t *f)
{
	if (f->sa != NULL)
		sa_handle_destroy(f->sa); /* and with it the bonus buffer */
	if (f->dn != NULL)
		dnode_rele(f->dn, f);
	mutex_destroy(&f->attr_lock);
	mutex_destroy(&f->xattr_lock);
	kmem_free(f, sizeof(*f));
}

static int attach(fl_volume_t *vol, uint64_t object, fl_file_t **out)
{
	fl_file_t *f = kmem_zalloc(sizeof(*f), KM_SLEEP);
	dmu_object_info_t info;
	u_longlong_t blocks;
	int error;

	f->vol = vol;
	f->object = object;
	f->references = 1;
	mutex_init(&f->xattr_lock, NULL, MUTEX_DEFAULT, NULL);
	mutex_init(&f->attr_lock, NULL, MUTEX_DEFAULT, NULL);
	if ((error = dnode_hold(vol->os, object, f, &f->dn)) == 0 &&
	    (error = sa_buf_hold(vol->os, object, NULL, &f->bonus)) == 0) {
		dmu_object_info_from_db(f->bonus, &info);
		error = info.doi_bonus_type == DMU_OT_SA ? 0 : SET_ERROR(EINVAL);
		if (error == 0)
			error = sa_handle_get_from_db(vol->os, f->bonus, f, SA_HDL_SHARED, &f->sa);
		if (error != 0)
			sa_buf_rele(f->bonus, NULL);
	}
	if (error == 0)
		error = read_attributes(f);
	if (error != 0) {
		let_go(f);
		return error;
	}
	sa_object_size(f->sa, &f->block, &blocks);
	f->unlinked = f->links == 0;
	zfs_rangelock_init(&f->lock, widen_lock, f);
	mutex_enter(&vol->lock);
	f->next = vol->bucket[object % FL_BUCKETS];
	vol->bucket[object % FL_BUCKETS] = f;
	mutex_exit(&vol->lock);
	*out = f;
	return 0;
}

static fl_file_t *find(fl_volume_t *vol, uint64_t object)
{
	fl_file_t *f;

	for (f = vol->bucket[object % FL_BUCKETS]; f != NULL && f->object != object; f = f->next)
		;
	return f;
}

int fl_get(fl_volume_t *vol, uint64_t object, fl_file_t **out)
{
	fl_file_t *f;
	int error = 0;

	/* Also keeps a file whose last reference goes from being found while it is taken apart. */
	mutex_enter(&vol->attaching);
	mutex_enter(&vol->lock);
	if ((f = find(vol, object)) != NULL)
		f->references++;
	mutex_exit(&vol->lock);
	if (f != NULL)
		*out = f;
	else
		error = attach(vol, object, out);
	mutex_exit(&vol->attaching);
	return error;
}

int fl_use(fl_volume_t *vol, uint64_t object, uint64_t gen, fl_file_t **out)
{
	int error = fl_get(vol, object, out);

	if (error == 0 && ((*out)->gen != gen || (*out)->unlinked)) {
		fl_unuse(*out);
		error = SET_ERROR(ENOENT);
	}
	return error;
}

static void release_one(void *f)
{
	fl_release(f, 1);
}

void fl_unuse(fl_file_t *f)
{
	fl_volume_t *vol = f->vol;
	bool last;

	mutex_enter(&vol->lock);
	last = f->references == 1;
	if (!last)
		f->references--;
	mutex_exit(&vol->lock);
	if (last)
		VERIFY3U(taskq_dispatch(system_taskq, release_one, f, TQ_SLEEP), !=, TASKQID_INVALID);
}

void fl_hold(fl_file_t *f)
{
	mutex_enter(&f->vol->lock);
	f->references++;
	mutex_exit(&f->vol->lock);
}

/* Frees an object without a name.  What can't be freed now is freed when the volume is opened next. */
static void destroy(fl_volume_t *vol, uint64_t object)
{
	dmu_tx_t *tx;

	if (dmu_free_long_range(vol->os, object, 0, DMU_OBJECT_END) != 0)
		return;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_free(tx, object, 0, DMU_OBJECT_END);
	dmu_tx_hold_zap(tx, vol->unlinked_set, B_FALSE, NULL);
	dmu_tx_mark_netfree(tx);
	if (fl_begin(tx) != 0)
		return;
	VERIFY0(zap_remove_int(vol->os, vol->unlinked_set, object, tx));
	VERIFY0(dmu_object_free(vol->os, object, tx));
	dmu_tx_commit(tx);
}

static void write_atime(fl_file_t *f)
{
	dmu_tx_t *tx = dmu_tx_create(f->vol->os);

	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	if (fl_begin(tx) == 0) {
		(void)sa_update(f->sa, f->vol->attr[ZPL_ATIME], f->atime, 16, tx);
		dmu_tx_commit(tx);
	}
	f->atime_dirty = false;
}

void fl_release(fl_file_t *f, uint64_t references)
{
	fl_volume_t *vol = f->vol;
	fl_file_t **p;
	uint64_t object = f->object;
	bool last, unlinked;

	mutex_enter(&vol->lock);
	last = f->references == references;
	if (!last)
		f->references -= references;
	mutex_exit(&vol->lock);
	if (!last)
		return;
	/* Not under a lock that others take within a transaction: this one may have to wait for theirs. */
	if (f->atime_dirty && !f->unlinked)
		write_atime(f);
	/* Somebody may look it up before we are alone with the table. */
	mutex_enter(&vol->attaching);
	mutex_enter(&vol->lock);
	f->references -= references;
	if (f->references > 0) {
		mutex_exit(&vol->lock);
		mutex_exit(&vol->attaching);
		return;
	}
	for (p = &vol->bucket[object % FL_BUCKETS]; *p != f; p = &(*p)->next)
		;
	*p = f->next;
	mutex_exit(&vol->lock);
	unlinked = f->unlinked;
	zfs_rangelock_fini(&f->lock);
	let_go(f);
	mutex_exit(&vol->attaching);
	if (unlinked)
		destroy(vol, object);
}

/* --- volumes --- */

typedef struct {
	uint32_t uid, gid;
} owner_t;

static uint64_t add_object(objset_t *os, dmu_object_type_t type, const char *key, dmu_tx_t *tx)
{
	uint64_t object = zap_create(os, type, DMU_OT_NONE, 0, tx);

	VERIFY0(zap_add(os, MASTER_NODE_OBJ, key, 8, 1, &object, tx));
	return object;
}

static void format_cb(objset_t *os, void *arg, cred_t *cr, dmu_tx_t *tx)
{
	static const char *const off[] = {"utf8only", "normalization", "casesensitivity"};
	const owner_t *owner = arg;
	fl_new_t root = {.mode = S_IFDIR | 0755, .uid = owner->uid, .gid = owner->gid};
	uint64_t version = ZPL_VERSION, zero = 0, object;
	sa_attr_type_t *attr;

	(void)cr;
	VERIFY0(zap_create_claim(os, MASTER_NODE_OBJ, DMU_OT_MASTER_NODE, DMU_OT_NONE, 0, tx));
	VERIFY0(zap_add(os, MASTER_NODE_OBJ, ZPL_VERSION_STR, 8, 1, &version, tx));
	for (size_t i = 0; i < ARRAY_SIZE(off); i++)
		VERIFY0(zap_add(os, MASTER_NODE_OBJ, off[i], 8, 1, &zero, tx));
	object = add_object(os, DMU_OT_SA_MASTER_NODE, ZFS_SA_ATTRS, tx);
	(void)add_object(os, DMU_OT_UNLINKED_SET, ZFS_UNLINKED_SET, tx);
	VERIFY0(sa_setup(os, object, zfs_attr_table, ZPL_END, &attr));
	VERIFY0(fl_make_node(os, attr, &root, 0, NULL, &object, tx));
	VERIFY0(zap_add(os, MASTER_NODE_OBJ, ZFS_ROOT_OBJ, 8, 1, &object, tx));
}

int fl_volume_format(const char *dataset, uint32_t uid, uint32_t gid)
{
	owner_t owner = {uid, gid};

	return dmu_objset_create(dataset, DMU_OST_ZFS, 0, NULL, format_cb, &owner);
}

/* What had no name any more when the volume was left. */
static void drain_unlinked(fl_volume_t *vol)
{
	uint64_t *object = NULL;
	size_t n = 0, room = 0;
	zap_cursor_t zc;
	zap_attribute_t *za = fl_zap_attribute();

	for (zap_cursor_init(&zc, vol->os, vol->unlinked_set); zap_cursor_retrieve(&zc, za) == 0;
	    zap_cursor_advance(&zc)) {
		if (n == room && (object = realloc(object, (room = room * 2 + 64) * sizeof(*object))) == NULL)
			abort();
		object[n++] = za->za_first_integer;
	}
	zap_cursor_fini(&zc);
	fl_zap_attribute_done(za);
	for (size_t i = 0; i < n; i++)
		destroy(vol, object[i]);
	free(object);
}

static int master_lookup(fl_volume_t *vol, const char *key, uint64_t *object)
{
	return zap_lookup(vol->os, MASTER_NODE_OBJ, key, 8, 1, object);
}

int fl_volume_open(const char *dataset, uint64_t recordsize, fl_volume_t **out)
{
	fl_volume_t *vol = kmem_zalloc(sizeof(*vol), KM_SLEEP);
	uint64_t object;
	int error;

	if ((error = dmu_objset_own(dataset, DMU_OST_ZFS, B_FALSE, B_FALSE, vol, &vol->os)) != 0) {
		kmem_free(vol, sizeof(*vol));
		return error;
	}
	vol->recordsize = recordsize;
	mutex_init(&vol->names, NULL, MUTEX_DEFAULT, NULL);
	mutex_init(&vol->attaching, NULL, MUTEX_DEFAULT, NULL);
	mutex_init(&vol->lock, NULL, MUTEX_DEFAULT, NULL);
#if OPENZFS_NUMBER >= 20200
	zil_sums_init(&vol->sums);
	vol->zil = zil_open(vol->os, fl_get_data, &vol->sums);
#else
	vol->zil = zil_open(vol->os, fl_get_data);
#endif
	if ((error = master_lookup(vol, ZFS_SA_ATTRS, &object)) == 0 &&
	    (error = sa_setup(vol->os, object, zfs_attr_table, ZPL_END, &vol->attr)) == 0 &&
	    (error = master_lookup(vol, ZFS_UNLINKED_SET, &vol->unlinked_set)) == 0 &&
	    (error = master_lookup(vol, ZFS_ROOT_OBJ, &vol->root_object)) == 0 &&
	    (error = fl_get(vol, vol->root_object, &vol->root)) == 0) {
		drain_unlinked(vol);
		error = fl_replay_log(vol);
	}
	if (error == 0) {
		*out = vol;
		return 0;
	}
	fl_volume_close(vol);
	return error;
}

void fl_volume_forget(fl_volume_t *vol)
{
	for (size_t i = 0; i < FL_BUCKETS; i++) {
		fl_file_t *f, *next;

		for (f = vol->bucket[i]; f != NULL; f = next) {
			next = f->next;
			if (f != vol->root)
				fl_release(f, f->references);
		}
	}
}

void fl_volume_close(fl_volume_t *vol)
{
	zil_close(vol->zil);
	/* The log's last looks at files. */
	taskq_wait(system_taskq);
	if (vol->root != NULL)
		fl_release(vol->root, 1);
	dmu_objset_disown(vol->os, B_FALSE, vol);
#if OPENZFS_NUMBER >= 20200
	zil_sums_fini(&vol->sums);
#endif
	mutex_destroy(&vol->lock);
	mutex_destroy(&vol->attaching);
	mutex_destroy(&vol->names);
	kmem_free(vol, sizeof(*vol));
}

void fl_volume_access_times(fl_volume_t *vol, bool on, bool relative)
{
	vol->atime = on;
	vol->relatime = relative;
}

uint64_t fl_volume_objset(const fl_volume_t *vol)
{
	return dmu_objset_id(vol->os);
}

int fl_volume_sync_property(const fl_volume_t *vol)
{
	return (int)vol->os->os_sync;
}

void fl_volume_itx(const fl_volume_t *vol, fl_itx_t *itx)
{
	*itx = vol->itx;
}

uint64_t fl_volume_commits(const fl_volume_t *vol)
{
#if OPENZFS_NUMBER >= 20200
	return (uint64_t)wmsum_value((wmsum_t *)(uintptr_t)&vol->sums.zil_commit_count);
#else
	return vol->commits;
#endif
}

uint64_t fl_volume_replayed(const fl_volume_t *vol)
{
	return vol->replayed;
}

void fl_volume_space(const fl_volume_t *vol, uint64_t *used, uint64_t *avail, uint64_t *objs, uint64_t *free_objs)
{
	dmu_objset_space(vol->os, used, avail, objs, free_objs);
}

fl_file_t *fl_root(fl_volume_t *vol)
{
	return vol->root;
}

fl_volume_t *fl_volume_of(const fl_file_t *f)
{
	return f->vol;
}
