#include "pool.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <unistd.h>

#include "account.h"
#include "hostmemory.h"
#include "zfs.h"

static spa_t *spas[16];

/* --- tunables --- */

typedef enum {
	TN_LIBRARY,
	TN_POSIX,
	TN_TXG_TIMEOUT,
	TN_DIRTY_MAX,
	TN_DIRTY_SYNC,
	TN_DELAY_MIN,
	TN_DELAY_SCALE,
	TN_PREFETCH,
	TN_QUEUE
} tunable_kind_t;

/*
 * Names, bounds and OpenZFS's defaults (module-parameters man page, 2.3).  Some of them are constants in the
 * user-space library: then only the default is accepted, or what docs/engine.md says is done instead.
 */
static const struct {
	const char *name;
	tunable_kind_t kind;
	int64_t min, max, standard;
} tunables[] = {
	{"zfs_txg_timeout", TN_TXG_TIMEOUT, 1, 3600, 5},
	{"zfs_dirty_data_max", TN_DIRTY_MAX, 1 << 20, INT64_C(1) << 40, -1},
	{"zfs_dirty_data_sync_percent", TN_DIRTY_SYNC, 1, 100, 20},
	{"zfs_delay_min_dirty_percent", TN_DELAY_MIN, 1, 100, 60},
	{"zfs_delay_scale", TN_DELAY_SCALE, 0, INT64_C(1) << 40, 500000},
	{"zfs_immediate_write_sz", TN_POSIX, 0, INT64_C(1) << 40, 32768},
	{"zfs_prefetch_disable", TN_PREFETCH, 0, 1, 0},
	{"zfetch_max_distance", TN_LIBRARY, 1 << 20, INT64_C(1) << 31, 64 << 20},
	{"zfetch_max_idistance", TN_LIBRARY, 16 << 20, INT64_C(1) << 31, 128 << 20},
	{"l2arc_noprefetch", TN_LIBRARY, 0, 1, 1},
	{"l2arc_write_max", TN_LIBRARY, 4096, INT64_C(1) << 40, -1},
	{"l2arc_write_boost", TN_LIBRARY, 0, INT64_C(1) << 40, -1},
	{"l2arc_headroom", TN_LIBRARY, 0, 1000000, -1},
	{"l2arc_headroom_boost", TN_LIBRARY, 0, 1000000, -1},
	{"l2arc_feed_secs", TN_LIBRARY, 1, 3600, 1},
	{"l2arc_feed_min_ms", TN_LIBRARY, 1, 3600000, 200},
	{"l2arc_feed_again", TN_LIBRARY, 0, 1, 1},
	{"l2arc_norw", TN_LIBRARY, 0, 1, 0},
	{"l2arc_exclude_special", TN_LIBRARY, 0, 1, 0},
	{"zfs_compressed_arc_enabled", TN_LIBRARY, 0, 1, 1},
	{"zfs_nocacheflush", TN_LIBRARY, 0, 1, 0},
	{"zfs_vdev_max_active", TN_LIBRARY, 1, 100000, 1000},
	{"zfs_vdev_aggregation_limit", TN_LIBRARY, 0, 16 << 20, 1 << 20},
	{"zfs_vdev_aggregation_limit_non_rotating", TN_LIBRARY, 0, 16 << 20, 128 << 10},
	{"zfs_vdev_read_gap_limit", TN_LIBRARY, 0, 16 << 20, 32 << 10},
	{"zfs_vdev_write_gap_limit", TN_LIBRARY, 0, 16 << 20, 4 << 10},
	{"zfs_vdev_sync_read_min_active", TN_QUEUE, 1, 1000, 10},
	{"zfs_vdev_sync_read_max_active", TN_QUEUE, 1, 1000, 10},
	{"zfs_vdev_sync_write_min_active", TN_QUEUE, 1, 1000, 10},
	{"zfs_vdev_sync_write_max_active", TN_QUEUE, 1, 1000, 10},
	{"zfs_vdev_async_read_min_active", TN_QUEUE, 1, 1000, 1},
	{"zfs_vdev_async_read_max_active", TN_LIBRARY, 1, 1000, 3},
	{"zfs_vdev_async_write_min_active", TN_QUEUE, 1, 1000, 2},
	{"zfs_vdev_async_write_max_active", TN_LIBRARY, 1, 1000, 10},
	{"zfs_vdev_scrub_min_active", TN_QUEUE, 1, 1000, 1},
	{"zfs_vdev_scrub_max_active", TN_QUEUE, 1, 1000, 3},
};

