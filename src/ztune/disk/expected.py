"""What a shaped disk should measure, by closed formulas from its profile alone.

Independent of the C model in ``disk/src/device.c``: that one plays requests through queue, head and cache,
this one takes expectations. A test holds one against the other. docs/disks.md derives each formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ztune.study.profile import FlashProfile, HddProfile, cache_bytes

LINK_MB_S = 550.0
"""Into the cache of an hdd, MB/s: SATA at 6 Gbit/s less its overhead."""
CACHED_WRITES = 512
"""Separate writes that the cache of an hdd holds."""
STRIP = 64 << 10
"""Bytes of a RAID controller's cache for each separate write: the usual strip."""
QUEUE = 32
"""Requests that a disk chooses from."""
PASSED_OVER = 0.88
"""Of the rate that the nearest of n random requests would give: those that were passed over before lie
farther away than new ones. From playing it through for depths 2 to 32."""
_STEPS = 800

ReadWrite = Literal["read", "write"]
Pattern = Literal["random", "sequential"]


@dataclass(frozen=True)
class Expected:
    """Rates in the long run, at the host's end of the wire."""

    iops: float
    """Requests a second, flushes not counted."""
    mb_s: float
    """10^6 bytes a second."""
    latency_ms: float
    """Mean of a request."""
    flush_ms: float | None
    """Mean of a flush after each write; None without flushes."""


def expected(
    profile: HddProfile | FlashProfile,
    rw: ReadWrite,
    pattern: Pattern,
    bs: int,
    qd: int,
    *,
    fsync: bool = False,
    dilation: float = 1.0,
) -> Expected:
    """Return what a closed loop of ``qd`` requests of ``bs`` bytes over the whole disk should reach.

    Writes: with the cache full, as after some seconds. ``fsync``: a flush after every write, at depth 1
    only (ValueError otherwise). ``dilation``: of the disk's time.
    """
    if fsync and (qd != 1 or rw != "write"):
        raise ValueError("a flush after every write is for writes at queue depth 1")
    flush: float | None = None
    if isinstance(profile, HddProfile):
        each = _hdd(profile, rw, pattern, bs, qd)
        if fsync and profile.flushes_at_once:
            # The write waits for room, the flush for nothing but its command.
            flush = profile.overhead_us / 1e3
            latency = max(each - flush, profile.overhead_us / 1e3 + bs / LINK_MB_S / 1e3)
            each = latency + flush
        elif fsync and cache_bytes(profile):
            # Acknowledged, then the flush: the head's way, the transfer, one rotation and the flush itself.
            latency = profile.overhead_us / 1e3 + bs / LINK_MB_S / 1e3
            way = 0.0 if pattern == "sequential" else mean_seek_ms(profile) + _rotation(profile) / 2
            flush = way + bs / profile.write_mb_s / 1e3 + _rotation(profile) + profile.flush_ms
            each = latency + flush
        elif fsync:
            # Nothing to flush but the command; the write is on the medium already.
            flush = profile.overhead_us / 1e3
            if pattern == "random":
                each += flush
            latency = each - flush
        else:
            latency = each * qd
    else:
        each, latency = _flash(profile, rw, bs, qd)
        if fsync:
            flush = (profile.flush_us + profile.overhead_us) / 1e3
            each += flush
    rate = 1e3 / each / dilation
    return Expected(
        rate, rate * bs / 1e6, latency * dilation, flush * dilation if flush is not None else None
    )


def cached_writes(p: HddProfile | FlashProfile) -> int:
    """Return how many separate writes its cache holds: a disk's own, or that of a controller before it."""
    if not p.flushes_at_once:
        return CACHED_WRITES
    return max(CACHED_WRITES, cache_bytes(p) // STRIP)


def _rotation(p: HddProfile) -> float:
    return 60e3 / p.rpm


def seek_ms(p: HddProfile, share: float) -> float:
    """Return the time to move the head by ``share`` of the disk, ms (docs/engine.md)."""
    if share <= 0:
        return 0.0
    if share < 1 / 3:
        return p.seek_track_ms + (p.seek_avg_ms - p.seek_track_ms) * math.sqrt(3 * share)
    return p.seek_avg_ms + (p.seek_full_ms - p.seek_avg_ms) * (min(share, 1.0) - 1 / 3) * 1.5


def mean_seek_ms(p: HddProfile) -> float:
    """Return the mean seek between two random places: the curve over the density 2(1 - x) of distances."""
    return (
        5 / 9 * p.seek_track_ms
        + 16 / 45 * (p.seek_avg_ms - p.seek_track_ms)
        + 4 / 9 * p.seek_avg_ms
        + 4 / 27 * (p.seek_full_ms - p.seek_avg_ms)
    )


def nearest_ms(p: HddProfile, n: int) -> float:
    """Return the mean positioning time to the nearest of ``n`` requests at random places, in head's time.

    The mean of the least of n is the integral of (1 - F)^n; F is the distribution of seek plus rotation.
    """
    rotation = _rotation(p)
    if n == 1:
        return mean_seek_ms(p) + rotation / 2
    seeks = [(2 * (1 - x), seek_ms(p, x)) for x in ((i + 0.5) / _STEPS for i in range(_STEPS))]
    most = p.seek_full_ms + rotation
    total = 0.0
    for i in range(_STEPS):
        t = (i + 0.5) / _STEPS * most
        within = sum(weight * min(max((t - seek) / rotation, 0.0), 1.0) for weight, seek in seeks) / _STEPS
        total += max(0.0, 1 - within) ** n
    return total / _STEPS * most / PASSED_OVER


def _hdd(p: HddProfile, rw: ReadWrite, pattern: Pattern, bs: int, qd: int) -> float:
    """Return ms for each request."""
    overhead = p.overhead_us / 1e3
    transfer = bs / (p.write_mb_s if rw == "write" else p.read_mb_s) / 1e3
    cache = cache_bytes(p) if rw == "write" else 0
    link = bs / LINK_MB_S / 1e3
    if pattern == "sequential":
        if cache:
            return max(transfer, link, (overhead + link) / qd)
        if rw == "write" and qd == 1:
            # While the host took its time the place has passed: once around.
            return transfer + _rotation(p)
        return max(transfer, (overhead + transfer) / qd)
    if cache:
        # The sweep finds the next of n at a distance that is exponential with the mean 1 / 2n: just ahead of
        # the head they lie twice as close as on average. Once in 2n it goes back.
        n = min(cached_writes(p), max(1, cache // bs))
        seek = p.seek_track_ms + (p.seek_avg_ms - p.seek_track_ms) * math.sqrt(3 / (2 * n)) * math.gamma(1.5)
        each = seek + p.seek_full_ms / (2 * n) + _rotation(p) / 2 + transfer
        return max(each, link, (overhead + link) / qd)
    each = nearest_ms(p, min(qd, QUEUE)) + transfer
    return each + overhead if qd == 1 else each


def _flash(p: FlashProfile, rw: ReadWrite, bs: int, qd: int) -> tuple[float, float]:
    """Return ms for each request at this depth, and its latency."""
    rate = p.write_mb_s if rw == "write" else p.read_mb_s
    latency = p.write_us if rw == "write" else p.read_us
    transfer = bs / rate / 1e3
    alone = max(latency / 1e3 - 4.096 / rate, 0.0) + p.overhead_us / 1e3 + transfer
    each = max(alone / min(qd, p.channels), transfer)
    return each, max(alone, each * qd)
