"""Facts of the roles that an observation shows: how their files are written and read."""

from __future__ import annotations

from typing import Any

from ztune.advice.fact import Fact
from ztune.advice.observed_datasets import find, record_bytes
from ztune.advice.record_size import fit, in_words, moved
from ztune.observe.model import Group, Observation

NO_ROLE = "none"
"""As observations name files without."""

FACTS: dict[str, Fact] = {
    "role": Fact("role"),
    "on_zfs": Fact("the role's files are on a ZFS file system", "flag"),
    "write_calls": Fact("writes that were counted", "count"),
    "write_bytes": Fact("bytes written", "bytes"),
    "write_size": Fact("size that half of the written bytes come in writes of at least", "size"),
    "write_sizes": Fact("sizes of writes"),
    "fit": Fact("record size that the writes ask for", "size"),
    "fit_calls": Fact("counted writes of at least 512 bytes, which say so", "count"),
    "fit_share": Fact("share of the written bytes in writes of at least half that record size", "share"),
    "fit_below": Fact("bytes moved with half that record size, as a multiple", "ratio"),
    "fit_above": Fact("bytes moved with twice that record size, as a multiple", "ratio"),
    "fit_cost": Fact("bytes moved with the recordsize, as a multiple of the same", "ratio"),
    "rewritten": Fact("recordsize as a multiple of the record size that the writes ask for", "ratio"),
    "sequential": Fact("share of the writes that begin where the last one ended", "share"),
    "overwritten": Fact("share of the written bytes that overwrite others", "share"),
    "partial": Fact("share of the writes that do not cover whole records", "share"),
    "direct_writes": Fact("counted writes with O_DIRECT", "count"),
    "direct_calls": Fact("reads and writes with O_DIRECT", "count"),
    "synced_calls": Fact("fsyncs, and writes with O_SYNC or O_DSYNC", "count"),
    "role_reads": Fact("reads that were counted", "count"),
    "read_bytes": Fact("bytes read", "bytes"),
    "read_sizes": Fact("sizes of reads"),
    "read_fit": Fact("record size that the reads ask for", "size"),
    "reads_sequential": Fact("share of the reads that begin where the last one ended", "share"),
}  # fmt: skip


def role_facts(observation: Observation, group: Group) -> dict[str, Any]:
    """Return the facts of a role's group without those of its dataset; keys as in FACTS, None if unknown."""
    writes, reads = group.writes, group.reads
    dataset = find(observation, dataset_name(observation, group))
    best, asked = fit(writes.sizes), fit(reads.sizes)
    # The blocks of a volume are written by the file system on it, not by the role.
    record = record_bytes(observation, dataset.name) if dataset and dataset.type == "filesystem" else None
    direct = [count for count in (writes.direct, reads.direct) if count is not None]
    return {
        "role": group.name,
        "on_zfs": on_zfs(observation, group),
        "write_calls": counted(observation, writes.calls),
        "write_bytes": writes.bytes,
        "write_size": best.size if best else None,
        "write_sizes": in_words(writes.sizes) or None,
        "fit": best.recordsize if best else None,
        "fit_calls": counted(observation, best.calls if best else None),
        "fit_share": best.share if best else None,
        "fit_below": best.below if best else None,
        "fit_above": best.above if best else None,
        "fit_cost": moved(writes.sizes, record) / moved(writes.sizes, best.recordsize)
        if record and best
        else None,
        "rewritten": record / best.recordsize if record and best else None,
        "sequential": _share(writes.sequential, writes.calls),
        "overwritten": _share(writes.overwritten, writes.bytes),
        # Without ZFS "aligned" is to 4 KiB, which says nothing about records.
        "partial": _share(writes.calls - writes.aligned, writes.calls)
        if writes.aligned is not None and record
        else None,
        "direct_writes": counted(observation, writes.direct),
        "direct_calls": sum(direct) if direct else None,
        "synced_calls": _told(observation, group.syncs.calls + (writes.synced or 0)),
        "role_reads": counted(observation, _told(observation, reads.calls)),
        "read_bytes": reads.bytes if reads.calls or observation.source == "live" else None,
        "read_sizes": in_words(reads.sizes) or None,
        # By the same count: of a record that is not cached all is read, whatever part is asked for.
        "read_fit": asked.recordsize if asked else None,
        "reads_sequential": _share(reads.sequential, reads.calls),
    }


def dataset_name(observation: Observation, group: Group) -> str | None:
    """Return the dataset of a role's files: its own, or that of all its files; None if there are more."""
    if group.dataset is not None:
        return group.dataset
    of_files = {g.dataset for g in observation.of_kind("file") if g.role == group.name}
    if not of_files and observation.zfs and group.filesystem in {None, "zfs"}:
        of_files = {d.name for d in observation.zfs.datasets if group.name in d.roles}
    return of_files.pop() if len(of_files) == 1 else None


def on_zfs(observation: Observation, group: Group) -> bool | None:
    """Return whether the files are on a ZFS file system; those on a volume are not."""
    if group.filesystem is not None:
        return group.filesystem == "zfs"
    dataset = find(observation, dataset_name(observation, group))
    if dataset is not None:
        return dataset.type == "filesystem"
    # A live observation without ZFS is of a host that has none.
    return False if observation.source == "live" and observation.zfs is None else None


def counted(observation: Observation, calls: int | None) -> int | None:
    """Return how many of ``calls`` were seen: evidence is what was counted, not what that was taken for."""
    return None if calls is None else round(calls * observation.counted_share)


def _told(observation: Observation, calls: int) -> int | None:
    """Return ``calls``; that a file of another tool has none may mean that it was about other calls."""
    return calls if calls or observation.source == "live" else None


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