/* Writes a variable of the library; -1 if it has none of this name. */
static int set_library(const char *name, int64_t value)
{
	void *addr = dlsym(RTLD_DEFAULT, name);
	ElfW(Sym) *sym = NULL;
	Dl_info info;

	if (addr == NULL || dladdr1(addr, &info, (void **)&sym, RTLD_DL_SYMENT) == 0 || sym == NULL)
		return -1;
	if (sym->st_size == sizeof(uint32_t))
		*(uint32_t *)addr = (uint32_t)value;
	else if (sym->st_size == sizeof(uint64_t))
		*(uint64_t *)addr = (uint64_t)value;
	else
		return -1;
	return 0;
}

static void warn_if_constant(const spec_tunable_t *t, int64_t standard, warn_fn *warn)
{
	if (set_library(t->name, t->value) != 0 && t->value != standard)
		warn("%s is a constant in OpenZFS %s's user-space library; the layout was replayed with %lld.", t->name,
		    OPENZFS_STRING, (long long)standard);
}

static int set_tunable(const spec_tunable_t *t, pace_t *pace, warn_fn *warn, err_t *err)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(tunables); i++)
		if (strcmp(tunables[i].name, t->name) == 0)
			break;
	if (i == ARRAY_SIZE(tunables))
		return err_set(err, "spec: tunables.%s is not a tunable that this engine knows.", t->name);
	if (t->value < tunables[i].min || t->value > tunables[i].max)
		return err_set(err, "spec: tunables.%s must be a whole number from %lld to %lld.", t->name,
		    (long long)tunables[i].min, (long long)tunables[i].max);
	switch (tunables[i].kind) {
	case TN_TXG_TIMEOUT:
		pace->txg_timeout_s = t->value;
		return 0;
	case TN_DIRTY_MAX:
		pace->dirty_max = (uint64_t)t->value;
		return 0;
	case TN_DIRTY_SYNC:
		pace->dirty_sync_percent = t->value;
		warn_if_constant(t, tunables[i].standard, warn);
		return 0;
	case TN_DELAY_MIN:
		pace->delay_min_percent = t->value;
		return 0;
	case TN_DELAY_SCALE:
		pace->delay_scale = t->value;
		return 0;
	case TN_POSIX:
		fl_immediate_write_sz = t->value;
		(void)set_library("zfs_immediate_write_sz", t->value);
		return 0;
	case TN_PREFETCH:
		/* The switch is a constant in some libraries; then the datasets' prefetch property does the same. */
		pace->no_prefetch = set_library(t->name, t->value) != 0 && t->value != 0;
		return 0;
	case TN_QUEUE:
		warn_if_constant(t, tunables[i].standard, warn);
		return 0;
	case TN_LIBRARY:
		if (set_library(t->name, t->value) != 0 && t->value != tunables[i].standard)
			return err_set(err,
			    "spec: tunables.%s is a constant (%lld) in OpenZFS %s's user-space library and "
			    "can't be set.",
			    t->name, (long long)tunables[i].standard, OPENZFS_STRING);
		return 0;
	}
	return 0;
}

/* --- start --- */

uint64_t pool_host_memory(const spec_t *spec)
{
	return spec->host_memory != 0 ? spec->host_memory : MAX(4ULL << 30, 2 * spec->arc_max);
}

