"""What a load fills of sparse files is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import build, files

from ztune.trace.content import content_pools
from ztune.trace.holes import filled_holes
from ztune.trace.inputs import UNTOUCHED, content_name
from ztune.trace.manifest import Manifest

GB = 1 << 30


def measured(
    role: str, blocks: int, holes: int, recordsize: int = 4096, touched: bool = False
) -> dict[str, object]:
    return {
        "role": role,
        "recordsize": recordsize,
        "algorithm": "lz4",
        "ratio": 1.0,
        "blocks": blocks,
        "holes": holes,
        "touched": touched,
    }


def manifest(tmp_path: Path, size: int, *entries: dict[str, object]) -> Manifest:
    given = files(("/db/a", "data", size), ("/db/log", "wal", GB), ("/db/x", None, 100 * GB))
    return build(tmp_path / "a.trace", [], given, compressibility=list(entries)).manifest


def test_what_is_filled_is_told_by_the_smallest_blocks(tmp_path: Path) -> None:
    entries = (
        measured("data", 128, 384),
        measured("data", 8, 8, 131072),
        measured("data", 9, 99, touched=True),
    )
    known = manifest(tmp_path, 2 * GB, *entries)
    [said] = filled_holes(known, {"data", "wal"})
    assert "about 1.5 GiB of the files are holes" in said and "role data" in said
    assert filled_holes(known, {"wal"}) == []


@pytest.mark.parametrize(
    ("size", "blocks", "holes"),
    [
        (2 * GB, 512, 0),  # none
        (GB // 8, 0, 512),  # little
        (20 * GB, 450, 62),  # an eighth
        (0, 0, 512),  # it is made in the trace
    ],
)
def test_little_is_not_told(tmp_path: Path, size: int, blocks: int, holes: int) -> None:
    assert filled_holes(manifest(tmp_path, size, measured("data", blocks, holes)), {"data"}) == []


def test_it_is_among_the_warnings_of_a_replay(tmp_path: Path) -> None:
    given = files(("/db/a", "data", 2 * GB))
    trace = build(tmp_path / "a.trace", [], given, compressibility=[measured("data", 4, 508)])
    warnings: list[str] = []
    content_pools(trace, tmp_path, warnings)
    assert any("holes or zeros" in one for one in warnings)
    # Where what is not touched has a content of its own, that has its zeros.
    apart = [measured("data", 4, 508), measured("data", 9, 0, touched=True)]
    trace = build(tmp_path / "b.trace", [], given, compressibility=apart)
    warnings = []
    pools = content_pools(trace, tmp_path, warnings)
    assert warnings == []
    content = pools[content_name("data" + UNTOUCHED, 8192)].read_bytes()
    zeros = sum(not any(content[at : at + 8192]) for at in range(0, len(content), 8192))
    assert zeros == 256 * 508 // 512
    assert pools[content_name("data", 8192)].read_bytes().count(bytes(8192)) == 0
