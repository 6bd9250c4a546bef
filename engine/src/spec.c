#include "spec.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const vclass_names[VC_COUNT] = {"data", "log", "cache", "special"};
const char *const vkind_names[VK_COUNT] = {"stripe", "mirror", "raidz1", "raidz2", "raidz3"};

#define MIN_DISK (UINT64_C(64) << 20) /* the least that OpenZFS takes */
#define MAX_DISK (UINT64_C(1) << 46)  /* 64 TiB of address space per disk */
#define MIN_ARC (UINT64_C(64) << 20)  /* OpenZFS ignores a smaller zfs_arc_max */
#define MAX_LIST 4096
#define LEN(a) (sizeof(a) / sizeof((a)[0]))

static bool known_key(const char *key, const char *const *keys)
{
	for (; *keys != NULL; keys++)
		if (strcmp(key, *keys) == 0)
			return true;
	return false;
}

/* An object with none but the known keys. */
static int want_object(const json_t *j, const char *where, const char *const *keys, err_t *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(j))
		return err_set(err, "spec: %s must be an object.", where);
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		if (!known_key(key, keys))
			return err_set(err, "spec: %s has the unknown key \"%.100s\".", where, key);
	}
	return 0;
}

static const json_t *want_array(const json_t *parent, const char *where, const char *key, size_t least, err_t *err)
{
	const json_t *a = json_object_get(parent, key);

	if (!json_is_array(a) || json_array_size(a) < least || json_array_size(a) > MAX_LIST * 1024) {
		(void)err_set(err, "spec: %s.%s must be a list%s.", where, key,
		    least > 0 ? " with at least one entry" : "");
		return NULL;
	}
	return a;
}

static int want_int(const json_t *parent, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
    err_t *err)
{
	const json_t *v = json_object_get(parent, key);

	if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
		return err_set(err, "spec: %s.%s must be a whole number from %lld to %lld.", where, key, (long long)lo,
		    (long long)hi);
	*out = json_integer_value(v);
	return 0;
}

static int want_number(const json_t *parent, const char *where, const char *key, double lo, double hi, double *out,
    err_t *err)
{
	const json_t *v = json_object_get(parent, key);
	double d;

	if (!json_is_number(v))
		return err_set(err, "spec: %s.%s must be a number from %g to %g.", where, key, lo, hi);
	d = json_number_value(v);
	if (!isfinite(d) || d < lo || d > hi)
		return err_set(err, "spec: %s.%s must be a number from %g to %g.", where, key, lo, hi);
	*out = d;
	return 0;
}

static int want_bool(const json_t *parent, const char *where, const char *key, bool *out, err_t *err)
{
	const json_t *v = json_object_get(parent, key);

	if (v == NULL)
		return 0;
	if (!json_is_boolean(v))
		return err_set(err, "spec: %s.%s must be true or false.", where, key);
	*out = json_is_true(v);
	return 0;
}

static int want_text(const json_t *parent, const char *where, const char *key, char *out, size_t len, err_t *err)
{
	const json_t *v = json_object_get(parent, key);

	if (!json_is_string(v) || json_string_length(v) == 0 || json_string_length(v) >= len ||
	    strlen(json_string_value(v)) != json_string_length(v))
		return err_set(err, "spec: %s.%s must be a text of 1 to %zu characters.", where, key, len - 1);
	memcpy(out, json_string_value(v), json_string_length(v) + 1);
	return 0;
}

static int want_choice(const json_t *parent, const char *where, const char *key, const char *const *names, int n,
    int *out, err_t *err)
{
	const char *text = json_string_value(json_object_get(parent, key));
	char list[256] = "";

	for (int i = 0; i < n; i++) {
		if (text != NULL && strcmp(text, names[i]) == 0) {
			*out = i;
			return 0;
		}
		(void)snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i > 0 ? ", " : "", names[i]);
	}
	return err_set(err, "spec: %s.%s must be one of %s.", where, key, list);
}

bool spec_bytes(const char *text, uint64_t *bytes)
{
	char *end;
	unsigned long long v;
	int shift = 0;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno != 0)
		return false;
	if (*end != '\0') {
		const char *units = "KMGT", *u = strchr(units, toupper((unsigned char)*end));

		if (u == NULL)
			return false;
		shift = 10 * (int)(u - units + 1);
		end++;
		if (*end == 'B' || *end == 'b')
			end++;
		if (*end != '\0')
			return false;
	}
	if (v > (UINT64_MAX >> 1) >> shift)
		return false;
	*bytes = (uint64_t)v << shift;
	return true;
}

/* A name that OpenZFS takes for one part of a dataset's name. */
static bool good_component(const char *s, size_t n)
{
	if (n == 0 || !isalnum((unsigned char)s[0]))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && strchr("-_.:", s[i]) == NULL)
			return false;
	return true;
}

