#include "vhost.h"
#include "late.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))

#define SECTOR 512u
#define MOST (4u << 20) /* longest request; Linux makes them 1,280 KiB long */
#define RING_MOST 256   /* requests at the same time, so 1 GiB at most */
#define SEGMENTS 126u   /* of a request's data */
#define DESCRIPTORS 256 /* of a request */
#define REGIONS 8
#define DISCARD_MOST (1u << 22) /* sectors */

/* The messages and their numbers: QEMU's docs/interop/vhost-user.rst. */
enum {
	GET_FEATURES = 1,
	SET_FEATURES = 2,
	SET_OWNER = 3,
	SET_MEM_TABLE = 5,
	SET_VRING_NUM = 8,
	SET_VRING_ADDR = 9,
	SET_VRING_BASE = 10,
	GET_VRING_BASE = 11,
	SET_VRING_KICK = 12,
	SET_VRING_CALL = 13,
	SET_VRING_ERR = 14,
	GET_PROTOCOL_FEATURES = 15,
	SET_PROTOCOL_FEATURES = 16,
	SET_VRING_ENABLE = 18,
	SET_BACKEND_REQ_FD = 21,
	GET_CONFIG = 24,
	SET_CONFIG = 25,
	VERSION = 1,
	IS_REPLY = 4,
	NO_FD = 256,
	HAS_PROTOCOL = 30, /* feature: messages of the protocol itself may be asked for */
	HAS_CONFIG = 9,    /* one of these: GET_CONFIG */
	HAS_BACKEND = 5,   /* another: a way for what the disk wants, which is nothing; Linux in user mode has an
	                      interrupt only with it (arch/um/drivers/virtio_uml.c of 6.1) */
};

typedef struct {
	uint32_t request, flags, size;
} header_t;

typedef struct {
	uint64_t guest, size, user, offset;
} told_t;

typedef struct {
	uint32_t count, padding;
	told_t region[REGIONS];
} table_t;

typedef struct {
	uint32_t index, number;
} state_t;

typedef struct {
	uint32_t index, flags;
	uint64_t desc, used, avail, log;
} address_t;

typedef struct {
	uint32_t offset, size, flags;
	uint8_t bytes[256];
} config_t;

typedef union {
	uint64_t number;
	table_t table;
	state_t state;
	address_t address;
	config_t config;
} payload_t;

typedef struct {
	told_t told;
	uint8_t *at; /* where the region begins here */
	void *map;
	size_t mapped;
} region_t;

struct vhost {
	int fd, kick, call, backend;
	uint64_t size;
	region_t region[REGIONS];
	uint32_t regions;
	/* The ring. */
	uint32_t number;
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t next, done;
	bool enabled, broken;
	uint32_t pending;
	bool told; /* what is in the ring of answers, the guest has been told of */
	late_t late;
};

typedef struct {
	uint8_t *at;
	uint32_t len;
} piece_t;

typedef struct {
	piece_t out[DESCRIPTORS], in[DESCRIPTORS]; /* what the guest says, and where it wants the answer */
	uint32_t nout, nin;
	uint64_t outs, ins; /* bytes */
} chain_t;

vhost_t *vhost_new(int fd, uint64_t size)
{
	vhost_t *v = calloc(1, sizeof(*v));
	struct timeval patience = {.tv_sec = 5};

	if (v == NULL)
		abort();
	/* A message comes in one piece: who sends half of one is not waited for. */
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	v->fd = fd;
	v->size = size;
	v->kick = v->call = v->backend = -1;
	v->late = LATE_NONE;
	v->told = true;
	return v;
}

static void forget_memory(vhost_t *v)
{
	for (uint32_t i = 0; i < v->regions; i++)
		(void)munmap(v->region[i].map, v->region[i].mapped);
	v->regions = 0;
	v->desc = NULL;
	v->avail = NULL;
	v->used = NULL;
}

void vhost_free(vhost_t *v)
{
	forget_memory(v);
	(void)close(v->fd);
	if (v->kick >= 0)
		(void)close(v->kick);
	if (v->call >= 0)
		(void)close(v->call);
	if (v->backend >= 0)
		(void)close(v->backend);
	free(v);
}

int vhost_kicks(const vhost_t *v)
{
	return v->kick;
}

/* --- the guest's memory ----------------------------------------------------------------------------------------- */

/* By an address of the guest's own, or, with user, of the program that it runs in; NULL if it is not all shared. */
static void *shared(const vhost_t *v, uint64_t address, uint64_t len, bool user)
{
	for (uint32_t i = 0; i < v->regions; i++) {
		const told_t *t = &v->region[i].told;
		uint64_t begin = user ? t->user : t->guest;

		if (address >= begin && address - begin <= t->size && len <= t->size - (address - begin))
			return v->region[i].at + (address - begin);
	}
	return NULL;
}

