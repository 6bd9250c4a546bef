"""What ``ztune observe`` says of live databases, held against their own counters and ``strace -c``.

    sudo .venv/bin/python bench/observe_databases.py [mariadb] [rocksdb] [derby] [postgresql] [fio]
        [--seconds S] [--folder DIR] [--out DIR] [--account NAME] [--scale N] [--passes strace]

Starts each database on files below --folder, as --account, an ordinary user. Observes it twice with the
command that a user runs, ``ztune observe --pid``: once under ``strace -f -c``, which sees the same processes
in the same seconds and makes them slow, and once at full speed. The load begins after both have begun and
ends before they end, so that edges hardly matter. Prints one JSON object: for each database and pass the
calls by name as strace and ztune counted them, the database's counters beside the sums of ztune's groups,
roles, findings and limits. Where --folder is on ZFS, also the requests to its disks as ``zpool iostat -r``
counted them. --out keeps the observations (JSON) and reports (HTML). What is not installed is left out and
named.

    ztune lab run -- sh -c 'truncate -s 2G /tmp/d; zpool create tank /tmp/d;
        cd /host/SOURCES && PYTHONPATH=src:/host/PACKAGES python3 bench/observe_databases.py postgresql fio
        --folder /tank --scale 1'

Needs root (eBPF), and: mariadb-server; rocksdb-tools; a JDK with libderby-java; PostgreSQL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import started

from ztune.databases.postgresql.onhost.pgbench import parse_output
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.onhost.probes import procfs

DERBY = Path("/usr/share/java/derby.jar")
# Calls on files; others (futex, poll) are not what the two are compared for.
FILE_CALLS = re.compile(
    r"p?(read|write)(64|v|v2)?|pread64|pwrite64|f(data)?sync|sync_file_range|io_uring_enter|io_submit"
    r"|fallocate|ftruncate|open(at)?|unlink(at)?|rename(at2?)?|lseek|mmap|copy_file_range"
)
BEGIN_S, QUIET_S, END_S = 120.0, 2.0, 300.0

Totals = dict[str, int]


@dataclass
class Database:
    """One that runs and can be loaded."""

    pid: int
    load: Callable[[float], Totals]
    """Work for so many seconds, wait until it is quiet, and return its own counters' growth."""
    beside: Callable[[dict[str, Any]], Totals]
    """From an observation what each of the counters is to be compared with."""


class Missing(Exception):
    """What a database needs is not installed."""


def group_sum(seen: dict[str, Any], pattern: str, part: str, what: str) -> int:
    """Sum over the files whose path matches: ``part`` reads, writes or syncs, ``what`` calls, bytes …"""
    return sum(
        group[part].get(what) or 0
        for group in seen["groups"]
        if group["kind"] == "file" and re.search(pattern, group["name"]) and part in group
    )


def need(program: str, package: str) -> str:
    path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        raise Missing(f"{program} is not installed (package {package})")
    return path


def words(order: random.Random) -> str:
    """Text that compresses about as a table's does."""
    known = ("paid", "open", "late", "branch", "account", "review", "standing", "order", "closed")
    return " ".join(f"{order.choice(known)} {order.randrange(100_000)}" for _ in range(12))


# --- MariaDB


