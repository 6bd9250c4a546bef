"""``command``: any database, by the commands that load, start, measure and stop it, from a TOML file.

Commands are lines for ``/bin/sh``. They run as an unprivileged user in a directory of their own and find
everything in their environment: ``$ZTUNE_DATA`` and the like for the roles' directories, ``$ZTUNE_RUN`` for
sockets and logs, and the settings by their names.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import run
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import LaunchedJob
from ztune.onhost.jobs.server import Server
from ztune.onhost.words import ROLES

_TEXTS = (
    *("name", "version", "user", "load", "adopt", "start", "ready", "stop"),
    *("measure", "operations", "unit", "seconds"),
)
_NEEDED = ("name", "version", "load", "measure", "operations")
LIMITS = {"load": 3600, "start": 60, "measure": 3600, "stop": 60, "check": 600}
"""The most that each may take, in s, unless the file says otherwise; ``patience`` multiplies it."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One ``[[check]]``: what a command must say."""

    name: str
    command: str
    expect: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A user's file, read and checked."""

    texts: Mapping[str, str]
    roles: tuple[str, ...]
    checks: tuple[FileCheck, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    page_sizes: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        """Return one of the commands or patterns; empty if the file has none."""
        return self.texts.get(name, "")


def parse(text: str, where: str) -> Recipe:
    """Return the recipe in a TOML file.

    Raises:
        InputError: it isn't TOML, lacks something, or has something unknown; the sentence names it.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a whole number of 5,000 digits is a ValueError
        raise InputError(f"{where}: it is not TOML: {error}") from None
    # What is declared of durability is read where layouts are judged: ztune.databases.command.workload.
    known = (*_TEXTS, "roles", "check", "settings", "env", "limits", "page_sizes", "durability")
    for key in raw:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it may have {', '.join(known)}"
            raise InputError(f"{where}: {key!r} is not known; {hint}")
    for key in _TEXTS:
        if key in raw and (not isinstance(raw[key], str) or not raw[key].strip()):
            raise InputError(f"{where}: {key} must be text between quotes")
    for key in _NEEDED:
        if key not in raw:
            raise InputError(f"{where}: {key} is missing; docs/workloads.md has an example")
    if ("start" in raw) != ("ready" in raw):
        raise InputError(
            f"{where}: start and ready belong together: a server, and a command that fails until it answers"
        )
    if "stop" in raw and "start" not in raw:
        raise InputError(f"{where}: stop is for a server, and there is no start")
    for key in ("operations", "seconds"):
        _pattern(raw.get(key, "(x)"), key, where)
    roles = raw.get("roles")
    if not isinstance(roles, list) or not roles or not set(map(str, roles)) <= set(ROLES):
        raise InputError(f"{where}: roles must list some of {', '.join(ROLES)}")
    limits = {**LIMITS, **_table(raw, "limits", where, (int, float))}
    strange = set(limits) - set(LIMITS)
    if strange:
        raise InputError(f"{where}: limits has no {sorted(strange)[0]!r}; there are {', '.join(LIMITS)}")
    settings = _table(raw, "settings", where, (str, int))
    for name in settings:
        if not _NAME.fullmatch(name):
            raise InputError(f"{where}: settings: {name!r} can't be used; write small letters, digits and _")
    return Recipe(
        texts={key: raw[key] for key in _TEXTS if key in raw},
        roles=tuple(role for role in ROLES if role in roles),
        checks=_checks(raw.get("check"), where),
        settings={name: str(value) for name, value in settings.items()},
        env=_table(raw, "env", where, (str,)),
        limits=limits,
        page_sizes=_table(raw, "page_sizes", where, (int,)),
    )


def _pattern(text: str, key: str, where: str) -> None:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise InputError(f"{where}: {key} is no regular expression: {error}") from None
    if groups != 1:
        raise InputError(
            f"{where}: {key} must have one group in brackets around the number, such as 'done: ([0-9]+)'"
        )


def _table(raw: Mapping[str, Any], key: str, where: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    found = raw.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(value, kinds) for value in found.values()):
        raise InputError(
            f"{where}: [{key}] must hold names and {' or '.join(kind.__name__ for kind in kinds)} values"
        )
    return dict(found)


def _checks(raw: object, where: str) -> tuple[FileCheck, ...]:
    if not isinstance(raw, list) or not raw:
        raise InputError(f"{where}: there is no [[check]]: without one nobody knows whether the job was done")
    found = []
    for one in raw:
        if not isinstance(one, dict) or set(one) != {"name", "command", "expect"}:
            raise InputError(f"{where}: each [[check]] has name, command and expect")
        found.append(FileCheck(str(one["name"]), str(one["command"]), str(one["expect"])))
    return tuple(found)


class Command(LaunchedJob):
    """A user's own database."""

    name: ClassVar[str] = "command"
    ROLES: ClassVar[tuple[str, ...]] = ()

    def _set_up(self) -> None:
        super()._set_up()
        where = str(self.params["file"] or "the file")
        if not self.params["file_text"]:
            raise InputError("command: name the file that describes your database: -p file=my-db.toml")
        self.recipe = parse(str(self.params["file_text"]), where)
        self._version = ""
        self.user = self.recipe["user"] or "nobody"
        self._server: Server | None = None
        self._not_ready = ""

    def roles(self) -> tuple[str, ...]:
        """Return the roles that the file names."""
        return self.recipe.roles

    def check_settings(self) -> None:
        """Refuse settings that there are not."""
        for name in self.database:
            if name not in self.recipe.settings:
                known = ", ".join(self.recipe.settings) or "none"
                raise InputError(
                    f"command: the layout sets {name!r}, but [settings] of {self.params['file']} has {known}"
                )

    def check(self) -> str:
        """Return what the version command says.

        Raises:
            MissingError: it fails: something that the file needs isn't here.
            InputError: a setting of the layout is none of the file's.
        """
        if self._version:
            return self._version
        self.check_settings()
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **self.recipe.env}
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", self.recipe["version"]],
                capture_output=True,
                text=True,
                errors="replace",
                cwd="/",
                env=env,
                timeout=60 * self.patience,
                **self.account.popen_args,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError(f"command: the version command does not run: {error}") from None
        lines = [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()]
        if done.returncode != 0 or not lines:
            said = lines[-1] if lines else done.stderr.strip() or "it said nothing"
            raise MissingError(
                f"command: {self.recipe['name']} is not here: `{self.recipe['version']}`: {said}"
            )
        self._version = f"{self.recipe['name']} ({lines[0]})"
        return self._version

    def _env(self) -> dict[str, str]:
        roles = {f"ZTUNE_{role.upper()}": str(path) for role, path in self._paths.items()}
        return {
            **self.recipe.env,
            **self.recipe.settings,
            **self.database,
            **roles,
            "ZTUNE_RUN": str(self.home),
            "ZTUNE_SEED": str(self.params["seed"]),
            "ZTUNE_DILATION": f"{self.dilation:g}",
        }

    def _shell(self, what: str, command: str, limit: str) -> str:
        return run(
            ["/bin/sh", "-c", command],
            what=f"{self.recipe['name']}: {what}",
            account=self.account,
            cwd=self.home,
            env=self._env(),
            seconds=self.recipe.limits[limit] * self.patience,
            watch=self._server.watch if self._server is not None else None,
        )

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Run the load command."""
        progress("load", 0.0)
        self._shell("load", self.recipe["load"], "load")
        progress("load", 1.0)

    def adopt(self, given: Mapping[str, Path]) -> None:
        """Take over files that were copied into ``given``."""
        super().adopt(given)
        if self.recipe["adopt"]:
            self._shell("adopt", self.recipe["adopt"], "load")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server, if there is one, and the shell that waits for the word to measure."""
        assert self.workdir is not None
        recipe = self.recipe
        if recipe["start"]:
            self._server = Server(
                recipe["name"],
                self.workdir.path / "server.log",
                self.account,
                death_signal=signal.SIGKILL,
                patience=self.patience,
            )
            self._server.start(
                ["/bin/sh", "-c", recipe["start"]],
                cwd=self.home,
                env=self._env(),
                ready=self._ready,
                seconds=recipe.limits["start"],
                why_not=lambda: self._not_ready,
            )
        command = ["/bin/sh", "-c", recipe["measure"]]
        self.launch(f"{recipe['name']}: measure", command, "measure.log", self._env())
        progress("start", 1.0)

    def _ready(self) -> bool:
        try:
            self._shell("ready", self.recipe["ready"], "start")
        except MissingError:
            raise
        except ZtuneError as error:
            self._not_ready = f"the last time, {error}"
            return False
        return True

    def pids(self) -> list[int]:
        """Return the server's pid, and that of the shell below which the measure command runs."""
        return [*(self._server.pids() if self._server is not None else []), *super().pids()]

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Run the measure command and read its result."""
        launcher = self.launcher
        limit = self.recipe.limits["measure"] * self.patience * self.dilation

        def tick(_gone: float) -> None:
            if self._server is not None:
                self._server.watch()
            progress("measure", 0.0)

        spent, _ = launcher.run(limit, tick)
        if self._server is not None:
            self._server.watch()
        launcher.must_have_ended_well()
        text = own_directory.read_plain(launcher.log)
        operations = int(float(self._number("operations", text)))
        if self.recipe["seconds"]:
            spent = float(self._number("seconds", text))
        progress("measure", 1.0)
        return WorkloadResult(
            seconds=spent,
            operations=operations,
            unit=self.recipe["unit"] or "operation",
            latency_ms={},
            details={"settings": {**self.recipe.settings, **self.database}},
        ).undilated(self.dilation)

    def _number(self, key: str, text: str) -> str:
        found = re.findall(self.recipe[key], text, re.MULTILINE)
        try:
            float(found[-1])
        except (IndexError, ValueError):
            last = text.strip().splitlines()[-1:] or ["(nothing)"]
            raise ZtuneError(
                f"{self.recipe['name']}: no number matches {key} = {self.recipe[key]!r} in what the measure "
                f"command said; it ends: {last[0]}"
            ) from None
        return str(found[-1])

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with the file's checks.

        ``{operations}`` in what is expected stands for the number of operations.

        Raises:
            ZtuneError: a check does not hold.
        """
        checks = [Check("some operations were done", "yes", "yes" if result.operations > 0 else "no")]
        for one in self.recipe.checks:
            expected = one.expect.replace("{operations}", str(result.operations))
            checks.append(Check(one.name, expected, self._shell(one.name, one.command, "check").strip()))
        return replace(result, checks=tuple(checks)).require_ok(f"{self.name} ({self.recipe['name']})")

    def stop(self) -> None:
        """Shut the server down in order: by the stop command if there is one, else by SIGTERM.

        Raises:
            ZtuneError: it did not end in order, and was killed.
        """
        server = self._server
        try:
            super().stop()
            if server is not None and server.running and self.recipe["stop"]:
                self._stop_by_command(server)
            elif server is not None:
                server.stop(signal.SIGTERM, self.recipe.limits["stop"], "killed")
        finally:
            self._server = None
            if server is not None:
                server.kill()

    def _stop_by_command(self, server: Server) -> None:
        # From here on the server may end at any moment: that is no death during the work.
        self._server = None
        self._shell("stop", self.recipe["stop"], "stop")
        server.wait_for_end(self.recipe.limits["stop"])

    def kill(self) -> None:
        """End everything at once."""
        server, self._server = self._server, None
        try:
            super().kill()
        finally:
            if server is not None:
                server.kill()

    def page_sizes(self) -> dict[str, int]:
        """Return the page sizes that the file names."""
        return {role: size for role, size in self.recipe.page_sizes.items() if role in self._paths}
