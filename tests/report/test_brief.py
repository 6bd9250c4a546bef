"""The first screen: what it says, that it fits, and what it does not say."""

from __future__ import annotations

import io
import re
from typing import Any

import evidence as ev
import pytest
from kept_runs import NAMES, kept
from rich.cells import cell_len

from ztune.advice.commands import script
from ztune.advice.model import Headline, PropertyAdvice, Recommendation, SettingChange, Side
from ztune.advice.plan import applicable
from ztune.advice.recommend import recommend
from ztune.analysis import units
from ztune.errors import InputError
from ztune.output import Console
from ztune.report import brief, markdown, terminal
from ztune.study import Layout, Objective
from ztune.study.layout import with_settings
from ztune.trace.left_out import LeftOut

FULL = recommend(ev.run(), ev.trials(), manifest=ev.manifest())


def text(r: Recommendation, width: int = 80, room: int = brief.ROOM) -> str:
    return "\n".join(line.plain for line in brief.lines(brief.of(r), width, room))


def fits(shown: str, width: int = 80, room: int = brief.ROOM) -> None:
    lines = shown.split("\n")
    assert len(lines) <= room, f"{len(lines)} lines\n{shown}"
    assert all(cell_len(line) <= width for line in lines), shown


def _tail(figures: dict[str, float], key: str) -> dict[str, float]:
    return {"p99": figures[key], "count": figures.get("calls", 5000)} if key in figures else {}


def replayed(
    base: dict[str, float], other: dict[str, float], changes: dict[str, str] | None = None
) -> Recommendation:
    """Return the recommendation of two layouts by what the model says of each: busy_s, wait_s, sync_p50."""

    def measure(layout: Layout) -> dict[str, Any]:
        figures = base if layout.name == "base" else other
        found = ev.toy_measure(layout)
        model = {
            **found["model"],
            "busy_s_max": figures["busy_s"],
            "thread_wait_s_max": figures["wait_s"],
            "modelled_s": max(figures["busy_s"], figures["wait_s"]),
            "sync_latency_ms": {"p50": figures.get("sync_p50", 8.0), **_tail(figures, "sync_p99")},
            "operation_latency_ms": _tail(figures, "operation_p99"),
            **{key: figures[key] for key in ("speed", "pace") if key in figures},
        }
        return {**found, "model": model}

    start = ev.layouts()[0]
    layouts = [start, with_settings(start, changes or {"data.recordsize": "16K"}, "other")]
    return recommend(ev.run(), ev.trials(layouts, measure), manifest=ev.manifest())


def test_it_says_what_to_set_what_that_changes_and_how_to_go_on() -> None:
    shown = text(FULL)
    fits(shown)
    assert FULL.layout_name == "data.recordsize=8K"
    assert re.search(r"Set +data, temp, index: recordsize=8K \(base 128K\)\n +wal: as the base\n", shown)
    for name in ("disk work", "waiting, longest thread", "space", "bytes written"):
        assert re.search(rf"{name} +\S+ \S+ → +\S+ \S+ +", shown), name
    assert "How sure   limited. " in shown and "Warning " in shown
    assert "Apply      ztune apply 7f3k2a --dataset data=POOL/DATASET" in shown
    assert "More       ztune recommend 7f3k2a --why" in shown


def test_the_names_of_three_things_are_not_mixed() -> None:
    shown = text(FULL)
    assert "modelled time" not in shown and "busiest" not in shown
    assert not re.search(r"\bfaster|\bspeedup|\bquicker", shown)


