#!/usr/bin/env bash
# Brings what only the tests use: programs that look for faults in file systems, and other sides of what ztune speaks. Not ztune's own needs: those are
# setup.sh's. What can't be had here is named; the tests that need it are skipped and say so.
#
#   SUDO=doas     the command that gives root rights, when it is not sudo
#   VENV=…        the Python environment (default .venv): what is built goes to its bin
set -uo pipefail
cd "$(dirname "$0")/.." || exit

VENV=${VENV:-.venv}

say() { printf 'test-tools: %s\n' "$*"; }
lacking() { say "no $1 here: $2; its tests are skipped"; }

. scripts/common.sh

# Package and why, as the user is told.
while IFS='|' read -r name why; do
    [ -n "$name" ] || continue
    if ! command -v apt-get >/dev/null; then
        lacking "$name" "only apt-get is known to this script"
    elif ! installed "$name"; then
        say "installing $name with apt-get: $why"
        apt_install "$name" || { apt_get update && apt_install "$name"; } ||
            lacking "$name" "apt-get could not install it (above)"
    fi
done <<'LIST'
stress-ng|stresses the mounted file system and checks what it does
lmdb-utils|reads and writes LMDB's files
LIST

# The other side of tests with many hosts. They start it themselves, in networks of their own; the system's must
# not listen because of them, now or after a boot.
if ! PATH="$PATH:/usr/sbin" command -v sshd >/dev/null; then
    if ! command -v apt-get >/dev/null; then
        lacking sshd "only apt-get is known to this script"
    elif [ -d /run/systemd/system ] && ! as_root systemctl mask ssh.service ssh.socket >/dev/null 2>&1; then
        lacking sshd "its service can't be masked, and would listen"
    elif [ ! -d /run/systemd/system ] && [ ! -x /usr/sbin/policy-rc.d ]; then
        lacking sshd "installing openssh-server may start it here; install it yourself to run its tests"
    else
        say "installing openssh-server with apt-get, its service masked: tests of many hosts"
        apt_install openssh-server || { apt_get update && apt_install openssh-server; } ||
            lacking sshd "apt-get could not install it (above)"
    fi
fi

# One program out of a package that is not installed: installing it would start a server at each boot.
if ! command -v prometheus >/dev/null && [ ! -x "$VENV/bin/prometheus" ]; then
    if ! command -v apt-get >/dev/null; then
        lacking prometheus "only apt-get is known to this script"
    else
        say "taking prometheus out of its Debian package into $VENV: scrapes ztune observe --metrics"
        folder=$(mktemp -d)
        if (cd "$folder" && apt-get -q download prometheus && dpkg-deb -x prometheus_*.deb .) >/dev/null; then
            install -m 0755 "$folder/usr/bin/prometheus" "$VENV/bin/prometheus"
        else
            lacking prometheus "apt-get could not download it"
        fi
        rm -rf "$folder"
    fi
fi

# Built from their sources, with a Rust that is there already; a minute each, once.
while IFS='|' read -r name version; do
    [ -n "$name" ] || continue
    [ ! -x "$VENV/bin/$name" ] || continue
    if ! command -v cargo >/dev/null; then
        lacking "$name" "it is built with Rust's cargo"
        continue
    fi
    # rustup puts a cargo there that has no Rust yet.
    if ! cargo --version >/dev/null 2>&1; then
        lacking "$name" "cargo is there but does not run ('cargo --version' fails; with rustup: 'rustup default stable')"
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
