"""Measures a disk with fio and fits a profile to it. docs/disks.md derives the formulas."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ztune.disk.expected import mean_seek_ms
from ztune.disk.fio import Figures, FioJob
from ztune.study import profiles
from ztune.study.profile import PROFILE, FlashProfile, HddProfile
from ztune.units import format_size

DiskKind = Literal["hdd", "flash"]
Run = Callable[[FioJob], Figures]
Progress = Callable[[int, int, str], None]

LEAST = 1 << 30
"""Bytes below which a disk's own caches are all that would be measured."""
SPEEDS = (4200, 5400, 5900, 7200, 10000, 15000)
"""Rotations a minute of disks that were made."""
SHORT = 1e-3
"""Share of the disk over which a seek is almost one to the next track."""
NO_HEAD_MS = 1.5
"""Random reads faster than this come from no rotating disk: at 15000 rpm half a rotation alone takes 2 ms."""
DEPTHS = (8, 32, 128)
"""Queue depths tried to find how much a flash disk does at the same time."""


@dataclass
class MeasuredProfile:
    """A profile, what it was made of, and what could not be measured."""

    profile: HddProfile | FlashProfile
    figures: dict[str, Figures] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "profile": self.profile.model_dump(mode="json"),
            "figures": {name: asdict(found) for name, found in self.figures.items()},
            "notes": self.notes,
        }

    def to_toml(self) -> str:
        """Return the profile file, with the notes as comments."""
        lines = [f"# {note}" for note in self.notes]
        for key, value in self.profile.model_dump().items():
            if value is None or value == "":
                continue
            lines.append(f"{key} = {_toml(value)}")
        return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = re.sub(r"[\x00-\x1f\x7f]", " ", str(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def jobs(kind: DiskKind, size: int, seconds: float, write: bool) -> dict[str, FioJob]:
    """Return the jobs that a disk of ``size`` bytes is measured by, by name, in their order."""
    whole = size // 4096 * 4096

    def reads(share: float) -> FioJob:
        return FioJob("randread", 4096, 1, seconds, 0, max(int(share * whole) // 4096 * 4096, 16 << 20))

    def at(share: float) -> FioJob:
        # Sequential, at three places: outer tracks pass faster under the head.
        offset = int(share * whole) >> 20 << 20
        return FioJob("read", 1 << 20, 8, max(seconds / 3, 1.0), offset, max(whole // 8, 64 << 20))

    found: dict[str, FioJob] = {
        "sequential reads at the beginning": at(0),
        "sequential reads in the middle": at(0.5),
        "sequential reads at the end": at(0.875),
    }
    if kind == "hdd":
        found["sequential reads of 4 KiB"] = FioJob("read", 4096, 1, max(seconds / 3, 1.0), 0, whole)
        found["random reads over a thousandth"] = reads(SHORT)
        found["random reads over a third"] = reads(1 / 3)
        found["random reads over the whole"] = reads(1)
        found["random reads at both ends"] = FioJob("randread", 4096, 1, seconds, 0, whole, ends=True)
    else:
        found["random reads, one at a time"] = reads(1)
        for qd in DEPTHS:
            found[f"random reads, {qd} at a time"] = FioJob("randread", 4096, qd, seconds, 0, whole)
    if write:
        # The first seconds only fill the disk's cache.
        found["sequential writes"] = FioJob("write", 1 << 20, 8, seconds, 0, whole, warm_s=seconds / 2)
        if kind == "flash":
            found["random writes, one at a time"] = FioJob("randwrite", 4096, 1, seconds, 0, whole, warm_s=1)
        found["writes, each with a flush"] = FioJob("write", 4096, 1, seconds, 0, whole, fsync=True)
    return found


def measure(
    run: Run,
    kind: DiskKind,
    size: int,
    name: str,
    source: str,
    *,
    seconds: float = 8.0,
    write: bool = False,
    progress: Progress = lambda *_: None,
) -> MeasuredProfile:
    """Measure a disk of ``size`` bytes and return its profile.

    ``run`` runs a job on it; ``seconds`` is the time of one. Raises what ``run`` does.
    """
    figures: dict[str, Figures] = {}
    todo = jobs(kind, size, seconds, write)
    for number, (what, job) in enumerate(todo.items(), 1):
        progress(number, len(todo), what)
        figures[what] = run(job)
    return fit(figures, kind, size, name, source)


def really(run: Run, kind: DiskKind, size: int) -> tuple[DiskKind, str]:
    """Return the kind of a disk that the kernel calls ``kind``, and why if that is another.

    Virtual disks are called rotating by default. Half a second of random reads says more.
    """
    if kind == "flash":
        return kind, ""
    found = run(FioJob("randread", 4096, 1, 0.5, 0, size // 4096 * 4096)).latency_ms
    if found > NO_HEAD_MS:
        return kind, ""
    return "flash", (
        f"the kernel calls this disk rotating, but random reads take {found:.2f} ms, less than any head "
        "needs (or its host caches it); measured as flash, --kind hdd overrules that"
    )


def fit(figures: dict[str, Figures], kind: DiskKind, size: int, name: str, source: str) -> MeasuredProfile:
    """Return the profile that gives these figures; the keys are those of ``jobs``."""
    notes: list[str] = []
    ends = [
        figures[f"sequential reads {at}"].mb_s for at in ("at the beginning", "in the middle", "at the end")
    ]
    read: float = sorted(ends)[1]
    raw: dict[str, Any] = {
        "name": name,
        "description": f"{format_size(size)} {'rotating disk' if kind == 'hdd' else 'flash disk'}, measured",
        "source": source,
        "kind": kind,
        "rotational": kind == "hdd",
        "size": size,
        "read_mb_s": _round(read),
    }
    if max(ends) > 1.15 * min(ends):
        notes.append(
            f"sequential reads differ by place: {ends[0]:.0f} MB/s at the beginning, {ends[2]:.0f} at the "
            "end; the profile has the middle one"
        )
    if "sequential writes" in figures:
        raw["write_mb_s"] = _round(figures["sequential writes"].mb_s)
    else:
        raw["write_mb_s"] = raw["read_mb_s"]
        notes.append("write_mb_s not measured (--write does): taken to be read_mb_s")
    (_fit_hdd if kind == "hdd" else _fit_flash)(raw, figures, notes)
    notes.append(
        "the write cache can't be measured without cutting the power: "
        + ("64 MiB" if kind == "hdd" else "32 MiB")
        + ' is assumed; set cache = "protected" if the disk has power-loss protection, or "volatile" if not, '
        "so that ztune knows what a power cut means"
    )
    return MeasuredProfile(PROFILE.validate_python(raw), figures, notes)


def _round(value: float) -> float:
    """Return three significant digits: the measurement has no more."""
    return float(f"{value:.3g}")


def _fit_hdd(raw: dict[str, Any], figures: dict[str, Figures], notes: list[str]) -> None:
    transfer = 4096 / raw["read_mb_s"] / 1e3
    overhead = max(figures["sequential reads of 4 KiB"].latency_ms - transfer, 0.0)
    short = figures["random reads over a thousandth"]
    # Over a short way all that varies is where the platter is: evenly between none and one rotation.
    rpm = 60e3 / max((short.p95_ms - short.p5_ms) / 0.9, 0.1)
    near = min(SPEEDS, key=lambda speed: abs(speed / rpm - 1))
    if abs(near / rpm - 1) < 0.06:
        rpm = near
    else:
        notes.append(
            f"rpm = {rpm:.0f} is none of the usual speeds: is this a single rotating disk, and idle?"
        )
    rotation = 60e3 / rpm

    def seek(what: str) -> float:
        rest: float = figures[what].latency_ms - overhead - transfer - rotation / 2
        return max(rest, 0.0)

    # Mean seek over a share s of the disk up to a third: track + (avg - track) · 8/15 · √(3s).
    low, high = 8 / 15 * math.sqrt(3 * SHORT), 8 / 15
    a, b = seek("random reads over a thousandth"), seek("random reads over a third")
    slope = max((b - a) / (high - low), 0.0)
    track = max(a - slope * low, 0.05)
    average = track + slope
    # At both ends: every second seek crosses, by 0.98 of the disk on average; others stay within a fiftieth.
    stay = track + slope * 8 / 15 * math.sqrt(3 * 0.02)
    cross = 2 * seek("random reads at both ends") - stay
    full = average + max(cross - average, 0.0) * (2 / 3) / (0.98 - 1 / 3)
    raw |= {
        "rpm": round(rpm),
        "seek_track_ms": _round(track),
        "seek_avg_ms": _round(max(average, track, 0.01)),
        "seek_full_ms": _round(max(full, average, track, 0.01)),
        "overhead_us": _round(overhead * 1e3),
    }
    # What was not used for the fit must follow from it.
    model = HddProfile.model_validate({**raw, "flush_ms": 0})
    whole = figures["random reads over the whole"].latency_ms
    predicted = overhead + mean_seek_ms(model) + rotation / 2 + transfer
    if abs(whole / predicted - 1) > 0.1:
        notes.append(
            f"random reads over the whole disk took {whole:.2f} ms, the profile gives {predicted:.2f}: "
            "the disk was busy, or does not have one head; treat the profile as rough"
        )
    flush = _flush_ms(figures)
    if flush is not None:
        flush = max(flush - rotation - 4096 / raw["write_mb_s"] / 1e3, 0.0)
    _take(raw, notes, "flush_ms", flush, "hdd-7200")


def _fit_flash(raw: dict[str, Any], figures: dict[str, Figures], notes: list[str]) -> None:
    one = figures["random reads, one at a time"]
    best = max(figures[f"random reads, {qd} at a time"].iops for qd in DEPTHS)
    channels = max(1, round(best * one.latency_ms / 1e3))
    raw |= {"read_us": _round(one.latency_ms * 1e3), "channels": min(channels, 4096), "overhead_us": 0.0}
    if channels > 1 and best * 4096 / 1e6 > 0.9 * raw["read_mb_s"]:
        notes.append("channels: reads were as fast as the disk's link, so there may be more")
    alike = "nvme" if raw["read_mb_s"] > 800 else "usb-slow" if raw["read_mb_s"] < 60 else "ssd-sata"
    write, flush = figures.get("random writes, one at a time"), _flush_ms(figures)
    _take(raw, notes, "write_us", None if write is None else write.latency_ms * 1e3, alike)
    _take(raw, notes, "flush_us", None if flush is None else flush * 1e3, alike)


def _flush_ms(figures: dict[str, Figures]) -> float | None:
    found = figures.get("writes, each with a flush")
    return None if found is None else found.flush_ms


def _take(raw: dict[str, Any], notes: list[str], key: str, measured: float | None, alike: str) -> None:
    """Set ``key`` to what was measured, else to that of the profile ``alike``, which a note then says."""
    if measured is None:
        raw[key] = getattr(profiles.find(alike), key)
        notes.append(f"{key} not measured (--write does): that of the profile {alike}")
    else:
        raw[key] = _round(measured)
