"""The replay target: a trace through the real OpenZFS code in user space, by ``ztune-engine``.

One process per trial: it can't take others down with it, and its memory is gone when it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import psutil

from ztune import paths
from ztune.errors import InputError, MissingError
from ztune.onhost.age import REWRITTEN, WRITE, Age
from ztune.onhost.host import shared_files
from ztune.onhost.host.process import end_group, signal_name
from ztune.onhost.properties import REPLAYED
from ztune.places import engine_limits
from ztune.places.calibration import HostProcessors
from ztune.places.engine import Engine, last_line
from ztune.places.engine_spec import aged, changed_in_vain, engine_spec
from ztune.places.processors import Processors, keep_on
from ztune.study import Layout, Study
from ztune.trace.content import content_pools
from ztune.trace.ops import CONTENT, EXPORT_VERSION, Inputs, OpsFile, OpsInfo, export_ops
from ztune.trace.reader import Trace
from ztune.trace.summary import summarise

MIN_TIMEOUT_S = 900.0
TIMEOUT_FACTOR = 60.0  # of the recorded seconds; a sane layout takes less than one
# Memory of an engine beside ARC and pool contents, bytes: itself 140 MiB, and the load's transaction groups.
ENGINE_BYTES = 320 << 20
LIMIT_REACHED = 5  # the engine's exit code
CACHED_TRACES = 4  # how many exports of traces are kept
_KILL_GRACE_S = 2.0
_LEAST_FILES = 1 << 30  # bytes; with less room on the disk an engine does not turn to files at all


# Called with the phase ("load", "measure") and the share of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: with a result, or with one sentence that says why there is none."""

    result: dict[str, Any] | None
    error: str | None
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.result is not None


def prepare(trace: Trace) -> Inputs:
    """Export the trace for the engine, or find the export made before. Safe when several processes do it.

    Raises InputError if the trace is damaged or there is no room.
    """
    folder = paths.private(paths.cache() / f"{trace.sha[:24]}-{EXPORT_VERSION}")
    with shared_files.locked(folder / "lock"):
        ops, index = folder / "ops.bin", folder / "files.json"
        if ops.is_file() and index.is_file():
            files = tuple(OpsFile(**f) for f in json.loads(index.read_text()))
        else:
            info: OpsInfo = export_ops(trace, ops)
            files = tuple(info.files)
            with shared_files.replacing(index) as partial:
                partial.write_text(json.dumps([vars(f) for f in files]))
        warnings: list[str] = []
        content = content_pools(trace, folder, warnings)
        os.utime(folder)
    _prune(keep=folder)
    return Inputs(ops, files, content, tuple(warnings))


def _prune(keep: Path) -> None:
    """Remove the exports that were not used for longest; those in use by others are locked and stay."""
    # The lab and other parts keep things beside them, which are not ours to remove.
    ours = (f for f in keep.parent.glob(f"{'[0-9a-f]' * 24}-*") if f.is_dir())
    folders = sorted(ours, key=lambda f: f.stat().st_mtime)
    for folder in folders[: max(0, len(folders) - CACHED_TRACES)]:
        # A day: a run that takes longer than that on one trace is not expected.
        if folder != keep and time.time() - folder.stat().st_mtime > 86400:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of trials whose ztune was killed before it could."""
    for folder in paths.scratch().glob("trial-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def beyond_replay(study: Study, layout: Layout) -> str:
    """Return what of ``layout`` a replay can't answer, as the rest of a sentence about it; empty: nothing."""
    for pool in layout.used_pools():
        if pool.filesystem != "zfs":
            return (
                f"has {pool.filesystem} in place of pool {pool.name}: the replay engine is OpenZFS and "
                "nothing else; `ztune run` measures both"
            )
    for dataset in layout.datasets:
        if dataset.volume is not None:
            return (
                f"has {dataset.name} as a volume with {dataset.filesystem}: a trace of files can't say what "
                "that file system would do; `ztune run` measures it"
            )
    for changed in changed_in_vain(study, layout, REPLAYED):
        return (
            f"changes {changed}, which the replay engine does not have; "
            "set it in the base, for the commands only"
        )
    return ""


