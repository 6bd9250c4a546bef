"""What calls touch of files, and that content is measured there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from trace_builder import build, files

from ztune.trace.compressibility import CHUNK, TOUCHED, Places, compressor, sample_files
from ztune.trace.content import content_pools
from ztune.trace.inputs import READ_BEFORE, UNTOUCHED, content_name
from ztune.trace.manifest import READ, RECORDSIZES, WRITTEN, Manifest, Touched, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.reassign import with_roles
from ztune.trace.roles import RoleRules
from ztune.trace.schema import VERSION, Op
from ztune.trace.touched import TouchedBlocks
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

FILES = [TraceFile.model_validate(one) for one in files(("/d", "data", 0), ("/x", None, 0), ("/w", "wal", 0))]


def calls(op: Op, file: int, offsets: list[int], size: int = 8192, second: float = 0) -> np.ndarray:
    rows = np.zeros(len(offsets), EVENT_DTYPE)
    rows["t"] = second * 1e9
    rows["op"], rows["file"], rows["offset"], rows["size"] = op, file, offsets, size
    return rows


def blocks(found: TouchedBlocks, size: int = 8192, how: Touched = WRITTEN) -> set[int]:
    listed = found.by_role()["data"][how][size]
    assert len(set(listed)) == len(listed)
    return {offset // size for _, offset in listed}


def test_blocks_of_reads_and_writes_of_files_with_a_role() -> None:
    found = TouchedBlocks(FILES, {8192: 1000, 1 << 20: 1000}, 1)
    found.add(calls(Op.WRITE, 0, [n << 20 for n in range(3)]))
    found.add(calls(Op.READ, 0, [n << 30 for n in range(1, 6)] * 9))
    found.add(calls(Op.WRITE, 1, [7]))
    found.add(calls(Op.FSYNC, 2, [-1], 0))
    found.add(calls(Op.READ, -1, [7]))
    assert found.by_role()["wal"] == {how: {8192: [], 1 << 20: []} for how in (READ, WRITTEN)}
    assert {path for path, _ in found.by_role()["data"][READ][8192]} == {"/d"}
    assert blocks(found) == {n << 7 for n in range(3)}
    assert blocks(found, how=READ) == {n << 17 for n in range(1, 6)}
    assert blocks(found, 1 << 20) == {0, 1, 2}
    assert blocks(found, 1 << 20, READ) == {n << 10 for n in range(1, 6)}


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
    both = found.by_role()["data"]
    assert [offset for _, offset in both[WRITTEN][8192]] == [0] * 8
    assert sorted(offset for _, offset in both[READ][8192]) == [0, 8192]


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


def places(path: Path, bytes_: int = 8 << 20) -> Places:
    """All blocks of the first half of a file are written, all of the second half are read."""
    return {
        "data": {
            how: {size: [(str(path), begin + n * size) for n in range(bytes_ // size)] for size in TOUCHED}
            for how, begin in ((WRITTEN, 0), (READ, 8 << 20))
        }
    }


def recorded(
    folder: Path, path: Path, touched: Places, *, keep: bool
) -> tuple[Trace, dict[tuple[str, int], float]]:
    """A trace of a file, and lz4's ratios by how it was touched and record size."""
    writer = TraceWriter(folder / "a.trace")
    entries, samples = sample_files(
        {str(path): "data"}, keep=writer.samples_dir if keep else None, touched=touched
    )
    made = {
        "duration_ns": 1,
        "recorder": {"name": "synthetic"},
        "files": files((str(path), "data", 16 << 20)),
    }
    trace = Trace.open(writer.finish(**made, compressibility=entries, samples=samples))
    return trace, {(e.how, e.recordsize): e.ratio for e in entries if e.algorithm == "lz4"}


