#include "underway.h"

#include <stdlib.h>

void underway_add(underway_t *u, uint32_t call)
{
	if (u->n == u->room && (u->call = realloc(u->call, (u->room = u->room * 2 + 64) * sizeof(*u->call))) == NULL)
		abort();
	u->call[u->n++] = call;
}

bool underway_ended(underway_t *u, const ops_t *ops, int64_t t, size_t *k, uint32_t *call)
{
	for (; *k < u->n; ++*k) {
		if (op_end(&ops->op[u->call[*k]]) > t)
			continue;
		*call = u->call[*k];
		u->call[*k] = u->call[--u->n];
		return true;
	}
	return false;
}

void underway_free(underway_t *u)
{
	free(u->call);
	*u = (underway_t){0};
}
