"""Tables on 80 columns: no head is cut, no line is longer, and no value is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ztune import output
from ztune.cli import mount
from ztune.cli.main import ztune
from ztune.lab import accel, image, keeper
from ztune.onhost.host.mounted import MountOptions
from ztune.places import mount_points
from ztune.places.engine_spec import mount_spec
from ztune.store.db import Store
from ztune.study import ready


@pytest.fixture(autouse=True)
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")


def call(*words: str) -> str:
    done = CliRunner().invoke(ztune, words)
    assert done.exit_code in (0, 3), done.output
    return done.output


def holds(shown: str, *heads: str) -> None:
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80, shown
    assert "…" not in shown
    head = next((line for line in lines if line.startswith(heads[0])), "")
    # One line of heads; or blocks, with each head at the beginning of a line.
    assert all(one in head for one in heads) or all(
        any(line.startswith(f"{one} ") for line in lines) for one in heads
    ), shown


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        ("list workloads", ("workload", "here", "what it does")),
        ("list workloads postgres-oltp", ("parameter", "type", "default", "meaning")),
        ("list layouts", ("name", "layouts", "description")),
        ("list layouts postgres-oltp", ("name", "hash", "durability")),
        ("list profiles", ("name", "kind", "description")),
        ("doctor", ("check", "state", "what it means", "what brings it")),
    ],
)
def test_tables_of_what_there_is(words: str, heads: tuple[str, ...]) -> None:
    shown = call(*words.split())
    start = next(i for i, line in enumerate(shown.splitlines()) if line.startswith(heads[0]))
    # `sudo ztune …` is what doctor says to a user without root's rights: nothing is cut there.
    shown = "\n".join(shown.splitlines()[start:]).partition("\n`")[0].replace(" …", "  ")
    holds(shown, *heads)


def make_runs(*names: str) -> None:
    with Store.open() as store:
        for name in names:
            store.create_run(
                kind="screen", study=ready.find("sqlite"), trace_path=Path("/srv/one/trace-of-a-day.trace"),
                trace_sha="0" * 64, environment={}, versions={}, seed=1, name=name,
            )  # fmt: skip


def test_the_last_runs_are_shown_unless_all_are_asked_for() -> None:
    make_runs(*(f"run-{i:02d}" for i in range(1, 23)))
    shown = call("runs")
    assert "run-02" not in shown and "run-03" in shown and "run-22" in shown
    assert shown.rstrip().endswith("and 2 older runs: --all")
    assert "run-01" in call("runs", "--all") and "older" not in call("runs", "--all")
    assert len(json.loads(call("runs", "--json"))) == 22


def test_runs() -> None:
    make_runs("short", "a name that somebody found to be quite descriptive")
    shown = call("runs")
    holds(shown, "run", "created (UTC)", "status", "trials", "name", "trace, or where it ran")
    assert "trace-of-a-day.trace" in shown.replace("\n", "").replace(" ", "")


def test_the_images_of_the_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Found:
        openzfs, kernel, folder = "2.3.2-2~bpo12+2", "6.1.0-56-amd64", Path("/root") / ("images-" * 12)
        user_mode = False

        def size(self) -> int:
            return 93 << 20

    monkeypatch.setattr(image, "built", lambda: [Found()])
    monkeypatch.setattr(accel, "known", lambda: None)
    monkeypatch.setattr(keeper, "connect", lambda: None)
    holds(call("lab", "list"), "OpenZFS", "kernel", "MiB", "folder")


def test_which_version_of_the_lab_runs_in_user_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = image.Image("a", "6.1.0-56-amd64", "2.1.11-1", "recipe")
    fast = image.Image("b", "6.1.1-um", "2.3.2-2", "recipe", user_mode=True)
    verdict = accel.Acceleration("tcg", "this host has no /dev/kvm")
    monkeypatch.setattr(image, "built", lambda: [fast, plain])
    monkeypatch.setattr(accel, "known", lambda: verdict)
    monkeypatch.setattr(accel, "verdict", lambda _image: verdict)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(keeper, "connect", lambda: None)
    shown = call("lab", "list")
    assert "trials with --on lab run in user mode, in real time, with OpenZFS 2.3.2-2\n" in shown


def point(where: Path) -> mount_points.MountPoint:
    study = ready.find("postgres-oltp")
    return mount_points.MountPoint(
        directory=where,
        store=where.with_name("store-of-the-disks"),
        token="t",
        places={d.name: where / d.name.replace("/", "-") for d in study.layout.datasets},
        study=study.name,
        layout=study.layout,
        spec=mount_spec(study, study.layout, 1),
        options={},
        made=True,
    )


def test_what_is_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = point(Path("/srv/databases/of-the-shop/postgres-15-main"))
    monkeypatch.setattr(mount_points, "every", lambda: ([one], []))
    monkeypatch.setattr(type(one.kept), "allocated", lambda _self: 1 << 30)
    shown = call("mount", "--list")
    holds(shown, "directory", "state", "process", "study", "layout", "size", "store")
    assert str(one.directory) in shown and "1.00 GiB" in shown


def test_what_was_mounted_and_its_counters(capsys: pytest.CaptureFixture[str]) -> None:
    class Ready:
        ready: dict[str, Any] = {}  # noqa: RUF012
        pid = 1

    one = point(Path("/srv/databases/of-the-shop/postgres-15-main"))
    mount._tell(one, one.layout, Ready(), MountOptions(), False)  # type: ignore[arg-type]
    shown = capsys.readouterr().out.partition("`ztune")[0]
    holds(shown, "role", "dataset", "directory", "recordsize", "compression", "logbias", "sync")
    disk = {"pool": "main", "class": "data", "name": "hdd-7200", "reads": 123_456_789, "read_bytes": 1 << 50}
    disk |= {"writes": 987_654_321, "write_bytes": 1 << 50, "flushes": 55_555, "busy_s": 12345.6}
    row = {"name": "main/db", "logical": 1 << 50, "allocated": 1 << 49, "ratio": 2.0, "zil_bytes": 1 << 40}
    stats = {"seconds": 12345.6, "disks": [disk], "causes": {"user data": disk}}
    mount._show(one, {**stats, "datasets": [{**row, "commits": 1_234_567}]})
    parts = capsys.readouterr().out.partition("\ndisk ")
    text = "disk " + parts[2]
    holds(text, "disk", "reads", "read", "writes", "written", "flushes", "busy")
    holds(text, "dataset", "logical", "on disk", "ratio", "log", "commits")


def test_a_row_with_no_room_is_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    heads = tuple(f"a column of {n}" for n in ("one", "two", "three", "four", "five", "six"))
    output.print_table(heads, [[f"value {i}" for i in range(6)]] * 2)
    shown = capsys.readouterr().out
    holds(shown, *heads)
    assert shown.count("value 5") == 2 and "a column of six    value 5" in shown
