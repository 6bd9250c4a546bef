"""What a replayed trace can't answer is refused before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import make_trace
from trace_builder import build, files

from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places.neighbour import Neighbour, joined
from ztune.places.replay import Replay
from ztune.study import generic
from ztune.study.layout import with_settings
from ztune.trace.schema import Op

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pool.tank.filesystem": "ext4"}, r"has ext4 in place of pool tank: the replay engine is OpenZFS"),
        (
            {"wal.volume": "8G", "wal.filesystem": "xfs"},
            r"has tank/wal as a volume with xfs: a trace of files",
        ),
        (
            {"data.encryption": "on"},
            r"changes encryption of tank/data, which the replay engine does not have",
        ),
    ],
)
def test_kinds_of_layouts_that_are_for_real_runs(
    stand_in_engine: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    study = generic.build({"data", "wal"})
    target = Replay(make_trace(tmp_path / "t.trace"), engines.check())
    target.check(study, study.layout)
    with pytest.raises(InputError, match=sentence):
        target.check(study, with_settings(study.layout, changes, "x"))


def test_files_age_with_commits_but_where_the_recording_writes_and_never_syncs(
    stand_in_engine: Path, tmp_path: Path
) -> None:
    roles = ("data", "index", "wal")  # of the index nothing is recorded
    study = generic.build(set(roles))
    target = Replay(make_trace(tmp_path / "t.trace", roles), engines.check())
    spec = target.spec(study, with_settings(study.layout, {"age": "used"}, "x"), 1)
    assert [file["rewrite"]["commits"] for file in spec["files"] if "rewrite" in file] == [False, True, True]


def test_files_that_are_all_but_empty_have_a_content_of_their_own(
    stand_in_engine: Path, tmp_path: Path
) -> None:
    small, large = files(("/db/1_vm", "data", 8192), ("/db/1", "data", 1 << 20))
    read = {"op": Op.READ, "file": 0, "offset": 0, "size": 8192}
    target = Replay(
        build(tmp_path / "t.trace", [read], [{**small, "embedded": True}, large]), engines.check()
    )
    study = generic.build({"data"})
    spec = target.spec(study, study.layout, 1)
    held = [(file["content"], file.get("holds")) for file in spec["files"]]
    assert held == [("data", None), ("data", "embedded")]
    assert target.work(spec).content.keys() == {"data", "embedded"}
    # Beside another recording as well.
    beside = joined(target.trace, target.inputs, Neighbour(target.trace), target.inputs, alone=False)
    two = Replay(target.trace, engines.check(), inputs=beside)
    both = two.spec(study, study.layout, 1)
    held = [(file["content"], file.get("holds")) for file in both["files"]]
    assert held[2:] == [("neighbour-data", None), ("neighbour-data", "neighbour-embedded")]
    assert two.work(both).content.keys() == {"data", "embedded", "neighbour-data", "neighbour-embedded"}


def test_content_is_that_of_the_record_size(stand_in_engine: Path, tmp_path: Path) -> None:
    read = {"op": Op.READ, "file": 0, "offset": 0, "size": 8192}
    target = Replay(build(tmp_path / "t.trace", [read], files(("/db/1", "data", 1 << 20))), engines.check())
    study = generic.build({"data"})
    found = {}
    for size in ("8K", "16K", "16M", "1M"):
        layout = with_settings(study.layout, {"data.recordsize": size})
        found[size] = target.work(target.spec(study, layout, 1)).content["data"]
    assert found["1M"] == found["16M"] and len(set(found.values())) == 3
