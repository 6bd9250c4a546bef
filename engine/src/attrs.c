/* Attributes and extended attributes of the file layer. */
#include "filelayer_impl.h"

#define XATTR_MOST SPA_OLD_MAXBLOCKSIZE / 2 /* all of one file's together; the rest of a spill block is the kernel's */

void fl_now(uint64_t ts[2])
{
	inode_timespec_t now;

	gethrestime(&now);
	ts[0] = (uint64_t)now.tv_sec;
	ts[1] = (uint64_t)now.tv_nsec;
}

static __thread uint64_t room_waited;

uint64_t fl_room_waited(void)
{
	return room_waited;
}

int fl_begin(dmu_tx_t *tx)
{
	hrtime_t came = gethrtime();
	int error = dmu_tx_assign(tx, TX_WAIT_FLAG);

	room_waited += (uint64_t)(gethrtime() - came);
	if (error != 0)
		dmu_tx_abort(tx);
	return error;
}

void fl_touch(fl_file_t *f, dmu_tx_t *tx)
{
	const sa_attr_type_t *a = f->vol->attr;
	sa_bulk_attr_t bulk[5];
	int n = 0;

	mutex_enter(&f->attr_lock);
	fl_now(f->mtime);
	memcpy(f->ctime, f->mtime, sizeof(f->ctime));
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MTIME], NULL, f->mtime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_CTIME], NULL, f->ctime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_SIZE], NULL, &f->size, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_FLAGS], NULL, &f->flags, 8);
	if (f->atime_dirty) {
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_ATIME], NULL, f->atime, 16);
		f->atime_dirty = false;
	}
	VERIFY0(sa_bulk_update(f->sa, bulk, n, tx));
	mutex_exit(&f->attr_lock);
}

void fl_getattr(fl_file_t *f, fl_attr_t *out)
{
	u_longlong_t blocks;
	uint32_t block;

	mutex_enter(&f->attr_lock);
	*out = (fl_attr_t){
		.object = f->object,
		.gen = f->gen,
		.links = f->links,
		.size = f->size,
		.rdev = f->rdev,
		.mode = (uint32_t)f->mode,
		.uid = (uint32_t)f->uid,
		.gid = (uint32_t)f->gid,
		.atime = {(int64_t)f->atime[0], (int64_t)f->atime[1]},
		.mtime = {(int64_t)f->mtime[0], (int64_t)f->mtime[1]},
		.ctime = {(int64_t)f->ctime[0], (int64_t)f->ctime[1]},
	};
	sa_object_size(f->sa, &block, &blocks);
	out->block = block;
	out->blocks = blocks;
	mutex_exit(&f->attr_lock);
}

int fl_setattr(fl_file_t *f, unsigned mask, const fl_attr_t *in, bool *commit)
{
	const sa_attr_type_t *a = f->vol->attr;
	dmu_tx_t *tx = dmu_tx_create(f->vol->os);
	fl_ace_t ace[FL_ACES];
	sa_bulk_attr_t bulk[8];
	int n = 0, error;

	*commit = fl_always_sync(f->vol);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	if ((error = fl_begin(tx)) != 0)
		return error;
	mutex_enter(&f->attr_lock);
	if (mask & FL_MODE) {
		f->mode = (f->mode & S_IFMT) | (in->mode & 07777);
		fl_aces((uint32_t)f->mode, ace);
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MODE], NULL, &f->mode, 8);
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_DACL_ACES], NULL, ace, sizeof(ace));
	}
	if (mask & FL_UID) {
		f->uid = in->uid;
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_UID], NULL, &f->uid, 8);
	}
	if (mask & FL_GID) {
		f->gid = in->gid;
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_GID], NULL, &f->gid, 8);
	}
	if (mask & FL_ATIME) {
		f->atime[0] = (uint64_t)in->atime[0];
		f->atime[1] = (uint64_t)in->atime[1];
		f->atime_dirty = false;
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_ATIME], NULL, f->atime, 16);
	}
	if (mask & FL_MTIME) {
		f->mtime[0] = (uint64_t)in->mtime[0];
		f->mtime[1] = (uint64_t)in->mtime[1];
		SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MTIME], NULL, f->mtime, 16);
	}
	fl_now(f->ctime);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_CTIME], NULL, f->ctime, 16);
	VERIFY0(sa_bulk_update(f->sa, bulk, n, tx));
	fl_log_setattr(f, tx, mask);
	mutex_exit(&f->attr_lock);
	dmu_tx_commit(tx);
	return 0;
}

/* --- extended attributes --- */

