#!/usr/bin/env bash
# Installs what ztune needs on Debian and Ubuntu, and builds it: system packages, a Python environment in .venv,
# the replay engine, the mount, the eBPF recorder. Says what it installs and why. A second run finds everything there and ends
# within seconds.
#
#   scripts/setup.sh        what `make setup` and `make demo` need
#   scripts/setup.sh programs   only what the programs of an installed ztune are built with (`ztune setup programs`)
#   scripts/setup.sh lab    besides, what the lab (`ztune lab`) needs: QEMU and file system tools; builds nothing
#
# Nothing that the host already has is removed, downgraded or reconfigured; no PostgreSQL cluster is created.
#
#   SUDO=doas     the command that gives root rights, when it is not sudo
#   PYTHON=…      the Python to use (3.11 or newer)
#   VENV=…        where the Python environment goes (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
part=${1:-all}

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 3; }
. scripts/common.sh

case "$part" in all | programs | lab) ;; *) fail "unknown part '$part': leave it out, or say programs or lab." ;; esac

# --- who and where we are ------------------------------------------------------------------------------------------

command -v apt-get >/dev/null ||
    fail "this set-up knows Debian and Ubuntu (apt). Elsewhere install what docs/setup.md lists, then run 'make build'."
# shellcheck disable=SC1091
. /etc/os-release
: "${VERSION_CODENAME:?/etc/os-release names no release}"

version_of() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null; }
# The versions of a package that could be installed, newest first.
versions() {
    apt-cache madison "$1" 2>/dev/null | awk -F'|' '!/Sources$/ { gsub(/ /, "", $2); print $2 }' | sort -ruV
}

updated=no
apt_update() {
    [ "$updated" = no ] || return 0
    say "reading the package lists (apt-get update)"
    apt_get update || fail "'apt-get update' failed (above): mend the apt sources or the network and run 'make setup' again."
    updated=yes
}

# --- the OpenZFS library: contrib and backports on Debian, universe on Ubuntu -----------------------------------------

component=contrib backports=""
case "${ID:-}:$VERSION_CODENAME" in
    debian:bookworm) backports=bookworm-backports ;; # 12 itself has OpenZFS 2.1
    debian:*) ;;
    ubuntu:*) component=universe ;;
    *)
        case " ${ID_LIKE:-} " in
            *" ubuntu "*) component=universe VERSION_CODENAME=${UBUNTU_CODENAME:-$VERSION_CODENAME} ;;
            *" debian "*) VERSION_CODENAME=${DEBIAN_CODENAME:-$VERSION_CODENAME} ;;
            *) fail "this set-up knows Debian and Ubuntu, not '${ID:-?}'. Install what docs/setup.md lists, then run 'make build'." ;;
        esac
        ;;
esac

add_source() {
    local want have=/etc/apt/sources.list.d/ztune.sources
    want=$(scripts/apt-source.sh /etc/apt "$VERSION_CODENAME" "$component" "$backports") ||
        fail "no apt source for '$VERSION_CODENAME main' was found below /etc/apt, so there is nothing to derive one for $component from."
    [ -n "$want" ] || return 0
    [ "$want" != "$(cat "$have" 2>/dev/null)" ] || return 0
    say "the OpenZFS library is in $component${backports:+ and (version 2.3) in $backports}: adding $have, derived from this machine's own sources:"
    printf '%s\n' "$want" | sed 's/^/setup:     /'
    printf '%s\n' "$want" | as_root tee "$have" >/dev/null
    as_root chmod 0644 "$have"
    apt_update
}

# The library, all of one version. Packages of a ZFS that the host uses are tied to each other by exact version: ours
# must be of that version then.
zfs_packages() {
    local host version=""
    for host in zfsutils-linux zfs-zed libnvpair3linux libuutil3linux; do
        if installed "$host"; then version=$(version_of "$host"); break; fi
    done
    if [ -z "$version" ]; then
        version=$(versions libzfslinux-dev | head -1)
        [ -n "$version" ] || fail "apt knows no package libzfslinux-dev, the OpenZFS library, not even with $component${backports:+ and $backports}."
    elif ! versions libzfslinux-dev | grep -qxF "$version"; then
        fail "this host has OpenZFS $version ($host), but apt offers no libzfslinux-dev of that version; install the one that goes with your ZFS and run 'make setup' again."
    fi
    echo "libzfslinux-dev=$version"
    # What it needs of its own version: named, or apt would take the release's own candidates and give up.
    apt-cache show "libzfslinux-dev=$version" | sed -n 's/^Depends: //p' | tr ',' '\n' |
        sed -n "s/^ *\([a-z0-9.+-]*\) (= [^)]*)\$/\1=$version/p" | sort -u
}

# --- everything else ------------------------------------------------------------------------------------------------

