/* Names and directories of the file layer. */
#include "filelayer_impl.h"

#define DIRENT(mode, object) (((uint64_t)IFTODT(mode) << 60) | (object))

#if OPENZFS_NUMBER >= 20300
zap_attribute_t *fl_zap_attribute(void)
{
	return zap_attribute_alloc();
}

void fl_zap_attribute_done(zap_attribute_t *za)
{
	zap_attribute_free(za);
}
#else
zap_attribute_t *fl_zap_attribute(void)
{
	return kmem_alloc(sizeof(zap_attribute_t), KM_SLEEP);
}

void fl_zap_attribute_done(zap_attribute_t *za)
{
	kmem_free(za, sizeof(*za));
}
#endif

/* --- new objects --- */

static uint32_t ace_mask(uint32_t mode, bool directory)
{
	/* attributes, named attributes, ACL, synchronize: everybody may read those */
	uint32_t mask = 0x80 | 0x8 | 0x20000 | 0x100000;

	if (mode & 4)
		mask |= 0x1;
	if (mode & 2)
		mask |= 0x2 | 0x4 | (directory ? 0x40 : 0);
	if (mode & 1)
		mask |= 0x20;
	return mask;
}

/* An access control list that says the same as the mode; the kernel's module expects one. */
void fl_aces(uint32_t mode, fl_ace_t ace[FL_ACES])
{
	bool directory = S_ISDIR(mode);

	/* owner@ (who may also change attributes, ACL and owner), group@, everyone@ */
	ace[0] = (fl_ace_t){0, 0x1000, ace_mask(mode >> 6 & 7, directory) | 0x100 | 0x10 | 0x40000 | 0x80000};
	ace[1] = (fl_ace_t){0, 0x2040, ace_mask(mode >> 3 & 7, directory)};
	ace[2] = (fl_ace_t){0, 0x4000, ace_mask(mode & 7, directory)};
}

int fl_make_node(objset_t *os, const sa_attr_type_t *a, const fl_new_t *n, uint64_t parent, const fl_claim_t *claim,
    uint64_t *out, dmu_tx_t *tx)
{
	int dnode_bytes =
	    claim != NULL && claim->slots > 0 ? claim->slots << DNODE_SHIFT : (int)dmu_objset_dnodesize(os);
	int bonus = DN_BONUS_SIZE(dnode_bytes), k = 0, error = 0;
	uint64_t object = claim != NULL ? claim->object : 0, mode = n->mode, uid = n->uid, gid = n->gid, size = 0;
	uint64_t gen = claim != NULL && claim->gen != 0 ? claim->gen : dmu_tx_get_txg(tx),
		 links = S_ISDIR(n->mode) ? 2 : 1;
	uint64_t flags = ZFS_ACL_TRIVIAL | ZFS_ARCHIVE | ZFS_AV_MODIFIED, aces = FL_ACES, rdev = n->rdev, now[2];
	sa_bulk_attr_t bulk[20];
	fl_ace_t ace[FL_ACES];
	sa_handle_t *sa;
	dmu_buf_t *db;

	if (object != 0 && S_ISDIR(n->mode))
		error = zap_create_claim_norm_dnsize(os, object, 0, DMU_OT_DIRECTORY_CONTENTS, DMU_OT_SA, bonus,
		    dnode_bytes, tx);
	else if (object != 0)
		error = dmu_object_claim_dnsize(os, object, DMU_OT_PLAIN_FILE_CONTENTS, 0, DMU_OT_SA, bonus,
		    dnode_bytes, tx);
	else if (S_ISDIR(n->mode))
		object = zap_create_norm_dnsize(os, 0, DMU_OT_DIRECTORY_CONTENTS, DMU_OT_SA, bonus, dnode_bytes, tx);
	else
		object = dmu_object_alloc_dnsize(os, DMU_OT_PLAIN_FILE_CONTENTS, 0, DMU_OT_SA, bonus, dnode_bytes, tx);
	/* Only a number that the log names can be taken: by an object whose end isn't on disk yet. */
	if (error != 0)
		return error;
	if (parent == 0)
		parent = object;
	if (n->target != NULL)
		size = strlen(n->target);
	else if (S_ISDIR(n->mode))
		size = FL_EMPTY;
	if (claim != NULL && claim->crtime[0] != 0) {
		now[0] = claim->crtime[0];
		now[1] = claim->crtime[1];
	} else {
		fl_now(now);
	}
	fl_aces(n->mode, ace);
	VERIFY0(sa_buf_hold(os, object, NULL, &db));
	dmu_buf_will_dirty(db, tx);
	VERIFY0(sa_handle_get_from_db(os, db, NULL, SA_HDL_SHARED, &sa));
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_MODE], NULL, &mode, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_SIZE], NULL, &size, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_GEN], NULL, &gen, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_UID], NULL, &uid, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_GID], NULL, &gid, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_PARENT], NULL, &parent, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_FLAGS], NULL, &flags, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_ATIME], NULL, now, 16);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_MTIME], NULL, now, 16);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_CTIME], NULL, now, 16);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_CRTIME], NULL, now, 16);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_LINKS], NULL, &links, 8);
	if (S_ISCHR(n->mode) || S_ISBLK(n->mode))
		SA_ADD_BULK_ATTR(bulk, k, a[ZPL_RDEV], NULL, &rdev, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_DACL_COUNT], NULL, &aces, 8);
	SA_ADD_BULK_ATTR(bulk, k, a[ZPL_DACL_ACES], NULL, ace, sizeof(ace));
	if (n->target != NULL)
		SA_ADD_BULK_ATTR(bulk, k, a[ZPL_SYMLINK], NULL, (void *)(uintptr_t)n->target, (uint16_t)size);
	VERIFY0(sa_replace_all_by_template(sa, bulk, k, tx));
	sa_handle_destroy(sa);
	*out = object;
	return 0;
}

