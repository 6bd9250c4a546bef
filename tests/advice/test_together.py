"""One layout for several jobs: what is chosen by the weights, what it rests on, and what is refused."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence as ev
import measured_trials as made
import pytest

from ztune.advice import weights
from ztune.advice.joint_base import WeighedRun
from ztune.advice.joint_model import JointRecommendation
from ztune.advice.recommend import recommend
from ztune.advice.together import recommend_together
from ztune.analysis.effects import Pair
from ztune.analysis.joint import JobField, Moved, moved
from ztune.analysis.results import collect
from ztune.analysis.standing import standing
from ztune.errors import InputError
from ztune.output import Console
from ztune.report import together
from ztune.store.records import Trial
from ztune.study import DurabilityClass, Objective
from ztune.study.durability import Bar
from ztune.study.layout import parse_layout, with_settings

Changes = Mapping[str, str]


def measure(time: float, space: float = 1e9) -> dict[str, Any]:
    return {
        "model": {"modelled_s": time, "trace_s": 100.0},
        "space": {"allocated": space, "logical": 2e9},
        "physical": {"write_bytes": 1e9},
    }


def trials_of(entries: Sequence[tuple[Changes, float]], base: dict[str, Any] | None = None) -> list[Trial]:
    """Return trials of layouts given as changes to the base, which comes first, with their modelled s."""
    start = parse_layout(base or ev.base_layout())
    return [
        ev.trial(with_settings(start, changes, ev.name_of(changes)), n, measure(time), baseline=n == 1)
        for n, (changes, time) in enumerate(entries, start=1)
    ]


def job(name: str, trials: list[Trial], weight: float = 1.0, per_day: bool = False, **run: Any) -> WeighedRun:
    of = ev.run(**{"id": name, "trace_sha": name, "options": ev.WITH_LOG, **run})
    return WeighedRun(of, trials, recommend(of, trials), weight, per_day)


def records(small: float, large: float) -> list[Trial]:
    """Return a run of three record sizes: 16K and 1M beside the base."""
    return trials_of([({}, 100), ({"data.recordsize": "16K"}, small), ({"data.recordsize": "1M"}, large)])


def value(r: JointRecommendation, role: str, name: str) -> str:
    return next(row for row in r.roles if role in row.roles).properties[name]


def test_jobs_that_agree_get_what_both_want() -> None:
    r = recommend_together([job("oltp", records(50, 120)), job("load", records(60, 110))])
    assert value(r, "data", "recordsize") == "16K"
    assert r.evidence == "tried"
    assert r.conflicts == []
    assert [j.joint_ratio.ratio for j in r.jobs] == [0.5, 0.6]
    assert r.ratio == pytest.approx(0.55)
    assert [j.trials for j in r.jobs] == [[2], [2]]
    assert [j.costs for j in r.jobs] == [1.0, 1.0]


def test_a_metric_that_is_nothing_under_a_base_layout_has_no_ratio() -> None:
    def of(name: str, base: float, small: float) -> WeighedRun:
        start = parse_layout(ev.base_layout())
        made = [
            ev.trial(with_settings(start, changes, ev.name_of(changes)), n, measure(1, size), baseline=n == 1)
            for n, (changes, size) in enumerate([({}, base), ({"data.recordsize": "16K"}, small)], start=1)
        ]
        return job(name, made, objective=Objective(minimise=("allocated",)))

    with pytest.raises(
        InputError, match="allocated is 0 under the base layout of run oltp, so no other layout"
    ):
        recommend_together([of("oltp", 0, 4096), of("load", 1e9, 1e6)])
    # Nothing under every layout is the same under every layout.
    r = recommend_together([of("oltp", 0, 0), of("load", 1e9, 1e6)])
    assert [j.joint_ratio.ratio for j in r.jobs] == [1.0, 0.001]


def test_what_was_nothing_tells_of_no_other_layout() -> None:
    log = {"wal.recordsize": "1M"}
    small, packed = {"data.recordsize": "16K"}, {"data.compression": "zstd-3"}
    found = trials_of([({}, 100), (small, 0), ({**small, **log}, 9), (packed, 50)])
    now = standing(ev.run(options=ev.WITH_LOG), found)
    field = JobField(now, now.minimise[:1], Bar.of(DurabilityClass.NOTHING, now.found.base_layout))
    # What the log's records did is known from nothing to something alone.
    assert field.worth({**field.base.settings, **packed, **log}) is None
    assert field.worth({**field.base.settings, **packed}) is not None


@pytest.mark.parametrize(("oltp", "backup", "wanted"), [(9, 1, "16K"), (1, 9, "1M"), (1, 1, "128K")])
def test_the_weights_decide_between_jobs_that_want_different_things(
    oltp: float, backup: float, wanted: str
) -> None:
    jobs = [job("oltp", records(60, 300), oltp), job("backup", records(300, 60), backup)]
    r = recommend_together(jobs)
    assert value(r, "data", "recordsize") == wanted
    [conflict] = r.conflicts
    assert conflict.setting == "data.recordsize"
    by_value = {c.value: c for c in conflict.choices}
    assert by_value["16K"].wanted_by == ["oltp"]
    assert by_value["1M"].wanted_by == ["backup"]
    assert [c.value for c in conflict.choices if c.chosen] == [wanted]
    chosen = {"16K": (60, 300), "1M": (300, 60), "128K": (100, 100)}[wanted]
    assert by_value["1M"].ratios["oltp"].ratio == pytest.approx(300 / chosen[0])
    assert by_value["16K"].ratios["backup"].ratio == pytest.approx(300 / chosen[1])


def test_times_a_day_are_the_seconds_of_a_day() -> None:
    backup = trials_of([({}, 1000), ({"data.recordsize": "16K"}, 1300), ({"data.recordsize": "1M"}, 500)])
    daily = recommend_together([job("oltp", records(60, 150), 1, True), job("backup", backup, 1, True)])
    assert [j.share for j in daily.jobs] == pytest.approx([100 / 1100, 1000 / 1100])
    assert value(daily, "data", "recordsize") == "1M"
    assert daily.ratio == pytest.approx((150 + 500) / (100 + 1000))
    often = recommend_together([job("oltp", records(60, 150), 900, True), job("backup", backup, 1, True)])
    assert value(often, "data", "recordsize") == "16K"


def test_what_no_run_tried_is_combined_from_effects_and_says_so() -> None:
    one = [({}, 100.0), ({"data.recordsize": "16K"}, 50.0), ({"data.compression": "zstd-3"}, 98.0)]
    two = [({}, 100.0), ({"data.recordsize": "16K"}, 98.0), ({"data.compression": "zstd-3"}, 40.0)]
    r = recommend_together([job("oltp", trials_of(one)), job("import", trials_of(two))])
    assert r.changes == {"data.recordsize": "16K", "data.compression": "zstd-3"}
    assert r.evidence == "combined"
    assert "no run had it whole" in r.verdict
    assert [j.evidence for j in r.jobs] == ["combined", "combined"]
    assert [j.trials for j in r.jobs] == [[], []]
    assert r.jobs[0].joint_ratio.ratio == pytest.approx(0.5 * 0.98)
    assert r.jobs[1].joint_ratio.ratio == pytest.approx(0.98 * 0.4)
    assert r.jobs[0].joint_ratio.low is None  # two orders of the same two steps are no range
    assert tomllib.loads(together.proof(r))["layouts"] == [{"name": "together", "set": r.changes}]
    odd = {"slog": 'my "fast" disk\\1.toml', "data.recordsize": "16K"}
    told = tomllib.loads(together.proof(r.model_copy(update={"changes": odd})))
    assert told["layouts"][0]["set"] == odd
    assert next(row for row in r.roles if "data" in row.roles).evidence == "combined"
    assert next(row for row in r.roles if "wal" in row.roles).evidence == "tried"


def test_what_two_contexts_say_otherwise_is_a_range() -> None:
    entries: list[tuple[Changes, float]] = [
        ({}, 100),
        ({"slog": "nvme"}, 80),
        ({"data.recordsize": "16K"}, 50),
        ({"data.recordsize": "16K", "slog": "nvme"}, 45),
        ({"data.compression": "zstd-3"}, 90),
        ({"data.compression": "zstd-3", "slog": "nvme"}, 60),
        ({"data.recordsize": "16K", "data.compression": "zstd-3"}, 40),
    ]
    r = recommend_together([job("a", trials_of(entries)), job("b", trials_of(entries))])
    assert r.changes == {"data.recordsize": "16K", "slog": "nvme", "data.compression": "zstd-3"}
    # One step from each of the three nearest: what zstd-3, 16K and the log device did in two contexts each.
    ways = (
        0.45 * (60 / 80 * 40 / 50) ** 0.5,
        0.60 * (45 / 80 * 40 / 90) ** 0.5,
        0.40 * (45 / 50 * 60 / 90) ** 0.5,
    )
    found = r.jobs[0].joint_ratio
    assert found.ratio == pytest.approx((ways[0] * ways[1] * ways[2]) ** (1 / 3))
    assert found.low == pytest.approx(min(ways))
    assert found.high == pytest.approx(max(ways))
    assert len(r.jobs[0].nearest) == 3


def test_hardware_to_buy_is_no_part_of_the_joint_layout() -> None:
    entries: list[tuple[Changes, float]] = [
        ({}, 100),
        ({"slog": "nvme"}, 20),
        ({"data.recordsize": "16K"}, 50),
        ({"data.recordsize": "16K", "slog": "nvme"}, 10),
    ]
    r = recommend_together([job(name, trials_of(entries), options={}) for name in ("a", "b")])
    assert r.changes == {"data.recordsize": "16K"} and r.now == {"data.recordsize": "128K"}
    assert "slog" not in r.pool
    (note,) = [n for n in r.notes if n.startswith("Layouts with hardware to buy are left out")]
    assert "`ztune recommend a`" in note
    there = recommend_together([job(name, trials_of(entries)) for name in ("a", "b")])
    assert there.changes == {"data.recordsize": "16K", "slog": "nvme"}
    assert not [n for n in there.notes if "hardware to buy" in n]


def test_a_weak_run_is_named() -> None:
    strong, weak = job("a", records(50, 120)), job("b", records(50, 120))
    level = weak.alone.confidence.model_copy(update={"level": "weak"})
    weak = replace(weak, alone=weak.alone.model_copy(update={"confidence": level}))
    said = [n for n in recommend_together([strong, weak]).notes if "weak" in n]
    assert said == ["The evidence of run b is weak; `ztune recommend b` says why."]


def test_a_pair_is_combined_only_where_it_is_beyond_the_tolerance_of_what_was_tried() -> None:
    one = [({}, 100.0), ({"data.recordsize": "16K"}, 50.0), ({"data.compression": "zstd-3"}, 97.0)]
    r = recommend_together([job("oltp", trials_of(one)), job("import", trials_of(one))])
    assert r.changes == {"data.recordsize": "16K"}
    assert r.evidence == "tried"


def with_backup() -> dict[str, Any]:
    raw = ev.base_layout()
    return {**raw, "dataset": [*raw["dataset"], {"name": "tank/backup", "roles": ["backup"]}]}


def test_a_role_of_one_run_comes_from_that_run() -> None:
    backup = trials_of([({}, 100), ({"backup.recordsize": "1M"}, 50)], with_backup())
    oltp = trials_of([({}, 100), ({"data.recordsize": "16K"}, 50)])
    r = recommend_together([job("oltp", [*oltp]), job("backup", backup)])
    row = next(row for row in r.roles if row.roles == ["backup"])
    assert (row.runs, row.properties["recordsize"]) == (["backup"], "1M")
    # The backup never had data at 16K: so it stays, and the value is named.
    assert value(r, "data", "recordsize") == "128K"
    [left] = r.untried
    assert (left.setting, left.value, left.run, left.lacking) == (
        "data.recordsize",
        "16K",
        "oltp",
        ["backup"],
    )
    assert left.ratio == 0.5


def test_a_role_that_shares_a_dataset_in_one_run_alone_has_its_own() -> None:
    raw = ev.base_layout()
    apart = [
        {"name": "tank/data", "roles": ["data", "index"]},
        {"name": "tank/temp", "roles": ["temp"]},
        raw["dataset"][1],
    ]
    sorts = trials_of([({}, 100), ({"temp.recordsize": "1M"}, 50)], {**raw, "dataset": apart})
    r = recommend_together([job("oltp", trials_of([({}, 100)])), job("sorts", sorts)])
    assert [row.roles for row in r.roles] == [["data", "index"], ["wal"], ["temp"]]
    assert value(r, "temp", "recordsize") == "1M"
    assert r.jobs[0].evidence == "combined"  # its temp files were on data's dataset
    assert any("In run oltp temp lives with data" in note for note in r.notes)


def test_durability_is_that_of_the_strictest_job() -> None:
    entries: list[tuple[Changes, float]] = [({}, 100), ({"data.sync": "disabled", "wal.sync": "disabled"}, 5)]
    loose = Objective(durability="last-seconds")  # type: ignore[arg-type]
    a = job("import", trials_of(entries), objective=loose)
    assert a.alone.layout_name != "base"
    r = recommend_together([a, job("oltp", trials_of(entries))])
    assert r.changes == {}
    assert (r.durability.klass, r.durability.allowed) == ("nothing-acknowledged", "nothing-acknowledged")
    both = [job(n, trials_of(entries), objective=loose) for n in ("import", "reload")]
    assert recommend_together(both).durability.klass == "last-seconds"


def test_checksums_stay_on() -> None:
    entries: list[tuple[Changes, float]] = [({}, 100), ({"data.checksum": "off"}, 5)]
    assert recommend_together([job("a", trials_of(entries)), job("b", trials_of(entries))]).changes == {}


def versioned(trials: list[Trial], version: str) -> list[Trial]:
    return [replace(t, openzfs_version=version) for t in trials]


def larger_arc() -> list[Trial]:
    return trials_of([({}, 100)], ev.base_layout(arc="256M"))


def other_disks() -> list[Trial]:
    raw = ev.base_layout()
    raw["pool"][0]["vdev"][0]["profile"] = "nvme"
    return trials_of([({}, 100)], raw)


def other_values() -> list[Trial]:
    raw = ev.base_layout()
    raw["dataset"][0]["recordsize"] = "8K"
    return trials_of([({}, 100)], raw)


REFUSED: list[tuple[Callable[[], WeighedRun], str]] = [
    (
        lambda: job("b", versioned(records(50, 120), "2.4.4")),
        "run a is of OpenZFS 2.3.2 and run b of 2.4.4; run one of them again on the other's version",
    ),
    (lambda: job("b", larger_arc()), "run a has an ARC of 64.0 MiB and run b of 256 MiB"),
    (lambda: job("b", other_disks()), "run a has hdd-7200 (ashift 12, zfs) in pool tank and run b nvme"),
    (lambda: job("a", records(50, 120)), "run a is named twice"),
    (
        lambda: job("b", records(50, 120), objective=Objective(minimise=("allocated",))),
        "run a minimises modelled_s, allocated, written and run b allocated; say which, with --objective",
    ),
    (lambda: job("b", other_values()), "the runs have no value of data.recordsize in common"),
    (
        lambda: job("b", records(50, 120), study={**ev.run().study, "workload": "mariadb-oltp"}),
        "run a is of postgresql and run b of mariadb",
    ),
    (lambda: job("b", records(50, 120), study={**ev.run().study, "profiles": {}}), "mean different disks"),
]


@pytest.mark.parametrize(("other", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_runs_that_do_not_go_together_are_one_sentence(other: Callable[[], WeighedRun], message: str) -> None:
    with pytest.raises(InputError) as caught:
        recommend_together([job("a", records(50, 120)), other()])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_is_json() -> None:
    r = recommend_together([job("oltp", records(60, 300)), job("backup", records(300, 60))])
    assert JointRecommendation.model_validate_json(r.model_dump_json()) == r


@pytest.mark.parametrize("width", [80, 120])
def test_it_ends_with_the_table_of_roles(width: int) -> None:
    r = recommend_together([job("oltp", records(60, 300), 9), job("backup", records(300, 60))])
    console = Console(width=width, highlight=False)
    with console.capture() as got:
        together.show(r, console)
    lines = got.get().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    at = text.index("What to set for each role")
    assert text.index("Where jobs want different things") < text.index("Notes") < at
    head, row = text[at:].splitlines()[1:3]
    assert head.split() == ["role", "recordsize", "logbias", "compression", "from"]
    assert row.split()[:3] == ["data,", "temp,", "index"]


def test_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.toml"
    path.write_text('[[job]]\nrun = "a"\nper_day = 1440\n\n[[job]]\nrun = "b"\nper_day = 1\n')
    assert weights.read(path) == (weights.JobWeight("a", 1440, True), weights.JobWeight("b", 1, True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[job]]\nrun = "a"\nweight = 1\n', "it takes 2 or more"),
        ('[[job]]\nrun = "a"\nweight = 1\n[[job]]\nrun = "b"\n', "either a weight or per_day"),
        ('[[job]]\nrun = "a"\nweight = 1\n[[job]]\nrun = "b"\nper_day = 2\n', "all a weight, or all per_day"),
        (
            '[[job]]\nrun = "a"\nweight = 0\n[[job]]\nrun = "b"\nweight = 2\n',
            "weights.toml:3: job[0].weight is 0",
        ),
        ('[[job]]\nrun = "a"\nweigth = 1\n[[job]]\nrun = "b"\nweight = 2\n', 'Did you mean "weight"?'),
        ("[[job\n", "is not TOML"),
    ],
)
def test_a_wrong_file_of_weights_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "weights.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        weights.read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def measured(name: str, seconds: float, spread: float, **run: Any) -> WeighedRun:
    """Return a run that measured data at 16K with so many s per operation beside 10 ms."""
    layouts = [
        (made.layout("base"), {"seconds": 0.01}),
        (made.layout("16K", data__recordsize="16K"), {"seconds": seconds}),
    ]
    trials = made.trials(layouts, 5, spread=spread)
    of = made.run(id=name, **run)
    return WeighedRun(of, trials, recommend(of, trials))


def test_a_measured_difference_has_its_interval() -> None:
    r = recommend_together([measured("oltp", 0.006, 0.01), measured("load", 0.007, 0.01)])
    assert (r.basis, r.changes) == ("measured", {"data.recordsize": "16K"})
    for job, ratio in zip(r.jobs, (0.6, 0.7), strict=True):
        found = job.joint_ratio
        assert found.ratio == pytest.approx(ratio, rel=0.05)
        assert found.low is not None and found.high is not None
        assert found.low < (found.ratio or 0) < found.high < 1


@pytest.mark.parametrize(
    ("before", "after", "ratio", "counted"),
    [
        ((4.0, 5.0), (0.0, 0.0), 0.0, 0.0),
        ((4.0,), (0.0,), 0.0, 1.0),  # one block shows no difference, whatever it is
        ((4.0, 4.0), (0.0, 2.0), 0.25, 1.0),
        ((0.0, 0.0), (4.0, 5.0), math.inf, math.inf),
        ((0.0, 0.0), (0.0, 0.0), 1.0, 1.0),
    ],
)
def test_what_measures_nothing_is_not_the_same_as_before(
    before: tuple[float, ...], after: tuple[float, ...], ratio: float, counted: float
) -> None:
    base, other = collect(
        made.trials([(made.layout("base"), {}), (made.layout("16K", data__recordsize="16K"), {})], 2)
    ).layouts
    a, b = (
        replace(one, values={"read": dict(enumerate(values))})
        for one, values in ((base, before), (other, after))
    )
    assert moved(Pair("data.recordsize", a, b), "read") == Moved(ratio, counted=counted)


def test_a_ratio_of_nothing_is_less() -> None:
    r = recommend_together([job("oltp", records(50, 120)), job("load", records(50, 120))])
    ratio = r.jobs[0].joint_ratio.model_copy(update={"ratio": 0.0})
    first = r.jobs[0].model_copy(update={"joint_ratio": ratio})
    nothing, half = together.brief(r.model_copy(update={"jobs": [first, r.jobs[1]]}), []).figures
    assert nothing.kind == half.kind == "less" and nothing.change.startswith("×0 ")


def test_a_measured_difference_that_is_not_resolved_changes_nothing() -> None:
    r = recommend_together([measured("oltp", 0.0093, 0.3), measured("load", 0.0093, 0.3)])
    assert r.changes == {}
    assert r.verdict.startswith("Keep the base layout")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: job("b", records(50, 120)), "run a is measured and run b modelled, which are never mixed"),
        (
            lambda: measured("b", 0.006, 0.01, target={"name": "tank", "kind": "local"}),
            "run a was measured on lab and run b on tank",
        ),
    ],
)
def test_measured_runs_that_do_not_go_together(other: Callable[[], WeighedRun], message: str) -> None:
    with pytest.raises(InputError) as caught:
        recommend_together([measured("a", 0.006, 0.01), other()])
    assert message in str(caught.value)