int pool_start(const spec_t *spec, pace_t *pace, warn_fn *warn, err_t *err)
{
	/* Hundreds of threads must not each keep an arena, nor large buffers be mapped and unmapped all the time. */
	(void)mallopt(M_ARENA_MAX, 4);
	(void)mallopt(M_MMAP_THRESHOLD, 512 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
	hostmemory_init(pool_host_memory(spec), spec->arc_max);
	/* The host's list of pools must never be seen. */
	spa_config_path = (char *)(uintptr_t)"/nonexistent/ztune/zpool.cache";
	zfs_arc_max = spec->arc_max;
	zfs_arc_min = spec->arc_max;
	/* 10 % of memory, at most 4 GiB, as OpenZFS sets it when it starts. */
	pace->dirty_max = MIN(4ULL << 30, pool_host_memory(spec) / 10);
	pace->txg_timeout_s = 5;
	pace->dirty_sync_percent = 20;
	pace->delay_min_percent = 60;
	pace->delay_scale = 500000;
	for (size_t i = 0; i < spec->ntunables; i++)
		if (set_tunable(&spec->tunables[i], pace, warn, err) != 0)
			return -1;
	if (set_library("zfs_max_recordsize", 16 << 20) != 0)
		return err_set(err, "The OpenZFS library has no zfs_max_recordsize; this version is not supported.");
	/* Until pool_live() who loads the pools ends transaction groups. */
	if (set_library("zfs_txg_timeout", 1000000) != 0 || set_library("zfs_delay_min_dirty_percent", 100) != 0)
		return err_set(err, "The OpenZFS library has no zfs_txg_timeout; this version is not supported.");
	(void)set_library("zfs_deadman_enabled", 0);
	/* A DEBUG library sums every cached buffer twice to find stray writes. */
	zfs_flags = 0;
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);
	return 0;
}

uint64_t pool_load_group(uint64_t arc_max)
{
	return MIN(MAX(arc_max / 8, 8ULL << 20), 64ULL << 20);
}

/* Up to three groups are in memory; records of 16 MiB and metadata come on top. */
void pool_loading(uint64_t arc_max)
{
	zfs_dirty_data_max = pool_load_group(arc_max) * 128;
	(void)set_library("zfs_wrlog_data_max", (int64_t)zfs_dirty_data_max);
}

void pool_live(const pace_t *pace)
{
	zfs_dirty_data_max = pace->dirty_max;
	(void)set_library("zfs_wrlog_data_max", (int64_t)pace->dirty_max * 2);
	(void)set_library("zfs_txg_timeout", pace->txg_timeout_s);
	(void)set_library("zfs_dirty_data_sync_percent", pace->dirty_sync_percent);
	(void)set_library("zfs_delay_min_dirty_percent", pace->delay_min_percent);
	(void)set_library("zfs_delay_scale", pace->delay_scale);
}

/* --- creation --- */

static nvlist_t *disk_nv(const spec_pool_t *p, const disk_t *d)
{
	nvlist_t *nv = fnvlist_alloc();

	fnvlist_add_string(nv, ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
	fnvlist_add_string(nv, ZPOOL_CONFIG_PATH, d->path);
	fnvlist_add_uint64(nv, ZPOOL_CONFIG_ASHIFT, (uint64_t)p->ashift);
	return nv;
}

static nvlist_t *group_nv(const spec_vdev_t *v, nvlist_t **child)
{
	nvlist_t *nv = fnvlist_alloc();

	if (v->kind == VK_MIRROR) {
		fnvlist_add_string(nv, ZPOOL_CONFIG_TYPE, VDEV_TYPE_MIRROR);
	} else {
		fnvlist_add_string(nv, ZPOOL_CONFIG_TYPE, VDEV_TYPE_RAIDZ);
		fnvlist_add_uint64(nv, ZPOOL_CONFIG_NPARITY, (uint64_t)(v->kind - VK_RAIDZ1 + 1));
	}
	fnvlist_add_nvlist_array(nv, ZPOOL_CONFIG_CHILDREN, (void *)child, (uint_t)v->ndisks);
	for (size_t i = 0; i < v->ndisks; i++)
		fnvlist_free(child[i]);
	return nv;
}

static void mark_class(nvlist_t *nv, vclass_t class)
{
	fnvlist_add_uint64(nv, ZPOOL_CONFIG_IS_LOG, class == VC_LOG);
	if (class == VC_LOG)
		fnvlist_add_string(nv, ZPOOL_CONFIG_ALLOCATION_BIAS, VDEV_ALLOC_BIAS_LOG);
	else if (class == VC_SPECIAL)
		fnvlist_add_string(nv, ZPOOL_CONFIG_ALLOCATION_BIAS, VDEV_ALLOC_BIAS_SPECIAL);
}

static nvlist_t *root_nv(const spec_t *spec, int pool, int parts)
{
	const spec_pool_t *p = &spec->pools[pool];
	nvlist_t *root = fnvlist_alloc(), *top[256], *cache[256], *child[256];
	uint_t ntop = 0, ncache = 0;
	int entry[VC_COUNT] = {0};

	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	for (size_t i = 0; i < p->nvdevs; i++) {
		const spec_vdev_t *v = &p->vdevs[i];
		int e = entry[v->class]++;

		if ((parts & (v->class == VC_LOG || v->class == VC_CACHE ? POOL_HELPS : POOL_HOLDS)) == 0)
			continue;
		for (size_t k = 0; k < v->ndisks; k++)
			child[k] = disk_nv(p, disks_find(pool, v->class, e, (int)k));
		if (v->class == VC_CACHE) {
			for (size_t k = 0; k < v->ndisks; k++)
				cache[ncache++] = child[k];
		} else if (v->kind == VK_STRIPE) {
			for (size_t k = 0; k < v->ndisks; k++) {
				mark_class(child[k], v->class);
				top[ntop++] = child[k];
			}
		} else {
			top[ntop] = group_nv(v, child);
			mark_class(top[ntop++], v->class);
		}
	}
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, (void *)top, ntop);
	if (ncache > 0)
		fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_L2CACHE, (void *)cache, ncache);
	for (uint_t i = 0; i < ntop; i++)
		fnvlist_free(top[i]);
	for (uint_t i = 0; i < ncache; i++)
		fnvlist_free(cache[i]);
	return root;
}