static int parse_profile(const char *name, const json_t *j, model_profile_t *p, err_t *err)
{
	static const char *const hdd_keys[] = {"name", "description", "kind", "size", "rotational", "rpm",
		"seek_track_ms", "seek_avg_ms", "seek_full_ms", "read_mb_s", "write_mb_s", "flush_ms", "overhead_us",
		"cache_mb", "cache", NULL};
	static const char *const flash_keys[] = {"name", "description", "kind", "size", "rotational", "channels",
		"read_us", "write_us", "read_mb_s", "write_mb_s", "flush_us", "overhead_us", "cache_mb", "cache", NULL};
	static const char *const kinds[] = {"hdd", "flash"};
	static const char *const caches[] = {"volatile", "none", "protected", "ignores-flushes"};
	char where[160];
	int kind, cache, bad = 0;
	int64_t size;

	memset(p, 0, sizeof(*p));
	if (strlen(name) == 0 || strlen(name) >= sizeof(p->name))
		return err_set(err, "spec: a profile's name must have 1 to %zu characters.", sizeof(p->name) - 1);
	(void)snprintf(p->name, sizeof(p->name), "%s", name);
	(void)snprintf(where, sizeof(where), "profiles.%s", name);
	if (!json_is_object(j))
		return err_set(err, "spec: %s must be an object.", where);
	if (want_choice(j, where, "kind", kinds, 2, &kind, err) != 0)
		return -1;
	p->hdd = kind == 0;
	p->rotational = p->hdd;
	if (want_object(j, where, p->hdd ? hdd_keys : flash_keys, err) != 0 ||
	    want_bool(j, where, "rotational", &p->rotational, err) != 0)
		return -1;
	if (json_object_get(j, "size") != NULL) {
		if (want_int(j, where, "size", (int64_t)MIN_DISK, (int64_t)MAX_DISK, &size, err) != 0)
			return -1;
		p->size = (uint64_t)size;
	}
	bad |= want_number(j, where, "read_mb_s", 0.01, 1e6, &p->read_mb_s, err);
	bad = bad || want_number(j, where, "write_mb_s", 0.01, 1e6, &p->write_mb_s, err);
	bad = bad || want_number(j, where, "overhead_us", 0, 1e6, &p->overhead_us, err);
	p->cache_mb = p->hdd ? 64 : 32; /* a 3.5 inch disk of the 2010s, a consumer SSD */
	if (json_object_get(j, "cache_mb") != NULL)
		bad = bad || want_number(j, where, "cache_mb", 0, 1024, &p->cache_mb, err);
	if (json_object_get(j, "cache") != NULL) {
		if (bad || want_choice(j, where, "cache", caches, 4, &cache, err) != 0)
			return -1;
		p->cache_mb = cache == 1 ? 0 : p->cache_mb;
		p->protected = cache == 2;
		p->ignores_flushes = cache == 3;
	}
	if (p->hdd) {
		bad = bad || want_number(j, where, "rpm", 100, 1e6, &p->rpm, err);
		bad = bad || want_number(j, where, "seek_track_ms", 0, 1e4, &p->seek_track_ms, err);
		bad = bad || want_number(j, where, "seek_avg_ms", p->seek_track_ms, 1e4, &p->seek_avg_ms, err);
		bad = bad || want_number(j, where, "seek_full_ms", p->seek_avg_ms, 1e4, &p->seek_full_ms, err);
		bad = bad || want_number(j, where, "flush_ms", 0, 1e4, &p->flush_ms, err);
	} else {
		bad = bad || want_number(j, where, "channels", 1, MODEL_MAX_CHANNELS, &p->channels, err);
		bad = bad || want_number(j, where, "read_us", 0.1, 1e7, &p->read_us, err);
		bad = bad || want_number(j, where, "write_us", 0.1, 1e7, &p->write_us, err);
		bad = bad || want_number(j, where, "flush_us", 0, 1e7, &p->flush_us, err);
	}
	return bad ? -1 : 0;
}

static int find_profile(const spec_t *s, const char *name)
{
	for (size_t i = 0; i < s->nprofiles; i++)
		if (strcmp(s->profiles[i].name, name) == 0)
			return (int)i;
	return -1;
}