class Replay:
    """The replay target for one trace."""

    name = "replay"

    def __init__(
        self,
        trace: Trace,
        engine: Engine,
        *,
        jobs: int = 1,
        timeout_s: float | None = None,
        backing: str | None = None,
        cores: int | None = None,
        processor: Mapping[str, Any] | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        """``inputs``: what the engine reads, where that is not ``trace`` alone."""
        self.trace = trace
        self.engine = engine
        self.jobs = jobs
        self.timeout_s = timeout_s or max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * trace.duration_s)
        self.inputs = prepare(trace) if inputs is None else inputs
        self.memory = (
            engine_limits.memory_bytes()
        )  # once: engines that run must not make less of those to come
        self._backing = backing
        # A joint replay's jobs have rates of their own.
        self._closed = inputs is None and unpaced(trace)
        self._host = HostProcessors.of(cores, processor or {}, trace.manifest.environment.get("cpus"))
        self._processors = Processors()

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError if a replayed trace can't answer what ``layout`` asks."""
        roles = {f.role for f in self.inputs.files if not f.neighbour}
        for role in sorted(roles):
            if layout.dataset_of(role) is None:
                raise InputError(
                    f'role {role} has no dataset in layout "{layout.name}" of study "{study.name}"; '
                    f"add it to the roles of a dataset"
                )
        why = beyond_replay(study, layout)
        if why:
            raise InputError(f'layout "{layout.name}" of study "{study.name}" {why}')

    def spec(self, study: Study, layout: Layout, seed: int) -> dict[str, Any]:
        """Return the engine's spec of ``layout`` without content, backing and other paths of this machine."""
        beside = tuple(sorted({f.role for f in self.inputs.files if f.neighbour}))
        layout = replace(layout, neighbour=beside)
        spec = engine_spec(study, layout, seed)
        files: list[dict[str, Any]] = [_file(layout, f) for f in self.inputs.files]
        if layout.age is not None:
            age = layout.age
            sizes: Counter[str] = Counter()
            for file, raw in zip(self.inputs.files, files, strict=True):
                sizes[raw["dataset"]] += max(file.size, file.size_end)
                if file.role in REWRITTEN and age.rewrites:
                    raw["rewrite"] = self._rewrite(file.role, age)
            spec = aged(spec, layout, sizes)
            spec["age"] = {"fill": age.fill, "rewrites": age.rewrites, "snapshots": age.snapshots}
        return {**spec, "files": files}

    def _rewrite(self, role: str, age: Age) -> dict[str, Any]:
        """Return how the files of a role are rewritten while the pool ages: as they were recorded."""
        write, commits = self._writes.get(role, (WRITE, True))
        return {"write": age.write or write, "in_order": REWRITTEN[role], "commits": commits}

    @cached_property
    def _writes(self) -> dict[str, tuple[int, bool]]:
        """Role → bytes of its usual write, the database's page where that is known; whether it is synced."""
        pages = self.trace.manifest.page_size
        found: dict[str, tuple[int, bool]] = {}
        for group in summarise(self.trace, files=0).roles:
            moved = group.writes.size_bytes
            usual = min(max(max(moved, key=lambda size: moved[size]), 512), 16 << 20) if moved else WRITE
            found[group.name] = pages.get(group.name, usual), group.sync_writes > 0  # type: ignore[call-overload]
        return found

    def backing(self, spec: dict[str, Any]) -> str:
        """Return "memory", or "file" where the pools of all jobs at once would take too much memory."""
        if self._backing is not None:
            return self._backing
        need = self.jobs * (memory_bytes(spec) + contents_bytes(spec, self.written_bytes()))
        return "memory" if need <= self.memory else "file"

    def written_bytes(self) -> int:
        """Return an upper bound of what the trace adds to the files, bytes."""
        return sum(max(0, file.size_end - file.size) for file in self.inputs.files)

    def command(self, spec: Path | str, ops: Path | str) -> list[str]:
        """Return the engine's command line."""
        return [str(self.engine.path), "replay", "--spec", str(spec), "--ops", str(ops), "--progress"]

    def run(self, spec: dict[str, Any], progress: Progress | None, stop: threading.Event) -> Outcome:
        """Run the engine on ``spec``. Its crash, refusal or timeout becomes the outcome's error.

        Raises MissingError where the engine finds that it does not match the library: no layout would work.
        """
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"trial-{os.getpid()}-", dir=paths.scratch()) as name:
            folder = Path(name)
            backing = self.backing(spec)
            full = {
                **spec,
                "content": {r: str(p.resolve()) for r, p in self.inputs.content.items()},
                "backing": backing,
                "closed": self._closed,
                "processor": self._host.spec(),
                **self._limits(spec, backing, folder),
            }
            path = folder / "spec.json"
            path.write_text(json.dumps(full))
            code, words, text = self._process(self.command(path, self.inputs.ops), folder, progress, stop)
        wall = time.monotonic() - started
        if stop.is_set():
            return Outcome(None, "it was interrupted", wall)
        error = self._error(code, words)
        if error is None:
            try:
                result = json.loads(text)
                if not isinstance(result, dict) or not isinstance(result.get("measure"), dict):
                    raise ValueError
                self._host.charge(result)
                if self._closed:
                    speed(result)
                else:
                    pace(result, self.trace)
                return Outcome(result, None, wall)
            except ValueError:
                error = "the engine's result is not the JSON it should be"
        return Outcome(None, error, wall)

    def _limits(self, spec: dict[str, Any], backing: str, folder: Path) -> dict[str, Any]:
        """Return what one engine may take of memory, and of the disk that it then turns to."""
        memory = self.memory // self.jobs
        if memory_bytes(spec) > memory:
            raise InputError(
                f"an engine with an ARC of {spec['arc_max'] >> 20} MiB takes about "
                f"{memory_bytes(spec) >> 20} MiB, and {self.jobs} at once may take "
                f"{self.memory >> 20} MiB of this machine's memory; "
                f"use fewer --jobs, a smaller --arc, or free memory"
            )
        need = self.jobs * (contents_bytes(spec, self.written_bytes()) + filler_bytes(spec))
        free = engine_limits.disk_bytes(folder)
        if backing == "file" and need > free:
            raise InputError(
                f"the pools of {self.jobs} layouts at once take about {need >> 20} MiB, more than fits "
                f"into memory or into {paths.home()} ({free >> 20} MiB, beside what is left free); "
                f"use fewer --jobs or another ZTUNE_HOME"
            )
        limits: dict[str, Any] = {"memory_limit": memory}
        if backing == "file" or free // self.jobs >= _LEAST_FILES:
            limits |= {"backing_dir": str(folder), "file_limit": free // self.jobs}
        return limits

    def _process(
        self, command: list[str], folder: Path, progress: Progress | None, stop: threading.Event
    ) -> tuple[int | None, str, str]:
        """Return exit code (None: timeout), the last words on stderr, and stdout."""
        # The engine must not outlive a ztune that is killed: the kernel then kills it too.
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with self._processors.one() as processor, (folder / "stdout").open("w+b") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=folder,
            )
            if processor is not None:
                keep_on(process.pid, processor)
            assert process.stderr is not None
            words: list[str] = []
            reader = threading.Thread(
                target=_read_progress, args=(process.stderr, progress, words), daemon=True
            )
            reader.start()
            deadline = time.monotonic() + self.timeout_s
            code: int | None = None
            try:
                while True:
                    try:
                        code = process.wait(timeout=0.1)
                        break
                    except subprocess.TimeoutExpired:
                        if stop.is_set() or time.monotonic() > deadline:
                            break
            finally:
                end_group(process, _KILL_GRACE_S)
                reader.join(timeout=_KILL_GRACE_S)
                process.stderr.close()
            out.seek(0)
            return code, last_line("\n".join(words)), out.read().decode(errors="replace")

    def _error(self, code: int | None, words: str) -> str | None:
        said = f': "{words}"' if words else ""
        if code is None:
            return f"the engine did not finish in {self.timeout_s:.0f} s and was stopped{said}"
        if code == 0:
            return None
        if code < 0:
            return f"the engine was killed by {signal_name(-code)}{said}"
        if code == 2:
            return f"the engine refused the layout{said}"
        if code == LIMIT_REACHED:
            return (
                f"{words} Use fewer --jobs, a smaller --arc, a ZTUNE_HOME with more room, "
                f"or a shorter recording"
            )
        if code == 4:
            raise MissingError(
                f"the engine does not match this machine's OpenZFS library{said}; run `ztune doctor`"
            )
        return f"the engine failed with exit code {code}{said}"


