#include "disks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static disk_t *disks;
static size_t ndisks;

int disks_create(const spec_t *spec, err_t *err)
{
	size_t n = 0;

	for (size_t p = 0; p < spec->npools; p++)
		for (size_t v = 0; v < spec->pools[p].nvdevs; v++)
			n += spec->pools[p].vdevs[v].ndisks;
	if ((disks = calloc(n + 1, sizeof(*disks))) == NULL)
		return err_set(err, "No memory for %zu disks.", n);
	for (size_t p = 0; p < spec->npools; p++) {
		int entry[VC_COUNT] = {0};

		for (size_t v = 0; v < spec->pools[p].nvdevs; v++) {
			const spec_vdev_t *sv = &spec->pools[p].vdevs[v];
			int e = entry[sv->class]++;

			for (size_t i = 0; i < sv->ndisks; i++) {
				disk_t *d = &disks[ndisks++];

				(void)snprintf(d->name, sizeof(d->name), "%s-%d/%zu", vclass_names[sv->class], e, i);
				(void)snprintf(d->path, sizeof(d->path), "/ztune/%s/%s", spec->pools[p].name, d->name);
				d->pool = (int)p;
				d->class = sv->class;
				d->profile = &spec->profiles[sv->disks[i].profile];
				d->size = sv->disks[i].size;
				d->span = sv->disks[i].span;
			}
		}
	}
	return 0;
}

disk_t *disks_all(size_t *n)
{
	*n = ndisks;
	return disks;
}

disk_t *disks_at(const char *path)
{
	for (size_t i = 0; path != NULL && i < ndisks; i++)
		if (strcmp(disks[i].path, path) == 0)
			return &disks[i];
	return NULL;
}

const disk_t *disks_find(int pool, vclass_t class, int entry, int disk)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s-%d/%d", vclass_names[class], entry, disk);
	for (size_t i = 0; i < ndisks; i++)
		if (disks[i].pool == pool && strcmp(disks[i].name, name) == 0)
			return &disks[i];
	return NULL;
}
