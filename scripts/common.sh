#!/usr/bin/env bash
# What setup.sh and test-tools.sh share; they read it, and name themselves by `say`.

export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

need_root() {
    [ "$(id -u)" = 0 ] || [ -n "${SUDO:-}" ] || command -v sudo >/dev/null && return
    say "installing packages needs root: run 'make setup' as root, or install sudo, or set SUDO to what you use instead." >&2
    return 3
}

as_root() {
    need_root || return
    if [ "$(id -u)" = 0 ]; then "$@"; else ${SUDO:-sudo} "$@"; fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]; }

# apt-get as root. While another one has the locks it is waited for, and that is said once. Not left to apt's
# DPkg::Lock::Timeout, which waits for the lock of the packages but not for that of the lists.
apt_get() {
    local errors status waiting=no end=$((SECONDS + 600))
    while :; do
        status=0
        { errors=$(as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 apt-get -q "$@" </dev/null 2>&1 >&3) || status=$?; } 3>&1
        if [ "$status" = 0 ] || [[ $errors != *"Could not get lock"* ]] || [ "$SECONDS" -ge "$end" ]; then break; fi
        [ "$waiting" = yes ] || say "another apt is at work on this machine: waiting for it, at most ten minutes"
        waiting=yes
        sleep 5
    done
    [ -z "$errors" ] || printf '%s\n' "$errors" >&2
    return "$status"
}

# --noremove: a package of the host is never sacrificed. Its apt.conf may say otherwise; this is ours.
apt_install() {
    apt_get install -y --no-install-recommends --no-remove \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
        -o Dpkg::Use-Pty=0 -o APT::Get::Assume-Yes=true "$@"
}
