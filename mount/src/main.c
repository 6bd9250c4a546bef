/*
 * ztune-mount: the datasets of a layout as mounted file systems, by OpenZFS in this process, on disks in files.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "fatal.h"
#include "front.h"
#include "livedisk.h"
#include "pool.h"

enum { EXIT_NO_FUSE = 3 };

static const char usage[] =
    "usage: ztune-mount --spec SPEC.json --store DIR [--disks profile|instant] [--cache volatile|none|lazy]\n"
    "                   [--page-cache] [--loaded] DATASET=DIRECTORY ...\n"
    "       ztune-mount version\n"
    "\n"
    "Mounts the datasets of a layout by OpenZFS " OPENZFS_STRING
    " in this process, until SIGTERM, SIGINT or SIGHUP.  The pools live\n"
    "on files in --store: made there the first time, imported later.  Nothing of this machine's pools is touched.\n"
    "\n"
    "  --disks profile   with the service times of the disks' profiles (default)\n"
    "  --disks instant   as fast as this machine's page cache\n"
    "  --cache volatile  what was acknowledged and not flushed is lost with this process, as in a power cut (default)\n"
    "  --cache none      no write cache: the end of this process is that of an operating system, without a power cut\n"
    "  --cache lazy      as volatile, and the cache is written out only by a flush or when it is full\n"
    "  --page-cache      the kernel's page cache holds what is read and written; ZFS itself passes it by\n"
    "  --loaded          the pools in --store were filled under another layout, with the same data disks and datasets\n"
    "                    and no log or cache disks: these are added, and the properties set\n"
    "\n"
    "Prints a line of JSON when all is mounted.  Exit codes: 0 ended in order, 1 failed, 2 bad input, 3 FUSE is missing or\n"
    "forbidden.  Everything is described in docs/mount.md.\n";

typedef struct {
	const char *spec_path, *store;
	bool instant, page_cache, loaded;
	cache_mode_t cache;
	char **places; /* DATASET=DIRECTORY */
	int nplaces;
} options_t;

static struct {
	options_t o;
	spec_t spec;
	pace_t pace;
	fl_volume_t **vols; /* [ndatasets] */
	calls_t *calls;
	front_t **fronts;
	const char **directory;
	bool imported;
} M;

static void warn(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	(void)fputc('\n', stderr);
	va_end(ap);
}

static void __attribute__((noreturn)) end(int code, const err_t *e)
{
	(void)fprintf(stderr, "%s\n", e->text);
	_exit(code);
}

/* --- the command line --- */

static int choice(const char *option, const char *value, const char *const *names, err_t *e)
{
	for (int i = 0; names[i] != NULL; i++)
		if (value != NULL && strcmp(value, names[i]) == 0)
			return i;
	(void)err_set(e, "ztune-mount: %s can't be \"%s\"; see ztune-mount --help.", option,
	    value != NULL ? value : "");
	end(EXIT_INPUT, e);
}

static void parse(int argc, char **argv, options_t *o, err_t *e)
{
	static const char *const disks[] = {"profile", "instant", NULL};
	static const char *const caches[] = {"volatile", "none", "lazy", NULL};

	for (int i = 1; i < argc; i++) {
		const char *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(argv[i], "--spec") == 0 && next != NULL)
			o->spec_path = argv[++i];
		else if (strcmp(argv[i], "--store") == 0 && next != NULL)
			o->store = argv[++i];
		else if (strcmp(argv[i], "--disks") == 0)
			o->instant = choice("--disks", argv[++i], disks, e) == 1;
		else if (strcmp(argv[i], "--cache") == 0)
			o->cache = (cache_mode_t)choice("--cache", argv[++i], caches, e);
		else if (strcmp(argv[i], "--page-cache") == 0)
			o->page_cache = true;
		else if (strcmp(argv[i], "--loaded") == 0)
			o->loaded = true;
		else if (argv[i][0] != '-' && strchr(argv[i], '=') != NULL) {
			o->places = &argv[i];
			o->nplaces = argc - i;
			break;
		} else {
			(void)err_set(e, "ztune-mount does not know \"%s\"; see ztune-mount --help.", argv[i]);
			end(EXIT_INPUT, e);
		}
	}
	if (o->spec_path == NULL || o->store == NULL || o->nplaces == 0) {
		(void)err_set(e,
		    "ztune-mount needs --spec FILE, --store DIR and a DATASET=DIRECTORY for each dataset.");
		end(EXIT_INPUT, e);
	}
}

