"""What a workload lacks on this machine, and the steps that bring it; done one by one, each said before.

``PROGRAMS`` stands for ztune's own programs, as if they were a workload's; ``OPENZFS`` for the replay engine
and the mount with another version of OpenZFS than this machine's.

The system's own package manager is used, and only for the packages that are missing; what it doesn't have is
fetched by Maven or pip into a cache of ztune's own. Nothing is removed, downgraded or reconfigured, and no
server is set up: a workload makes its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from ztune import native
from ztune.databases import registry, unpacking
from ztune.databases.artifacts import Fetched
from ztune.databases.database import every
from ztune.databases.workload import JobWorkload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.native import openzfs
from ztune.onhost.host import shared_files
from ztune.onhost.jobs import software
from ztune.packages import os_family, packages_of, unattended_install

PROGRAMS = "programs"
OPENZFS = "openzfs"
_WITH_OPENZFS = tuple(program for program in native.ALL if program.uses_openzfs)
_INSTALL_SECONDS = 3600.0
# As scripts/common.sh: apt's own DPkg::Lock::Timeout does not hold for the lock of the package lists.
_LOCK_SECONDS, _LOOK_SECONDS = 600.0, 5.0
_LOCKED = "Could not get lock"
_STDERR = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and why it is run."""

    argv: tuple[str, ...]
    why: str
    undo: tuple[str, ...] = ()
    """Run at the end, whatever came of the steps between."""
    then: Callable[[], object] | None = None
    """Done by ztune itself when the command has ended well."""
    fetches: Fetched | None = None
    """What it fetches, or a part of it: by one set-up at a time, unless that is there by then."""
    says: bool = False
    """The command says itself what it does: its output is shown, on stderr."""

    @property
    def text(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True)
