#include "put.h"

#include <math.h>

void
put(json_t *o, const char *key, uint64_t v)
{
	(void) json_object_set_new(o, key, json_integer((json_int_t)v));
}

void
put_real(json_t *o, const char *key, double v)
{
	(void) json_object_set_new(o, key, json_real(isfinite(v) ? v : 0.0));
}

void
put_text(json_t *o, const char *key, const char *v)
{
	(void) json_object_set_new(o, key, json_string(v));
}

json_t *
counts(const io_count_t *c)
{
	json_t *o = json_object();

	put(o, "reads", c->reads);
	put(o, "read_bytes", c->read_bytes);
	put(o, "writes", c->writes);
	put(o, "write_bytes", c->write_bytes);
	return (o);
}
