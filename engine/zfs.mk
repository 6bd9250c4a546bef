# How to build against the OpenZFS library of this machine: included by the engine's Makefile and the mount's, which
# set ENGINE to this directory.
#
# Debian's and Ubuntu's libzpool is a DEBUG build: DEBUG and ZFS_DEBUG must be set here too, or the layouts of some
# structures silently differ (the engine's selfcheck tests it).

# Another OpenZFS than this machine's: ZFS_ROOT is a directory with its packages unpacked, and those of all that it
# needs, C library included (scripts/openzfs.sh). What is built takes headers, libraries and loader from there alone.
ifneq ($(ZFS_ROOT),)
CC := $(CC) --sysroot=$(ZFS_ROOT)
ZFS_LIBDIR := $(ZFS_ROOT)/usr/lib/$(shell $(CC) -print-multiarch)
PKG_CONFIG := PKG_CONFIG_SYSROOT_DIR=$(ZFS_ROOT) PKG_CONFIG_LIBDIR=$(ZFS_LIBDIR)/pkgconfig:$(ZFS_ROOT)/usr/share/pkgconfig $(PKG_CONFIG)
# --disable-new-dtags: where the libraries' own libraries are looked for, too.
ZFS_LIBS = -Wl,--disable-new-dtags,-rpath=$(ZFS_LIBDIR) \
	-Wl,--dynamic-linker=$(firstword $(wildcard $(ZFS_ROOT)/lib64/ld-linux-*.so.* $(ZFS_ROOT)/lib/ld-linux-*.so.*)) -lzpool -lnvpair
endif

ZFS_VERSION := $(shell $(PKG_CONFIG) --modversion libzfs 2>/dev/null | sed 's/[^0-9.].*//')
ifeq ($(ZFS_VERSION)$(ZFS_ROOT),)
ZFS_VERSION := $(shell dpkg-query -W -f '$${Version}' libzfslinux-dev 2>/dev/null | sed 's/[^0-9.].*//')
endif
ZFS_CFLAGS ?= $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags libzfs 2>/dev/null))
# One directory with OpenZFS headers, to see which names they define.
ZFS_HEADERS := $(firstword $(patsubst -isystem,,$(ZFS_CFLAGS)))
ZFS_LIBS ?= -lzpool -lnvpair
JANSSON_CFLAGS := $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags jansson 2>/dev/null))
JANSSON_LIBS := $(shell $(PKG_CONFIG) --libs jansson 2>/dev/null || echo -ljansson)
ZTUNE_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' $(ENGINE)/../pyproject.toml 2>/dev/null | head -1)
ver = $(word $(1),$(subst ., ,$(ZFS_VERSION)))
ZFS_NUMBER := $(shell expr $(or $(call ver,1),0) \* 10000 + $(or $(call ver,2),0) \* 100 + $(or $(call ver,3),0))

WARN = -Wall -Wextra -Werror
BASE = -std=gnu99 -O2 -g -pthread -D_GNU_SOURCE $(WARN) -MMD -MP
ZDEFS = -DDEBUG -UNDEBUG -DZFS_DEBUG -DOPENZFS_STRING='"$(ZFS_VERSION)"' -DOPENZFS_NUMBER=$(ZFS_NUMBER) \
	$(if $(shell grep -lsE '(define.|^[[:space:]]*)DMU_TX_WAIT' $(addsuffix /sys/dmu.h,$(ZFS_HEADERS))),-DHAVE_DMU_TX_WAIT) \
	$(if $(shell grep -ls zfs_range_seg64_t $(addsuffix /sys/vdev.h,$(ZFS_HEADERS))),-DHAVE_ZFS_RANGE_TREE) \
	$(if $(shell grep -ls 'spa_vdev_add.*boolean_t' $(addsuffix /sys/spa.h,$(ZFS_HEADERS))),-DHAVE_ADD_ASHIFT_CHECK)
ZINC = -isystem $(ENGINE)/include $(ZFS_CFLAGS) -isystem $(ZFS_ROOT)/usr/include/libzpool $(JANSSON_CFLAGS)

check-zfs-tools:
	@test -n "$(ZFS_VERSION)" || { echo "The OpenZFS headers were not found: install libzfslinux-dev (Debian: contrib, better from backports)." >&2; exit 3; }
	@echo '#include <jansson.h>' | $(CC) $(JANSSON_CFLAGS) -E - >/dev/null 2>&1 || { echo "jansson.h was not found: install libjansson-dev." >&2; exit 3; }
	@command -v $(firstword $(CC)) >/dev/null || { echo "No C compiler: install gcc." >&2; exit 3; }

.PHONY: check-zfs-tools
