"""How fast a host's processors are at what ZFS does to data, and what a replay's work takes there.

``ztune-engine calibrate`` times each algorithm with OpenZFS's own functions. A replay measures the same
functions at work; its times, multiplied by a host's rates over this machine's, are those of that host.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ztune import files, paths
from ztune.errors import InputError, MissingError
from ztune.onhost.host import about
from ztune.places.engine import Engine, last_line
from ztune.units import format_size

VERSION = 1
OPERATIONS = ("compress", "decompress", "checksum", "parity", "crypt", "copy")
"""What is timed, as the engine's result names it."""
BUSY = 0.25
"""A calibration that waited for processors for a larger share of its own time is not kept: what shares them
also slows what runs, by caches and by hyper-threads."""
_LOOK_S = 0.5  # how long the host is watched before
_TIMEOUT_S = 300.0
# Algorithms that are not timed go by another of their kind: their inner loops are alike.
_LIKE = {"zilog2": "fletcher4", "label": "sha256", "gang_header": "sha256", "zilog": "fletcher2"}

Key = tuple[str, str, int]
"""Operation, algorithm, bytes of a block."""


@dataclass(frozen=True)
class ProcessorRates:
    """A host's rates: ns for each byte of a block. ``processor`` and ``cores``: what it has."""

    processor: str
    cores: int
    openzfs: str
    rates: Mapping[Key, float]

    def to_json(self) -> dict[str, Any]:
        """Return what a file of it holds."""
        return {
            "ztune_processor": VERSION,
            "processor": self.processor,
            "cores": self.cores,
            "openzfs": self.openzfs,
            "rates": [
                {"operation": o, "algorithm": a, "size": size, "ns_per_byte": ns}
                for (o, a, size), ns in sorted(self.rates.items())
            ],
        }

    def rate(self, operation: str, algorithm: str, size: int) -> float | None:
        """Return the ns per byte of the algorithm that is most like ``algorithm`` at the size next to
        ``size``; None where nothing is like it."""
        known = {a for o, a, _ in self.rates if o == operation}
        name = _nearest(algorithm, known)
        at = [(s, ns) for (o, a, s), ns in self.rates.items() if (o, a) == (operation, name)]
        return min(at, key=lambda pair: abs(math.log2((pair[0] + 1) / (size + 1))))[1] if at else None


def _nearest(algorithm: str, known: set[str]) -> str | None:
    """Return ``algorithm``, or what of ``known`` it goes by: the same family at the nearest level."""
    algorithm = _LIKE.get(algorithm, algorithm)
    if algorithm in known:
        return algorithm
    family, level = _level(algorithm)
    of_family = [name for name in known if _level(name)[0] == family]
    return min(of_family, key=lambda name: (abs(_level(name)[1] - level), name), default=None)


def _level(algorithm: str) -> tuple[str, int]:
    """Split "zstd-9" into family and level; "zstd-fast-10" is zstd at level −10."""
    family, _, rest = algorithm.partition("-")
    fast, number = rest.startswith("fast-"), rest.removeprefix("fast-")
    level = int(number) if number.isdigit() else 0
    return family, -level if fast else level


def measure(engine: Engine) -> ProcessorRates:
    """Time this machine's processors, in about four seconds.

    Raises InputError where other programs use them at the same time; MissingError where the engine fails.
    """
    import psutil  # here, as it takes 20 ms to load

    before = psutil.cpu_percent(_LOOK_S) / 100
    try:
        done = subprocess.run(
            [engine.path, "calibrate"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(
            f"the engine {engine.path} can't time this machine's processors: {error}"
        ) from None
    if done.returncode != 0:
        words = last_line(done.stderr) or f"exit code {done.returncode}"
        raise MissingError(f"the engine {engine.path} can't time this machine's processors: {words}")
    try:
        answer = json.loads(done.stdout)
        waited, rates = float(answer["waited"]), _rates(answer["rates"])
    except (ValueError, KeyError, TypeError):
        raise MissingError(
            f"the engine {engine.path} answers `calibrate` with something else than rates"
        ) from None
    if max(waited, before) > BUSY:
        raise InputError(
            f"this machine is busy: its processors were {before:.0%} in use before the calibration, which "
            f"then waited {waited:.0%} of its time; calibrate it when less than {BUSY:.0%} are in use"
        )
    return ProcessorRates(_here(), os.cpu_count() or 1, engine.openzfs, rates)


def _here() -> str:
    return str(about.environment(ask_tools=False)["cpu"] or "unknown")


def read(path: Path) -> ProcessorRates:
    """Read a file of ``ztune doctor --processor``. Raises InputError with what is wrong in it."""
    try:
        text = files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"can't read the calibration {path}: {reason}") from None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the calibration {path} is cut short or no JSON ({error}); "
            "`ztune doctor --processor FILE` makes one"
        ) from None
    found = given.get("ztune_processor") if isinstance(given, dict) else None
    if found is None:
        raise InputError(
            f"{path} is no calibration of a processor; `ztune doctor --processor FILE` makes one"
        )
    if found != VERSION:
        raise InputError(
            f"the calibration {path} has version {found}, this ztune reads version {VERSION}; make it anew "
            "with `ztune doctor --processor FILE` of the same ztune"
        )
    try:
        cores = given["cores"]
        if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
            raise ValueError("cores has to be a whole number from 1")
        return ProcessorRates(str(given["processor"]), cores, str(given["openzfs"]), _rates(given["rates"]))
    except KeyError as error:
        raise InputError(f"the calibration {path} lacks {error}; make it anew") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"the calibration {path} is damaged: {error}; make it anew") from None


