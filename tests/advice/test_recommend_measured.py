"""From a measured run to a recommendation: chosen by what was measured, and marked as what it is."""

from __future__ import annotations

import json
from typing import Any

import evidence as ev
import pytest

from ztune.advice.commands import script
from ztune.advice.evidence import matters
from ztune.advice.model import Change, Recommendation
from ztune.advice.recommend import recommend
from ztune.analysis.metrics import MEASURED
from ztune.analysis.paired import Ratio
from ztune.analysis.verdict import outcome
from ztune.errors import InputError
from ztune.report import brief, markdown
from ztune.runs.options import TrialOptions
from ztune.runs.stopping import judge
from ztune.store.records import Run, Trial
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.left_out import LeftOut

BASE = parse_layout(ev.base_layout())
# What each layout needs for one operation: seconds, bytes written, bytes read, disk writes.
COSTS: dict[str, tuple[dict[str, str], tuple[float, float, float, float]]] = {
    "base": ({}, (0.020, 120_000, 9_000, 4.0)),
    "8K": ({"data.recordsize": "8K"}, (0.012, 54_000, 3_000, 5.0)),
    "8K, log device": ({"data.recordsize": "8K", "slog": "nvme"}, (0.006, 56_000, 3_000, 5.2)),
    "log device": ({"slog": "nvme"}, (0.011, 121_000, 9_000, 4.1)),
    "8K, unsynced": (
        {"data.recordsize": "8K", "data.sync": "disabled", "wal.sync": "disabled"},
        (0.002, 40_000, 3_000, 3.0),
    ),
}  # fmt: skip


def trials(blocks: int = 5, costs: Any = COSTS, noise: float = 0.01) -> list[Trial]:
    out: list[Trial] = []
    for block in range(1, blocks + 1):
        for i, (name, (changes, cost)) in enumerate(costs.items()):
            wobble = 1 + noise * (((block * 7 + i * 3) % 5) - 2) / 2
            seconds, written, read, writes = (c * wobble for c in cost)
            n = 1000
            measure = {
                "seconds": seconds * n,
                "operations": n,
                "physical": {
                    "reads": n * 0.5, "read_bytes": read * n, "writes": writes * n, "flushes": n,
                    "write_bytes": written * n,
                },
                "logical": {"read_bytes": n * 8192, "write_bytes": n * 16384},
                "space": {"allocated": 1e9, "logical": 2e9, "compression_ratio": 2.0, "by_dataset": [
                    {"name": "tank/data", "used": 9e8, "logical": 1.8e9, "ratio": 2.0}]},
            }  # fmt: skip
            layout = with_settings(BASE, changes, name)
            made = ev.trial(layout, len(out) + 1, measure, baseline=name == "base")
            result = {**(made.result or {}), "job": {"operations": n, "per_second": 1 / seconds}}
            fields = {**vars(made), "block": block, "target": "lab", "result": result, "engine_version": None}
            out.append(Trial(**fields))
    return out


def run(of: list[Trial], accel: str = "kvm", kind: str = "lab", **changes: Any) -> Run:
    made = ev.run(
        kind="run", trace_path="", trace_sha="", target={"kind": kind, "name": kind, "accel": accel},
        job={"workload": "postgres-oltp", "params": {}}, options={"resolution": 0.02, **ev.WITH_LOG},
        **changes,
    )  # fmt: skip
    found = judge(made, of, TrialOptions())
    if found is None:
        return made
    names = {t.arm: t.layout_name for t in of}
    return Run(**{**vars(made), "outcome": outcome(*found, "settled", names)})


def advised(
    of: list[Trial] | None = None, screened: list[Trial] | None = None, **changes: Any
) -> Recommendation:
    found = trials() if of is None else of
    return recommend(run(found, **changes), found, screened=screened or [])


def change_of(r: Recommendation, role: str, name: str) -> Change:
    advice = next(a for a in r.roles if a.role == role)
    return next(p for p in advice.properties if p.name == name).change


