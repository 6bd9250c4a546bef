"""The advice that people follow against ztune's: both with the real database, on a mount, in one run.

    python bench/advice.py                       every database on hdd-7200 and ssd-sata; hours
    python bench/advice.py postgresql:ssd-sata   one database on one kind of disk (several may be named)
    python bench/advice.py --blocks 3 …          each layout so often; default 5
    python bench/advice.py --screening RUN PAIR  … with the layout that this screening recommends
    python bench/advice.py -p seconds=20 PAIR    … with another parameter than it was recorded with
    python bench/advice.py --markdown            the table of docs/advice.md of what is there; runs nothing

Of each pair the load is recorded and screened, without what would have to be bought; the layout that is
recommended then runs on the mount beside the base, which has ZFS's defaults, and every set of advice that
speaks of the database, each with and without its settings of the database. Layouts run in blocks, in random
order. What was cut goes on where it was: which runs belong to a pair is kept in the state directory. Exit
code 1 if ours is slower than a set beyond noise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import started

from ztune import files, output, paths
from ztune.advice.recommend import recommend
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import standing
from ztune.cli._live import LiveView
from ztune.cli._recording import record_workload
from ztune.cli._values import pairs
from ztune.databases import database
from ztune.errors import ZtuneError
from ztune.places import engine as engines
from ztune.places import named as places
from ztune.places.channel import Place
from ztune.runs import asked, recordings, runner, screening
from ztune.runs.asked import Task
from ztune.runs.options import ScreenOptions, TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, advised
from ztune.study.hardware import bought
from ztune.study.layout import with_settings

PROFILES = ("hdd-7200", "ssd-sata")
LOADS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "postgresql": ("postgres-oltp", {"size": "112M", "seconds": 10, "rate": 20, "warmup": 2}),
    "mariadb": ("mariadb-oltp", {"size": "112M", "seconds": 10, "warmup": 2}),
    "rocksdb": ("rocksdb", {"size": "112M", "operations": 500}),
    "sqlite": ("sqlite", {"size": "112M", "seconds": 10}),
}
"""Short loads at rates that a rotating disk keeps, with more data than an ARC of 64 MiB holds."""
BUDGET = 32
WITHIN = 0.05
"""An interval within that of 1 says that both are equal; a wider one that spans 1 says nothing."""


@dataclass(frozen=True)
class Against:
    """Ours over one layout of theirs, within blocks: above 1, ours takes more. ``done``: blocks."""

    pair: str
    theirs: str
    ours: str
    time: Ratio | None
    space: Ratio | None
    written: Ratio | None
    run: str
    done: int

    @property
    def verdict(self) -> str:
        """What the time says, in words."""
        if self.time is None or not self.time.known:
            return "not known"
        if self.time.low > 1:
            return "ours is slower"
        if self.time.high < 1:
            return "ours is faster"
        near = self.time.low >= 1 - WITHIN and self.time.high <= 1 + WITHIN
        return "equal" if near else "not told"


def state() -> Path:
    """Return the file that says which runs belong to which pair."""
    return paths.home() / "advice-bench.json"


def known() -> dict[str, dict[str, str]]:
    """Return pair → "screening" and "run" → id, as far as they are there."""
    found: dict[str, dict[str, str]] = json.loads(state().read_text()) if state().exists() else {}
    return found


def note(pair: str, what: str, run: str) -> None:
    """Keep that ``run`` is ``what`` of ``pair``."""
    found = known()
    found.setdefault(pair, {})[what] = run
    files.write(state(), output.json_text(found) + "\n")


def without_purchases(study: Study) -> Study:
    """Return ``study`` without layouts that take disks or memory that its base does not have."""

    def free(changes: Mapping[str, str | int]) -> bool:
        return not bought(study.layout, with_settings(study.layout, changes))

    axes = {key: values for key, values in study.axes.items() if all(free({key: v}) for v in values)}
    return study.model_copy(
        update={
            "axes": axes,
            "layouts": tuple(one for one in study.layouts if free(one.set)),
            "cross": tuple(keys for keys in study.cross if set(keys) <= axes.keys()),
        }
    )


def screened(store: Store, pair: str) -> Run:
    """Return the screening of a pair, made now where it is not there."""
    there = known().get(pair, {}).get("screening")
    if there is not None:
        return store.run(there)
    name, _, profile = pair.partition(":")
    workload, parameters = LOADS[name]
    trace = recordings.recorded(
        workload, parameters, {}, "advice", lambda made, path: record_workload(made, "auto", path)
    )
    study = without_purchases(asked.study_for(trace, None, profile, None))
    options = ScreenOptions(budget=BUDGET)
    with LiveView() as live:
        run = screening.start(
            store, trace, study, engines.check(), options, others={}, name=f"advice {pair}",
            command=["bench/advice.py", pair], observer=live,
        )  # fmt: skip
    note(pair, "screening", run.id)
    return run


def task_of(store: Store, screening_run: Run, name: str, params: Mapping[str, str]) -> Task:
    """Return what runs on the mount: the base, ours, and every set's, each layout once."""
    recommendation = recommend(screening_run, store.trials(screening_run.id))
    task = asked.task_after(
        screening_run, store, params, [recommendation.layout_hash], 1, native=True, on=advised.MOUNT,
        advice=list(advised.sets_of(name)),
    )  # fmt: skip
    for one in task.notes:
        print(f"advice: {one}", file=sys.stderr)
    return task


