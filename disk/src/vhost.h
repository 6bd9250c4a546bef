/*
 * A virtio disk for a guest's kernel, over one vhost-user socket: the guest's memory is shared, its requests lie in a ring
 * there.  Nobody stands between the disk and the guest: QEMU's client of NBD answers late where several requests are under
 * way (docs/disks.md).
 */
#ifndef ZTUNE_VHOST_H
#define ZTUNE_VHOST_H

#include "device.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct vhost vhost_t;

vhost_t *vhost_new(int fd, uint64_t size);
void vhost_free(vhost_t *v);

/* Takes in one message of the socket; false: the guest is gone, or makes no sense.  now: the disk's clock. */
bool vhost_message(vhost_t *v, device_t *d, int64_t now);

/* Where the guest says that there are requests; -1 if it has not told yet. */
int vhost_kicks(const vhost_t *v);

/* Takes in what there is in the ring; false: it makes no sense. */
bool vhost_take(vhost_t *v, device_t *d, int64_t now);

/* The answer to a request of this guest. */
void vhost_reply(vhost_t *v, const request_t *r);

/* Whether a request was changed after it was handed in, so that there is no answering it. */
bool vhost_broken(const vhost_t *v);

/* After answers: tells the guest.  How late are we?  More than lag_max is not made up for. */
void vhost_sent(vhost_t *v, int64_t now, int64_t lag_max);

#endif
