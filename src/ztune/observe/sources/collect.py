"""What was read so far, from one file or several: sums that become an Observation at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import ztune
from ztune.observe.histograms import added, bucket, total
from ztune.observe.model import (
    Buckets,
    Group,
    Observation,
    ObservedCall,
    ObservedDisk,
    ObservedPool,
    ObservedTransfers,
    ObservedZfs,
    Syncs,
)
from ztune.onhost.words import ROLES
from ztune.trace.roles import RoleRules

GroupKind = Literal["role", "file", "call", "device"]
NO_ROLE: Final = "none"

READ_CALLS: Final = frozenset({"read", "pread", "pread64", "readv", "preadv", "preadv2", "preadv64"})
WRITE_CALLS: Final = frozenset({"write", "pwrite", "pwrite64", "writev", "pwritev", "pwritev2", "pwritev64"})
SYNC_CALLS: Final = frozenset(
    {"fsync", "fdatasync", "fdsync", "sync", "syncfs", "msync", "sync_file_range", "fcntl_fullfsync"}
)

# Lucene is an index, and is what people call its files.
_ROLE_WORDS: Final = {**{role: role for role in ROLES}, "lucene": "index"}


def add(into: Buckets, more: Mapping[int, int]) -> None:
    """Add one histogram to another."""
    for low, n in more.items():
        if n:
            into[low] = into.get(low, 0) + n


def plus(one: int | None, other: int | None) -> int | None:
    """Return the sum of what is known; None if nothing is."""
    return other if one is None else one if other is None else one + other


_OF_EACH_CALL: Final = (
    "bytes",
    "latency_total",
    "sequential",
    "aligned",
    "overwritten",
    "synced",
    "direct",
)


def add_transfers(into: ObservedTransfers, more: ObservedTransfers) -> None:
    """Add other ones of the same group. What is not known of some calls is not known of all."""
    for name in _OF_EACH_CALL:
        ours, theirs = getattr(into, name), getattr(more, name)
        spoilt = into.calls and more.calls and (ours is None or theirs is None)
        setattr(into, name, None if spoilt else plus(ours, theirs))
    into.calls += more.calls
    add(into.sizes, more.sizes)
    add(into.latency, more.latency)


def add_syncs(into: Syncs, more: Syncs) -> None:
    """Add other ones of the same group."""
    into.calls += more.calls
    add(into.latency, more.latency)
    into.latency_total = plus(into.latency_total, more.latency_total)


def count_call(into: ObservedTransfers | Syncs, ns: int | None) -> None:
    """Add one call, which took ``ns``; None: that is not known."""
    into.calls += 1
    if ns is not None:
        add(into.latency, {bucket(ns): 1})
        into.latency_total = (into.latency_total or 0) + ns


def _finish(part: ObservedTransfers | Syncs) -> None:
    """Order the histograms; calls that only a histogram counted are counted by it."""
    part.latency = ordered(part.latency)
    part.calls = max(part.calls, total(part.latency))
    if isinstance(part, ObservedTransfers):
        part.sizes = ordered(part.sizes)
        part.calls = max(part.calls, total(part.sizes))


class Collected:
    """Everything that was read. ``done`` makes the document of it."""

    def __init__(self, rules: RoleRules) -> None:
        self.rules = rules
        self.groups: dict[tuple[GroupKind, str, str | None, str | None], Group] = {}
        self.calls: dict[str, ObservedCall] = {}
        self.pools: dict[str, ObservedPool] = {}
        self.disks: dict[str, ObservedDisk] = {}
        self.limits: list[str] = []
        self.seconds: float | None = None
        self.platform: str | None = None
        self.begun: str | None = None
        self.pieces = 0
        """How often something was entered: 0 tells that a file held nothing."""

    def limit(self, sentence: str) -> None:
        """Say once what is not known, and why."""
        if sentence not in self.limits:
            self.limits.append(sentence)

    def lasted(self, seconds: float | None) -> None:
        """Enter the length of a window; of several files the longest counts: they are of the same time."""
        if seconds is not None and seconds > 0:
            self.seconds = max(self.seconds or 0.0, round(seconds, 6))

    def group(self, kind: GroupKind, name: str, role: str | None = None, pool: str | None = None) -> Group:
        """Return the sums of a group, new ones if there were none."""
        self.pieces += 1
        key = (kind, name, role, pool)
        return self.groups.setdefault(key, Group(kind=kind, name=name, role=role, pool=pool))

    def enter(
        self,
        *,
        path: str | None,
        call: str | None,
        role: str | None,
        reads: ObservedTransfers | None = None,
        writes: ObservedTransfers | None = None,
        syncs: Syncs | None = None,
    ) -> None:
        """Add to the groups of their role, their file and their call."""
        places = [self.group("role", role or NO_ROLE, role)]
        if path is not None:
            places.append(self.group("file", path, role))
        if call is not None:
            places.append(self.group("call", call, role))
        for place in places:
            add_transfers(place.reads, reads or ObservedTransfers())
            add_transfers(place.writes, writes or ObservedTransfers())
            add_syncs(place.syncs, syncs or Syncs())

    def call(
        self,
        name: str,
        calls: int,
        seconds: float | None = None,
        errors: int | None = None,
        latency: Mapping[int, int] | None = None,
    ) -> None:
        """Add to the sums of a system call over all processes."""
        self.pieces += 1
        sums = self.calls.setdefault(name, ObservedCall(name=name, calls=0))
        sums.calls += calls
        add(sums.latency, latency or {})
        sums.errors = plus(sums.errors, errors)
        if seconds is not None:
            sums.seconds = (sums.seconds or 0.0) + seconds

    def pool(self, name: str) -> ObservedPool:
        """Return the sums of a pool's histograms."""
        self.pieces += 1
        return self.pools.setdefault(name, ObservedPool(name=name))

    def role(self, key: str) -> str | None:
        """Return the role of a path or other key: the user's rules, then its own name, then known layouts."""
        for rule in reversed(self.rules.rules):
            if rule.matches(key):
                return rule.role
        return role_word(key) or self.rules.role(key)

    def add_observation(self, other: Observation, name: str) -> None:
        """Add another document's groups, calls, disks and pools' histograms; the rest can't be added up."""
        self.pieces += 1
        for group in other.groups:
            ours = self.group(group.kind, group.name, group.role, group.pool)
            add_transfers(ours.reads, group.reads)
            add_transfers(ours.writes, group.writes)
            add_syncs(ours.syncs, group.syncs)
            ours.dataset = ours.dataset or group.dataset
            ours.filesystem = ours.filesystem or group.filesystem
        for call in other.calls:
            self.call(call.name, call.calls, call.seconds, call.errors, call.latency)
        for pool in other.zfs.pools if other.zfs else ():
            sums = self.pool(pool.name)
            for name in ("request_sizes", "latencies"):
                for column, buckets in getattr(pool, name).items():
                    add(getattr(sums, name).setdefault(column, {}), buckets)
        for disk in other.disks:
            self.disks.setdefault(disk.name, disk)
        self.lasted(other.seconds)
        self.platform, self.begun = self.platform or other.platform, self.begun or other.begun
        for sentence in other.limits:
            self.limit(sentence)
        self.limit(
            f"{name}: read beside other files, so only its groups, calls, "
            "disks and the histograms of its pools were taken; read it alone for the rest."
        )

    def done(self, subject: str) -> Observation:
        """Return the document."""
        for group in self.groups.values():
            for part in (group.reads, group.writes, group.syncs):
                _finish(part)
        for call in self.calls.values():
            call.latency = ordered(call.latency)
        for pool in self.pools.values():
            for histograms in (pool.request_sizes, pool.latencies):
                histograms.update({column: ordered(buckets) for column, buckets in histograms.items()})
        calls = sorted(self.calls.values(), key=lambda call: (-(call.seconds or 0.0), -call.calls, call.name))
        return Observation(
            ztune=ztune.__version__,
            source="files",
            subject=subject,
            platform=self.platform,
            begun=self.begun,
            seconds=self.seconds,
            groups=tuple(self.groups.values()),
            calls=tuple(calls),
            disks=tuple(self.disks.values()),
            zfs=ObservedZfs(version="unknown", pools=tuple(self.pools.values())) if self.pools else None,
            limits=tuple(self.limits),
        )


