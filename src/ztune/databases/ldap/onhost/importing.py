"""``ldap-import``: an LDIF file becomes the database of a directory server."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

from ztune.databases.ldap.onhost import ldif, subscribers
from ztune.databases.ldap.onhost.ds389 import Server389
from ztune.databases.ldap.onhost.opendj import OpenDj
from ztune.databases.ldap.onhost.server import DirectoryServer, Ground
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import last_lines, run
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import LaunchedJob

SERVERS: dict[str, type[DirectoryServer]] = {"389-ds": Server389, "opendj": OpenDj}
INPUT = "entries.ldif"
_NOTE = "input.json"
_DAY = 86_400.0
# Upper estimates, to refuse a disk that is too small: of the input's bytes, and of an entry's indexes.
_DATA_TIMES, _INDEX_BYTES = 2, 4000


def bytes_per_entry(services: int) -> int:
    """Return about how many bytes of LDIF a subscriber with so many services takes, at most."""
    return 1300 + 270 * services


_BEGAN = "imports"
# Each import empties the database first, as both servers do. Its beginning is noted, and the end of the last.
_AGAIN = """left=$1 began=$2; shift 2
while [ "$left" -gt 0 ]; do
    date +%s.%N >>"$began"
    "$@" || exit
    left=$((left - 1))
