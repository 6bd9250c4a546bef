"""``ztune setup`` against a package manager that stands in for the system's, and ``ztune list workloads``."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ztune import native
from ztune.cli import clean
from ztune.cli.main import ztune
from ztune.databases import registry, setup
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.native import openzfs
from ztune.packages import _COMMANDS, _UNATTENDED, unattended_install
from ztune.store.db import Store
from ztune.study import ready

needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian without fio, whose apt-get brings it and notes what it was asked."""
    place = tmp_path / "bin"
    place.mkdir()
    fio = shutil.which("fio") or "/bin/true"
    programs = {
        "apt-get": f'echo "$@" >> {tmp_path}/asked\n'
        f"[ -e {tmp_path}/broken ] && {{ echo 'E: no space left'; exit 100; }}\n"
        f"[ $1 = install ] && ln -sf {fio} {place}/fio; exit 0",
        "apt-cache": f"[ -e {tmp_path}/lists ] && echo 'fio | 3.33'; exit 0",
        "dpkg-query": f'[ -e {place}/fio ] && echo "ii "',
        "sudo": f'PATH={place}; exec "$@"',
    }
    for name, text in programs.items():
        path = place / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        path.chmod(0o755)
    for name in ("sh", "setpriv"):
        found = shutil.which(name)
        if found:
            (place / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("SUDO", raising=False)
    monkeypatch.setattr(setup, "os_family", lambda: "debian")
    return tmp_path


def asked(bare: Path) -> list[str]:
    path = bare / "asked"
    return path.read_text().splitlines() if path.exists() else []


@needs_fio
def test_what_is_missing_is_brought_once(bare: Path) -> None:
    done = CliRunner().invoke(ztune, ["setup", "fio"])
    assert done.exit_code == 0, done.output
    assert "installs fio and what they depend on; removes nothing" in done.output
    assert "fio: everything is there: fio-3" in done.output
    # The lists were empty, so they were read first.
    assert asked(bare) == ["update -q", "install -q -y --no-install-recommends --no-remove fio"]
    again = CliRunner().invoke(ztune, ["setup", "fio", "--json"])
    found = json.loads(again.stdout)
    assert found["ready"] and not found["done"] and found["steps"] == []
    assert len(asked(bare)) == 2


def test_a_dry_run_changes_nothing(bare: Path) -> None:
    (bare / "lists").touch()
    done = CliRunner().invoke(ztune, ["setup", "fio", "--dry-run", "--json"])
    found = json.loads(done.stdout)
    assert not found["ready"] and not found["done"] and "fio was not found" in found["missing"]
    [step] = found["steps"]
    assert step["command"][-1] == "fio" and "apt-get" in step["command"]
    assert asked(bare) == []


def test_the_programs_are_brought_like_all_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "setup.sh"
    script.write_text(f"#!/bin/sh\n[ -e {tmp_path}/no ] && exit 1\necho $1 > {tmp_path}/asked\n")
    script.chmod(0o755)
    built = tmp_path / "asked"
    there = native.NativeProgram("asked", "", "ZTUNE_ASKED", "what was asked")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setattr(native.NativeProgram, "built", lambda _self: built if built.exists() else None)
    monkeypatch.setattr(native, "ALL", (there,))
    dry = json.loads(CliRunner().invoke(ztune, ["setup", "programs", "--dry-run", "--json"]).stdout)
    assert not dry["ready"] and dry["missing"] == "asked: not built" and not built.exists()
    [step] = dry["steps"]
    assert step["command"] == [str(script), "programs"]
    (tmp_path / "no").touch()
    with pytest.raises(ZtuneError, match=r"setup.sh programs` failed: it said why above"):
        setup.carry_out(setup.plan("programs"), lambda _step: None)
    (tmp_path / "no").unlink()
    done = CliRunner().invoke(ztune, ["setup", "programs"])
    assert done.exit_code == 0 and f"programs: everything is there: {built}" in done.output
    assert built.read_text() == "programs\n"
    with pytest.raises(InputError, match="programs has no parameters"):
        setup.plan("programs", {"size": "1G"})
    again = json.loads(CliRunner().invoke(ztune, ["setup", "programs", "--json"]).stdout)
    assert again["ready"] and again["steps"] == []


def test_another_openzfs_is_brought_built_with_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "openzfs.sh"
    script.write_text(
        f"#!/bin/sh\n[ ! -e {tmp_path}/no ] || exit 3\n"
        "mkdir -p $1/root && echo 2.4.4-1~bpo13+1 > $1/version\n"
    )
    script.chmod(0o755)
    for name in ("engine", "mount"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Makefile").write_text(
            f"P = build/ztune-{name}\nall:\n\t@mkdir -p build && echo $(ZFS_ROOT) > $P && chmod +x $P\n"
        )
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(native, "openzfs_here", lambda: "2.3.2-2~bpo12+2")
    native._digest.cache_clear()
    folder = tmp_path / "home" / "cache" / "openzfs" / "2.4"
    words = ["setup", "openzfs", "--version", "2.4"]
    dry = json.loads(CliRunner().invoke(ztune, [*words, "--dry-run", "--json"]).stdout)
    assert not dry["ready"] and dry["missing"] == "there are no engine and mount with OpenZFS 2.4"
    [step] = dry["steps"]
    assert step["command"] == [str(script), str(folder), "2.4", "trixie-backports"]
    assert "installs nothing" in step["why"] and not folder.exists()
    (tmp_path / "no").touch()
    with pytest.raises(ZtuneError, match="it said why above"):
        setup.carry_out(setup.plan("openzfs", {"version": "2.4"}), lambda _step: None)
    (tmp_path / "no").unlink()
    done = CliRunner().invoke(ztune, words)
    assert done.exit_code == 0, done.output
    library = openzfs.libraries()[0]
    engine, mount = (program.against(library).built() for program in (native.ENGINE, native.MOUNT))
    assert f"openzfs: everything is there: 2.4.4, {engine}, {mount}" in done.output
    assert engine is not None and engine.read_text() == f"{folder}/root\n"
    assert mount is not None and mount.read_text() == f"{folder}/root\n"
    again = json.loads(CliRunner().invoke(ztune, [*words, "--json"]).stdout)
    assert again["ready"] and again["steps"] == []
    own = json.loads(CliRunner().invoke(ztune, ["setup", "openzfs", "--version", "2.3", "--json"]).stdout)
    assert own["version"] == "2.3.2, this machine's own" and own["steps"] == []
    [shown] = json.loads(CliRunner().invoke(ztune, ["clean", "--openzfs", "--json"]).stdout)
    assert shown["version"] == "2.4.4" and shown["path"] == str(folder) and not shown["removed"]
    assert folder.exists() and engine.exists() and shown["bytes"] > 0
    kept = ["clean", "--openzfs", "--yes"]
    with Store.open() as store:
        run = store.create_run(
            kind="screen",
            study=ready.find("sqlite"),
            environment={},
            versions={"openzfs": "2.4.4"},
            seed=1,
        )
        used = CliRunner().invoke(ztune, kept, standalone_mode=False)
        assert "OpenZFS 2.4.4" in used.output and f"(left alone: run {run.id} works with it)" in used.output
        assert used.return_value == 1 and folder.exists() and engine.exists()
        store.finish_run(run.id, "done")
    monkeypatch.setattr(clean, "_mounted", lambda: {tmp_path / "m": mount})
    used = CliRunner().invoke(ztune, kept, standalone_mode=False)
    assert f"(left alone: {tmp_path}/m is mounted with it)" in used.output and used.return_value == 1
    monkeypatch.setattr(clean, "_mounted", lambda: {tmp_path / "m": tmp_path / "another"})
    out = CliRunner().invoke(ztune, kept).output
    assert out.startswith(f"removed {folder}  OpenZFS 2.4.4  ") and "Nothing was changed" not in out
    assert not folder.exists() and not engine.exists() and not mount.exists()
    out = CliRunner().invoke(ztune, ["clean", "--openzfs"]).output
    assert out == "no other version of OpenZFS is unpacked\n"
    both = CliRunner().invoke(ztune, ["clean", "--openzfs", "--prepared"])
    assert isinstance(both.exception, InputError) and "give one of them" in str(both.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--version", "3.0"], '"3.0" is no version to set up: Debian has 2.1, 2.3 and 2.4'),
        (["--version", "2.4/../x"], "is no version to set up"),
        ([], "takes a version and nothing else"),
        (["--version", "2.4", "-p", "size=1G"], "takes a version and nothing else"),
    ],
)
def test_an_openzfs_that_is_none_is_one_sentence(
    words: list[str], said: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "openzfs_here", lambda: "")
    done = CliRunner().invoke(ztune, ["setup", "openzfs", *words])
    assert isinstance(done.exception, InputError) and said in str(done.exception)