def measure(store: Store, pair: str, blocks: int, place: Place, params: Mapping[str, str]) -> Run:
    """Run a pair on the mount, or go on with it, until each layout ran ``blocks`` times."""
    screening_run = screened(store, pair)
    name = pair.partition(":")[0]
    there = known().get(pair, {}).get("run")
    if there is not None:
        run = store.run(there)
        if run.status == "done":
            return run
        with LiveView() as live:
            return runner.resume(store, run, places.again(run), live)
    task = task_of(store, screening_run, name, params)
    request = runner.Request(
        study=task.study, layouts=task.layouts, job=task.job, place=place,
        options=TrialOptions(blocks=(blocks, blocks)), seed=None, name=f"advice {pair}",
        command=["bench/advice.py", pair], source_run=screening_run.id,
    )  # fmt: skip
    before = {run.id for run in store.runs()}
    try:
        with LiveView() as live:
            return runner.start(store, request, live)
    finally:
        # Also where it was cut: it goes on with that one.
        for run in store.runs():
            if run.id not in before and run.name == f"advice {pair}":
                note(pair, "run", run.id)


def compared(store: Store, pair: str) -> list[Against]:
    """Return ours against each other layout of a pair's run, the base as ZFS's defaults."""
    ids = known().get(pair, {})
    if "run" not in ids:
        return []
    run = store.run(ids["run"])
    now = standing(run, store.trials(run.id))
    ours_hash = recommend(store.run(ids["screening"]), store.trials(ids["screening"])).layout_hash
    by_hash = {one.hash: one for one in now.found.layouts}
    ours = by_hash.get(ours_hash)
    if ours is None or not now.minimise:
        return []
    return [_against(pair, ours, one, now.minimise[0], run) for one in now.found.layouts if one is not ours]


def _against(pair: str, ours: LayoutResult, theirs: LayoutResult, key: str, run: Run) -> Against:
    def ratio(metric: str) -> Ratio | None:
        return paired(ours.values.get(metric, {}), theirs.values.get(metric, {}))

    name = "zfs-defaults" if theirs.baseline else theirs.name.removeprefix(advised.PREFIX)
    both = ours.values.get(key, {}).keys() & theirs.values.get(key, {}).keys()
    return Against(pair, name, ours.name, ratio(key), ratio("space"), ratio("written"), run.id, len(both))


def _text(ratio: Ratio | None) -> str:
    return "–" if ratio is None else ratio.text.replace("×", "")


def markdown(rows: Sequence[Against]) -> list[str]:
    """Return the table of docs/advice.md: ours over theirs, 1 is no difference."""
    out = [
        "| database, disks | ours | theirs | time | space | written | blocks | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        cells = (
            one.pair.replace(":", ", "), one.ours, one.theirs, _text(one.time), _text(one.space),
            _text(one.written), str(one.done), one.verdict,
        )  # fmt: skip
        out.append(f"| {' | '.join(cells)} |")
    return out


def summary(rows: Sequence[Against], pairs: Sequence[str]) -> str:
    """Return whether the goal is met, with its figure."""
    count = Counter(one.verdict for one in rows)
    slower = [one.time.mean for one in rows if one.verdict == "ours is slower" and one.time is not None]
    ran = {one.pair for one in rows}
    missing = [pair for pair in pairs if pair not in ran]
    if slower:
        goal = f"missed, at worst {max(slower):.2f} times"
    else:
        goal = "met" if not count["not told"] and not missing else "neither met nor missed by this"
    text = (
        f"Of {len(rows)} comparisons ours is faster in {count['ours is faster']}, slower in {len(slower)}, "
        f"equal within {WITHIN:.0%} in {count['equal']}; {count['not told'] + count['not known']} can't be "
        f"told. The goal, never slower, is {goal}."
    )
    return text + (f" Not run: {', '.join(missing)}." if missing else "")


def main() -> int:
    every = [f"{name}:{profile}" for profile in PROFILES for name in LOADS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", metavar="DATABASE:PROFILE")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--screening", metavar="RUN", help="with one pair: a screening that is there")
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--screen-only", action="store_true", help="record and screen, and run nothing")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    wrong = [pair for pair in given.pairs if pair not in every]
    if wrong:
        parser.error(f"{wrong[0]} is none of {', '.join(every)}")
    assert all(database.of_workload(workload) for workload, _ in LOADS.values())
    if given.screening and len(given.pairs) != 1:
        parser.error("--screening goes with one pair")
    with Store.open() as store:
        try:
            if given.screening:
                note(given.pairs[0], "screening", store.run(given.screening).id)
            for pair in [] if given.markdown else given.pairs or every:
                print(f"advice: {pair}", file=sys.stderr, flush=True)
                if given.screen_only:
                    screened(store, pair)
                else:
                    measure(store, pair, given.blocks, places.make("mount", None), pairs(tuple(given.p)))
        except ZtuneError as error:
            print(f"advice: {error}", file=sys.stderr)
            return error.exit_code
        rows = [row for pair in every for row in compared(store, pair)]
    print("\n".join(markdown(rows)))
    print(f"\n{summary(rows, every)}")
    return int(any(row.verdict == "ours is slower" for row in rows))


if __name__ == "__main__":
    started.script(main)
