#include "model.h"

#include <math.h>
#include <string.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

static double transfer_ns(const model_profile_t *p, bool write, uint64_t size)
{
	return (double)size * 1000.0 / (write ? p->write_mb_s : p->read_mb_s); /* MB/s: 10^6 bytes */
}

/*
 * Short seeks grow with the square root of the distance (the arm accelerates), long ones linearly (it coasts):
 * Ruemmler & Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994.  A random seek spans a
 * third of the disk on average, so the two parts meet at the average seek time there.
 */
double model_seek_ms(const model_profile_t *p, double share)
{
	const double third = 1.0 / 3.0;

	if (share <= 0.0)
		return 0.0;
	if (share >= 1.0)
		return p->seek_full_ms;
	if (share < third)
		return p->seek_track_ms + (p->seek_avg_ms - p->seek_track_ms) * sqrt(share / third);
	return p->seek_avg_ms + (p->seek_full_ms - p->seek_avg_ms) * (share - third) / (1.0 - third);
}

void model_init(model_device_t *d, const model_profile_t *p, uint64_t size)
{
	memset(d, 0, sizeof(*d));
	d->p = p;
	d->size = MAX(size, 1);
	d->nlanes = p->hdd ? 1 : (int)MIN(MAX(p->channels, 1.0), (double)MODEL_MAX_CHANNELS);
}

static double rotation_ns(const model_profile_t *p)
{
	return 60.0e9 / p->rpm;
}

/* Head movement and rotation; nothing if the I/O goes on where the last one ended. */
static double position_ns(const model_device_t *d, bool write, uint64_t offset)
{
	const model_profile_t *p = d->p;
	uint64_t gap = offset > d->head ? offset - d->head : d->head - offset;
	double jump;

	if (gap == 0)
		return 0.0;
	jump = model_seek_ms(p, (double)gap / (double)d->size) * 1e6 + rotation_ns(p) / 2.0;
	/* A small gap ahead just passes under the head. */
	if (offset > d->head)
		jump = MIN(jump, transfer_ns(p, write, gap));
	return jump;
}

/*
 * When synchronous I/O that could begin at start really begins.  OpenZFS keeps the asynchronous backlog in its own
 * queue, so at worst one I/O of it is on the device right now; the rest is put off by the cost of what overtakes it.
 */
static int64_t overtake(model_device_t *d, int64_t start, int64_t cost)
{
	if (d->async_until > start) {
		start += MIN(d->async_until - start, d->last_async_cost);
		d->async_until += cost;
	}
	return start;
}

static int64_t hdd_io(model_device_t *d, int64_t arrival, model_class_t class, uint64_t offset, uint64_t size)
{
	bool write = class == MIO_SYNC_WRITE || class == MIO_ASYNC_WRITE;
	double cost = d->p->overhead_us * 1e3 + position_ns(d, write, offset) + transfer_ns(d->p, write, size);
	int64_t c = (int64_t)MAX(cost, 1.0), start;

	d->head = offset + size;
	d->service_ns += cost;
	if (class == MIO_ASYNC_READ || class == MIO_ASYNC_WRITE) {
		start = MAX(MAX(arrival, d->async_until), d->sync_until);
		d->async_until = start + c;
		d->last_async_cost = c;
		return d->async_until;
	}
	start = MAX(arrival, d->sync_until);
	start = overtake(d, start, c);
	d->sync_until = start + c;
	return d->sync_until;
}

static int64_t flash_io(model_device_t *d, int64_t arrival, model_class_t class, uint64_t size)
{
	const model_profile_t *p = d->p;
	bool write = class == MIO_SYNC_WRITE || class == MIO_ASYNC_WRITE;
	double xfer = transfer_ns(p, write, size);
	/* The profile's latency is of a 4 KiB request, its transfer included. */
	double lat = (write ? p->write_us : p->read_us) * 1e3 - transfer_ns(p, write, 4096);
	int lanes = d->nlanes, best = 0;
	int64_t start, done;

	if (d->limit[class] > 0)
		lanes = MIN(lanes, d->limit[class]);
	lat = MAX(lat, 0.0) + p->overhead_us * 1e3;
	d->service_ns += lat;
	d->transfer_ns += xfer;
	if (class == MIO_ASYNC_READ || class == MIO_ASYNC_WRITE) {
		/* A deep queue: limited by the channels or by the interface, whichever is slower. */
		int64_t cost = (int64_t)MAX(MAX(lat / lanes, xfer), 1.0);
		d->async_until = MAX(d->async_until, arrival) + cost;
		d->last_async_cost = cost;
		return MAX(d->async_until, arrival + (int64_t)(lat + xfer));
	}
	for (int i = 1; i < lanes; i++)
		if (d->lane[i] < d->lane[best])
			best = i;
	start = MAX(arrival, d->lane[best]);
	start = overtake(d, start, (int64_t)MAX(lat / lanes, xfer));
	done = MAX(start + (int64_t)lat, d->bus_until) + (int64_t)MAX(xfer, 1.0);
	d->bus_until = done;
	d->lane[best] = done;
	d->sync_until = MAX(d->sync_until, done);
	return done;
}

int64_t model_io(model_device_t *d, int64_t arrival, model_class_t class, uint64_t offset, uint64_t size)
{
	if (d->p->hdd)
		return hdd_io(d, arrival, class, offset, size);
	return flash_io(d, arrival, class, size);
}

int64_t model_flush(model_device_t *d, int64_t arrival, bool background)
{
	double cost = d->p->hdd ? rotation_ns(d->p) + d->p->flush_ms * 1e6 : d->p->flush_us * 1e3;
	int64_t c, start;

	cost += d->p->overhead_us * 1e3;
	c = (int64_t)MAX(cost, 1.0);
	d->flush_ns += cost;
	if (background) {
		start = MAX(MAX(arrival, d->async_until), d->sync_until);
		d->async_until = start + c;
		return d->async_until;
	}
	start = MAX(arrival, d->sync_until);
	start = overtake(d, start, c);
	d->sync_until = start + c;
	if (!d->p->hdd) {
		/* A flush holds up every channel. */
		for (int i = 0; i < d->nlanes; i++)
			d->lane[i] = MAX(d->lane[i], d->sync_until);
		d->bus_until = MAX(d->bus_until, d->sync_until);
	}
	return d->sync_until;
}

double model_busy_s(const model_device_t *d)
{
	if (d->p->hdd)
		return (d->service_ns + d->flush_ns) / 1e9;
	return (MAX(d->service_ns / d->nlanes, d->transfer_ns) + d->flush_ns) / 1e9;
}