static nvlist_t *no_cachefile(void)
{
	nvlist_t *props = fnvlist_alloc();

	fnvlist_add_string(props, zpool_prop_to_name(ZPOOL_PROP_CACHEFILE), "none");
	return props;
}

static int find_pool(const char *name, int pool, err_t *err)
{
	int error = spa_open(name, &spas[pool], FTAG);

	if (error != 0)
		return err_set(err, "The pool %s can't be opened: %s.", name, strerror(error));
	spa_close(spas[pool], FTAG);
	return 0;
}

static int property_value(const spec_prop_t *sp, zfs_prop_t *prop, uint64_t *value, err_t *err)
{
	*prop = zfs_name_to_prop(sp->key);
	if (*prop == ZPROP_INVAL)
		return err_set(err, "spec: OpenZFS %s has no property %s.", OPENZFS_STRING, sp->key);
	if (zfs_prop_get_type(*prop) == PROP_TYPE_INDEX) {
		if (zfs_prop_string_to_index(*prop, sp->value, value) != 0)
			return err_set(err, "spec: properties.%s can't be \"%s\" in OpenZFS %s; it takes %s.", sp->key,
			    sp->value, OPENZFS_STRING, zprop_values((int)*prop, ZFS_TYPE_DATASET));
		return 0;
	}
	if (!spec_bytes(sp->value, value))
		return err_set(err, "spec: properties.%s is \"%s\"; it must be a size such as 16K.", sp->key,
		    sp->value);
	if (*prop == ZFS_PROP_SPECIAL_SMALL_BLOCKS && *value != 0 &&
	    (*value < 512 || *value > (16 << 20) || !ISP2(*value)))
		return err_set(err, "spec: properties.%s is \"%s\"; it must be 0 or a power of two from 512 to 16M.",
		    sp->key, sp->value);
	return 0;
}

/* Before 2.3 O_DIRECT does nothing, whatever `direct` would say of it. */
static bool is_of_later_versions(const spec_prop_t *sp)
{
	return OPENZFS_NUMBER < 20300 && strcmp(sp->key, "direct") == 0 && strcmp(sp->value, "always") != 0;
}

int pool_check_properties(const spec_t *spec, err_t *err)
{
	zfs_prop_t prop;
	uint64_t value;

	for (size_t i = 0; i < spec->ndatasets; i++)
		for (size_t k = 0; k < spec->datasets[i].nprops; k++)
			if (!is_of_later_versions(&spec->datasets[i].props[k]) &&
			    property_value(&spec->datasets[i].props[k], &prop, &value, err) != 0)
				return -1;
	return 0;
}

