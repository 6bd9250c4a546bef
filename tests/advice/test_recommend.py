"""From trials to a recommendation: what is chosen, with which evidence, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import evidence as ev
import pytest

from ztune.advice.job import title
from ztune.advice.model import PropertyAdvice, Recommendation
from ztune.advice.recommend import recommend
from ztune.analysis.choose import plainest
from ztune.analysis.rank import defaults_of, rank
from ztune.analysis.results import collect
from ztune.errors import InputError
from ztune.report.terminal import said
from ztune.store.records import Trial
from ztune.study import Objective
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.manifest import content_unknown

BASE = parse_layout(ev.base_layout())


def measure(time: float, space: float = 1e9, written: float = 1e9, **more: Any) -> dict[str, Any]:
    return {
        "model": {"modelled_s": time, "trace_s": 100.0},
        "space": {"allocated": space, "logical": 2e9},
        "physical": {"write_bytes": written},
        **more,
    }


def run_of(*entries: tuple[dict[str, str], dict[str, Any]]) -> list[Trial]:
    """Return trials of layouts given as changes to the base, which comes first."""
    return [
        ev.trial(with_settings(BASE, changes, ev.name_of(changes)), n, result, baseline=n == 1)
        for n, (changes, result) in enumerate(entries, start=1)
    ]


def chosen(trials: list[Trial], **objective: Any) -> Recommendation:
    run = ev.run(Objective(**objective), options=ev.WITH_LOG)
    return recommend(run, trials, manifest=ev.manifest())


def prop(r: Recommendation, role: str, name: str) -> PropertyAdvice:
    advice = next(a for a in r.roles if a.role == role)
    return next(p for p in advice.properties if p.name == name)


FULL = recommend(ev.run(), ev.trials(fail=("data.recordsize=64K",)), manifest=ev.manifest())


def test_every_property_back_at_its_default_is_backed_by_a_pair_that_differs_in_it_alone() -> None:
    trials = {t.number: t for t in ev.trials(fail=("data.recordsize=64K",))}
    checked = 0
    for role in FULL.roles:
        for item in role.properties:
            if item.is_default:
                continue
            assert item.change.verdict in {"better", "trade-off"}
            here, other = (trials[n] for n in item.change.trials)
            a, b = here.layout.settings(), other.layout.settings()
            key = next(k for k in a if a[k] != b[k])
            assert [k for k in a if a[k] != b[k]] == [key]
            assert key.endswith(f".{item.name}")
            assert (a[key], b[key]) == (item.value, item.default)
            for side in item.change.sides:
                if side.metric == "modelled_s":
                    assert side.here == here.measure["model"]["modelled_s"]
                    assert side.other == other.measure["model"]["modelled_s"]
            checked += 1
    assert checked


def test_the_sentence_names_time_space_and_bytes() -> None:
    text = prop(FULL, "data", "recordsize").change.sentence
    assert text.startswith("Back at 128K: modelled time ×")
    assert "space" in text
    assert "bytes written" in text


def test_it_is_json() -> None:
    again = Recommendation.model_validate_json(FULL.model_dump_json())
    assert again == FULL


def test_a_property_without_effect_stays_at_its_default() -> None:
    # The winner sets two things; one of them changes nothing by more than the tolerance.
    trials = run_of(
        ({}, measure(100)),
        ({"data.recordsize": "8K"}, measure(50.5)),
        ({"data.recordsize": "8K", "wal.recordsize": "1M"}, measure(50, space=0.9e9)),
    )
    trials[2] = ev.trial(trials[2].layout, 3, measure(50, space=0.97e9))
    r = chosen(trials)
    assert r.layout_name == "data.recordsize=8K"
    assert prop(r, "wal", "recordsize").is_default
    assert prop(r, "data", "recordsize").value == "8K"


def test_small_steps_to_the_defaults_do_not_add_up() -> None:
    a, b = {"data.compression": "zstd-3"}, {"wal.compression": "zstd-3"}
    trials = run_of(
        ({}, measure(109)),
        (a, measure(104)),  # each step costs 4–5 %, both together 9 %
        (b, measure(104.5)),
        ({**a, **b}, measure(100)),
    )
    places, _ = rank(collect(trials), within=0.05, defaults=defaults_of(collect(trials).layouts, None))
    defaults = {"data.compression": "lz4", "wal.compression": "lz4"}
    got = plainest([p.result for p in places], ("modelled_s", "allocated", "written"), 0.05, defaults)
    assert got.name in {"data.compression=zstd-3", "wal.compression=zstd-3"}
    assert got.name != "base"


def test_a_plainer_layout_that_costs_space_is_not_taken() -> None:
    trials = run_of(({}, measure(100, space=2e9)), ({"data.compression": "zstd-3"}, measure(99, space=1e9)))
    assert chosen(trials).layout_name == "data.compression=zstd-3"


def test_logbias_throughput_has_to_pay_in_time() -> None:
    base, other = {"data.recordsize": "8K"}, {"data.recordsize": "8K", "data.logbias": "throughput"}
    saves_writes = run_of(({}, measure(100)), (base, measure(50)), (other, measure(51, written=0.5e9)))
    assert chosen(saves_writes).layout_name == "data.recordsize=8K"
    saves_time = run_of(({}, measure(100)), (base, measure(50)), (other, measure(40)))
    assert chosen(saves_time).layout_name == "data.recordsize=8K, data.logbias=throughput"


def test_logbias_throughput_has_to_pay_in_time_against_every_layout() -> None:
    """The one that differs in logbias alone is too slow; another, without it, is the fastest of all."""
    small, large = {"wal.recordsize": "32K"}, {"wal.recordsize": "32K", "data.recordsize": "1M"}
    other = {**small, "wal.logbias": "throughput"}

    def best(space: float) -> str:
        found = chosen(
            run_of(
                ({}, measure(146, written=1.72e9)),
                (small, measure(127, written=1.22e9)),
                (other, measure(121, written=1.09e9)),
                (large, measure(120, space=space, written=1.21e9)),
            )
        )
        return found.layout_name

    assert best(space=1e9) == "wal.recordsize=32K, data.recordsize=1M"
    assert best(space=1.1e9) == "wal.recordsize=32K, wal.logbias=throughput"  # space is no gain of logbias


def test_a_layout_that_nearly_fits_in_the_arc_limits_the_trust() -> None:
    def reasons(allocated: float) -> str:
        found = measure(100, space=allocated)
        found["arc"] = {**found.get("arc", {}), "c_max": 64 << 20}
        return " ".join(chosen(run_of(({}, found))).confidence.reasons)

    assert "1.5 times the modelled ARC" in reasons(1.5 * (64 << 20))
    assert "times the modelled ARC" not in reasons(3.0 * (64 << 20))
    # The base is kept, so there is no gain that could come from memory.
    assert "part of its gain" not in reasons(1.5 * (64 << 20))


@pytest.mark.parametrize("sampled", [1, 4])
def test_what_is_read_ahead_of_a_scan_is_no_database_in_memory(sampled: int) -> None:
    """A scan finds in the ARC what was read ahead of it, however much larger than that the database is. A
    sample's replay has a part of the ARC, and counts the bytes and the space of all."""
    arc = 64 << 20

    def reasons(read: float, allocated: float) -> str:
        hits = {"demand_data_hits": 205762, "demand_data_misses": 1010}
        found = measure(100, space=allocated, arc={"c_max": arc // sampled, **hits})
        found["physical"] = {**found["physical"], "read_bytes": read}
        return " ".join(chosen(run_of(({}, found))).confidence.reasons)

    assert "the database fits in the modelled ARC" in reasons(0.9 * arc, 0.9 * arc)
    assert "fits in the modelled ARC" not in reasons(2.5 * arc, 2.7 * arc)
    assert "in 0.9 times the modelled ARC" in reasons(0.9 * arc, 0.9 * arc)


def test_memory_explains_a_gain_only_where_the_base_does_not_fit() -> None:
    def reasons(base: float, other: float) -> str:
        arc = 64 << 20
        found = [
            measure(time, space=times * arc, arc={"c_max": arc}) for time, times in ((100, base), (50, other))
        ]
        r = chosen(run_of(({}, found[0]), ({"data.compression": "zstd-3"}, found[1])))
        assert r.layout_name == "data.compression=zstd-3"
        return " ".join(r.confidence.reasons)

    assert "1.2 times the modelled ARC, which keeps blocks compressed: part of its gain" in reasons(2.5, 1.2)
    said = reasons(0.02, 0.01)
    assert "in a part of the modelled ARC" in said and "part of its gain" not in said


@pytest.mark.parametrize("code", ["cold", "untouched"])
@pytest.mark.parametrize(
    ("reads", "full", "changes", "said"),
    [
        ((9000, 1000), 0.5, {"data.recordsize": "1M"}, True),
        ((9000, 1000), 0.95, {"data.recordsize": "1M"}, False),  # it dropped what it had
        ((9000, 8990), 0.5, {"data.recordsize": "1M"}, False),
        ((100, 10), 0.5, {"data.recordsize": "1M"}, False),  # few beside the writes
        ((9000, 1000), 0.5, {"data.recordsize": "1M", "data.primarycache": "metadata"}, False),
    ],
)
def test_a_gain_by_first_reads_is_none_of_a_database_that_runs(
    code: str, reads: tuple[int, int], full: float, changes: dict[str, str], said: bool
) -> None:
    found = [
        measure(time, arc={"c_max": 1000, "size_max": 1000 * full})
        | {"physical": {"reads": count, "writes": 5000, "write_bytes": 1e9}}
        for time, count in zip((100, 50), reads, strict=True)
    ]
    trials = run_of(({}, found[0]), (changes, found[1]))
    warned = ev.manifest(warnings=[{"code": code, "message": "How the caches were."}])
    r = recommend(ev.run(Objective()), trials, manifest=warned)
    assert r.layout_name == ev.name_of(changes)
    if not said or code == "untouched":
        assert "was the first of its record" not in " ".join(r.confidence.reasons)
        return
    assert r.confidence.level == "weak"
    assert r.confidence.reasons[0].startswith(
        "The ARC was 50% full at most, so that each read from disk, 9,000 under the base layout and 1,000 "
        "here, was the first of its record; once a database has run for a while, such reads no longer come"
    )
    kept = recommend(ev.run(Objective()), trials[:1], manifest=warned)
    assert kept.confidence.level == "limited" and "9,000 of them" in kept.confidence.reasons[0]


def test_durability_comes_before_speed() -> None:
    trials = run_of(({}, measure(100)), ({"data.sync": "disabled", "wal.sync": "disabled"}, measure(1)))
    r = chosen(trials)
    assert r.layout_name == "base"
    assert [row.layout for row in r.ranking] == ["base"]
    assert [row.rank for row in r.set_apart] == [None]
    assert "not comparable" in r.weaker
    assert "has modelled time ×0.01" in r.weaker


def test_an_allowed_weaker_class_names_the_best_stronger_one() -> None:
    trials = run_of(({}, measure(100)), ({"data.sync": "disabled", "wal.sync": "disabled"}, measure(10)))
    r = chosen(trials, durability="last-seconds")
    assert r.durability.klass == "last-seconds"
    assert "stronger class nothing-acknowledged is base" in r.weaker
    assert "×10" in r.weaker


def test_the_baselines_own_class_is_allowed() -> None:
    weak = with_settings(BASE, {"data.sync": "disabled", "wal.sync": "disabled"}, "today")
    weaker_and_faster = with_settings(weak, {"data.recordsize": "8K"}, "faster")
    trials = [ev.trial(weak, 1, measure(100), baseline=True), ev.trial(weaker_and_faster, 2, measure(10))]
    assert chosen(trials).layout_name == "faster"


def test_nothing_durable_enough_is_said() -> None:
    weak = with_settings(BASE, {"data.checksum": "off"}, "weak")
    with pytest.raises(InputError, match="no layout of durability class nothing-acknowledged or better"):
        chosen([ev.trial(weak, 1, measure(1))])


def test_nothing_finished_is_said() -> None:
    with pytest.raises(InputError, match='all 1 layouts failed, the first \\("base"\\) with: no space'):
        chosen([ev.trial(BASE, 1, status="failed", error="no space")])
    with pytest.raises(InputError, match="no finished layout yet"):
        chosen([ev.trial(BASE, 1, status="pending")])


def test_no_pair_is_said_and_lowers_the_confidence() -> None:
    both = {"data.recordsize": "8K", "data.compression": "off"}
    r = chosen(run_of(({}, measure(100)), (both, measure(50))))
    change = prop(r, "data", "recordsize").change
    assert change.verdict == "not screened alone"
    assert change.sentence.startswith(
        "Not screened alone: no two layouts of this run differ only in data.recordsize"
    )
    assert r.confidence.level == "limited"
    assert any(
        "data.recordsize, data.compression" in t or "data.compression" in t for t in r.confidence.reasons
    )


def test_a_setting_has_one_name_whatever_its_dataset_is_called() -> None:
    raw = ev.base_layout(
        dataset=[{"name": "tank/pg", "roles": ["data", "index"]}, {"name": "tank/pg/x", "roles": ["wal"]}]
    )
    base = parse_layout(raw)
    both = with_settings(base, {"data.recordsize": "8K", "data.compression": "off"}, "both")
    trials = [ev.trial(base, 1, measure(100), baseline=True), ev.trial(both, 2, measure(50))]
    said = next(t for t in chosen(trials).confidence.reasons if t.startswith("Not screened alone"))
    assert said.startswith("Not screened alone: data.recordsize, data.compression. ")


def test_what_has_something_where_there_is_nothing_now_is_no_better() -> None:
    def counted(time: float, flushes: int) -> dict[str, Any]:
        return measure(time, physical={"write_bytes": 1e9, "flushes": flushes})

    trials = run_of(
        ({}, counted(100, 0)),
        ({"data.recordsize": "8K"}, counted(100, 9)),
        ({"data.recordsize": "16K"}, counted(150, 0)),
    )
    change = prop(chosen(trials, minimise=("flushes", "modelled_s")), "data", "recordsize").change
    assert change.other == "16K" and change.sentence.index("16K (") < change.sentence.index("8K ("), change


def test_a_pair_in_another_context_is_quoted_as_such() -> None:
    trials = run_of(
        ({}, measure(100)),
        ({"data.recordsize": "8K"}, measure(60)),
        ({"data.recordsize": "8K", "data.compression": "zstd-3", "slog": "nvme"}, measure(10)),
    )
    change = prop(chosen(trials), "data", "recordsize").change
    assert change.verdict == "not screened alone"
    assert change.elsewhere
    assert change.trials == [2, 1]
    assert change.sentence.startswith(
        "Not screened alone beside this layout. In another context (data.recordsize=8K): back"
    )


def test_a_default_of_which_others_were_tried_with_other_changes_says_so() -> None:
    trials = run_of(
        ({}, measure(100)), ({"wal.logbias": "throughput", "data.recordsize": "8K"}, measure(150))
    )
    bias = prop(chosen(trials), "wal", "logbias")
    assert bias.change.sentence == "The default. Screened with other changes only: throughput."
    assert said(bias) and bias.change.verdict == "default"
    checksum = prop(chosen(trials), "wal", "checksum")
    assert checksum.change.sentence == "The default. No other value was screened." and not said(checksum)


def test_a_default_says_what_was_tried_instead() -> None:
    trials = run_of(
        ({}, measure(100)), ({"data.recordsize": "8K"}, measure(150)), ({"slog": "nvme"}, measure(120))
    )
    r = chosen(trials)
    assert (
        prop(r, "data", "recordsize").change.sentence
        == "The default. Tried instead: 8K (modelled time ×1.50)."
    )
    slog = next(p for p in r.pools if p.setting == "slog")
    assert slog.change is not None
    assert slog.change.sentence == "The default. Tried instead: nvme (modelled time ×1.20)."
    assert (
        r.verdict
        == "Keep the base layout (base): by the objective no other of 3 layouts is better by more than 5%."
    )


def test_an_interaction_is_said() -> None:
    sentence = prop(FULL, "data", "recordsize").change.sentence
    assert "Over 2 pairs modelled time changes by" in sentence
    assert "depends on the other settings" in sentence


def test_the_objective_can_be_changed() -> None:
    trials = run_of(({}, measure(100, space=1e9)), ({"data.recordsize": "8K"}, measure(50, space=2e9)))
    assert chosen(trials).layout_name == "data.recordsize=8K"
    assert chosen(trials, minimise=("allocated",)).layout_name == "base"
    assert (
        chosen(trials, within=0.9999, minimise=("modelled_s", "allocated")).layout_name
        == "data.recordsize=8K"
    )


def test_space_is_given_for_the_files_not_for_the_records_that_hold_them() -> None:
    """390 MiB of records held 218 MiB of files, and 4.30 was the padding's ratio."""
    space = {"allocated": 100 << 20, "files": 218 << 20, "logical": 390 << 20, "compression_ratio": 2.4}
    [cost] = [c for c in chosen(run_of(({}, measure(10) | {"space": space}))).costs if c.subject == "space"]
    assert cost.sentence == "100 MiB allocated for 218 MiB of files, compressed ×2.40."
    older = {"allocated": 100 << 20, "logical": 390 << 20, "compression_ratio": 4.3}
    [cost] = [c for c in chosen(run_of(({}, measure(10) | {"space": older}))).costs if c.subject == "space"]
    assert cost.sentence == "100 MiB allocated."


def test_wear_is_given_per_byte_and_per_transaction() -> None:
    labels = {c.label: c for c in FULL.costs}
    per = labels["Bytes written per transaction"]
    row = next(r for r in FULL.ranking if r.recommended)
    assert per.value == row.values["written"] / 20_000
    assert "Bytes written per byte asked" in labels


def test_processor_time_of_different_jobs_is_given_per_transaction_in_all_its_parts() -> None:
    host = {"seconds": 0.2, "compress_s": 0.15, "datasets": [{"name": "tank/data", "seconds": 0.1}]}
    trials = run_of(
        ({}, measure(10, processor={"host": {"seconds": 0.1}})),
        ({"data.recordsize": "8K"}, measure(1, processor={"host": host})),
    )
    job = {"operations": 1000, "unit": "transaction"}
    trials = [
        replace(t, trace_sha=f"{t.number}" * 64, result={**(t.result or {}), "job": job}) for t in trials
    ]
    [cost] = [c for c in chosen(trials).costs if c.subject == "processor"]
    assert (cost.label, cost.baseline) == ("Processor time for data per transaction", 0.0001)
    assert cost.sentence == (
        "200 µs of processor time for data per transaction; of it compression 150 µs; "
        "by dataset tank/data 100 µs."
    )


def test_memory_names_the_l2arc_headers() -> None:
    layout = with_settings(BASE, {"data.recordsize": "8K", "l2arc": "nvme"}, "cached")
    trials = [ev.trial(layout, 1, measure(1, l2arc={"size_end": 1 << 30}), baseline=True)]
    memory = next(c for c in chosen(trials).costs if c.subject == "memory")
    assert "12.0 MiB per GiB cached at recordsize 8K" in memory.sentence  # 2^30 / 8 KiB × 96 bytes


def test_a_recording_that_was_cut_lost_no_events_before() -> None:
    r = recommend(ev.run(), ev.trials(), manifest=ev.manifest(complete=False))
    assert not any("lost events" in reason for reason in r.confidence.reasons)


@pytest.mark.parametrize(
    ("changes", "words", "level"),
    [
        ({"dropped": 7, "complete": False}, "The trace is incomplete", "weak"),
        (
            {"warnings": [{"code": "shared-mmap", "message": "A shared map was written."}]},
            "not in the trace",
            "weak",
        ),
        ({"duration_ns": 8_000_000_000}, "The trace is short (8.00 s)", "limited"),
        ({"duration_ns": 4_000_000_000_000}, "did not wait for these disks", "limited"),
    ],
)
def test_doubts_about_the_trace_lower_the_confidence(changes: dict[str, Any], words: str, level: str) -> None:
    r = recommend(ev.run(), ev.trials(), manifest=ev.manifest(**changes))
    assert r.confidence.level == level
    assert any(words in reason for reason in r.confidence.reasons)


@pytest.mark.parametrize(
    ("share", "measured", "doubted"), [(0.9, False, True), (0.9, True, False), (0.01, False, False)]
)
def test_content_that_was_made_up_lowers_the_confidence(share: float, measured: bool, doubted: bool) -> None:
    """The first screen's space rests on it; a dataset that takes little of it does not matter."""
    lz4 = {"role": "data", "algorithm": "lz4", "recordsize": 131072, "blocks": 9, "ratio": 1.5}
    layouts = ev.layouts()
    trials = []
    for n, layout in enumerate(layouts, 1):
        result = ev.toy_measure(layout)
        whole = result["space"]["allocated"]
        result["space"]["datasets"] = [{"name": layout.datasets[0].name, "allocated": share * whole}]
        trials.append(ev.trial(layout, n, result, baseline=n == 1))
    run, manifest = ev.run(warnings=[content_unknown("data")]), ev.manifest(compressibility=[lz4] * measured)
    r = recommend(run, trials, manifest=manifest)
    expected = (
        "How well the files of role data compress was not measured: their space, and what compression saves, "
        "are those of content that lz4 compresses 2:1."
    )
    assert [text for text in r.confidence.reasons if "was not measured" in text] == [expected] * doubted
    assert not doubted or r.confidence.level == "limited"


def test_nothing_against_it_is_fair_and_never_more() -> None:
    r = chosen(run_of(({}, measure(100)), ({"data.recordsize": "8K"}, measure(50))))
    assert r.confidence.level == "fair"
    assert "not measured" in r.confidence.sentence


def test_warnings_of_trace_run_and_replay_are_repeated() -> None:
    layouts = ev.layouts()
    trials = [
        ev.trial(y, n, ev.toy_measure(y), baseline=n == 1, warnings=["W-replay."] if n == 1 else [])
        for n, y in enumerate(layouts, 1)
    ]
    manifest = ev.manifest(
        warnings=[{"code": "x", "message": "W-trace.", "count": 3}], dropped=5, complete=False
    )
    # A run keeps the trace's own as well: they are said once.
    r = recommend(ev.run(warnings=["W-trace.", "W-run."]), trials, manifest=manifest)
    assert r.warnings == [
        "The recorder lost 5 events; the trace is incomplete.",
        "W-trace. (3×)",
        "W-run.",
        "W-replay.",
    ]


def test_a_base_whose_direct_io_a_power_cut_takes_is_told_so() -> None:
    base = replace(with_settings(BASE, {"slog": "nvme"}, "base"), direct=("data",))
    mended = with_settings(base, {"data.direct": "disabled"}, "mended")
    trials = [
        ev.trial(layout, n, measure(time), baseline=n == 1)
        for n, (layout, time) in enumerate(((base, 100), (mended, 50)), 1)
    ]
    r = chosen(trials)
    assert (r.layout_name, r.durability.klass) == ("mended", "nothing-acknowledged")
    assert [row.durability for row in r.ranking if row.baseline] == ["corrupt"]
    [said] = [text for text in r.warnings if "With the base layout, as it is now" in text]
    assert "Direct I/O on tank/" in said and "direct=disabled keeps them" in said
    said_of = prop(r, "data", "direct")
    assert said_of.value == "disabled" and "goes through the ARC" in said_of.reason


def test_without_the_trace_it_says_so() -> None:
    r = recommend(ev.run(), ev.trials())
    assert any("no longer where the run read it" in reason for reason in r.confidence.reasons)


def test_what_was_not_tested_lists_properties_with_one_value() -> None:
    first = FULL.not_tested[0]
    assert "copies=1" in first
    assert "redundant_metadata=all" in first
    assert "recordsize" not in first


def test_nothing_modelled_is_called_measured() -> None:
    text = FULL.model_dump_json()
    for around in text.split("measured")[:-1]:
        assert around.endswith(("not ", "nothing was ", "none is "))


def test_what_was_better_elsewhere_but_not_tried_here_is_said() -> None:
    trials = run_of(
        ({}, measure(100)),
        ({"slog": "nvme"}, measure(30)),
        (
            {"data.compression": "zstd-3"},
            measure(80),
        ),  # better beside the base, not tried beside the log device
        ({"data.recordsize": "8K"}, measure(150)),
        ({"data.sync": "disabled", "wal.sync": "disabled"}, measure(1)),
    )
    r = chosen(trials)
    assert r.layout_name == "slog=nvme"
    (said,) = [t for t in r.confidence.reasons if t.startswith("Better in another context")]
    assert "data.compression=zstd-3 (modelled time ×0.80)" in said
    assert "recordsize" not in said
    assert "sync" not in said
    tried = run_of(
        ({}, measure(100)),
        ({"slog": "nvme"}, measure(30)),
        ({"data.compression": "zstd-3"}, measure(80)),
        ({"data.compression": "zstd-3", "slog": "nvme"}, measure(40)),
    )
    assert not [t for t in chosen(tried).confidence.reasons if t.startswith("Better in another context")]


@pytest.mark.parametrize(
    ("job", "study", "trace", "said"),
    [
        ({"workload": "postgres-oltp"}, "mine", "/t/a.trace", "postgres-oltp"),
        ({"workload": "command", "params": {"file_text": 'name = "ours"\n'}}, "mine", "/t/a.trace", "ours"),
        ({"workload": "command", "params": {"file_text": "name = "}}, "mine", "/t/a.trace", "command"),
        ({"workload": "command", "params": {}}, "mine", "/t/a.trace", "command"),
        ({}, "mine", "/t/a.trace", "mine"),
        ({}, "generic", "/t/shop.trace", "shop"),
        ({}, "generic", "", "generic"),
    ],
)
def test_what_people_call_the_job(job: dict[str, Any], study: str, trace: str, said: str) -> None:
    assert title(ev.run(job=job, study={"name": study}, trace_path=trace), None) == said