/* --- directories --- */

static int look(const fl_file_t *dir, const char *name, uint64_t *object, uint32_t *type)
{
	uint64_t entry;
	int error = zap_lookup(dir->vol->os, dir->object, name, 8, 1, &entry);

	if (error == 0) {
		*object = ZFS_DIRENT_OBJ(entry);
		if (type != NULL)
			*type = (uint32_t)ZFS_DIRENT_TYPE(entry);
	}
	return error;
}

static int may_change(const fl_file_t *dir, const char *name)
{
	if (strlen(name) >= ZAP_MAXNAMELEN)
		return ENAMETOOLONG;
	if (!S_ISDIR(dir->mode))
		return ENOTDIR;
	return dir->unlinked ? ENOENT : 0;
}

/* Entries and subdirectories came or went: the directory's attributes, in tx. */
static void dir_changed(fl_file_t *dir, int entries, int subdirs, dmu_tx_t *tx)
{
	const sa_attr_type_t *a = dir->vol->attr;
	sa_bulk_attr_t bulk[5];
	int n = 0;

	mutex_enter(&dir->attr_lock);
	dir->size += (uint64_t)(int64_t)entries;
	dir->links += (uint64_t)(int64_t)subdirs;
	fl_now(dir->mtime);
	memcpy(dir->ctime, dir->mtime, sizeof(dir->ctime));
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_SIZE], NULL, &dir->size, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_LINKS], NULL, &dir->links, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_MTIME], NULL, dir->mtime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_CTIME], NULL, dir->ctime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_FLAGS], NULL, &dir->flags, 8);
	VERIFY0(sa_bulk_update(dir->sa, bulk, n, tx));
	mutex_exit(&dir->attr_lock);
}

/* The file has one name more or less, or another parent: its attributes, in tx. */
static void links_changed(fl_file_t *f, uint64_t links, uint64_t parent, dmu_tx_t *tx)
{
	const sa_attr_type_t *a = f->vol->attr;
	sa_bulk_attr_t bulk[4];
	int n = 0;

	mutex_enter(&f->attr_lock);
	f->links = links;
	f->parent = parent;
	fl_now(f->ctime);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_LINKS], NULL, &f->links, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_PARENT], NULL, &f->parent, 8);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_CTIME], NULL, f->ctime, 16);
	SA_ADD_BULK_ATTR(bulk, n, a[ZPL_FLAGS], NULL, &f->flags, 8);
	VERIFY0(sa_bulk_update(f->sa, bulk, n, tx));
	mutex_exit(&f->attr_lock);
	if (links == 0) {
		mutex_enter(&f->vol->lock);
		f->unlinked = true;
		mutex_exit(&f->vol->lock);
		VERIFY0(zap_add_int(f->vol->os, f->vol->unlinked_set, f->object, tx));
	}
}

int fl_lookup(fl_file_t *dir, const char *name, fl_file_t **file)
{
	uint64_t object;
	int error;

	if (!S_ISDIR(dir->mode))
		return ENOTDIR;
	if (strlen(name) >= ZAP_MAXNAMELEN)
		return ENAMETOOLONG;
	/* The name and its object must not part between the two looks. */
	mutex_enter(&dir->vol->names);
	if ((error = look(dir, name, &object, NULL)) == 0)
		error = fl_get(dir->vol, object, file);
	mutex_exit(&dir->vol->names);
	return error;
}

