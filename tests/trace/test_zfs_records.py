"""What a trace keeps of ZFS's records, and what first reads make of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_builder import build, files

from ztune.trace import zfs_records
from ztune.trace.first_reads import HIT_NS, cached
from ztune.trace.manifest import COLD, TraceFile, Warning_
from ztune.trace.recorders.files import Mounts
from ztune.trace.schema import Op
from ztune.trace.zfs_records import KEY, LZ4_NS, NS, Records

K = 1024
SAID = [Warning_(code=COLD, message="It is not known.")]


def mounted(path: Path, kind: str) -> Mounts:
    """Return the mounts where the file system of ``path`` is of a kind."""
    dev = path.stat().st_dev
    mounts = Mounts()
    mounts.add(f"1 0 {os.major(dev)}:{os.minor(dev)} / / rw - {kind} tank/pg rw\n")
    return mounts


def kept(tmp_path: Path, kind: str) -> dict[str, Any]:
    """Return what is kept of a file of a few blocks on a file system of a kind."""
    path = tmp_path / "16384"
    path.write_bytes(bytes(64 * K))
    found = path.stat()
    file = TraceFile(id=0, path=str(path), role="data", dev=found.st_dev, ino=found.st_ino)
    return zfs_records.of([file], mounted(path, kind))


def test_of_zfs_the_record_size_of_files_and_the_compression_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"recordsize": tmp_path.stat().st_blksize}
    monkeypatch.setenv("PATH", "/nothing")
    monkeypatch.setattr("ztune.onhost.host.zfs._SYSTEM", (str(tmp_path),))
    assert kept(tmp_path, "ext4") == {}
    assert kept(tmp_path, "fuse.ztune") == kept(tmp_path, "zfs") == {"/": record}  # there is no zfs
    (tmp_path / "zfs").write_text("#!/bin/sh\nprintf 'tank/pg\\tcompression\\tzstd-3\\tlocal\\n'\n")
    (tmp_path / "zfs").chmod(0o700)
    assert kept(tmp_path, "zfs") == {"/": {**record, "compression": "zstd-3"}}


@pytest.mark.parametrize(
    ("said", "ns"),
    [
        ({"recordsize": 128 * K, "compression": "zstd-3"}, NS["zstd"] * 128 * K),
        ({"recordsize": 1024 * K, "compression": "on"}, LZ4_NS * 1024 * K),
        ({"recordsize": 128 * K}, LZ4_NS * 128 * K),
        ({"recordsize": 8 * K, "compression": "gzip-6"}, NS["gzip"] * 16 * K),  # the read touches two
        ({"recordsize": 128 * K, "compression": "off"}, 0),
        ({"recordsize": "128K"}, 0),
        (None, 0),
    ],
)
def test_a_read_from_memory_may_take_as_long_as_its_records_to_decompress(
    tmp_path: Path, said: dict[str, Any] | None, ns: float
) -> None:
    limit = HIT_NS + 8 * K + int(ns)
    read = {"op": Op.READ, "size": 8 * K, "offset": (1 << 20) + 4 * K}
    events = [{**read, "t": i + 1, "dur": dur, "file": i} for i, dur in enumerate([limit - 1, limit + 1])]
    trace = build(
        tmp_path / "a.trace",
        events,
        files(("/tank/pg/one", "data", 1 << 30), ("/tank/pg/two", "data", 1 << 30)),
        warnings=SAID,
        environment={KEY: {"/tank/pg": said, "/tank/p": {"recordsize": 1 << 20}}} if said else {},
    )
    found = cached(trace)
    assert found is not None and set(found.file.tolist()) == {0}


def test_a_file_below_a_record_is_one_of_its_size_and_the_deeper_mount_counts(tmp_path: Path) -> None:
    records = {"/tank": {"recordsize": 128 * K}, "/tank/pg": {"recordsize": 16 * K, "compression": "zstd"}}
    listed = files(("/tank/small", "data", 8 * K), ("/tank/pg/large", "data", 1 << 20), ("/x", "data", 9))
    manifest = build(tmp_path / "a.trace", [], listed, environment={KEY: records}).manifest
    file, zero = np.array([0, 1, 2, -1]), np.zeros(4, np.int64)
    found = Records.of(manifest).decompressing_ns(file, zero, zero + 8 * K)
    assert found.tolist() == [LZ4_NS * 8 * K, NS["zstd"] * 16 * K, 0, 0]


def test_another_file_system_below_one_of_zfs_has_no_records(tmp_path: Path) -> None:
    environment = {KEY: {"/": {"recordsize": 128 * K}}, "host_fs": {"/": "zfs", "/srv": "ext4"}}
    listed = files(("/var/wal", "wal", 1 << 20), ("/srv/data", "data", 1 << 20))
    found = Records.of(build(tmp_path / "a.trace", [], listed, environment=environment).manifest)
    assert found.byte_ns.tolist() == [LZ4_NS, 0, 0]
