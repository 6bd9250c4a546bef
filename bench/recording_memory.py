"""Whether a long recording keeps within a limit of memory: fio, 20,000 calls a second.

    sudo python bench/recording_memory.py [--seconds 600] [--within 256M] [--folder DIR] [--keep DIR]

`ztune record` and its recorder run in a control group of that much memory (cgroups(7), which takes root), fio
beside it. No rule knows fio's files, so at the end their roles are told from what they do, which takes most.
Prints one JSON object: the exit code, events and those lost, bytes of the trace, the group's peak, what of it
is no cached file, and how many processes were ended for want of memory. Exit code 1 if any was, if an event
was lost, or if the recording failed. --folder: where fio's 2 GB of files are; --keep: the trace stays there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memory_group
import started

from ztune.trace.reader import Trace
from ztune.units import parse_size

JOBS, READS, WRITES = 5, 2800, 1200


def main() -> int:
    """Record, look, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--within", type=parse_size, default=256 << 20, metavar="SIZE")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ztune-recording-memory-", dir=given.folder) as name:
        files = Path(name, "files")
        files.mkdir()
        trace = (given.keep or Path(name)) / "long.trace"
        words = ["fio", "--name=f", f"--directory={files}", f"--numjobs={JOBS}", "--size=400M"]
        words += ["--rw=randrw", "--rwmixread=70", "--bs=8k", "--ioengine=psync", "--time_based"]
        words += [f"--rate_iops={READS},{WRITES}", f"--runtime={given.seconds + 60}"]
        # Its files are made before it is recorded.
        started.run([*words, "--create_only=1"], check=True, capture_output=True)
        load = started.begin(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)  # its jobs are there
            took = memory_group.run(
                [
                    str(Path(sys.executable).with_name("ztune")), "record", "--pid", str(load.pid),
                    "--path", str(files), "--seconds", str(given.seconds), "--max-size", "0",
                    "--out", str(trace),
                ],
                limit=given.within,
            )  # fmt: skip
        finally:
            started.end(load)
        found: dict[str, object] = {"exit_code": took.code, "wall_s": round(took.wall_s, 1)}
        lost = None
        if took.code == 0:
            manifest = Trace.open(trace).manifest
            lost = manifest.dropped
            found |= {
                "events": manifest.events,
                "lost": lost,
                "trace_bytes": sum(one.stat().st_size for one in trace.rglob("*") if one.is_file()),
            }
        found |= {"limit": given.within, "peak": took.peak, "no_file": took.kept, "ended": took.killed}
        print(json.dumps(found, indent=2))
    return int(took.code != 0 or took.killed > 0 or lost != 0)


if __name__ == "__main__":
    started.script(main)
