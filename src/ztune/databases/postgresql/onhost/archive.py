"""The archive of a PostgreSQL's log: each finished segment is copied there, as for point-in-time recovery.

Continuous archiving as PostgreSQL's manual has it: ``archive_command`` runs once for every segment, in order,
and a segment is used again only when it has ended well.
"""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path

from ztune.databases.postgresql.onhost.server import SEGMENT_SIZE, PostgresServer
from ztune.errors import ZtuneError
from ztune.onhost.host.process import Program, last_lines
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import Check

_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.05


class WalArchive:
    """The directory ``folder`` as the archive of ``server``'s log."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._first = 0
        self._last = -1

    def settings(self) -> dict[str, str]:
        """Return what goes into the server's configuration."""
        # `%` begins what PostgreSQL fills in. A clone would cost nothing, so it would measure nothing; a
        # segment must be whole and safe before it has its name, for then the server may write over it.
        to = shlex.quote(str(self.folder)).replace("%", "%%")
        command = (
            f"test ! -f {to}/%f && cp --reflink=never --sparse=never %p {to}/.%f "
            f"&& sync {to}/.%f && mv {to}/.%f {to}/%f"
        )
        return {"archive_mode": "on", "archive_command": command}

    def begin(self) -> None:
        """Note which segment is the first; what was archived before is not counted."""
        self._first = self._position() // SEGMENT_SIZE
        self._last = self._first - 1

    def watch(self) -> None:
        """Raise ``ZtuneError`` if the server has died or can't archive: it would try again for ever."""
        self.server.watch()
        said = last_lines(self.server.log, 40)
        if "archive command failed" in said:
            raise ZtuneError(f"PostgreSQL could not archive its log; its log ends: {said[-800:]}")

    def _position(self) -> int:
        return int(self.server.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"))

    def finish(self) -> float:
        """End the segment that is being written, wait until all are archived, and return the seconds.

        Raises:
            ZtuneError: that took too long, or copying fails.
        """
        began = time.monotonic()
        end = int(self.server.value("SELECT pg_wal_lsn_diff(pg_switch_wal(), '0/0')::bigint"))
        # It is the position behind the last byte of the segment's records, or where a new one begins.
        self._last = (end - 1) // SEGMENT_SIZE
        limit = _WAIT_SECONDS * self.server.patience
        waiting = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'"
        while self.server.value(waiting) != "0":
            self.watch()
            if time.monotonic() - began > limit:
                raise ZtuneError(
                    f"PostgreSQL did not archive its log within {limit:.0f} s; "
                    f"its log ends: {last_lines(self.server.log)}"
                )
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    @property
    def finished(self) -> list[str]:
        """The names of the segments that were finished from ``begin`` to ``finish``, in order."""
        return [_name(number) for number in range(self._first, self._last + 1)]

    @property
    def held(self) -> list[Path]:
        """The segments in the archive since ``begin``, in order; notes on backups are none."""
        first = _name(self._first)
        found = (path for path in self.folder.iterdir() if len(path.name) == len(first))
        return sorted(path for path in found if path.name >= first)

    def checks(self) -> list[Check]:
        """Return the checks: all that were finished are there, whole, with the very bytes of those that the
        server still has.
        """
        held, finished = self.held, self.finished
        still = [path for path in held if (self.server.wal / path.name).exists()]
        same = sum(places.sha256(path) == places.sha256(self.server.wal / path.name) for path in still)
        names = {path.name for path in held}
        lacking = [name for name in finished if name not in names][:3]
        failed = self.server.value("SELECT failed_count FROM pg_stat_archiver")
        return [
            Check("segments in the archive", len(finished), len(held)),
            Check("segments that the archive lacks", "none", ", ".join(lacking) or "none"),
            Check("bytes in the archive", SEGMENT_SIZE * len(finished), sum(p.stat().st_size for p in held)),
            Check("segments like those in the log", len(still), same),
            Check("archive commands that failed", 0, int(failed)),
        ]


def _name(number: int) -> str:
    """Return the name of the log's segment ``number``, on the timeline of a cluster that was never
    restored.
    """
    per_file = (1 << 32) // SEGMENT_SIZE
    return f"{1:08X}{number // per_file:08X}{number % per_file:08X}"


class Bystanders:
    """Clients that work on the server while something else is measured: pgbench at a fixed rate."""

    CLIENTS = 4

    def __init__(self, server: PostgresServer, rate: float, seed: int, log: Path) -> None:
        """Start them.

        Args:
            server: that runs.
            rate: transactions that become due per second, in all.
            seed: decides the rows.
            log: where pgbench says what it has to say.
        """
        log.unlink(missing_ok=True)
        self.log = log
        self._program = Program.start(
            [
                server.binaries["pgbench"],
                *("--no-vacuum", "--protocol=prepared", "--builtin=tpcb-like"),
                *(f"--client={self.CLIENTS}", "--jobs=1", f"--rate={rate:g}"),
                *(f"--random-seed={seed}", "--time=86400"),
            ],
            what="pgbench",
            account=server.account,
            cwd=server.home,
            env=server.client_env,
            log=log,
        )

    def pids(self) -> list[int]:
        """Return nothing: what they do, the server does."""
        return []

    def stop(self) -> None:
        """End them.

        Raises:
            ZtuneError: they had ended already.
        """
        if not self._program.alive():
            raise ZtuneError(
                f"pgbench {self._program.how_it_ended()} while others worked; "
                f"it said: {last_lines(self.log) or '(nothing)'}"
            )
        self._program.stop([(signal.SIGTERM, 10.0)])

    def kill(self) -> None:
        """End them at once."""
        self._program.kill()