def _rates(listed: Any) -> dict[Key, float]:
    if not isinstance(listed, list) or not listed:
        raise ValueError("rates has to be a list with entries")
    rates: dict[Key, float] = {}
    for number, row in enumerate(listed, 1):
        if not isinstance(row, dict) or not {"operation", "algorithm", "size", "ns_per_byte"} <= row.keys():
            raise ValueError(f"entry {number} of rates is not complete")
        ns, size = row["ns_per_byte"], row["size"]
        if row["operation"] not in OPERATIONS:
            raise ValueError(f"entry {number} of rates has the unknown operation {row['operation']!r}")
        if isinstance(ns, bool) or not isinstance(ns, int | float) or not 0 < ns < 1e6:
            raise ValueError(f"entry {number} of rates has no ns_per_byte above 0")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ValueError(f"entry {number} of rates has no size in bytes")
        rates[str(row["operation"]), str(row["algorithm"]), size] = float(ns)
    return rates


@cache
def _shipped() -> list[dict[str, Any]]:
    """Return the rates of replays for which no host is calibrated."""
    text = resources.files("ztune.places").joinpath("processor_rates.toml").read_text("utf-8")
    return [
        {"operation": operation, "algorithm": algorithm, "size": int(size), "ns_per_byte": ns}
        for operation, algorithms in tomllib.loads(text).items()
        for algorithm, sizes in algorithms.items()
        for size, ns in sizes.items()
    ]


def write(path: Path, found: ProcessorRates) -> None:
    """Write ``found`` to ``path``, which the user named."""
    files.write(path, json.dumps(found.to_json(), indent=1) + "\n")


def own(engine: Engine) -> ProcessorRates:
    """Return this machine's calibration with ``engine``'s OpenZFS: the one that is kept, else a new one,
    which is kept."""
    path = paths.private(paths.cache() / "processor") / f"{engine.openzfs}.json"
    here = _here()
    if path.is_file():
        try:
            kept = read(path)
            if kept.processor == here:
                return kept
        except InputError:
            pass  # another version's, or cut short: it is made anew
    found = measure(engine)
    write(path, found)
    return found