static int set_properties(const spec_dataset_t *d, const pace_t *pace, err_t *err)
{
	nvlist_t *props = fnvlist_alloc();
	int error;

	for (size_t k = 0; k < d->nprops; k++) {
		zfs_prop_t prop;
		uint64_t value;

		if (is_of_later_versions(&d->props[k]))
			continue;
		if (property_value(&d->props[k], &prop, &value, err) != 0) {
			fnvlist_free(props);
			return -1;
		}
		fnvlist_add_uint64(props, zfs_prop_to_name(prop), value);
	}
	if (pace->no_prefetch) {
		zfs_prop_t prop = zfs_name_to_prop("prefetch");
		uint64_t none;

		if (prop == ZPROP_INVAL || zfs_prop_string_to_index(prop, "none", &none) != 0) {
			fnvlist_free(props);
			return err_set(err, "Prefetching can't be switched off in OpenZFS %s's user-space library.",
			    OPENZFS_STRING);
		}
		fnvlist_add_uint64(props, zfs_prop_to_name(prop), none);
	}
	error = dsl_props_set(d->name, ZPROP_SRC_LOCAL, props);
	fnvlist_free(props);
	if (error != 0)
		return err_set(err, "The properties of %s can't be set: %s.", d->name, strerror(error));
	return 0;
}

static int create_dataset(const spec_dataset_t *d, const pace_t *pace, err_t *err)
{
	char parent[SPEC_NAME];
	int error;

	for (const char *s = strchr(strchr(d->name, '/') + 1, '/'); s != NULL; s = strchr(s + 1, '/')) {
		(void)snprintf(parent, sizeof(parent), "%.*s", (int)(s - d->name), d->name);
		error = fl_volume_format(parent, geteuid(), getegid());
		if (error != 0 && error != EEXIST)
			return err_set(err, "The dataset %s can't be created: %s.", parent, strerror(error));
	}
	error = fl_volume_format(d->name, geteuid(), getegid());
	if (error != 0 && error != EEXIST)
		return err_set(err, "The dataset %s can't be created: %s.", d->name, strerror(error));
	return set_properties(d, pace, err);
}

int pool_create_all(const spec_t *spec, const pace_t *pace, int parts, err_t *err)
{
	for (size_t p = 0; p < spec->npools; p++) {
		nvlist_t *root = root_nv(spec, (int)p, parts), *props = no_cachefile();
		int error;

		for (int i = 0; i < SPA_FEATURES; i++) {
			char name[128];

			if (!spa_feature_table[i].fi_zfs_mod_supported)
				continue;
			(void)snprintf(name, sizeof(name), "feature@%s", spa_feature_table[i].fi_uname);
			fnvlist_add_uint64(props, name, 0);
		}
		error = spa_create(spec->pools[p].name, root, props, NULL, NULL);
		fnvlist_free(root);
		fnvlist_free(props);
		if (error != 0)
			return err_set(err, "The pool %s can't be created: %s.", spec->pools[p].name, strerror(error));
		if (find_pool(spec->pools[p].name, (int)p, err) != 0)
			return -1;
	}
	for (size_t i = 0; i < spec->ndatasets; i++)
		if (create_dataset(&spec->datasets[i], pace, err) != 0)
			return -1;
	return 0;
}

int pool_save_config(int pool, const char *path, err_t *err)
{
	spa_t *spa = spas[pool];
	nvlist_t *config;
	size_t len;
	char *packed;
	FILE *f;
	bool ok;

	spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
	/* For no vdev in particular it would take the locks again, and wait for ever behind who wants to write meanwhile. */
	config = spa_config_generate(spa, spa->spa_root_vdev, -1ULL, B_TRUE);
	/* An import forgets the cache devices that its configuration does not name. */
	if (spa->spa_l2cache.sav_config != NULL) {
		nvlist_t *tree = fnvlist_lookup_nvlist(config, ZPOOL_CONFIG_VDEV_TREE), **list;
		uint_t n;

		if (nvlist_lookup_nvlist_array(spa->spa_l2cache.sav_config, ZPOOL_CONFIG_L2CACHE, &list, &n) == 0)
			fnvlist_add_nvlist_array(tree, ZPOOL_CONFIG_L2CACHE, (void *)list, n);
	}
	spa_config_exit(spa, SCL_ALL, FTAG);
	packed = fnvlist_pack(config, &len);
	fnvlist_free(config);
	f = fopen(path, "we");
	ok = f != NULL && fwrite(packed, 1, len, f) == len && fflush(f) == 0 && fsync(fileno(f)) == 0;
	if (f != NULL)
		ok = fclose(f) == 0 && ok;
	fnvlist_pack_free(packed, len);
	return ok ? 0 : err_set(err, "%s can't be written: %s.", path, strerror(errno));
}

