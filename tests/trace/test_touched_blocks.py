"""What calls touch of files, and that content is measured there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_builder import build, files

from ztune.trace.compressibility import CHUNK, TOUCHED, compressor, sample_files
from ztune.trace.content import content_pools
from ztune.trace.inputs import content_name
from ztune.trace.manifest import RECORDSIZES, Manifest, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.reassign import with_roles
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op
from ztune.trace.touched import TouchedBlocks
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

FILES = [TraceFile.model_validate(one) for one in files(("/d", "data", 0), ("/x", None, 0), ("/w", "wal", 0))]


def calls(op: Op, file: int, offsets: list[int], size: int = 8192, second: float = 0) -> np.ndarray:
    rows = np.zeros(len(offsets), EVENT_DTYPE)
    rows["t"] = second * 1e9
    rows["op"], rows["file"], rows["offset"], rows["size"] = op, file, offsets, size
    return rows


def blocks(found: TouchedBlocks, role: str = "data", size: int = 8192) -> set[int]:
    listed = found.by_role()[role][size]
    assert len(set(listed)) == len(listed)
    return {offset // size for _, offset in listed}


def test_blocks_of_reads_and_writes_of_files_with_a_role() -> None:
    found = TouchedBlocks(FILES, {8192: 1000, 1 << 20: 1000}, 1)
    found.add(calls(Op.WRITE, 0, [n << 20 for n in range(3)]))
    found.add(calls(Op.READ, 0, [n << 30 for n in range(1, 6)] * 9))
    found.add(calls(Op.WRITE, 1, [7]))
    found.add(calls(Op.FSYNC, 2, [-1], 0))
    found.add(calls(Op.READ, -1, [7]))
    assert found.by_role()["wal"] == {8192: [], 1 << 20: []}
    assert {path for path, _ in found.by_role()["data"][8192]} == {"/d"}
    assert blocks(found) == {n << 7 for n in range(3)} | {n << 17 for n in range(1, 6)}
    assert blocks(found, size=1 << 20) == {0, 1, 2} | {n << 10 for n in range(1, 6)}


def test_a_call_touches_all_its_blocks() -> None:
    found = TouchedBlocks(FILES, {8192: 1000}, 1)
    found.add(calls(Op.WRITE, 0, [8191], 8194))  # a byte, a block and a byte
    assert blocks(found) == {0, 1, 2}
    found = TouchedBlocks(FILES, {8192: 1000}, 1)
    found.add(calls(Op.WRITE, 0, [0], 1 << 20))  # of more than 16 they lie evenly over it
    assert blocks(found) == {n * 8 for n in range(16)}


def test_a_block_counts_as_often_as_a_disk_has_to_do_with_it() -> None:
    found = TouchedBlocks(FILES, {8192: 1000}, 1)
    found.add(calls(Op.WRITE, 0, [0]))
    found.add(calls(Op.READ, 0, [0, 8192]))
    for second in range(40):
        found.add(calls(Op.WRITE, 0, [0], second=second))  # eight groups, of which the first was there
        found.add(calls(Op.READ, 0, [8192], second=second))
    listed = [offset for _, offset in found.by_role()["data"][8192]]
    assert (listed.count(0), listed.count(8192)) == (1 + 8, 1)


def test_blocks_are_bounded_and_each_is_as_likely() -> None:
    found, again = (TouchedBlocks(FILES, {8192: 1000}, 1) for _ in range(2))
    for part in range(40):
        once = [(part * 500 + n) * 8192 for n in range(500)]
        # The first of them a hundred times as often as the others.
        found.add(calls(Op.WRITE, 0, once[:5] * 99 + once))
        again.add(calls(Op.WRITE, 0, once))
    kept = sorted(blocks(found))
    assert len(kept) == 1000 and again.by_role() == found.by_role()
    # Of 20,000 blocks each quarter has 250 of the thousand, give or take 14 (one sigma).
    assert all(abs(count - 250) < 70 for count in np.histogram(kept, 4, (0, 20_000))[0])
    # Those touched often are a hundredth.
    assert sum(block % 500 < 5 for block in kept) < 30
    assert TouchedBlocks(FILES, {8192: 1000}, 2).by_role() != found.by_role()


def noise(size: int) -> bytes:
    return np.random.default_rng(1).bytes(size)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A file of 8 MiB of noise, and 8 MiB of text behind it."""
    path = tmp_path / "f.db"
    path.write_bytes(noise(8 << 20) + b"a line of text\n" * ((8 << 20) // 15))
    return path


def test_what_is_touched_is_measured_apart(halves: Path, tmp_path: Path) -> None:
    touched = {size: [(str(halves), n * size) for n in range((8 << 20) // size - 1)] for size in TOUCHED}
    entries, samples = sample_files(
        {str(halves): "data"}, keep=tmp_path / "samples", touched={"data": touched}
    )
    ratio = {(e.touched, e.recordsize): e.ratio for e in entries if e.algorithm == "lz4"}
    for size in (8192, 131072, 1 << 20):
        assert ratio[True, size] == pytest.approx(1.0, rel=0.01)
        assert ratio[False, size] > 1.6
    # What is kept likewise.
    assert [(sample.file, sample.touched, sample.recordsize) for sample in samples] == [
        ("samples/data.bin", False, 0),
        *((f"samples/data-touched-{size}.bin", True, size) for size in TOUCHED if size < 128 << 10),
        ("samples/data-touched.bin", True, 0),
    ]
    assert samples[-1].bytes == 8 * CHUNK  # 63 blocks of 128 KiB, and one again
    assert (tmp_path / "samples/data-touched-8192.bin").read_bytes() == noise(8 << 20)[: 2 << 20]
    assert (tmp_path / "samples/data-touched.bin").read_bytes()[: 7 << 20] == noise(8 << 20)[: 7 << 20]


def one_block(path: Path) -> dict[str, dict[int, list[tuple[str, int]]]]:
    return {"data": {size: [(str(path), 1 << 20)] for size in TOUCHED}}


def test_each_has_its_own_content_in_a_replay(halves: Path, tmp_path: Path) -> None:
    entries, _ = sample_files({str(halves): "data"}, touched=one_block(halves))
    trace = build(tmp_path / "a.trace", [], files((str(halves), "data", 16 << 20)), compressibility=entries)
    pools = content_pools(trace, tmp_path / "pools")
    assert len(pools) == 2 * len(RECORDSIZES)
    for size in RECORDSIZES:
        touched, untouched = (
            len(compressor("lz4")(pools[content_name("data", size, untouched=apart)].read_bytes()))
            for apart in (False, True)
        )
        assert touched > 1.5 * untouched


def test_kept_content_goes_before_what_is_made_like_it(halves: Path, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    touched = one_block(halves)
    touched["data"][128 << 10] = [(str(halves), n << 17) for n in range(9)]
    entries, samples = sample_files({str(halves): "data"}, keep=writer.samples_dir, touched=touched)
    listed = files((str(halves), "data", 16 << 20))
    made = {"duration_ns": 1, "recorder": {"name": "synthetic"}, "files": listed}
    trace = Trace.open(writer.finish(**made, compressibility=entries, samples=samples))
    # Of smaller records there is less than a chunk.
    assert content_pools(trace, tmp_path / "pools") == {
        content_name("data", size, untouched=apart): trace.path
        / f"samples/data{'' if apart else '-touched'}.bin"
        for size in RECORDSIZES
        for apart in (False, True)
    }
    assert trace.sample("data") != trace.sample("data", touched=True)


def test_what_is_kept_of_small_records_is_their_content(halves: Path, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    places = {size: [(str(halves), n * size) for n in range((8 << 20) // size)] for size in TOUCHED}
    entries, samples = sample_files({str(halves): "data"}, keep=writer.samples_dir, touched={"data": places})
    listed = files((str(halves), "data", 16 << 20))
    made = {"duration_ns": 1, "recorder": {"name": "synthetic"}, "files": listed}
    trace = Trace.open(writer.finish(**made, compressibility=entries, samples=samples))
    pools = content_pools(trace, tmp_path / "pools")
    assert pools[content_name("data", 16384)] == trace.path / "samples/data-touched-16384.bin"
    assert pools[content_name("data", 1 << 20)] == trace.path / "samples/data-touched.bin"
    assert pools[content_name("data", 16 << 20)] == pools[content_name("data", 1 << 20)]
    assert pools[content_name("data", 512)] == trace.path / "samples/data-touched-4096.bin"


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
