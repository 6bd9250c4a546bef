/* The NBD protocol (fixed newstyle handshake, simple replies) over one unix stream socket. */
#ifndef ZTUNE_NBD_H
#define ZTUNE_NBD_H

#include "device.h"
#include "late.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NBD_MOST (32u << 20) /* longest request */
#define NBD_PENDING 256      /* requests of one connection that are taken on at the same time */

typedef enum {
	CONN_OPEN,
	CONN_LEFT, /* said goodbye, or never got as far as reading or writing */
	CONN_LOST  /* gone without a word: a power cut */
} conn_state_t;

typedef struct conn {
	int fd;
	bool rotational;
	uint64_t size;
	enum { HELLO, OPTION, OPTION_DATA, COMMAND, PAYLOAD } phase;
	bool no_zeroes, leave;
	uint8_t *in; /* handshake and headers */
	uint32_t have, want, option;
	request_t *writing; /* its payload is coming in */
	uint32_t pending;
	uint8_t *out;
	size_t out_have, out_sent, out_room;
	late_t late;
	struct conn *next;
} conn_t;

conn_t *conn_new(int fd, uint64_t size, bool rotational);
void conn_free(conn_t *c);

/* Takes in what there is; requests go to the device. now: the disk's clock. */
conn_state_t conn_read(conn_t *c, device_t *d, int64_t now);

/* Sends what is waiting. Whether the client is gone, conn_read finds out: he may have said goodbye first. */
void conn_write(conn_t *c);

/* The answer to a request of this connection; it is sent by conn_write. */
void conn_reply(conn_t *c, const request_t *r);

/* After conn_write: how late are we? More than lag_max is not made up for. */
void conn_sent(conn_t *c, int64_t now, int64_t lag_max);

bool conn_wants_in(const conn_t *c);
bool conn_wants_out(const conn_t *c);

#endif
