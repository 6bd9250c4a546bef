"""Jobs between an OrientDB database and files: import, backup or export, archive, full-text index."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.orientdb.onhost.embedded import OrientJob
from ztune.databases.orientdb.onhost.export import ExportFacts, facts, is_packed
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import Launcher

EXPORT = "export.json.gz"
_OPEN_SECONDS = 600.0


class OrientdbImport(OrientJob):
    """A JSON export becomes a database: one that is made of the triples, or the user's own."""

    name: ClassVar[str] = "orientdb-import"

    def _set_up(self) -> None:
        super()._set_up()
        self.own: ExportFacts | None = None
        """What is in the user's export; known after ``load`` or ``adopt``."""

    @property
    def _given(self) -> Path | None:
        return Path(self.params["export"]) if self.params["export"] else None

    @property
    def _export(self) -> Path:
        # OrientDB finds out by the content whether it is packed; the name is for people.
        packed = self.path("source") / EXPORT
        return packed if packed.exists() else packed.with_suffix("")

    def check_input(self) -> None:
        """Raise MissingError or InputError if what is loaded can't be had here."""
        if self._given is None:
            super().check_input()
        else:
            is_packed(self._given)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Put the export into the role ``source``, and make an empty database in the role ``data``."""
        if self._given is None:
            self._make_export(progress)
        else:
            self._take_export(self._given, progress)
        self.talk().ask("create", self.path("data"), seconds=_OPEN_SECONDS)
        self.stop()

    def _make_export(self, progress: ProgressFn) -> None:
        """Write the triples, make a database of them beside the layout, and export it."""
        self.write_input(progress)
        scratch = self.home / "scratch"
        assert self._account is not None
        scratch.mkdir(mode=0o700)
        places.mend(scratch, 0o700, self._account)
        talk = self._talk = self.another(None)
        self.make_database(talk, scratch, progress)
        self.fill(talk, progress)
        progress("write the export", 0.0)
        talk.ask("export", self.path("source") / EXPORT, seconds=self.limit())
        self.stop()
        shutil.rmtree(scratch)
        # Only the export is read.
        self.source.unlink()

    def _take_export(self, given: Path, progress: ProgressFn) -> None:
        """Copy the user's export, and count what is in it."""
        progress("read the export", 0.0)
        target = self.path("source") / (EXPORT if is_packed(given) else EXPORT.removesuffix(".gz"))
        places.copy(given, target)
        self.own = facts(target)
        pinned, found = str(self.params["export_pin"]), f"{self.own.bytes}:{self.own.sha256}"
        if pinned and pinned != found:
            raise InputError(f"{given}: is another file ({found}) than the one that was pinned ({pinned})")
        assert self._account is not None
        places.mend(target, 0o600, self._account)
        self.write_note(asdict(self.own))
        progress("read the export", 1.0)

    def take_note(self, noted: Mapping[str, Any]) -> None:
        """Take over what is known of the triples, or of the user's export."""
        if self._given is None:
            super().take_note(noted)
        else:
            self.own = ExportFacts(**noted)

    def limit(self) -> float:
        """Return the seconds that the import may take: 20 records a second, on a very slow disk."""
        return super().limit() if self.own is None else 600.0 + self.own.records / 20

    def details(self) -> dict[str, Any]:
        """Return what is kept with every result: the input, and the settings as OrientDB had them."""
        if self.own is None:
            return super().details()
        return {"input": {**asdict(self.own), "kind": "export"}, "settings": dict(self.effective)}

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Import."""
        talk = self.running()
        progress("import the export", 0.0)
        export = self._export
        found = talk.ask("import", export, seconds=self.limit())
        counts = talk.ask("count", seconds=self.limit())
        progress("import the export", 1.0)
        result = WorkloadResult(
            seconds=float(found["seconds"]),
            operations=int(counts["vertices"]) + int(counts["edges"])
            if self.own is None
            else self.own.records,
            unit="record",
            latency_ms={},
            details={"export_bytes": export.stat().st_size, **self.details()},
        ).undilated(self.dilation)
        self.synch(result, progress)
        return result

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks, of a database that was closed and opened again."""
        checks = self.prove(*self.reopened()) if self.own is None else self._prove_own(self.own)
        return replace(result, checks=tuple(checks)).require_ok(self.name)

    def _prove_own(self, own: ExportFacts) -> list[Check]:
        """Return the checks that the database has as many records of each class as the export."""
        talk = self.running()
        talk.ask("close", seconds=self.limit())
        talk.ask("open", self.path("data"), seconds=self.limit())
        found: dict[str, int] = talk.ask("classes", seconds=self.limit())["classes"]
        # 3.2 makes its policies anew where an older version's export has none.
        others = {
            name: count for name, count in found.items() if name not in {*own.classes, "OSecurityPolicy"}
        }
        return [
            *(
                Check(f"records of {name or 'no class'}", count, found.get(name, 0))
                for name, count in own.classes.items()
            ),
            Check("records of other classes", 0, sum(others.values())),
        ]