static int parse_vdev(const spec_t *s, const json_t *j, const char *where, spec_vdev_t *v, err_t *err)
{
	static const char *const keys[] = {"class", "kind", "disks", NULL};
	static const char *const disk_keys[] = {"profile", "size", "span", NULL};
	static const size_t least[VK_COUNT] = {1, 2, 2, 3, 4};
	const json_t *disks;
	int c, k;

	if (want_object(j, where, keys, err) != 0 ||
	    want_choice(j, where, "class", vclass_names, VC_COUNT, &c, err) != 0 ||
	    want_choice(j, where, "kind", vkind_names, VK_COUNT, &k, err) != 0 ||
	    (disks = want_array(j, where, "disks", 1, err)) == NULL)
		return -1;
	v->class = (vclass_t)c;
	v->kind = (vkind_t)k;
	if ((v->class == VC_CACHE && v->kind != VK_STRIPE) || (v->class == VC_LOG && v->kind > VK_MIRROR))
		return err_set(err, "spec: %s: a %s device can't be a %s.", where, vclass_names[c], vkind_names[k]);
	v->ndisks = json_array_size(disks);
	if (v->ndisks < least[k] || v->ndisks > 255)
		return err_set(err, "spec: %s.disks has %zu entries; a %s takes %zu to 255.", where, v->ndisks,
		    vkind_names[k], least[k]);
	v->disks = calloc(v->ndisks, sizeof(*v->disks));
	for (size_t i = 0; i < v->ndisks; i++) {
		const json_t *d = json_array_get(disks, i);
		char dw[256], profile[64];
		int64_t size;

		(void)snprintf(dw, sizeof(dw), "%s.disks[%zu]", where, i);
		if (want_object(d, dw, disk_keys, err) != 0 ||
		    want_text(d, dw, "profile", profile, sizeof(profile), err) != 0)
			return -1;
		if ((v->disks[i].profile = find_profile(s, profile)) < 0)
			return err_set(err, "spec: %s.profile is \"%s\", which \"profiles\" does not have.", dw,
			    profile);
		if (json_object_get(d, "size") != NULL) {
			if (want_int(d, dw, "size", (int64_t)MIN_DISK, (int64_t)MAX_DISK, &size, err) != 0)
				return -1;
			v->disks[i].size = (uint64_t)size;
		} else if ((v->disks[i].size = s->profiles[v->disks[i].profile].size) == 0) {
			return err_set(err, "spec: %s.size is missing, and its profile has no size either.", dw);
		}
		v->disks[i].span = v->disks[i].size;
		if (json_object_get(d, "span") != NULL) {
			if (want_int(d, dw, "span", (int64_t)v->disks[i].size, (int64_t)MAX_DISK, &size, err) != 0)
				return -1;
			v->disks[i].span = (uint64_t)size;
		}
	}
	return 0;
}

static int parse_pools(const json_t *root, spec_t *s, err_t *err)
{
	static const char *const keys[] = {"name", "ashift", "vdevs", NULL};
	const json_t *a = want_array(root, "spec", "pools", 1, err);
	size_t ndisks = 0;

	if (a == NULL)
		return -1;
	if (json_array_size(a) > 16)
		return err_set(err, "spec: pools has %zu entries; at most 16 are possible.", json_array_size(a));
	s->pools = calloc(json_array_size(a), sizeof(*s->pools));
	s->npools = json_array_size(a);
	for (size_t i = 0; i < s->npools; i++) {
		const json_t *j = json_array_get(a, i), *vdevs;
		spec_pool_t *p = &s->pools[i];
		char where[160];
		int64_t ashift;
		bool data = false;

		(void)snprintf(where, sizeof(where), "pools[%zu]", i);
		if (want_object(j, where, keys, err) != 0 ||
		    want_text(j, where, "name", p->name, sizeof(p->name), err) != 0 ||
		    want_int(j, where, "ashift", 9, 16, &ashift, err) != 0 ||
		    (vdevs = want_array(j, where, "vdevs", 1, err)) == NULL)
			return -1;
		p->ashift = (int)ashift;
		if (!good_component(p->name, strlen(p->name)) || !isalpha((unsigned char)p->name[0]))
			return err_set(err, "spec: %s.name is \"%s\", which is no name for a pool.", where, p->name);
		for (size_t k = 0; k < i; k++)
			if (strcmp(s->pools[k].name, p->name) == 0)
				return err_set(err, "spec: two pools are named \"%s\".", p->name);
		p->nvdevs = json_array_size(vdevs);
		if (p->nvdevs > 64)
			return err_set(err, "spec: %s.vdevs has %zu entries; at most 64 are possible.", where,
			    p->nvdevs);
		p->vdevs = calloc(p->nvdevs, sizeof(*p->vdevs));
		for (size_t v = 0; v < p->nvdevs; v++) {
			char vw[200];

			(void)snprintf(vw, sizeof(vw), "%s.vdevs[%zu]", where, v);
			if (parse_vdev(s, json_array_get(vdevs, v), vw, &p->vdevs[v], err) != 0)
				return -1;
			data = data || p->vdevs[v].class == VC_DATA;
			ndisks += p->vdevs[v].ndisks;
		}
		if (!data)
			return err_set(err, "spec: %s has no vdev of class \"data\".", where);
	}
	if (ndisks > 255)
		return err_set(err, "spec: the pools have %zu disks; at most 255 are possible.", ndisks);
	return 0;
}

