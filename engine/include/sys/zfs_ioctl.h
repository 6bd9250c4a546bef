/*
 * Some packages install this header in the wrong place or not at all.  The real one is used where it can be found.
 */
#if __has_include_next(<sys/zfs_ioctl.h>)
#include_next <sys/zfs_ioctl.h>
#elif __has_include(<zfs_ioctl.h>)
#include <zfs_ioctl.h>
#else
/* dmu_impl.h includes it; the engine uses nothing from it, these names only have to exist as types. */
struct drr_begin;
struct zfs_cmd;
typedef struct zfs_cmd zfs_cmd_t;
#endif