int fl_create_claim(fl_file_t *dir, const char *name, const fl_new_t *n, const fl_claim_t *claim, fl_file_t **file,
    bool *commit)
{
	fl_volume_t *vol = dir->vol;
	bool directory = S_ISDIR(n->mode);
	uint64_t object, entry;
	dmu_tx_t *tx;
	int error;

	*commit = fl_always_sync(vol);
	mutex_enter(&vol->names);
	if ((error = may_change(dir, name)) == 0 && (error = look(dir, name, &object, NULL)) != ENOENT)
		error = error == 0 ? EEXIST : error;
	else if (error == ENOENT && !dir->unlinked)
		error = 0;
	if (error != 0)
		goto out;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_sa_create(tx,
	    (int)(ZFS_SA_BASE_ATTR_SIZE + sizeof(fl_ace_t) * FL_ACES + (n->target != NULL ? strlen(n->target) : 0)));
	dmu_tx_hold_zap(tx, dir->object, B_TRUE, name);
	dmu_tx_hold_sa(tx, dir->sa, B_FALSE);
	if (directory)
		dmu_tx_hold_zap(tx, DMU_NEW_OBJECT, B_FALSE, NULL);
	if ((error = fl_begin(tx)) != 0)
		goto out;
	if ((error = fl_make_node(vol->os, vol->attr, n, dir->object, claim, &object, tx)) != 0) {
		dmu_tx_commit(tx);
		goto out;
	}
	entry = DIRENT(n->mode, object);
	if ((error = zap_add(vol->os, dir->object, name, 8, 1, &entry, tx)) != 0) {
		VERIFY0(dmu_object_free(vol->os, object, tx));
		dmu_tx_commit(tx);
		goto out;
	}
	dir_changed(dir, 1, directory, tx);
	if ((error = fl_get(vol, object, file)) == 0)
		fl_log_create(dir, tx, *file, name, n);
	dmu_tx_commit(tx);
out:
	mutex_exit(&vol->names);
	return error;
}

int fl_create(fl_file_t *dir, const char *name, const fl_new_t *n, fl_file_t **file, bool *commit)
{
	fl_new_t own = *n;

	if (dir->mode & S_ISGID) {
		own.gid = (uint32_t)dir->gid;
		if (S_ISDIR(n->mode))
			own.mode |= S_ISGID;
	}
	return fl_create_claim(dir, name, &own, NULL, file, commit);
}

int fl_link(fl_file_t *dir, const char *name, fl_file_t *f, bool *commit)
{
	fl_volume_t *vol = dir->vol;
	uint64_t object, entry = DIRENT(f->mode, f->object);
	dmu_tx_t *tx;
	int error;

	*commit = fl_always_sync(vol);
	if (f->vol != vol)
		return EXDEV;
	mutex_enter(&vol->names);
	error = S_ISDIR(f->mode) ? EPERM : f->unlinked ? ENOENT : may_change(dir, name);
	if (error == 0 && look(dir, name, &object, NULL) == 0)
		error = EEXIST;
	if (error != 0)
		goto out;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	dmu_tx_hold_zap(tx, dir->object, B_TRUE, name);
	dmu_tx_hold_sa(tx, dir->sa, B_FALSE);
	if ((error = fl_begin(tx)) != 0)
		goto out;
	if ((error = zap_add(vol->os, dir->object, name, 8, 1, &entry, tx)) == 0) {
		links_changed(f, f->links + 1, f->parent, tx);
		dir_changed(dir, 1, 0, tx);
		fl_log_name(dir, tx, TX_LINK, f->object, f->object, name);
	}
	dmu_tx_commit(tx);
out:
	mutex_exit(&vol->names);
	return error;
}

