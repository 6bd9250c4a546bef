"""The results database: SQLite or PostgreSQL, migrated by version, safe for several processes at once."""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from ztune import output, paths
from ztune.errors import InputError, ZtuneError
from ztune.onhost.look.reading import own_account
from ztune.store.connection import Connection, ReadOnlyError
from ztune.store.postgresql import SCHEMES, PostgresConnection
from ztune.store.records import Run, SeriesRef, Trial, damaged
from ztune.study import Layout, Objective, Study
from ztune.study.layout import parse_layout

_Made = TypeVar("_Made")
_ID_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/i/l
_ORIGIN = 3  # the version that gave a store its id
_RUN_JSON = (
    *("study", "environment", "versions", "objective", "command", "options", "warnings"),
    *("target", "job", "outcome"),
)


def migrations(dialect: str = "sqlite") -> list[tuple[int, str]]:
    """Return (version, SQL) of every migration, in order; 001_init.sql has version 1."""
    folder = resources.files("ztune.store").joinpath("schema")
    if dialect != "sqlite":
        folder = folder.joinpath(dialect)
    found = [(int(f.name[:3]), f.read_text()) for f in folder.iterdir() if f.name.endswith(".sql")]
    return sorted(found)


def now() -> str:
    """Return the time in UTC, ISO 8601 to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def here() -> str:
    """Return who we are: user@host."""
    return f"{own_account()}@{socket.gethostname()}"


def by_others(made_by: str) -> str:
    """Return who made a run, for a sentence: ", made by alice@db1"; "" for ours and where it is not known."""
    return "" if made_by in ("", here()) else f", made by {made_by}"


def _dump(value: object) -> str:
    # Keys keep their order: that of a study's axes decides which layouts come first.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Store:
    """The results. Use ``Store.open()``; close it, or use it as a context manager."""

    def __init__(self, path: Path | str, connection: Connection | PostgresConnection) -> None:
        self.path = path
        """The file, or the URL without its password."""
        self._db = connection
        self._origin_kept = True

    @classmethod
    def open(cls, path: Path | str | None = None) -> Store:
        """Open (and make or migrate) the database at ``path``: a file, or ``postgresql://…``; by default what
        ``$ZTUNE_STORE`` says, else the one in the state directory.

        Where it can't be written, for a full or read-only disk, what is stored can be read all the same.

        Raises:
            InputError: it is of a newer ztune, or damaged, or no database.
            ZtuneError: its disk fails, another process keeps it locked, or its server can't be reached.
            MissingError: the driver for PostgreSQL is not installed.
        """
        path = path or os.environ.get("ZTUNE_STORE") or paths.database()
        if isinstance(path, str) and path.startswith(SCHEMES):
            return cls._shared(path)
        if isinstance(path, str) and "://" in path:
            raise InputError(
                f"the results database {path.partition('://')[0]}://… is of no kind that ztune knows; "
                "write postgresql://USER@HOST/DATABASE, or the path of a file"
            )
        path = Path(path)
        connection = Connection(path)
        store = cls(path, connection)
        try:
            try:
                store._migrate()
            except ReadOnlyError as error:
                connection.read_from_memory(str(error))
                store._origin_kept = store._version() >= _ORIGIN
                store._migrate()
        except BaseException:
            connection.close()
            raise
        return store

    @classmethod
    def _shared(cls, url: str) -> Store:
        connection = PostgresConnection(url)
        store = cls(connection.path, connection)
        try:
            store._migrate()
        except BaseException:
            connection.close()
            raise
        return store

    @property
    def shared(self) -> bool:
        """Whether several people may use it: runs in it may be others', and their files elsewhere."""
        return isinstance(self._db, PostgresConnection)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[Connection | PostgresConnection]:
        if self._db.why_read_only:
            raise ReadOnlyError(self._db.why_read_only)
        with self._transaction() as db:
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[Connection | PostgresConnection]:
        try:
            self._db.begin()
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            # A full disk may have ended the transaction already.
            with suppress(ZtuneError):
                self._db.execute("ROLLBACK")
            raise

    def _version(self) -> int:
        return self._db.version()

    def _migrate(self) -> None:
        known = migrations(self._db.dialect)
        newest = known[-1][0]
        if self._version() > newest:
            raise InputError(
                f"the results database {self.path} has version {self._version()}, this ztune knows "
                f"up to {newest}; use a newer ztune, or another ZTUNE_HOME"
            )
        if isinstance(self._db, PostgresConnection):
            if self._version() < newest:
                with self._transaction() as shared:
                    self._apply(known, shared)
            return
        if self._version() < newest:
            if not self._db.why_read_only:
                self._db.execute("PRAGMA journal_mode = WAL")
            # Off while tables are made anew: dropping `run` would take the trials with it. No effect inside a
            # transaction, so it stands before one.
            self._db.execute("PRAGMA foreign_keys = OFF")
            with self._transaction() as db:
                self._apply(known, db)
                if db.execute("PRAGMA foreign_key_check").fetchone() is not None:
                    raise InputError(
                        f"the results database {self.path} can't be used: it has trials without a run; move "
                        "it away or set ZTUNE_HOME"
                    )
        self._db.execute("PRAGMA foreign_keys = ON")

    def _apply(self, known: Sequence[tuple[int, str]], db: Connection | PostgresConnection) -> None:
        for version, sql in known:
            if version > self._version():  # another process may have been first
                for statement in _statements(sql):
                    db.execute(statement)
                db.set_version(version)

    def origin(self) -> str:
        """Return the random id of this store, 16 hex digits; it says nothing of the machine.

        Raises ReadOnlyError where the store is older than such ids and can't be written.
        """
        if not self._origin_kept:
            raise ReadOnlyError(self._db.why_read_only)
        return str(self._db.execute("SELECT id FROM origin").fetchone()[0])

    # runs

    def create_run(
        self,
        *,
        kind: str,
        study: Study,
        trace_path: Path | None = None,
        trace_sha: str | None = None,
        environment: dict[str, Any],
        versions: dict[str, str],
        seed: int,
        name: str | None = None,
        command: list[str] | None = None,
        options: dict[str, Any] | None = None,
        warnings: list[str] | None = None,
        target: dict[str, Any] | None = None,
        job: dict[str, Any] | None = None,
        source_run: str | None = None,
        outcome: dict[str, Any] | None = None,
    ) -> Run:
        """Add a run of this process with status "running" and return it.

        ``target``, ``job`` and ``source_run`` are for trials on real ZFS: where they run, what the job is,
        and the screening run whose best layouts they try. ``outcome``: what is known before the
        first trial. Raises InputError for a ``trace_path`` that the database can't hold, because it is not
        UTF-8.
        """
        if trace_path is not None and not _is_utf8(str(trace_path)):
            shown = output.line(str(trace_path))
            raise InputError(f"the trace's path {shown} is not UTF-8; rename or move the trace")
        with self._write() as db:
            while True:
                run_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(6))
                if db.execute("SELECT 1 FROM run WHERE id = ?", (run_id,)).fetchone() is None:
                    break
            row: dict[str, object] = {
                "id": run_id,
                "kind": kind,
                "name": name or study.name,
                "created": now(),
                "status": "running",
                "pid": os.getpid(),
                "study": _dump(study.to_json()),
                "trace_path": None if trace_path is None else str(trace_path),
                "trace_sha": trace_sha,
                "environment": _dump(environment),
                "versions": _dump(versions),
                "seed": seed,
                "objective": _dump(study.objective.model_dump(mode="json")),
                "command": _dump(command or []),
                "options": _dump(options or {}),
                "warnings": _dump(warnings or []),
                "target": _dump(target or {}),
                "job": _dump(job or {}),
                "source_run": source_run,
                "outcome": _dump(outcome or {}),
                "made_by": here(),
                "works_on": socket.gethostname(),
                "origin": self.origin(),
            }
            _insert(db, "run", row)
            self._db.claim(run_id)
        return self.run(run_id)

    def finish_run(self, run_id: str, status: str) -> None:
        """Set the status that a run ended with: "done", "interrupted" or "failed"."""
        with self._write() as db:
            db.execute("UPDATE run SET status = ?, pid = NULL WHERE id = ?", (status, run_id))
        self._db.release(run_id)

    def note_run(self, run_id: str, **fields: object) -> Run:
        """Replace ``warnings``, ``target``, ``versions``, ``options``, ``job`` or ``outcome`` of a run."""
        assert fields.keys() <= {"warnings", "target", "versions", "options", "job", "outcome"}
        with self._write() as db:
            for name, value in fields.items():
                db.execute(f"UPDATE run SET {name} = ? WHERE id = ?", (_dump(value), run_id))
        return self.run(run_id)

    def resume_run(self, run_id: str) -> Run:
        """Make a run this process's own again; its running and failed trials become pending.

        What a failed or cut attempt left is kept in the trial's ``attempts``. Raises InputError where
        another live process works on it.
        """
        with self._write() as db:
            run = self.run(run_id)
            if not self._db.claim(run_id):
                raise InputError(self.busy(run))
            db.execute(
                "UPDATE run SET status = 'running', pid = ?, works_on = ? WHERE id = ?",
                (os.getpid(), socket.gethostname(), run_id),
            )
            for row in db.execute(
                "SELECT * FROM trial WHERE run_id = ? AND status IN ('running', 'failed')", (run_id,)
            ).fetchall():
                _again(db, row, row["error"] or "ztune ended before the trial did")
        return self.run(run_id)

    def is_live(self, run: Run) -> bool:
        """Whether some process works on ``run``, here, in another container or on another host."""
        return run.status == "running" and self._db.claimed(run.id)

    def is_own(self, run: Run) -> bool:
        """Whether it is ours, where a store is shared: a run that nobody named is never somebody else's."""
        return not self.shared or run.made_by == here()

    @staticmethod
    def busy(run: Run) -> str:
        """Return the sentence for a run that is worked on already."""
        away = run.works_on not in ("", socket.gethostname())
        where = f" on {run.works_on}" if away else ""
        return f"run {run.id} is being worked on by process {run.pid}{where}; wait for it or stop it"

    def runs(self) -> list[Run]:
        """Return all runs, oldest first."""
        return [_run(row) for row in self._db.execute("SELECT * FROM run ORDER BY seq")]

    def runs_from(self, run_id: str) -> list[Run]:
        """Return the runs that have their layouts from this one, oldest first."""
        found = self._db.execute("SELECT * FROM run WHERE source_run = ? ORDER BY seq", (run_id,))
        return [_run(row) for row in found]

    def run(self, run_id: str = "last") -> Run:
        """Return the run with this id, a unique beginning of one, or "last". Raises InputError without it."""
        if run_id == "last":
            if self.shared:  # "last" is never somebody else's
                rows = self._db.execute(
                    "SELECT * FROM run WHERE made_by = ? ORDER BY seq DESC LIMIT 1", (here(),)
                ).fetchall()
            else:
                rows = self._db.execute("SELECT * FROM run ORDER BY seq DESC LIMIT 1").fetchall()
            if not rows and self.shared:
                raise InputError(f"{here()} has made no runs in {self.path} yet; `ztune runs` lists all")
            if not rows:
                raise InputError(f"there are no runs in {self.path} yet; `ztune screen TRACE` makes one")
        elif not _is_utf8(run_id) or "\0" in run_id:
            rows = []
        else:
            rows = self._db.execute(
                "SELECT * FROM run WHERE substr(id, 1, ?) = ? ORDER BY seq", (len(run_id), run_id)
            ).fetchall()
            exact = [row for row in rows if row["id"] == run_id]
            rows = exact or rows
        if not rows or not run_id:
            raise InputError(f'there is no run "{run_id}"; `ztune runs` lists them')
        if len(rows) > 1:
            raise InputError(
                f'"{run_id}" begins several runs: {", ".join(row["id"] for row in rows)}; write more of it'
            )
        return _run(rows[0])

    def check_deletable(self, run_ids: Collection[str]) -> None:
        """Raise InputError if one of the runs goes on, or if a run that stays has its layouts from one."""
        for run in map(self.run, run_ids):
            if self.is_live(run):
                raise InputError(self.busy(run))
            for other in self.runs_from(run.id):
                if other.id not in run_ids:
                    raise InputError(f"run {other.id} has its layouts from run {run.id}; delete it too")

    def take(self, other: Store, run: Run) -> bool:
        """Copy a run of another store with its trials; False where it is here already.

        It keeps its id, its origin, its maker and its times. Its files (series, recordings) stay where they
        are. Raises InputError where another run has its id, or where it is worked on.
        """
        if other.is_live(run):
            raise InputError(self.busy(run))
        with self._write() as db:
            old = db.execute("SELECT * FROM run WHERE id = ?", (run.id,)).fetchone()
            if old is not None:
                there = _run(old)
                if (there.created, there.made_by, there.seed) == (run.created, run.made_by, run.seed):
                    return False
                raise InputError(
                    f"{self.path} has another run {run.id}, made {there.created}; this one was not copied"
                )
            ((row, *_),) = [other._db.execute("SELECT * FROM run WHERE id = ?", (run.id,)).fetchall()]
            values = {key: row[key] for key in row.keys() if key != "seq"}  # noqa: SIM118
            status = "interrupted" if run.status == "running" else run.status
            maker = run.made_by or None
            _insert(
                db,
                "run",
                {**values, "status": status, "pid": None, "made_by": maker},
            )
            for trial in other._db.execute(
                "SELECT * FROM trial WHERE run_id = ? ORDER BY number", (run.id,)
            ).fetchall():
                _insert(db, "trial", {key: trial[key] for key in trial.keys() if key != "id"})  # noqa: SIM118
        return True

    def delete_runs(self, run_ids: Collection[str]) -> None:
        """Delete runs with their trials, all or none. Raises InputError as ``check_deletable`` does."""
        with self._write() as db:
            self.check_deletable(run_ids)
            for run_id in run_ids:
                db.execute("DELETE FROM run WHERE id = ?", (run_id,))
        for run_id in run_ids:
            # What a killed process left of its lock goes.
            if self._db.claim(run_id):
                self._db.release(run_id)

    # trials

    def add_trial(
        self,
        run_id: str,
        layout: Layout,
        *,
        target: str = "replay",
        is_baseline: bool = False,
        round_: int = 1,
        block: int = 0,
        twin: int = 0,
        recording: tuple[Path, str] | None = None,
    ) -> Trial:
        """Add a pending trial, or return the one that the run already has for the same layout and target.

        ``block``: which repetition, from 1; 0 where layouts are not repeated. ``twin``: 1 for the second of
        two equal layouts of an A/A study. ``recording``: path and sha of the trace that it replays, in a run
        whose layouts have recordings of their own.
        """
        path, sha = recording or (None, None)
        with self._write() as db:
            old = db.execute(
                "SELECT * FROM trial WHERE run_id = ? AND layout_hash = ? AND target = ? AND block = ? "
                "AND twin = ?",
                (run_id, layout.hash, target, block, twin),
            ).fetchone()
            if old is not None:
                return _trial(old)
            number = db.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM trial WHERE run_id = ?", (run_id,)
            ).fetchone()
            key = _insert(
                db,
                "trial",
                {
                    "run_id": run_id,
                    "number": number[0],
                    "round": round_,
                    "block": block,
                    "twin": twin,
                    "layout_name": layout.name,
                    "layout_hash": layout.hash,
                    "layout": _dump(layout.to_json()),
                    "target": target,
                    "status": "pending",
                    "is_baseline": int(is_baseline),
                    "trace_path": None if path is None else str(path),
                    "trace_sha": sha,
                },
            )
        return self._trial(key)

    def start_trial(self, trial_id: int, spec: dict[str, Any]) -> None:
        """Mark a trial as running with this spec."""
        with self._write() as db:
            db.execute(
                "UPDATE trial SET status = 'running', spec = ?, started = ?, error = NULL, result = NULL "
                "WHERE id = ?",
                (_dump(spec), now(), trial_id),
            )

    def finish_trial(
        self,
        trial_id: int,
        *,
        result: dict[str, Any] | None = None,
        error: str | None = None,
        wall_s: float,
        openzfs: str | None = None,
        series: Sequence[SeriesRef] = (),
    ) -> Trial:
        """Store what a trial ended with: a result (status "ok") or an error sentence (status "failed").

        A failed trial may keep the ``result`` that it had until then, beside its error. ``openzfs``: the
        version of the kernel module, for trials that have no engine. ``series``: the files written beside the
        database.
        """
        engine = (result or {}).get("engine", {})
        with self._write() as db:
            db.execute(
                "UPDATE trial SET status = ?, result = ?, error = ?, wall_s = ?, engine_version = ?, "
                "openzfs_version = ?, series = ? WHERE id = ?",
                (
                    "failed" if result is None or error is not None else "ok",
                    None if result is None else _dump(result),
                    None if error is None else output.shown(error),
                    wall_s,
                    engine.get("version"),
                    openzfs or engine.get("openzfs"),
                    _dump([asdict(s) for s in series]),
                    trial_id,
                ),
            )
        return self._trial(trial_id)

    def reset_trial(self, trial_id: int, why: str | None = None) -> Trial:
        """Make a trial pending again: it was stopped before it could end. ``why`` goes into its
        ``attempts``.
        """
        with self._write() as db:
            row = db.execute("SELECT * FROM trial WHERE id = ?", (trial_id,)).fetchone()
            _again(db, row, why)
        return self._trial(trial_id)

    def move_block(self, run_id: str, block: int, host: str, why: str) -> None:
        """Let ``host`` run a block of a run from its beginning: all of its trials become pending there.

        What had ended elsewhere is no result any more; ``why`` goes into its ``attempts``.
        """
        with self._write() as db:
            for row in db.execute(
                "SELECT * FROM trial WHERE run_id = ? AND block = ?", (run_id, block)
            ).fetchall():
                _again(db, row, why)
                condition = "".join(row["target"].partition(", ")[1:])
                db.execute(
                    "UPDATE trial SET target = ?, result = NULL, series = '[]' WHERE id = ?",
                    (host + condition, row["id"]),
                )

    def drop_pending(self, run_id: str, block: int) -> None:
        """Forget the trials of a block that have not run, and won't."""
        with self._write() as db:
            db.execute(
                "DELETE FROM trial WHERE run_id = ? AND block = ? AND status = 'pending'", (run_id, block)
            )

    def trials(self, run_id: str) -> list[Trial]:
        """Return the trials of a run in the order they were made."""
        rows = self._db.execute("SELECT * FROM trial WHERE run_id = ? ORDER BY number", (run_id,))
        return [_trial(row) for row in rows]

    def recordings(self, run_id: str) -> list[str]:
        """Return the paths of the recordings that trials of a run have beside the run's own."""
        rows = self._db.execute(
            "SELECT DISTINCT trace_path FROM trial WHERE run_id = ? AND trace_path IS NOT NULL", (run_id,)
        )
        return [str(path) for (path,) in rows]

    def trial(self, run_id: str, number: int) -> Trial:
        """Return one trial of a run by its number. Raises InputError without it."""
        row = self._db.execute(
            "SELECT * FROM trial WHERE run_id = ? AND number = ?", (run_id, number)
        ).fetchone()
        if row is None:
            raise InputError(f"run {run_id} has no trial {number}; `ztune show {run_id}` lists them")
        return _trial(row)

    def _trial(self, key: int) -> Trial:
        return _trial(self._db.execute("SELECT * FROM trial WHERE id = ?", (key,)).fetchone())


