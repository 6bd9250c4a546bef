"""One small function per check. Each only looks; none changes anything."""

from __future__ import annotations

import importlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ztune import native, paths
from ztune.errors import MissingError, ZtuneError
from ztune.native import openzfs
from ztune.packages import OTHER_POLARS, install_command, sudo_ztune
from ztune.places.channel import STATE
from ztune.units import counted

GIB = 1 << 30
SETUP = native.setup_command()
# Bits of CapEff in /proc/PID/status, from linux/capability.h.
CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}


class State(StrEnum):
    """Whether a thing is there."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one check."""

    check: str
    state: State
    means: str
    """What was found and what follows from it."""
    fix: str = ""
    """The command that brings what is missing; empty when there is nothing to do."""
    needed: bool = False
    """Whether ``ztune tune`` can't work without it."""
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return asdict(self)


def capabilities(status: Path = Path("/proc/self/status")) -> set[str]:
    """Return which of ``CAPABILITIES`` this process has in effect; none where the kernel doesn't say."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return set()
    for line in lines:
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return {name for name, bit in CAPABILITIES.items() if mask >> bit & 1}
    return set()


def check_python() -> Checked:
    """Python is new enough."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    new = sys.version_info >= (3, 11)
    means = version if new else f"{version}, but ztune needs 3.11 or newer"
    state = State.OK if new else State.MISSING
    return Checked(
        "Python", state, means, "" if new else install_python(), needed=True, details={"version": version}
    )


def install_python() -> str:
    """Return what to say to somebody whose Python is too old."""
    return f"install Python 3.11, then {SETUP}"


def check_engine() -> Checked:
    """The replay engine is built and matches the OpenZFS library of this machine."""
    from ztune.places import engine

    try:
        path = native.ENGINE.built()
        if path is None:
            return _not_built("replay engine", native.ENGINE, needed=True)
        found = engine.check(path)
    except ZtuneError as error:
        said = str(error).partition("; `ztune doctor`")[0].partition(" (`ztune doctor`")[0]
        return Checked("replay engine", State.MISSING, said, SETUP, needed=True)
    means = f"replays traces through OpenZFS {found.openzfs}; its self-check passed"
    details = {"path": str(found.path), "version": found.version, "openzfs": found.openzfs}
    return Checked("replay engine", State.OK, means, needed=True, details=details)


def check_versions() -> Checked:
    """Which other versions of OpenZFS are here, for ``--openzfs``."""
    found = openzfs.libraries()
    details = {"versions": [one.version for one in found]}
    means = (
        f"{', '.join(one.version for one in found)}, for --openzfs of `ztune screen`, `mount` and `run`"
        if found
        else "none beside this machine's own; `ztune setup openzfs --version 2.4` brings one"
    )
    return Checked("other OpenZFS", State.OK, means, details=details)


def _not_built(check: str, program: native.NativeProgram, needed: bool = False) -> Checked:
    if native.is_source_tree():
        return Checked(check, State.MISSING, f"{program.name} is not built", SETUP, needed=needed)
    means = f"{program.name} is built at its first use, if what that takes is here"
    return Checked(check, State.LIMITED, means, SETUP, needed=needed)


def check_mount() -> Checked:
    """Layouts can be mounted: the program is there and runs, FUSE is there and for us."""
    from ztune.places import mount_points, mount_program

    name = "mounting"
    try:
        found = native.MOUNT.built()
    except ZtuneError as error:
        return Checked(name, State.MISSING, str(error).partition("; `")[0], SETUP)
    if found is None:
        return _not_built(name, native.MOUNT)
    details = {"path": str(found)}
    lacking = mount_program.lacking()
    if lacking is not None:
        means, fix = lacking
        return Checked(name, State.MISSING, f"no `ztune mount`: {means}", fix, details=details)
    points, _ = mount_points.every()
    dead = [str(point.directory) for point in points if point.dead()]
    if dead:
        means = f"the program of {', '.join(dead)} has died; files there answer with errors only"
        return Checked(
            name,
            State.LIMITED,
            means,
            f"ztune umount {shlex.quote(dead[0])}",
            details={**details, "dead": dead},
        )
    if not mount_program.others_may_enter():
        means = f"mounts layouts, but other users can't enter them: {mount_program.CONF} does not allow it"
        fix = f"echo user_allow_other | sudo tee -a {mount_program.CONF}"
        return Checked(name, State.LIMITED, means, fix, details=details)
    running = sum(point.mount() is not None for point in points)
    now = f"; {running} mounted now" if running else ""
    return Checked(name, State.OK, f"mounts layouts with FUSE{now}", details=details)