@needs_fio
def test_what_lies_where_setup_is_called_is_not_run(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `python -m` looks there first; Maven takes `.mvn` and `pom.xml` from there.
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "pip.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(theirs)
    plan = setup.plan("fio")
    pip = setup.Step((sys.executable, "-m", "pip", "--version"), "asks")
    setup.carry_out(replace(plan, steps=(pip, *plan.steps)), lambda _step: None)
    assert not (tmp_path / "run").exists()


def test_a_command_that_fails_is_told_with_its_last_words(bare: Path) -> None:
    (bare / "broken").touch()
    with pytest.raises(ZtuneError, match=r"apt-get update -q` failed: E: no space left"):
        setup.carry_out(setup.plan("fio"), lambda _step: None)


@needs_fio
def test_another_apt_is_waited_for_and_that_is_said_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "lists").touch()
    apt = bare / "bin" / "apt-get"
    busy = f"[ $(cat {bare}/tried | wc -l) -gt 2 ] || {{ echo 'E: Could not get lock x'; exit 100; }}"
    apt.write_text(apt.read_text().replace("\n", f"\nPATH=/usr/bin:/bin\necho >> {bare}/tried\n{busy}\n", 1))
    monkeypatch.setattr(setup, "_LOOK_SECONDS", 0.01)
    said: list[str] = []
    done = setup.carry_out(setup.plan("fio"), lambda step: said.append(step.why))
    assert not done.missing and len((bare / "tried").read_text().splitlines()) == 3
    assert len(said) == 2 and "another apt is at work" in said[1]


