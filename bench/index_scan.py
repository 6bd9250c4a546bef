"""How near a replay and its samples come to an analytical query: rows by an index, in the order of the table.

    python bench/index_scan.py                       as root; a quarter of an hour
    python bench/index_scan.py --rows 10000000 --profile ssd-sata
    python bench/index_scan.py --trace FILE.trace    replays alone, of a recording that this made, in the
                                                     traces of ZTUNE_HOME

A table of PostgreSQL with a column of random numbers, indexed, of which two queries read a thousandth of a
range each by a bitmap scan: pages in the order of the table, all of them asked for ahead (`posix_fadvise`),
with little left out between. The server is recorded from its start, on a disk's file system whose cache was
dropped. Replayed are records of 8K and 128K: with all loaded, with what is touched, and samples; and the same
database runs the same queries on a mount. Disk reads, bytes, the seconds that the disk is busy, and those for
which the queries wait.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import started
from sampling import result_of

from ztune import paths
from ztune.errors import ZtuneError
from ztune.places import engine as engines
from ztune.places.engine import Engine
from ztune.places.replay import Replay
from ztune.study.layout import with_settings
from ztune.study.loader import load_study
from ztune.trace.rate import REGION, Rate
from ztune.trace.reader import Trace

ZTUNE = Path(sys.executable).with_name("ztune")
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
USER = "postgres"
PORT = "5998"
SECONDS = 30  # of the recording
RECORDS = ("8K", "128K")
SAMPLES = ((1, 0, "all"), (1, 0, "touched"), (2, 0, ""), (4, 0, ""), (4, 1, ""), (8, 0, ""))
STUDY = """
name = "index-scan"
workload = "postgres-oltp"
[layout]
arc = "512M"
[[layout.pool]]
name = "tank"
[[layout.pool.vdev]]
class = "data"
kind = "stripe"
disks = 1
profile = "{profile}"
[[layout.dataset]]
name = "tank/db"
roles = ["data", "index", "temp", "wal"]
compression = "lz4"
recordsize = "8K"
[[layouts]]
name = "128K"
set = {{ "data.recordsize" = "128K" }}
"""
QUERY = "select sum(length(pad)) from t where k between {0} and {1}"
"""Asked twice: of the random numbers up to a million, two thousand that follow each other."""


AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


def quietly(*words: str | Path) -> None:
    """Run a command that is to succeed, without what it prints; where it says why not."""
    done = started.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise ZtuneError(f"{words[0]}: {done.stderr.strip()}")


def as_user(*words: str | Path) -> None:
    """Run a command as the database's user. What stays running keeps no pipe of ours."""
    started.run(list(map(str, [*AS_USER, *words])), check=True, stdout=subprocess.DEVNULL)


class Database:
    """A PostgreSQL of our own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "pg"
        folder.mkdir(mode=0o711)
        shutil.chown(folder, USER, USER)

    def make(self, rows: int) -> None:
        """Create it, with its table."""
        as_user(BINARIES[-1] / "initdb", "-D", self.data, "-A", "trust")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(
                f"port = {PORT}\nlisten_addresses = ''\nunix_socket_directories = '{self.folder}'\n"
                "shared_buffers = 64MB\nmax_parallel_workers_per_gather = 0\neffective_io_concurrency = 32\n"
            )
        with self.running(self.data):
            self.ask(
                f"create table t as select i, (random() * 1000000)::int as k, repeat(md5(i::text), 4) as pad "
                f"from generate_series(1, {rows}) i",
                "create index on t (k)",
                "vacuum analyze t",
                "checkpoint",
            )

    @contextlib.contextmanager
    def running(self, data: Path) -> Iterator[None]:
        """Have it run meanwhile, with its files in ``data``."""
        control: list[str | Path] = [BINARIES[-1] / "pg_ctl", "-D", data, "-w"]
        as_user(*control, "-l", self.folder / "log", "start")
        try:
            yield
        finally:
            as_user(*control, "stop")

    def ask(self, *statements: str) -> float:
        """Return the seconds that statements took."""
        words = [word for one in statements for word in ("-c", one)]
        began = time.monotonic()
        quietly(
            "psql", "-U", USER, "-h", self.folder, "-p", PORT, "-qtXv", "ON_ERROR_STOP=1", *words, "postgres"
        )
        return time.monotonic() - began

    def query(self) -> float:
        """Return the seconds that the two queries took together, each by a bitmap scan."""
        plan = ("set enable_seqscan = off", "set enable_indexscan = off")
        return sum(self.ask(*plan, QUERY.format(first, first + 2000)) for first in (1000, 501_000))

    def record(self, trace: Path) -> None:
        """Record the server from its start, with cold caches, while it is asked."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        record = [ZTUNE, "record", "--path", self.data, "--seconds", str(SECONDS), "--out", trace, "--"]
        server = [*AS_USER, BINARIES[-1] / "postgres", "-D", self.data]
        recorder = subprocess.Popen(list(map(str, [*record, *server])), stderr=subprocess.DEVNULL)
        try:
            while not (self.folder / f".s.PGSQL.{PORT}").exists() and recorder.poll() is None:
                time.sleep(0.2)
            time.sleep(3)
            self.query()
        finally:
            recorder.wait()


