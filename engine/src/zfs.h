/* OpenZFS's headers and what differs between the versions this engine is written for (2.1 to 2.4). */
#ifndef ZTUNE_ZFS_H
#define ZTUNE_ZFS_H

#include <sys/zfs_context.h>
#include <sys/abd.h>
#include <sys/arc.h>
#include <sys/arc_impl.h>
#include <sys/blkptr.h>
#include <sys/dbuf.h>
#include <sys/dmu.h>
#include <sys/dmu_impl.h>
#include <sys/dmu_objset.h>
#include <sys/dmu_tx.h>
#include <sys/dnode.h>
#include <sys/dsl_dataset.h>
#include <sys/dsl_dir.h>
#include <sys/dsl_pool.h>
#include <sys/dsl_prop.h>
#include <sys/fs/zfs.h>
#include <sys/metaslab.h>
#include <sys/metaslab_impl.h>
#include <sys/spa.h>
#include <sys/spa_impl.h>
#include <sys/txg.h>
#include <sys/txg_impl.h>
#include <sys/vdev.h>
#include <sys/vdev_impl.h>
#include <sys/zap.h>
#include <sys/zfs_rlock.h>
#include <sys/zfs_znode.h>
#include <sys/zil.h>
#include <sys/zil_impl.h>
#include <sys/zio.h>
#include <sys/zio_impl.h>
#include <zfeature_common.h>
#include <zfs_prop.h>

#ifndef OPENZFS_NUMBER
#error "Pass the version: -DOPENZFS_NUMBER=20302 for 2.3.2."
#endif
#if OPENZFS_NUMBER < 20100
#error "OpenZFS 2.1 or later is needed."
#endif

#ifdef HAVE_DMU_TX_WAIT
#define TX_WAIT_FLAG DMU_TX_WAIT
#else
#define TX_WAIT_FLAG TXG_WAIT
#endif

/* Within a function of ours that takes the place of one of the library's: `real`, the library's. */
#define REAL(fn, name) \
	static fn *real; \
	if (real == NULL) \
	real = (fn *)(uintptr_t)dlsym(RTLD_NEXT, name)

/* What the ARC may be larger than its limit before anything is evicted (arc_is_overflowing()). */
#if OPENZFS_NUMBER >= 20300
#define ARC_ALLOWANCE ((int64_t)zfs_max_recordsize)
#else
#define ARC_ALLOWANCE ((int64_t)MAX(SPA_MAXBLOCKSIZE, arc_c >> 8) / 2)
#endif

/* Newer versions can refuse disks that have other sectors than those that are there. */
#ifdef HAVE_ADD_ASHIFT_CHECK
#define SPA_VDEV_ADD(spa, root) spa_vdev_add((spa), (root), B_FALSE)
#else
#define SPA_VDEV_ADD(spa, root) spa_vdev_add((spa), (root))
#endif

/* Range trees got their prefix during 2.3. */
#ifndef HAVE_ZFS_RANGE_TREE
#define zfs_range_seg64_t range_seg64_t
#define zfs_range_tree_walk range_tree_walk
#endif

/* A flush was an ioctl of its own kind before 2.3. */
#if OPENZFS_NUMBER >= 20300
#define ZIO_IS_FLUSH(z) ((z)->io_type == ZIO_TYPE_FLUSH)
#else
#define ZIO_IS_FLUSH(z) ((z)->io_type == ZIO_TYPE_IOCTL)
#endif

/* The transaction group in which a block was written. */
#ifdef BP_GET_BIRTH
#define BP_BIRTH(bp) BP_GET_BIRTH(bp)
#else
#define BP_BIRTH(bp) BP_PHYSICAL_BIRTH(bp)
#endif

#ifdef BP_SET_LOGICAL_BIRTH
#define SET_BIRTH(bp, txg) BP_SET_LOGICAL_BIRTH(bp, txg)
#else
#define SET_BIRTH(bp, txg) ((bp)->blk_birth = (txg))
#endif

/* Newer versions are told by `flags` how much to keep of it; older ones keep all. */
#if OPENZFS_NUMBER >= 20400
#define DN_WRITE(dn, off, len, buf, tx, flags) dmu_write_by_dnode((dn), (off), (len), (buf), (tx), (flags))
#elif OPENZFS_NUMBER >= 20300
#define DN_WRITE(dn, off, len, buf, tx, flags) dmu_write_by_dnode((dn), (off), (len), (buf), (tx))
#else /* could not fail then */
#define DN_WRITE(dn, off, len, buf, tx, flags) (dmu_write_by_dnode((dn), (off), (len), (buf), (tx)), 0)
#endif

#endif