@contextlib.contextmanager
def mariadb(folder: Path, account: pwd.struct_passwd, scale: int) -> Iterator[Database]:
    """A server with default settings but for a buffer pool smaller than the table."""
    server, client = need("mariadbd", "mariadb-server"), need("mariadb", "mariadb-client")
    data, socket = folder / "data", folder / "s"
    as_account: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    subprocess.run(
        [
            *(need("mariadb-install-db", "mariadb-server"), "--no-defaults", f"--datadir={data}"),
            *(f"--auth-root-socket-user={account.pw_name}", "--skip-test-db"),
        ],
        **as_account, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/usr",
    )  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(server, "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking"),
                *(f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=32M", "--log-bin", "--server-id=1"),
            ],
            **as_account, stdout=log, stderr=log, cwd="/",
        )  # fmt: skip
    try:

        def sql(text: str) -> str:
            done = subprocess.run(
                [client, "--no-defaults", f"--socket={socket}", f"--user={account.pw_name}", "-BN"],
                **as_account, input=text, text=True, capture_output=True, cwd="/",
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(done.stderr)
            return str(done.stdout)

        deadline = time.monotonic() + BEGIN_S
        while True:
            try:
                sql("SELECT 1")
                break
            except RuntimeError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.2)
        order = random.Random(1)
        rows = 20_000 * scale
        sql("CREATE DATABASE b; CREATE TABLE b.t (id INT PRIMARY KEY, k INT, c VARCHAR(200), KEY (k))")
        for first in range(0, rows, 5000):
            values = ",".join(
                f"({i},{order.randrange(rows)},'{words(order)}')" for i in range(first, first + 5000)
            )
            sql(f"INSERT INTO b.t VALUES {values}")

        def counters() -> Totals:
            said = sql("FLUSH LOCAL STATUS; SHOW GLOBAL STATUS")
            pairs = dict(line.split("\t", 1) for line in said.splitlines() if "\t" in line)
            names = (
                *("data_reads", "data_read", "data_writes", "data_written", "data_fsyncs"),
                *("os_log_written", "log_writes", "pages_written", "dblwr_writes", "dblwr_pages_written"),
            )
            found = {f"Innodb_{name}": int(pairs[f"Innodb_{name}"]) for name in names}
            return found | {name: int(pairs[name]) for name in ("Com_update", "Com_select")}

        def load(seconds: float) -> Totals:
            settle(counters)
            before = counters()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                text = []
                for _ in range(50):
                    key, other = order.randrange(rows), order.randrange(rows)
                    text.append(f"SELECT c FROM b.t WHERE id={other};")
                    text.append(f"UPDATE b.t SET k=k+1, c='{words(order)}' WHERE id={key};")
                sql("\n".join(text))
            settle(counters)
            return {name: n - before[name] for name, n in counters().items()}

        # Since 10.8 the log is in none of Innodb_data_writes and _written, but its syncs are in _fsyncs.
        redo = r"/ib_logfile\d+$"
        pages = r"\.ibd$|/ibdata\d+$|/ibtmp\d+$|/undo\d+$"

        def beside(seen: dict[str, Any]) -> Totals:
            return {
                "Innodb_data_reads": group_sum(seen, pages, "reads", "calls"),
                "Innodb_data_read": group_sum(seen, pages, "reads", "bytes"),
                "Innodb_data_writes": group_sum(seen, pages, "writes", "calls"),
                "Innodb_data_written": group_sum(seen, pages, "writes", "bytes"),
                "Innodb_data_fsyncs": group_sum(seen, f"{pages}|{redo}", "syncs", "calls"),
                "Innodb_log_writes": group_sum(seen, redo, "writes", "calls"),
                "Innodb_os_log_written": group_sum(seen, redo, "writes", "bytes"),
            }

        settle(counters)
        yield Database(process.pid, load, beside)
    finally:
        started.end(process)


def settle(counters: Callable[[], Totals]) -> None:
    """Wait until two readings of the counters of files are alike, two minutes at most."""
    last: Totals = {}
    for _ in range(60):
        now = {name: n for name, n in counters().items() if not name.startswith("Com_")}
        if now == last:
            return
        last = now
        time.sleep(QUIET_S)


# --- RocksDB


