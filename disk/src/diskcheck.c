/*
 * The disk without server and without waiting, for the tests: its time is whatever this program says.
 *
 *   disk-check load KEY=VALUE… -- read|write|mixed random|sequential BS DEPTH SECONDS FLUSH_EVERY
 *       a closed loop of DEPTH requests; JSON with the rate and the latencies in the disk's time
 *   disk-check fuzz KEY=VALUE… -- SEED STEPS
 *       random requests, cuts and pauses; every read and every state after a cut is compared with what is allowed
 */
#include "device.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

static request_t *request(req_op_t op, uint64_t off, uint32_t len, int64_t arrival)
{
	request_t *r = calloc(1, sizeof(*r));

	if (r == NULL)
		abort();
	r->op = op;
	r->off = off;
	r->len = len;
	r->arrival = arrival;
	if ((op == REQ_READ || op == REQ_WRITE) && (r->data = calloc(1, len)) == NULL)
		abort();
	return r;
}

static void load(device_t *d, char **argv)
{
	bool random = strcmp(argv[1], "random") == 0, reads = strcmp(argv[0], "write") != 0;
	bool writes = strcmp(argv[0], "read") != 0;
	uint32_t bs = (uint32_t)atol(argv[2]);
	int depth = atoi(argv[3]), every = atoi(argv[5]), since = 0;
	int64_t end = (int64_t)(atof(argv[4]) * 1e9), now = 0, half = end / 2, worst = 0;
	uint64_t blocks = d->span / bs, at = 0, done = 0, flushes = 0;
	double latency = 0, flush_latency = 0;

	for (int i = 0; i < depth; i++)
		now = 0,
		device_submit(d,
		    request(writes && !(reads && draw(2)) ? REQ_WRITE : REQ_READ,
			(random ? draw(blocks) : at++ % blocks) * bs, bs, 0));
	while ((now = device_next(d)) < end) {
		request_t *r;

		device_advance(d, now);
		while ((r = device_done(d)) != NULL) {
			bool flush = r->op == REQ_FLUSH;
			int64_t t = r->time, took = t - r->arrival;

			if (r->error != 0)
				fail(1, "error %d", r->error);
			if (t >= half) { /* the first half fills the cache */
				done += flush ? 0 : 1;
				flushes += flush ? 1 : 0;
				*(flush ? &flush_latency : &latency) += (double)took;
				worst = MAX(worst, flush ? 0 : took);
			}
			since += r->op == REQ_WRITE ? 1 : 0;
			if (every > 0 && since == every && !flush) {
				since = 0;
				device_submit(d, request(REQ_FLUSH, 0, 0, t));
			} else {
				device_submit(d,
				    request(writes && !(reads && draw(2)) ? REQ_WRITE : REQ_READ,
					(random ? draw(blocks) : at++ % blocks) * bs, bs, t));
			}
			request_free(r);
		}
	}
	(void)printf("{\"iops\":%.3f,\"latency_ms\":%.6f,\"worst_ms\":%.6f,\"flush_ms\":%.6f,\"flushes\":%" PRIu64
		     ",\"merged\":%" PRIu64 "}\n",
	    (double)done / ((double)(end - half) / 1e9), done > 0 ? latency / (double)done / 1e6 : 0.0,
	    (double)worst / 1e6, flushes > 0 ? flush_latency / (double)flushes / 1e6 : 0.0, flushes, d->count.merged);
}

/*
 * Every 512 bytes hold the number of the write that put them there.  For each such sector we keep the number of the
 * last write that was acknowledged, and of the last one that a completed flush covers: after a cut the sector must
 * hold the latter or something younger; a read must give the former or something younger.
 */
#define SECTOR 512
#define SECTORS 4096

static uint64_t acked[SECTORS], durable[SECTORS], issued[SECTORS], snapshot[64][SECTORS];
static bool busy[SECTORS], snapshot_used[64];
static uint64_t broken; /* sectors that a flush covered, and that were lost all the same */
static const model_profile_t *profile;

static void compare(const uint8_t *data, uint64_t sector, uint64_t least, const char *what)
{
	uint64_t found[2];

	memcpy(&found[0], data, 8);
	memcpy(&found[1], data + SECTOR - 8, 8);
	if (found[0] != found[1] || found[0] < least || found[0] > issued[sector])
		fail(1, "%s: sector %" PRIu64 " holds write %" PRIu64 "/%" PRIu64 ", not %" PRIu64 "-%" PRIu64, what,
		    sector, found[0], found[1], least, issued[sector]);
}

static void mark(request_t *r, bool value)
{
	for (uint64_t s = r->off / SECTOR; s < (r->off + r->len) / SECTOR; s++)
		busy[s] = value;
}

static uint64_t collect(device_t *d)
{
	request_t *r;
	uint64_t n = 0;

	for (; (r = device_done(d)) != NULL; n++) {
		uint64_t first = r->off / SECTOR;

		if (r->error != 0)
			fail(1, "error %d", r->error);
		mark(r, false);
		for (uint64_t s = 0; s < r->len / SECTOR; s++) {
			if (r->op == REQ_READ)
				compare(r->data + s * SECTOR, first + s, acked[first + s], "read");
			else if (r->op == REQ_WRITE)
				acked[first + s] = r->cookie;
			else /* zeros are write 0: as if it had never been written */
				acked[first + s] = durable[first + s] = issued[first + s] = 0;
			if (r->op == REQ_WRITE && r->cookie % 8 == 0)
				durable[first + s] = r->cookie; /* it had the FUA bit */
		}
		if (r->op != REQ_WRITE && r->op != REQ_READ && r->op != REQ_FLUSH)
			for (int i = 0; i < 64; i++)
				memset(&snapshot[i][first], 0, r->len / SECTOR * sizeof(uint64_t));
		if (r->op == REQ_FLUSH) {
			/* What was acknowledged when it was sent. */
			for (uint64_t s = 0; s < SECTORS; s++)
				durable[s] = MAX(durable[s], snapshot[r->cookie][s]);
			snapshot_used[r->cookie] = false;
		}
		request_free(r);
	}
	return n;
}