static int import(const spec_t *spec, int pool, nvlist_t *config, err_t *err)
{
	char *name = (char *)(uintptr_t)spec->pools[pool].name;
	nvlist_t *props = no_cachefile();
	int error = spa_import(name, config, props, ZFS_IMPORT_NORMAL);

	fnvlist_free(props);
	fnvlist_free(config);
	if (error != 0)
		return err_set(err, "The pool %s can't be imported: %s.", name, strerror(error));
	return find_pool(name, pool, err);
}

static int saved_config(const char *path, nvlist_t **config, err_t *err)
{
	static char packed[8 << 20];
	FILE *f = fopen(path, "re");
	size_t len;

	if (f == NULL)
		return err_set(err, "%s can't be opened: %s.", path, strerror(errno));
	len = fread(packed, 1, sizeof(packed), f);
	(void)fclose(f);
	if (nvlist_unpack(packed, len, config, KM_SLEEP) != 0)
		return err_set(err, "%s is damaged: it is no pool's configuration.", path);
	return 0;
}

int pool_import(const spec_t *spec, int pool, const char *path, err_t *err)
{
	nvlist_t *config = NULL;

	return saved_config(path, &config, err) != 0 ? -1 : import(spec, pool, config, err);
}

/* The name is not const in every version. */
static int export(const spec_t *spec, int pool, nvlist_t **config, err_t *err)
{
	char *name = (char *)(uintptr_t)spec->pools[pool].name;
	int error = spa_export(name, config, B_FALSE, B_FALSE);

	return error != 0 ? err_set(err, "The pool %s can't be exported: %s.", name, strerror(error)) : 0;
}

int pool_export(const spec_t *spec, int pool, err_t *err)
{
	return export(spec, pool, NULL, err);
}

int pool_pack(const spec_t *spec, int pool, char **packed, size_t *len, err_t *err)
{
	nvlist_t *config = NULL;

	if (export(spec, pool, &config, err) != 0)
		return -1;
	*packed = fnvlist_pack(config, len);
	fnvlist_free(config);
	return 0;
}

/* Imports a pool of POOL_HOLDS, adds POOL_HELPS and sets its datasets' properties. */
static int take_over(const spec_t *spec, const pace_t *pace, int pool, nvlist_t *config, err_t *err)
{
	nvlist_t *helps;
	int error = 0;

	if (import(spec, pool, config, err) != 0)
		return -1;
	for (size_t i = 0; i < spec->pools[pool].nvdevs && error == 0; i++) {
		vclass_t class = spec->pools[pool].vdevs[i].class;

		if (class != VC_LOG && class != VC_CACHE)
			continue;
		helps = root_nv(spec, pool, POOL_HELPS);
		if ((error = SPA_VDEV_ADD(spas[pool], helps)) != 0)
			(void)err_set(err, "The disks of %s can't be added: %s.", spec->pools[pool].name,
			    strerror(error));
		fnvlist_free(helps);
		break;
	}
	for (size_t i = 0; i < spec->ndatasets && error == 0; i++)
		if (spec->datasets[i].pool == pool)
			error = set_properties(&spec->datasets[i], pace, err);
	return error != 0 ? -1 : 0;
}

int pool_unpack(const spec_t *spec, const pace_t *pace, int pool, char *packed, size_t len, err_t *err)
{
	nvlist_t *config = NULL;

	if (nvlist_unpack(packed, len, &config, KM_SLEEP) != 0)
		return err_set(err, "The image is damaged: it has no pool's configuration.");
	return take_over(spec, pace, pool, config, err);
}

int pool_take_over(const spec_t *spec, const pace_t *pace, int pool, const char *path, err_t *err)
{
	nvlist_t *config = NULL;

	return saved_config(path, &config, err) != 0 ? -1 : take_over(spec, pace, pool, config, err);
}

int pool_open_volumes(const spec_t *spec, fl_volume_t **vols, err_t *err)
{
	for (size_t i = 0; i < spec->ndatasets; i++) {
		const spec_dataset_t *d = &spec->datasets[i];
		int error = fl_volume_open(d->name, d->recordsize, &vols[i]);

		if (error != 0)
			return err_set(err, "The dataset %s can't be opened: %s.", d->name, strerror(error));
		account_register((int)i, d->pool, fl_volume_objset(vols[i]));
	}
	return 0;
}

/* --- transaction groups --- */

