"""What shared loads save: the engine's processor time for a run's layouts, with and without images.

    python bench/shared_loads.py RUN [--layouts N] [--against ENGINE] [--json FILE]

RUN is a screening (`ztune list runs`). Each of its layouts is replayed twice, one right after the other: by
an engine that loads for itself (ENGINE, such as an older one; default: the same), and by one that begins
from an image, made when the first layout needs it.
Time is that of the engines' processors, loads included, so that a busy machine matters little. The goal: at
most half, with the same counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import started
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ztune.places import engine as engines
from ztune.places import loaded
from ztune.places.calibration import HostProcessors
from ztune.places.replay import contents_of, prepare
from ztune.store.db import Store
from ztune.trace.reader import Trace

GOAL = 0.5
COUNTED = {
    "reads": ("physical", "reads"),
    "bytes read": ("physical", "read_bytes"),
    "writes": ("physical", "writes"),
    "bytes written": ("physical", "write_bytes"),
    "log bytes": ("zil", "bytes"),
    "space": ("space", "allocated"),
    "busy": ("model", "busy_s_max"),
}


def engine(*arguments: str) -> tuple[dict[str, Any], float]:
    """Return what an engine prints, and its seconds of processor. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = started.run(arguments, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout or "{}"), seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--layouts", type=int, help="only so many")
    parser.add_argument("--against", type=Path, metavar="ENGINE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    program = engines.check()
    with Store.open() as store:
        run = store.run(given.run)
        trials = [t for t in store.trials(run.id) if t.spec is not None and t.ok][: given.layouts]
    inputs = prepare(Trace.open(run.trace_path or ""))
    processor = HostProcessors.of(None, {}, os.cpu_count()).spec()
    alone = shared = 0.0
    images: dict[str, Path] = {}
    apart = dict.fromkeys(COUNTED, 0.0)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        spec_file, load_file = Path(folder, "spec.json"), Path(folder, "load.json")

        def call(command: str, spec: Path, *image: str) -> tuple[dict[str, Any], float]:
            path = program.path if image else given.against or program.path
            return engine(str(path), command, "--spec", str(spec), "--ops", str(inputs.ops), *image)

        for trial in track(trials, description="replays", console=Console(stderr=True)):
            spec = dict(trial.spec or {})
            first = loaded.load_spec(spec)
            files = contents_of(spec, inputs)
            content = {name: str(path) for name, path in files.items()}
            spec_file.write_text(json.dumps({**spec, "content": content, "processor": processor}))
            load_file.write_text(json.dumps({**first, "content": content}))
            without, seconds = call("replay", spec_file)
            alone += seconds
            read = {name: loaded.identity(path) for name, path in files.items()}
            key = loaded.key_of(first, read, program)
            image = images.setdefault(key, Path(folder, key))
            if not image.exists():
                shared += call("load", load_file, "--image", str(image))[1]
            begun, seconds = call("replay", spec_file, "--image", str(image))
            shared += seconds
            for name, (part, what) in COUNTED.items():
                a, b = float(without["measure"][part][what]), float(begun["measure"][part][what])
                apart[name] = max(apart[name], abs(b / a - 1) if a else float(b != a))
        kept = sum(path.stat().st_blocks * 512 for path in images.values())
    table = Table("layouts", "loads", "alone, s", "shared, s", "ratio", "images, MiB")
    table.add_row(
        str(len(trials)), str(len(images)), f"{alone:.1f}", f"{shared:.1f}", f"{shared / alone:.2f}",
        f"{kept >> 20}",
    )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        f"goal {GOAL}: {'met' if shared / alone <= GOAL else 'missed'}; counts at most apart: "
        + ", ".join(f"{name} {value:.2%}" for name, value in apart.items())
    )
    if given.json:
        given.json.write_text(
            json.dumps({"alone_s": alone, "shared_s": shared, "loads": len(images), "apart": apart}) + "\n"
        )
    return int(shared / alone > GOAL)


if __name__ == "__main__":
    started.script(main)