done
date +%s.%N >>"$began"
"""


class LdapImport(LaunchedJob):
    """The import is a program that ends by itself; so is the export that proves it."""

    name: ClassVar[str] = "ldap-import"
    ROLES: ClassVar[tuple[str, ...]] = Server389.roles

    def _set_up(self) -> None:
        super()._set_up()
        self.server: DirectoryServer = SERVERS[str(self.params["server"])](
            self.params, self.database, patience=self.patience
        )
        self.input: ldif.LdifFacts | None = None
        """What is in the input; known after ``load`` or ``adopt``."""
        self.user = self.server.account

    def roles(self) -> tuple[str, ...]:
        """Return the roles that the server's files can be parted into."""
        return self.server.roles

    def check_settings(self) -> None:
        """Refuse settings that aren't the server's or not the layout's."""
        self.server.check_settings()

    def check(self) -> str:
        """Return the server's version.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is unknown here, or there is no such file.
        """
        own = Path(str(self.params["file"]))
        if self._is_own and not own.is_file():
            raise InputError(f"{self.name}: {own} is no file; name an LDIF file with -p file=PATH")
        return self.server.check()

    @property
    def _is_own(self) -> bool:
        return str(self.params["input"]) == "file"

    @property
    def ground(self) -> Ground:
        """Where the server stands."""
        home = self.home
        assert self.workdir is not None
        return Ground(self.workdir, home, self._paths, self.account)

    @property
    def source(self) -> Path:
        """The file that is imported."""
        return self.role_paths()["source"] / INPUT

    @property
    def _note(self) -> Path:
        return self.source.with_name(_NOTE)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the input; the database begins empty."""
        step, params = "write the input", self.params
        progress(step, 0.0)
        limit = int(params["entries"])
        if self._is_own:
            found = ldif.own(Path(str(params["file"])), limit)
        else:
            found = subscribers.entries(limit, int(params["services"]), int(params["seed"]))

        def shown() -> Iterator[bytes]:
            for count, text in enumerate(found):
                if limit and count % 10_000 == 0:
                    progress(step, min(0.5, 0.5 * count / limit))
                yield text

        if not ldif.write(self.source, shown()):
            raise InputError(f"{params['file']}: there are no entries in it")
        progress(step, 0.5)
        self.input = ldif.facts(self.source)
        places.mend(self.source, 0o600, self.account)
        self.write_note(self._note, self.input)
        progress(step, 1.0)

    def take_over(self) -> None:
        """Look at an input that was copied."""
        self.input = self.read_note(self._note, ldif.LdifFacts, "input")
        if self.source.stat().st_size != self.input.bytes:
            raise ZtuneError(f"{self._note}: there is no input of {self.name} to take over; load it anew")

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Set the server up, and start the shell that waits for the word to import."""
        if self.input is None:
            raise ZtuneError(f"{self.name}: there is no input; load comes before this step")
        progress("set the server up", 0.0)
        ground = self.ground
        self.server.configure(ground, self.input, not self._is_own)
        command, env = self.server.import_command(ground, self.source)
        if self._imports > 1:
            command = ["/bin/sh", "-c", _AGAIN, "sh", str(self._imports), ground.home / _BEGAN, *command]
        self.launch(f"{self.server.title}'s import", command, "import.log", env)
        progress("set the server up", 1.0)

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes each role will hold, before compression."""
        if self._is_own:
            own = Path(str(self.params["file"]))
            size = own.stat().st_size * (10 if own.suffix == ".gz" else 1) if own.is_file() else 0
            count = int(self.params["entries"]) or size // 500
        else:
            count = int(self.params["entries"])
            size = count * bytes_per_entry(int(self.params["services"]))
        found = {"source": size, "data": (16 << 20) + _DATA_TIMES * size + _INDEX_BYTES * count}
        # What OpenDJ sorts is what it indexes.
        return found | ({"temp": found["data"]} if "temp" in self.roles() else {})

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Import. ``verify`` proves it."""
        launcher, wanted = self.launcher, self.input
        assert wanted is not None
        step = "import the entries"

        looked = 0.0

        def tick(gone: float) -> None:
            nonlocal looked
            if gone - looked > 2:
                looked = gone
                progress(step, min(0.99, places.size_of(self._paths["data"]) / (1.5 * wanted.bytes)))

        progress(step, 0.0)
        took, _ = launcher.run(_DAY + 600 * self.patience, tick)
        code = launcher.exit_code()
        if code:
            how = f"ended with exit code {code}"
            if code > 128:
                how = f"was ended by {signal.Signals(code - 128).name}"
            raise ZtuneError(f"{launcher.what} {how}; {self._why()}")
        progress(step, 1.0)
        return WorkloadResult(
            seconds=took,
            operations=wanted.entries * self._imports,
            unit="entry",
            latency_ms={},
            offered_per_second=0.0,
            details={
                "input": {**asdict(wanted), "kind": str(self.params["input"])},
                "imported_as_it_says": self.server.claims(self._said()),
                "settings": self.server.settings(),
                **self._last_import(),
            },
        ).undilated(self.dilation)

    @property
    def _imports(self) -> int:
        return int(self.params["imports"])

    def _last_import(self) -> dict[str, float]:
        """Return how long the last of several imports took, seconds of real time without dilation."""
        if self._imports == 1:
            return {}
        times = own_directory.read_plain(self.ground.home / _BEGAN).split()
        began, ended = map(float, times[-2:])
        return {"last_import_s": (ended - began) / self.dilation}

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks, of the database as the server's own export reads it back.

        It holds as many entries as the input, and their names and values are those of the input.

        Raises:
            ZtuneError: a check does not hold; the sentence ends with what the import said of it.
        """
        wanted = self.input
        assert wanted is not None
        entries, content = self._exported()
        checks = (
            Check(
                "entries imported, as the server counted them",
                wanted.entries,
                result.details["imported_as_it_says"] or "none",
            ),
            Check("entries in the database", wanted.entries, entries),
            Check("sum over the names and values of all entries", wanted.content, content),
        )
        try:
            return replace(result, checks=checks).require_ok(self.name)
        except ZtuneError as error:
            complaint = self.server.complaint(self._said())
            raise ZtuneError(f"{error}; the import said: {complaint}" if complaint else str(error)) from None

    def _said(self) -> str:
        """Return what the import said, in its log and on its own."""
        text = ""
        for path in (self.launcher.log, self.server.log(self.ground)):
            with contextlib.suppress(OSError):
                text += own_directory.read_plain(path)
        return text

    def _why(self) -> str:
        """Return what the import said of an entry that it left out, or else what it said last."""
        complaint = self.server.complaint(self._said())
        last = last_lines(self.server.log(self.ground)) or self.launcher.said()
        return f"it said: {complaint}" if complaint else f"it said last: {last}"

    def _exported(self) -> tuple[int, int]:
        """Let the server export its database, and count what comes."""
        ground = self.ground
        pipe = ground.home / "export.ldif"
        # Nothing of it is to fill a disk.
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        places.mend(pipe, 0o600, ground.account)
        found: list[tuple[int, int] | InputError] = []

        def read() -> None:
            with pipe.open("rb") as file:
                try:
                    found.append(ldif.counted(file))
                except InputError as error:
                    found.append(error)
                    # Or the export would wait for its reader.
                    while file.read(1 << 20):
                        pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        command, env = self.server.export_command(ground, pipe)
        try:
            run(
                command,
                what=f"{self.server.title}'s export",
                account=ground.account,
                cwd=ground.home,
                env=env,
                seconds=(600 + (self.input.entries if self.input else 0) / 50) * self.patience,
            )
        except ZtuneError as error:
            raise ZtuneError(f"{error}; its log ends: {last_lines(self.server.log(ground))}") from None
        finally:
            with contextlib.suppress(OSError):
                # The reader may still wait for somebody who writes.
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            reader.join()
            pipe.unlink()
        if isinstance(found[0], InputError):
            raise ZtuneError(f"{self.server.title}'s export can't be read: {found[0]}")
        return found[0]

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of the database's files, in bytes, where they have one."""
        return self.server.page_sizes()