class SetupPlan:
    """What is to be done for a workload; no steps if everything is there."""

    workload: str
    version: str
    """Of what would run; empty if something is missing."""
    missing: str
    steps: tuple[Step, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    """Of the workload, where another version needs other things."""


def plan(
    name: str,
    params: Mapping[str, str] | None = None,
    *,
    family: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> SetupPlan:
    """Return what ``ztune setup`` would do for the workload ``name``. Changes nothing.

    Args:
        name: of the workload.
        params: its parameters; those left out have their default.
        family: of the system, as ``ztune.packages`` calls it.
        environ: of the commands.

    Raises:
        InputError: there is no such workload, it has no such parameter, or it needs what ztune doesn't know.
        MissingError: something is missing that ztune can't bring: the sentence says what.
    """
    params = params or {}
    entry = _examined(name, params)
    if name == PROGRAMS:
        why = "installs what ztune's programs are built with, and says what and why; then they are built"
        script = native.SOURCES / "scripts/setup.sh"
        step = Step((str(script), PROGRAMS), why, then=native.find_all, says=True)
        return SetupPlan(name, entry.version, entry.missing, (step,) if entry.missing else ())
    if name == OPENZFS:
        brings = (_other_openzfs(params["version"]),) if entry.missing else ()
        return SetupPlan(name, entry.version, entry.missing, brings, params)
    made = registry.make(name, params) if params else None  # Raises for a parameter that makes no sense.
    wanted = (
        made.to_fetch() if isinstance(made, JobWorkload) else getattr(registry.get(name), "artifacts", ())
    )
    fetched = [one for one in wanted if not one.present]
    if not entry.missing and not fetched:
        return SetupPlan(name, entry.version, "", (), params)
    if entry.trouble:
        raise InputError(f"workload {name!r} of package {entry.source!r}: {entry.trouble}")
    # What its default does without is missing all the same where another parameter wants it.
    missing = entry.missing or f"{', '.join(one.name for one in fetched)} was not fetched"
    family = os_family() if family is None else family
    things = getattr(registry.get(name), "needs", ())
    for one in fetched:
        things = (*things, *one.needs(environ.get("PATH")))
    packages = [package for thing in dict.fromkeys(things) for package in packages_of(thing, family)]
    if family == "debian":
        packages = [package for package in packages if not _installed(package)]
    steps: list[Step] = []
    if packages:
        steps += _install(packages, family, environ, missing)
    for one in fetched:
        *parts, last = one.fetch_commands()
        steps += [Step(argv, f"fetches a part of {one.name}", fetches=one) for argv in parts]
        why = f"fetches {one.name} into {one.directory.parent}, by its SHA-256; nothing else is changed"
        steps.append(Step(last, why, then=partial(unpacking.install, one), fetches=one))
    if not steps:
        raise MissingError(missing)
    return SetupPlan(name, "", missing, tuple(steps), params)


def _other_openzfs(wanted: str) -> Step:
    """Return the step that brings the engine and the mount with OpenZFS ``wanted``."""
    suite = openzfs.suite(wanted)
    library = openzfs.library(wanted)
    where = openzfs.folder(wanted) if library is None else library.root.parent
    why = (
        f"fetches OpenZFS {wanted} and the libraries it needs from Debian's {suite}, and unpacks them in "
        f"{where}; installs nothing; then the engine and the mount are built against it"
    )
    script = native.SOURCES / "scripts/openzfs.sh"
    return Step((str(script), str(where), wanted, suite), why, then=partial(_build_with, wanted), says=True)


def _build_with(wanted: str) -> None:
    library = openzfs.library(wanted)
    if library is not None:
        for program in _WITH_OPENZFS:
            program.against(library).find()


def _install(packages: list[str], family: str, environ: Mapping[str, str], missing: str) -> list[Step]:
    """Return the steps that install ``packages``."""
    command = unattended_install(packages, family)
    if not command:
        raise MissingError(missing)
    root = _as_root(environ, missing)
    steps: list[Step] = []
    if family == "debian" and any(not _offered(package) for package in packages):
        steps.append(Step((*root, "apt-get", "update", "-q"), "reads the lists of packages"))
    for one in (one for known in every() for one in known.facts.before_install):
        done = family == "debian" and one.unless and _installed(one.unless)
        if one.package in packages and one.family in ("", family) and not done:
            undo = (*root, "sh", "-c", one.undo) if one.undo else ()
            steps.append(Step((*root, "sh", "-c", one.shell), one.why, undo=undo))
    why = f"installs {', '.join(packages)} and what they depend on; removes nothing"
    steps.append(Step((*root, *command), why))
    return steps


def carry_out(
    wanted: SetupPlan, say: Callable[[Step], None], *, environ: Mapping[str, str] = os.environ
) -> SetupPlan:
    """Do the steps of ``wanted``, and return how things stand afterwards.

    Args:
        wanted: from ``plan``.
        say: called with each step before it is done.
        environ: of the commands.

    Raises:
        ZtuneError: a command failed; the sentence ends with its last lines.
        MissingError: everything was done, and something is missing all the same.
    """
    undo: list[tuple[str, ...]] = []
    begun: Fetched | None = None
    alone = ExitStack()
    try:
        for step in wanted.steps:
            if step.fetches is not None and step.fetches != begun:
                if begun is None:
                    alone.enter_context(_alone(step, say))
                begun = step.fetches
                # What a set-up that was killed left of it.
                shutil.rmtree(begun.download, ignore_errors=True)
            if step.fetches is not None and step.fetches.present:
                continue
            say(step)
            if step.undo:
                undo.append(step.undo)
            _run_when_free(step, say, environ)
            if step.then is not None:
                step.then()
    finally:
        alone.close()
        for argv in undo:
            _run(argv, environ)
    entry = _examined(wanted.workload, wanted.params)
    if entry.missing:
        raise MissingError(f"{wanted.workload}: still missing after the set-up: {entry.missing}")
    return SetupPlan(wanted.workload, entry.version, "", wanted.steps, wanted.params)


def _alone(step: Step, say: Callable[[Step], None]) -> AbstractContextManager[None]:
    """Wait until no other set-up fetches into the same directory, and keep others out of it."""
    where = software.directory()
    where.mkdir(parents=True, exist_ok=True)
    waits = replace(step, why="another `ztune setup` fetches now: waiting for it")
    return shared_files.locked(where / ".fetch.lock", waiting=lambda: say(waits))


def _examined(name: str, params: Mapping[str, str]) -> registry.ListedWorkload:
    """Return what is here for a workload, or of ztune's programs. Raises InputError with a hint."""
    if name == OPENZFS:
        return _examined_openzfs(params)
    if name != PROGRAMS:
        registry.get(name)
        return registry.examined(next(e for e in registry.entries() if e.name == name), params)
    if params:
        raise InputError(f"{PROGRAMS} has no parameters")
    built = {program.name: program.built() for program in native.ALL}
    missing = [program for program, path in built.items() if path is None]
    return registry.ListedWorkload(
        name,
        "ztune's own programs",
        "ztune",
        [],
        version="" if missing else ", ".join(map(str, built.values())),
        missing=f"{', '.join(missing)}: not built" if missing else "",
    )


def _examined_openzfs(params: Mapping[str, str]) -> registry.ListedWorkload:
    """Return what is here of engine and mount with another OpenZFS. Raises InputError if none can be had."""
    if params.keys() != {"version"}:
        raise InputError(
            f"{OPENZFS} takes a version and nothing else: --version {next(iter(openzfs.SUITES))}"
        )
    wanted = params["version"]
    own, library = openzfs.upstream(native.openzfs_here()), openzfs.library(wanted)
    built = [] if library is None else [program.against(library).built() for program in _WITH_OPENZFS]
    if own and openzfs.matches(own, wanted):
        version = f"{own}, this machine's own"
    elif library is not None and all(built):
        version = ", ".join([library.version, *map(str, built)])
    else:
        version = ""
        openzfs.suite(wanted)
    summary = "the replay engine and the mount with another version of OpenZFS"
    missing = "" if version else f"there are no engine and mount with OpenZFS {wanted}"
    return registry.ListedWorkload(OPENZFS, summary, "ztune", [], version=version, missing=missing)


def _run_when_free(step: Step, say: Callable[[Step], None], environ: Mapping[str, str]) -> None:
    """Run ``step``; while another apt has the locks, wait for it and say so once."""
    until = time.monotonic() + _LOCK_SECONDS
    told = False
    while True:
        try:
            return _run(step.argv, environ, shown=step.says)
        except ZtuneError as error:
            if _LOCKED not in str(error) or time.monotonic() > until:
                raise
        if not told:
            say(
                replace(
                    step, why="another apt is at work on this machine: waiting for it, at most ten minutes"
                )
            )
        told = True
        time.sleep(_LOOK_SECONDS)


def _run(argv: tuple[str, ...], environ: Mapping[str, str], *, shown: bool = False) -> None:
    try:
        done = subprocess.run(
            argv,
            # Where ztune was called pip would load a `pip.py`, and Maven a `.mvn`, that anybody put there.
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=_STDERR if shown else subprocess.PIPE,
            stderr=_STDERR if shown else subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
            timeout=_INSTALL_SECONDS,
        )
    except OSError as error:
        raise MissingError(f"`{shlex.join(argv)}` can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ZtuneError(f"`{shlex.join(argv)}` did not end within {_INSTALL_SECONDS:.0f} s") from None
    if done.returncode != 0:
        said = " | ".join([line.strip() for line in (done.stdout or "").splitlines() if line.strip()][-4:])
        silent = "it said why above" if shown else "it said nothing"
        raise ZtuneError(f"`{shlex.join(argv)}` failed: {said or silent}")


def _as_root(environ: Mapping[str, str], missing: str) -> tuple[str, ...]:
    if os.geteuid() == 0:
        return ()
    chosen = environ.get("SUDO", "").split()
    if chosen:
        return tuple(chosen)
    if shutil.which("sudo", path=environ.get("PATH")):
        return ("sudo",)
    raise MissingError(
        "installing packages needs root: be root, install sudo, or set SUDO to what you use instead; "
        f"{missing}"
    )


def _installed(package: str) -> bool:
    return _says(("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package)) == "ii"


def _offered(package: str) -> bool:
    return bool(_says(("apt-cache", "madison", package)))


def _says(argv: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
