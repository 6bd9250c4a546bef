"""An OrientDB embedded in a Java program of ours, and what the jobs on it share.

The program (``Orient*.java``, beside this file) runs in a process of its own, as an unprivileged user,
opens no port, and does one command after another. The database lies in the directory of the role ``data``,
its write-ahead log in that of ``wal``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from ztune.databases.orientdb.onhost.release import DEFAULT, RELEASES, Release, compile_program
from ztune.errors import InputError
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import software, triples
from ztune.onhost.jobs.conversation import Conversation
from ztune.onhost.jobs.job import Check, JobBase, ProgressFn, WorkloadResult, no_progress
from ztune.onhost.jobs.settings import check as check_settings
from ztune.units import parse_size

INPUT = "triples.nt"
# Upper estimates, to refuse a disk that is too small: the triples of Debian's packages, and bytes of data per
# triple with its vertices and index. What is made of a database is not larger than it.
_ALL_TRIPLES = 1_500_000
_BYTES_PER_TRIPLE = 450
_OPEN_SECONDS = 600.0
# Of a filled database of 3.2: what it has without triples, and for each of them, with vertices and index.
# From 20,000 and 120,000 triples of WordNet.
_EMPTY_BYTES = 24_200_000
_BYTES_PER_TRIPLE = 230
# Of the JVM's memory outside the heap, for what isn't the disk cache: buffers of the log and of backups.
_DIRECT_MEMORY = 512 << 20


def triples_for(size: int) -> int:
    """Return how many triples make a database of about ``size`` bytes; 1000 at least."""
    return max(1000, (size - _EMPTY_BYTES) // _BYTES_PER_TRIPLE)


class OrientJob(JobBase):
    """What every job on OrientDB does the same way. A subclass does ``load`` and ``run``."""

    name: ClassVar[str] = "orientdb"
    ROLES: ClassVar[tuple[str, ...]] = ("source", "data", "wal")
    user = "orientdb"

    def _set_up(self) -> None:
        super()._set_up()
        self.input: triples.TripleFacts | None = None
        """What is in the input; known after ``load`` or ``adopt``."""
        self._java: tuple[Path, str] | None = None
        self.effective: dict[str, str] = {}

    @property
    def longest_key(self) -> int:
        """Most bytes of a key in an index: OrientDB's default of 10240, and at most a quarter of a page."""
        return min(10240, (int(self.settings()["storage.diskCache.pageSize"]) << 10) // 4)

    @property
    def release(self) -> Release:
        """The version of OrientDB that it works with."""
        return RELEASES[str(self.params.get("version", DEFAULT))]

    def _software(self) -> list[Path]:
        """Return the directories of the jars."""
        return [self._fetched(self.release.software, f"OrientDB {self.release.number}")]

    def _fetched(self, name: str, what: str) -> Path:
        chosen = "" if self.release is RELEASES[DEFAULT] else f" -p version={self.params['version']}"
        return software.require(name, what, f"{self.name}{chosen}")

    def check_input(self) -> None:
        """Raise MissingError or InputError if what is loaded can't be had here."""
        triples.check(str(self.params["input"]), str(self.params["file"]))

    def settings(self) -> dict[str, str]:
        """Return OrientDB's settings: the parameters, overridden by the layout's; times × the dilation."""
        found = {
            "storage.diskCache.pageSize": str(parse_size(self.params["page_size"]) >> 10),
            "storage.diskCache.bufferSize": str(max(4, parse_size(self.params["disk_cache"]) >> 20)),
            **{name: str(value) for name, value in self.release.times.items()},
            **self.release.compression(str(self.params.get("compression", "default"))),
            **self.database,
        }
        if self.dilation != 1:
            found |= {name: str(round(int(found[name]) * self.dilation)) for name in self.release.times}
        return found

    def check_settings(self) -> None:
        """Refuse settings that aren't the database's or not the layout's."""
        check_settings("OrientDB", self.database, self.release.settings, self.release.owned)

    def check(self) -> str:
        """Return the versions of OrientDB and Java.

        Raises:
            MissingError: one of them, or the input, isn't here.
            InputError: a setting in ``database`` is unknown here or not the layout's to set.
        """
        if self._java is None:
            self.check_settings()
            found = software.java()
            self._software()
            self.check_input()
            self._java = found
        return f"OrientDB {self.release.number}, Java {self._java[1]}"

    def lay_out(self) -> None:
        """Put OrientDB where the account can read it, and compile the program."""
        assert self.workdir is not None and self._java is not None
        jars = [jar for directory in self._software() for jar in sorted(directory.glob("*.jar"))]
        lib = software.lend(jars, "lib", self.workdir, self.account)
        compile_program(self.release, self._java[0], lib, self.workdir, self.account, patience=self.patience)

    @property
    def source(self) -> Path:
        """The file of triples: beside the work where no role of the job reads it."""
        return (self.path("source") if "source" in self.ROLES else self.home) / INPUT

    def path(self, role: str) -> Path:
        """Return the directory of ``role``."""
        return self.role_paths()[role]

    def command(self, wal: Path | None) -> list[str | Path]:
        """Return what starts the program with its log in ``wal``; ``None``: beside the data."""
        assert self._java is not None and self.workdir is not None
        heap = parse_size(self.params["heap"])
        direct = (int(self.settings()["storage.diskCache.bufferSize"]) << 20) + _DIRECT_MEMORY
        return [
            self._java[0],
            f"-Xmx{heap}",
            f"-XX:MaxDirectMemorySize={direct}",
            f"-Djava.io.tmpdir={self.home}",
            *([f"-Dstorage.wal.path={wal}"] if wal is not None else []),
            # By default one per core: the files would depend on the machine.
            "-Dclass.minimumClusters=1",
            f"-Dsbtree.maxKeySize={self.longest_key}",
            *(f"-D{name}={value}" for name, value in self.settings().items()),
            "-cp",
            # Ours first: what it holds stands before OrientDB's own.
            f"{self.workdir.path / 'classes'}:{self.workdir.path / 'lib'}/*",
            self.release.program,
        ]

    def talk(self) -> Conversation:
        """Start the program."""
        return self.another(self.path("wal") if "wal" in self.ROLES else None)

    def another(self, wal: Path | None) -> Conversation:
        """Start a program with its log in ``wal``."""
        talk = Conversation(
            self.command(wal),
            what="OrientDB",
            account=self.account,
            home=self.home,
            log=self.home / "orientdb.log",
            patience=self.patience,
        )
        return self.begin(talk)

    @property
    def opened(self) -> Conversation:
        """The running program; there is one after ``start``."""
        return self.running(Conversation)

    def expected_lines(self) -> int:
        """Return about how many triples there will be; no more where all of an input are asked for."""
        return int(self.params["triples"]) or _ALL_TRIPLES

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes each role will hold when all triples are in, before compression."""
        lines = self.expected_lines()
        whole = (8 << 20) + lines * _BYTES_PER_TRIPLE
        return {role: lines * 120 if role == "source" else whole for role in self.roles()}

    def write_input(self, progress: ProgressFn) -> triples.TripleFacts:
        """Write the triples into the role ``source`` and note what is in them."""
        step = "write the input"
        kind, own = str(self.params["input"]), str(self.params["file"])
        self.input = triples.write(
            kind, self.source, int(self.params["triples"]), own, progress=lambda done: progress(step, done)
        )
        size, wanted = str(self.params.get("size", "0")), int(self.params["triples"])
        if size != "0" and self.input.lines < wanted:
            raise InputError(
                f"{self.name}: a database of {size} takes about {wanted} triples, but "
                f"{own or kind} has {self.input.lines}; choose a smaller size, or -p input=debian or a "
                "file of your own"
            )
        # A key is stored with its length and type.
        if self.input.longest + 16 > self.longest_key:
            raise InputError(
                f"{self.name}: a term of {self.input.longest} bytes is too long for the "
                f"index on pages of {self.settings()['storage.diskCache.pageSize']} KiB, "
                f"which takes {self.longest_key}; choose larger pages"
            )
        places.mend(self.source, 0o600, self.account)
        self.write_note(self.note, self.input)
        progress(step, 1.0)
        return self.input

    @property
    def note(self) -> Path:
        """Where what is known of the input is kept: with the data, to come along when that is copied."""
        return self.path("data" if "data" in self.ROLES else self.ROLES[0]) / "input.json"

    def take_over(self) -> None:
        """Read what is known of a database that was copied."""
        self.input = self.read_note(self.note, triples.TripleFacts, "database")

    def make_database(self, talk: Conversation, directory: Path, progress: ProgressFn) -> None:
        """Make an empty database with the classes and the index of the graph."""
        step = "make the database"
        progress(step, 0.0)
        talk.ask("create", directory, seconds=_OPEN_SECONDS)
        talk.ask("schema", seconds=_OPEN_SECONDS)
        progress(step, 1.0)

    def fill(self, talk: Conversation, progress: ProgressFn) -> None:
        """Load the triples into the empty database that ``talk`` has open, 1000 to a transaction."""
        assert self.input is not None
        step = "fill the database"
        talk.ask(
            "triples", self.source, 1000, self.input.lines,
            seconds=self.limit(), on_progress=lambda done: progress(step, done),
        )  # fmt: skip
        talk.ask("synch", seconds=self.limit())
        progress(step, 1.0)

    def open_anew(self) -> Conversation:
        """Close the database and open it again."""
        talk = self.opened
        talk.ask("close", seconds=self.limit())
        talk.ask("open", self.path("data"), seconds=self.limit())
        return talk

    def reopened(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Open the database anew, and return the program's answers to ``count`` and ``sum``."""
        talk = self.open_anew()
        return talk.ask("count", seconds=self.limit()), talk.ask("sum", seconds=self.limit())

    def prove(self, counts: Mapping[str, Any], sums: Mapping[str, Any], where: str = "") -> list[Check]:
        """Return the checks that a database holds exactly the triples of the input.

        Args:
            counts: the program's answer to ``count``.
            sums: its answer to ``sum``.
            where: said behind the name of each, such as " in the restored database".
        """
        wanted = self.input
        assert wanted is not None
        return [
            Check(f"vertices{where}", wanted.terms, counts["vertices"]),
            Check(f"vertices in the index{where}", wanted.terms, sums["indexed"]),
            Check(f"edges{where}", wanted.lines, counts["edges"]),
            Check(f"sum over all edges as triples{where}", wanted.crc_sum, sums["sum"]),
        ]

    def scratch(self, name: str) -> Path:
        """Return an empty directory beside the layout."""
        path = self.home / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        places.mend(path, 0o700, self.account)
        return path

    def limit(self) -> float:
        """Return the seconds that work on all triples may take: 20 a second, on a very slow disk."""
        return 600.0 + (self.input.lines if self.input else 0) / 20

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the program and open the database."""
        progress("open the database", 0.0)
        if not self.effective:
            self.stop()
            found = self.talk().ask("open", self.path("data"), seconds=_OPEN_SECONDS)
            self._must_be_set(found)
        progress("open the database", 1.0)

    def _must_be_set(self, found: Mapping[str, str]) -> None:
        for name, wanted in self.settings().items():
            if found.get(name, "").lower() != wanted.lower():
                raise InputError(
                    f"{self.name}: {name} is {found.get(name)} although {wanted} was asked for; "
                    f"OrientDB {self.release.number} does not take it"
                )
        self.effective = {name: found[name] for name in sorted(self.release.settings) if name in found}

    def synch(self, result: WorkloadResult, progress: ProgressFn) -> None:
        """Write what the database still holds in memory, if asked for; note the seconds it took."""
        if self.params["final_checkpoint"]:
            progress("write what is in memory", 0.0)
            took = self.opened.ask("synch", seconds=self.limit())["seconds"]
            result.details["closing_seconds"] = round(took / self.dilation, 3)

    def details(self) -> dict[str, Any]:
        """Return what is kept with every result: the input, and the settings as OrientDB had them."""
        assert self.input is not None
        kept = {**asdict(self.input), "kind": str(self.params["input"])}
        return {"input": kept, "settings": dict(self.effective)}

    def stop(self) -> None:
        """Close the database and end the program."""
        self.effective = {}
        super().stop()

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of the database's files, in bytes."""
        return {"data": int(self.settings()["storage.diskCache.pageSize"]) << 10}


def latency(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the latencies of the program's answer, in ms."""
    names = ("mean", "p50", "p90", "p99", "p999", "max")
    return {name: round(float(found[f"{name}_ms"]), 4) for name in names if f"{name}_ms" in found}
