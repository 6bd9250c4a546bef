"""Makes the groups of an observation from what the kernel added up."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ztune.observe.live_kernel import (
    LATENCIES,
    MAPPED,
    MAPPED_WRITABLE,
    READS,
    SUMS,
    SYNCS,
    WRITES,
    KernelReading,
    SeenFile,
    wanted,
)
from ztune.observe.model import Buckets, Group, ObservedCall, ObservedTransfers, Syncs
from ztune.onhost.probes.syscall_names import call_name

NO_ROLE = "none"
MOST_FILES = 2000
# Begins to write a file's pages, and promises nothing: a system call, but no sync.
_NO_SYNC = "sync_file_range"


@dataclass(frozen=True)
class FilePlace:
    """What a file is to the database, and where it lies."""

    role: str | None
    dataset: str | None
    filesystem: str | None

    @property
    def pool(self) -> str | None:
        """The pool of its dataset."""
        return None if self.dataset is None else self.dataset.partition("/")[0].partition("@")[0]


@dataclass(frozen=True)
class Grouped:
    """The groups, and what they leave out."""

    groups: tuple[Group, ...]
    files_left_out: int
    """Files without a group of their own; they are in those of their roles."""
    unexplained: int
    """Calls on files whose names were lost."""
    mapped: tuple[str, ...]
    """Files that were mapped into memory, shared."""
    mapped_writable: tuple[str, ...]


def buckets(counts: npt.NDArray[np.uint64]) -> Buckets:
    """Return a histogram from its row: 0, 1, 2 to 3, 4 to 7 …"""
    return {(1 << (int(i) - 1)) if i else 0: int(counts[i]) for i in np.flatnonzero(counts)}


def calls(reading: KernelReading) -> tuple[ObservedCall, ...]:
    """Return the system calls that observed tasks made, those with the most time first."""
    machine = platform.machine()
    found = [
        ObservedCall(
            name=call_name(int(row["number"]), machine),
            calls=int(row["latency"].sum()),
            seconds=int(row["ns"]) / 1e9,
            errors=int(row["errors"]),
            latency=buckets(row["latency"]),
        )
        for row in reading.spent
    ]
    return tuple(sorted(found, key=lambda call: (-(call.seconds or 0.0), call.name)))


def group(
    reading: KernelReading, place: Callable[[SeenFile], FilePlace], most_files: int = MOST_FILES
) -> Grouped:
    """Return the groups by role, by call within a role, and by file (the ``most_files`` with the most calls).

    ``place`` tells of a file what it is.
    """
    rows = _without_processors(reading.totals)
    known = np.array([number in reading.files for number in rows["file"]], np.bool_)
    unexplained = int(rows["latency"][~known].sum())
    rows = rows[known]
    rows = rows[np.array([wanted(reading.files[number]) for number in rows["file"]], np.bool_)]
    mapped = [_paths(reading, rows[rows["what"] == what]) for what in (MAPPED, MAPPED_WRITABLE)]
    rows = rows[rows["what"] <= SYNCS]
    numbers, index = np.unique(rows["file"], return_inverse=True)
    seen = [reading.files[int(number)] for number in numbers]
    places = [place(file) for file in seen]
    by_path: dict[str, list[int]] = {}
    for i, file in enumerate(seen):
        by_path.setdefault(file.path, []).append(i)
    files = _files(rows, index, by_path, places, most_files)
    machine = platform.machine()
    groups: list[Group] = []
    roles = (
        np.array([p.role or NO_ROLE for p in places], object)[index] if len(seen) else np.array([], object)
    )
    for role in sorted(set(roles)):
        mine = roles == role
        groups.append(_one("role", str(role), rows[mine], [places[i] for i in np.unique(index[mine])]))
        for number in np.unique(rows["call"][mine]):
            some = mine & (rows["call"] == number)
            name = call_name(int(number), machine)
            groups.append(_one("call", name, rows[some], [places[i] for i in np.unique(index[some])]))
    return Grouped((*groups, *files), len(by_path) - len(files), unexplained, mapped[0], mapped[1])


def _files(
    rows: npt.NDArray[np.void],
    index: npt.NDArray[np.intp],
    by_path: dict[str, list[int]],
    places: list[FilePlace],
    most: int,
) -> list[Group]:
    # A file that was removed and made again under its name is one to whoever reads the report.
    path_of = np.zeros(len(places), np.intp)
    for i, members in enumerate(by_path.values()):
        path_of[members] = i
    where = path_of[index] if len(rows) else np.zeros(0, np.intp)
    count = np.bincount(where, rows["latency"].sum(axis=1), len(by_path)) if len(rows) else np.zeros(0)
    order = np.argsort(where, kind="stable")
    edges = np.searchsorted(where[order], np.arange(len(by_path) + 1))
    paths = list(by_path)
    return [
        _one("file", paths[i], rows[order[edges[i] : edges[i + 1]]], [places[by_path[paths[i]][0]]])
        for i in sorted(range(len(paths)), key=lambda i: (-count[i], paths[i]))[:most]
    ]


def _without_processors(totals: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Add up what different processors saw of one file and call."""
    if not len(totals):
        return totals
    key = (
        totals["file"].astype(np.uint64) << np.uint64(32)
        | totals["call"].astype(np.uint64) << np.uint64(16)
        | totals["what"].astype(np.uint64)
    )
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0])
    rows = totals[order[begins]].copy()
    for name in SUMS:
        rows[name] = np.add.reduceat(totals[name][order], begins, axis=0)
    return rows


def _paths(reading: KernelReading, rows: npt.NDArray[np.void]) -> tuple[str, ...]:
    return tuple(sorted({reading.files[int(number)].path for number in rows["file"]}))


def _only(values: Iterable[str | None]) -> str | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _one(
    kind: Literal["role", "file", "call"], name: str, rows: npt.NDArray[np.void], places: list[FilePlace]
) -> Group:
    syncs = rows[rows["what"] == SYNCS]
    if kind != "call" and len(syncs):
        machine = platform.machine()
        syncs = syncs[np.array([call_name(int(n), machine) != _NO_SYNC for n in syncs["call"]], np.bool_)]
    return Group(
        kind=kind,
        name=name,
        role=_only(place.role for place in places),
        dataset=_only(place.dataset for place in places),
        pool=_only(place.pool for place in places),
        filesystem=_only(place.filesystem for place in places),
        reads=_transfers(rows[rows["what"] == READS], writes=False),
        writes=_transfers(rows[rows["what"] == WRITES], writes=True),
        syncs=_syncs(syncs),
    )


def _transfers(rows: npt.NDArray[np.void], *, writes: bool) -> ObservedTransfers:
    latency = rows["latency"].sum(axis=0)

    def total(name: str) -> int:
        return int(rows[name].sum())

    return ObservedTransfers(
        calls=int(latency.sum()),
        bytes=total("bytes"),
        sizes=buckets(rows["sizes"].sum(axis=0)),
        latency=buckets(latency),
        latency_total=total("ns"),
        sequential=total("sequential"),
        aligned=total("aligned"),
        overwritten=total("overwritten") if writes else None,
        synced=total("synced") if writes else None,
        direct=total("direct"),
    )


def _syncs(rows: npt.NDArray[np.void]) -> Syncs:
    latency = rows["latency"].sum(axis=0) if len(rows) else np.zeros(LATENCIES, np.uint64)
    return Syncs(calls=int(latency.sum()), latency=buckets(latency), latency_total=int(rows["ns"].sum()))