def pace(result: dict[str, Any], trace: Trace) -> None:
    """Put into an engine's ``result`` which share of the recorded pace its job kept, ``model.pace``: when its
    time was over, without what it does as it closes. Nothing of an older engine."""
    model = result["measure"].get("model", {})
    kept, recorded = model.get("kept"), model.get("trace_s")
    if not kept or not recorded:
        return
    workload = trace.manifest.workload
    details = {} if workload is None else workload.result.get("details", {})
    closing = min(float(details.get("closing_seconds") or 0.0), recorded)
    # The job ends within one of the parts; the one before is its own.
    last = max(1, int(len(kept) * (1 - closing / recorded)) - 1)
    model["pace"] = min(1.0, kept[last - 1])


def unpaced(trace: Trace) -> bool:
    """Return whether the recorded job is known to have gone as fast as it could. Then a faster layout lets it
    go faster, and a replay lets each thread go on as soon as it would have."""
    workload = trace.manifest.workload
    return workload is not None and workload.result.get("offered_per_second") == 0


def speed(result: dict[str, Any]) -> None:
    """Put into the ``result`` of a closed replay how fast the job went, ``model.speed``, as a multiple of the
    recorded one: by when most of its commits had ended, there and here."""
    model = result["measure"].get("model", {})
    here, recorded = model.get("most_s"), model.get("most_recorded_s")
    if here and recorded:
        model["speed"] = recorded / here


