#!/bin/sh
# Empties engine/build and mount/build if they were made for another version of the OpenZFS library than is installed
# now: structures differ between versions, and make sees no file change.
set -eu
cd "$(dirname "$0")/../engine"
now=$(dpkg-query -W -f '${Version}' libzfslinux-dev 2>/dev/null || pkg-config --modversion libzfs 2>/dev/null || echo unknown)
if [ -d build ] && [ -f build/.openzfs ] && [ "$(cat build/.openzfs)" != "$now" ]; then
    echo "setup: the OpenZFS library is now $now: building the engine and the mount anew"
    rm -rf build ../mount/build
fi
mkdir -p build
[ "$(cat build/.openzfs 2>/dev/null || true)" = "$now" ] || echo "$now" >build/.openzfs