ATTACHED = {
    "functions": "at the functions of file calls alone",
    "tracepoints": "at tracepoints that all system calls pass: programs at functions do not work here",
}
"""What helpers say that they are attached to, for a sentence."""


def check_ebpf(
    btf: Path = Path("/sys/kernel/btf/vmlinux"), status: Path = Path("/proc/self/status")
) -> Checked:
    """The eBPF recorder loads on this kernel, with our rights."""
    name = "recorder: eBPF"
    if not btf.exists():
        means = (
            f"this kernel gives no type information ({btf}), which eBPF programs need; strace records instead"
        )
        return Checked(name, State.MISSING, means, "boot a kernel built with CONFIG_DEBUG_INFO_BTF")
    have = capabilities(status)
    lacking = [cap for cap in ("CAP_BPF", "CAP_PERFMON") if cap not in have and "CAP_SYS_ADMIN" not in have]
    if lacking:
        means = f"this user lacks {' and '.join(lacking)}; strace records instead, at a higher cost"
        return Checked(name, State.MISSING, means, sudo_ztune(), details={"lacking": lacking})
    from ztune.trace.recorders.kernel import RECORDER

    reason, attached = RECORDER.check()
    if reason is not None:
        return Checked(name, State.MISSING, reason, SETUP)
    return Checked(
        name, State.OK, f"records with little cost, {ATTACHED[attached]}", details={"attached": attached}
    )


def check_strace(
    scope: Path = Path("/proc/sys/kernel/yama/ptrace_scope"), status: Path = Path("/proc/self/status")
) -> Checked:
    """The strace recorder can follow processes."""
    name = "recorder: strace"
    path = shutil.which("strace")
    if path is None:
        return Checked(name, State.MISSING, "strace is not installed", install_command("strace"))
    try:
        level = int(scope.read_text(encoding="ascii"))
    except (OSError, ValueError):
        level = 0
    if level and "CAP_SYS_PTRACE" not in capabilities(status):
        # yama.rst of the kernel: 1 descendants only, 2 with CAP_SYS_PTRACE only, 3 never.
        what = "only what ztune starts itself, not running processes" if level == 1 else "nothing"
        state = State.LIMITED if level == 1 else State.MISSING
        means = f"ptrace_scope is {level}: it can record {what}"
        return Checked(name, state, means, sudo_ztune(), details={"path": path, "ptrace_scope": level})
    from ztune.trace.recorders import strace

    if (reason := strace.problem()) is not None:
        return Checked(name, State.MISSING, reason, install_command("strace"))
    return Checked(name, State.OK, "records anywhere, but slows what it records")


def check_observing() -> Checked:
    """The kernel can add up what `ztune observe` shows."""
    from ztune.trace.recorders.kernel import OBSERVER, untyped

    name = "observing"
    reason, attached = OBSERVER.check()
    if reason is None:
        # Of processes every call is timed, so these take the tracepoints on any kernel.
        means = f"`ztune observe` adds up in the kernel, with eBPF; chosen by files, {ATTACHED[attached]}"
        return Checked(name, State.OK, means, details={"attached": attached})
    if untyped() is not None:
        means = f"`ztune observe` sees sums of calls and bytes only, through /proc: {reason}"
        return Checked(name, State.LIMITED, means, "boot a kernel built with CONFIG_DEBUG_INFO_BTF")
    means = f"`ztune observe` reads other tools' output (--from) only: {reason}"
    return Checked(name, State.LIMITED, means, sudo_ztune() if "run as root" in reason else SETUP)


def check_recording() -> Checked:
    """At least one recorder works."""
    found = [check_ebpf(), check_strace()]
    if found[0].state is State.OK:
        return Checked("recording", State.OK, "with eBPF", needed=True)
    if found[1].state is not State.MISSING:
        means = "with strace only: what is recorded runs slower, so its rates are not those of normal work"
        return Checked("recording", State.LIMITED, means, found[0].fix, needed=True)
    return Checked("recording", State.MISSING, "no recorder works here", found[0].fix or SETUP, needed=True)


def check_reading() -> Checked:
    """Traces can be summed up on this processor."""
    try:
        importlib.import_module("ztune.trace.frames")  # here, as it takes a quarter of a second
    except MissingError:
        means = "the build of Polars there is needs AVX2, which this processor does not show"
        return Checked("reading traces", State.MISSING, means, OTHER_POLARS, needed=True)
    return Checked("reading traces", State.OK, "Polars runs on this processor", needed=True)


