"""``ztune apply`` as it is typed, on runs in a store and a stand-in for zfs."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import evidence as ev
import pytest
import yaml
from click.testing import CliRunner, Result
from zfs_machine import Machine

from ztune.cli import apply
from ztune.cli.main import ztune
from ztune.errors import InputError, MissingError
from ztune.store.db import Store
from ztune.study import Study
from ztune.study.durability import judge
from ztune.study.layout import with_settings

WHERE = ("--dataset", "data=tank/pg", "--dataset", "wal=tank/pg/wal")


def stored(changes: dict[str, str] | None = None) -> str:
    """Store a run whose best layout is the base with ``changes``; return its id."""
    study = Study.model_validate({k: v for k, v in ev.run().study.items() if k != "profiles"})
    base = study.layout
    best = with_settings(base, changes or {"data.recordsize": "16K", "wal.logbias": "throughput"}, "best")
    goal = study.objective.model_copy(update={"durability": judge(best).klass})
    study = study.model_copy(update={"objective": goal})
    with Store.open() as store:
        run = store.create_run(
            kind="screen", study=study, trace_path=Path("/nowhere/t.trace"), trace_sha="0" * 64,
            environment={"kernel": "6.1"}, versions={"ztune": "0.1.0"}, seed=1,
        )  # fmt: skip
        for number, layout in enumerate((base, best), start=1):
            trial = store.add_trial(run.id, layout, is_baseline=number == 1)
            store.start_trial(trial.id, {})
            measure = {**ev.toy_measure(layout), "model": {"modelled_s": 10.0 / number**3, "trace_s": 30.0}}
            result = {"engine": {"version": "0.1.0", "openzfs": "2.3.2"}, "measure": measure, "warnings": []}
            store.finish_trial(trial.id, result=result, wall_s=1.0)
        store.finish_run(run.id, "done")
    return run.id


def call(*words: str) -> Result:
    return CliRunner().invoke(ztune, ["apply", *words], standalone_mode=False)


def test_shown_done_and_taken_back(machine: Machine, tmp_path: Path) -> None:
    run = stored()
    shown = call(*WHERE)
    assert shown.exception is None, shown.output
    assert f'layout "best" of run {run}' in shown.output
    assert "Nothing was changed. With --yes: 3 changes, undo file first." in shown.output
    assert machine.changes() == []
    done = call(run[:4], *WHERE, "--yes")
    assert done.exception is None and "Done: 3 changes, each checked." in done.output
    assert machine.local("tank/pg")["recordsize"] == "16384"
    (undo,) = (tmp_path / "home" / "undo").glob(f"{run}-*.json")
    assert f"ztune apply --undo {undo} --yes" in done.output
    again = call(*WHERE, "--yes")
    assert "There is nothing to change" in again.output
    assert "stays as it is until it is written anew" in again.output
    assert len(list((tmp_path / "home" / "undo").iterdir())) == 1
    shown = call("--undo", str(undo))
    assert "zfs inherit recordsize tank/pg" in shown.output and "With --yes: 3 commands" in shown.output
    taken = call("--undo", str(undo), "--yes")
    assert "Taken back: 3 of 3 changes." in taken.output and taken.return_value == 0
    assert "recordsize" not in machine.local("tank/pg")
    # Nothing is left to take back: said, and all is as asked for.
    again = call("--undo", str(undo), "--yes")
    assert "as before: 3 of 3 changes never made, or taken back already" in again.output
    assert "There was nothing to take back." in again.output and again.return_value == 0


def test_weaker_durability_is_refused(machine: Machine) -> None:
    stored({"data.sync": "disabled", "wal.sync": "disabled"})
    shown = call(*WHERE)
    assert "Durability: nothing-acknowledged now, last-seconds then" in shown.output
    assert "--accept-durability last-seconds is needed as well" in " ".join(shown.output.split())
    refused = call(*WHERE, "--yes")
    assert isinstance(refused.exception, InputError) and "nothing was changed" in str(refused.exception)
    assert machine.changes() == []
    for kind in ("sh", "json"):
        assert isinstance(call(*WHERE, "--export", kind).exception, InputError)
    assert call(*WHERE, "--yes", "--accept-durability", "last-seconds").exception is None
    assert machine.local("tank/pg")["sync"] == "disabled"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "say where each role lives: --dataset data=POOL/DATASET --dataset wal=POOL/DATASET"),
        (("--dataset", "data=tank/nil"), "there is no dataset tank/nil"),
        (("--out", "x"), "--out goes with --export"),
        (("--export", "sh", "--yes"), "does not go with --yes"),
        (("--undo", "x", "--dataset", "data=tank/pg"), "--undo takes its datasets from FILE"),
        (("--via", "'sudo"), "its quotes do not match"),
        (("--on", "db1"), "it is local or ssh"),
    ],
)
def test_bad_words(machine: Machine, words: tuple[str, ...], sentence: str) -> None:
    stored()
    done = call(*words)
    assert isinstance(done.exception, InputError) and sentence in str(done.exception)
    assert machine.changes() == []


def test_via_stands_before_each_command(machine: Machine, tmp_path: Path) -> None:
    stored()
    log = tmp_path / "via.log"
    wrapper = tmp_path / "sudo.sh"
    wrapper.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {log}\nshift\nexec "$@"\n')
    wrapper.chmod(0o755)
    assert call(*WHERE, "--via", f"{wrapper} -n", "--yes").exception is None
    lines = log.read_text().splitlines()
    assert all(line.startswith("-n zfs") or line.startswith(("-n zpool", "-n cat")) for line in lines)
    assert sum("-n zfs set" in line for line in lines) == 3


def test_what_takes_long_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stored()
    said: list[str] = []

    @contextlib.contextmanager
    def waiting(text: str) -> Iterator[None]:
        said.append(text)
        yield

    monkeypatch.setattr(apply, "waiting", waiting)
    assert call(*WHERE).exception is None and call(*WHERE, "--export", "sh").exception is None
    assert said == ["asking ZFS on this host"] * 2


def test_over_ssh(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh that runs the words in a shell, as sshd does."""
    stored()
    log = tmp_path / "ssh.log"
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n'
        '[ "$6" = db1 ] || { echo "no route" >&2; exit 255; }\nexec sh -c "$7"\n'
    )
    ssh.chmod(0o755)
    done = call(*WHERE, "--on", "ssh://db1", "--yes")
    assert done.exception is None, done.exception
    assert "Plan for ssh://db1 (OpenZFS 2.3.2-1)" in done.output
    assert machine.local("tank/pg")["recordsize"] == "16384"
    (undo,) = (tmp_path / "home" / "undo").iterdir()
    assert json.loads(undo.read_text())["on"] == "ssh://db1"
    before = len(log.read_text().splitlines())
    assert isinstance(call("--undo", str(undo), "--on", "ssh://db2").exception, InputError)
    assert call("--undo", str(undo), "--yes").exception is None
    assert len(log.read_text().splitlines()) > before  # by ssh again, without --on
    assert "recordsize" not in machine.local("tank/pg")
    lost = call(*WHERE, "--on", "ssh://db9")
    assert "ssh://db9 can't be reached: no route" in str(lost.exception)
    none = call(*WHERE, "--on", "ssh://db1", "--via", "nosuchsudo -n")
    assert str(none.exception) == "there is no nosuchsudo on ssh://db1, which --via names"
    # As zfs ends where it could not set a property.
    zfs = shutil.which("zfs")
    assert zfs is not None
    Path(zfs).write_text("#!/bin/sh\necho denied >&2\nexit 255\n")
    refused = call(*WHERE, "--on", "ssh://db1")
    assert str(refused.exception) == "`zfs version` on ssh://db1 failed: denied"


def test_exports_say_when_there_is_no_zfs_and_still_work(no_zfs: None, tmp_path: Path) -> None:
    stored()
    assert isinstance(call(*WHERE).exception, MissingError)
    done = call(*WHERE, "--export", "ansible")
    assert done.exception is None
    assert "not compared with a live system: there is no zfs on this host" in done.stderr
    assert [t["name"] for t in yaml.safe_load(done.stdout)][1] == "data, temp, index on tank/pg"
    for kind in ("sh", "json"):
        assert call(*WHERE, "--export", kind).stdout
        assert call("--export", kind).stdout
    out = tmp_path / "layout.sh"
    assert call("--export", "sh", "--out", str(out)).exception is None
    assert out.stat().st_mode & 0o100