def _again(db: Connection | PostgresConnection, row: Any, why: str | None) -> None:
    """Make the trial of ``row`` pending; note the attempt that ended with ``why``, if that is said."""
    attempts = json.loads(row["attempts"])
    if why is not None and row["started"] is not None:
        attempts.append({"started": row["started"], "error": why})
    db.execute(
        "UPDATE trial SET status = 'pending', started = NULL, error = NULL, wall_s = NULL, attempts = ? "
        "WHERE id = ?",
        (_dump(attempts), row["id"]),
    )


def _statements(sql: str) -> Iterator[str]:
    """Yield the statements of a script one by one: executescript would commit the transaction around it."""
    text = ""
    for line in sql.splitlines():
        text += line + "\n"
        if sqlite3.complete_statement(text):
            yield text
            text = ""


def _insert(
    db: Connection | PostgresConnection, table: Literal["run", "trial"], row: Mapping[str, object]
) -> int:
    """Add a row; return its key."""
    # Table and column names are this module's own, never a user's.
    marks = ", ".join("?" for _ in row)
    key = "seq" if table == "run" else "id"
    sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks}) RETURNING {key}"
    return int(db.execute(sql, tuple(row.values())).fetchone()[0])


def _understood(made: Callable[[Any], _Made]) -> Callable[[Any], _Made]:
    """Have ``made`` raise InputError, which names the row, for one that no ztune has written so."""

    @functools.wraps(made)
    def understood(row: Any) -> _Made:
        try:
            return made(row)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise damaged(made.__name__.strip("_"), row["id"], error) from None

    return understood


@_understood
def _run(row: Any) -> Run:
    values = {key: row[key] for key in row.keys() if key != "seq"}  # noqa: SIM118 - Row iterates values
    values.update({key: json.loads(values[key]) for key in _RUN_JSON})
    values.update(
        {key: values[key] or "" for key in ("trace_path", "trace_sha", "made_by", "works_on", "origin")}
    )
    values["objective"] = Objective.model_validate(values["objective"])
    return Run(**values)


@functools.lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    """Return a trial's layout; a command reads a run's trials again and again, and no layout ever changes."""
    return parse_layout(json.loads(text))


@_understood
def _trial(row: Any) -> Trial:
    values = {key: row[key] for key in row.keys()}  # noqa: SIM118
    values["layout"] = _layout(values["layout"])
    values["spec_json"] = values.pop("spec")
    values["result"] = None if values["result"] is None else json.loads(values["result"])
    values["attempts"] = json.loads(values["attempts"])
    values["series"] = tuple(SeriesRef(**s) for s in json.loads(values["series"]))
    values["is_baseline"] = bool(values["is_baseline"])
    values.update({key: values[key] or "" for key in ("trace_path", "trace_sha")})
    return Trial(**values)
