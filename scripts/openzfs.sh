#!/usr/bin/env bash
# Brings another version of the OpenZFS library than this machine's: Debian's packages of it and of all that it needs,
# down to the C library, unpacked into a directory. Nothing is installed, apt's own lists and sources stay as they are,
# and no root is needed. Where Debian's archive is, and its key, is what this machine's own sources say.
#
#   openzfs.sh DIR VERSION SUITE
#
# DIR      made; afterwards DIR/root holds what was unpacked, and DIR/version says the package's version
# VERSION  of OpenZFS, or its beginning: 2.4
# SUITE    of Debian, that has it: trixie-backports
#
#   ETC=…    in place of /etc
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
etc=${ETC:-/etc}
export LC_ALL=C.UTF-8

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 3; }

[ $# = 3 ] || { echo "usage: openzfs.sh DIR VERSION SUITE" >&2; exit 2; }
dir=$1 wanted=$2 suite=$3 suites=${3%-backports}
[ "$suite" = "$suites" ] || suites="$suites $suite"

for tool in apt-get dpkg-deb tar flock; do
    command -v "$tool" >/dev/null || fail "OpenZFS $wanted is unpacked from Debian's packages, and there is no $tool here."
done
# shellcheck disable=SC1091
. "$etc/os-release"
case "${ID:-}:${DEBIAN_CODENAME:-}" in
    debian:*) release=${VERSION_CODENAME:-} ;;
    *:?*) release=$DEBIAN_CODENAME ;;
    *) fail "OpenZFS $wanted comes from Debian's archive, which this system (${ID:-unknown}) has no source and no key of: only its own OpenZFS can be used here." ;;
esac

mkdir -p "${dir%/*}"
exec 9>"$dir.lock"
flock 9
# What an older ztune unpacked for the engine alone lacks what the mount is built with.
if [ -e "$dir/version" ] && [ -e "$dir/root/usr/include/fuse3" ]; then
    say "OpenZFS $(cat "$dir/version") is unpacked in $dir"
    exit 0
fi
rm -rf "$dir"
mkdir -p "$dir"/lists/partial "$dir"/cache/archives/partial "$dir"/sources "$dir"/packages "$dir"/root/usr/lib{,32,64}
trap '[ -e "$dir/version" ] || rm -rf "$dir"' EXIT

sh "$here/apt-source.sh" "$etc/apt" "${release:-unknown}" contrib --only "$suites" >"$dir/sources/debian.sources" ||
    fail "OpenZFS $wanted is in Debian's $suite, and $etc/apt has no source of Debian to derive that one from."
: >"$dir/status"
# No package counts as installed, so that apt names all that is needed.
cat >"$dir/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$dir/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$dir";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
END

# What apt says is kept, and shown where it fails: its first error.
apt() {
    apt-get -c "$dir/apt.conf" -q "$@" </dev/null 2>"$dir/errors" ||
        fail "OpenZFS $wanted can't be had from Debian's $suite: $(grep -m1 '^E:' "$dir/errors" || echo "apt-get failed")"
}

say "reading the package lists of Debian's $suites, apart from this machine's own"
apt update >/dev/null
# One for each line: NAME=VERSION.
plan=$(apt -s -t "$suite" install libzfslinux-dev libc6-dev libjansson-dev libfuse3-dev libjemalloc-dev | sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1=\2/p')
version=$(sed -n 's/^libzfslinux-dev=//p' <<<"$plan")
[ -n "$version" ] || fail "OpenZFS $wanted can't be had from Debian's $suite: apt-get names no libzfslinux-dev there."
case "${version%%[!0-9.]*}." in
    "$wanted".*) ;;
    *) fail "Debian's $suite has OpenZFS ${version%%[!0-9.]*} now, not $wanted." ;;
esac
mapfile -t packages <<<"$plan"
say "fetching ${#packages[@]} packages, to be unpacked in $dir and not installed:"
printf '%s ' "${packages[@]}" | fold -s -w 100 | sed 's/^/setup:     /; s/ *$//'
echo
(cd "$dir/packages" && apt download "${packages[@]}" >/dev/null)

for name in lib lib32 lib64; do ln -s "usr/$name" "$dir/root/$name"; done
for package in "$dir"/packages/*.deb; do
    # Not `dpkg-deb -x`, which would put a directory in the place of one of these links.
    dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$dir/root" --no-same-owner --keep-directory-symlink --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' ||
        fail "${package##*/} can't be unpacked."
done
# A link to /lib/… means the one in here.
find "$dir/root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -sfrn "$dir/root$(readlink "$link")" "$link"
done
rm -rf "$dir"/{packages,cache,lists,sources,status,errors,apt.conf}
echo "$version" >"$dir/version.new"
mv "$dir/version.new" "$dir/version"
say "OpenZFS $version is unpacked in $dir"