static bool set_memory(vhost_t *v, const table_t *table, const int *fds, uint32_t nfds)
{
	forget_memory(v);
	if (table->count > REGIONS || table->count != nfds)
		return false;
	for (uint32_t i = 0; i < table->count; i++) {
		region_t *r = &v->region[i];
		struct stat st;

		r->told = table->region[i];
		if (r->told.size == 0 || r->told.offset > UINT64_MAX - r->told.size)
			return false;
		r->mapped = r->told.offset + r->told.size;
		if (fstat(fds[i], &st) != 0 || (uint64_t)st.st_size < r->mapped)
			return false;
		r->map = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
		if (r->map == MAP_FAILED)
			return false;
		r->at = (uint8_t *)r->map + r->told.offset;
		v->regions++;
	}
	return true;
}

static bool set_ring(vhost_t *v, const address_t *a)
{
	uint64_t n = v->number;

	v->desc = shared(v, a->desc, n * sizeof(struct vring_desc), true);
	v->avail = shared(v, a->avail, sizeof(struct vring_avail) + n * sizeof(uint16_t), true);
	v->used = shared(v, a->used, sizeof(struct vring_used) + n * sizeof(struct vring_used_elem), true);
	if (n == 0 || v->desc == NULL || v->avail == NULL || v->used == NULL || a->desc % 16 != 0 ||
	    a->avail % 2 != 0 || a->used % 4 != 0) {
		v->desc = NULL;
		return false;
	}
	v->done = __atomic_load_n(&v->used->idx, __ATOMIC_RELAXED);
	return true;
}

/* --- messages --------------------------------------------------------------------------------------------------- */

static bool answer(const vhost_t *v, header_t h, const void *payload, uint32_t size)
{
	struct iovec parts[2] = {{&h, sizeof(h)}, {(void *)(uintptr_t)payload, size}};
	struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};

	h.flags = VERSION | IS_REPLY;
	h.size = size;
	return sendmsg(v->fd, &m, MSG_NOSIGNAL) == (ssize_t)(sizeof(h) + size);
}