def check_postgresql() -> Checked:
    """PostgreSQL's programs are there for the workload ``postgres-oltp``."""
    from ztune.databases.postgresql.onhost.server import find_binaries

    try:
        found = find_binaries()
    except ZtuneError as error:
        return Checked("PostgreSQL", State.MISSING, str(error), install_command("postgresql"), needed=True)
    details = {"directory": str(found.directory), "version": found.version}
    return Checked(
        "PostgreSQL", State.OK, f"{found.version}, for postgres-oltp", needed=True, details=details
    )


def check_fio() -> Checked:
    """fio is there, which the tests compare the recorders with."""
    path = shutil.which("fio")
    if path is None:
        means = "only the tests need it, to compare the recorders with a load that counts itself"
        return Checked("fio", State.MISSING, means, install_command("fio"))
    return Checked("fio", State.OK, "for the tests of the recorders", details={"path": path})


def check_memory(available: int | None = None) -> Checked:
    """There is memory for pools that are kept in memory while layouts are screened."""
    import psutil  # here, as it takes 20 ms to load

    free = psutil.virtual_memory().available if available is None else available
    cores = os.cpu_count() or 1
    # An engine takes about 80 MB, the modelled ARC, and what the pools hold; one runs per core. 1 GiB per
    # engine
    # is enough for the demo's database and ARC.
    want = cores * GIB
    details = {"available": free, "cores": cores}
    text = f"{free / GIB:.1f} GiB free for {cores} engines at a time"
    if free < want:
        means = f"{text}: too little to keep big pools in memory"
        return Checked("memory", State.LIMITED, means, details=details)
    return Checked("memory", State.OK, text, details=details)


def check_disk(places: list[Path] | None = None) -> Checked:
    """There is room for databases that workloads make, and for traces and results."""
    from ztune.onhost.host.workdir import WorkDir
    from ztune.paths import home

    free: dict[str, int] = {}
    for place in places if places is not None else [WorkDir.default_parent(), home()]:
        existing = next((path for path in (place, *place.parents) if path.is_dir()), Path("/"))
        free[str(place)] = shutil.disk_usage(existing).free
    text = ", ".join(f"{size / GIB:.1f} GiB in {place}" for place, size in free.items())
    if min(free.values()) < 4 * GIB:
        means = f"{text}: postgres-oltp takes about 2 GiB there; more is better"
        return Checked(
            "disk", State.LIMITED, means, "set TMPDIR and ZTUNE_HOME to roomier places", details=free
        )
    return Checked("disk", State.OK, f"{text}, free", details=free)


def check_kernel_zfs(module: Path = Path("/sys/module/zfs/version")) -> Checked:
    """Whether this host's kernel has OpenZFS and its tools, for trials on this host."""
    name = "ZFS on this host"
    try:
        version = module.read_text(encoding="ascii").strip()
    except OSError:
        means = "the kernel has no OpenZFS loaded: no trials with --on local; screening and the lab need none"
        return Checked(name, State.MISSING, means)
    lacking = [tool for tool in ("zfs", "zpool") if _sbin(tool) is None]
    if lacking:
        means = f"OpenZFS {version} is loaded, but {' and '.join(lacking)} are not installed"
        return Checked(name, State.LIMITED, means, install_command("zfs"), details={"version": version})
    if os.geteuid() != 0:
        means = f"OpenZFS {version}; trials with --on local need root, or sudo without a password"
        return Checked(name, State.LIMITED, means, sudo_ztune(), details={"version": version})
    return Checked(name, State.OK, f"{version}, for trials with --on local", details={"version": version})


