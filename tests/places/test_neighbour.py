from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_traces import make_trace

from ztune.errors import InputError
from ztune.places import neighbour
from ztune.places.engine_spec import engine_spec
from ztune.places.neighbour import Neighbour
from ztune.study import generic
from ztune.study.layout import parse_layout
from ztune.trace.reader import Trace


@pytest.mark.parametrize(
    ("text", "found"),
    [("a.trace", ("a.trace", 0.0)), ("a.trace@5", ("a.trace", 5.0)), ("a@b.trace@1.5s", ("a@b.trace", 1.5))],
)
def test_where_the_neighbour_begins(text: str, found: tuple[str, float]) -> None:
    assert neighbour.parse(text) == found


def test_a_folder_with_an_at_sign_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x@2").mkdir()
    assert neighbour.parse(str(tmp_path / "x@2")) == (str(tmp_path / "x@2"), 0.0)


@pytest.mark.parametrize("start", ["", "-1", "nan", "inf", "soon"])
def test_a_start_that_is_none_is_one_sentence(start: str) -> None:
    with pytest.raises(InputError, match=r"is not when a\.trace begins; write TRACE@SECONDS"):
        neighbour.parse(f"a.trace@{start}")


def test_two_recordings_have_to_run_at_one_time(trace: Trace) -> None:
    with pytest.raises(InputError, match="write a smaller @START"):
        Neighbour(trace, trace.duration_s).check(trace)
    late = Neighbour(trace, 0.9 * trace.duration_s)
    late.check(trace)
    assert "averages over all of these" in late.warnings(trace)[0]
    assert Neighbour(trace).warnings(trace) == []


def test_a_neighbour_has_datasets_of_its_own_like_those_of_its_roles() -> None:
    study = generic.build({"data", "index", "wal"}, groups=[("data", "index")])
    layout = replace(study.layout, neighbour=("wal", "index", "data", "backup"))
    made = {d.name: d for d in layout.neighbours()}
    assert sorted(made) == [f"tank/ztune-neighbour-{key}" for key in ("backup", "data", "wal")]
    own = layout.dataset_of("data")
    assert own is not None
    assert made["tank/ztune-neighbour-data"].properties == own.properties
    assert made["tank/ztune-neighbour-backup"].properties["recordsize"] == "128K"
    assert {layout.neighbour_dataset(role) for role in layout.neighbour} == set(made)
    names = [d["name"] for d in engine_spec(study, layout, 1)["datasets"]]
    assert names == [*(d.name for d in layout.datasets), *made]
    # Alone it is the layout that it was: stored ones keep their hash.
    assert "neighbour" not in study.layout.to_json() and layout.hash != study.layout.hash
    assert parse_layout(layout.to_json()) == layout


def test_another_recording_at_its_place_is_noticed(tmp_path: Path, trace: Trace) -> None:
    kept = Neighbour(trace, 0.25).to_json()
    again = Neighbour.kept(kept)
    assert (again.trace.sha, again.start_s) == (trace.sha, 0.25)
    other = make_trace(tmp_path / "other.trace")
    with pytest.raises(InputError, match="another than when the run began"):
        Neighbour.kept({**kept, "path": str(other.path), "sha": "0" * 64})
