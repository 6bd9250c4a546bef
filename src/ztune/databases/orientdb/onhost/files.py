"""Jobs between an OrientDB database and files: import, backup or export, archive, full-text index."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.orientdb.onhost.embedded import OrientJob
from ztune.databases.orientdb.onhost.export import ExportFacts, facts, is_packed
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.launcher import LaunchedJob

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
        scratch, talk = self.scratch("scratch"), self.another(None)
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
        places.mend(target, 0o600, self.account)
        self.write_note(self.note, self.own)
        progress("read the export", 1.0)

    def take_over(self) -> None:
        """Read what is known of the triples, or of the user's export."""
        if self._given is None:
            super().take_over()
        else:
            self.own = self.read_note(self.note, ExportFacts, "database")

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
        talk = self.opened
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
            offered_per_second=0.0,
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
        talk = self.open_anew()
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
        talk = self.talk()
        self.make_database(talk, self.path("data"), progress)
        self.fill(talk, progress)
        self.stop()
        self.source.unlink()

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Write the file, and sync it."""
        talk, target = self.opened, self._target
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
            offered_per_second=0.0,
            details={
                "backup_bytes": target.stat().st_size,
                "database_bytes": places.size_of(self.path("data")),
                **self.details(),
            },
        ).undilated(self.dilation)

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with checks of a database that is made from the file again."""
        talk, scratch = self.opened, self.scratch("restored")
        word = "reimport" if self.params["method"] == "export" else "restore"
        try:
            found = talk.ask(word, self._target, scratch, seconds=self.limit())
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        checks = self.prove(found, found, " in the database restored from it")
        return replace(result, checks=tuple(checks)).require_ok(self.name)


class OrientdbArchive(LaunchedJob, OrientJob):
    """A backup is moved into the archive."""

    name: ClassVar[str] = "orientdb-archive"
    ROLES: ClassVar[tuple[str, ...]] = ("backup", "archive")
    _FILE: ClassVar[str] = "database.zip"

    def _set_up(self) -> None:
        super()._set_up()
        self._before: tuple[int, str] = (0, "")

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Make a database of the triples beside the layout, and its backup in the role ``backup``."""
        self.write_input(progress)
        scratch, talk = self.scratch("scratch"), self.another(None)
        self.make_database(talk, scratch, progress)
        self.fill(talk, progress)
        progress("write the backup", 0.0)
        talk.ask("backup", self.path("backup") / self._FILE, int(self.params["level"]), seconds=self.limit())
        self.stop()
        shutil.rmtree(scratch)
        self.source.unlink()

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the shell that waits for the word to move the file."""
        source, target = self.path("backup") / self._FILE, self.path("archive") / self._FILE
        try:
            self._before = (source.stat().st_size, places.sha256(source))
        except OSError as error:
            raise ZtuneError(f"{source}: there is no backup to move: {error.strerror}") from None
        # What mv does between two file systems, but never as a rename or a clone, and safe before it forgets.
        script = 'cp --reflink=never --sparse=never "$1" "$2" && sync "$2" && rm "$1"'
        command: list[str | Path] = ["/bin/sh", "-c", script, "sh", source, target]
        self.launch("moving the backup", command, "move.log")
        progress("start the shell", 1.0)

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Move the file."""
        launcher, size, step = self.launcher, self._before[0], "move the backup"
        seconds, moved = launcher.run(self.limit() + size / 1e6, lambda _gone: progress(step, 0.0))
        if launcher.exit_code() != 0:
            raise ZtuneError(f"the backup could not be moved into the archive: {launcher.said()}")
        progress(step, 1.0)
        assert self.input is not None
        return WorkloadResult(
            seconds=seconds,
            operations=1,
            unit="file",
            latency_ms={},
            offered_per_second=0.0,
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
            Check(
                "SHA-256 of the archive", self._before[1], places.sha256(target) if target.exists() else ""
            ),
            Check("the backup is gone", "yes", "no" if source.exists() else "yes"),
        )
        return replace(result, checks=checks).require_ok(self.name)

    def page_sizes(self) -> dict[str, int]:
        """Return nothing: a file that is moved has no pages."""
        return {}


class OrientdbLucene(OrientJob):
    """A full-text index over all vertices."""

    name: ClassVar[str] = "orientdb-lucene"
    ROLES: ClassVar[tuple[str, ...]] = ("data", "index")
    _WORDS: ClassVar[str] = "words.json"

    def _software(self) -> list[Path]:
        plugin = self.release.lucene
        found = super()._software()
        return [*found, self._fetched(plugin, f"the plug-in {plugin}")] if plugin else found

    @property
    def _link(self) -> Path:
        # OrientDB keeps Lucene's files below the database; a link puts them on a dataset of their own.
        return self.path("data") / "graph" / "luceneIndexes"

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Write the triples and fill the database with them."""
        self.write_input(progress)
        talk = self.talk()
        self.make_database(talk, self.path("data"), progress)
        self.fill(talk, progress)
        self.stop()
        note = self.path("data") / self._WORDS
        places.lend(note, json.dumps(some_words(self.source)), self.account)
        self.source.unlink()
        self._make_link()

    def _make_link(self) -> None:
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self.path("index"))
        places.mend(self._link, None, self.account)

    def take_over(self) -> None:
        """Read what is known of a database that was copied; the link leads to where the index is now."""
        super().take_over()
        self._make_link()

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Build the index."""
        talk = self.opened
        progress("build the index", 0.0)
        found = talk.ask("lucene", seconds=self.limit())
        progress("build the index", 1.0)
        result = WorkloadResult(
            seconds=float(found["seconds"]),
            operations=int(found["indexed"]),
            unit="vertex",
            latency_ms={},
            offered_per_second=0.0,
            details=self.details(),
        ).undilated(self.dilation)
        self.synch(result, progress)
        result.details["index_bytes"] = places.size_of(self.path("index"))
        return result

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks, of a database that was closed and opened again.

        Every vertex is in the index, words of the input are found, one that isn't in it is not.
        """
        talk = self.open_anew()
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