class OrientdbBackup(OrientJob):
    """A database becomes a file: OrientDB's own backup, or an export as JSON."""

    name: ClassVar[str] = "orientdb-backup"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "backup")

    @property
    def _target(self) -> Path:
        return self.path("backup") / (EXPORT if self.params["method"] == "export" else "database.zip")

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the triples and fill the database with them."""
        self.write_input(progress)
        self.make_database(self.talk(), self.path("data"), progress)
        self.fill(self.talk(), progress)
        self.stop()
        self.source.unlink()

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Write the file, and sync it."""
        talk, target = self.running(), self._target
        assert self.input is not None
        target.unlink(missing_ok=True)
        progress("write the backup", 0.0)
        if self.params["method"] == "export":
            found = talk.ask("export", target, seconds=self.limit())
        else:
            found = talk.ask("backup", target, int(self.params["level"]), seconds=self.limit())
        progress("write the backup", 1.0)
        return WorkloadResult(
            seconds=float(found["seconds"]),
            operations=self.input.terms + self.input.lines,
            unit="record",
            latency_ms={},
            details={
                "backup_bytes": target.stat().st_size,
                "database_bytes": places.size_of(self.path("data")),
                **self.details(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with checks of a database that is made from the file again."""
        talk, account = self.running(), self._account
        assert account is not None
        scratch = self.home / "restored"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        places.mend(scratch, 0o700, account)
        word = "reimport" if self.params["method"] == "export" else "restore"
        try:
            found = talk.ask(word, self._target, scratch, seconds=self.limit())
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        checks = self.prove(found, found, " in the database restored from it")
        return replace(result, checks=tuple(checks)).require_ok(self.name)


class OrientdbArchive(OrientJob):
    """A backup is moved into the archive."""

    name: ClassVar[str] = "orientdb-archive"
    ROLES: ClassVar[tuple[str, ...]] = ("backup", "archive")
    _FILE: ClassVar[str] = "database.zip"

    def _set_up(self) -> None:
        super()._set_up()
        self._launcher: Launcher | None = None
        self._before: tuple[int, str] = (0, "")

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Make a database of the triples beside the layout, and its backup in the role ``backup``."""
        self.write_input(progress)
        scratch = self.home / "scratch"
        assert self._account is not None
        scratch.mkdir(mode=0o700)
        places.mend(scratch, 0o700, self._account)
        talk = self._talk = self.another(None)
        self.make_database(talk, scratch, progress)
        self.fill(talk, progress)
        progress("write the backup", 0.0)
        talk.ask("backup", self.path("backup") / self._FILE, int(self.params["level"]), seconds=self.limit())
        self._talk = None
        talk.stop()
        shutil.rmtree(scratch)
        self.source.unlink()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the shell that waits for the word to move the file."""
        source, target = self.path("backup") / self._FILE, self.path("archive") / self._FILE
        try:
            self._before = (source.stat().st_size, _sha256(source))
        except OSError as error:
            raise ZtuneError(f"{source}: there is no backup to move: {error.strerror}") from None
        assert self._account is not None
        self._launcher = Launcher(
            "moving the backup",
            self.home,
            self._account,
            log=self.home.parent / "move.log",
            patience=self.patience,
        )
        # What mv does between two file systems, but never as a rename or a clone, and safe before it forgets.
        script = 'cp --reflink=never --sparse=never "$1" "$2" && sync "$2" && rm "$1"'
        self._launcher.start(["/bin/sh", "-c", script, "sh", source, target])
        progress("start the shell", 1.0)

    def pids(self) -> list[int]:
        """Return the shell below which the file is moved."""
        return self._launcher.pids() if self._launcher is not None else []

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Move the file."""
        launcher, size = self._launcher, self._before[0]
        if launcher is None:
            raise ZtuneError(f"{self.name}: start comes before this step")
        began = time.time()
        moved = launcher.run(self.limit() + size / 1e6, lambda _gone: None)
        if launcher.exit_code() != 0:
            raise ZtuneError(f"the backup could not be moved into the archive: {launcher.said()}")
        progress("move the backup", 1.0)
        # The shell's own note of the end; we look only twenty times a second, which would blur a short move.
        seconds = max((self.home / "rc").stat().st_mtime - began, 1e-3)
        assert self.input is not None
        return WorkloadResult(
            seconds=seconds,
            operations=1,
            unit="file",
            latency_ms={},
            details={
                "archived_bytes": size,
                "bytes_per_second": size / seconds * self.dilation,
                "kernel": {name: moved.get(name, 0) for name in ("rchar", "wchar", "syscr", "syscw")},
                **self.details(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks: the archive has the very bytes, the backup is gone."""
        source, target = self.path("backup") / self._FILE, self.path("archive") / self._FILE
        checks = (
            Check("bytes in the archive", self._before[0], target.stat().st_size if target.exists() else 0),
            Check("SHA-256 of the archive", self._before[1], _sha256(target) if target.exists() else ""),
            Check("the backup is gone", "yes", "no" if source.exists() else "yes"),
        )
        return replace(result, checks=checks).require_ok(self.name)

    def stop(self) -> None:
        """End the shell."""
        super().stop()
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.stop()

    def kill(self) -> None:
        """End every program at once."""
        super().kill()
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.kill()

    def page_sizes(self) -> dict[str, int]:
        """Return nothing: a file that is moved has no pages."""
        return {}


class OrientdbLucene(OrientJob):
    """A full-text index over all vertices."""

    name: ClassVar[str] = "orientdb-lucene"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "index")
    _WORDS: ClassVar[str] = "words.json"

    @property
    def _link(self) -> Path:
        # OrientDB keeps Lucene's files below the database; a link puts them on a dataset of their own.
        return self.path("data") / "graph" / "luceneIndexes"

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the triples and fill the database with them."""
        self.write_input(progress)
        self.make_database(self.talk(), self.path("data"), progress)
        self.fill(self.talk(), progress)
        self.stop()
        note = self.path("data") / self._WORDS
        places.write(note, json.dumps(some_words(self.source)))
        assert self._account is not None
        places.mend(note, 0o600, self._account)
        self.source.unlink()
        self._make_link()

    def _make_link(self) -> None:
        assert self._account is not None
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self.path("index"))
        places.mend(self._link, None, self._account)

    def adopt(self, places_: Mapping[str, Path]) -> None:
        """Take over files that were copied into ``places_``; the link leads to where they are now."""
        super().adopt(places_)
        self._make_link()

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Build the index."""
        talk = self.running()
        progress("build the index", 0.0)
        found = talk.ask("lucene", seconds=self.limit())
        progress("build the index", 1.0)
        result = WorkloadResult(
            seconds=float(found["seconds"]),
            operations=int(found["indexed"]),
            unit="vertex",
            latency_ms={},
            details=self.details(),
        ).undilated(self.dilation)
        self.synch(result, progress)
        result.details["index_bytes"] = places.size_of(self.path("index"))
        return result

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks, of a database that was closed and opened again.

        Every vertex is in the index, words of the input are found, one that isn't in it is not.
        """
        talk = self.running()
        talk.ask("close", seconds=self.limit())
        talk.ask("open", self.path("data"), seconds=self.limit())
        assert self.input is not None
        words = json.loads(own_directory.read_plain(self.path("data") / self._WORDS))
        checks = [Check("vertices indexed", self.input.terms, result.operations)]
        for word in words:
            hits = talk.ask("search", word, seconds=self.limit())["hits"]
            checks.append(Check(f"{word!r} is found", "yes", "yes" if hits else "no"))
        none = talk.ask("search", "zzxqjkvw", seconds=self.limit())
        checks.append(Check("a word that is nowhere is found", 0, none["hits"]))
        checks.append(Check("vertices in the index when opened again", self.input.terms, none["indexed"]))
        return replace(result, checks=tuple(checks)).require_ok(self.name)

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of the database; Lucene's files have none."""
        return {"data": super().page_sizes()["data"]}


def some_words(path: Path, count: int = 5) -> list[str]:
    """Return plain words of seven letters or more from literals of the triples in ``path``, all over it."""
    found: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            text = line.split(" ", 2)[2]
            if text.startswith('"'):
                # Only what no analyser divides or leaves out.
                words = [w for w in text.split('"')[1].split() if w.isascii() and w.isalpha() and len(w) > 6]
                found += words[:1]
    step = max(1, len(found) // count)
    return list(dict.fromkeys(word.lower() for word in found[::step]))[:count]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