def ordered(buckets: Mapping[int, int]) -> Buckets:
    """Return a histogram by rising bound."""
    return added([buckets])


def role_word(key: str) -> str | None:
    """Return the role that a plain key begins with: "wal", "data_pwrite", "backup-write"; None for paths."""
    if "/" in key:
        return None
    return _ROLE_WORDS.get(re.split(r"[\s_.:-]", key.strip().lower(), maxsplit=1)[0])


def plain_call(name: str) -> str:
    """Return a system call's own name: write for "sys_enter_write", "write_nocancel" and their like."""
    name = re.sub(r"^.*\bsys_(?:enter|exit)_", "", name)
    name = re.sub(r"^[\w-]*syscall:[^:]*:([^:]+):(?:entry|return)$", r"\1", name)
    name = re.sub(r"^(?:[kf](?:ret)?(?:probe|unc|entry|exit):)?(?:__x64_|__arm64_)?(?:__)?sys_", "", name)
    return name.removesuffix("_nocancel")


def direction(name: str) -> Literal["read", "write", "sync"] | None:
    """Return what a system call does to a file; None for those that move nothing."""
    name = plain_call(name)
    if name in READ_CALLS:
        return "read"
    if name in WRITE_CALLS:
        return "write"
    return "sync" if name in SYNC_CALLS else None
