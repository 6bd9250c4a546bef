"""What a recording takes on the disk and in memory while it is made: pgbench as fast as it goes.

    python bench/recording_size.py [--seconds S] [--clients N]

Looks at the folder of the trace ten times a second, also while the trace is written. Prints one JSON object:
events, the most bytes of all files together and by event, those of the finished trace, and the most memory of
ztune and of the recorder (whose ring of 64 MiB is mapped, and so counted, twice). Goal: 20 bytes an event.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
from pathlib import Path

import started

from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.onhost.probes import procfs
from ztune.trace.record import Recording


def main() -> None:
    """Record, look, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=20, help="× 100,000 rows")
    options = parser.parse_args()
    most, recorder = [0], [0]
    ended = threading.Event()
    parameters = {
        "scale": options.scale, "clients": options.clients, "seconds": options.seconds, "rate": 0,
        "max_wal_size": "4G",
    }  # fmt: skip
    with running(PostgresOltp(parameters)) as workload, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:

        def look() -> None:
            while not ended.wait(0.1):
                sizes = []
                for path in Path(folder).rglob("*"):
                    try:
                        sizes.append(path.stat().st_blocks * 512)
                    except OSError:  # renamed just now
                        continue
                most[0] = max(most[0], sum(sizes))
                for pid in procfs.descendants([os.getpid()]):
                    try:
                        if Path(f"/proc/{pid}/comm").read_text().strip() == "ztune-recorder":
                            status = Path(f"/proc/{pid}/status").read_text()
                            recorder[0] = max(recorder[0], int(status.split("VmHWM:")[1].split()[0]) << 10)
                    except (OSError, IndexError):
                        continue

        looking = threading.Thread(target=look)
        looking.start()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        with Recording(Path(folder) / "size.trace", pids=workload.pids(), recorder="ebpf") as recording:
            workload.run()
        events = recording.trace.manifest.events
        ended.set()
        looking.join()
        print(
            json.dumps(
                {
                    "events": events,
                    "dropped": recording.trace.manifest.dropped,
                    "most_bytes": most[0],
                    "most_bytes_per_event": round(most[0] / events, 2),
                    "trace_bytes_per_event": round(
                        recording.trace.manifest.parquet["events.parquet"].bytes / events, 2
                    ),
                    "memory_before": before,
                    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
                    "recorder_memory": recorder[0],
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    started.script(main)