@dataclass(frozen=True)
class HostProcessors:
    """Whose processors a replay's work is put on: how many, and how much longer each call takes there than
    here (operation/algorithm/size → times; what is not named, and all where it is empty, takes as long).
    ``rates``: its own, as a calibration lists them; empty: it has none, and the shipped ones stand in.
    ``recorded``: how many the job had when it was recorded, which tells what it does of itself; 0: as many.
    ``busy``: the share of these that was in use; None: not known.
    """

    cores: int
    name: str = ""
    times: Mapping[str, float] | None = None
    rates: Sequence[Mapping[str, Any]] = ()
    recorded: int = 0
    busy: float | None = None

    @classmethod
    def of(
        cls, cores: int | None, kept: Mapping[str, Any], recorded: Any, busy: float | None = None
    ) -> HostProcessors:
        """Return the host of a run: ``kept`` of its calibration (``to_json``; empty: this machine's speed),
        ``cores`` as asked for, else as calibrated, else as ``recorded``, else this machine's. ``busy``: the
        share of the recorded ones that was in use."""
        known = (
            recorded if isinstance(recorded, int) and not isinstance(recorded, bool) and recorded > 0 else 0
        )
        return cls(
            cores or kept.get("cores") or known or os.cpu_count() or 1,
            str(kept.get("name", "")),
            kept.get("times"),
            kept.get("rates", ()),
            known,
            busy,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a run keeps of it."""
        kept: dict[str, Any] = {"name": self.name, "cores": self.cores, "times": dict(self.times or {})}
        return {**kept, "rates": [dict(one) for one in self.rates]}

    def spec(self) -> dict[str, Any]:
        """Return the engine's ``processor``: what the work takes in the replay's own time."""
        recorded = self.recorded or self.cores
        return {"cores": self.cores, "recorded": recorded, "rates": list(self.rates or _shipped())}

    @classmethod
    def like(cls, theirs: ProcessorRates, ours: ProcessorRates, cores: int | None) -> HostProcessors:
        """Return the host of ``theirs`` for results measured on the machine of ``ours``."""
        times = {
            f"{o}/{a}/{s}": theirs_ns / ours_ns
            for (o, a, s), ours_ns in ours.rates.items()
            if (theirs_ns := theirs.rate(o, a, s)) is not None
        }
        return cls(cores or theirs.cores, theirs.processor, times, theirs.to_json()["rates"])

    def _factor(self, operation: str, algorithm: str, size: int) -> float:
        if not self.times:
            return 1.0
        if operation == "parity":  # not timed: vector code as the checksum is
            operation, algorithm = "checksum", "fletcher4"
        keys: dict[Key, float] = {}
        for key, ratio in self.times.items():
            o, a, s = key.rsplit("/", 2)
            keys[o, a, int(s)] = ratio
        found = ProcessorRates("", 1, "", keys).rate(operation, algorithm, size)
        return found if found is not None else self._usual

    @property
    def _usual(self) -> float:
        """How much longer work of which nothing is known takes there than here."""
        return sum(self.times.values()) / len(self.times) if self.times else 1.0

    def charge(self, result: dict[str, Any]) -> None:
        """Put the processors' part into an engine's ``result``: ``measure.processor.host``, and in ``model``
        ``disks_s``, ``processor_s`` and a ``modelled_s`` that is no less than either; where it is known how
        busy the recorded host was, ``host_busy``: the share of the recorded time for which all the
        processors are in use, with what was in use then, above 1 where they can't keep the pace. A result of
        an engine that does not measure it stays as it is.
        """
        measure, model = result["measure"], result["measure"].get("model")
        found = measure.get("processor")
        if not isinstance(found, dict) or not isinstance(model, dict):
            return
        by_operation, by_dataset = dict.fromkeys(OPERATIONS, 0.0), _names(found["datasets"])
        for row in found["calls"]:
            taken = row["seconds"] * self._factor(row["operation"], row["algorithm"], row["size"])
            by_operation[row["operation"]] += taken
            if row["dataset"] in by_dataset:
                by_dataset[row["dataset"]] += taken
        seconds = sum(by_operation.values())
        found["host"] = {
            "name": self.name,
            "cores": self.cores,
            "seconds": seconds,
            **{f"{name}_s": value for name, value in by_operation.items()},
            "datasets": [{"name": name, "seconds": value} for name, value in by_dataset.items()],
        }
        model["disks_s"] = model["modelled_s"]
        model["processor_s"] = seconds / self.cores
        model["modelled_s"] = max(model["disks_s"], model["processor_s"])
        recorded_s = model.get("trace_s")
        if self.busy is not None and recorded_s:
            then = self.busy * (self.recorded or self.cores) / self.cores * self._usual
            model["host_busy"] = then + model["processor_s"] / recorded_s


def _names(datasets: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {str(one["name"]): 0.0 for one in datasets}


def rows(found: ProcessorRates) -> list[tuple[str, ...]]:
    """Return the rates as rows of a table: operation, algorithm, and MB/s at each size."""
    sizes = sizes_of(found)
    names = dict.fromkeys((o, a) for o, a, size in sorted(found.rates) if size)
    return [
        (o, a, *(f"{1e3 / ns:,.0f}" if (ns := found.rates.get((o, a, s))) else "" for s in sizes))
        for o, a in sorted(names, key=lambda pair: (OPERATIONS.index(pair[0]), _level(pair[1])))
    ]


def sizes_of(found: ProcessorRates) -> list[int]:
    """Return the sizes of block that were timed, bytes."""
    return sorted({size for _, _, size in found.rates if size})


def heads(found: ProcessorRates) -> tuple[str, ...]:
    """Return the heads of ``rows``."""
    return ("operation", "algorithm", *(format_size(size) for size in sizes_of(found)))
