"""Whole tests, real databases on plain directories: a cut there is the end of the database's processes."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from children import environment
from plain_power import Forgetful, Plain, need, plain_test
from workloads_made import job_workload

from ztune.analysis.stats import upper_bound
from ztune.crash.plan import Moment, plans
from ztune.crash.power import CACHES
from ztune.crash.result import Cut, Result
from ztune.databases.postgresql.crash import Postgres
from ztune.databases.postgresql.onhost.server import PAGE_SIZE
from ztune.errors import ZtuneError
from ztune.onhost.host.process import descendants
from ztune.onhost.host.workdir import WorkDir
from ztune.study import DurabilityClass


def left(parent: Path) -> list[Path]:
    return list(parent.iterdir())


@pytest.mark.parametrize("mode", ["wal", "persist"])
def test_sqlite_keeps_what_it_acknowledged(parent: Path, mode: str) -> None:
    seen: list[Cut] = []
    # Nothing waits for the disk: on a busy one, no client might come to a commit before a cut.
    params = {"journal_mode": mode, "synchronous": "off"}
    result = plain_test("sqlite", parent, cuts=5, params=params, report=seen.append, window_s=0.2).run()
    assert result.found is DurabilityClass.NOTHING and not result.broken
    assert [cut.number for cut in seen] == [1, 2, 3, 4, 5] and result.cuts == seen
    assert result.figures()["commits_acknowledged"] > 0
    assert result.database["journal_mode"] == mode
    moments = {cut.moment for cut in seen}
    assert Moment.RECOVERY in moments and (Moment.CHECKPOINT in moments) == (mode == "wal")
    assert left(parent) == []


def test_postgres_keeps_what_it_acknowledged(parent: Path) -> None:
    need("postgres-oltp")
    result = plain_test("postgres-oltp", parent, cuts=3, seed=37).run()
    assert result.found is DurabilityClass.NOTHING and not result.broken
    assert result.figures()["commits_acknowledged"] > 0
    assert result.version.startswith("PostgreSQL ")
    assert left(parent) == []


# On the mount, sync=disabled shows the same of PostgreSQL.
@pytest.mark.parametrize("workload", ["sqlite", pytest.param("postgres-oltp", marks=pytest.mark.long)])
def test_disks_that_lie_about_syncs_are_caught(parent: Path, workload: str) -> None:
    need(workload)
    test = plain_test(workload, parent, cuts=2, power=Forgetful, seed=37, window_s=1.0)
    result = test.run()
    assert result.found is DurabilityClass.LAST_SECONDS and result.broken
    figures = result.figures()
    # Each cut brings back the state of the mount before it, so nothing of its window is there.
    assert 0 < figures["commits_lost"] == figures["commits_acknowledged"]
    assert figures["most_lost_at_once"] <= figures["commits_lost"]
    assert figures["oldest_loss_s"] > 0 and figures["upper_bound_per_cut"] is None
    assert "lost the last" in result.finding() and any("does not keep" in line for line in result.lines())


def test_a_layout_that_promises_no_more_is_not_broken_by_a_loss(parent: Path) -> None:
    result = plain_test(
        "sqlite",
        parent,
        cuts=1,
        power=Forgetful,
        promised=DurabilityClass.LAST_SECONDS,
        seed=37,
        window_s=1.0,
    ).run()
    assert result.found is DurabilityClass.LAST_SECONDS and not result.broken


def damage_page(path: Path, number: int, size: int) -> None:
    with path.open("r+b") as file:
        # Its end, where pages of both databases have their rows; the middle may be free.
        file.seek((number + 1) * size - size // 4)
        file.write(random.Random(1).randbytes(size // 4))


def sqlite_page(top: Path) -> bool:
    path = next(top.rglob("ledger.db"))
    made = sqlite3.connect(path)
    # Else the log still has the page, and mends it.
    made.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    made.close()
    # Several: of one, what is damaged may be free.
    for number in range(4, 20):
        damage_page(path, number, 4096)
    return True


def postgres_page(top: Path) -> bool:
    # In every table and index of ours: the log makes pages anew that were added since the last checkpoint,
    # but those of the accounts were there before.
    files = [p for p in top.rglob("base/5/*") if p.name.isdigit() and int(p.name) >= 16384]
    for path in files:
        if path.stat().st_size > 4 * PAGE_SIZE:
            damage_page(path, 3, PAGE_SIZE)
    return True


def row_gone(top: Path) -> bool:
    """Take an acknowledged commit out of the ledger, where a later one of its client is there."""
    made = sqlite3.connect(next(top.rglob("ledger.db")))
    with made:
        gone = made.execute("DELETE FROM ledger WHERE number = 1 AND EXISTS (SELECT 1 FROM ledger l2"
                            " WHERE l2.client = ledger.client AND l2.number = 3)").rowcount  # fmt: skip
    made.close()
    return gone > 0


@pytest.mark.parametrize(
    ("workload", "damage", "sentence"),
    [
        ("sqlite", sqlite_page, ""),
        ("sqlite", row_gone, "with a balance that is not the sum of the ledger's rows"),
        ("postgres-oltp", postgres_page, ""),
    ],
)
def test_damage_is_found_and_the_next_cut_has_a_new_database(
    parent: Path, workload: str, damage: Callable[[Path], bool], sentence: str
) -> None:
    need(workload)
    done: list[bool] = []

    def once(top: Path) -> None:
        if not any(done):
            done.append(damage(top))

    # Without full pages in the log: they would mend what is damaged here.
    # SQLite waits for no disk, and comes to its third commit on a busy one too.
    params = {"full_page_writes": "false"} if workload == "postgres-oltp" else {"synchronous": "off"}
    result = plain_test(workload, parent, cuts=4, damage=once, seed=2, params=params).run()
    assert any(done), "no client came to a third commit before any of the cuts"
    assert result.found is DurabilityClass.CORRUPT and result.broken
    assert result.count(DurabilityClass.CORRUPT) == 1 and result.cuts[-1].checked
    problems = [text for cut in result.cuts for text in cut.problems]
    assert any(sentence in problem for problem in problems), problems
    assert left(parent) == []


def test_keep_stops_at_the_first_failure_and_leaves_everything(parent: Path) -> None:
    result = plain_test("sqlite", parent, cuts=5, power=Forgetful, keep=True, seed=37, window_s=1.0).run()
    assert len(result.cuts) == 1 and result.broken
    [folder] = left(parent)
    assert result.kept == str(folder)
    assert (folder / "acknowledged").read_text(encoding="ascii").count("\n") >= result.cuts[0].lost > 0
    assert next(folder.rglob("ledger.db")).is_file()


def test_an_interrupt_leaves_nothing(parent: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from plain_power import plain_test
        def report(cut):
            print(cut.number, flush=True)
        plain_test("sqlite", Path(sys.argv[1]), cuts=1000, report=report).run()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip() == b"1"
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=120)
    assert b"KeyboardInterrupt" in said
    assert left(parent) == []


def test_a_cut_of_postgres_leaves_no_process_and_no_shared_memory(parent: Path) -> None:
    need("postgres-oltp")
    database = Postgres(job_workload("postgres-oltp").resolved(), {}, clients=2)
    workdir = WorkDir.create("crashtest", parent=parent)
    places = {role: workdir.sub(role) for role in database.roles}
    try:
        database.prepare(workdir, places)
        database.load(100)
        database.start()
        database.client()
        family = descendants(database.server.pid)
        lines = []
        for pid in (database.server.pid, *(child.pid for child in family)):
            # A worker of autovacuum may end between two looks.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                lines += [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        files = {line[5] for line in lines if len(line) > 5 and line[5].startswith("/dev/shm/PostgreSQL.")}
        segments = {line[4] for line in lines if len(line) > 5 and line[5].startswith("/SYSV")}
        assert len(family) > 4 and files and segments
        database.cut()
        assert not any(child.alive() for child in family)
        assert not any(Path(file).exists() for file in files)
        there = {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
        assert not segments & there
        # And it comes back from that.
        database.start()
        assert len(database.read().accounts) == 100
    finally:
        database.end()
        workdir.remove()


def test_plans_are_the_seeds_and_use_each_cache_as_often() -> None:
    found = plans(300, 7, checkpoints=True)
    assert found == plans(300, 7, checkpoints=True) != plans(300, 8, checkpoints=True)
    assert {cache: sum(p.cache == cache for p in found) for cache in CACHES} == dict.fromkeys(CACHES, 100)
    assert all(sum(p.moment is moment for p in found) > 20 for moment in Moment)
    assert found[0].moment is Moment.LOAD
    assert max(p.share for p in found) > 0.95 and min(p.share for p in found) < 0.05
    without = plans(300, 7, checkpoints=False)
    assert not any(p.moment is Moment.CHECKPOINT for p in without)
    assert [(p.cache, p.share) for p in without] == [(p.cache, p.share) for p in found]


def test_bound_is_about_three_divided_by_the_cuts() -> None:
    assert upper_bound(200) == pytest.approx(3 / 200, rel=0.01)
    assert upper_bound(1) == pytest.approx(0.95)


def test_result_as_json_has_every_cut() -> None:
    cut = Cut(1, Moment.LOAD, "lazy", 0.5, acknowledged=10, lost=3, oldest_s=0.4, checked=True)
    result = Result(
        "sqlite",
        "SQLite 3",
        "OpenZFS 2",
        "s",
        "l",
        "h",
        {},
        {},
        DurabilityClass.NOTHING,
        [],
        {},
        ("a check",),
        [cut],
    )
    data = result.to_json()
    assert data["found"] == "last-seconds" and data["broken"] is True
    assert data["cuts"][0]["class"] == "last-seconds" and data["cuts"][0]["moment"] == "under load"
    assert data["figures"]["most_lost_at_once"] == 3 and data["figures"]["upper_bound_per_cut"] is None


class Unmountable(Plain):
    """Can't be mounted after a cut."""

    def up(self, cache: str) -> int:
        if self._was_cut:
            raise ZtuneError("the pool is gone")
        return super().up(cache)


@pytest.mark.parametrize("promised", [DurabilityClass.CORRUPT, DurabilityClass.NOTHING])
def test_a_cut_of_a_recovery_keeps_only_what_is_worse_than_promised(
    parent: Path, promised: DurabilityClass
) -> None:
    seed = next(s for s in range(100) if plans(2, s, checkpoints=True)[1].moment is Moment.RECOVERY)
    result = plain_test(
        "sqlite", parent, cuts=2, power=Unmountable, keep=True, seed=seed, promised=promised, window_s=0.2
    ).run()
    problem = ("it can't be mounted any more: the pool is gone",)
    if promised is DurabilityClass.CORRUPT:
        assert [cut.problems for cut in result.cuts] == [problem, problem]
        assert result.kept is None and left(parent) == []
    else:
        assert [cut.problems for cut in result.cuts] == [problem]
        assert result.kept is not None and left(parent) == [Path(result.kept)]