def test_the_measured_leader_is_recommended_and_backed_by_pairs() -> None:
    found = advised()
    assert found.basis == "measured" and found.layout_name == "8K, log device"
    change = change_of(found, "data", "recordsize")
    assert (change.basis, change.other, change.verdict) == ("measured", "128K", "better")
    assert (change.here_layout, change.other_layout) == ("8K, log device", "log device")
    side = next(s for s in change.sides if s.metric == "written")
    assert side.ratio == pytest.approx(121_000 / 56_000, rel=0.02)
    assert side.low is not None and side.high is not None and side.low < side.ratio < side.high  # type: ignore[operator]
    assert side.blocks == 5 and side.matters
    assert change.sentence.startswith("Measured over 5 blocks, back at 128K:")
    once = change_of(advised([one for one in trials() if one.block == 1]), "data", "recordsize")
    assert "Measured over 1 block, " in once.sentence
    slog = next(p for p in found.pools if p.setting == "slog")
    assert slog.change is not None and slog.change.other_layout == "8K" and slog.change.verdict == "trade-off"


def test_where_the_time_is_not_resolved_it_says_what_else_differs_clearly() -> None:
    """The user of an SSD pays for each byte, whatever the time is."""
    costs = {
        "base": ({}, (0.0060, 206_000, 9_000, 4.0)),
        "4K": ({"data.recordsize": "4K"}, (0.0059, 73_000, 3_000, 5.0)),
        "64K": ({"data.recordsize": "64K"}, (0.0060, 206_000, 9_000, 4.0)),
        "1M": ({"data.recordsize": "1M"}, (0.0120, 900_000, 9_000, 4.0)),
    }  # fmt: skip
    found = advised(trials(2, costs, 0.05))
    assert found.layout_name == "base"
    written = "bytes written per op 206 KiB → 69.5 KiB (×0.34)"
    assert found.clear == [f"Not resolved in time per op, but {written}: 4K."]
    shown = " ".join("\n".join(line.plain for line in brief.lines(brief.of(found))).split())
    assert f"Differs Not resolved in time per op, but {written}: 4K. How sure" in shown
    assert "**Differs clearly**" in markdown.of(found)
    assert advised().clear == []  # there the time is
    same = advised(trials(8, {**costs, "4K": (costs["4K"][0], (0.0060, *costs["4K"][1][1:]))}, 0.001))
    assert same.clear == ["Equal in time per op, but bytes written per op 201 KiB → 71.3 KiB (×0.35): 4K."]


def test_what_was_not_measured_alone_says_so() -> None:
    found = advised([t for t in trials() if t.layout_name != "log device"])
    change = change_of(found, "data", "recordsize")
    assert change.verdict == "not measured alone" and change.sides == []
    untouched = change_of(found, "wal", "recordsize")
    assert untouched.verdict == "default" and "No other value was measured" in untouched.sentence


def test_an_emulated_run_says_it_everywhere() -> None:
    found = advised(accel="tcg")
    assert found.basis == "emulated"
    assert "its seconds are not those of any machine" in found.evidence()
    assert found.confidence.level == "limited"
    assert any("hardware virtualisation" in text for text in found.confidence.reasons)
    for advice in found.roles:
        for item in advice.properties:
            assert item.change.basis == "emulated"
            for side in item.change.sides:
                assert side.label.endswith("(emulated)") == MEASURED[side.metric].clock
    # Ordered by operations and bytes: the seconds of an emulated CPU must not decide.
    assert found.minimise[:2] == ["ios", "bytes"]
    text = script(found)
    # The cuts that it cites were modelled; what it was measured with was not.
    said = " ".join(text.split("run() {")[0].replace("\n#", " ").split()).replace("modelled power cuts", "")
    assert "emulated lab" in said and "modelled" not in said


def test_confidence_is_never_better_than_what_was_done() -> None:
    assert advised(kind="local").confidence.level == "good"
    assert advised(kind="lab").confidence.level == "limited"
    once = advised(trials(blocks=1), kind="local")
    assert once.confidence.level == "weak" and "1 trial of this layout" in once.evidence()
    assert advised(kind="local", status="interrupted").confidence.level == "limited"
    alone = advised([t for t in trials() if t.is_baseline or t.layout_name == "8K, unsynced"], kind="local")
    assert alone.confidence.level == "limited" and alone.layout_name == "base"
    assert alone.confidence.reasons[0].startswith("Nothing was compared")
    without = [t for t in trials() if not t.is_baseline]
    with pytest.raises(InputError, match="the baseline has no result yet"):
        advised(without, kind="local")


