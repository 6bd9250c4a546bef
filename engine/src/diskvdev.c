#include "diskvdev.h"

#include <errno.h>
#include <unistd.h>

#if OPENZFS_NUMBER >= 20400
#define CRED_PARAM , __attribute__((unused)) cred_t *cr
#else
#define CRED_PARAM
#endif

static int vd_open(vdev_t *vd, uint64_t *psize, uint64_t *max_psize, uint64_t *logical_ashift,
    uint64_t *physical_ashift CRED_PARAM)
{
	disk_t *d = vd->vdev_tsd;

	if (d == NULL && (d = disks_at(vd->vdev_path)) == NULL) {
		vd->vdev_stat.vs_aux = VDEV_AUX_OPEN_FAILED;
		return ENOENT;
	}
	vd->vdev_tsd = d;
	d->vdev = vd;
	vd->vdev_nonrot = !d->profile->rotational;
	vd->vdev_has_trim = B_FALSE;
	vd->vdev_has_securetrim = B_FALSE;
	*psize = *max_psize = d->size;
	*logical_ashift = *physical_ashift = SPA_MINBLOCKSHIFT;
	return 0;
}

static void vd_close(vdev_t *vd)
{
	disk_t *d = vd->vdev_tsd;

	if (vd->vdev_reopening || d == NULL)
		return;
	if (d->vdev == vd)
		d->vdev = NULL;
	vd->vdev_tsd = NULL;
	vd->vdev_delayed_close = B_FALSE;
}

int disk_file_io(int fd, zio_t *z)
{
	bool write = z->io_type == ZIO_TYPE_WRITE;
	uint8_t *buf = write ? abd_borrow_buf_copy(z->io_abd, z->io_size) : abd_borrow_buf(z->io_abd, z->io_size);
	uint64_t done = 0;
	int error = 0;

	while (done < z->io_size && error == 0) {
		off_t at = (off_t)(z->io_offset + done);
		ssize_t n = write ? pwrite(fd, buf + done, z->io_size - done, at)
				  : pread(fd, buf + done, z->io_size - done, at);

		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0)
			error = -1;
		else if (errno != EINTR)
			error = errno;
	}
	if (write)
		abd_return_buf(z->io_abd, buf, z->io_size);
	else
		abd_return_buf_copy(z->io_abd, buf, z->io_size);
	return error;
}

/* Is there anything to do for the disk? */
static bool concerns(const zio_t *z)
{
	const disk_t *d = z->io_vd->vdev_tsd;

	return ZIO_IS_FLUSH(z) || (z->io_type != ZIO_TYPE_TRIM && z->io_offset + z->io_size <= d->size);
}

static void vd_io_start(zio_t *z)
{
	if (concerns(z)) {
		disk_begin(z, z->io_vd->vdev_tsd);
		return;
	}
	if (z->io_type != ZIO_TYPE_TRIM)
		z->io_error = SET_ERROR(EINVAL);
	zio_interrupt(z);
}

static void vd_io_done(zio_t *z)
{
	/* A part of an aggregated I/O never began by itself; what stands in a queue for others has nothing to end. */
	if (!(z->io_flags & ZIO_FLAG_IO_BYPASS) && concerns(z))
		disk_end();
}

static void vd_hold(vdev_t *vd)
{
	(void)vd;
}

#if OPENZFS_NUMBER >= 20400
#define VD_ASIZE .vdev_op_psize_to_asize = vdev_default_asize, .vdev_op_asize_to_psize = vdev_default_psize
#else
#define VD_ASIZE .vdev_op_asize = vdev_default_asize
#endif

#define VD_OPS(type) \
	{ \
		.vdev_op_open = vd_open, \
		.vdev_op_close = vd_close, \
		VD_ASIZE, \
		.vdev_op_min_asize = vdev_default_min_asize, \
		.vdev_op_io_start = vd_io_start, \
		.vdev_op_io_done = vd_io_done, \
		.vdev_op_hold = vd_hold, \
		.vdev_op_rele = vd_hold, \
		.vdev_op_xlate = vdev_default_xlate, \
		.vdev_op_type = type, \
		.vdev_op_leaf = B_TRUE, \
	}

/* The library's table of vdev types finds these instead of its own. */
vdev_ops_t vdev_file_ops = VD_OPS(VDEV_TYPE_FILE);
vdev_ops_t vdev_disk_ops = VD_OPS(VDEV_TYPE_DISK);
