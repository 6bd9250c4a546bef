"""The connection to a results database in PostgreSQL, which several people use at once.

It takes the statements that SQLite takes, and every failure is one sentence. Transactions that write wait for
each other, as in SQLite: they take milliseconds. Who works on a run holds a lock of the server's for as long
as the connection lives, so that any machine knows whether a run goes on, and a killed process or a lost
machine frees its run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.store.connection import ReadOnlyError, Rows

SCHEMES: Final = ("postgresql://", "postgres://")
_WRITERS: Final = 0x7A74756E65  # "ztune": the lock that writers take in turn
_DENIED: Final = frozenset({"42501", "25006"})  # insufficient_privilege, read_only_sql_transaction
_VERSIONED: Final = """
SELECT count(*) FROM pg_catalog.pg_tables
WHERE tablename = 'schema_version' AND schemaname = ANY (current_schemas(false))
"""
_RUN_LOCK: Final = """
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND CAST(classid AS BIGINT) = ? AND CAST(objid AS BIGINT) = ?
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class NamedRow(tuple[Any, ...]):
    """A row as sqlite3's: by position and by name."""

    names: tuple[str, ...]

    def __new__(cls, names: tuple[str, ...], values: Sequence[Any]) -> NamedRow:
        """Return the row with these columns."""
        made = super().__new__(cls, values)
        made.names = names
        return made

    def __getitem__(self, key: Any) -> Any:
        """Return a value by the position or the name of its column."""
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(self.names)


class PostgresConnection:
    """A connection to a database, as ``connection.Connection`` is one to a file."""

    why_read_only = ""
    """Always empty: what can't be written is said when it is tried."""
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        """Connect. ``url``: ``postgresql://[user[:password]@][host][:port]/database``; libpq's variables
        (PGPASSWORD, PGSSLMODE …) and ``~/.pgpass`` count.

        Raises InputError for what is no such URL, MissingError without a driver, ZtuneError where the server
        can't be reached.
        """
        try:
            import sqlalchemy as sa
        except ImportError:
            raise MissingError(_DRIVER) from None
        self._sa = sa
        try:
            parsed = sa.engine.make_url(url).set(drivername="postgresql+psycopg")
        except (sa.exc.ArgumentError, ValueError):
            raise InputError(
                "ZTUNE_STORE is no URL of a database; write postgresql://USER@HOST/DATABASE"
            ) from None
        # libpq takes passwords there, too.
        shown = parsed.difference_update_query([name for name in parsed.query if "password" in name])
        self.path = shown.set(drivername="postgresql").render_as_string(hide_password=True)
        try:
            engine = sa.create_engine(
                parsed,
                poolclass=sa.pool.NullPool,
                isolation_level="AUTOCOMMIT",  # transactions are begun by name, as in SQLite
                # An idle connection holds the lock on a run: nothing between may forget it.
                connect_args={"connect_timeout": 20, "keepalives_idle": 60, "application_name": "ztune"},
            )
        except ImportError:
            raise MissingError(_DRIVER) from None
        try:
            self._db = engine.connect()
        except sa.exc.DBAPIError as error:
            raise ZtuneError(f"the results database {self.path} can't be reached: {_words(error)}") from None

    def close(self) -> None:
        """Close it; locks on runs are free then."""
        self._db.close()

    def execute(self, sql: str, values: Sequence[object] = ()) -> Rows:
        """Run one statement, with ? for values, and return its rows. Raises ZtuneError, ReadOnlyError."""
        parts = sql.split("?")
        assert len(parts) == len(values) + 1, sql
        named = {f"v{i}": value for i, value in enumerate(values)}
        text = "".join(part + f":v{i}" for i, part in enumerate(parts[:-1])) + parts[-1]
        try:
            done = self._db.execute(self._sa.text(text), named)
            if not done.returns_rows:
                return Rows([])
            names = tuple(done.keys())
            return Rows([NamedRow(names, row) for row in done.fetchall()])
        except self._sa.exc.IntegrityError:
            raise  # a fault of ours
        except self._sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) in _DENIED:
                raise ReadOnlyError(
                    f"the results database {self.path} can't be written: {_words(error)}; "
                    "what is stored can still be read; ask its owner for the right"
                ) from None
            raise ZtuneError(f"the results database {self.path} fails: {_words(error)}") from None

    def begin(self) -> None:
        """Begin a transaction that writes: one at a time."""
        self.execute("BEGIN")
        self.execute("SELECT pg_advisory_xact_lock(?)", (_WRITERS,))

    def version(self) -> int:
        """Return the version of the schema; 0 where there is none yet."""
        # By a query, not to_regclass(): that remembers, within a transaction, what was not there before it.
        there = self.execute(_VERSIONED).fetchone()[0]
        return int(self.execute("SELECT version FROM schema_version").fetchone()[0]) if there else 0

    def set_version(self, version: int) -> None:
        """Note the version of the schema."""
        self.execute("UPDATE schema_version SET version = ?", (version,))

    def claim(self, run_id: str) -> bool:
        """Take the lock on a run, which this connection holds until ``release`` or its end; False: another
        one has it.
        """
        return bool(self.execute("SELECT pg_try_advisory_lock(?)", (_lock(run_id),)).fetchone()[0])

    def release(self, run_id: str) -> None:
        """Give the lock on a run back, as often as it was taken."""
        if self.claimed(run_id) and self.claim(run_id):
            while self.execute("SELECT pg_advisory_unlock(?)", (_lock(run_id),)).fetchone()[0]:
                pass

    def claimed(self, run_id: str) -> bool:
        """Whether somebody, on any machine, has the lock on a run."""
        key = _lock(run_id) & (1 << 64) - 1
        return self.execute(_RUN_LOCK, (key >> 32, key & 0xFFFFFFFF)).fetchone() is not None


_DRIVER: Final = (
    "a store in PostgreSQL takes SQLAlchemy and psycopg, which are not installed; "
    "pip install 'ztune[postgresql]'"
)


def _lock(run_id: str) -> int:
    """Return the number of a run's lock: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(f"run {run_id}".encode()).digest()[:8], "big", signed=True)


def _words(error: Exception) -> str:
    """Return what the server or its driver said, on a line; SQLAlchemy's own additions left out."""
    said = str(getattr(error, "orig", None) or error)
    return " ".join(said.split())[:300] or type(error).__name__