/* Which directory each dataset goes to. */
static int find_places(err_t *e)
{
	M.directory = calloc(M.spec.ndatasets + 1, sizeof(*M.directory));
	for (int i = 0; i < M.o.nplaces; i++) {
		char *equals = strchr(M.o.places[i], '=');
		struct stat st;
		size_t k = 0;

		if (equals == NULL)
			return err_set(e, "\"%s\" is not DATASET=DIRECTORY.", M.o.places[i]);
		while (k < M.spec.ndatasets &&
		    (strlen(M.spec.datasets[k].name) != (size_t)(equals - M.o.places[i]) ||
			strncmp(M.spec.datasets[k].name, M.o.places[i], (size_t)(equals - M.o.places[i])) != 0))
			k++;
		if (k == M.spec.ndatasets)
			return err_set(e, "The spec has no dataset %.*s.", (int)(equals - M.o.places[i]),
			    M.o.places[i]);
		M.directory[k] = equals + 1;
		if (stat(equals + 1, &st) != 0)
			return err_set(e, "%s can't be looked at: %s.", equals + 1, strerror(errno));
		if (!S_ISDIR(st.st_mode))
			return err_set(e, "%s is not a directory.", equals + 1);
	}
	for (size_t k = 0; k < M.spec.ndatasets; k++)
		if (M.directory[k] == NULL)
			return err_set(e, "Dataset %s has no directory; give %s=DIRECTORY.", M.spec.datasets[k].name,
			    M.spec.datasets[k].name);
	return 0;
}

/* --- the store --- */

static void in_store(char *path, size_t len, const char *name)
{
	(void)snprintf(path, len, "%s/%s", M.o.store, name);
}

static int lock_store(err_t *e)
{
	char path[4300];
	int fd;

	in_store(path, sizeof(path), "lock");
	if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0)
		return err_set(e, "%s can't be opened: %s.", path, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) != 0)
		return err_set(e, "The store %s is in use by another mount.", M.o.store);
	return 0;
}

/* The layout of the store, written when all of it was made: without it the store is empty, or was never finished. */
static int same_layout(const char *path, bool *made, err_t *e)
{
	json_t *theirs, *ours;
	json_error_t je;
	int same;

	*made = access(path, F_OK) == 0;
	if (!*made)
		return 0;
	theirs = json_load_file(path, 0, &je);
	ours = json_load_file(M.o.spec_path, 0, &je);
	same = theirs != NULL && ours != NULL && json_equal(theirs, ours);
	json_decref(theirs);
	json_decref(ours);
	return same ? 0 : err_set(e, "The store %s holds another layout than %s.", M.o.store, M.o.spec_path);
}

static int remove_disks(err_t *e)
{
	char path[4500], name[300];
	size_t n;

	for (size_t p = 0; p < M.spec.npools; p++) {
		int entry[VC_COUNT] = {0};

		for (size_t v = 0; v < M.spec.pools[p].nvdevs; v++) {
			const spec_vdev_t *sv = &M.spec.pools[p].vdevs[v];
			int en = entry[sv->class]++;

			for (n = 0; n < sv->ndisks; n++) {
				(void)snprintf(name, sizeof(name), "disk-%s-%s-%d-%zu.img", M.spec.pools[p].name,
				    vclass_names[sv->class], en, n);
				in_store(path, sizeof(path), name);
				if (unlink(path) != 0 && errno != ENOENT)
					return err_set(e, "%s can't be removed: %s.", path, strerror(errno));
			}
		}
	}
	return 0;
}