static bool receive(const vhost_t *v, header_t *h, payload_t *p, int *fds, uint32_t *nfds)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(REGIONS * sizeof(int))];
	} control;
	struct iovec part = {h, sizeof(*h)};
	struct msghdr m = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t n;

	*nfds = 0;
	while ((n = recvmsg(v->fd, &m, MSG_WAITALL | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		;
	for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c != NULL; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && *nfds == 0) {
			*nfds = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
		}
	if (n != sizeof(*h) || h->size > sizeof(*p) || (h->flags & 3) != VERSION)
		return false;
	memset(p, 0, sizeof(*p));
	return h->size == 0 || recv(v->fd, p, h->size, MSG_WAITALL) == (ssize_t)h->size;
}

static void describe(const vhost_t *v, struct virtio_blk_config *c)
{
	memset(c, 0, sizeof(*c));
	c->capacity = v->size / SECTOR;
	c->seg_max = SEGMENTS;
	c->blk_size = SECTOR;
	c->physical_block_exp = 3;
	c->num_queues = 1;
	c->max_discard_sectors = c->max_write_zeroes_sectors = DISCARD_MOST;
	c->max_discard_seg = c->max_write_zeroes_seg = 1;
	c->discard_sector_alignment = 1;
	c->write_zeroes_may_unmap = 1;
}

/* One that the guest has, too: neither reading nor writing it waits for the guest. */
static void keep(int *mine, const int *fds, uint32_t *nfds)
{
	if (*mine >= 0)
		(void)close(*mine);
	*mine = *nfds == 1 ? fds[0] : -1;
	*nfds = *nfds == 1 ? 0 : *nfds;
	if (*mine >= 0)
		(void)fcntl(*mine, F_SETFL, fcntl(*mine, F_GETFL) | O_NONBLOCK);
}

static bool obey(vhost_t *v, header_t h, payload_t *p, int *fds, uint32_t *nfds)
{
	static const uint64_t features = 1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_BLK_SIZE |
	    1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_TOPOLOGY | 1ull << VIRTIO_BLK_F_DISCARD |
	    1ull << VIRTIO_BLK_F_WRITE_ZEROES | 1ull << VIRTIO_RING_F_INDIRECT_DESC | 1ull << HAS_PROTOCOL |
	    1ull << VIRTIO_F_VERSION_1;
	struct virtio_blk_config about;
	uint64_t number;

	switch (h.request) {
	case GET_FEATURES:
		return answer(v, h, &features, sizeof(features));
	case SET_FEATURES:
		v->enabled = (p->number >> HAS_PROTOCOL & 1) == 0;
		return (p->number & ~features) == 0;
	case GET_PROTOCOL_FEATURES:
		number = 1ull << HAS_CONFIG | 1ull << HAS_BACKEND;
		return answer(v, h, &number, sizeof(number));
	case SET_OWNER:
	case SET_PROTOCOL_FEATURES:
	case SET_VRING_ERR:
	case SET_CONFIG: /* a guest may turn its write cache off there: this one's has no switch */
		return true;
	case SET_MEM_TABLE:
		return set_memory(v, &p->table, fds, *nfds);
	case GET_CONFIG:
		describe(v, &about);
		if (p->config.size > sizeof(p->config.bytes) || p->config.offset > sizeof(about))
			return false;
		memset(p->config.bytes, 0, sizeof(p->config.bytes));
		memcpy(p->config.bytes, (uint8_t *)&about + p->config.offset,
		    MIN(p->config.size, sizeof(about) - p->config.offset));
		return answer(v, h, p, h.size);
	case SET_VRING_NUM:
		v->number = p->state.number;
		v->desc = NULL;
		/* Of a ring the number is a power of two. */
		return p->state.index == 0 && v->number <= RING_MOST && (v->number & (v->number - 1)) == 0;
	case SET_VRING_ADDR:
		return p->address.index == 0 && set_ring(v, &p->address);
	case SET_VRING_BASE:
		v->next = (uint16_t)p->state.number;
		return p->state.index == 0;
	case GET_VRING_BASE:
		p->state.number = v->next;
		v->desc = NULL;
		return answer(v, h, p, sizeof(p->state));
	case SET_VRING_KICK:
		keep(&v->kick, fds, nfds);
		return (p->number & 255) == 0;
	case SET_VRING_CALL:
		keep(&v->call, fds, nfds);
		return (p->number & 255) == 0;
	case SET_BACKEND_REQ_FD:
		keep(&v->backend, fds, nfds);
		return true;
	case SET_VRING_ENABLE:
		v->enabled = p->state.number != 0;
		return p->state.index == 0;
	default:
		return false;
	}
}

bool vhost_message(vhost_t *v, device_t *d, int64_t now)
{
	header_t h;
	payload_t p;
	int fds[REGIONS];
	uint32_t nfds;
	bool fine = receive(v, &h, &p, fds, &nfds) && obey(v, h, &p, fds, &nfds);

	for (uint32_t i = 0; i < nfds; i++)
		(void)close(fds[i]);
	/* What was in the ring before it was told of. */
	return fine && vhost_take(v, d, now);
}

/* --- requests --------------------------------------------------------------------------------------------------- */

/* Finds the pieces of a request; false if there is no such. */
static bool follow(const vhost_t *v, uint16_t head, chain_t *c)
{
	const struct vring_desc *table = v->desc;
	uint32_t n = v->number, i = head;

	c->nout = c->nin = 0;
	c->outs = c->ins = 0;
	for (uint32_t steps = 0; steps < DESCRIPTORS; steps++) {
		struct vring_desc e;
		piece_t piece;

		if (i >= n)
			return false;
		e = table[i];
		if (e.flags & VRING_DESC_F_INDIRECT) {
			/* The request is in a table of its own, whose beginning is its beginning. */
			if (table != v->desc || e.len == 0 || e.len % sizeof(e) != 0 ||
			    e.len / sizeof(e) > DESCRIPTORS || e.addr % sizeof(e) != 0 ||
			    (table = shared(v, e.addr, e.len, false)) == NULL)
				return false;
			n = e.len / (uint32_t)sizeof(e);
			i = 0;
			continue;
		}
		piece = (piece_t){shared(v, e.addr, e.len, false), e.len};
		if (piece.at == NULL)
			return false;
		if (e.flags & VRING_DESC_F_WRITE) {
			c->in[c->nin++] = piece;
			c->ins += piece.len;
		} else {
			if (c->nin > 0)
				return false;
			c->out[c->nout++] = piece;
			c->outs += piece.len;
		}
		if ((e.flags & VRING_DESC_F_NEXT) == 0)
			return c->ins > 0 && c->outs >= sizeof(struct virtio_blk_outhdr);
		i = e.next;
	}
	return false;
}

/* Copies between the pieces, from skip bytes after their beginning, and a buffer. */
static void move(const piece_t *piece, uint32_t n, uint64_t skip, uint8_t *buffer, uint64_t len, bool out)
{
	for (uint32_t i = 0; i < n && len > 0; i++) {
		uint64_t here;

		if (skip >= piece[i].len) {
			skip -= piece[i].len;
			continue;
		}
		here = MIN(piece[i].len - skip, len);
		if (out)
			memcpy(buffer, piece[i].at + skip, here);
		else
			memcpy(piece[i].at + skip, buffer, here);
		buffer += here;
		len -= here;
		skip = 0;
	}
}

static void finish(vhost_t *v, uint16_t head, const chain_t *c, uint8_t status, uint64_t len)
{
	struct vring_used_elem *e = &v->used->ring[v->done & (v->number - 1)];

	move(c->in, c->nin, c->ins - 1, &status, 1, false);
	e->id = head;
	e->len = (uint32_t)(len + 1);
	__atomic_store_n(&v->used->idx, ++v->done, __ATOMIC_RELEASE);
	v->told = false;
}

/* Makes of a request one of the device's; VIRTIO_BLK_S_OK, or why there is none. */
static uint8_t understand(const vhost_t *v, const chain_t *c, request_t *r)
{
	struct virtio_blk_outhdr h;
	struct virtio_blk_discard_write_zeroes range;
	uint64_t len = 0;

	move(c->out, c->nout, 0, (uint8_t *)&h, sizeof(h), true);
	switch (h.type) {
	case VIRTIO_BLK_T_FLUSH:
		r->op = REQ_FLUSH;
		return VIRTIO_BLK_S_OK;
	case VIRTIO_BLK_T_IN:
		r->op = REQ_READ;
		len = c->ins - 1;
		break;
	case VIRTIO_BLK_T_OUT:
		r->op = REQ_WRITE;
		len = c->outs - sizeof(h);
		break;
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		if (c->outs != sizeof(h) + sizeof(range))
			return VIRTIO_BLK_S_UNSUPP;
		move(c->out, c->nout, sizeof(h), (uint8_t *)&range, sizeof(range), true);
		if (range.num_sectors > DISCARD_MOST)
			return VIRTIO_BLK_S_IOERR;
		r->op = h.type == VIRTIO_BLK_T_DISCARD ? REQ_TRIM : REQ_ZERO;
		h.sector = range.sector;
		len = (uint64_t)range.num_sectors * SECTOR;
		break;
	default:
		return VIRTIO_BLK_S_UNSUPP;
	}
	if (len == 0 || len % SECTOR != 0 || h.sector > v->size / SECTOR || len > v->size - h.sector * SECTOR ||
	    ((r->op == REQ_READ || r->op == REQ_WRITE) && len > MOST))
		return VIRTIO_BLK_S_IOERR;
	r->off = h.sector * SECTOR;
	r->len = (uint32_t)len;
	return VIRTIO_BLK_S_OK;
}

static bool take_one(vhost_t *v, device_t *d, uint16_t head, int64_t now)
{
	static chain_t c;
	uint8_t status;
	request_t *r;

	if (!follow(v, head, &c))
		return false;
	if ((r = calloc(1, sizeof(*r))) == NULL)
		abort();
	status = understand(v, &c, r);
	if (status != VIRTIO_BLK_S_OK) {
		request_free(r);
		finish(v, head, &c, status, 0);
		return true;
	}
	r->owner = v;
	r->cookie = head;
	if ((r->op == REQ_READ || r->op == REQ_WRITE) && (r->data = malloc(r->len)) == NULL)
		abort();
	if (r->op == REQ_WRITE)
		move(c.out, c.nout, sizeof(struct virtio_blk_outhdr), r->data, r->len, true);
	r->arrival = late_arrival(&v->late, now);
	v->pending++;
	device_submit(d, r);
	return true;
}

bool vhost_take(vhost_t *v, device_t *d, int64_t now)
{
	while (v->desc != NULL && v->enabled && v->kick >= 0 &&
	    v->next != __atomic_load_n(&v->avail->idx, __ATOMIC_ACQUIRE)) {
		if (v->pending >= v->number || !take_one(v, d, v->avail->ring[v->next & (v->number - 1)], now))
			return false;
		v->next++;
	}
	return true;
}

void vhost_reply(vhost_t *v, const request_t *r)
{
	static chain_t c;
	uint64_t len = r->op == REQ_READ && r->error == 0 ? r->len : 0;

	v->pending--;
	late_reply(&v->late, r->time);
	if (v->desc == NULL)
		return;
	if (!follow(v, (uint16_t)r->cookie, &c) || c.ins <= len) {
		v->broken = true;
		return;
	}
	move(c.in, c.nin, 0, r->data, len, false);
	finish(v, (uint16_t)r->cookie, &c, r->error == 0 ? VIRTIO_BLK_S_OK : VIRTIO_BLK_S_IOERR, len);
}

bool vhost_broken(const vhost_t *v)
{
	return v->broken;
}

void vhost_sent(vhost_t *v, int64_t now, int64_t lag_max)
{
	static const uint64_t one = 1;

	late_sent(&v->late, now, lag_max);
	if (v->told)
		return;
	v->told = true;
	/* What was answered is seen before it is asked whether the guest wants to hear of it. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (v->desc != NULL && v->call >= 0 &&
	    (__atomic_load_n(&v->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT) == 0)
		(void)!write(v->call, &one, sizeof(one));
}