@pytest.mark.parametrize(
    ("base", "other", "said"),
    [
        # A log nobody waits for: its disks work less, and no thread gains.
        ({"busy_s": 90, "wait_s": 80}, {"busy_s": 40, "wait_s": 80}, "No thread waits less"),
        # 30 of 150 recorded seconds: the job had time to spare.
        (
            {"busy_s": 30, "wait_s": 20},
            {"busy_s": 10, "wait_s": 10},
            "waited for the disks in 20% of its time",
        ),
        ({"busy_s": 140, "wait_s": 100}, {"busy_s": 60, "wait_s": 50}, "Throughput is not predicted"),
        (
            {"busy_s": 140, "wait_s": 100, "pace": 0.456},
            {"busy_s": 60, "wait_s": 50, "pace": 1.0},
            "Predicted, not measured: 100% of the recorded pace, the base layout 45.6%;",
        ),
        (
            {"busy_s": 140, "wait_s": 100, "speed": 0.5},
            {"busy_s": 60, "wait_s": 50, "speed": 0.75},
            "Throughput ×1.50 of the base's is predicted, not measured",
        ),
    ],
)
def test_a_gain_that_is_no_speed_is_not_called_one(
    base: dict[str, float], other: dict[str, float], said: str
) -> None:
    r = replayed(base, other)
    assert r.layout_name == "other" and said in r.meaning
    assert said in " ".join(text(r).split())


def test_more_work_of_disks_that_have_little_is_no_less_speed() -> None:
    r = replayed(
        {"busy_s": 2.0, "wait_s": 0.5}, {"busy_s": 2.4, "wait_s": 0.7}, {"data.compression": "zstd-3"}
    )
    assert r.layout_name == "other"
    assert r.meaning == (
        "The disks are at work for 1.6% of the recorded time, so this is no matter of the job's pace; the "
        "gain is elsewhere."
    )
    r = replayed({"busy_s": 100, "wait_s": 9}, {"busy_s": 103, "wait_s": 9}, {"data.compression": "zstd-3"})
    assert r.layout_name == "other" and "the gain is elsewhere, and is not speed" in r.meaning


@pytest.mark.parametrize(
    ("base", "other", "shown"),
    [
        # Totals are less, and one transaction in a hundred takes much longer.
        ({"operation_p99": 100}, {"operation_p99": 270}, "waiting, p99 operation 100 ms → 270 ms ×2.70"),
        ({"sync_p99": 40}, {"sync_p99": 80}, "waiting, p99 sync 40.0 ms → 80.0 ms ×2.00"),
        # What one operation takes has its sync in it.
        ({"operation_p99": 100, "sync_p99": 40}, {"operation_p99": 110, "sync_p99": 80}, ""),
        ({"operation_p99": 100}, {"operation_p99": 140}, ""),  # a replay may be as far off
        ({"operation_p99": 270}, {"operation_p99": 100}, ""),
        ({"sync_p99": 40}, {"sync_p99": 80, "calls": 50}, ""),  # of 50 the longest says nothing of a p99
    ],
)
def test_a_tail_that_gets_longer_is_shown(
    base: dict[str, float], other: dict[str, float], shown: str
) -> None:
    r = replayed({"busy_s": 140, "wait_s": 100, **base}, {"busy_s": 60, "wait_s": 50, **other})
    words = " ".join(text(r).split())
    assert r.layout_name == "other" and (shown in words if shown else "p99" not in words)


def test_a_job_with_a_rate_keeps_its_throughput() -> None:
    paced = ev.manifest(
        workload={"name": "postgres-oltp", "parameters": {"rate": 200}, "result": {}, "version": ""}
    )
    fast = lambda layout: ev.toy_measure(layout, 0.7)  # noqa: E731
    r = recommend(ev.run(), ev.trials(measure=fast), manifest=paced)
    assert r.meaning == "The recorded job has a set rate: its throughput stays as it is."


def test_where_the_base_is_kept_there_is_nothing_to_apply() -> None:
    kept = recommend(ev.run(), ev.trials(ev.layouts()[:1]), manifest=ev.manifest())
    shown = text(kept)
    fits(shown)
    assert "keep the base layout" in shown and "Apply" not in shown and "→" not in shown
    assert "data, temp, index, wal: as the base" in shown