def test_what_is_read_and_written_is_measured_apart(halves: Path, tmp_path: Path) -> None:
    trace, ratio = recorded(tmp_path, halves, places(halves), keep=True)
    for size in (8192, 131072, 1 << 20):
        assert ratio[WRITTEN, size] == pytest.approx(1.0, rel=0.01)
        assert ratio["", size] > 1.6 and ratio[READ, size] > 50
    # What is kept likewise.
    small = [size for size in TOUCHED if size < 128 << 10]
    assert [(one.file, one.touched, one.how, one.recordsize) for one in trace.manifest.samples] == [
        ("samples/data.bin", False, "", 0),
        *(
            (f"samples/data-{how}{f'-{size}' if size else ''}.bin", True, how, size)
            for how in (WRITTEN, READ)
            for size in (*small, 0)
        ),
    ]
    folder = trace.path / "samples"
    assert (folder / "data-written.bin").read_bytes() == noise(8 << 20)
    assert (folder / "data-written-8192.bin").read_bytes() == noise(8 << 20)[: 2 << 20]
    assert len((folder / "data-read-16384.bin").read_bytes()) == 2 << 20
    # From a size on that was not kept the next longer.
    pools = content_pools(trace, tmp_path / "pools")
    names = {
        content_name("data", 16384): "data-written-16384.bin",
        content_name("data", 512): "data-written-4096.bin",
        content_name("data", 1 << 20): "data-written.bin",
        content_name("data", 16 << 20): "data-written.bin",
        content_name("data" + READ_BEFORE, 8192): "data-read-8192.bin",
        content_name("data" + UNTOUCHED, 8192): "data.bin",
    }
    assert {name: pools[name] for name in names} == {name: folder / file for name, file in names.items()}


def test_each_has_its_own_content_in_a_replay(halves: Path, tmp_path: Path) -> None:
    trace, ratio = recorded(tmp_path, halves, places(halves), keep=False)
    pools = content_pools(trace, tmp_path / "pools")
    assert len(pools) == 3 * len(RECORDSIZES)
    for size in RECORDSIZES:
        for name, how in (("data", WRITTEN), ("data" + READ_BEFORE, READ), ("data" + UNTOUCHED, "")):
            content = pools[content_name(name, size)].read_bytes()
            blocks = [content[at : at + size] for at in range(0, len(content), size)]
            packed = sum(min(size, len(compressor("lz4")(block))) for block in blocks)
            # lz4 makes of 4 KiB of text hardly less than of a few characters.
            assert packed / len(content) == pytest.approx(1 / ratio[how, size], rel=0.03, abs=0.005)


def test_where_only_one_of_them_was_measured_the_other_is_like_it(halves: Path, tmp_path: Path) -> None:
    written = {"data": {WRITTEN: places(halves)["data"][WRITTEN]}}
    trace, _ = recorded(tmp_path, halves, written, keep=True)
    pools = content_pools(trace, tmp_path / "pools")
    assert len(pools) == 2 * len(RECORDSIZES)
    assert pools[content_name("data", 8192)] == trace.path / "samples/data-written-8192.bin"
    read = {"data": {READ: places(halves)["data"][READ]}}
    (tmp_path / "b").mkdir()
    trace, _ = recorded(tmp_path / "b", halves, read, keep=True)
    pools = content_pools(trace, tmp_path / "pools")
    assert len(pools) == 2 * len(RECORDSIZES)
    assert pools[content_name("data", 8192)] == trace.path / "samples/data-read-8192.bin"


def test_a_trace_of_before_tells_what_is_touched_alone(halves: Path, tmp_path: Path) -> None:
    trace, _ = recorded(tmp_path, halves, places(halves), keep=True)
    manifest = json.loads((trace.path / "trace.json").read_text())
    manifest["version"] = 6
    kept = [one for one in manifest["samples"] if one["recordsize"] == 0 and one["how"] != READ]
    measured = [one for one in manifest["compressibility"] if one["how"] != READ]
    for one in (*kept, *measured):
        one["how"] = ""
    (trace.path / "samples/data-written.bin").rename(trace.path / "samples/data-touched.bin")
    kept[1]["file"] = "samples/data-touched.bin"
    (trace.path / "trace.json").write_text(
        json.dumps({**manifest, "samples": kept, "compressibility": measured})
    )
    old = Trace.open(trace.path)
    pools = content_pools(old, tmp_path / "pools")
    assert pools == {
        content_name("data" + UNTOUCHED * apart, size): trace.path
        / f"samples/data{'' if apart else '-touched'}.bin"
        for size in RECORDSIZES
        for apart in (False, True)
    }
    # And without samples by what was measured of both.
    bare = build(tmp_path / "c.trace", [], files(("/d", "data", 0)), compressibility=measured)
    content = content_pools(bare, tmp_path / "pools")[content_name("data", 8192)].read_bytes()
    assert len(compressor("lz4")(content)) > 0.99 * len(content)


