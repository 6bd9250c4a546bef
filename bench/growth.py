"""What screening takes as databases grow: time, memory and disk for 1 GB, 10 GB, 100 GB, 1 TB and more.

    python bench/growth.py                     1G, 10G, 100G, 1T and 20T, eight layouts each
    python bench/growth.py 1T --budget 32      the target: 32 layouts in 15 minutes, 8 GiB and 10 GiB
    python bench/growth.py 1T --calls 2000 --seconds 50    another number of calls a second, of seconds
    python bench/growth.py 1T --seconds 5000 --budget 4    10^8 calls: windows of the recording are replayed
    python bench/growth.py my.trace --within 4G -- --study two.toml    a recording of your own; what
                                               follows -- is for `ztune screen`

Each database is made up, since nobody here has a terabyte: files of 1 GiB with 8 KiB pages, of which a
fifth, scattered, gets four fifths of the reads and writes; scans of 128 KiB; sorts in temporary files; a log
that is written and synced. 60 seconds of it, from a fixed seed, as if recorded. `ztune screen` then runs
on it as a user's would, in a control group of its own (memory_group.py): the kernel says what memory all that
it starts took at most. Disk is looked at ten times a second: what the engines' unlinked files take, and what
is new in ZTUNE_HOME. A row is kept in `growth.json` of ZTUNE_HOME; what was cut, by Ctrl-C, SIGTERM or
`--most`, is kept with the layouts that were done by then, and done again the next time. No size follows it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import started
from memory_group import NoGroupError, run

from ztune import paths
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.store.db import Store
from ztune.trace.excerpt import made_of
from ztune.trace.manifest import RECORDSIZES
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter
from ztune.units import format_size, parse_size

SIZES = ("1G", "10G", "100G", "1T", "20T")
SECONDS = 60
CALLS = 20_000  # a second
GIB = 1 << 30
PAGE, SCAN, LOG_FILE = 8192, 128 << 10, 16 << 20
THREADS = 64
HOT, OF_HOT = 0.2, 0.8  # of the pages; of the calls on them
MIX = {"read": 0.62, "write": 0.2, "scan": 0.06, "temp": 0.02, "log": 0.07, "sync": 0.03}
RATIOS = {4096: 1.5, 8192: 1.8, 16384: 2.0, 32768: 2.1, 65536: 2.15, 131072: 2.2, 1 << 20: 2.2}


def made(size: int, calls: int, seconds: int, path: Path) -> Path:
    """Write the recording of a database of ``size`` bytes, ``calls`` a second; return ``path``."""
    files = max(1, size // GIB)
    temp, logs = files, files + 1
    rng = np.random.default_rng(1)
    with TraceWriter(path) as writer:
        log_end, scan_at = 0, rng.integers(0, files * GIB // SCAN, 8)
        for second in range(seconds):
            kind = rng.choice(len(MIX), calls, p=list(MIX.values()))
            rows = np.zeros(calls, EVENT_DTYPE)
            rows["t"] = second * 10**9 + np.sort(rng.integers(0, 10**9, calls))
            rows["dur"] = rng.integers(20_000, 200_000, calls)
            rows["pid"] = 1000
            rows["tid"] = 1001 + rng.integers(0, THREADS, calls)
            rows["file2"] = -1
            rows["op"] = np.array([Op.READ, Op.WRITE, Op.READ, Op.WRITE, Op.WRITE, Op.FDATASYNC])[kind]
            page = _pages(rng, calls, files * GIB // PAGE)
            rows["file"], rows["offset"], rows["size"] = page * PAGE // GIB, page * PAGE % GIB, PAGE
            scans = np.flatnonzero(kind == 2)
            for number in range(len(scan_at)):
                mine = scans[number :: len(scan_at)]
                at = (scan_at[number] + np.arange(len(mine))) % (files * GIB // SCAN)
                rows["file"][mine], rows["offset"][mine], rows["size"][mine] = (
                    at * SCAN // GIB, at * SCAN % GIB, SCAN,
                )  # fmt: skip
                scan_at[number] += len(mine)
            sorts = kind == 3
            rows["file"][sorts], rows["size"][sorts] = temp, 64 << 10
            rows["offset"][sorts] = rng.integers(0, 4096, sorts.sum()) * (64 << 10)
            log = kind == 4
            sizes = rng.integers(1, 4, log.sum()) * PAGE
            ends = log_end + np.cumsum(sizes)
            rows["file"][log] = logs + (ends - sizes) // LOG_FILE % 64
            rows["offset"][log], rows["size"][log] = (ends - sizes) % LOG_FILE, sizes
            log_end = int(ends[-1])
            sync = kind == 5
            rows["file"][sync], rows["offset"][sync], rows["size"][sync] = (
                logs + log_end // LOG_FILE % 64,
                -1,
                0,
            )
            rows["tid"][log | sync] = 1000  # one thread writes the log
            writer.add_rows(rows)
        entries = [_file(i, f"/db/base/{i}", "data", GIB) for i in range(files)]
        entries += [_file(temp, "/db/temp/0", "temp", 256 << 20)]
        entries += [_file(logs + i, f"/db/wal/{i:024X}", "wal", LOG_FILE) for i in range(64)]
        writer.finish(
            duration_ns=seconds * 10**9,
            recorder={"name": "synthetic", "detail": "bench/growth.py"},
            files=entries,
            page_size={"data": PAGE},
            compressibility=[
                {"role": role, "recordsize": size, "algorithm": name, "blocks": 100,
                 "ratio": 1 + (RATIOS[size] - 1) * factor}
                for role in ("data", "wal", "temp")
                for size in RECORDSIZES
                for name, factor in (("lz4", 1.0), ("zstd-3", 1.6), ("gzip-6", 1.6))
            ],
        )  # fmt: skip
    return path


def _file(number: int, path: str, role: str, size: int) -> dict[str, Any]:
    return {"id": number, "path": path, "role": role, "size_start": size, "size_end": size}


def _pages(rng: np.random.Generator, n: int, pages: int) -> npt.NDArray[np.int64]:
    """Return pages, of which a fifth gets four fifths of the calls; which, is scattered over all."""
    hot = rng.random(n) < OF_HOT
    page = rng.integers(0, pages, n)
    # Of each run of five regions one is hot.
    region = (1 << 20) // PAGE
    found: npt.NDArray[np.int64] = np.where(hot, page // (5 * region) * 5 * region + page % region, page)
    return found


class Disk:
    """The most room that a command and all that it starts take: their unlinked files, and what is new in
    ZTUNE_HOME."""

    def __init__(self) -> None:
        self._before, self.most = _in_home(), 0

    def look(self, pid: int) -> None:
        """Look once; ``pid``: the command."""
        now: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            now = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        self.most = max(self.most, sum(map(_unlinked, now)) + _in_home() - self._before)


def _in_home() -> int:
    taken = 0
    for folder, _, names in os.walk(paths.home()):  # which takes no notice of folders that are gone meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                taken += Path(folder, name).lstat().st_blocks * 512
    return taken


def _unlinked(process: psutil.Process) -> int:
    """Return the room of the files without a name that a process has open, bytes."""
    taken = 0
    folder = Path(f"/proc/{process.pid}/fd")
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                if "ztune-disk-" in str(link.readlink()):
                    taken += link.stat().st_blocks * 512
    return taken


def _row(name: str, found: dict[str, Any]) -> str:
    cut = "" if found["code"] == 0 else ", cut" if found["code"] is None else f", exit code {found['code']}"
    wall = f"{found['wall_s']:.0f}{cut}"
    memory, kept, disk = (format_size(int(found[key])) for key in ("peak", "kept", "disk"))
    sample, done = f"1/{found['sample']}" if found["sample"] else "–", found["done"]
    part = f"{found.get('windows', 'all')} | {sample}"
    return f"| {name} | {part} | {done} | {wall} | {found['cpu_s']:.0f} | {memory} | {kept} | {disk} |"


def main() -> int:
    """Measure what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--arc", default="16G")
    parser.add_argument("--sample", default=None)
    parser.add_argument("--within", default=None, help="a limit of memory for all of it, such as 4G")
    parser.add_argument("--most", type=float, default=None, help="cut it after so many seconds")
    own = sys.argv[1:]
    at = own.index("--") if "--" in own else len(own)
    asked, more = parser.parse_args(own[:at]), own[at + 1 :]
    kept = paths.home() / "growth.json"
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    wrong = False
    for text in asked.sizes:
        path = Path(text)
        if not path.exists():
            path = paths.traces() / f"growth-{text}-{asked.calls}-{asked.seconds}.trace"
            name = f"{text}, {asked.calls * asked.seconds:,} calls"
        else:
            name = path.stem
        name += f", {asked.budget} layouts, ARC {asked.arc}"
        name += "".join(f", {label}" for label in (asked.sample, asked.within, *more) if label)
        if name in known and known[name].get("code") == 0:
            continue
        if not path.exists():
            made(parse_size(text), asked.calls, asked.seconds, path)
        command = [
            sys.executable, "-m", "ztune.cli.main", "screen", str(path), "--profile", "nvme",
            "--arc", asked.arc, "--budget", str(asked.budget), "--no-elsewhere",
            *(["--sample", asked.sample] if asked.sample else []), *more,
        ]  # fmt: skip
        with Store.open() as store:
            before = {one.id for one in store.runs()}
        disk, limit = Disk(), parse_size(asked.within) if asked.within else None
        try:
            took = run(command, limit=limit, most_s=asked.most, look=disk.look)
        except NoGroupError as error:
            print(error, file=sys.stderr)
            return 3
        with Store.open() as store:
            last = next((one for one in reversed(store.runs()) if one.id not in before), None)
            if last is None and took.code in (InputError.exit_code, MissingError.exit_code):
                raise ZtuneError(f"`ztune screen` refused {text}, with exit code {took.code} (above)")
            whole = Trace.open(path.resolve())
            replayed = {one.path: one for one in (whole, *made_of(whole))}
            trace = None if last is None else replayed.get(Path(last.trace_path))
            trials = store.trials(last.id) if last is not None and trace is not None else []
        windows = trace.manifest.windows if trace is not None else []
        seconds = windows[0].duration_ns / 1e9 if windows else 0
        done = {
            "done": sum(t.ok for t in trials),
            "sample": None if last is None else last.options.get("sample"),
            "windows": f"{len(windows)} of {seconds:g} s" if windows else "all",
        }
        known[name] = {**vars(took), "disk": disk.most, **done}
        kept.write_text(json.dumps(known, indent=1))
        wrong |= took.code != 0 or took.killed > 0
        if took.code is None:
            break
    print("| database | windows | sample | replays | wall, s | processor, s | memory | no file's | disk |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, found in known.items():
        if "code" in found:  # those of before were looked at ten times a second
            print(_row(name, found))
    interrupt.check()  # the table has what was done by then
    return int(wrong)


if __name__ == "__main__":
    started.script(main)