static int parse_properties(const json_t *j, const char *where, spec_dataset_t *d, err_t *err)
{
	/* Access times are a mount's: a trace does not say when they changed. */
	static const char *const keys[] = {"recordsize", "compression", "checksum", "logbias", "sync", "primarycache",
		"secondarycache", "redundant_metadata", "special_small_blocks", "copies", "direct", "atime", "relatime",
		NULL};
	char pw[300];
	const char *key;
	json_t *v;

	(void)snprintf(pw, sizeof(pw), "%s.properties", where);
	d->recordsize = 128 << 10;
	if (j == NULL)
		return 0;
	if (want_object(j, pw, keys, err) != 0)
		return -1;
	d->props = calloc(json_object_size(j) + 1, sizeof(*d->props));
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		spec_prop_t *p = &d->props[d->nprops++];

		(void)snprintf(p->key, sizeof(p->key), "%s", key);
		if (want_text(j, pw, key, p->value, sizeof(p->value), err) != 0)
			return -1;
		if (strcmp(key, "recordsize") == 0 &&
		    (!spec_bytes(p->value, &d->recordsize) || d->recordsize < 512 || d->recordsize > (16 << 20) ||
			(d->recordsize & (d->recordsize - 1)) != 0))
			return err_set(err, "spec: %s.recordsize is \"%s\"; it must be a power of two from 512 to 16M.",
			    pw, p->value);
	}
	return 0;
}

static int parse_datasets(const json_t *root, spec_t *s, err_t *err)
{
	static const char *const keys[] = {"name", "properties", "filler", NULL};
	const json_t *a = want_array(root, "spec", "datasets", 1, err);

	if (a == NULL)
		return -1;
	if (json_array_size(a) > SPEC_DATASETS)
		return err_set(err, "spec: datasets has %zu entries; at most %d are possible.", json_array_size(a),
		    SPEC_DATASETS);
	s->datasets = calloc(json_array_size(a), sizeof(*s->datasets));
	s->ndatasets = json_array_size(a);
	for (size_t i = 0; i < s->ndatasets; i++) {
		const json_t *j = json_array_get(a, i);
		spec_dataset_t *d = &s->datasets[i];
		char where[160];
		const char *part, *slash;

		(void)snprintf(where, sizeof(where), "datasets[%zu]", i);
		if (want_object(j, where, keys, err) != 0 ||
		    want_text(j, where, "name", d->name, sizeof(d->name), err) != 0)
			return -1;
		for (part = d->name; part != NULL; part = slash != NULL ? slash + 1 : NULL) {
			slash = strchr(part, '/');
			if (!good_component(part, slash != NULL ? (size_t)(slash - part) : strlen(part)))
				return err_set(err, "spec: %s.name is \"%s\", which is no name for a dataset.", where,
				    d->name);
		}
		d->pool = -1;
		if ((slash = strchr(d->name, '/')) == NULL)
			return err_set(err, "spec: %s.name is \"%s\"; it must be POOL/NAME.", where, d->name);
		for (size_t k = 0; k < s->npools; k++)
			if (strlen(s->pools[k].name) == (size_t)(slash - d->name) &&
			    strncmp(s->pools[k].name, d->name, (size_t)(slash - d->name)) == 0)
				d->pool = (int)k;
		if (d->pool < 0)
			return err_set(err, "spec: %s.name is \"%s\", but there is no such pool.", where, d->name);
		for (size_t k = 0; k < i; k++)
			if (strcmp(s->datasets[k].name, d->name) == 0)
				return err_set(err, "spec: two datasets are named \"%s\".", d->name);
		if (parse_properties(json_object_get(j, "properties"), where, d, err) != 0 ||
		    want_bool(j, where, "filler", &d->filler, err) != 0)
			return -1;
	}
	return 0;
}

static int by_id(const void *a, const void *b)
{
	int32_t x = ((const spec_file_t *)a)->id, y = ((const spec_file_t *)b)->id;

	return x < y ? -1 : x > y;
}

static int parse_rewrite(const json_t *j, const char *where, spec_file_t *f, err_t *err)
{
	static const char *const keys[] = {"write", "in_order", "commits", NULL};
	char rw[200];
	int64_t n;

	if (j == NULL)
		return 0;
	(void)snprintf(rw, sizeof(rw), "%s.rewrite", where);
	if (want_object(j, rw, keys, err) != 0 || want_int(j, rw, "write", 512, 16 << 20, &n, err) != 0 ||
	    want_bool(j, rw, "in_order", &f->in_order, err) != 0 || want_bool(j, rw, "commits", &f->commits, err) != 0)
		return -1;
	f->rewrite = (uint64_t)n;
	return 0;
}

