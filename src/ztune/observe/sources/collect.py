"""What was read so far, from one file or several: sums that become an Observation at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import ztune
from ztune.observe.histograms import added, total
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


@dataclass
class TransferSums:
    """Reads or writes so far. See ``model.ObservedTransfers`` for the fields."""

    calls: int = 0
    bytes: int | None = None
    sizes: Buckets = field(default_factory=dict)
    latency: Buckets = field(default_factory=dict)
    latency_total: int | None = None
    sequential: int | None = None
    aligned: int | None = None
    overwritten: int | None = None
    synced: int | None = None
    direct: int | None = None

    def add(self, other: TransferSums | ObservedTransfers) -> None:
        """Add other ones of the same group. What is not known of some calls is not known of all."""
        for name in _OF_EACH_CALL:
            ours, theirs = getattr(self, name), getattr(other, name)
            spoilt = self.calls and other.calls and (ours is None or theirs is None)
            setattr(self, name, None if spoilt else plus(ours, theirs))
        self.calls += other.calls
        add(self.sizes, other.sizes)
        add(self.latency, other.latency)

    def done(self) -> ObservedTransfers:
        """Return them as part of the document; calls that only a histogram counted are counted by it."""
        return ObservedTransfers(
            calls=max(self.calls, total(self.sizes), total(self.latency)),
            sizes=ordered(self.sizes),
            latency=ordered(self.latency),
            **{name: getattr(self, name) for name in _OF_EACH_CALL},
        )


@dataclass
class SyncSums:
    """fsync and its like so far."""

    calls: int = 0
    latency: Buckets = field(default_factory=dict)
    latency_total: int | None = None

    def add(self, other: SyncSums | Syncs) -> None:
        """Add other ones of the same group."""
        self.calls += other.calls
        add(self.latency, other.latency)
        self.latency_total = plus(self.latency_total, other.latency_total)

    def done(self) -> Syncs:
        """Return them as part of the document."""
        return Syncs(
            calls=max(self.calls, total(self.latency)),
            latency=ordered(self.latency),
            latency_total=self.latency_total,
        )


@dataclass
class GroupSums:
    """One role, file, call or device so far."""

    reads: TransferSums = field(default_factory=TransferSums)
    writes: TransferSums = field(default_factory=TransferSums)
    syncs: SyncSums = field(default_factory=SyncSums)
    dataset: str | None = None
    filesystem: str | None = None

    def add(self, other: GroupSums | Group) -> None:
        """Add other sums of the same group."""
        self.reads.add(other.reads)
        self.writes.add(other.writes)
        self.syncs.add(other.syncs)
        self.dataset = self.dataset or other.dataset
        self.filesystem = self.filesystem or other.filesystem


@dataclass
class CallSums:
    """A system call over all processes so far."""

    calls: int = 0
    seconds: float | None = None
    errors: int | None = None
    latency: Buckets = field(default_factory=dict)

    def add(self, calls: int, seconds: float | None, errors: int | None, latency: Mapping[int, int]) -> None:
        """Add more of them."""
        self.calls += calls
        add(self.latency, latency)
        self.errors = plus(self.errors, errors)
        if seconds is not None:
            self.seconds = (self.seconds or 0.0) + seconds


@dataclass
class PoolSums:
    """A pool's histograms so far."""

    request_sizes: dict[str, Buckets] = field(default_factory=dict)
    latencies: dict[str, Buckets] = field(default_factory=dict)


class Collected:
    """Everything that was read. ``done`` makes the document of it."""

    def __init__(self, rules: RoleRules) -> None:
        self.rules = rules
        self.groups: dict[tuple[GroupKind, str, str | None, str | None], GroupSums] = {}
        self.calls: dict[str, CallSums] = {}
        self.pools: dict[str, PoolSums] = {}
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

    def group(
        self, kind: GroupKind, name: str, role: str | None = None, pool: str | None = None
    ) -> GroupSums:
        """Return the sums of a group, new ones if there were none."""
        self.pieces += 1
        return self.groups.setdefault((kind, name, role, pool), GroupSums())

    def enter(self, sums: GroupSums, *, path: str | None, call: str | None, role: str | None) -> None:
        """Add sums to the groups of their role, their file and their call."""
        places: list[GroupSums] = [self.group("role", role or NO_ROLE, role)]
        if path is not None:
            places.append(self.group("file", path, role))
        if call is not None:
            places.append(self.group("call", call, role))
        for place in places:
            place.add(sums)

    def call(self, name: str) -> CallSums:
        """Return the sums of a system call."""
        self.pieces += 1
        return self.calls.setdefault(name, CallSums())

    def pool(self, name: str) -> PoolSums:
        """Return the sums of a pool."""
        self.pieces += 1
        return self.pools.setdefault(name, PoolSums())

    def role(self, key: str) -> str | None:
        """Return the role of a path or other key: the user's rules, then its own name, then known layouts."""
        for rule in reversed(self.rules.rules):
            if rule.pattern.fullmatch(key):
                return rule.role
        return role_word(key) or self.rules.role(key)

    def add_observation(self, other: Observation, name: str) -> None:
        """Add another document's groups, calls, disks and pools' histograms; the rest can't be added up."""
        self.pieces += 1
        for group in other.groups:
            self.group(group.kind, group.name, group.role, group.pool).add(group)
        for call in other.calls:
            self.call(call.name).add(call.calls, call.seconds, call.errors, call.latency)
        for pool in other.zfs.pools if other.zfs else ():
            sums = self.pool(pool.name)
            for theirs, ours in (
                (pool.request_sizes, sums.request_sizes),
                (pool.latencies, sums.latencies),
            ):
                for column, buckets in theirs.items():
                    add(ours.setdefault(column, {}), buckets)
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
        groups = [
            Group(
                kind=kind,
                name=name,
                role=role,
                pool=pool,
                dataset=sums.dataset,
                filesystem=sums.filesystem,
                reads=sums.reads.done(),
                writes=sums.writes.done(),
                syncs=sums.syncs.done(),
            )
            for (kind, name, role, pool), sums in self.groups.items()
        ]
        calls = [
            ObservedCall(
                name=name, calls=s.calls, seconds=s.seconds, errors=s.errors, latency=ordered(s.latency)
            )
            for name, s in self.calls.items()
        ]
        return Observation(
            ztune=ztune.__version__,
            source="files",
            subject=subject,
            platform=self.platform,
            begun=self.begun,
            seconds=self.seconds,
            groups=tuple(groups),
            calls=tuple(sorted(calls, key=lambda call: (-(call.seconds or 0.0), -call.calls, call.name))),
            disks=tuple(self.disks.values()),
            zfs=self._zfs(),
            limits=tuple(self.limits),
        )

    def _zfs(self) -> ObservedZfs | None:
        pools = tuple(
            ObservedPool(
                name=name,
                request_sizes={column: ordered(b) for column, b in sums.request_sizes.items()},
                latencies={column: ordered(b) for column, b in sums.latencies.items()},
            )
            for name, sums in self.pools.items()
        )
        return ObservedZfs(version="unknown", pools=pools) if pools else None


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
