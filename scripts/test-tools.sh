#!/usr/bin/env bash
# Brings what only the tests use: programs that look for faults in file systems. Not ztune's own needs: those are
# setup.sh's. What can't be had here is named; the tests that need it are skipped and say so.
#
#   SUDO=doas     the command that gives root rights, when it is not sudo
#   VENV=…        the Python environment (default .venv): what is built goes to its bin
set -uo pipefail
cd "$(dirname "$0")/.." || exit

VENV=${VENV:-.venv}
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

say() { printf 'test-tools: %s\n' "$*"; }
lacking() { say "no $1 here: $2; its tests are skipped"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif [ -n "${SUDO:-}" ]; then $SUDO "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else return 1
    fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]; }

# Package and why, as the user is told.
while IFS='|' read -r name why; do
    [ -n "$name" ] || continue
    if ! command -v apt-get >/dev/null; then
        lacking "$name" "only apt-get is known to this script"
    elif ! installed "$name"; then
        say "installing $name with apt-get: $why"
        as_root apt-get install -q -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 "$name" ||
            { as_root apt-get update -q &&
                as_root apt-get install -q -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 "$name"; } ||
            lacking "$name" "apt-get could not install it (above)"
    fi
done <<'LIST'
stress-ng|stresses the mounted file system and checks what it does
lmdb-utils|reads and writes LMDB's files
LIST

# Built from their sources, with a Rust that is there already; a minute each, once.
while IFS='|' read -r name version; do
    [ -n "$name" ] || continue
    [ ! -x "$VENV/bin/$name" ] || continue
    if ! command -v cargo >/dev/null; then
        lacking "$name" "it is built with Rust's cargo"
        continue
    fi
    say "building $name $version with cargo into $VENV"
    cargo install --quiet --locked --root "$VENV" --version "$version" "$name" ||
        lacking "$name" "cargo could not build it (above)"
done <<'LIST'
fsx|0.3.2
pjdfstest|0.2.2
LIST
exit 0