def mounted(database: Database, study: Path, layout: str, folder: Path) -> dict[str, float]:
    """Return what the disk did on a mount of ``layout``, and how long the queries took there."""
    where = folder / "mount"
    mount: list[str | Path] = [ZTUNE, "mount", f"{study}:{layout}", where]
    data = where / "db" / "pg"

    def stats() -> dict[str, Any]:
        words = [str(ZTUNE), "mount", "--stats", str(where), "--json"]
        found: dict[str, Any] = json.loads(started.run(words, check=True, capture_output=True).stdout)
        disk: dict[str, Any] = found["disks"][0]
        return disk

    quietly(*mount, "--disks", "instant")
    try:
        shutil.chown(where / "db", USER, USER)
        quietly("cp", "-a", database.data, data)
        quietly(ZTUNE, "umount", where)
        quietly(*mount)
        before = stats()
        with database.running(data):
            time.sleep(3)
            took = database.query()
            after = stats()
    finally:
        quietly(ZTUNE, "umount", "--destroy", where)
    return {key: after[key] - before[key] for key in ("reads", "read_bytes", "busy_s")} | {"waits": took}


def replayed(trace: Trace, engine: Engine, study: Path, size: str, rate: Rate, load: str) -> dict[str, float]:
    """Return what the modelled disk did, and how long calls waited."""
    asked = load_study(study)
    target = Replay(trace, engine, rate=rate, load=load, closed=False)
    spec = target.spec(asked, with_settings(asked.layout, {"data.recordsize": size}), 1)
    measure = result_of(target, spec, f"{size} {rate} {load}")["measure"]
    latency = measure["model"]["read_latency_ms"]
    return {
        "reads": measure["physical"]["reads"],
        "read_bytes": measure["physical"]["read_bytes"],
        "busy_s": measure["model"]["busy_s_max"],
        "waits": latency["mean"] * latency["count"] / 1000,
    }


def row(size: str, what: str, found: dict[str, float]) -> str:
    """Return a line of the table."""
    values = f"{found['reads']:,.0f} | {found['read_bytes'] / 1e6:.0f}"
    return f"| {size} | {what} | {values} | {found['busy_s']:.2f} | {found['waits']:.2f} |"


def main() -> None:
    """Load, record, replay, mount, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the table, 180 bytes each")
    parser.add_argument("--profile", default="hdd-7200", help="of the disk")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/ztune-index-scan"), help="to work in")
    parser.add_argument("--trace", type=Path, help="a recording of it that there is")
    asked = parser.parse_args()
    if not re.fullmatch(r"[a-z0-9-]+", asked.profile):
        parser.error(f"--profile {asked.profile}: a name of `ztune list disks`")
    engine, kept = engines.check(), paths.traces() / "index-scan.trace"
    asked.folder.mkdir()
    try:
        study = asked.folder / "index-scan.toml"
        study.write_text(STUDY.format(profile=asked.profile))
        database = Database(asked.folder / "db")
        if asked.trace is None:
            database.make(asked.rows)
            shutil.rmtree(kept, ignore_errors=True)
            database.record(kept)
        trace = Trace.open(asked.trace or kept)
        print(
            "| records | | reads | MB read | busy, s | waited for, s |\n| --- | --- | --- | --- | --- | --- |"
        )
        for size, layout in zip(RECORDS, ("base", "128K"), strict=True):
            if asked.trace is None:
                print(row(size, "mount", mounted(database, study, layout, asked.folder)), flush=True)
            for of, part, load in SAMPLES:
                what = f"sample 1/{of}" if of > 1 else f"{load} loaded"
                found = replayed(trace, engine, study, size, Rate(of, part, REGION), load)
                print(row(size, what, found), flush=True)
    finally:
        shutil.rmtree(asked.folder)


if __name__ == "__main__":
    started.script(main)