def test_what_is_no_property_of_a_dataset_has_a_line_of_its_own() -> None:
    r = FULL.model_copy(
        update={
            "changes": [
                SettingChange(setting="arc", now="1G", value="512M"),
                SettingChange(setting="tunable.zfs_txg_timeout", now="5", value="10"),
                SettingChange(setting="database.full_page_writes", now="on", value="off"),
            ]
        }
    )
    shown = text(r)
    assert "memory: arc=512M (base 1G)" in shown
    assert "module: zfs_txg_timeout=10 (base 5)" in shown
    assert "database: full_page_writes=off (base on)" in shown
    assert "--script layout.sh" in shown and "ztune apply" not in shown


ROLES = ("data", "wal", "index", "temp", "backup", "archive", "source")


def crowded(settings: int, sentences: int = 4, word: str = "warning") -> Recommendation:
    """Return a recommendation with all roles apart, each with many settings, long names and long texts."""
    datasets = [{"name": f"tank/{role}", "roles": [role]} for role in ROLES]
    layout = {**FULL.layout, "dataset": datasets}
    roles = [
        FULL.roles[0].model_copy(update={"role": role, "dataset": f"tank/{role}", "with_roles": []})
        for role in ROLES
    ]
    names = ["recordsize", "compression", "logbias", "primarycache", "redundant_metadata", "sync", "copies"]
    long = f"A {word} with much to say about {'very ' * 20}many things, and why. "
    return FULL.model_copy(
        update={
            "layout": layout,
            "roles": roles,
            "subject": FULL.subject.model_copy(update={"workload": "データベース" * 30}),
            "changes": [
                *(
                    SettingChange(setting=f"{role}.{name}", now="a-long-value", value=f"long-value-{role}")
                    for role in ROLES
                    for name in names[:settings]
                ),
                SettingChange(setting="arc", now="64M", value="32M"),
                SettingChange(setting="tunable.zfs_txg_timeout", now="5", value="10"),
                SettingChange(setting="database.shared_buffers", now="x" * 90, value="y" * 90),
            ],
            "warnings": [long * sentences] * 9,
            "meaning": long,
            "confidence": FULL.confidence.model_copy(update={"reasons": [long * sentences] * 9}),
        }
    )


@pytest.mark.parametrize("width", [80, 100, 60])
@pytest.mark.parametrize("settings", [1, 2, 7])
def test_the_worst_case_fits_and_says_what_is_left_out(settings: int, width: int) -> None:
    r = crowded(settings)
    shown = text(r, width)
    fits(shown, width)
    assert shown.count("more: --why") >= 2
    if width >= 80:
        assert all(re.search(rf"{role}: |and .*{role}", shown) for role in ROLES), shown
    assert f"ztune recommend {r.subject.run} --why" in shown


def test_with_less_room_less_is_said() -> None:
    for room in range(23, 14, -1):
        fits(text(crowded(3), room=room), room=room)


def test_what_is_as_now_is_named_where_it_has_no_line() -> None:
    base = {"busy_s": 20.0, "wait_s": 20.0}
    r = replayed(base, {**base, "busy_s": 10.0})
    shown = text(r, room=14)
    left = [f.label for f in brief.of(r).figures if not f.matters]
    assert left and not any(re.search(rf"{label} +\S+ \S+ →", shown) for label in left)
    said = " ".join(shown.split())
    assert f"{', '.join(left[:-1])} and {left[-1]} are as in the base.".lower() in said.lower(), shown


def test_what_limits_a_search_is_said_once() -> None:
    reasons = ("The budget is used.", "Else.")
    sure = FULL.confidence.model_copy(update={"level": "limited", "reasons": reasons, "notes": 0})
    searched = "The budget is used. Not tried: wal_recycle=off."
    shown = text(FULL.model_copy(update={"confidence": sure, "searched": searched}))
    assert shown.count("The budget is used.") == 1 and "How sure   limited. Else." in shown


def test_a_note_is_not_taken_for_what_limits() -> None:
    reasons = ["The budget is used.", "A note."]
    sure = FULL.confidence.model_copy(update={"level": "limited", "reasons": reasons, "notes": 1})
    shown = text(FULL.model_copy(update={"confidence": sure, "searched": "The budget is used."}))
    assert "How sure   limited. Too little was searched. (1 more: --why)" in shown
    alone = sure.model_copy(update={"reasons": ["It is short.", "A note."]})
    assert "How sure   limited. It is short. (1 more" in text(FULL.model_copy(update={"confidence": alone}))


