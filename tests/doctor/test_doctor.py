from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from ztune.cli.main import ztune
from ztune.doctor import checks
from ztune.doctor.checks import Checked, State
from ztune.errors import MissingError
from ztune.packages import _COMMANDS, install_command, known, os_family, os_release, sudo_ztune
from ztune.trace.recorders import kernel

ALL = (1 << 41) - 1


def status(tmp_path: Path, mask: int) -> Path:
    path = tmp_path / "status"
    path.write_text(f"Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t{mask:016x}\n")
    return path


def test_capabilities_by_bit(tmp_path: Path) -> None:
    assert checks.capabilities(status(tmp_path, ALL)) == set(checks.CAPABILITIES)
    assert checks.capabilities(status(tmp_path, 0)) == set()
    assert checks.capabilities(status(tmp_path, 1 << 39)) == {"CAP_BPF"}
    assert checks.capabilities(tmp_path / "none") == set()


def test_ebpf_without_type_information(tmp_path: Path) -> None:
    found = checks.check_ebpf(btf=tmp_path / "vmlinux")
    assert found.state is State.MISSING and "CONFIG_DEBUG_INFO_BTF" in found.fix


def test_observing_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the kernel does not let this user: run as root"
    monkeypatch.setattr(kernel.Helper, "check", lambda _: (reason, ""))
    found = checks.check_observing()
    assert found.state is State.LIMITED and "(--from) only: the kernel does not let" in found.means
    assert found.fix == "sudo ztune …"


def test_sudo_is_given_the_path_that_it_would_not_find() -> None:
    assert sudo_ztune("/home/dba/my ztune/.venv/bin/ztune") == "sudo '/home/dba/my ztune/.venv/bin/ztune' …"
    assert sudo_ztune(".venv/bin/ztune") == "sudo .venv/bin/ztune …"
    assert sudo_ztune("/usr/local/bin/ztune") == sudo_ztune("ztune") == "sudo ztune …"
    assert sudo_ztune("/usr/lib/python3/pytest") == "sudo ztune …"


def test_what_the_programs_are_attached_to_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel.Helper, "check", lambda _: (None, "functions"))
    for found in (checks.check_ebpf(tmp_path, status(tmp_path, ALL)), checks.check_observing()):
        assert found.state is State.OK and "functions of file calls alone" in found.means
        assert found.details == {"attached": "functions"}


def test_observing_without_type_information(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "BTF", tmp_path / "vmlinux")
    monkeypatch.setattr(kernel.Helper, "path", lambda _: tmp_path)
    found = checks.check_observing()
    assert found.state is State.LIMITED and "through /proc" in found.means
    assert "CONFIG_DEBUG_INFO_BTF" in found.fix


def test_ebpf_without_rights(tmp_path: Path) -> None:
    found = checks.check_ebpf(btf=tmp_path, status=status(tmp_path, 1 << 39))
    assert found.state is State.MISSING and "lacks CAP_PERFMON" in found.means and "sudo" in found.fix


@pytest.mark.parametrize(
    ("level", "state"), [("1", State.LIMITED), ("2", State.MISSING), ("3", State.MISSING)]
)
def test_strace_under_yama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, state: State) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "scope").write_text(f"{level}\n")
    found = checks.check_strace(scope=tmp_path / "scope", status=status(tmp_path, 0))
    assert found.state is state and f"ptrace_scope is {level}" in found.means


def test_without_strace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert checks.check_strace().state is State.MISSING
    assert checks.check_fio().state is State.MISSING and not checks.check_fio().needed


def finding(state: State, name: str = "x", *, needed: bool = False) -> Checked:
    return Checked(name, state, "m", "f", needed=needed)


@pytest.mark.parametrize(
    ("ebpf", "strace", "want"),
    [
        (State.OK, State.MISSING, State.OK),
        (State.MISSING, State.OK, State.LIMITED),
        (State.MISSING, State.LIMITED, State.LIMITED),
        (State.MISSING, State.MISSING, State.MISSING),
    ],
)
def test_one_recorder_will_do(
    monkeypatch: pytest.MonkeyPatch, ebpf: State, strace: State, want: State
) -> None:
    monkeypatch.setattr(checks, "check_ebpf", lambda: finding(ebpf))
    monkeypatch.setattr(checks, "check_strace", lambda: finding(strace))
    found = checks.check_recording()
    assert found.state is want and found.needed