def test_blocks_that_are_short_shift_no_others(tmp_path: Path) -> None:
    """Files of 4 KiB among those of pages of 16 KiB, half of which is noise."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(noise(4096))
    large.write_bytes(b"".join(noise(8192) + bytes([65 + n % 20]) * 8192 for n in range(128)))
    listed = [(str(small), 0)] + [(str(large), n * 16384) for n in range(128)]
    touched: Places = {"data": {WRITTEN: {16384: listed}}}
    _, samples = sample_files(
        {str(small): "data", str(large): "data"}, [16384], ["lz4"], keep=tmp_path / "kept", touched=touched
    )
    content = (tmp_path / "kept" / Path(samples[-1].file).name).read_bytes()
    assert samples[-1].recordsize == 16384
    packed = [len(compressor("lz4")(content[at : at + 16384])) for at in range(0, len(content), 16384)]
    assert max(packed) - min(packed) < 50


def test_blocks_that_are_touched_often_are_kept_apart(tmp_path: Path) -> None:
    """Eight blocks, each written sixteen times: a record of 1 MiB has each once."""
    path = tmp_path / "f"
    path.write_bytes(noise(1 << 20))
    listed = [(str(path), n << 17) for n in range(8) for _ in range(16)]
    _, samples = sample_files(
        {str(path): "data"},
        [131072],
        ["lz4"],
        keep=tmp_path / "kept",
        touched={"data": {WRITTEN: {131072: listed}}},
    )
    content = (tmp_path / "kept" / Path(samples[-1].file).name).read_bytes()
    assert len(content) == 16 << 20
    for at in range(0, len(content), CHUNK):
        assert len({content[n : n + 131072] for n in range(at, at + CHUNK, 131072)}) == 8


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
    found = {(e.how, e.ratio < 1.05) for e in changed.compressibility if e.recordsize == 65536}
    assert found == {(WRITTEN, True), ("", False)}
    assert {e.role for e in changed.compressibility} == {"index"}


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, VERSION), (6, VERSION)])
def test_an_older_trace_with_other_roles_has_the_version_of_its_keys(
    tmp_path: Path, before: int, after: int
) -> None:
    """But for those that do not tell `pwrite` from `write`: by their version readers know that."""
    path = tmp_path / "f.db"
    path.write_bytes(noise(1 << 20))
    trace = build(tmp_path / "a.trace", [], [{**files((str(path), None, 0))[0], "size_end": 1 << 20}])
    manifest = trace.manifest.model_copy(update={"version": before})
    (trace.path / "trace.json").write_text(manifest.to_json())
    changed = with_roles(Trace.open(trace.path), RoleRules.parse(["**/*.db=index"], builtin=False).rules)
    assert changed.version == after


@pytest.mark.parametrize("touched", [False, True])
def test_of_zeros_that_a_sample_lacks_there_is_a_warning(tmp_path: Path, touched: bool) -> None:
    """Half of 2 GiB is zeros; what is touched is too little to be kept, or enough."""
    path = tmp_path / "f"
    path.write_bytes((noise(1 << 20) + bytes(1 << 20)) * 4)
    places: Places = {
        "data": {WRITTEN: {4096: [(str(path), n * 4096) for n in range(256 if touched else 3)]}}
    }
    writer = TraceWriter(tmp_path / "a.trace")
    entries, samples = sample_files(
        {str(path): "data"}, [4096], ["lz4"], keep=writer.samples_dir, touched=places
    )
    assert [one.how for one in samples] == (["", WRITTEN] if touched else [""])
    listed = files((str(path), "data", 2 << 30))
    made = {"duration_ns": 1, "recorder": {"name": "synthetic"}, "files": listed}
    trace = Trace.open(writer.finish(**made, compressibility=entries, samples=samples))
    warnings: list[str] = []
    content_pools(trace, tmp_path / "pools", warnings)
    assert any("holes or zeros" in one for one in warnings) is not touched