@contextlib.contextmanager
def rocksdb(folder: Path, account: pwd.struct_passwd, scale: int) -> Iterator[Database]:
    """db_bench, started by a shell that outlives it: the shell and what descends from it is observed."""
    bench = need("db_bench", "rocksdb-tools")
    place, log = folder / "db", folder / "db_bench.log"
    # Each line is the arguments of a run; a line after it says that it is over.
    process = subprocess.Popen(
        ["sh", "-c", f'while read -r line; do {bench} --db={place} $line >>{log} 2>&1; echo "$?"; done'],
        user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stdin, stdout = pipes(process)
    common = f"--num={30_000 * scale} --value_size=400 --compression_type=none --write_buffer_size=8388608"
    common += " --max_bytes_for_level_base=33554432 --cache_size=8388608 --statistics --seed=1"
    shape = "--benchmarks=readrandomwriterandom --use_existing_db=1 --readwritepercent=66 --sync=1"

    def told(line: str) -> str:
        before = log.stat().st_size if log.exists() else 0
        stdin.write(line + "\n")
        stdin.flush()
        if (answer := stdout.readline().strip()) != "0":
            raise RuntimeError(f"db_bench ended with {answer}: {log.read_text()[-2000:]}")
        return log.read_text()[before:]

    def load(seconds: float) -> Totals:
        text = told(f"{common} {shape} --duration={seconds:.0f}")
        found = dict(re.findall(r"^(rocksdb\.[\w.]+) COUNT : (\d+)$", text, re.M))
        tables = sum(int(found[f"rocksdb.{how}.write.bytes"]) for how in ("flush", "compact"))
        return {name: int(found[f"rocksdb.{name}"]) for name in ("wal.synced", "wal.bytes")} | {
            "sst.write.bytes": tables
        }

    def beside(seen: dict[str, Any]) -> Totals:
        wal, sst = r"/\d{6}\.log$", r"\.sst$"
        return {
            "wal.synced": group_sum(seen, wal, "syncs", "calls"),
            "wal.bytes": group_sum(seen, wal, "writes", "bytes"),
            "sst.write.bytes": group_sum(seen, sst, "writes", "bytes"),
        }

    try:
        told(f"{common} --benchmarks=fillrandom")
        yield Database(process.pid, load, beside)
    finally:
        stdin.close()
        started.end(process)


def pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


# --- a database on the JVM


@contextlib.contextmanager
def derby(folder: Path, account: pwd.struct_passwd, scale: int) -> Iterator[Database]:
    """Apache Derby, embedded in bench/DerbyLoad.java."""
    java, javac = need("java", "default-jdk-headless"), need("javac", "default-jdk-headless")
    if not DERBY.exists():
        raise Missing(f"{DERBY} is not there (package libderby-java)")
    subprocess.run(
        [javac, "-d", str(folder), str(Path(__file__).with_name("DerbyLoad.java"))], check=True, cwd="/"
    )
    process = subprocess.Popen(
        [
            *(java, "-Xmx256m", f"-Dderby.system.home={folder}", "-cp", f"{folder}:{DERBY}"),
            *("DerbyLoad", str(folder / "shop")),
        ],
        user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stdin, stdout = pipes(process)
    try:
        if stdout.readline() != "ready\n":
            raise RuntimeError("Derby did not start")

        def load(seconds: float) -> Totals:
            time.sleep(QUIET_S)
            stdin.write(f"{seconds}\n")
            stdin.flush()
            commits = int(stdout.readline())
            time.sleep(QUIET_S)
            return {"commits": commits}

        def beside(seen: dict[str, Any]) -> Totals:
            return {
                "commits": group_sum(seen, r"/log/log\d+\.dat$", "writes", "synced")
                or group_sum(seen, r"/log/log\d+\.dat$", "syncs", "calls")
            }

        yield Database(process.pid, load, beside)
    finally:
        stdin.close()
        started.end(process)


# --- PostgreSQL


@contextlib.contextmanager
def postgresql(folder: Path, account: pwd.struct_passwd, scale: int) -> Iterator[Database]:
    """pgbench, TPC-B-like, on a server of the workload postgres-oltp; it chooses its account itself."""
    parameters = {"scale": scale, "clients": 4, "max_wal_size": "4G"}
    with running(PostgresOltp(parameters), parent=folder) as workload:
        server = workload.job.server

        def ask(query: str) -> list[int]:
            said = server.client("psql", "-XAtq", "-F", " ", "-c", query)
            return [int(word) for word in said.split()]

        def counters() -> Totals:
            # The WAL's counters are sent with the statistics of each process, a second late at most.
            wal = ask("SELECT wal_write, wal_sync FROM pg_stat_wal")
            writer = ask("SELECT buffers_checkpoint + buffers_clean + buffers_backend FROM pg_stat_bgwriter")
            return {"wal_write": wal[0], "wal_sync": wal[1], "buffers written": writer[0]}

        def load(seconds: float) -> Totals:
            server.client("psql", "-XAtq", "-c", "CHECKPOINT")
            settle(counters)
            before = counters()
            done = parse_output(
                server.client(
                    "pgbench", "--no-vacuum", "--client=4", f"--time={seconds:.0f}", "--random-seed=1"
                )
            )
            settle(counters)
            found = {name: n - before[name] for name, n in counters().items()}
            return found | {"transactions": done.transactions}

        def beside(seen: dict[str, Any]) -> Totals:
            wal, data = r"/[0-9A-F]{24}$", r"/(base|global)/.*\d+(_\w+)?$"
            return {
                "wal_write": group_sum(seen, wal, "writes", "calls"),
                "wal_sync": group_sum(seen, wal, "syncs", "calls"),
                "buffers written": group_sum(seen, data, "writes", "bytes") // 8192,
            }

        server.client("psql", "-XAtq", "-c", "CHECKPOINT")
        settle(counters)
        yield Database(server.pid, load, beside)


# --- fio


@contextlib.contextmanager
def fio(folder: Path, account: pwd.struct_passwd, scale: int) -> Iterator[Database]:
    """fio by the names of a database's files: pages here and there, and a log that is synced."""
    program = need("fio", "fio")
    data, wal = folder / "base" / "5" / "16384", folder / "pg_wal" / f"{1:024X}"
    for file in (data, wal):
        file.parent.mkdir(parents=True)
        file.write_bytes(os.urandom(1 << 20) * (5 * scale))
        os.chown(file, account.pw_uid, account.pw_gid)
    process = subprocess.Popen(
        ["sh", "-c", 'while read -r line; do fio $line >/dev/null 2>&1; echo "$?"; done'],
        user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stdin, stdout = pipes(process)
    told = folder / "told"
    told.mkdir()
    os.chown(told, account.pw_uid, account.pw_gid)

    def load(seconds: float) -> Totals:
        words = (
            f"--output-format=json --output={told}/json --runtime={seconds:.0f} --time_based --ioengine=psync"
        )
        words += f" --name=data --filename={data} --rw=randrw --bs=8k --fdatasync=50"
        words += f" --name=wal --filename={wal} --rw=write --bs=8k --fdatasync=1"
        stdin.write(words + "\n")
        stdin.flush()
        if (answer := stdout.readline().strip()) != "0":
            raise RuntimeError(f"{program} ended with {answer}")
        text = (told / "json").read_text()
        found: Totals = {}
        for job in json.loads(text[text.index("{") :])["jobs"]:
            for how in ("read", "write"):
                found[f"{job['jobname']} {how}s"] = job[how]["total_ios"]
                found[f"{job['jobname']} {how} bytes"] = job[how]["io_bytes"]
            found[f"{job['jobname']} syncs"] = job["sync"]["lat_ns"]["N"]
        return found

    def beside(seen: dict[str, Any]) -> Totals:
        found: Totals = {}
        for name, file in (("data", data), ("wal", wal)):
            for how in ("read", "write"):
                found[f"{name} {how}s"] = group_sum(seen, f"^{file}$", f"{how}s", "calls")
                found[f"{name} {how} bytes"] = group_sum(seen, f"^{file}$", f"{how}s", "bytes")
            found[f"{name} syncs"] = group_sum(seen, f"^{file}$", "syncs", "calls")
        return found

    try:
        yield Database(process.pid, load, beside)
    finally:
        stdin.close()
        started.end(process)


# --- observing


# Columns of `zpool iostat -r`, each as single and as aggregated requests.
QUEUES = ("sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild")


def pool_of(folder: Path) -> str | None:
    """The pool that a folder is on, None elsewhere."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["zfs", "list", "-Ho", "name", str(folder)], capture_output=True, text=True)
        return done.stdout.strip().partition("/")[0] or None
    return None


def requests(pool: str) -> Totals:
    """Requests to a pool's disks since it was imported, of all sizes, from ``zpool iostat -r``."""
    subprocess.run(["zpool", "sync", pool], check=True)
    said = subprocess.run(
        ["zpool", "iostat", "-Hpr", pool], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = [[int(word) for word in line.split()[1:]] for line in said if line[:1].isdigit()]
    names = [f"{queue}_{how}" for queue in QUEUES for how in ("ind", "agg")]
    return {
        name: sum(row[i] for row in rows) for i, name in enumerate(names) if all(i < len(r) for r in rows)
    }


def observe(
    database: Database, seconds: float, strace: bool, out: Path, name: str, pool: str | None
) -> dict[str, Any]:
    tracer: subprocess.Popen[bytes] | None = None
    table = out / f"{name}-strace.txt"
    if strace:
        pids = procfs.descendants([database.pid])
        tracer = subprocess.Popen(
            [need("strace", "strace"), "-f", "-qq", "-c", "-o", str(table)]
            + [f"--attach={pid}" for pid in pids],
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: all(traced(pid) for pid in pids))
    if pool is not None:
        requests(pool)  # so that what the database wrote before is on the disks
    kept = out / f"{name}.json"
    command = [sys.executable, "-c", "from ztune.cli.main import main; main()", "observe"]
    with (out / f"{name}.all.json").open("wb") as whole:
        watching = subprocess.Popen(
            [
                *(*command, "--pid", str(database.pid), "--calls", "--seconds", "600", "--json"),
                *("--save", str(kept), "--out", str(out / f"{name}.html")),
            ],
            stdout=whole, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    try:
        assert watching.stderr is not None
        said = watching.stderr.readline()
        if "observing" not in said:
            raise RuntimeError(said + watching.stderr.read())
        before = requests(pool) if pool else {}
        counters = database.load(seconds)
        after = requests(pool) if pool else {}
        watching.send_signal(signal.SIGINT)
        watching.stderr.readline()  # it has stopped counting, and asks the database
        if tracer is not None:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(60)
        if watching.wait(END_S):
            raise RuntimeError(watching.stderr.read())
    finally:
        for process in (watching, tracer):
            if process is not None:
                started.end(process)
    whole_text = json.loads((out / f"{name}.all.json").read_text())
    seen = whole_text["observation"]
    beside = database.beside(seen)
    report: dict[str, Any] = {
        "seconds": round(seen["seconds"], 1),
        "cpu_seconds": round(seen["cpu_seconds"], 2),
        "own_cpu_seconds": round(seen["own_cpu_seconds"], 2),
        "database and ztune": {
            what: [counters.get(what), beside.get(what)] for what in {**counters, **beside}
        },
        "roles": {
            group["name"]: {
                part: [group[part].get("calls", 0), group[part].get("bytes")]
                for part in ("reads", "writes", "syncs")
                if part in group
            }
            for group in seen["groups"]
            if group["kind"] == "role"
        },
        "without a role": [
            [group["name"], group.get("writes", {}).get("calls", 0), group.get("reads", {}).get("calls", 0)]
            for group in seen["groups"]
            if group["kind"] == "file" and not group.get("role") and not group["name"].startswith("/usr/")
        ][:20],
        "findings": [f"{found['severity']}: {found['sentence']}" for found in whole_text["findings"]],
        "databases": [
            [one["kind"], one.get("version"), one["where"], len(one.get("settings", {}))]
            for one in seen.get("databases", [])
        ],
        "limits": seen.get("limits", []),
    }
    if pool is not None:
        (told,) = (one for one in seen["zfs"]["pools"] if one["name"] == pool)
        report["zpool iostat and ztune"] = {
            queue: [n - before[queue], sum(told["request_sizes"].get(queue, {}).values())]
            for queue, n in after.items()
            if n - before[queue] or told["request_sizes"].get(queue)
        }
        report["vdevs"] = told["vdevs"]
        report["txgs"] = len(told.get("txgs", []))
    if tracer is not None:
        counted = parse_table(table.read_text())
        ours = {call["name"]: call["calls"] for call in seen["calls"]}
        report["strace and ztune"] = {
            call: [counted.get(call, 0), ours.get(call, 0)]
            for call in sorted(counted.keys() | ours.keys())
            if FILE_CALLS.fullmatch(call)
        }
    return report


def parse_table(text: str) -> Totals:
    """Calls by name from the table of ``strace -c``."""
    rows = (line.split() for line in text.splitlines())
    return {words[-1]: int(words[3]) for words in rows if len(words) in (5, 6) and words[3].isdigit()}


def traced(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if "TracerPid:\t0\n" in (task / "status").read_text():
                return False
    return True


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BEGIN_S
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError("strace did not attach")
        time.sleep(0.1)


Maker = Callable[[Path, pwd.struct_passwd, int], AbstractContextManager[Database]]
DATABASES: dict[str, Maker] = {
    "mariadb": mariadb,
    "rocksdb": rocksdb,
    "derby": derby,
    "postgresql": postgresql,
    "fio": fio,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="DATABASE", help=", ".join(DATABASES))
    parser.add_argument("--seconds", type=float, default=15, help="of load in each pass")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="file system that is tried")
    parser.add_argument("--account", default="nobody", help="user that the databases run as")
    parser.add_argument("--scale", type=int, default=10, help="size of the databases; 10 is 50 to 150 MB")
    parser.add_argument("--passes", default="strace,alone", help="one or both, with a comma")
    parser.add_argument("--out", type=Path, help="folder for observations and reports")
    options = parser.parse_args()
    if unknown := set(options.names) - DATABASES.keys():
        parser.error(f"no such database: {', '.join(sorted(unknown))}")
    account = pwd.getpwnam(options.account)
    report: dict[str, Any] = {"load_average": os.getloadavg(), "cpus": os.cpu_count()}
    with contextlib.ExitStack() as stack:
        out = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out.mkdir(parents=True, exist_ok=True)
        for name in options.names or DATABASES:
            folder = Path(tempfile.mkdtemp(prefix=f"ztune-{name}-", dir=options.folder))
            folder.chmod(0o755)
            if name != "postgresql":  # the workload chooses its account itself
                os.chown(folder, account.pw_uid, account.pw_gid)
            try:
                with DATABASES[name](folder, account, options.scale) as database:
                    report[name] = {}
                    for how in options.passes.split(","):
                        report[name][how] = observe(
                            database, options.seconds, how == "strace", out, f"{name}-{how}", pool_of(folder)
                        )
                        # After each, so that a run that is cut leaves what it has.
                        (out / "report.json").write_text(json.dumps(report, indent=1))
            except Missing as error:
                report[name] = {"left out": str(error)}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    started.script(main)