static int parse_age(const json_t *root, spec_age_t *age, err_t *err)
{
	static const char *const keys[] = {"fill", "rewrites", "snapshots", "clones", NULL};
	const json_t *j = json_object_get(root, "age");
	int64_t fill, rewrites, snapshots, clones = 0;

	if (j == NULL)
		return 0;
	if (want_object(j, "age", keys, err) != 0 || want_int(j, "age", "fill", 0, 95, &fill, err) != 0 ||
	    want_int(j, "age", "rewrites", 0, 100, &rewrites, err) != 0 ||
	    want_int(j, "age", "snapshots", 0, rewrites, &snapshots, err) != 0)
		return -1;
	age->fill = (int)fill;
	age->rewrites = (int)rewrites;
	if (json_object_get(j, "clones") != NULL && want_int(j, "age", "clones", 0, snapshots, &clones, err) != 0)
		return -1;
	age->snapshots = (int)snapshots;
	age->clones = (int)clones;
	return 0;
}

static int parse_certain(const json_t *file, const char *where, spec_file_t *f, err_t *err)
{
	const json_t *a = want_array(file, where, "certain", 0, err);
	uint64_t end = 0;

	if (a == NULL)
		return -1;
	f->ncertain = json_array_size(a);
	f->certain = calloc(f->ncertain + 1, sizeof(*f->certain));
	if (f->certain == NULL)
		abort();
	for (size_t i = 0; i < f->ncertain; i++) {
		const json_t *one = json_array_get(a, i), *off = json_array_get(one, 0), *len = json_array_get(one, 1);

		if (json_array_size(one) != 2 || !json_is_integer(off) || !json_is_integer(len) ||
		    json_integer_value(off) < (json_int_t)end || json_integer_value(off) > INT64_C(1) << 46 ||
		    json_integer_value(len) <= 0 || json_integer_value(len) > INT64_C(1) << 46)
			return err_set(err, "spec: %s.certain[%zu] must be an offset and bytes, behind the one before.",
			    where, i);
		f->certain[i].off = (uint64_t)json_integer_value(off);
		f->certain[i].len = (uint64_t)json_integer_value(len);
		end = f->certain[i].off + f->certain[i].len;
	}
	return 0;
}

static int parse_content(const spec_t *s, const json_t *j, const char *where, const char *key, int *content, err_t *err)
{
	char name[SPEC_NAME];

	if (want_text(j, where, key, name, sizeof(name), err) != 0)
		return -1;
	for (size_t k = 0; k < s->ncontent; k++)
		if (strcmp(s->content[k].name, name) == 0) {
			*content = (int)k;
			return 0;
		}
	return err_set(err, "spec: %s.%s is \"%s\", which \"content\" does not have.", where, key, name);
}

static int parse_files(const json_t *root, spec_t *s, err_t *err)
{
	static const char *const keys[] = {"id", "dataset", "size", "content", "holds", "read", "untouched", "rewrite",
		"sampled", "whole", "whole_start", "certain", "of", NULL};
	const json_t *a = want_array(root, "spec", "files", 0, err);

	if (a == NULL)
		return -1;
	s->nfiles = json_array_size(a);
	s->files = calloc(s->nfiles + 1, sizeof(*s->files));
	for (size_t i = 0; i < s->nfiles; i++) {
		const json_t *j = json_array_get(a, i);
		spec_file_t *f = &s->files[i];
		char where[160], name[SPEC_NAME];
		int64_t id, size;

		(void)snprintf(where, sizeof(where), "files[%zu]", i);
		if (want_object(j, where, keys, err) != 0 || want_int(j, where, "id", 0, 9999999, &id, err) != 0 ||
		    want_int(j, where, "size", 0, INT64_C(1) << 46, &size, err) != 0 ||
		    want_text(j, where, "dataset", name, sizeof(name), err) != 0)
			return -1;
		f->id = (int32_t)id;
		f->size = (uint64_t)size;
		f->dataset = f->content = f->log = -1;
		for (size_t k = 0; k < s->ndatasets; k++)
			if (strcmp(s->datasets[k].name, name) == 0)
				f->dataset = (int)k;
		if (f->dataset < 0)
			return err_set(err, "spec: %s.dataset is \"%s\", which \"datasets\" does not have.", where,
			    name);
		if (parse_content(s, j, where, "content", &f->content, err) != 0)
			return -1;
		f->holds = f->content;
		if (json_object_get(j, "holds") != NULL && parse_content(s, j, where, "holds", &f->holds, err) != 0)
			return -1;
		f->read = f->holds;
		if (json_object_get(j, "read") != NULL && parse_content(s, j, where, "read", &f->read, err) != 0)
			return -1;
		f->untouched = f->read;
		if (json_object_get(j, "untouched") != NULL &&
		    parse_content(s, j, where, "untouched", &f->untouched, err) != 0)
			return -1;
		if (parse_rewrite(json_object_get(j, "rewrite"), where, f, err) != 0 ||
		    want_bool(j, where, "sampled", &f->sampled, err) != 0)
			return -1;
		f->whole = f->whole_start = f->size;
		f->rate = f->sampled ? s->rate : 1;
		if (f->sampled) {
			if (want_int(j, where, "whole", size, INT64_C(1) << 50, &size, err) != 0)
				return -1;
			f->whole = f->whole_start = (uint64_t)size;
			if (json_object_get(j, "whole_start") != NULL) {
				if (want_int(j, where, "whole_start", (int64_t)f->size, INT64_C(1) << 50, &size, err) !=
				    0)
					return -1;
				f->whole_start = (uint64_t)size;
			}
			if (json_object_get(j, "of") != NULL) {
				if (want_int(j, where, "of", 1, s->rate, &size, err) != 0)
					return -1;
				f->rate = (int)size;
			}
			if (json_object_get(j, "certain") != NULL && parse_certain(j, where, f, err) != 0)
				return -1;
		}
	}
	qsort(s->files, s->nfiles, sizeof(*s->files), by_id);
	for (size_t i = 1; i < s->nfiles; i++)
		if (s->files[i].id == s->files[i - 1].id)
			return err_set(err, "spec: two files have the id %d.", s->files[i].id);
	return 0;
}