# Package and why, as the user is told.
reasons="
gcc|builds the engine and the recorder
make|builds the engine and the recorder
libc6-dev|builds the engine and the recorder
pkg-config|finds the libraries to build against
libjansson-dev|JSON for the engine
libfuse3-dev|builds the mount
libjemalloc-dev|builds the mount
fuse3|lets users without root mount
clang|compiles the eBPF recorder
llvm|compiles the eBPF recorder
libbpf-dev|loads the eBPF recorder
libelf-dev|loads the eBPF recorder
zlib1g-dev|loads the eBPF recorder
strace|records where eBPF is not allowed
fio|checks the recorders against a known load
postgresql|the database of the demo
python3|ztune itself
python3-venv|a Python environment of its own
"
lab_reasons="
gcc|compiles the OpenZFS module and the guest's first process
make|compiles the OpenZFS module
libc6-dev|the guest's first process is linked with it
qemu-system-x86|runs the lab's guest
flex|compiles a kernel that runs in user mode, where KVM does not work
bison|compiles a kernel that runs in user mode
bc|compiles a kernel that runs in user mode
zstd|packs the guest's saved state
e2fsprogs|ext4, for the guest's scratch disk and as a baseline
xfsprogs|xfs, as a baseline
bpftrace|two of the probes: sizes of calls, system calls
"
case "$part" in
    programs) reasons=$(grep -Ev '^(python3|postgresql|fio)' <<<"$reasons") ;;
    lab) reasons=$lab_reasons ;;
esac
missing() {
    local name why
    while IFS='|' read -r name why; do
        # fuse3 would take the place of FUSE 2, which somebody here uses: root mounts without it.
        if [ "$name" = fuse3 ] && installed fuse; then continue; fi
        [ -z "$name" ] || installed "$name" || printf '%s|%s\n' "$name" "$why"
    done <<<"$reasons"
}

without_cluster() {
    # Debian's package makes and starts a cluster for everybody; ztune makes its own. Only while ours is installed,
    # and only if PostgreSQL isn't there already.
    local file=/etc/postgresql-common/createcluster.d/ztune.conf status=0
    if installed postgresql-common; then "$@"; return; fi
    as_root mkdir -p "${file%/*}"
    echo "create_main_cluster = false" | as_root tee "$file" >/dev/null
    "$@" || status=$?
    as_root rm -f "$file"
    return $status
}

install_packages() {
    local lacking zfs="" names
    lacking=$(missing)
    if [ -z "$lacking" ] && { [ "$part" = lab ] || installed libzfslinux-dev; }; then
        if [ "$part" != lab ]; then say "system packages: all there (OpenZFS library $(version_of libzfslinux-dev))"
        else say "system packages for the lab: all there"
        fi
        return
    fi
    need_root || exit
    if [ "$part" != lab ] && ! installed libzfslinux-dev; then
        add_source
        [ -n "$(versions libzfslinux-dev)" ] || apt_update
        # An assignment of its own: a failure inside must end the script.
        zfs=$(zfs_packages)
        lacking=$(printf '%s\n%s' "$lacking" "$(printf '%s\n' "$zfs" | sed 's/$/|OpenZFS in user space, for the engine/')")
    fi
    lacking=$(sed '/^$/d' <<<"$lacking")
    say "installing with apt-get:"
    awk -F'|' '{ printf "setup:     %-34s %s\n", $1, $2 }' <<<"$lacking"
    mapfile -t names < <(cut -d'|' -f1 <<<"$lacking")
    for name in "${names[@]}"; do
        # Nothing known of it: the lists are missing or too old.
        if [ -z "$(versions "${name%%=*}" | head -1)" ]; then apt_update; break; fi
    done
    grep -q '^postgresql|' <<<"$lacking" && ! installed postgresql-common &&
        say "no PostgreSQL cluster is created on this host; ztune makes its own for each run and removes it"
    without_cluster apt_install "${names[@]}" && return
    # Lists that are a few days old name files that are gone.
    [ "$updated" = no ] || fail "apt-get could not install the packages (above)."
    apt_update
    without_cluster apt_install "${names[@]}" || fail "apt-get could not install the packages (above)."
}

# --- Python -----------------------------------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "ztune needs Python 3.11 or newer with the venv module; this machine has $(python3 --version 2>/dev/null || echo none). Install one (such as python3.11 and python3.11-venv) and run 'make setup' again."
}

install_python() {
    local python stamp want
    stamp=$VENV/.ztune-setup
    want=$(cat pyproject.toml <(pwd -P) | sha256sum | cut -d' ' -f1)
    if [ -x "$VENV/bin/ztune" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$VENV/bin/python" -c '' 2>/dev/null; then
        say "Python environment: $VENV is up to date"
        return
    fi
    python=$(find_python)
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        say "making a Python environment in $VENV with $("$python" --version)"
        "$python" -m venv --clear "$VENV"
    fi
    say "installing ztune and the Python packages that pyproject.toml names into $VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -e '.[dev]' ||
        fail "pip could not install the Python packages (above)."
    # Polars' usual build takes a processor with AVX2 and its like, which many virtual machines do not show.
    if "$VENV/bin/python" -W error::RuntimeWarning -c 'import polars' 2>&1 | grep -q 'Missing required CPU features'; then
        say "this processor has no AVX2 or its like: adding the build of Polars that does without"
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input 'polars[rtcompat]' ||
            fail "pip could not install polars[rtcompat] (above)."
    fi
    # Its bytecode is this user's, then, also if sudo runs ztune first.
    "$VENV/bin/python" -c 'import ztune' || fail "$VENV can't import ztune (above)."
    echo "$want" >"$stamp"
}

# --- go ----------------------------------------------------------------------------------------------------------------

install_packages
[ "$part" = all ] || exit 0
install_python
say "building the engine, the mount, the recorder and the shaped disk"
"${MAKE:-make}" --no-print-directory build
say "done: try '$VENV/bin/ztune doctor'"
