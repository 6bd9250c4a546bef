"""The set-up script, run against stand-ins for apt and dpkg that write down what they are asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck(script: Path) -> None:
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_archive_is_named(script: Path) -> None:
    # Where packages come from is the machine's affair.
    assert re.search(r"https?://", script.read_text()) is None
    assert os.access(script, os.X_OK)


def test_every_package_is_documented() -> None:
    reasons = re.search(
        r'^reasons="\n(.*?)^"', (ROOT / "scripts" / "setup.sh").read_text(), re.DOTALL | re.MULTILINE
    )
    assert reasons is not None
    page = (ROOT / "docs" / "setup.md").read_text()
    for line in reasons[1].splitlines():
        package, _, why = line.partition("|")
        assert why and f"`{package}`" in page, package


DPKG_QUERY = """#!/bin/bash
# dpkg-query -W -f FORMAT PACKAGE
version=$(sed -n "s/^$4=//p" "$STATE/installed")
[ -n "$version" ] || exit 1
case $3 in *Status*) printf 'ii ' ;; *) printf '%s' "$version" ;; esac
"""
APT_CACHE = """#!/bin/bash
case $1 in
madison) sed -n "s/^$2=\\(.*\\)/ $2 | \\1 | somewhere Packages/p" "$STATE/available" ;;
show)
    v=${2#*=}
    echo "Depends: zlib1g-dev, libzpool6linux (= $v), libnvpair3linux (= $v)"
    ;;
esac
"""
APT_GET = """#!/bin/bash
echo "apt-get $*" >>"$STATE/log"
case " $* " in
*" update "*) [ -e "$STATE/fresh" ] && cp "$STATE/fresh" "$STATE/available"; exit 0 ;;
esac
ls /etc/postgresql-common/createcluster.d/ztune.conf 2>/dev/null
for word; do
    case $word in
    -* | Dpkg* | APT* | install) ;;
    *=*) echo "$word" >>"$STATE/installed" ;;
    *) sed -n "s/^$word=/&/p" "$STATE/available" | head -1 >>"$STATE/installed" ;;
    esac