def _file(layout: Layout, file: OpsFile) -> dict[str, Any]:
    if file.neighbour:
        name, content = layout.neighbour_dataset(file.role), CONTENT + file.role
    else:
        dataset = layout.dataset_of(file.role)
        assert dataset is not None, file.role  # check() comes first
        name, content = dataset.name, file.role
    return {"id": file.id, "dataset": name, "size": file.size, "content": content}


def memory_bytes(spec: dict[str, Any]) -> int:
    """Return about how much memory one engine takes beside the pools' contents, bytes."""
    return ENGINE_BYTES + int(1.25 * int(spec["arc_max"]))


def contents_bytes(spec: dict[str, Any], growth: int) -> int:
    """Return an upper estimate of what the pools of one trial hold, bytes, redundancy included.

    Compression is left out. Half as much again allows for metadata, and for old blocks that copy-on-write
    frees only some transaction groups later.
    """
    factor = 1.0
    for pool in spec["pools"]:
        for vdev in pool["vdevs"]:
            disks = len(vdev["disks"])
            if vdev["class"] == "data" and vdev["kind"] == "mirror":
                factor = max(factor, disks)
            elif vdev["class"] == "data" and vdev["kind"].startswith("raidz"):
                parity = int(vdev["kind"][-1])
                factor = max(
                    factor, disks / max(1, disks - parity), 1.0 + parity
                )  # small records are all parity
    copies = max((int(d["properties"].get("copies", 1)) for d in spec["datasets"]), default=1)
    files = sum(f["size"] for f in spec["files"]) + growth
    # Each snapshot may keep a whole database.
    files += spec.get("age", {}).get("snapshots", 0) * sum(f["size"] for f in spec["files"] if "rewrite" in f)
    return int(1.5 * factor * copies * files) + (64 << 20)


def filler_bytes(spec: dict[str, Any]) -> int:
    """Return the most that the filler of aged pools takes of files, bytes; of memory it takes none."""
    disks = [d["size"] for p in spec["pools"] for v in p["vdevs"] if v["class"] == "data" for d in v["disks"]]
    return int(sum(disks) * spec.get("age", {}).get("fill", 0) // 100)


def _read_progress(stream: IO[bytes], progress: Progress | None, words: list[str]) -> None:
    """Hand on progress lines; keep the last other lines, which are the engine's words."""
    try:
        for raw in stream:
            line = raw.decode(errors="replace").strip()
            if line.startswith("{"):
                try:
                    report = json.loads(line)
                    if progress is not None:
                        progress(str(report["phase"]), min(1.0, max(0.0, float(report["done"]))))
                    continue
                except (ValueError, KeyError, TypeError):
                    pass
            if line:
                words.append(line)
                del words[:-20]
    except ValueError:  # the stream was closed under us, at the end
        return


def suggested_jobs(spec: dict[str, Any], memory: int) -> int:
    """Return how many engines can run at once: one per usable core, fewer where ``memory`` is short.

    ``memory``: bytes for all of them.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, memory // memory_bytes(spec)))