int fl_unlink(fl_file_t *dir, const char *name, bool directory, bool *commit)
{
	fl_volume_t *vol = dir->vol;
	fl_file_t *f = NULL;
	uint64_t object;
	dmu_tx_t *tx;
	int error;

	*commit = fl_always_sync(vol);
	mutex_enter(&vol->names);
	if ((error = look(dir, name, &object, NULL)) != 0 || (error = fl_get(vol, object, &f)) != 0)
		goto out;
	if (directory != (bool)S_ISDIR(f->mode))
		error = directory ? ENOTDIR : EISDIR;
	else if (directory && f->size != FL_EMPTY)
		error = ENOTEMPTY;
	if (error != 0)
		goto out;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_zap(tx, dir->object, B_FALSE, name);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	dmu_tx_hold_sa(tx, dir->sa, B_FALSE);
	dmu_tx_hold_zap(tx, vol->unlinked_set, B_FALSE, NULL);
	dmu_tx_mark_netfree(tx);
	if ((error = fl_begin(tx)) != 0)
		goto out;
	if ((error = zap_remove(vol->os, dir->object, name, tx)) == 0) {
		links_changed(f, directory ? 0 : f->links - 1, f->parent, tx);
		dir_changed(dir, -1, directory ? -1 : 0, tx);
		/* What was written and never synced needs no record any more. */
		if (f->unlinked)
			zil_remove_async(vol->zil, f->object);
		fl_log_name(dir, tx, directory ? TX_RMDIR : TX_REMOVE, f->object, 0, name);
	}
	dmu_tx_commit(tx);
out:
	mutex_exit(&vol->names);
	if (f != NULL)
		fl_release(f, 1);
	return error;
}

static int may_replace(const fl_file_t *f, const fl_file_t *old)
{
	if (S_ISDIR(f->mode) && !S_ISDIR(old->mode))
		return ENOTDIR;
	if (!S_ISDIR(f->mode) && S_ISDIR(old->mode))
		return EISDIR;
	return S_ISDIR(old->mode) && old->size != FL_EMPTY ? ENOTEMPTY : 0;
}

/* In a transaction that all are held in. */
static void move(fl_file_t *from, const char *name, fl_file_t *to, const char *new_name, fl_file_t *f, fl_file_t *old,
    dmu_tx_t *tx)
{
	fl_volume_t *vol = f->vol;
	uint64_t entry = DIRENT(f->mode, f->object);
	int dir = S_ISDIR(f->mode);

	VERIFY0(zap_remove(vol->os, from->object, name, tx));
	links_changed(f, f->links, to->object, tx);
	if (old != NULL) {
		/* A directory that is replaced was one of `to`'s, as the new one is. */
		links_changed(old, dir ? 0 : old->links - 1, old->parent, tx);
		VERIFY0(zap_update(vol->os, to->object, new_name, 8, 1, &entry, tx));
	}
	if (from == to) {
		dir_changed(from, old != NULL ? -1 : 0, old != NULL && dir ? -1 : 0, tx);
	} else {
		dir_changed(from, -1, -dir, tx);
		dir_changed(to, old == NULL, old == NULL && dir ? 1 : 0, tx);
	}
	fl_log_rename(from, to, tx, TX_RENAME, f->object, name, new_name);
}

int fl_rename(fl_file_t *from, const char *name, fl_file_t *to, const char *new_name, bool replace, bool *commit)
{
	fl_volume_t *vol = from->vol;
	fl_file_t *f = NULL, *old = NULL;
	uint64_t object, entry;
	dmu_tx_t *tx;
	int error;

	*commit = fl_always_sync(vol);
	if (to->vol != vol)
		return EXDEV;
	mutex_enter(&vol->names);
	if ((error = may_change(to, new_name)) != 0 || (error = look(from, name, &object, NULL)) != 0 ||
	    (error = fl_get(vol, object, &f)) != 0)
		goto out;
	if ((error = look(to, new_name, &object, NULL)) == 0) {
		if (!replace)
			error = EEXIST;
		else if (object == f->object)
			goto out;
		else if ((error = fl_get(vol, object, &old)) == 0)
			error = may_replace(f, old);
	} else if (error == ENOENT) {
		error = 0;
	}
	if (error != 0)
		goto out;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	dmu_tx_hold_sa(tx, from->sa, B_FALSE);
	dmu_tx_hold_zap(tx, from->object, B_FALSE, name);
	dmu_tx_hold_zap(tx, to->object, B_TRUE, new_name);
	if (from != to)
		dmu_tx_hold_sa(tx, to->sa, B_FALSE);
	if (old != NULL)
		dmu_tx_hold_sa(tx, old->sa, B_FALSE);
	dmu_tx_hold_zap(tx, vol->unlinked_set, B_FALSE, NULL);
	if ((error = fl_begin(tx)) != 0)
		goto out;
	entry = DIRENT(f->mode, f->object);
	/* The one step that can fail comes first. */
	if (old == NULL)
		error = zap_add(vol->os, to->object, new_name, 8, 1, &entry, tx);
	if (error == 0)
		move(from, name, to, new_name, f, old, tx);
	dmu_tx_commit(tx);
out:
	mutex_exit(&vol->names);
	if (f != NULL)
		fl_release(f, 1);
	if (old != NULL)
		fl_release(old, 1);
	return error;
}