def test_a_long_sentence_ends_at_a_word() -> None:
    shown = text(crowded(7))
    warning = re.search(r"Warning +(.*(?:\n {11}.*)*)", shown)
    assert warning is not None and "…" in warning[1] and "more: --why)" in warning[1]


def test_bars_and_colours_follow_the_figures() -> None:
    side = Side(metric="allocated", label="space", unit="bytes", here=100, other=200, ratio=2.0, matters=True)
    more = brief._figure(Headline(name="space", label="space", side=side), False)
    assert (more.kind, more.bars) == ("more", (0.5, 1.0))
    rate = Headline(name="throughput", label="throughput, op/s", side=side)
    assert brief._figure(rate, False).kind == "less"  # green: more operations are better
    small = side.model_copy(update={"matters": False, "other": 101, "ratio": 1.01})
    assert brief._figure(Headline(name="space", label="space", side=small), False).change == "as base (×1.01)"


def test_a_share_of_the_host_changes_by_points_of_all_of_it() -> None:
    side = Side(
        metric="host_busy", label="use", unit="share", here=0.02, other=0.03, ratio=1.5, matters=False
    )
    little = brief._figure(Headline(name="CPU", label="use", side=side), False)
    assert (little.change, little.kind, little.bars) == ("as base (+1.0 points)", "", (0.02, 0.03))
    for here, other, change, kind in (
        (0.5, 0.61, "+11.0 points", "more"),
        (0.9, 0.4, "−50.0 points", "less"),
    ):
        apart = side.model_copy(update={"here": here, "other": other, "matters": True})
        found = brief._figure(Headline(name="CPU", label="use", side=apart), False)
        assert (found.change, found.kind) == (change, kind)
    over = side.model_copy(update={"here": 0.8, "other": 1.25, "matters": True})
    assert brief._figure(Headline(name="CPU", label="use", side=over), False).bars == (0.64, 1.0)


def test_hardware_to_buy_has_a_line_but_no_part_in_the_rest() -> None:
    shown = text(FULL)
    first, _, rest = shown.partition("If bought")
    assert "slog" not in first
    assert re.match(r" +slog=nvme", rest)


def test_why_one_setting() -> None:
    console = Console(width=80)

    def why(setting: str) -> str:
        with console.capture() as shown:
            console.print(terminal.explained(FULL, setting))
        return " ".join(shown.get().split())

    role = next(a for a in FULL.roles if a.role == "data")
    size = next(p for p in role.properties if p.name == "recordsize")
    assert isinstance(size, PropertyAdvice)
    assert why("data.recordsize").startswith("data.recordsize=8K (base 128K) ")
    assert " ".join(size.change.sentence.split()) in why("data.recordsize")
    assert why("temp.recordsize") == why("data.recordsize").replace("data.record", "temp.record")
    assert "Tried instead: nvme" in why("slog")
    with pytest.raises(InputError, match=r"--why data.recordsise: .* says nothing of it; .*recordsize"):
        why("data.recordsise")


def test_markdown_holds_all_of_it_and_no_name_breaks_it() -> None:
    start = ev.layouts()[0]
    evil = with_settings(start, {"data.recordsize": "16K"}, "a|b <script> *x* @you `c` #1 [l](u)")
    r = recommend(ev.run(), ev.trials([start, evil]), manifest=ev.manifest())
    page = markdown.of(r)
    assert r"a\|b \<script\> \*x\* \@you `c` \#1 \[l\](u)" in page
    heads = [line for line in page.splitlines() if line.startswith("| ---")]
    for head in heads:
        at = page.splitlines().index(head)
        rows = page.splitlines()[at - 1 :]
        wide = head.count("|")
        for row in rows:
            if not row.startswith("|"):
                break
            assert len(re.findall(r"(?<!\\)\|", row)) == wide, row
    for reason in r.confidence.reasons:
        assert markdown.escaped(reason) in page
    assert "ztune recommend 7f3k2a --why" in page
    assert "ztune apply 7f3k2a --dataset data=POOL/DATASET" in markdown.of(FULL)