def _sbin(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def check_kvm(device: Path = Path("/dev/kvm")) -> Checked:
    """Whether the lab's guests run at full speed: what was found when a kernel was last booted under KVM."""
    from ztune.lab import accel

    try:
        verdict = accel.known()
    except ZtuneError:  # no QEMU to try it with
        verdict = None
    slow = "the lab's guests are emulated, about twenty times slower, and their disks with them"
    if not device.exists():
        return Checked("KVM", State.MISSING, f"no {device}: {slow}")
    if not os.access(device, os.R_OK | os.W_OK):
        means = f"{device} is there, but this user may not open it: {slow}"
        return Checked("KVM", State.LIMITED, means, "sudo usermod -aG kvm $USER")
    if verdict is None:
        means = f"{device} is there; whether a kernel boots under it is tried with the first guest"
        return Checked("KVM", State.LIMITED, means, "ztune lab build")
    if verdict.accel != "kvm":
        fix = "ztune lab build --user-mode" if os.geteuid() == 0 else "sudo ztune lab build --user-mode"
        if accel.in_user_mode(None):
            slow, fix = "trials in the lab have a guest in user mode, in real time, with one processor", ""
        details = {"reason": verdict.reason}
        return Checked("KVM", State.LIMITED, f"{verdict.reason}: {slow}", fix, details=details)
    return Checked("KVM", State.OK, "a kernel boots under it: the lab's guests run at full speed")


def check_lab() -> Checked:
    """QEMU is there and the lab's guest is built."""
    from ztune.lab import image, qemu

    try:
        release = qemu.version()
    except ZtuneError as error:
        return Checked("lab", State.MISSING, str(error), "make lab")
    lacking = [tool for tool in ("zstd", "mkfs.ext4") if _sbin(tool) is None]
    if lacking:
        means = f"QEMU {release}, but {' and '.join(lacking)} not installed"
        return Checked("lab", State.MISSING, means, "make lab")
    built = image.built()
    if not built:
        means = f"QEMU {release}; the guest is not built yet (ten to twenty minutes, once)"
        return Checked("lab", State.MISSING, means, "ztune lab build", details={"qemu": release})
    try:
        native.DISK.find()
        built[0].check()
    except ZtuneError as error:
        fix = "ztune lab build" if "damaged" in str(error) else "make build"
        return Checked("lab", State.MISSING, str(error).partition("; `")[0], fix, details={"qemu": release})
    versions = [found.openzfs for found in built]
    guests = ", ".join(f"OpenZFS {found.openzfs} on kernel {found.kernel}" for found in built)
    means = f"{guests}, for trials with --on lab"
    return Checked("lab", State.OK, means, details={"qemu": release, "openzfs": versions})


def check_leftovers(parent: Path | None = None, state: Path = Path(STATE)) -> Checked:
    """Nothing is left of runs that were killed, as far as this user may look."""
    from ztune.onhost.events import Events
    from ztune.onhost.host.workdir import WorkDir, leftovers
    from ztune.onhost.trial import clean

    found = [str(path) for path in leftovers(parent or WorkDir.default_parent())]
    if os.geteuid() == 0:  # what trials left is root's
        left = clean.listing(state, Events(io.StringIO()))
        found += [f"trial {one['trial']}" for one in left["trials"] if not one["running"]]
        found += [one["name"] for one in left["datasets"]]
    if found:
        means = f"a run that was killed left {', '.join(found)}; `ztune clean --yes` removes it"
        return Checked("leftovers", State.LIMITED, means, details={"paths": found})
    return Checked("leftovers", State.OK, "none of killed runs")


def check_orphans() -> Checked:
    """Every trace and series in the state directory goes with a run."""
    from ztune.store.db import Store
    from ztune.store.deletion import orphans

    name = "files of runs"
    if not any((paths.home() / folder).exists() for folder in ("series", "traces")):
        return Checked(name, State.OK, "there are none yet")
    try:
        with Store.open() as store:
            found = orphans(store)
    except ZtuneError as error:
        return Checked(name, State.LIMITED, str(error))
    if found:
        many = counted(len(found), "trace or series", "traces or series")
        means = f"no run in {store.path} goes with {many}"
        details = {"paths": [str(path) for path in found]}
        return Checked(name, State.LIMITED, f"{means}; `ztune clean` names them", details=details)
    return Checked(name, State.OK, "each goes with a run")


CHECKS: tuple[Callable[[], Checked], ...] = (
    check_python,
    check_engine,
    check_mount,
    check_versions,
    check_recording,
    check_reading,
    check_observing,
    check_ebpf,
    check_strace,
    check_postgresql,
    check_memory,
    check_disk,
    check_fio,
    check_kernel_zfs,
    check_lab,
    check_kvm,
    check_leftovers,
    check_orphans,
)


def examine(checks: tuple[Callable[[], Checked], ...] = CHECKS) -> list[Checked]:
    """Run every check, in the order in which they are shown.

    A check that breaks is a finding too: a doctor that dies of what it should find helps nobody.
    """
    found = []
    for check in checks:
        try:
            found.append(check())
        except Exception as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            means = f"the check itself failed ({type(error).__name__}: {error}): ztune is not whole"
            found.append(Checked(name, State.MISSING, means, SETUP, needed=True))
    return found


def fit(findings: list[Checked]) -> bool:
    """Whether everything that is needed is there; limited is there."""
    return all(finding.state is not State.MISSING for finding in findings if finding.needed)