def test_engine_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(tmp_path / "none"))
    found = checks.check_engine()
    assert found.state is State.MISSING and str(tmp_path) in found.means
    broken = tmp_path / "engine"
    broken.write_text("#!/bin/sh\necho 'the library does not match' >&2; exit 4\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("ZTUNE_ENGINE", str(broken))
    found = checks.check_engine()
    assert found.state is State.MISSING and "the library does not match" in found.means
    assert found.needed and found.fix == "make setup"


def test_postgresql_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise MissingError("not found")

    monkeypatch.setattr("ztune.databases.postgresql.onhost.server.find_binaries", none)
    found = checks.check_postgresql()
    assert found.state is State.MISSING and found.needed and "postgresql" in found.fix


def test_little_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_memory(available=1 << 20).state is State.LIMITED
    assert checks.check_memory(available=1 << 50).state is State.OK
    usage = type("Usage", (), {"free": 1 << 30})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    found = checks.check_disk([tmp_path / "not" / "there"])
    assert found.state is State.LIMITED and "1.0 GiB in" in found.means


def test_zfs_of_the_kernel(tmp_path: Path) -> None:
    assert checks.check_kernel_zfs(tmp_path / "none").state is State.MISSING
    (tmp_path / "version").write_text("2.3.2-1\n")
    assert "2.3.2-1" in checks.check_kernel_zfs(tmp_path / "version").means


def test_leftovers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert checks.check_leftovers(tmp_path, state).state is State.OK
    monkeypatch.setattr("ztune.onhost.host.workdir.leftovers", lambda parent: [parent / "ztune-x"])
    assert "ztune-x" in checks.check_leftovers(tmp_path, state).means
    monkeypatch.undo()


def test_what_a_dead_trial_left_is_told_to_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its datasets were there, and the doctor said that nothing was left."""
    left = {
        "trials": [{"trial": "r-1", "running": False}, {"trial": "r-2", "running": True}],
        "datasets": [{"name": "tank/ztune-r-3", "run": "r", "trial": "r-3"}],
    }
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("ztune.onhost.trial.clean.listing", lambda _state, _events: left)
    found = checks.check_leftovers(tmp_path, tmp_path)
    assert found.state is State.LIMITED and found.details == {"paths": ["trial r-1", "tank/ztune-r-3"]}


def test_files_that_no_run_goes_with_are_told(home: Path) -> None:
    assert checks.check_orphans().state is State.OK
    assert not (home / "ztune.db").exists()
    (home / "series" / "zzzzzz").mkdir(parents=True)
    found = checks.check_orphans()
    assert found.state is State.LIMITED and "1 trace or series" in found.means
    assert found.details == {"paths": [str(home / "series" / "zzzzzz")]}
    (home / "ztune.db").write_text("no database, and longer than its header is, so that SQLite says it" * 9)
    assert "can't be used" in checks.check_orphans().means


def test_a_check_that_breaks_is_a_finding() -> None:
    def check_of_all_things() -> Checked:
        raise ModuleNotFoundError("No module named 'numpy'")

    [found] = checks.examine((check_of_all_things,))
    assert found.check == "of all things" and found.state is State.MISSING and "numpy" in found.means
    assert not checks.fit([found])


def invoke(monkeypatch: pytest.MonkeyPatch, findings: list[Checked], *args: str) -> tuple[int, str]:
    monkeypatch.setattr("ztune.cli.doctor.examine", lambda: findings)
    done = CliRunner().invoke(ztune, ["doctor", *args])
    return done.exit_code, done.output


def test_exit_code_3_only_if_something_needed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = [finding(State.OK, needed=True), finding(State.LIMITED, needed=True), finding(State.MISSING)]
    code, out = invoke(monkeypatch, fine)
    assert code == 0 and "can work here" in out
    code, out = invoke(monkeypatch, [*fine, finding(State.MISSING, "replay engine", needed=True)])
    assert code == 3 and "it needs replay engine" in out
    code, out = invoke(monkeypatch, fine, "--json")
    data = json.loads(out)
    assert (
        code == 0
        and data["ok"] is True
        and [c["state"] for c in data["checks"]] == ["ok", "limited", "missing"]
    )
    code, out = invoke(monkeypatch, [finding(State.MISSING, needed=True)], "--json")
    assert code == 3 and json.loads(out)["ok"] is False


def test_on_this_machine_every_check_has_its_say() -> None:
    found = checks.examine()
    assert len(found) == len(checks.CHECKS)
    assert not [f for f in found if "the check itself failed" in f.means]
    for f in found:
        assert f.means
        if f.needed and f.state is State.MISSING:
            assert f.fix, f.check
    json.dumps([f.to_json() for f in found])


def test_commands_by_platform(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('# x\nID=linuxmint\nID_LIKE="ubuntu debian"\nPRETTY_NAME="Mint"\n')
    assert os_family(os_release(release)) == "debian"
    assert os_family({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}) == "fedora"
    assert os_family({"ID": "nixos"}) == "" and os_family({}) == ""
    assert os_release(tmp_path / "none") == {}
    assert install_command("postgresql", "debian") == "apt-get install postgresql"
    assert install_command("fio", "arch") == "pacman -S fio"
    assert install_command("strace", "") == "install strace with your package manager"
    for thing in known():
        for family in _COMMANDS:
            assert install_command(thing, family)
    assert os.access("/etc/os-release", os.R_OK) is (os_release() != {})


def test_who_is_not_root_is_given_a_command_with_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.packages.os_family", lambda: "debian")
    for user, said in ((0, "apt-get install fio"), (1000, "sudo apt-get install fio")):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert install_command("fio") == said
