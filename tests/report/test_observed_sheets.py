"""The sheets of an observation."""

from __future__ import annotations

from ztune.observe.model import Group, Observation, ObservedTransfers, Syncs
from ztune.report import observed_sheets


def test_a_write_with_o_sync_is_a_sync() -> None:
    writes = ObservedTransfers(calls=4, bytes=200, latency={1 << 20: 4}, latency_total=4_000_000, synced=4)
    some = ObservedTransfers(calls=4, bytes=200, latency_total=4_000_000, synced=1)
    seen = Observation(
        ztune="0", source="live", subject="x", seconds=2.0,
        groups=(
            Group(kind="role", name="wal", writes=writes),
            Group(kind="role", name="data", writes=some, syncs=Syncs(calls=2, latency_total=2_000_000)),
            Group(kind="file", name="/w", role="wal", writes=writes),
            Group(kind="file", name="/d", role="data", writes=some, syncs=Syncs(calls=2)),
        ),
    )  # fmt: skip
    assert [row[:4] for row in observed_sheets.syncs(seen).rows] == [
        ("wal, O_SYNC", "4", "2.0", "1.00 ms"),
        ("data", "2", "1.0", "1.00 ms"),
        ("data, O_SYNC", "1", "0.5", ""),
    ]  # fmt: skip
    assert {row[0]: row[-1] for row in observed_sheets._files_seen(seen).rows} == {"/w": "4", "/d": "3"}
