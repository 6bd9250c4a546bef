"""``ztune crashtest`` on OpenZFS itself: what survives a power cut of the mount, and what must not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plain_power import need

from ztune import temporary
from ztune.cli.main import ztune
from ztune.crash.cuts import Cutting
from ztune.crash.plan import Moment
from ztune.crash.power import CACHES, Mounted
from ztune.crash.prepare import prepare
from ztune.crash.result import Cut
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import mounted
from ztune.places import mount_program
from ztune.runs.asked import layout_of
from ztune.study import DurabilityClass

STUDY = """
name = "small"
workload = "{workload}"
[layout]
arc = "64M"
[[layout.pool]]
name = "tank"
ashift = 12
[[layout.pool.vdev]]
class = "data"
kind = "stripe"
disks = 1
profile = "ssd-sata"
[[layout.dataset]]
name = "tank/db"
roles = ["data", "wal", "index", "temp"]
recordsize = "8K"
[[layouts]]
name = "unsynced"
set = {{ "data.sync" = "disabled" }}
"""
SEED = 37
"""Of three cuts: near the window's end, during a checkpoint, during a recovery; each with another cache."""
SCRIPT = "import sys; from ztune.cli.main import main; main()"


def test_whatever_the_umask_a_databases_user_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class _ReadyError(Exception):
        pass

    def start(*_args: object, **_more: object) -> None:
        raise _ReadyError

    monkeypatch.setattr(mounted.Mount, "start", start)
    study, layout = layout_of("sqlite", None, None, None)
    power = Mounted(Path("/bin/true"), study, layout, ("data",), tmp_path, seed=1, disks="instant")
    before = os.umask(0o077)
    try:
        for _ in range(2):
            with pytest.raises(_ReadyError):
                power.up("none")
    finally:
        os.umask(before)
    for path in (tmp_path / "mnt", *power.places.values()):
        assert path.stat().st_mode & 0o777 == 0o711


@pytest.fixture(autouse=True)
def _mountable() -> None:
    try:
        mount_program.check()
    except MissingError as error:
        pytest.skip(str(error))
    if os.geteuid() != 0 and not mount_program.others_may_enter():
        pytest.skip("other users may not enter mounts here, and databases run as their own")


def study(parent: Path, workload: str) -> Path:
    path = parent / "small.toml"
    path.write_text(STUDY.format(workload=workload), encoding="utf-8")
    return path


def arguments(parent: Path, workload: str, layout: str, cuts: int, *more: str) -> list[str]:
    (parent / "run").mkdir(exist_ok=True)
    (parent / "run").chmod(0o755)
    return [
        "crashtest", workload, "--layout", f"{study(parent, workload)}:{layout}", "--cuts", str(cuts),
        "--window", "0.5", "--clients", "2", "--dir", str(parent / "run"), *more,
    ]  # fmt: skip


def crashtest(parent: Path, workload: str, layout: str, cuts: int, *more: str) -> Result:
    done = CliRunner().invoke(ztune, arguments(parent, workload, layout, cuts, *more), standalone_mode=False)
    assert not left(parent)
    return done


def left(parent: Path) -> list[Path]:
    """What is still there, mounted or not."""
    found = [m.point for m in mounted.all_ours() if parent in m.point.parents]
    return [*found, *(parent / "run").iterdir()]


@pytest.mark.parametrize("workload", ["sqlite", "postgres-oltp"])
def test_nothing_acknowledged_is_lost_and_the_log_is_replayed(parent: Path, workload: str) -> None:
    need(workload)
    params = ("-p", "full_page_writes=false") if workload == "postgres-oltp" else ()
    done = crashtest(parent, workload, "base", 3, "--json", "--seed", str(SEED), *params)
    assert done.return_value == 0, done.output
    found = json.loads(done.stdout)
    figures = found["figures"]
    assert (found["found"], found["promised"]) == ("nothing-acknowledged", "nothing-acknowledged")
    assert figures["cuts"] == 3 and figures["commits_acknowledged"] > 0 == figures["commits_lost"]
    # Commits came back from the intent log, by OpenZFS's own replay.
    assert figures["replayed_most"] > 0 and found["openzfs"].startswith("OpenZFS ")
    assert set(figures["cuts_by_cache"]) == set(CACHES)
    assert set(figures["cuts_by_moment"]) == set(Moment)
    for number in range(1, 4):
        assert f"[{number}/3] cache " in done.stderr
    if workload == "postgres-oltp":
        assert found["database"]["full_page_writes"] == "off" and "only because ZFS" in found["reasons"][0]