static spec_file_t *file_of(const spec_t *s, const json_t *id)
{
	for (size_t i = 0; json_is_integer(id) && i < s->nfiles; i++)
		if (s->files[i].id == json_integer_value(id))
			return &s->files[i];
	return NULL;
}

static int parse_logs(const json_t *root, spec_t *s, err_t *err)
{
	const json_t *logs = json_object_get(root, "logs"), *jobs = json_object_get(root, "log_operations"), *one, *id;
	size_t i, k;

	for (i = 0; i < SPEC_LOGS; i++)
		s->log_operations[i] = s->operations;
	if (jobs != NULL && (!json_is_array(jobs) || json_array_size(jobs) != json_array_size(logs)))
		return err_set(err, "spec: spec.log_operations must be a list of a number for each log.");
	json_array_foreach(jobs, i, one) {
		if (i >= SPEC_LOGS)
			break;
		if (!json_is_integer(one) || json_integer_value(one) < 0)
			return err_set(err, "spec: log_operations[%zu] must be a whole number.", i);
		s->log_operations[i] = json_integer_value(one);
	}
	if (logs == NULL)
		return 0;
	if (!json_is_array(logs) || json_array_size(logs) > SPEC_LOGS)
		return err_set(err, "spec: spec.logs must be a list of at most %d lists of files.", SPEC_LOGS);
	s->nlogs = json_array_size(logs);
	json_array_foreach(logs, i, one) {
		if (!json_is_array(one))
			return err_set(err, "spec: logs[%zu] must be a list of files.", i);
		json_array_foreach(one, k, id) {
			spec_file_t *f = file_of(s, id);

			if (f == NULL)
				return err_set(err, "spec: logs[%zu][%zu] is none of the files.", i, k);
			if (f->log >= 0)
				return err_set(err, "spec: file %d is in two logs.", f->id);
			f->log = (int)i;
		}
	}
	return 0;
}

static int parse_maps(const json_t *root, spec_t *s, err_t *err)
{
	const json_t *j;
	const char *key;
	json_t *v;
	size_t i = 0;

	if (!json_is_object(j = json_object_get(root, "profiles")))
		return err_set(err, "spec: spec.profiles must be an object.");
	s->profiles = calloc(json_object_size(j) + 1, sizeof(*s->profiles));
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		if (parse_profile(key, v, &s->profiles[i], err) != 0)
			return -1;
		s->nprofiles = ++i;
	}
	if (!json_is_object(j = json_object_get(root, "content")))
		return err_set(err, "spec: spec.content must be an object.");
	s->content = calloc(json_object_size(j) + 1, sizeof(*s->content));
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		spec_content_t *c = &s->content[s->ncontent++];

		if (strlen(key) == 0 || strlen(key) >= sizeof(c->name))
			return err_set(err, "spec: a content pool's name must have 1 to %zu characters.",
			    sizeof(c->name) - 1);
		(void)snprintf(c->name, sizeof(c->name), "%s", key);
		if (want_text(j, "content", key, c->path, sizeof(c->path), err) != 0)
			return -1;
	}
	j = json_object_get(root, "tunables");
	if (j != NULL && !json_is_object(j))
		return err_set(err, "spec: spec.tunables must be an object.");
	s->tunables = calloc(json_object_size(j) + 1, sizeof(*s->tunables));
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		spec_tunable_t *t = &s->tunables[s->ntunables];

		if (strlen(key) == 0 || strlen(key) >= sizeof(t->name))
			return err_set(err, "spec: a tunable's name must have 1 to %zu characters.",
			    sizeof(t->name) - 1);
		(void)snprintf(t->name, sizeof(t->name), "%s", key);
		if (want_int(j, "tunables", key, 0, INT64_MAX, &t->value, err) != 0)
			return -1;
		s->ntunables++;
	}
	return 0;
}

/* Bytes; 0 where it is not given. */
static int want_limit(const json_t *root, const char *key, uint64_t *out, err_t *err)
{
	int64_t n = 0;

	if (json_object_get(root, key) != NULL && want_int(root, "spec", key, 1 << 20, INT64_C(1) << 46, &n, err) != 0)
		return -1;
	*out = (uint64_t)n;
	return 0;
}