def test_weaker_durability_is_set_apart_however_fast() -> None:
    found = advised()
    assert [row.layout for row in found.set_apart] == ["8K, unsynced"]
    assert "8K, unsynced" not in {row.layout for row in found.ranking}
    assert "not comparable" in found.weaker
    assert found.durability.klass == "nothing-acknowledged"


def test_no_difference_keeps_the_baseline() -> None:
    same = {"base": COSTS["base"], "8K": ({"data.recordsize": "8K"}, COSTS["base"][1])}
    found = advised(trials(costs=same))
    assert found.layout_name == "base"
    assert found.verdict.startswith("Keep the base layout")


def test_layouts_of_no_common_block_are_not_known_to_be_better() -> None:
    apart = [
        t for t in trials(blocks=2) if (t.block == 1) == t.is_baseline and t.layout_name in ("base", "8K")
    ]
    assert advised(apart).layout_name == "base"


def test_modelled_evidence_stands_beside_and_apart() -> None:
    layouts = [with_settings(BASE, changes, name) for name, (changes, _) in COSTS.items()]
    found = advised(screened=ev.trials(layouts))
    advice = next(a for a in found.roles if a.role == "data")
    item = next(p for p in advice.properties if p.name == "recordsize")
    assert item.change.basis == "measured"
    assert item.modelled is not None and item.modelled.basis == "modelled"
    assert {s.metric for s in item.modelled.sides} & {"modelled_s"}
    assert not {s.metric for s in item.change.sides} & {"modelled_s"}
    assert all(p.modelled is None for a in advised().roles for p in a.properties)


def test_other_kinds_of_layouts() -> None:
    costs = {
        "base": COSTS["base"],
        "ext4": ({"pool.tank.filesystem": "ext4"}, (0.004, 30_000, 2_000, 2.0)),
        "encrypted": ({"data.encryption": "on"}, (0.021, 120_000, 9_000, 4.0)),
    }
    found = advised(trials(costs=costs))
    assert found.layout_name == "ext4"
    assert all(role.properties == [] for role in found.roles)
    assert "in-place-no-checksums" in {h.id for h in found.hazards}
    assert not {h.about for h in found.hazards} & {"recordsize", "compression", "slog"}
    with pytest.raises(InputError, match="there are no ZFS commands for it"):
        script(found)
    volume = {"base": COSTS["base"], "vol": ({"data.volume": "8G"}, (0.004, 30_000, 2_000, 2.0))}
    found = advised(trials(costs=volume))
    names = {p.name for role in found.roles if role.role == "data" for p in role.properties}
    assert "volblocksize" in names and "recordsize" not in names
    assert "volume-two-caches" in {h.id for h in found.hazards}
    assert next(p for p in found.pools if p.setting == "data.volume").change.other_layout == "base"  # type: ignore[union-attr]
    locked = {"base": COSTS["base"], "enc": ({"data.encryption": "on"}, (0.004, 30_000, 2_000, 2.0))}
    assert "encryption-key" in {h.id for h in advised(trials(costs=locked)).hazards}


def test_it_survives_json_and_nothing_finished_is_an_error() -> None:
    found = advised()
    again = Recommendation.model_validate(json.loads(json.dumps(found.model_dump(mode="json"))))
    assert again == found
    failed = [Trial(**{**vars(t), "status": "failed", "error": "no room", "result": None}) for t in trials(1)]
    with pytest.raises(InputError, match=r"nothing to recommend: all 5 layouts failed.*no room"):
        recommend(run(failed), failed)


@pytest.mark.parametrize(
    ("mean", "low", "high", "answer"),
    [(1.5, 1.4, 1.6, True), (1.5, 0.9, 2.5, False), (1.01, 1.005, 1.015, False), (0.7, 0.6, 0.8, True)],
)
def test_what_matters(mean: float, low: float, high: float, answer: bool) -> None:
    assert matters(Ratio(5, mean, low, high, 0.01, 0.95), 0.02) is answer


def test_who_measured_had_all_files_whatever_a_recording_leaves_out() -> None:
    of = trials()
    found = recommend(run(of), of, left_out=LeftOut(0.9, 0.0, ("/db/*.ldb",)))
    assert found.left_out is None and not found.no_answer and found == recommend(run(of), of)