#if OPENZFS_NUMBER >= 20200
static int two_files(fl_file_t *from, const char *name, fl_file_t *to, const char *other, fl_file_t **f, fl_file_t **g)
{
	uint64_t object;
	int error;

	if ((error = look(from, name, &object, NULL)) == 0 && (error = fl_get(from->vol, object, f)) == 0 &&
	    (error = look(to, other, &object, NULL)) == 0)
		error = fl_get(to->vol, object, g);
	return error;
}

int fl_exchange(fl_file_t *from, const char *name, fl_file_t *to, const char *other, bool *commit)
{
	fl_volume_t *vol = from->vol;
	fl_file_t *f = NULL, *g = NULL;
	uint64_t f_entry, g_entry;
	int error, dirs;
	dmu_tx_t *tx;

	*commit = fl_always_sync(vol);
	if (to->vol != vol)
		return EXDEV;
	mutex_enter(&vol->names);
	if ((error = two_files(from, name, to, other, &f, &g)) != 0 || f == g)
		goto out;
	tx = dmu_tx_create(vol->os);
	dmu_tx_hold_sa(tx, f->sa, B_FALSE);
	dmu_tx_hold_sa(tx, g->sa, B_FALSE);
	dmu_tx_hold_sa(tx, from->sa, B_FALSE);
	dmu_tx_hold_sa(tx, to->sa, B_FALSE);
	dmu_tx_hold_zap(tx, from->object, B_TRUE, name);
	dmu_tx_hold_zap(tx, to->object, B_TRUE, other);
	if ((error = fl_begin(tx)) != 0)
		goto out;
	f_entry = DIRENT(f->mode, f->object);
	g_entry = DIRENT(g->mode, g->object);
	VERIFY0(zap_update(vol->os, to->object, other, 8, 1, &f_entry, tx));
	VERIFY0(zap_update(vol->os, from->object, name, 8, 1, &g_entry, tx));
	links_changed(f, f->links, to->object, tx);
	links_changed(g, g->links, from->object, tx);
	dirs = from == to ? 0 : (int)S_ISDIR(f->mode) - (int)S_ISDIR(g->mode);
	dir_changed(from, 0, -dirs, tx);
	if (from != to)
		dir_changed(to, 0, dirs, tx);
	fl_log_rename(from, to, tx, TX_RENAME_EXCHANGE, f->object, name, other);
	dmu_tx_commit(tx);
out:
	mutex_exit(&vol->names);
	if (f != NULL)
		fl_release(f, 1);
	if (g != NULL)
		fl_release(g, 1);
	return error;
}
#else
int fl_exchange(fl_file_t *from, const char *name, fl_file_t *to, const char *other, bool *commit)
{
	(void)from, (void)name, (void)to, (void)other, (void)commit;
	return EINVAL;
}
#endif

/* As in the kernel's module: two positions for "." and "..", then the cursor's own. */
#define FIRST_ENTRY 3
#define AT_END ((uint64_t)INT64_MAX)

int fl_readdir(fl_file_t *dir, uint64_t position, fl_each_t *each, void *arg)
{
	fl_volume_t *vol = dir->vol;
	zap_attribute_t *za;
	zap_cursor_t zc;
	bool more = true;
	int error = 0;

	if (position == 0)
		more = each(arg, ".", dir->object, DT_DIR, 1);
	if (more && position <= 1)
		more = each(arg, "..", dir->parent, DT_DIR, FIRST_ENTRY);
	if (!more || position == AT_END)
		return 0;
	za = fl_zap_attribute();
	if (position <= FIRST_ENTRY)
		zap_cursor_init(&zc, vol->os, dir->object);
	else
		zap_cursor_init_serialized(&zc, vol->os, dir->object, position);
	while (more && (error = zap_cursor_retrieve(&zc, za)) == 0) {
		uint64_t next;

		zap_cursor_advance(&zc);
		next = zap_cursor_serialize(&zc);
		more = each(arg, za->za_name, ZFS_DIRENT_OBJ(za->za_first_integer),
		    (uint32_t)ZFS_DIRENT_TYPE(za->za_first_integer), MIN(next, AT_END));
	}
	zap_cursor_fini(&zc);
	fl_zap_attribute_done(za);
	return error == ENOENT ? 0 : error;
}

int fl_readlink(fl_file_t *f, char *target, size_t room)
{
	size_t n = MIN(f->size, room - 1);
	int error = sa_lookup(f->sa, f->vol->attr[ZPL_SYMLINK], target, (uint32_t)n);

	target[error == 0 ? n : 0] = '\0';
	return error;
}