def test_an_objective_of_ones_own_is_in_the_commands() -> None:
    goal = Objective(minimise=("allocated",))
    r = recommend(ev.run(), ev.trials(), goal, manifest=ev.manifest())
    shown = brief.of(r, ["--objective", "space", "--within", "2%"])
    assert all("--objective space --within 2%" in command for _, command in shown.commands)


def test_roles_with_the_same_settings_share_a_line() -> None:
    changes = [
        SettingChange(setting=f"{role}.compression", now="off", value="lz4")
        for role in ("wal", "data", "temp")
    ]
    groups = brief.setting_groups(changes, [["data", "index"], ["wal"], ["temp"], ["backup"], ["source"]])
    shown = [(line.where, line.settings) for line in brief.role_lines(groups)]
    assert shown == [
        ("data, index, wal, temp", ("compression=lz4 (base off)",)),
        ("backup, source", ()),
    ]


def test_what_is_weak_already_is_no_news() -> None:
    weak = FULL.durability.model_copy(update={"klass": "last-seconds", "sentence": "Seconds may be lost."})
    news = brief.warnings(FULL.model_copy(update={"durability": weak}))
    assert news[0].text == "last-seconds: Seconds may be lost."
    rows = [row.model_copy(update={"durability": "last-seconds"}) for row in FULL.ranking]
    known = brief.warnings(FULL.model_copy(update={"durability": weak, "ranking": rows}))
    assert "last-seconds, as the base: Seconds may be lost." in [said.text for said in known]
    assert all(not said.text.startswith("last-seconds:") for said in known)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [{}, {"have": {"slog": "nvme"}}, {"objective": ("allocated",)}, {"objective": ("read_p99", "written")}],
)
def test_screenings_of_real_databases_fit_as_they_were_stored(name: str, options: dict[str, Any]) -> None:
    goal = Objective(minimise=options["objective"]) if "objective" in options else None
    run, of = kept(name, have=options.get("have", {}))
    r = recommend(run, of, goal)
    for used in (0, 2, 4):  # other lines that a command prints beside it
        fits(text(r, room=brief.ROOM - used), room=brief.ROOM - used)
    shown = text(r)
    where = {role for line in brief.of(r).roles for role in line.where.split(", ")}
    assert {role for a in r.roles for role in (a.role, *a.with_roles)} <= where
    for change in r.changes:
        assert f"{brief.short_name(change.setting)}={change.value}" in shown, shown
    assert "How sure" in shown and "Warning" in shown and "--why" in shown
    assert ("slog" in shown.partition("How sure")[0]) <= bool(options.get("have"))


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_is_cut_off_at_40_columns(name: str) -> None:
    r = recommend(*kept(name))
    shown = text(r, 40)
    assert r.changes and max(map(cell_len, shown.splitlines())) <= 40
    words = "".join(shown.split())
    for change in r.changes:
        assert f"{brief.short_name(change.setting)}={change.value}" in words, shown
    # Nor a figure of the tables above it.
    console = Console(width=40, file=(out := io.StringIO()))
    console.print(terminal.ranking(r))
    told = " ".join(out.getvalue().split())
    assert max(map(cell_len, out.getvalue().splitlines())) <= 40
    for row in r.ranking[: terminal.PREDICTED]:
        assert row.layout in told and row.text("allocated", "bytes") in told, told
    for bought in r.if_bought:
        assert all(units.times(h.side.ratio) in told for h in bought.headlines if h.name != "CPU")