# Of SQLite the next one shows it.
@pytest.mark.parametrize("workload", [pytest.param("sqlite", marks=pytest.mark.long), "postgres-oltp"])
def test_sync_disabled_loses_commits_and_says_so(parent: Path, workload: str) -> None:
    need(workload)
    done = crashtest(parent, workload, "unsynced", 1, "--seed", str(SEED), "--window", "1.5")
    # The layout promises no more, so that is no failure.
    assert done.return_value == 0, done.output
    assert "promised  last-seconds: sync=disabled on tank/db" in done.stdout
    assert "found     last-seconds: lost the last " in done.stdout and " LOST, " in done.stderr


def test_a_commit_that_is_not_synced_breaks_a_layout_that_promises_it(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the durability class knew nothing of it.
    monkeypatch.setattr("ztune.study.durability._sync", lambda layout, seconds: [])
    done = crashtest(parent, "sqlite", "unsynced", 1, "--seed", str(SEED), "--window", "1.5")
    assert done.return_value == 1
    assert "does not keep what its durability class promises" in done.stdout


def test_keep_leaves_what_failed_and_nothing_mounted(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.study.durability._sync", lambda layout, seconds: [])
    done = CliRunner().invoke(
        ztune,
        arguments(parent, "sqlite", "unsynced", 5, "--keep", "--seed", str(SEED), "--window", "1.5"),
        standalone_mode=False,
    )
    assert done.return_value == 1 and "[2/5]" not in done.stderr
    [folder] = left(parent)
    assert f"kept      {folder}" in done.stdout
    assert next((folder / "store").glob("disk-*.img")).stat().st_size > 0


def test_an_interrupt_unmounts_and_removes_everything(parent: Path) -> None:
    argv = [sys.executable, "-c", SCRIPT, *arguments(parent, "sqlite", "base", 1000)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("[1/1000]")
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 130 and "interrupted" in said
    assert left(parent) == []


def test_what_a_killed_one_left_is_unmounted_and_removed(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-c", SCRIPT, *arguments(parent, "sqlite", "base", 1000)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("[1/1000]")
        running.kill()
    [work] = (parent / "run").iterdir()
    monkeypatch.setenv("TMPDIR", str(work.parent))
    while work not in temporary.left_here():  # what dies with it may still be dying
        time.sleep(0.1)
    while left(parent):
        temporary.remove_left_here()


@pytest.mark.parametrize(
    ("workload", "more", "sentence"),
    [
        ("fio", (), "crash tests run the databases of postgres-oltp, sqlite, valkey, not of 'fio'"),
        ("sqlite", ("--layout", "sqlite:nix"), 'study "sqlite" has no layout "nix"'),
        ("sqlite", ("--layout", "postgres-oltp"), "give one dataset both roles"),
        ("postgres-oltp", ("--layout", "postgres-filesystems:ext4"), "is not a ZFS file system"),
        ("sqlite", ("-p", "journal_mode=off"), "journal_mode"),
        ("sqlite", ("-p", "nix"), "write NAME=VALUE"),
        ("sqlite", ("--dir", "/nonexistent"), "/nonexistent"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_made(
    parent: Path, workload: str, more: tuple[str, ...], sentence: str
) -> None:
    need(workload)
    (parent / "run").mkdir()
    argv = ["crashtest", workload, "--cuts", "1", "--dir", str(parent / "run"), *more]
    done = CliRunner().invoke(ztune, argv, standalone_mode=False)
    assert isinstance(done.exception, InputError), done.output
    assert sentence in str(done.exception) and "\n" not in str(done.exception)
    assert left(parent) == []


def test_a_mount_that_dies_by_itself_is_no_finding(parent: Path) -> None:
    (parent / "run").mkdir()
    (parent / "run").chmod(0o755)
    cuts: list[Cut] = []

    def kill(doing: str) -> None:
        if doing.startswith("working") and cuts:
            [store] = (parent / "run").glob("*/store")
            pid = mounted.serving(store)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    chosen, layout = layout_of(f"{study(parent, 'sqlite')}:base", None, None, None)
    test = prepare(
        "sqlite", chosen, layout, {}, Cutting(3, SEED, 2, 0.2, parent=parent / "run"),
        disks="instant", report=cuts.append, say=kill,
    )  # fmt: skip
    with pytest.raises(ZtuneError, match="ztune-mount died by itself"):
        test.run()
    assert [cut.klass for cut in cuts] == [DurabilityClass.NOTHING]
    assert left(parent) == []