done
"""
OTHERS = [
    *(
        "gcc",
        "make",
        "libc6-dev",
        "pkg-config",
        "libjansson-dev",
        "libfuse3-dev",
        "libjemalloc-dev",
        "fuse3",
        "clang",
        "llvm",
        "libbpf-dev",
        "libelf-dev",
    ),
    *("zlib1g-dev", "strace", "fio", "postgresql", "python3", "python3-venv"),
]


class Machine:
    """A copy of the scripts with stand-ins on PATH and a Python environment that is already there."""

    def __init__(self, path: Path) -> None:
        self.state = path / "state"
        self.state.mkdir()
        self.root = path / "ztune"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        tools = path / "bin"
        tools.mkdir()
        scripts = {"dpkg-query": DPKG_QUERY, "apt-cache": APT_CACHE, "apt-get": APT_GET}
        scripts["make"] = '#!/bin/sh\necho "make $*" >>"$STATE/log"\n'
        # The system's files belong to the machine the tests run on.
        scripts["tee"] = '#!/bin/sh\necho "tee $*" >>"$STATE/log"; cat >>"$STATE/tee"\n'
        scripts["chmod"] = scripts["mkdir"] = scripts["rm"] = '#!/bin/sh\necho "${0##*/} $*" >>"$STATE/log"\n'
        scripts["id"] = "#!/bin/sh\necho 0\n"
        for name, text in scripts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        venv = self.root / ".venv" / "bin"
        venv.mkdir(parents=True)
        for name in ("python", "ztune"):
            (venv / name).write_text("#!/bin/sh\n")
            (venv / name).chmod(0o755)
        self.env = {"PATH": f"{tools}:{os.environ['PATH']}", "STATE": str(self.state), "HOME": str(path)}

    def setup(
        self, installed: list[str], available: list[str], fresh: list[str] | None = None, part: str = "all"
    ) -> tuple[int, str]:
        (self.state / "installed").write_text("".join(f"{line}\n" for line in installed))
        (self.state / "available").write_text("".join(f"{line}\n" for line in available))
        if fresh is not None:
            (self.state / "fresh").write_text("".join(f"{line}\n" for line in fresh))
        done = subprocess.run(
            [self.root / "scripts" / "setup.sh", part],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def log(self) -> list[str]:
        path = self.state / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("apt-get") is None:
        pytest.skip("the set-up is for Debian and Ubuntu")
    return Machine(tmp_path)


def installs(log: list[str]) -> list[str]:
    [line] = [line for line in log if " install " in line]
    assert "--no-remove" in line and "--no-install-recommends" in line
    return [word for word in line.split() if not word.startswith(("-", "Dpkg", "APT")) and word != "install"][
        1:
    ]


NEW, OLD = "2.3.2-2~bpo12+2", "2.1.11-1+deb12u1"
ZFS = [
    f"{name}={version}"
    for version in (NEW, OLD)
    for name in ("libzfslinux-dev", "libzpool6linux", "libnvpair3linux")
]
REST = [f"{name}=1" for name in OTHERS]


def test_all_there_installs_nothing(machine: Machine) -> None:
    code, said = machine.setup([*REST, f"libzfslinux-dev={NEW}"], [])
    assert code == 0 and f"all there (OpenZFS library {NEW})" in said
    assert [line for line in machine.log() if line.startswith("apt-get")] == []


def test_fresh_machine_gets_the_newest_library_all_of_one_version(machine: Machine) -> None:
    code, said = machine.setup([], [*ZFS, *REST])
    assert code == 0, said
    names = installs(machine.log())
    assert set(names) == {
        *OTHERS,
        *(f"{n}={NEW}" for n in ("libzfslinux-dev", "libzpool6linux", "libnvpair3linux")),
    }
    assert "the OpenZFS library is in contrib" in said or "OpenZFS in user space" in said
    assert re.search(r"clang +compiles the eBPF recorder", said)
    # A cluster is kept from being made, and only while PostgreSQL is installed.
    assert "no PostgreSQL cluster is created" in said
    log = machine.log()
    at = next(n for n, line in enumerate(log) if " install " in line)
    assert "tee /etc/postgresql-common/createcluster.d/ztune.conf" in log[:at]
    assert "rm -f /etc/postgresql-common/createcluster.d/ztune.conf" in log[at:]


def test_a_hosts_own_fuse_2_is_never_replaced(machine: Machine) -> None:
    rest = [line for line in REST if not line.startswith("fuse3=")]
    code, said = machine.setup([*rest, "fuse=2.9.9", f"libzfslinux-dev={NEW}"], REST)
    assert code == 0, said
    assert [line for line in machine.log() if line.startswith("apt-get")] == []


def test_a_hosts_own_zfs_is_never_touched(machine: Machine) -> None:
    code, said = machine.setup([*REST, f"zfsutils-linux={OLD}", f"libnvpair3linux={OLD}"], ZFS)
    assert code == 0, said
    assert all(word.endswith(f"={OLD}") for word in installs(machine.log()))


def test_a_hosts_own_zfs_without_its_headers_is_an_error(machine: Machine) -> None:
    code, said = machine.setup([*REST, "zfsutils-linux=2.9.9"], ZFS)
    assert code == 3 and "this host has OpenZFS 2.9.9 (zfsutils-linux)" in said
    assert not any(" install " in line for line in machine.log())


def test_empty_lists_are_read_first(machine: Machine) -> None:
    code, said = machine.setup([], [], fresh=[*ZFS, *REST])
    assert code == 0, said
    log = [line for line in machine.log() if line.startswith("apt-get")]
    assert "update" in log[0] and sum("update" in line for line in log) == 1


def test_no_library_to_be_had(machine: Machine) -> None:
    code, said = machine.setup([], REST)
    assert code == 3 and "apt knows no package libzfslinux-dev" in said
    assert not any(" install " in line for line in machine.log())


BUSY = """#!/bin/bash
echo "apt-get $*" >>"$STATE/log"
[ "$(wc -l <"$STATE/log")" -gt 6 ] && exit 0
echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)" >&2
exit 100
"""


def test_another_apt_is_waited_for(machine: Machine) -> None:
    tools = machine.state.parent / "bin"
    (tools / "apt-get").write_text(BUSY)
    (tools / "sleep").write_text('#!/bin/sh\necho "sleep $*" >>"$STATE/log"\n')
    (tools / "sleep").chmod(0o755)
    code, said = machine.setup(["gcc=1", "make=1"], LAB, part="lab")
    assert code == 0, said
    assert said.count("another apt is at work on this machine: waiting for it") == 1
    assert "Could not get lock" not in said
    log = machine.log()
    assert len([line for line in log if " install " in line]) > 1 and "sleep 5" in log


@pytest.fixture
def tools_machine(machine: Machine) -> Machine:
    """One that has the tests' programs, and of cargo what rustup puts there before a Rust is chosen."""
    (machine.state / "installed").write_text("stress-ng=1\nlmdb-utils=1\n")
    tools = machine.state.parent / "bin"
    for name in ("sshd", "prometheus"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    cargo = tools / "cargo"
    cargo.write_text(
        "#!/bin/sh\necho 'error: no default is configured' >&2; echo 'Stack backtrace:' >&2; exit 1\n"
    )
    cargo.chmod(0o755)
    return machine


def test_a_cargo_without_a_rust_costs_one_sentence(tools_machine: Machine) -> None:
    done = subprocess.run(
        [tools_machine.root / "scripts" / "test-tools.sh"],
        env=tools_machine.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["fsx", "pjdfstest"]
    assert all("cargo is there but does not run" in line for line in lines)


def test_an_existing_postgresql_is_left_alone(machine: Machine) -> None:
    there = [line for line in REST if not line.startswith(("fio", "strace"))]
    code, said = machine.setup([*there, f"libzfslinux-dev={NEW}", "postgresql-common=1"], REST)
    assert code == 0, said
    assert installs(machine.log()) == ["strace", "fio"]
    assert not any("createcluster" in line for line in machine.log())


def test_neither_root_nor_sudo(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    few = tmp_path / "few"
    few.mkdir()
    for name in "bash sh sed awk sort grep head cut cat tr dirname env sha256sum".split():  # noqa: SIM905
        found = shutil.which(name)
        assert found
        (few / name).symlink_to(found)
    (few / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (few / "python3").chmod(0o755)
    machine.env["PATH"] = f"{tmp_path / 'bin'}:{few}"
    code, said = machine.setup([], [*ZFS, *REST])
    assert code == 3 and "needs root: run 'make setup' as root, or install sudo, or set SUDO" in said
    machine.env["SUDO"] = "env"
    code, said = machine.setup([], [*ZFS, *REST])
    assert code == 0, said


LAB = [
    f"{name}=1"
    for name in [
        "gcc",
        "make",
        "libc6-dev",
        "qemu-system-x86",
        "flex",
        "bison",
        "bc",
        "zstd",
        "e2fsprogs",
        "xfsprogs",
        "bpftrace",
    ]
]


def test_the_labs_packages_and_nothing_else(machine: Machine) -> None:
    code, said = machine.setup(["gcc=1", "make=1"], LAB, part="lab")
    assert code == 0, said
    assert set(installs(machine.log())) == {name.removesuffix("=1") for name in LAB[2:]}
    assert re.search("qemu-system-x86 +runs the lab's guest", said)
    assert not any(line.startswith("make") for line in machine.log())
    code, said = machine.setup(LAB, [], part="lab")
    assert code == 0 and "system packages for the lab: all there" in said


def test_a_lab_that_cannot_be_had_is_told_from_a_failure(machine: Machine) -> None:
    """`make test` skips the lab's tests on 3."""
    fail = machine.state.parent / "bin" / "apt-get"
    fail.write_text("#!/bin/sh\necho 'E: Unable to locate package qemu-system-x86' >&2\nexit 100\n")
    code, said = machine.setup([], [], part="lab")
    assert code == 3 and "'apt-get update' failed" in said
    code, said = machine.setup([], [], part="labs")
    assert code == 3 and "unknown part 'labs'" in said


def make(*argv: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(["make", "-C", ROOT, *argv], capture_output=True, text=True, check=False, env=env)


def test_make_check_installs_and_builds_nothing() -> None:
    lines = make("--dry-run", "check").stdout.splitlines()
    programs = {Path(line.split()[0]).name for line in lines}
    assert {"ruff", "clang-format", "shellcheck", "mypy", "pytest"} <= programs
    assert not programs & {"setup.sh", "stale-engine.sh", "test-tools.sh", "pip", "ztune"}


def test_make_check_without_an_environment_says_what_to_do(tmp_path: Path) -> None:
    done = make("check", f"VENV={tmp_path}/none")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"make check: there is no {tmp_path}/none/bin/ruff; run 'make setup' first"
    )
