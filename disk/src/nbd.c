#include "nbd.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* The numbers of the protocol: github.com/NetworkBlockDevice/nbd, doc/proto.md. */
enum {
	OPT_EXPORT_NAME = 1,
	OPT_ABORT = 2,
	OPT_LIST = 3,
	OPT_INFO = 6,
	OPT_GO = 7,
	REP_ACK = 1,
	REP_SERVER = 2,
	REP_INFO = 3,
	INFO_EXPORT = 0,
	INFO_BLOCK_SIZE = 3,
	CMD_READ = 0,
	CMD_WRITE = 1,
	CMD_DISC = 2,
	CMD_FLUSH = 3,
	CMD_TRIM = 4,
	CMD_WRITE_ZEROES = 6,
	CMD_FLAG_FUA = 1,
	FLAG_HAS_FLAGS = 1,
	FLAG_FLUSH = 4,
	FLAG_FUA = 8,
	FLAG_ROTATIONAL = 16,
	FLAG_TRIM = 32,
	FLAG_WRITE_ZEROES = 64,
	FLAG_MULTI_CONN = 256,
	HEADER = 28,
	OPTION_HEADER = 16,
	OPTION_MOST = 65536,
};
#define MAGIC_SERVER 0x4e42444d41474943ull /* NBDMAGIC */
#define MAGIC_OPTION 0x49484156454f5054ull /* IHAVEOPT */
#define MAGIC_OPTION_REPLY 0x3e889045565a9ull
#define MAGIC_REQUEST 0x25609513u
#define MAGIC_REPLY 0x67446698u
#define REP_ERR_UNSUP 0x80000001u
#define REP_ERR_INVALID 0x80000003u

static uint16_t get16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, 2);
	return be16toh(v);
}
static uint32_t get32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, 4);
	return be32toh(v);
}
static uint64_t get64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, 8);
	return be64toh(v);
}

static void put(conn_t *c, const void *data, size_t len)
{
	if (len == 0)
		return;
	if (c->out_have + len > c->out_room) {
		c->out_room = MAX(c->out_room * 2, c->out_have + len);
		c->out = realloc(c->out, c->out_room);
		if (c->out == NULL)
			abort();
	}
	memcpy(c->out + c->out_have, data, len);
	c->out_have += len;
}

static void put16(conn_t *c, uint16_t v)
{
	v = htobe16(v);
	put(c, &v, 2);
}
static void put32(conn_t *c, uint32_t v)
{
	v = htobe32(v);
	put(c, &v, 4);
}
static void put64(conn_t *c, uint64_t v)
{
	v = htobe64(v);
	put(c, &v, 8);
}

conn_t *conn_new(int fd, uint64_t size, bool rotational)
{
	conn_t *c = calloc(1, sizeof(*c));
	int room = 8 << 20;

	if (c == NULL || (c->in = malloc(OPTION_MOST)) == NULL)
		abort();
	c->fd = fd;
	c->size = size;
	c->rotational = rotational;
	c->phase = HELLO;
	c->want = 4;
	c->late = LATE_NONE;
	/* A whole reply fits: sending must not wait for the other end to run. The first call takes root. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) != 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	put64(c, MAGIC_SERVER);
	put64(c, MAGIC_OPTION);
	put16(c, 3); /* fixed newstyle, no zeroes */
	return c;
}

void conn_free(conn_t *c)
{
	(void)close(c->fd);
	request_free(c->writing);
	free(c->in);
	free(c->out);
	free(c);
}

bool conn_wants_out(const conn_t *c)
{
	return c->out_sent < c->out_have;
}

bool conn_wants_in(const conn_t *c)
{
	/* Somebody who doesn't take his answers gets no new ones. */
	return !c->leave && c->pending < NBD_PENDING && c->out_have - c->out_sent < (64u << 20);
}

/* --- handshake -------------------------------------------------------------------------------------------------- */