static void after_cut(device_t *d)
{
	uint8_t data[SECTOR];

	for (uint64_t s = 0; s < SECTORS; s++) {
		uint64_t found, least = profile->protected ? acked[s] : profile->ignores_flushes ? 0 : durable[s];

		if (pread(d->fd, data, SECTOR, (off_t)(s * SECTOR)) != SECTOR)
			fail(1, "the medium can't be read");
		compare(data, s, least, "after a cut");
		memcpy(&found, data, 8);
		broken += found < durable[s];
		acked[s] = durable[s] = issued[s] = found;
		busy[s] = false;
	}
	memset(snapshot_used, 0, sizeof(snapshot_used));
}

static void fuzz(device_t *d, char **argv)
{
	int64_t now = 0;
	uint64_t steps = strtoull(argv[1], NULL, 10), number = 0, done = 0, cuts = 0, in_flight = 0;

	state = strtoull(argv[0], NULL, 10) * 2654435761u + 1;
	for (uint64_t i = 0; i < steps; i++) {
		uint64_t kind = draw(100), first = draw(SECTORS - 64), count = 1 + draw(64), k;
		request_t *r = NULL;
		bool free_range = true;

		if (draw(3) == 0) /* close together, so that they overlap and merge */
			first %= 128;
		for (uint64_t s = first; s < first + count; s++)
			free_range = free_range && !busy[s];
		if (kind < 30 && free_range) {
			r = request(REQ_READ, first * SECTOR, (uint32_t)(count * SECTOR), now);
		} else if (kind < 80 && free_range) {
			r = request(REQ_WRITE, first * SECTOR, (uint32_t)(count * SECTOR), now);
			r->cookie = ++number;
			r->fua = number % 8 == 0;
			for (uint64_t s = 0; s < count; s++) {
				memcpy(r->data + s * SECTOR, &number, 8);
				memcpy(r->data + (s + 1) * SECTOR - 8, &number, 8);
				issued[first + s] = number;
			}
		} else if (kind < 84 && free_range) {
			r = request(draw(2) ? REQ_TRIM : REQ_ZERO, first * SECTOR, (uint32_t)(count * SECTOR), now);
		} else if (kind < 92) {
			for (k = 0; k < 64 && snapshot_used[k]; k++)
				;
			if (k < 64) {
				r = request(REQ_FLUSH, 0, 0, now);
				r->cookie = k;
				snapshot_used[k] = true;
				memcpy(snapshot[k], acked, sizeof(acked));
			}
		} else if (kind == 99 && draw(4) == 0) {
			device_cut(d);
			after_cut(d);
			cuts++;
			in_flight = 0;
		}
		if (r != NULL) {
			mark(r, true);
			device_submit(d, r);
			in_flight++;
		}
		if (draw(4) == 0 || in_flight > 48)
			now = MAX(now, MIN(device_next(d), now + (int64_t)100000000));
		else
			now += (int64_t)draw(300000);
		device_advance(d, now);
		k = collect(d);
		done += k;
		in_flight -= k;
	}
	while (device_next(d) != DEVICE_NEVER && in_flight > 0) {
		now = MAX(now, device_next(d));
		device_advance(d, now);
		in_flight -= collect(d);
	}
	if (in_flight != 0)
		fail(1, "%" PRIu64 " requests were never answered", in_flight);
	if (device_settle(d) != 0)
		fail(1, "the cache can't be written");
	memcpy(durable, acked, sizeof(acked));
	after_cut(d);
	(void)printf("{\"done\":%" PRIu64 ",\"cuts\":%" PRIu64 ",\"merged\":%" PRIu64 ",\"cut_bytes\":%" PRIu64
		     ",\"broken\":%" PRIu64 "}\n",
	    done, cuts, d->count.merged, d->count.cut_bytes, broken);
}

int main(int argc, char **argv)
{
	options_t o;
	device_t d;
	int rest, fd = memfd_create("medium", 0);

	for (rest = 2; rest < argc && strcmp(argv[rest], "--") != 0; rest++)
		;
	if (argc < 2 || rest + 2 >= argc)
		fail(2, "usage: disk-check load|fuzz KEY=VALUE... -- ARGUMENTS");
	options_parse(&o, rest - 2, argv + 2);
	if (fd < 0 || ftruncate(fd, (off_t)o.size) != 0)
		fail(1, "no memory for the medium");
	profile = &o.profile;
	device_init(&d, &o.profile, (uint64_t)o.size, (uint64_t)o.cache, fd, o.lazy != 0.0);
	if (strcmp(argv[1], "load") == 0 && argc - rest - 1 == 6)
		load(&d, argv + rest + 1);
	else if (strcmp(argv[1], "fuzz") == 0 && argc - rest - 1 == 2)
		fuzz(&d, argv + rest + 1);
	else
		fail(2, "usage: disk-check load|fuzz KEY=VALUE... -- ARGUMENTS");
	device_cut(&d);
	(void)close(fd);
	return 0;
}
