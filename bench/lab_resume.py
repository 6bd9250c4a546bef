"""How long until a guest of the lab is ready, from its saved state; and until it has run a first command.

bench/lab_resume.py [N]     N guests one after another (20); needs an image (`make lab`)
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import started

from ztune.lab import Guest


def main(count: int) -> None:
    ready: list[float] = []
    first: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        guest = Guest.resume()
        resumed = time.perf_counter()
        guest.run(["zpool", "version"], check=True)
        ready.append(resumed - began)
        first.append(time.perf_counter() - began)
        accel = guest.machine.accel
        guest.cut()
    load = os.getloadavg()[0]
    print(f"{count} guests under {accel} ({os.cpu_count()} processors, load {load:.1f})")
    for what, times in (("ready", ready), ("ready and `zpool version`", first)):
        print(f"  {what}: median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} s")


if __name__ == "__main__":
    started.script(lambda: main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