static uint16_t flags(const conn_t *c)
{
	return (uint16_t)(FLAG_HAS_FLAGS | FLAG_FLUSH | FLAG_FUA | FLAG_TRIM | FLAG_WRITE_ZEROES | FLAG_MULTI_CONN |
	    (c->rotational ? FLAG_ROTATIONAL : 0));
}

static void option_reply(conn_t *c, uint32_t type, uint32_t len)
{
	put64(c, MAGIC_OPTION_REPLY);
	put32(c, c->option);
	put32(c, type);
	put32(c, len);
}

/* Returns false if the client can't be served. */
static bool option(conn_t *c, uint32_t len)
{
	static const uint8_t zeros[124];

	c->phase = OPTION;
	c->want = OPTION_HEADER;
	switch (c->option) {
	case OPT_EXPORT_NAME:
		put64(c, c->size);
		put16(c, flags(c));
		put(c, zeros, c->no_zeroes ? 0 : sizeof(zeros));
		c->phase = COMMAND;
		c->want = HEADER;
		return true;
	case OPT_INFO:
	case OPT_GO:
		if (len < 6 || get32(c->in) > len - 6) {
			option_reply(c, REP_ERR_INVALID, 0);
			return true;
		}
		option_reply(c, REP_INFO, 12);
		put16(c, INFO_EXPORT);
		put64(c, c->size);
		put16(c, flags(c));
		option_reply(c, REP_INFO, 14);
		put16(c, INFO_BLOCK_SIZE);
		put32(c, 1);
		put32(c, 4096);
		put32(c, NBD_MOST);
		option_reply(c, REP_ACK, 0);
		if (c->option == OPT_GO) {
			c->phase = COMMAND;
			c->want = HEADER;
		}
		return true;
	case OPT_LIST:
		option_reply(c, REP_SERVER, 4);
		put32(c, 0);
		option_reply(c, REP_ACK, 0);
		return true;
	case OPT_ABORT:
		option_reply(c, REP_ACK, 0);
		return false;
	default:
		option_reply(c, REP_ERR_UNSUP, 0);
		return true;
	}
}

/* --- requests --------------------------------------------------------------------------------------------------- */

static void answer(conn_t *c, uint64_t cookie, int error, const uint8_t *data, uint32_t len)
{
	/* The protocol's error numbers are Linux's. */
	put32(c, MAGIC_REPLY);
	put32(c, (uint32_t)error);
	put64(c, cookie);
	put(c, data, error == 0 ? len : 0);
}