void pool_sync(int pool)
{
	dsl_pool_t *dp = spa_get_dsl(spas[pool]);

	txg_wait_synced(dp, dp->dp_tx.tx_open_txg);
}

void pool_next_txg(int pool)
{
	txg_wait_open(spa_get_dsl(spas[pool]), 0, B_TRUE);
}

/*
 * After a pool's creation or import a thread of OpenZFS's own writes its configuration again, in transaction groups of
 * its own, whenever the system lets it run; and it looks at the cache devices.
 */
void pool_end_tasks(int pool)
{
	spa_t *spa = spas[pool];

	/* Each round does what the one before asked for; the end of a group starts it. */
	for (int i = 0; i < 100; i++) {
		pool_sync(pool);
		spa_async_suspend(spa);
		/* What failed is tried again only later: the host's list of pools can't be written. */
		if (spa_async_tasks(spa) == 0 ||
		    (spa_async_tasks(spa) == SPA_ASYNC_CONFIG_UPDATE && spa->spa_ccw_fail_time != 0))
			break;
		spa_async_resume(spa);
	}
}

void pool_settle(int pool)
{
	/* Two more groups: the second writes what the first one freed. */
	pool_sync(pool);
	pool_sync(pool);
}

uint64_t pool_dirty_bytes(int pool)
{
	return spa_get_dsl(spas[pool])->dp_dirty_total;
}

uint64_t pool_last_txg(int pool)
{
	return spa_last_synced_txg(spas[pool]);
}

/* --- what OpenZFS counted --- */

void pool_vdev_stat(void *vdev, uint64_t *reads, uint64_t *read_bytes, uint64_t *writes, uint64_t *write_bytes)
{
	vdev_t *vd = vdev;
	vdev_stat_t vs;

	memset(&vs, 0, sizeof(vs));
	spa_config_enter(vd->vdev_spa, SCL_ALL, FTAG, RW_READER);
	vdev_get_stats(vd, &vs);
	spa_config_exit(vd->vdev_spa, SCL_ALL, FTAG);
	*reads = vs.vs_ops[ZIO_TYPE_READ];
	*read_bytes = vs.vs_bytes[ZIO_TYPE_READ];
	*writes = vs.vs_ops[ZIO_TYPE_WRITE];
	*write_bytes = vs.vs_bytes[ZIO_TYPE_WRITE];
}

void pool_stat_base(void)
{
	size_t n;
	disk_t *d = disks_all(&n);

	for (size_t i = 0; i < n; i++)
		if (d[i].vdev != NULL)
			pool_vdev_stat(d[i].vdev, &d[i].stat_base.reads, &d[i].stat_base.read_bytes,
			    &d[i].stat_base.writes, &d[i].stat_base.write_bytes);
}

#define SUM(name) wmsum_value(&arc_sums.arcstat_##name)

/* A hit on a block whose read is still under way counts as a hit, as in older versions. */
#if OPENZFS_NUMBER >= 20200
#define HITS(name) (SUM(name##_hits) + SUM(name##_iohits))
#define ALL_HITS (SUM(hits) + SUM(iohits))
#else
#define HITS(name) SUM(name##_hits)
#define ALL_HITS SUM(hits)
#endif

static uint64_t evictable(arc_state_t *state)
{
	return (uint64_t)zfs_refcount_count(&state->arcs_esize[ARC_BUFC_DATA]) +
	    (uint64_t)zfs_refcount_count(&state->arcs_esize[ARC_BUFC_METADATA]);
}

/* Not by aggsum_value(): OpenZFS would know the size exactly after it, and begin to evict sooner than without. */
void pool_arc_size(uint64_t *size, uint64_t *can_go)
{
	const aggsum_t *sum = &arc_sums.arcstat_size;
	int64_t now = (int64_t)sum->as_lower_bound;

	for (uint_t i = 0; i < sum->as_numbuckets; i++)
		now += sum->as_buckets[i].asc_delta + (int64_t)sum->as_buckets[i].asc_borrowed;
	*size = (uint64_t)now;
	*can_go = evictable(arc_mru) + evictable(arc_mfu);
}

