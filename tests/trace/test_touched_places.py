"""Where calls touch files, and that content is measured there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import build, files

from ztune.trace.compressibility import CHUNK, compressor, sample_files
from ztune.trace.content import UNTOUCHED, content_pools
from ztune.trace.manifest import Manifest, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.reassign import with_roles
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op
from ztune.trace.touched import TouchedPlaces
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

FILES = [TraceFile.model_validate(one) for one in files(("/d", "data", 0), ("/x", None, 0), ("/w", "wal", 0))]


def calls(op: Op, file: int, offsets: list[int], size: int = 8192) -> np.ndarray:
    rows = np.zeros(len(offsets), EVENT_DTYPE)
    rows["op"], rows["file"], rows["offset"], rows["size"] = op, file, offsets, size
    return rows


def test_reads_and_writes_of_files_with_a_role_in_turn() -> None:
    found = TouchedPlaces(FILES, 1)
    found.add(calls(Op.WRITE, 0, [n << 20 for n in range(3)]))
    found.add(calls(Op.READ, 0, [n << 30 for n in range(1, 6)]))
    found.add(calls(Op.WRITE, 1, [7]))
    found.add(calls(Op.FSYNC, 2, [-1], 0))
    found.add(calls(Op.READ, -1, [7]))
    by_role = found.by_role()
    of_data = by_role["data"]
    assert by_role == {"data": of_data, "wal": []}
    assert [offset < 1 << 30 for _, offset in of_data] == [True, False] * 3 + [False] * 2
    assert {path for path, _ in of_data} == {"/d"}
    # A place is somewhere in what was moved.
    assert {offset - offset % 8192 for _, offset in of_data} == {n << 20 for n in range(3)} | {
        n << 30 for n in range(1, 6)
    }


def test_places_are_bounded_and_each_is_as_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.trace.touched.MOST", 1000)
    found = TouchedPlaces(FILES, 1)
    for part in range(40):
        found.add(calls(Op.WRITE, 0, [(part * 500 + n) * 8192 for n in range(500)]))
    by_role = found.by_role()
    kept = [offset // 8192 for _, offset in by_role["data"]]
    assert len(set(kept)) == 1000
    # Of 20,000 places each quarter has 250 of the thousand, give or take 14 (one sigma).
    assert all(abs(count - 250) < 70 for count in np.histogram(kept, 4, (0, 20_000))[0])
    again = TouchedPlaces(FILES, 1)
    for part in range(40):
        again.add(calls(Op.WRITE, 0, [(part * 500 + n) * 8192 for n in range(500)]))
    assert again.by_role() == by_role


def test_a_large_call_counts_for_the_records_that_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.trace.touched.MOST", 1000)
    found = TouchedPlaces(FILES, 1)
    # As many bytes by calls of 1 MiB as by 64 times as many of 16 KiB, elsewhere.
    found.add(calls(Op.WRITE, 0, [n << 20 for n in range(500)], 1 << 20))
    found.add(calls(Op.WRITE, 0, [(1 << 40) + (n << 14) for n in range(500 * 64)], 16384))
    large = sum(offset < 1 << 40 for _, offset in found.by_role()["data"])
    # All of 500 calls are drawn before half of the others is, since one has 64 chances and one place.
    assert 300 < large <= 500


def test_few_large_calls_have_many_places() -> None:
    found = TouchedPlaces(FILES, 1)
    found.add(calls(Op.WRITE, 0, [0], 4 << 20))
    found.add(calls(Op.WRITE, 0, [1 << 30], 100))
    places_ = [offset for _, offset in found.by_role()["data"]]
    assert len(places_) == 257 and sum(offset >= 1 << 30 for offset in places_) == 1
    assert len({offset >> 20 for offset in places_ if offset < 4 << 20}) == 4


def noise(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A file of 8 MiB of noise, and 8 MiB of text behind it."""
    path = tmp_path / "f.db"
    path.write_bytes(noise(8 << 20) + b"a line of text\n" * ((8 << 20) // 15))
    return path


def test_what_is_touched_is_measured_apart(halves: Path, tmp_path: Path) -> None:
    touched = [(str(halves), n << 16) for n in range(100)]
    entries, samples = sample_files(
        {str(halves): "data"}, keep=tmp_path / "samples", touched={"data": touched}
    )
    ratio = {(e.touched, e.recordsize): e.ratio for e in entries if e.algorithm == "lz4"}
    for size in (8192, 131072, 1 << 20):
        assert ratio[True, size] == pytest.approx(1.0, rel=0.01)
        assert ratio[False, size] > 1.6
    # What is kept likewise.
    assert [(sample.file, sample.touched) for sample in samples] == [
        ("samples/data.bin", False), ("samples/data-touched.bin", True),
    ]  # fmt: skip
    assert samples[1].bytes == 7 * CHUNK
    assert (tmp_path / "samples/data-touched.bin").read_bytes() == noise(8 << 20)[: 7 * CHUNK]


def test_each_has_its_own_content_in_a_replay(halves: Path, tmp_path: Path) -> None:
    entries, _ = sample_files({str(halves): "data"}, touched={"data": [(str(halves), 1 << 20)]})
    trace = build(tmp_path / "a.trace", [], files((str(halves), "data", 16 << 20)), compressibility=entries)
    pools = content_pools(trace, tmp_path / "pools")
    assert set(pools) == {"data", "data" + UNTOUCHED}
    sizes = {name: len(compressor("lz4")(path.read_bytes())) for name, path in pools.items()}
    assert sizes["data"] > 1.5 * sizes["data" + UNTOUCHED]


def test_kept_content_goes_before_what_is_made_like_it(halves: Path, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    entries, samples = sample_files(
        {str(halves): "data"}, keep=writer.samples_dir, touched={"data": [(str(halves), 1 << 20)]}
    )
    listed = files((str(halves), "data", 16 << 20))
    made = {"duration_ns": 1, "recorder": {"name": "synthetic"}, "files": listed}
    trace = Trace.open(writer.finish(**made, compressibility=entries, samples=samples))
    assert content_pools(trace, tmp_path / "pools") == {
        "data": trace.path / "samples/data-touched.bin",
        "data" + UNTOUCHED: trace.path / "samples/data.bin",
    }
    assert trace.sample("data") != trace.sample("data", touched=True)


def test_a_manifest_tells_how_what_is_touched_compresses() -> None:
    def entry(role: str, ratio: float, **more: bool) -> dict[str, object]:
        return {"role": role, "recordsize": 8192, "algorithm": "lz4", "ratio": ratio, "blocks": 1, **more}

    manifest = Manifest.model_validate(
        {
            "ztune": "1", "created": "2026-01-01T00:00:00+00:00", "duration_ns": 1, "events": 0,
            "recorder": {"name": "synthetic"},
            "parquet": {"events.parquet": {"rows": 0, "bytes": 0, "sha256": "0" * 64}},
            "compressibility": [entry("data", 1.5), entry("data", 1.2, touched=True), entry("wal", 3.0)],
        }
    )  # fmt: skip
    assert [e.ratio for e in manifest.compresses("data", "wal", "temp")] == [1.2, 3.0]


def test_other_roles_are_measured_where_they_are_touched(halves: Path, tmp_path: Path) -> None:
    events = [
        {"t": n, "op": Op.WRITE, "file": 0, "offset": n << 16, "size": 8192, "pid": 1, "tid": 1}
        for n in range(60)
    ]
    trace = build(
        tmp_path / "a.trace", events, [{**one, "size_end": 16 << 20} for one in files((str(halves), None, 0))]
    )
    changed = with_roles(trace, RoleRules.parse(["**/*.db=index"], builtin=False).rules)
    found = {(e.touched, e.ratio < 1.05) for e in changed.compressibility if e.recordsize == 65536}
    assert found == {(True, True), (False, False)}
    assert {e.role for e in changed.compressibility} == {"index"}