void conn_reply(conn_t *c, const request_t *r)
{
	int error = r->error == 0 || r->error == ENOSPC || r->error == EINVAL ? r->error : EIO;
	size_t len = r->op == REQ_READ && error == 0 ? r->len : 0, sent = 0;

	c->pending--;
	late_reply(&c->late, r->time);
	if (len == 0 || conn_wants_out(c)) {
		answer(c, r->cookie, error, r->data, (uint32_t)len);
		return;
	}
	/* Much data goes straight out, not by way of the buffer. */
	answer(c, r->cookie, 0, NULL, 0);
	conn_write(c);
	while (!conn_wants_out(c) && sent < len) {
		ssize_t n = send(c->fd, r->data + sent, len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		sent += (size_t)n;
	}
	put(c, r->data + sent, len - sent);
}

void conn_sent(conn_t *c, int64_t now, int64_t lag_max)
{
	if (!conn_wants_out(c))
		late_sent(&c->late, now, lag_max);
}

static void submit(conn_t *c, device_t *d, request_t *r, int64_t now)
{
	r->arrival = late_arrival(&c->late, now);
	c->pending++;
	device_submit(d, r);
}

/* Returns false if this is not NBD any more. */
static bool command(conn_t *c, device_t *d, int64_t now)
{
	static const int ops[] = {
		[CMD_READ] = REQ_READ,
		[CMD_WRITE] = REQ_WRITE,
		[CMD_DISC] = -1,
		[CMD_FLUSH] = REQ_FLUSH,
		[CMD_TRIM] = REQ_TRIM,
		[5] = -1,
		[CMD_WRITE_ZEROES] = REQ_ZERO,
	};
	uint16_t type = get16(c->in + 6);
	uint64_t cookie = get64(c->in + 8), off = get64(c->in + 16);
	uint32_t len = get32(c->in + 24);
	int op = type < sizeof(ops) / sizeof(ops[0]) ? ops[type] : -1;
	request_t *r;
	int error = 0;

	if (get32(c->in) != MAGIC_REQUEST)
		return false;
	if (type == CMD_DISC) {
		c->leave = true;
		return true;
	}
	if (type == CMD_WRITE && len > NBD_MOST)
		return false; /* its payload can't be skipped in good order */
	if (op < 0)
		error = EINVAL;
	else if (op != REQ_FLUSH && (len == 0 || off > c->size || len > c->size - off))
		error = op == REQ_READ || len == 0 ? EINVAL : ENOSPC;
	else if (op == REQ_READ && len > NBD_MOST)
		error = EINVAL;
	if (error != 0 && (type != CMD_WRITE || len == 0)) {
		answer(c, cookie, error, NULL, 0);
		return true;
	}
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		abort();
	r->op = (req_op_t)op;
	r->off = op == REQ_FLUSH ? 0 : off;
	r->len = op == REQ_FLUSH ? 0 : len;
	/* Trim and write-zeroes are never volatile here. */
	r->fua = op == REQ_WRITE && (get16(c->in + 4) & CMD_FLAG_FUA) != 0;
	r->owner = c;
	r->cookie = cookie;
	r->error = error;
	if ((op == REQ_READ || op == REQ_WRITE) && (r->data = malloc(len)) == NULL)
		abort();
	if (op == REQ_WRITE) {
		c->writing = r;
		c->phase = PAYLOAD;
		c->want = len;
	} else {
		submit(c, d, r, now);
	}
	return true;
}

/* A piece is complete; returns false if the client can't be served any more. */
static bool piece(conn_t *c, device_t *d, int64_t now)
{
	request_t *r;
	uint32_t len = c->want;

	c->have = 0;
	switch (c->phase) {
	case HELLO:
		if ((get32(c->in) & 1) == 0)
			return false;
		c->no_zeroes = (get32(c->in) & 2) != 0;
		c->phase = OPTION;
		c->want = OPTION_HEADER;
		return true;
	case OPTION:
		if (get64(c->in) != MAGIC_OPTION || get32(c->in + 12) > OPTION_MOST)
			return false;
		c->option = get32(c->in + 8);
		c->want = get32(c->in + 12);
		c->phase = OPTION_DATA;
		return c->want > 0 ? true : option(c, 0);
	case OPTION_DATA:
		return option(c, len);
	case COMMAND:
		return command(c, d, now);
	case PAYLOAD:
		r = c->writing;
		c->writing = NULL;
		c->phase = COMMAND;
		c->want = HEADER;
		if (r->error != 0) {
			answer(c, r->cookie, r->error, NULL, 0);
			request_free(r);
		} else {
			submit(c, d, r, now);
		}
		return true;
	}
	return false;
}

conn_state_t conn_read(conn_t *c, device_t *d, int64_t now)
{
	while (conn_wants_in(c)) {
		uint8_t *to = c->phase == PAYLOAD ? c->writing->data : c->in;
		bool served = c->phase == COMMAND || c->phase == PAYLOAD;
		ssize_t n = recv(c->fd, to + c->have, c->want - c->have, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return CONN_OPEN;
		if (n <= 0)
			return served ? CONN_LOST : CONN_LEFT;
		c->have += (uint32_t)n;
		if (c->have == c->want && !piece(c, d, now)) {
			conn_write(c);
			return served ? CONN_LOST : CONN_LEFT;
		}
	}
	return c->leave ? CONN_LEFT : CONN_OPEN;
}

void conn_write(conn_t *c)
{
	while (c->out_sent < c->out_have) {
		ssize_t n = send(c->fd, c->out + c->out_sent, c->out_have - c->out_sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
			break;
		c->out_sent += (size_t)n;
	}
	c->out_sent = c->out_have = 0;
}
