"""The replay target: a trace through the real OpenZFS code in user space, by ``ztune-engine``."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from ztune import paths
from ztune.databases.database import logs_among
from ztune.errors import InputError, ZtuneError
from ztune.onhost.age import REWRITTEN, WRITE, Age
from ztune.onhost.host import room, shared_files
from ztune.onhost.properties import REPLAYED
from ztune.places import engine_limits, loaded
from ztune.places.calibration import HostProcessors
from ztune.places.engine import Engine
from ztune.places.engine_run import EngineRoom, EngineWork, Outcome, Progress, memory_bytes, run_engine
from ztune.places.engine_spec import aged, changed_in_vain, engine_spec, sampled
from ztune.study import Layout, Study
from ztune.study.layout import MIN_ARC
from ztune.trace import host_busy
from ztune.trace.inputs import (
    CONTENT,
    EMBEDDED,
    EXPORT_VERSION,
    READ_BEFORE,
    UNTOUCHED,
    Inputs,
    OpsFile,
    OpsInfo,
    content_name,
)
from ztune.trace.rate import Rate, check_rate
from ztune.trace.reader import Trace, commits_of, operations_of
from ztune.units import counted

MIN_TIMEOUT_S = 900.0
TIMEOUT_FACTOR = 60.0  # of the recorded seconds; a sane layout takes less than one
_MOST_LOGS = 8  # that the engine takes; of others' each thread syncs for itself
CACHED_TRACES = 4  # how many exports of traces are kept
REFUSED = (
    "{calls} with O_DIRECT {are} not of whole pages of 4 KiB. OpenZFS 2.3 refuses such calls, and the "
    "program may stop there; direct=disabled takes them. A replay has them go through the ARC"
)
CACHED = (
    "First reads that took no disk's time show that {:,.1f} MiB of what is used lay in caches before the "
    "recording; a replay begins with as much of it as its ARC would have"
)
NOTHING_CACHED = (
    "First reads show less than 1 MiB that lay in caches before the recording: a replay begins with an empty "
    "ARC, and may read more than a server that has run for long"
)
_WORTH_SAYING = 1 << 20


def prepare(trace: Trace) -> Inputs:
    """Export the trace for the engine, or find the export made before. Safe when several processes do it.

    Raises InputError if the trace is damaged or there is no room.
    """
    # Here, as what else is known of replays takes no NumPy.
    from ztune.trace.content import content_pools
    from ztune.trace.headroom import BY_HOME
    from ztune.trace.ops import RECORD, export_ops

    folder = export_folder(trace.sha)
    with _nothing_left_on_a_full_disk(folder), shared_files.locked(folder / "lock"):
        ops, index = folder / "ops.bin", folder / "files.json"
        if ops.is_file() and index.is_file():
            kept = json.loads(index.read_text())
            files, refused = tuple(OpsFile.of_json(f) for f in kept["files"]), int(kept["refused"])
            cached = kept["cached"]
        else:
            needed = trace.manifest.events * RECORD.itemsize
            room.require(f"what a replay reads of {trace.path.name}", [(folder, needed)], BY_HOME)
            info: OpsInfo = export_ops(trace, ops)
            files, refused, cached = tuple(info.files), info.refused, info.cached
            kept = {"files": [vars(f) for f in files], "refused": refused, "cached": cached}
            with shared_files.replacing(index) as partial:
                partial.write_text(json.dumps(kept))
        warnings = []
        if cached is not None:
            warnings = [CACHED.format(cached / 2**20) if cached >= _WORTH_SAYING else NOTHING_CACHED]
        if refused:
            calls = counted(refused, "read or write", "reads and writes")
            warnings.append(REFUSED.format(calls=calls, are="is" if refused == 1 else "are"))
        content = content_pools(trace, folder, warnings)
        os.utime(folder)
    _prune()
    return Inputs(ops, files, content, tuple(warnings))


def export_folder(sha: str) -> Path:
    """Return the folder of an export, made if missing; nobody removes it before this process ends."""
    folder = paths.cache() / f"{sha[:24]}-{EXPORT_VERSION}"
    _keep(folder)
    return paths.private(folder)


_held: dict[Path, contextlib.ExitStack] = {}
"""Locks of exports until this process ends: an engine may begin to read one at any time."""


def _keep(folder: Path) -> None:
    if folder not in _held:
        held = contextlib.ExitStack()
        held.enter_context(shared_files.locked(shared_files.lock_of(folder), shared=True))
        _held[folder] = held


@contextlib.contextmanager
def _nothing_left_on_a_full_disk(folder: Path) -> Iterator[None]:
    """Remove the export in ``folder`` where the body can't go on for want of room: a database may lie on that
    disk too. What another process reads stays.
    """
    try:
        yield
    except (OSError, ZtuneError) as error:
        if room.is_of_host(error):
            if (held := _held.pop(folder, None)) is not None:
                held.close()
            _drop(folder)
        raise


def _drop(folder: Path) -> None:
    with contextlib.suppress(BlockingIOError):
        lock = shared_files.lock_of(folder)
        with shared_files.locked(lock, wait=False):
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _prune() -> None:
    """Remove the exports that were not used for longest; those in use are locked and stay."""
    # The lab and other parts keep things beside them, which are not ours to remove.
    ours = (f for f in paths.cache().glob(f"{'[0-9a-f]' * 24}-*") if f.is_dir())
    folders = sorted(ours, key=lambda f: f.stat().st_mtime)
    for folder in folders[: max(0, len(folders) - CACHED_TRACES)]:
        if time.time() - folder.stat().st_mtime > 86400:  # it may be wanted again today
            _drop(folder)


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


ALL = Rate(1)
LOADED_WHOLE = 1 << 30
"""Bytes of files up to which all of them are loaded: it takes some 10 s, and no figure is an estimate."""
_LEAST_LOADED = 64 << 20  # what is loaded of each role to know how it compresses, and more
_POINTERS = 64  # of the bytes of a file: block pointers of 128 bytes to records of 8 KiB, twice on disk


def _sampled(inputs: Inputs, rate: Rate) -> Inputs:
    """Return what the engine reads of a sample; made once and kept beside the whole."""
    if rate.of == 1:
        return inputs
    from ztune.trace import sampling  # here, as it takes NumPy

    name = f"sample-{sampling.VERSION}-{rate.of}-{rate.part}-{rate.region}"
    folder = inputs.ops.parent
    ops, index = folder / f"{name}.bin", folder / f"{name}.json"
    with _nothing_left_on_a_full_disk(folder), shared_files.locked(folder / "lock"):
        if ops.is_file() and index.is_file():
            kept = json.loads(index.read_text())
            files, calls = tuple(OpsFile.of_json(f) for f in kept["files"]), tuple(map(tuple, kept["calls"]))
        else:
            made = sampling.sample(inputs.ops, inputs.files, rate, ops)
            files, calls = made.files, made.calls
            with shared_files.replacing(index) as partial:
                partial.write_text(json.dumps({"files": [vars(f) for f in files], "calls": calls}))
    return replace(inputs, ops=ops, files=files, calls=calls)


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
        rate: Rate = ALL,
        load: str = "",
        closed: bool = True,
    ) -> None:
        """``inputs``: what the engine reads, where that is not ``trace`` alone. ``rate``: how much of it is
        replayed. ``load``: "all" of the files, or what is "touched"; empty: all where that is little.
        ``closed``: whether a job that went as fast as it could goes as fast as each layout lets it."""
        self.trace = trace
        self.engine = engine
        self.jobs = jobs
        self.timeout_s = timeout_s or max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * trace.duration_s)
        whole = prepare(trace) if inputs is None else inputs
        if rate.of == 1 and (recorded := trace.manifest.sample) is not None:
            rate = Rate(recorded.of, region=recorded.region)
        self.rate = rate
        self.inputs = _sampled(whole, rate)
        self._load = load
        self.memory = (
            engine_limits.memory_bytes()
        )  # once: engines that run must not make less of those to come
        self._backing = backing
        # A joint replay's jobs have rates of their own, and a sample's threads make some of their calls only.
        self._closed = closed and inputs is None and rate.of == 1 and unpaced(trace)
        known = trace.manifest.environment
        self._host = HostProcessors.of(cores, processor or {}, known.get("cpus"), host_busy.recorded(known))
        self._touched: dict[tuple[int, ...], int] = {}

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
        records = _recordsizes(spec)
        files: list[dict[str, Any]] = [
            _file(layout, f, records, self.inputs.content) for f in self.inputs.files
        ]
        if layout.age is not None:
            age = layout.age
            sizes: Counter[str] = Counter()
            for file, raw in zip(self.inputs.files, files, strict=True):
                sizes[raw["dataset"]] += max(file.size, file.size_end)
                if file.role in REWRITTEN and age.rewrites:
                    raw["rewrite"] = self._rewrite(file.role, age)
            spec = aged(spec, layout, sizes)
            # Stored specs from before clones know none.
            clones = {"clones": age.clones} if age.clones else {}
            spec["age"] = {
                "fill": age.fill, "rewrites": age.rewrites, "snapshots": age.snapshots, **clones
            }  # fmt: skip
        spec = {**sampled(spec, self.rate.of, self.rate.region), "files": files}
        if self.inputs.calls:
            spec["threads"] = [list(one) for one in self.inputs.calls]
        if spec["arc_max"] < MIN_ARC:
            check_rate(self.rate.of, layout.arc, MIN_ARC)
        # What ages is rewritten everywhere.
        if layout.age is None and (self._load or self._default_load) == "touched":
            spec["load"] = "touched"
        return spec

    @cached_property
    def _default_load(self) -> str:
        return "touched" if sum(f.size for f in self.inputs.files) > LOADED_WHOLE else "all"

    def contents_bytes(self, spec: Mapping[str, Any]) -> int:
        """Return an upper estimate of what the pools of a trial hold, bytes."""
        growth = self.written_bytes()
        if not loaded.loads_a_part(spec):
            return contents_bytes(spec, growth)
        records = _recordsizes(spec)
        of_files = {f["id"]: records[f["dataset"]] for f in spec["files"]}
        key = tuple(of_files.values())
        if key not in self._touched:
            from ztune.trace import sampling  # see ``_sampled``

            self._touched[key] = sampling.touched_bytes(self.inputs.ops, self.inputs.files, of_files)
        files = int(sum(f["size"] for f in spec["files"]))
        # Twice: what may be read ahead.
        touched = min(2 * self._touched[key] + _LEAST_LOADED, files)
        return contents_bytes({**spec, "files": [{"size": touched}]}, growth) + files // _POINTERS

    def _rewrite(self, role: str, age: Age) -> dict[str, Any]:
        """Return how the files of a role are rewritten while the pool ages: as they were recorded."""
        write, commits = self._writes.get(role, (WRITE, True))
        return {"write": age.write or write, "in_order": REWRITTEN[role], "commits": commits}

    @cached_property
    def _writes(self) -> dict[str, tuple[int, bool]]:
        """Role → bytes of its usual write, the database's page where that is known; and whether it is
        synced, which is taken of what was only read."""
        from ztune.trace.summary import summarise  # here, as it takes Polars

        pages = self.trace.manifest.page_size
        found: dict[str, tuple[int, bool]] = {}
        for group in summarise(self.trace, files=0).roles:
            moved = group.writes.size_bytes
            usual = min(max(max(moved, key=lambda size: moved[size]), 512), 16 << 20) if moved else WRITE
            synced = group.sync_writes > 0 or not moved
            found[group.name] = pages.get(group.name, usual), synced  # type: ignore[call-overload]
        return found

    @property
    def room(self) -> EngineRoom:
        """What engines may take of this machine."""
        return EngineRoom(self.jobs, self.memory, self._backing)

    def written_bytes(self) -> int:
        """Return an upper bound of what the trace adds to the files, bytes."""
        return sum(max(0, file.size_end - file.size) for file in self.inputs.files)

    def work(self, spec: Mapping[str, Any]) -> EngineWork:
        """Return what an engine is to do for ``spec``."""
        first = loaded.load_spec(spec, self._host.spec())
        content = contents_of(spec, self.inputs)
        read = {name: loaded.identity(path) for name, path in content.items()}
        if loaded.goes_by_operations(spec):
            read["the operations"] = loaded.identity(self.inputs.ops)
        return EngineWork(
            spec, self.inputs.ops, content, loaded.key_of(first, read, self.engine),
            contents=self.contents_bytes(spec), filler=filler_bytes(spec), threads=self.threads(),
            timeout_s=self.timeout_s,
        )  # fmt: skip

    def run(self, spec: Mapping[str, Any], progress: Progress | None, stop: threading.Event) -> Outcome:
        """Run the engine on ``spec``; raises as ``run_engine`` does."""
        return self.read(run_engine(self.work(spec), self.engine, self.room, progress, stop))

    def threads(self) -> dict[str, Any]:
        """Return how the trace's threads go on, and on what processors."""
        operations, commits = operations_of(self.trace), commits_of(self.trace)
        logs = self._logs
        # Each log's commits are told by what its own job did.
        own = [self.inputs.beside if beside else commits for beside in logs.values()]
        return {
            "processor": self._host.spec(),
            "closed": self._closed,
            **({"logs": [list(files) for files in logs]} if logs else {}),
            **({"waits": True} if logs and self._tells_waits() else {}),
            **({"operations": operations} if self._closed or logs else {}),
            **({"log_operations": own} if any(logs.values()) or (logs and commits != operations) else {}),
        }

    def _tells_waits(self) -> bool:
        """Say whether the operations tell whose commits their threads waited for. Those of a sample, and of
        two recordings that are replayed together, do not."""
        alone = not any(file.neighbour for file in self.inputs.files)
        return self.trace.manifest.recorder.waits and self.rate.of == 1 and alone

    @cached_property
    def _logs(self) -> dict[tuple[int, ...], bool]:
        """The files of each log that one thread syncs for all who wait → whether it is a neighbour's."""
        found = (
            (tuple(file.id for file in log), beside)
            for beside in (False, True)
            for log in logs_among(file for file in self.inputs.files if file.neighbour == beside)
        )
        return dict(islice(found, _MOST_LOGS))

    def read(self, outcome: Outcome) -> Outcome:
        """Return the ``outcome`` of an engine with what the trace and its host add to a result."""
        if outcome.result is not None:
            self._host.charge(outcome.result)
            if self._closed:
                speed(outcome.result)
            else:
                pace(outcome.result, self.trace)
        return outcome