static int parse_processor(const json_t *j, spec_t *s, err_t *err)
{
	static const char *const keys[] = {"cores", "recorded", "calls", "rates", NULL};
	static const char *const rate_keys[] = {"operation", "algorithm", "size", "ns_per_byte", NULL};
	static const char *const call_keys[] = {"read_us", "write_us", "sync_us", NULL};
	const json_t *list, *calls;
	int64_t n;

	if (!json_is_object(j))
		return err_set(err, "spec: processor must be an object.");
	if (want_object(j, "processor", keys, err) != 0 || want_int(j, "processor", "cores", 1, 4096, &n, err) != 0 ||
	    (list = want_array(j, "processor", "rates", 0, err)) == NULL)
		return -1;
	s->cores = s->recorded_cores = (int)n;
	if (json_object_get(j, "recorded") != NULL) {
		if (want_int(j, "processor", "recorded", 1, 65536, &n, err) != 0)
			return -1;
		s->recorded_cores = (int)n;
	}
	if ((calls = json_object_get(j, "calls")) != NULL) {
		if (!json_is_object(calls))
			return err_set(err, "spec: processor.calls must be an object.");
		if (want_object(calls, "processor.calls", call_keys, err) != 0 ||
		    want_number(calls, "processor.calls", "read_us", 0, 1e6, &s->read_us, err) != 0 ||
		    want_number(calls, "processor.calls", "write_us", 0, 1e6, &s->write_us, err) != 0 ||
		    want_number(calls, "processor.calls", "sync_us", 0, 1e6, &s->sync_us, err) != 0)
			return -1;
	}
	s->nrates = json_array_size(list);
	if ((s->rates = calloc(s->nrates + 1, sizeof(*s->rates))) == NULL)
		abort();
	for (size_t i = 0; i < s->nrates; i++) {
		const json_t *o = json_array_get(list, i);
		spec_rate_t *r = &s->rates[i];
		char where[64];

		(void)snprintf(where, sizeof(where), "processor.rates[%zu]", i);
		if (!json_is_object(o))
			return err_set(err, "spec: %s must be an object.", where);
		if (want_object(o, where, rate_keys, err) != 0 ||
		    want_text(o, where, "operation", r->operation, sizeof(r->operation), err) != 0 ||
		    want_text(o, where, "algorithm", r->algorithm, sizeof(r->algorithm), err) != 0 ||
		    want_int(o, where, "size", 0, INT64_C(1) << 40, &n, err) != 0 ||
		    want_number(o, where, "ns_per_byte", 0, 1e6, &r->ns_per_byte, err) != 0)
			return -1;
		r->size = (uint64_t)n;
	}
	return 0;
}

/* Of each thread how many calls of each kind the whole has. */
static int parse_threads(const json_t *root, spec_t *s, err_t *err)
{
	const json_t *a = json_object_get(root, "threads"), *one;
	size_t i;

	if (a == NULL)
		return 0;
	if (!json_is_array(a))
		return err_set(err, "spec: spec.threads must be a list of reads and writes, a pair for each thread.");
	s->nthreads = json_array_size(a);
	if ((s->threads = calloc(s->nthreads + 1, sizeof(*s->threads))) == NULL)
		abort();
	json_array_foreach(a, i, one) {
		for (size_t k = 0; k < WAIT_KINDS; k++) {
			const json_t *n = json_array_get(one, k);

			if (json_array_size(one) != WAIT_KINDS || !json_is_integer(n) || json_integer_value(n) < 0)
				return err_set(err, "spec: threads[%zu] must be two whole numbers: reads and writes.",
				    i);
			s->threads[i][k] = (double)json_integer_value(n);
		}
	}
	return 0;
}

