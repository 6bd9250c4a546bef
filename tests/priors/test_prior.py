"""What a prior chooses of runs that are there, what it never says, and what it says of itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import exported_runs as exported
import pytest

from ztune.databases import database
from ztune.errors import InputError
from ztune.priors import evidence
from ztune.priors.prior import (
    Key,
    PriorFigures,
    PriorQuestion,
    PriorRun,
    answer,
    choose,
    key_of,
    left_out,
    likeness,
    runs_of,
    weaker,
    weigh,
)
from ztune.report import prior as report
from ztune.results import file as results_file

K16: Key = (("data.recordsize", "16K"),)
ZSTD: Key = (("data.compression", "zstd-3"), ("data.recordsize", "16K"))
ASYNC: Key = (("data.sync", "disabled"),)
QUESTION = PriorQuestion("postgresql", "ssd")


def run(load: str = "a", disks: str = "ssd", **more: object) -> PriorRun:
    figures = {(): PriorFigures(2.0, 100, 50), K16: PriorFigures(1.0, 100, 50)}
    values: dict[str, object] = {
        "name": f"{load}-{disks}", "load": load, "workload": "postgres-oltp", "basis": "modelled",
        "own": False, "disks": disks, "raid": "stripe", "durability": "nothing-acknowledged",
        "cover": 2.0, "roles": ("data", "wal"), "shared": {}, "figures": figures, **more,
    }  # fmt: skip
    return PriorRun(**values)  # type: ignore[arg-type]


def test_time_decides_then_space_then_what_is_written_then_the_fewest_settings() -> None:
    assert choose([(run(), 1.0)]) == K16
    less = {K16: PriorFigures(1.0, 100, 50), ZSTD: PriorFigures(1.04, 60, 50)}
    assert choose([(run(figures=less), 1.0)]) == ZSTD
    slower = {K16: PriorFigures(1.0, 100, 50), ZSTD: PriorFigures(1.06, 60, 50)}
    assert choose([(run(figures=slower), 1.0)]) == K16
    equal = {(): PriorFigures(1.0, 100, 50), K16: PriorFigures(1.0, 100, 50)}
    assert choose([(run(figures=equal), 1.0)]) == ()


def test_what_weakens_anything_is_never_said_however_fast_it_is() -> None:
    for setting in (
        ("data.sync", "disabled"), ("data.checksum", "off"), ("data.logbias", "throughput"),
        ("data.redundant_metadata", "most"),
    ):  # fmt: skip
        fast = {(): PriorFigures(2.0, 100, 50), (setting,): PriorFigures(0.01, 1, 1)}
        assert choose([(run(figures=fast), 1.0)]) == ()
        assert weaker((setting,)) == ("=".join(setting),)
    assert choose([(run(figures={ASYNC: PriorFigures(1, 1, 1)}), 1.0)]) is None


def test_a_layout_tried_in_few_runs_does_not_win() -> None:
    rare = run("c", figures={(): PriorFigures(2.0, 100, 50), ZSTD: PriorFigures(0.5, 60, 50)})
    assert choose([(run("a"), 1.0), (run("b"), 1.0), (rare, 1.0)]) == ()
    assert choose([(rare, 1.0)]) == ZSTD


def test_your_own_and_measured_runs_count_more_and_other_disks_not_at_all() -> None:
    assert likeness(QUESTION, run()) == 1
    assert likeness(QUESTION, run(own=True)) == 4
    assert likeness(QUESTION, run(own=True, basis="measured")) == 8
    assert likeness(QUESTION, run(disks="hdd")) == 0
    assert likeness(QUESTION, run(disks="flash")) == 0.5
    assert likeness(QUESTION, run(disks="")) == 1
    assert likeness(PriorQuestion("postgresql", "hdd"), run(disks="flash")) == 0
    assert likeness(QUESTION, run(unsure=0.05)) == 0.5
    assert likeness(QUESTION, run(basis="measured", unsure=None)) == pytest.approx(0.4)
    assert likeness(QUESTION, run(raid="mirror")) == 0.5
    large = PriorQuestion("postgresql", "ssd", memory=2 << 30, size=8 << 30)
    assert large.cover == 8
    assert likeness(large, run(cover=2.0)) == 1 and likeness(large, run(cover=0.5)) == 0.25


def test_one_load_counts_once_however_often_it_was_run() -> None:
    weighed = weigh(QUESTION, [run("a"), run("a", name="again"), run("b"), run("a", disks="hdd")])
    assert [(of.load, weight) for of, weight in weighed] == [("a", 0.5), ("a", 0.5), ("b", 1.0)]


def test_where_your_own_runs_overturn_the_others_the_answer_says_so() -> None:
    other = {(): PriorFigures(1.0, 100, 50), K16: PriorFigures(2.0, 100, 50)}
    found = answer(QUESTION, [run("a"), run("b"), run("mine", own=True, figures=other)])
    assert found.settings["data"]["recordsize"] == "128K"
    assert found.notes == ["your own runs decide: by the others alone it would be data.recordsize=16K"]
    elsewhere = {(): PriorFigures(1.0, 100, 50), (("data.recordsize", "1M"),): PriorFigures(0.9, 100, 50)}
    found = answer(QUESTION, [run("a"), run("b"), run("mine", own=True, figures=elsewhere)])
    assert found.settings["data"]["recordsize"] == "16K"
    assert found.notes == ["1 run of yours did not try what the others favour: not counted"]
    assert not any(one.own for one in found.runs)
    agreed = answer(QUESTION, [run("a"), run("b"), run("mine", own=True)])
    assert agreed.settings["data"]["recordsize"] == "16K"
    assert agreed.notes == []


def test_how_far_off_is_asked_of_loads_that_were_not_seen() -> None:
    assert left_out([(run("a", "ssd"), 1.0), (run("a", "hdd"), 1.0)]) is None
    other = run("b", figures={(): PriorFigures(1.0, 100, 50), K16: PriorFigures(3.0, 100, 50)})
    found = left_out([(run("a"), 1.0), (other, 1.0)])
    assert found is not None
    # Without a, b says the defaults, which take twice the time there; and the other way round three times.
    assert (found.loads, found.runs, found.near, found.worst) == (2, 2, 0, 3.0)


def test_other_disks_stand_in_and_that_is_said() -> None:
    found = answer(PriorQuestion("postgresql", "nvme", raid="raidz1"), [run("a", "hdd"), run("b", "ssd")])
    assert found.settings["data"]["recordsize"] == "16K"
    assert found.notes[0] == "no run was on nvme; runs on hdd and ssd stand in"
    assert found.notes[1] == "no run was on RAID-Z1; runs on disks without redundancy stand in"
    assert any("RAID-Z" in text for text in found.unknown)


def test_an_answer_names_defaults_too_and_holds_the_sets_against_itself() -> None:
    guide: Key = (("data.recordsize", "32K"), ("wal.recordsize", "32K"))
    figures = {
        (): PriorFigures(2.0, 100, 50),
        K16: PriorFigures(1.0, 90, 40),
        guide: PriorFigures(1.5, 95, 45),
    }
    found = answer(QUESTION, [run(figures=figures)])
    assert found.settings == {
        "data": {"recordsize": "16K", "compression": "lz4"},
        "wal": {"recordsize": "128K", "compression": "lz4"},
    }
    assert found.time == (0.5, 0.5, 0.5) and found.space == (0.9, 0.9, 0.9)
    by_name = {one.name: one for one in found.in_print}
    assert by_name["openzfs-guide"].times == 1.5
    assert by_name["zfs-defaults"].times == 2.0
    assert by_name["openzfs-guide"].settings["database.full_page_writes"] == "off"
    assert "what a power cut loses" in found.unknown[0]


def test_what_is_not_known_names_the_flags_that_would_tell() -> None:
    def asked(**more: Any) -> str:
        return " ".join(answer(PriorQuestion("sqlite", "ssd", **more), []).unknown)

    assert "(add --memory and --size)" in asked()
    assert "(add --size)" in asked(memory=1 << 34) and "(add --memory)" in asked(size=1 << 34)
    assert "add" not in asked(memory=1 << 34, size=1 << 34)


def test_without_a_run_there_are_the_sets_and_no_settings() -> None:
    found = answer(PriorQuestion("mongodb", "hdd"), [])
    assert found.settings == {} and found.runs == [] and found.off is None
    assert {one.name for one in found.in_print} == {"mongo-restore", "zfs-defaults"}


def test_rows_become_runs_without_what_was_bought_or_is_weaker(home: object) -> None:
    rows = exported.exported()
    # Both made-up runs have a log device and switch full_page_writes off: nothing to go by.
    assert runs_of(rows, own=True) == []


def test_rows_of_a_screening_become_a_run(home: object) -> None:
    row = next(row for row in results_file.read(evidence.shipped()) if row.baseline)
    other = replace(row, trial=2, baseline=False, settings={**row.settings, "data.recordsize": "16K"})
    weak = replace(
        other, trial=3, settings={**row.settings, "data.sync": "disabled"}, durability="last-seconds"
    )
    more = replace(other, trial=4, settings={**row.settings, "arc": "1G"})
    [found] = runs_of([row, other, weak, more], own=False)
    assert set(found.figures) == {(), K16}
    assert (found.raid, found.basis, found.own) == ("stripe", "modelled", False)
    for disks, device, kind in (
        ("own-hdd", "hdd", "hdd"), ("own-flash-2", "flash", "flash"), ("mirror 2 nvme", "flash", "nvme"),
        ("", "", ""),
    ):  # fmt: skip
        [found] = runs_of([replace(row, disks=disks, device=device)], own=True)
        assert found.disks == kind and found.own
    apart: Any
    bought = {**row.settings, "slog": "nvme"}
    for apart in ({"settings": bought}, {"disks": "instant"}, {"run_basis": "emulated"}):
        assert runs_of([replace(row, **apart)], own=True) == []
    assert runs_of([other], own=True) == []
    assert runs_of([replace(row, durability="corrupt")], own=True) == []
    lossy = [replace(one, durability="last-seconds") for one in (row, other)]
    [found] = runs_of([*lossy, replace(weak, durability="corrupt")], own=False)
    assert set(found.figures) == {(), K16}
    assert "the last seconds of commits" in answer(QUESTION, [found]).unknown[0]


def test_how_sure_a_run_is_comes_from_the_trials_of_its_layouts() -> None:
    row = next(row for row in results_file.read(evidence.shipped()) if row.baseline)

    def timed(times: float, **more: object) -> Any:
        metrics = tuple(replace(m, value=m.value * times) if m.unit == "s" else m for m in row.metrics)
        return replace(row, metrics=metrics, **more)  # type: ignore[arg-type]

    [replayed] = runs_of([row], own=True)
    assert replayed.unsure == 0
    [once] = runs_of([timed(1, run_basis="measured")], own=True)
    assert once.unsure is None
    twice = [timed(times, run_basis="measured", trial=n) for n, times in enumerate((1.0, 1.1))]
    [found] = runs_of(twice, own=True)
    assert found.unsure == pytest.approx(math.log(1.1))  # 2 of log 1.1 / sqrt 2, over sqrt 2


def test_a_layouts_key_is_its_properties_that_are_no_defaults() -> None:
    settings = {
        "data.recordsize": "16K", "data.compression": "lz4", "data.pool": "pool1", "arc": "64M",
        "wal.with": "data", "pool.pool1.ashift": "12",
    }  # fmt: skip
    assert key_of(settings) == K16


def test_databases_are_found_by_what_people_call_them() -> None:
    for word in ("postgresql", "Postgres", "postgres-oltp"):
        assert evidence.named(word).name == "postgresql"
    assert evidence.named("mysql").name == "mariadb" and evidence.named("redis").name == "valkey"
    with pytest.raises(
        InputError, match=r'"postgrs" is no database that ztune knows; .* Did you mean "postgres"'
    ):
        evidence.named("postgrs")


def test_what_is_shipped_answers_for_each_of_its_databases(home: object) -> None:
    rows = results_file.read(evidence.shipped())
    assert {row.database for row in rows} <= {one.name for one in database.own()}
    assert {row.run_basis for row in rows} == {"modelled"}
    for name in {row.database for row in rows}:
        found = answer(PriorQuestion(name, "ssd"), evidence.runs(name))
        assert found.settings and found.time is not None
        said = [value for settings in found.settings.values() for value in settings.items()]
        assert ("sync", "disabled") not in said and ("checksum", "off") not in said


@pytest.mark.parametrize("raid", ["stripe", "raidz2"])
@pytest.mark.parametrize("name", [one.name for one in database.own()])
def test_the_answer_is_one_screen(name: str, raid: str, home: object) -> None:
    of = evidence.named(name)
    question = PriorQuestion(name, "nvme", 64 << 30, None, raid)
    lines = report.lines(answer(question, evidence.runs(name)), of)
    assert len(lines) <= 24, "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "A PRIOR" in lines[0]


def test_runs_of_yours_are_said_to_be_that() -> None:
    runs = [run(), run("", own=True, workload="")]
    first, *rest = report.lines(
        answer(QUESTION, runs), next(one for one in database.own() if one.name == "postgresql")
    )
    assert first.endswith("A PRIOR, in part from runs of yours.")
    assert "(postgres-oltp, your recordings); 1 of them yours" in " ".join(rest)