def pace(result: dict[str, Any], trace: Trace) -> None:
    """Put into an engine's ``result`` which share of the recorded pace its job kept, ``model.pace``: when its
    time was over, without what it does as it closes; and no less than the recorded time over the whole here,
    as one that commits only after a long scan has none by then. Nothing of an older engine."""
    model = result["measure"].get("model", {})
    kept, recorded = model.get("kept"), model.get("trace_s")
    if not kept or not recorded:
        return
    workload = trace.manifest.workload
    details = {} if workload is None else workload.result.get("details", {})
    closing = min(float(details.get("closing_seconds") or 0.0), recorded)
    # The job ends within one of the parts; the one before is its own.
    last = max(1, int(len(kept) * (1 - closing / recorded)) - 1)
    model["pace"] = min(1.0, max(kept[last - 1], recorded / (model.get("elapsed_s") or math.inf)))


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


def contents_of(spec: Mapping[str, Any], inputs: Inputs) -> dict[str, Path]:
    """Return the content that ``spec`` names: its name there → the file, of the records that it has there."""
    records = _recordsizes(spec)
    names = {
        f[key]: content_name(f[key], records[f["dataset"]])
        for f in spec["files"] for key in ("content", "read", "untouched") if key in f
    }  # fmt: skip
    names |= {f["holds"]: f["holds"] for f in spec["files"] if "holds" in f}
    return {name: inputs.content[known] for name, known in names.items()}