/* Under xattr_lock; an empty list if there are none. */
static int load(fl_file_t *f, nvlist_t **list)
{
	int size, error = sa_size(f->sa, f->vol->attr[ZPL_DXATTR], &size);
	char *buf;

	if (error == ENOENT || (error == 0 && size == 0)) {
		*list = fnvlist_alloc();
		return 0;
	}
	if (error != 0)
		return error;
	buf = kmem_alloc((size_t)size, KM_SLEEP);
	if ((error = sa_lookup(f->sa, f->vol->attr[ZPL_DXATTR], buf, (uint32_t)size)) == 0)
		error = nvlist_unpack(buf, (size_t)size, list, KM_SLEEP);
	kmem_free(buf, (size_t)size);
	return error;
}

int fl_getxattr(fl_file_t *f, const char *name, void *value, size_t room, size_t *len)
{
	nvlist_t *list;
	uchar_t *data;
	uint_t n;
	int error;

	mutex_enter(&f->xattr_lock);
	error = load(f, &list);
	mutex_exit(&f->xattr_lock);
	if (error != 0)
		return error;
	if (nvlist_lookup_byte_array(list, name, &data, &n) != 0) {
		error = ENODATA;
	} else {
		*len = n;
		if (room > 0 && room < n)
			error = ERANGE;
		else if (room > 0)
			memcpy(value, data, n);
	}
	nvlist_free(list);
	return error;
}

int fl_listxattr(fl_file_t *f, char *names, size_t room, size_t *len)
{
	nvpair_t *pair = NULL;
	nvlist_t *list;
	int error;

	mutex_enter(&f->xattr_lock);
	error = load(f, &list);
	mutex_exit(&f->xattr_lock);
	if (error != 0)
		return error;
	*len = 0;
	while ((pair = nvlist_next_nvpair(list, pair)) != NULL) {
		size_t n = strlen(nvpair_name(pair)) + 1;

		if (room > 0 && *len + n > room) {
			error = ERANGE;
			break;
		}
		if (room > 0)
			memcpy(names + *len, nvpair_name(pair), n);
		*len += n;
	}
	nvlist_free(list);
	return error;
}

/* Under xattr_lock.  Changes one attribute: value NULL removes it. */
static int change(fl_file_t *f, const char *name, const void *value, size_t len, nvlist_t *list)
{
	const sa_attr_type_t *a = f->vol->attr;
	char *packed = NULL;
	size_t size = 0;
	dmu_tx_t *tx;
	int error;

	if ((error = nvlist_size(list, &size, NV_ENCODE_XDR)) != 0)
		return error;
	if (size > XATTR_MOST)
		return ENOSPC;
	if ((error = nvlist_pack(list, &packed, &size, NV_ENCODE_XDR, KM_SLEEP)) != 0)
		return error;
	tx = dmu_tx_create(f->vol->os);
	dmu_tx_hold_sa_create(tx, (int)size);
	dmu_tx_hold_sa(tx, f->sa, B_TRUE);
	if ((error = fl_begin(tx)) == 0) {
		error = sa_update(f->sa, a[ZPL_DXATTR], packed, (uint32_t)size, tx);
		if (error == 0) {
			mutex_enter(&f->attr_lock);
			fl_now(f->ctime);
			VERIFY0(sa_update(f->sa, a[ZPL_CTIME], f->ctime, 16, tx));
			mutex_exit(&f->attr_lock);
			fl_log_xattr(f, tx, name, value, len);
		}
		dmu_tx_commit(tx);
	}
	fnvlist_pack_free(packed, size);
	return error;
}

int fl_setxattr(fl_file_t *f, const char *name, const void *value, size_t len, bool create, bool replace, bool *commit)
{
	nvlist_t *list;
	bool there;
	int error;

	*commit = fl_always_sync(f->vol);
	mutex_enter(&f->xattr_lock);
	if ((error = load(f, &list)) == 0) {
		there = nvlist_exists(list, name);
		if (create && there)
			error = EEXIST;
		else if (replace && !there)
			error = ENODATA;
		else
			error = nvlist_add_byte_array(list, name, (uchar_t *)(uintptr_t)value, (uint_t)len);
		if (error == 0)
			error = change(f, name, value, len, list);
		nvlist_free(list);
	}
	mutex_exit(&f->xattr_lock);
	return error;
}

int fl_removexattr(fl_file_t *f, const char *name, bool *commit)
{
	nvlist_t *list;
	int error;

	*commit = fl_always_sync(f->vol);
	mutex_enter(&f->xattr_lock);
	if ((error = load(f, &list)) == 0) {
		error = nvlist_remove(list, name, DATA_TYPE_BYTE_ARRAY) != 0 ? ENODATA : change(f, name, NULL, 0, list);
		nvlist_free(list);
	}
	mutex_exit(&f->xattr_lock);
	return error;
}
