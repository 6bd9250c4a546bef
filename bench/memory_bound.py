"""Whether recordings of real databases are screened within a limit of memory, by two engines at once.

    sudo python bench/memory_bound.py TRACE [TRACE …] [--within 4G] [--arc 512M]

Records of 8K and of 1M are replayed at the same time, the whole recording and what `ztune screen` would take
of it, in a control group of that much memory (cgroups(7), which takes root). For each: the exit code,
seconds, the group's peak, what of it is no cached file, and how many processes were ended for want of memory.
Exit code 1 if any was, or a screening failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import memory_group
import started

from ztune.units import parse_size

STUDY = Path(__file__).with_name("large_records.toml")


def main() -> int:
    """Screen each and print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--within", type=parse_size, default=4 << 30, metavar="SIZE")
    parser.add_argument("--arc", default="512M")
    given = parser.parse_args()
    bad = False
    for path in given.traces:
        for sample in ("1/1", ""):
            words = [str(Path(sys.executable).with_name("ztune")), "screen", str(path)]
            words += ["--study", str(STUDY), "--profile", "ssd-sata", "--arc", given.arc]
            words += ["--budget", "2", "--jobs", "2"]
            words += ["--sample", sample] if sample else []
            took = memory_group.run(words, limit=given.within)
            bad = bad or took.code != 0 or took.killed > 0
            peak, kept = (f"{size / (1 << 30):.1f} GiB" for size in (took.peak, took.kept))
            print(
                f"{path.name}, {sample or 'its default'}: exit code {took.code}, {took.wall_s:.0f} s, "
                f"peak {peak}, of it no file's {kept}, {took.killed} ended",
                flush=True,
            )
    return int(bad)


if __name__ == "__main__":
    started.script(main)