static int note_layout(const char *path, err_t *e)
{
	char partial[4400];
	json_error_t je;
	json_t *spec = json_load_file(M.o.spec_path, 0, &je);
	bool ok;

	(void)snprintf(partial, sizeof(partial), "%s.partial", path);
	ok = spec != NULL && json_dump_file(spec, partial, JSON_INDENT(1)) == 0 && rename(partial, path) == 0;
	json_decref(spec);
	return ok ? 0 : err_set(e, "%s can't be written: %s.", path, strerror(errno));
}

static void config_path(size_t pool, char *path, size_t len)
{
	char name[200];

	(void)snprintf(name, sizeof(name), "pool-%s.config", M.spec.pools[pool].name);
	in_store(path, len, name);
}

static int make_pools(err_t *e)
{
	char path[4400];

	if (pool_check_properties(&M.spec, e) != 0 ||
	    pool_create_all(&M.spec, &M.pace, POOL_HOLDS | POOL_HELPS, e) != 0)
		return -1;
	for (size_t p = 0; p < M.spec.npools; p++) {
		pool_end_tasks((int)p);
		pool_settle((int)p);
		config_path(p, path, sizeof(path));
		if (pool_save_config((int)p, path, e) != 0)
			return -1;
	}
	return 0;
}

static int import_pools(err_t *e)
{
	char path[4400];

	for (size_t p = 0; p < M.spec.npools; p++) {
		config_path(p, path, sizeof(path));
		if (pool_import(&M.spec, (int)p, path, e) != 0)
			return -1;
	}
	return 0;
}

static int take_over_pools(err_t *e)
{
	char path[4400];

	if (pool_check_properties(&M.spec, e) != 0)
		return -1;
	for (size_t p = 0; p < M.spec.npools; p++) {
		config_path(p, path, sizeof(path));
		if (pool_take_over(&M.spec, &M.pace, (int)p, path, e) != 0 || pool_save_config((int)p, path, e) != 0)
			return -1;
	}
	return 0;
}

/* --- mounting --- */

/* Without any where the layout does not say, as ztune makes datasets; relatime is OpenZFS's default. */
static void access_times(size_t i)
{
	bool on = false, relative = true;

	for (size_t k = 0; k < M.spec.datasets[i].nprops; k++) {
		const spec_prop_t *p = &M.spec.datasets[i].props[k];

		if (strcmp(p->key, "atime") == 0)
			on = strcmp(p->value, "on") == 0;
		else if (strcmp(p->key, "relatime") == 0)
			relative = strcmp(p->value, "off") != 0;
	}
	fl_volume_access_times(M.vols[i], on, relative);
}

static void take_down(bool ready)
{
	err_t e = {""};
	int code = 0, error;
	char path[4300];

	for (size_t i = M.spec.ndatasets; i-- > 0;)
		if (M.fronts[i] != NULL && front_unmount(M.fronts[i]))
			warn("%s was in use: what is open there gets errors from now on.", M.directory[i]);
	control_end();
	for (size_t i = 0; i < M.spec.ndatasets; i++)
		fl_volume_forget(M.vols[i]);
	for (size_t i = 0; i < M.spec.ndatasets; i++)
		fl_volume_close(M.vols[i]);
	for (size_t p = 0; p < M.spec.npools; p++)
		if (pool_export(&M.spec, (int)p, &e) != 0) {
			warn("%s", e.text);
			code = EXIT_FAILED;
		}
	if ((error = livedisk_settle()) != 0) {
		warn("The disks' files can't be written: %s.", strerror(error));
		code = EXIT_FAILED;
	}
	in_store(path, sizeof(path), "control");
	(void)unlink(path);
	_exit(ready ? code : EXIT_NO_FUSE);
}

static void mount_all(err_t *e)
{
	for (size_t i = 0; i < M.spec.ndatasets; i++)
		if (front_mount(M.vols[i], &M.calls[i], &M.spec.datasets[i], M.directory[i], M.o.page_cache,
			&M.fronts[i], e) != 0) {
			warn("%s", e->text);
			take_down(false);
		}
}