void pool_arc(arc_count_t *c)
{
	uint64_t can_go;

	pool_arc_size(&c->size, &can_go);
	c->hits = ALL_HITS;
	c->misses = SUM(misses);
	c->c_max = arc_c_max;
	c->demand_data_hits = HITS(demand_data);
	c->demand_data_misses = SUM(demand_data_misses);
	c->demand_metadata_hits = HITS(demand_metadata);
	c->demand_metadata_misses = SUM(demand_metadata_misses);
	c->prefetch_data_hits = HITS(prefetch_data);
	c->prefetch_data_misses = SUM(prefetch_data_misses);
	c->prefetch_metadata_hits = HITS(prefetch_metadata);
	c->prefetch_metadata_misses = SUM(prefetch_metadata_misses);
	c->l2_hits = SUM(l2_hits);
	c->l2_misses = SUM(l2_misses);
	c->l2_size = SUM(l2_psize);
	c->l2_write_bytes = SUM(l2_write_bytes);
}

void pool_throttle(throttle_t *t)
{
	t->delays = dmu_tx_stats.dmu_tx_dirty_delay.value.ui64;
	t->over_max = pool_over_max();
}

uint64_t pool_over_max(void)
{
	return dmu_tx_stats.dmu_tx_memory_reserve.value.ui64 + dmu_tx_stats.dmu_tx_dirty_over_max.value.ui64;
}

/*
 * What was freed stays allocated for two more transaction groups, so that the last ones can be gone back to.  After a
 * `zpool sync`, which waits for these, `zpool list` does not count it either.
 */
static uint64_t taken(metaslab_class_t *mc)
{
	return metaslab_class_get_alloc(mc) - metaslab_class_get_deferred(mc);
}

uint64_t pool_allocated(int pool)
{
	spa_t *spa = spas[pool];

	return taken(spa_normal_class(spa)) + taken(spa_special_class(spa)) + taken(spa_dedup_class(spa));
}

uint64_t pool_free(int pool)
{
	spa_t *spa = spas[pool];

	return metaslab_class_get_space(spa_normal_class(spa)) - taken(spa_normal_class(spa));
}

void pool_filled(int pool, pool_filled_t *state)
{
	spa_t *spa = spas[pool];
	uint64_t fragmentation;

	state->allocated = pool_allocated(pool);
	state->size = metaslab_class_get_space(spa_normal_class(spa)) +
	    metaslab_class_get_space(spa_special_class(spa)) + metaslab_class_get_space(spa_dedup_class(spa));
	spa_config_enter(spa, SCL_VDEV, FTAG, RW_READER);
	fragmentation = metaslab_class_fragmentation(spa_normal_class(spa));
	spa_config_exit(spa, SCL_VDEV, FTAG);
	state->fragmentation = fragmentation == ZFS_FRAG_INVALID ? -1 : (int)fragmentation;
}

int pool_snapshot(const char *dataset, const char *name)
{
	return dmu_objset_snapshot_one(dataset, name);
}

int pool_clone(const char *dataset, const char *snapshot, int number, size_t index)
{
	char name[ZFS_MAX_DATASET_NAME_LEN + 64], origin[ZFS_MAX_DATASET_NAME_LEN + 64];

	(void)snprintf(origin, sizeof(origin), "%s@%s", dataset, snapshot);
	(void)snprintf(name, sizeof(name), "%.*s/ztune-clone-%d-%zu", (int)strcspn(dataset, "/"), dataset, number,
	    index);
#if OPENZFS_NUMBER >= 20400
	return dsl_dataset_clone(name, origin);
#else
	return dmu_objset_clone(name, origin);
#endif
}

int pool_dataset_space(const char *name, space_t *s)
{
	dsl_pool_t *dp;
	dsl_dataset_t *ds;
	int error = dsl_pool_hold(name, FTAG, &dp);

	memset(s, 0, sizeof(*s));
	s->ratio = 1.0;
	if (error != 0)
		return error;
	if ((error = dsl_dataset_hold(dp, name, FTAG, &ds)) == 0) {
		s->logical = dsl_dataset_phys(ds)->ds_uncompressed_bytes;
		s->allocated = dsl_dataset_phys(ds)->ds_referenced_bytes;
		if (dsl_dataset_phys(ds)->ds_compressed_bytes > 0)
			s->ratio = (double)s->logical / (double)dsl_dataset_phys(ds)->ds_compressed_bytes;
		dsl_dataset_rele(ds, FTAG);
	}
	dsl_pool_rele(dp, FTAG);
	return error;
}