def test_no_figure_is_cut_off_at_40_columns() -> None:
    base, other = {"busy_s": 140, "wait_s": 100}, {"busy_s": 60, "wait_s": 50}
    r = replayed({**base, "speed": 0.5, "sync_p99": 40}, {**other, "speed": 0.7, "sync_p99": 80})
    shown = " ".join(text(r, 40).split())
    for figure in brief.of(r).figures:
        assert not figure.matters or f"{figure.base} → {figure.then} {figure.change}".strip() in shown, shown
    console = Console(width=40, file=(out := io.StringIO()))
    console.print(*terminal.predicted(r))
    told = " ".join(out.getvalue().split())
    assert "throughput ×1.40, commit p50 8.00 ms, p99 80.0 ms, read p99 15.0 ms" in told, told


def test_a_real_screening_is_for_the_disks_that_are_there() -> None:
    """Without the rule the first answer was a log device that the study's base does not have."""
    run, of = kept("postgres-hdd-7200")
    r = recommend(run, of)
    assert r.changes and not any(change.setting == "slog" for change in r.changes)
    assert {tuple(p.hardware.items()) for p in r.if_bought} == {(("slog", "nvme"),)}
    there = recommend(*kept("postgres-hdd-7200", have={"slog": "nvme"}))
    assert any(change.setting == "slog" for change in there.changes) and there.if_bought == []


def test_a_setting_that_is_longer_than_a_line_is_broken_before_what_it_is_now() -> None:
    role = brief.BriefRole("data", ("recordsize=16K (base 128K)", "compression=zstd-3 (base zstd-19)"))
    shown = [line.plain[11:].rstrip() for line in brief._role(role, 40, 4, "Set")]
    assert all(len(line) <= 29 for line in shown)
    words = " ".join(" ".join(shown).split())
    assert words == "data: recordsize=16K (base 128K), compression=zstd-3 (base zstd-19)"


def _left(share: float, syncs: float = 0.0) -> Recommendation:
    found = LeftOut(share, syncs, ("/db/*.ldb",))
    return recommend(ev.run(), ev.trials(), manifest=ev.manifest(), left_out=found)


def test_what_is_left_out_of_the_recording_is_the_first_warning_and_caps_how_sure() -> None:
    r = _left(0.12)
    shown = text(r)
    fits(shown)
    assert "How sure   weak. Left out: 12 % of the recorded bytes. No rule knows" in shown
    assert "Warning    Left out: 12 % of the recorded bytes. No rule knows" in shown
    assert "Set        " in shown and r.no_answer == ""
    assert r.confidence.level == "weak" and r.confidence.reasons[0] == r.warnings[0]
    assert sum("Left out" in said.text for said in brief.warnings(r)) == 1
    # What the run said when it began, in other words, is not said again.
    before = "Left out: /db/*.ldb, with 12% of the recorded bytes. No rule knows them, so they have no role."
    run = ev.run(warnings=[before])
    again = recommend(run, ev.trials(), left_out=LeftOut(0.12, 0.0, ("/db/*.ldb",)))
    assert before not in again.warnings and before in recommend(run, ev.trials()).warnings


@pytest.mark.parametrize(("share", "syncs"), [(0.9, 0.0), (0.2, 0.74)])
def test_where_most_is_left_out_nothing_is_said_to_be_set(share: float, syncs: float) -> None:
    r = _left(share, syncs)
    for width in (60, 80, 100):
        shown = text(r, width)
        fits(shown, width)
        head, said = shown.split("Left out   ")
        assert "no answer" in head and "Set  " not in shown and "×" not in shown
        assert f"{share:.0%} of the recorded bytes".replace("%", " %") in " ".join(said.split())
        assert "ztune apply" not in shown and "ztune trace roles" in shown
    assert r.no_answer == r.warnings[0]
    page = markdown.of(r)
    assert "no answer" in page and "| where | set |" not in page and "ztune apply" not in page
    whole = io.StringIO()
    terminal.show(r, Console(file=whole, width=80))
    lines = whole.getvalue().split("\n")
    assert lines[0].startswith("No answer for the recorded database. Left out: ")
    assert "◀ recommended" not in whole.getvalue() and "Recommended: " not in whole.getvalue()
    with pytest.raises(InputError, match="has nothing to set: most of what was recorded is in no replay"):
        applicable(r)
    with pytest.raises(InputError, match="has nothing to set"):
        script(r)