static void print_ready(void)
{
	json_t *list = json_array(), *o;
	uint64_t replayed = 0;
	char *text;

	for (size_t i = 0; i < M.spec.ndatasets; i++) {
		(void)json_array_append_new(list,
		    json_pack("{s:s,s:s}", "name", M.spec.datasets[i].name, "directory", M.directory[i]));
		replayed += fl_volume_replayed(M.vols[i]);
	}
	o = json_pack("{s:b,s:i,s:b,s:I,s:s,s:o}", "ready", 1, "pid", (int)getpid(), "imported", M.imported, "replayed",
	    (json_int_t)replayed, "openzfs", OPENZFS_STRING, "datasets", list);
	text = json_dumps(o, JSON_COMPACT);
	(void)printf("%s\n", text);
	(void)fflush(stdout);
	free(text);
	json_decref(o);
}

static bool all_ended(void)
{
	for (size_t i = 0; i < M.spec.ndatasets; i++)
		if (!front_ended(M.fronts[i]))
			return false;
	return true;
}

int main(int argc, char **argv)
{
	sigset_t set;
	char layout[4300], control[4300];
	err_t e = {""};
	int sig;
	bool made;

	if (argc == 2 && strcmp(argv[1], "version") == 0) {
		(void)printf("{\"version\":\"%s\",\"openzfs\":\"%s\"}\n", MOUNT_VERSION, OPENZFS_STRING);
		return 0;
	}
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		(void)fputs(usage, stdout);
		return 0;
	}
	parse(argc, argv, &M.o, &e);
	/* Whoever uses the file systems gets an error from then on. */
	fatal_catch("under a mount, which ends");
	(void)signal(SIGPIPE, SIG_IGN);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	(void)prctl(PR_SET_TIMERSLACK, 1UL);
	(void)umask(077);

	if (spec_read(M.o.spec_path, &M.spec, &e) != 0 || find_places(&e) != 0)
		end(EXIT_INPUT, &e);
	if (access("/dev/fuse", R_OK | W_OK) != 0) {
		(void)err_set(&e, "/dev/fuse can't be opened: %s; FUSE is missing or forbidden here.", strerror(errno));
		end(EXIT_NO_FUSE, &e);
	}
	in_store(layout, sizeof(layout), "spec.json");
	if (lock_store(&e) != 0 || same_layout(layout, &made, &e) != 0 ||
	    (!made && !M.o.loaded && remove_disks(&e) != 0) ||
	    livedisk_open(&M.spec, M.o.store, M.o.instant, M.o.cache, &e) != 0 ||
	    pool_start(&M.spec, &M.pace, warn, &e) != 0)
		end(EXIT_INPUT, &e);
	pool_live(&M.pace);
	M.imported = made || M.o.loaded;
	M.vols = calloc(M.spec.ndatasets + 1, sizeof(*M.vols));
	M.fronts = calloc(M.spec.ndatasets + 1, sizeof(*M.fronts));
	M.calls = calloc(M.spec.ndatasets + 1, sizeof(*M.calls));
	if ((made ? import_pools(&e)
		    : M.o.loaded ? take_over_pools(&e)
				 : make_pools(&e)) != 0 ||
	    pool_open_volumes(&M.spec, M.vols, &e) != 0)
		end(EXIT_FAILED, &e);
	if (!made) {
		for (size_t p = 0; p < M.spec.npools; p++)
			pool_sync((int)p);
		/* The caches too: what is noted as made must be there after a cut. */
		if (livedisk_settle() != 0 || note_layout(layout, &e) != 0)
			end(EXIT_FAILED, &e);
	}
	for (size_t i = 0; i < M.spec.ndatasets; i++)
		access_times(i);
	in_store(control, sizeof(control), "control");
	if (control_start(control, &M.spec, M.vols, M.calls, &e) != 0)
		end(EXIT_FAILED, &e);
	mount_all(&e);
	print_ready();
	do {
		(void)sigwait(&set, &sig);
	} while (sig == SIGCHLD && !all_ended());
	take_down(true);
}