def _recordsizes(spec: Mapping[str, Any]) -> dict[str, int]:
    return {d["name"]: int(d["properties"]["recordsize"]) for d in spec["datasets"] if not d.get("filler")}


def _file(
    layout: Layout, file: OpsFile, records: Mapping[str, int], contents: Collection[str]
) -> dict[str, Any]:
    if file.neighbour:
        name, whose = layout.neighbour_dataset(file.role), CONTENT
    else:
        dataset = layout.dataset_of(file.role)
        assert dataset is not None, file.role  # check() comes first
        name, whose = dataset.name, ""
    content = whose + file.role
    raw: dict[str, Any] = {"id": file.id, "dataset": name, "size": file.size, "content": content}
    if file.embedded:
        raw["holds"] = whose + EMBEDDED
    else:
        for key, which in (("read", READ_BEFORE), ("untouched", UNTOUCHED)):
            if content_name(content + which, records[name]) in contents:
                raw[key] = content + which
    if not file.sampled:
        return raw
    certain = {"certain": [list(one) for one in file.certain]} if file.certain else {}
    whole = {"whole": max(file.whole, file.size), "whole_start": file.whole_start}
    return {**raw, "sampled": True, "of": file.of, **whole, **certain}


def contents_bytes(spec: Mapping[str, Any], growth: int) -> int:
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


def filler_bytes(spec: Mapping[str, Any]) -> int:
    """Return the most that the filler of aged pools takes of files, bytes; of memory it takes none."""
    disks = [d["size"] for p in spec["pools"] for v in p["vdevs"] if v["class"] == "data" for d in v["disks"]]
    return int(sum(disks) * spec.get("age", {}).get("fill", 0) // 100)


def suggested_jobs(spec: Mapping[str, Any], memory: int) -> int:
    """Return how many engines can run at once: one per usable core, fewer where ``memory`` is short.

    ``memory``: bytes for all of them.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, memory // memory_bytes(spec)))
