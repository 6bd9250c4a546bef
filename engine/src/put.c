#include "put.h"

#include <math.h>

#include "account.h"

void put(json_t *o, const char *key, uint64_t v)
{
	(void)json_object_set_new(o, key, json_integer((json_int_t)v));
}

void put_real(json_t *o, const char *key, double v)
{
	(void)json_object_set_new(o, key, json_real(isfinite(v) ? v : 0.0));
}

void put_text(json_t *o, const char *key, const char *v)
{
	(void)json_object_set_new(o, key, json_string(v));
}

void put_sum(json_t *o, const char *key, double v)
{
	put(o, key, (uint64_t)llround(v));
}

json_t *counts(const io_sum_t *c)
{
	json_t *o = json_object();

	put_sum(o, "reads", c->reads);
	put_sum(o, "read_bytes", c->read_bytes);
	put_sum(o, "writes", c->writes);
	put_sum(o, "write_bytes", c->write_bytes);
	return o;
}

json_t *disk_counts(const spec_t *spec, const disk_t *d)
{
	json_t *o = counts(&d->stands_for);

	put(o, "flushes", d->count.flushes);
	put_text(o, "pool", spec->pools[d->pool].name);
	put_text(o, "class", vclass_names[d->class]);
	put_text(o, "name", d->name);
	put_text(o, "profile", d->profile->name);
	return o;
}

json_t *cause_counts(void)
{
	json_t *o = json_object();

	for (int i = 0; i < CAUSE_COUNT; i++)
		(void)json_object_set_new(o, cause_names[i], counts(&account_totals()->cause[i]));
	return o;
}

json_t *dataset_counts(const spec_t *spec)
{
	const io_totals_t *t = account_totals();
	json_t *list = json_array();

	for (size_t i = 0; i < spec->ndatasets; i++) {
		json_t *o = counts(&t->dataset[i]);

		put_text(o, "name", spec->datasets[i].name);
		put_sum(o, "zil_bytes", t->dataset_zil[i]);
		(void)json_array_append_new(list, o);
	}
	return list;
}