def test_an_apt_that_never_ends_is_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "bin" / "apt-get").write_text("#!/bin/sh\necho 'E: Could not get lock x'\nexit 100\n")
    monkeypatch.setattr(setup, "_LOCK_SECONDS", -1.0)
    with pytest.raises(ZtuneError, match=r"failed: E: Could not get lock x"):
        setup.carry_out(setup.plan("fio"), lambda _step: None)


def test_what_cannot_be_brought_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="fio was not found"):
        setup.plan("fio", family="")
    with pytest.raises(InputError, match="did you mean 'fio'"):
        setup.plan("fioo")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert setup.plan("fio").steps[-1].argv[0] == "sudo"
    (bare / "bin" / "sudo").unlink()
    with pytest.raises(MissingError, match="installing packages needs root"):
        setup.plan("fio")


def test_postgres_brings_no_cluster(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(e for e in registry.entries() if e.name == "postgres-oltp")
    missing = replace(entry, missing="no PostgreSQL")
    monkeypatch.setattr(registry, "examined", lambda _entry, _params: missing)
    steps = setup.plan("postgres-oltp").steps
    assert [step.argv[-1] for step in steps][-1] == "postgresql"
    [shield] = [step for step in steps if step.undo]
    assert "create_main_cluster = false" in shield.text
    assert shield.undo[-1] == "rm -f /etc/postgresql-common/createcluster.d/ztune.conf"


def test_what_only_another_parameter_needs_is_brought_too(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_SOFTWARE", str(bare / "software"))
    entry = next(e for e in registry.entries() if e.name == "ldap-import")
    there = replace(entry, version="389 Directory Server 2.3.1")
    monkeypatch.setattr(registry, "examined", lambda _entry, _params: there)
    wanted = setup.plan("ldap-import")
    assert wanted.missing == "opendj-5.0.3 was not fetched" and wanted.steps[-1].argv[0] == "mvn"
    # The package's own settings of the kernel are kept out.
    [mask] = [step for step in wanted.steps if "/etc/sysctl.d/70-dirsrv.conf" in step.text]
    assert wanted.steps.index(mask) < len(wanted.steps) - 2 and not mask.undo
    (bare / "software" / "opendj-5.0.3").mkdir(parents=True)
    assert setup.plan("ldap-import") == setup.SetupPlan("ldap-import", there.version, "", ())


def test_a_parameter_may_need_something_else(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_SOFTWARE", str(bare / "software"))
    entry = next(e for e in registry.entries() if e.name == "orientdb-import")
    monkeypatch.setattr(registry, "examined", lambda _entry, _params: replace(entry, missing="no OrientDB"))
    for version, count in (("3.2", 1), ("1.7.4", 11)):
        done = CliRunner().invoke(
            ztune, ["setup", "orientdb-import", "-p", f"version={version}", "--dry-run", "--json"]
        )
        steps = json.loads(done.stdout)["steps"]
        fetched = [step["command"][-3] for step in steps if step["command"][0] == "mvn"]
        assert len(fetched) == count and all(step["why"] for step in steps)
    with pytest.raises(InputError, match="version"):
        setup.plan("orientdb-import", {"version": "9"})


def test_every_package_manager_is_asked_without_questions() -> None:
    assert set(_UNATTENDED) == set(_COMMANDS)
    assert unattended_install(["x"], "arch") == ["pacman", "-S", "--noconfirm", "--needed", "x"]
    assert unattended_install(["x"], "") == []


def test_the_list_says_what_is_here(bare: Path) -> None:
    rows = {
        row["name"]: row
        for row in json.loads(CliRunner().invoke(ztune, ["list", "workloads", "--json"]).stdout)
    }
    assert "fio was not found" in rows["fio"]["missing"] and rows["fio"]["version"] == ""
    assert rows["postgres-oltp"]["roles"] == "data, wal"
    one = CliRunner().invoke(ztune, ["list", "workloads", "fio", "--json"])
    assert [row["name"] for row in json.loads(one.stdout)] == ["fio"]
    wrong = CliRunner().invoke(ztune, ["list", "workloads", "postgres"])
    assert wrong.exit_code != 0
    for words in (["fio"], ["--all"]):
        shown = CliRunner().invoke(ztune, ["list", "workloads", *words]).output
        assert "missing: fio was not found" in shown and "`ztune setup fio` installs" in shown
    wide = {"COLUMNS": "200"}
    lines = CliRunner().invoke(ztune, ["list", "workloads"], env=wide).output.splitlines()
    assert len(lines) == len(registry.entries()) + 2  # a head and a hint
    assert [line.split()[:2] for line in lines if line.startswith("fio ")] == [["fio", "no"]]


def test_every_workload_of_ours_says_its_roles_and_needs() -> None:
    for entry in registry.entries():
        if entry.source == "ztune":
            assert entry.roles, entry.name
            assert getattr(registry.get(entry.name), "needs", None) is not None