static int parse_root(const json_t *root, spec_t *s, err_t *err)
{
	static const char *const keys[] = {"version", "seed", "arc_max", "host_memory", "pools", "datasets", "profiles",
		"files", "content", "tunables", "closed", "verify", "backing", "backing_dir", "memory_limit",
		"file_limit", "age", "processor", "sample", "load", "operations", "first", "logs", "log_operations",
		"waits", "threads", NULL};
	static const char *const backings[] = {"memory", "file"};
	static const char *const loads[] = {"all", "touched"};
	int64_t n;
	int b = 0, l = 0;

	if (!json_is_object(root))
		return err_set(err, "spec: it must be a JSON object.");
	if (!json_is_integer(json_object_get(root, "version")))
		return err_set(err, "spec: spec.version must be the number 1.");
	if (json_integer_value(json_object_get(root, "version")) != 1)
		return err_set(err, "spec: version %lld is not known; this engine reads version 1.",
		    (long long)json_integer_value(json_object_get(root, "version")));
	if (want_object(root, "spec", keys, err) != 0 || want_int(root, "spec", "seed", 0, INT64_MAX, &n, err) != 0)
		return -1;
	s->seed = (uint64_t)n;
	if (want_int(root, "spec", "arc_max", (int64_t)MIN_ARC, INT64_C(1) << 44, &n, err) != 0)
		return -1;
	s->arc_max = (uint64_t)n;
	if (json_object_get(root, "host_memory") != NULL) {
		if (want_int(root, "spec", "host_memory", (int64_t)s->arc_max + 1, INT64_C(1) << 46, &n, err) != 0)
			return -1;
		s->host_memory = (uint64_t)n;
	}
	if (want_bool(root, "spec", "closed", &s->closed, err) != 0 ||
	    want_bool(root, "spec", "verify", &s->verify, err) != 0 ||
	    want_bool(root, "spec", "waits", &s->waits, err) != 0)
		return -1;
	if (json_object_get(root, "operations") != NULL &&
	    want_int(root, "spec", "operations", 0, INT64_C(1) << 40, &s->operations, err) != 0)
		return -1;
	if (json_object_get(root, "first") != NULL) {
		if (s->operations < 1)
			return err_set(err, "spec: spec.first is of the operations, of which there are none.");
		if (want_int(root, "spec", "first", 1, s->operations, &s->first, err) != 0)
			return -1;
	}
	s->rate = 1;
	if (json_object_get(root, "sample") != NULL) {
		if (want_int(root, "spec", "sample", 1, 1 << 20, &n, err) != 0)
			return -1;
		s->rate = (int)n;
	}
	if (json_object_get(root, "load") != NULL && want_choice(root, "spec", "load", loads, 2, &l, err) != 0)
		return -1;
	/* Of what was sampled it is not known what the rest comes to but by what is touched. */
	s->touched = l == 1 || s->rate > 1;
	if (json_object_get(root, "backing") != NULL && want_choice(root, "spec", "backing", backings, 2, &b, err) != 0)
		return -1;
	s->file_backing = b == 1;
	if ((s->file_backing || json_object_get(root, "backing_dir") != NULL) &&
	    want_text(root, "spec", "backing_dir", s->backing_dir, sizeof(s->backing_dir), err) != 0)
		return -1;
	if (want_limit(root, "memory_limit", &s->memory_limit, err) != 0 ||
	    want_limit(root, "file_limit", &s->file_limit, err) != 0)
		return -1;
	if (json_object_get(root, "processor") != NULL &&
	    parse_processor(json_object_get(root, "processor"), s, err) != 0)
		return -1;
	if (parse_maps(root, s, err) != 0 || parse_pools(root, s, err) != 0 || parse_datasets(root, s, err) != 0 ||
	    parse_files(root, s, err) != 0 || parse_logs(root, s, err) != 0 || parse_age(root, &s->age, err) != 0 ||
	    parse_threads(root, s, err) != 0)
		return -1;
	return 0;
}

int spec_parse(const char *text, size_t len, spec_t *spec, err_t *err)
{
	json_error_t je;
	json_t *root;
	int rc;

	memset(spec, 0, sizeof(*spec));
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (root == NULL)
		return err_set(err, "spec: it is not JSON: line %d: %s.", je.line, je.text);
	rc = parse_root(root, spec, err);
	json_decref(root);
	return rc;
}

int spec_read(const char *path, spec_t *spec, err_t *err)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	size_t len = 0, room = 0, n;
	int rc;

	memset(spec, 0, sizeof(*spec));
	if (f == NULL)
		return err_set(err, "The spec %s can't be opened: %s.", path, strerror(errno));
	do {
		if (room - len < 65536 && (text = realloc(text, room = room * 2 + 131072)) == NULL)
			abort();
		n = fread(text + len, 1, room - len, f);
		len += n;
	} while (n > 0 && len < (size_t)1 << 30);
	if (ferror(f)) {
		(void)fclose(f);
		free(text);
		return err_set(err, "The spec %s can't be read: %s.", path, strerror(errno));
	}
	(void)fclose(f);
	rc = spec_parse(text, len, spec, err);
	free(text);
	return rc;
}

void spec_free(spec_t *s)
{
	for (size_t i = 0; i < s->npools; i++) {
		for (size_t v = 0; s->pools[i].vdevs != NULL && v < s->pools[i].nvdevs; v++)
			free(s->pools[i].vdevs[v].disks);
		free(s->pools[i].vdevs);
	}
	for (size_t i = 0; i < s->ndatasets; i++)
		free(s->datasets[i].props);
	for (size_t i = 0; i < s->nfiles && s->files != NULL; i++)
		free(s->files[i].certain);
	free(s->pools);
	free(s->datasets);
	free(s->profiles);
	free(s->files);
	free(s->content);
	free(s->tunables);
	free(s->rates);
	free(s->threads);
	memset(s, 0, sizeof(*s));
}
