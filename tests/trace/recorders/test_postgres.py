"""The same pgbench job on a PostgreSQL of our own, seen by both recorders and by PostgreSQL itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import Seen, reason, shell

from ztune.trace.record import Recording
from ztune.trace.schema import Op

TRANSACTIONS = 150


class Server:
    """A private cluster, run by the user postgres if we are root."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.bin = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        if os.getuid() != 0:
            self._as = []
        else:
            shutil.chown(folder, "postgres", "postgres")
        options = f"-k {folder} -c listen_addresses= -c autovacuum=off -c max_wal_size=4GB -c wal_recycle=off"
        self.run("initdb", "-D", str(self.data), "-A", "trust", "-U", "ztune", "--no-sync")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-o", options, "-l", f"{folder}/log", "start")
        self.run("createdb", *self.where, "bench")
        self.run("pgbench", *self.where, "-i", "-q", "-s", "1", "bench")

    @property
    def where(self) -> list[str]:
        return ["-h", str(self.folder), "-U", "ztune"]

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def run(self, program: str, *arguments: str) -> str:
        return shell(*self._as, str(self.bin / program), *arguments, cwd=self.folder)

    def ask(self, query: str) -> str:
        return self.run("psql", *self.where, "-XAtc", query, "bench").strip()

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("PostgreSQL is not installed")
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ztune-recording-", dir="/var/tmp"))
    folder.chmod(0o755)
    server = None
    try:
        try:
            server = Server(folder)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error.cmd}: {error.stderr}")
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder)


def job(server: Server, recorder: str, out: Path) -> tuple[Seen, int, int]:
    """Record the job; return what was seen, and WAL syncs and writes as PostgreSQL counts them."""
    server.ask("CHECKPOINT")
    server.ask("SELECT pg_stat_reset_shared('wal')")
    with Recording(out, pids=[server.postmaster], recorder=recorder) as recording:
        arguments = ["-n", "-c", "1", "-t", str(TRANSACTIONS), "--random-seed=5", "-N", "bench"]
        server.run("pgbench", *server.where, *arguments)
    syncs, writes = server.ask("SELECT wal_sync, wal_write FROM pg_stat_wal").split("|")
    return Seen(recording.trace), int(syncs), int(writes)


def by_role(seen: Seen) -> Counter[tuple[str, str]]:
    roles = [file.role or "none" for file in seen.files]
    return Counter((roles[e["file"]], Op(e["op"]).name) for e in seen.events if e["file"] >= 0)


def test_both_recorders_see_the_syncs_that_postgresql_counts(server: Server, tmp_path: Path) -> None:
    counts = {}
    for name in ("ebpf", "strace"):
        if reason(name):
            continue
        seen, syncs, writes = job(server, name, tmp_path / f"{name}.trace")
        assert seen.trace.manifest.complete
        assert seen.trace.manifest.recorder.name == name
        counts[name] = by_role(seen)
        wal_writes = [e for e in seen.events if e["op"] == Op.WRITE and seen.files[e["file"]].role == "wal"]
        # One commit, one sync, by one client; the WAL writer or a hint bit may add a few. What PostgreSQL
        # counts after the recording ended (the query itself writes nothing) may differ by its last report.
        assert TRANSACTIONS <= counts[name]["wal", "FDATASYNC"] <= TRANSACTIONS + 15
        assert abs(counts[name]["wal", "FDATASYNC"] - syncs) <= 2
        assert abs(len(wal_writes) - writes) <= 2
        assert all(e["size"] % 8192 == 0 and e["offset"] % 8192 == 0 for e in wal_writes)
        assert all(seen.files[e["file"]].path.startswith(str(server.data)) for e in wal_writes)
        # PostgreSQL's own shared memory is no mapping of a data file.
        assert not [w for w in seen.trace.manifest.warnings if w.code == "shared-mmap"]
        data = [f for f in seen.files if f.role == "data" and f.size_end > 0]
        assert data and seen.trace.manifest.compressibility
    if len(counts) == 2:
        for op in ("FDATASYNC", "WRITE"):
            assert abs(counts["ebpf"]["wal", op] - counts["strace"]["wal", op]) <= 15
