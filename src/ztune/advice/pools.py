"""Advice that is not a dataset property: log device, pools, sector size, ARC, module parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztune.advice.evidence import Changes
from ztune.advice.model import Change, PoolAdvice
from ztune.analysis import units
from ztune.analysis.effects import ABSENT
from ztune.analysis.results import LayoutResult
from ztune.onhost.tunables import TUNABLES
from ztune.study import default_setting

# A log device holds the synced writes of the transaction groups that are not on disk yet: one open, one
# quiescing, one syncing (the three states of a txg).
LIVE_TXGS = 3
# Settings of a pool that are always spoken of, by the last word of their factor.
_POOL = {
    "data": ("Data vdevs", "The disks that the layout ran on."),
    "slog": ("Log device (SLOG)", "Where a commit waits for its log record."),
    "l2arc": ("Cache device (L2ARC)", "Keeps what the ARC lets go; each block on it costs memory."),
    "special": ("Special vdev", "Holds metadata, and small blocks if special_small_blocks says so."),
    "ashift": ("Sector size", "Set when a vdev is made; it can't be changed."),
    "filesystem": ("File system", "ZFS, or another one in its place as a baseline."),
}


def pool_advice(found: Changes, screened: Changes | None, trace_s: float | None) -> list[PoolAdvice]:
    """Return one entry for each setting that is no dataset property: set, varied, or always asked about.

    ``screened``: what a screening says of the same layout, to stand beside what was measured.
    """
    chosen = found.chosen
    varied = {
        key
        for c in found.layouts
        for key in {*c.settings, *chosen.settings}
        if c.settings.get(key) != chosen.settings.get(key)
    }
    if chosen.basis == "modelled":
        return _modelled(found, varied, trace_s)
    return _measured(found, screened, varied)


def modelled_change(screened: Changes | None, factor: str) -> Change | None:
    """Return what a screening says of one setting; None where it was not screened."""
    found = None if screened is None else screened.change(factor)
    return found if found is not None and found.sides else None


def _modelled(found: Changes, varied: set[str], trace_s: float | None) -> list[PoolAdvice]:
    chosen = found.chosen
    out: list[PoolAdvice] = []

    def add(subject: str, key: str, reason: str, value: str | None = None) -> None:
        shown = value or chosen.settings.get(key, ABSENT)
        advice = PoolAdvice(
            subject=subject, setting=key, value=shown, reason=reason, change=found.change(key)
        )
        out.append(advice)

    for i, pool in enumerate(chosen.layout.pools):
        if pool not in chosen.layout.used_pools():
            continue
        prefix = f"pool.{pool.name}."
        many = f" of pool {pool.name}" if len(chosen.layout.used_pools()) > 1 else ""
        add(f"Data vdevs{many}", prefix + "data", "The disks that the study describes.")
        slog = "slog" if i == 0 else prefix + "slog"
        add(f"Log device (SLOG){many}", slog, _slog(chosen, chosen.settings.get(slog, "none"), trace_s))
        add(
            f"Sector size{many}",
            prefix + "ashift",
            f"ashift {pool.ashift} is {1 << pool.ashift:,} bytes; "
            "it is set when a vdev is made and can't be changed.",
        )
        for short, subject, why in (
            ("special", "Special vdev", "Holds metadata, and small blocks if special_small_blocks says so."),
            ("l2arc", "Cache device (L2ARC)", "Keeps what the ARC lets go; each block on it costs memory."),
        ):
            key = short if i == 0 else prefix + short
            if chosen.settings.get(key, "none") != "none" or key in varied:
                add(f"{subject}{many}", key, why)
    for dataset in chosen.layout.datasets[1:]:
        key = f"{dataset.key}.pool"
        first = chosen.layout.datasets[0]
        if dataset.pool != first.pool or key in varied:
            where = "a pool of its own" if dataset.pool != first.pool else f"the same pool as {first.key}"
            add(
                f"Pool of {dataset.key}",
                key,
                f"{dataset.key} lives on {where} ({dataset.pool}). A pool of its own "
                "separates the disks' work, but no snapshot covers two pools at one moment.",
            )
    add(
        "ARC",
        "arc",
        "The memory that the replay gave the ARC; what it keeps is not read again. "
        "Give it what the host can spare beside the database's own cache.",
    )
    for key in sorted({*chosen.settings, *varied}):
        if key.startswith("tunable."):
            known = TUNABLES.get(key.removeprefix("tunable."))
            value = chosen.settings.get(key)
            if known is not None and value is None:
                value = "its default" if known.default is None else known.text(known.default)
            add(key.removeprefix("tunable."), key, known.doc if known else "", value)
        elif key.startswith("database."):
            add(
                key.removeprefix("database."),
                key,
                "A setting of the database itself; the replay does not vary it.",
            )
    return out


def _measured(found: Changes, screened: Changes | None, varied: set[str]) -> list[PoolAdvice]:
    chosen = found.chosen
    out = []
    many = len(chosen.layout.used_pools()) > 1
    unused = {p.name for p in chosen.layout.pools} - {p.name for p in chosen.layout.used_pools()}
    for key in sorted({*chosen.settings, *varied}):
        head, _, tail = key.rpartition(".")
        name = key.split(".")[1] if key.startswith("pool.") else chosen.layout.pools[0].name
        pool_key = key.startswith("pool.") or key in _POOL
        if pool_key and (
            name in unused or (tail in {"l2arc", "special", "filesystem"} and key not in varied)
        ):
            continue
        value = chosen.settings.get(key, default_setting(key) or ABSENT)
        if pool_key and tail in _POOL:
            subject, why = _POOL[tail]
            subject += f" of pool {name}" if many else ""
        elif key == "arc":
            subject, why = "ARC", "The memory that the ARC had; what it keeps is not read again."
        elif key.startswith("tunable."):
            subject, why = tail, "A parameter of the kernel module."
        elif key.startswith("database."):
            subject, why = tail, "A setting of the database itself."
        elif tail in {"pool", "volume", "filesystem"} and key in varied:
            subject = {"pool": "Pool", "volume": "Volume", "filesystem": "File system on the volume"}[tail]
            subject, why = f"{subject} of {head}", "Where the role lives."
        else:
            continue
        out.append(
            PoolAdvice(
                subject=subject,
                setting=key,
                value=value,
                reason=why,
                change=found.change(key),
                modelled=modelled_change(screened, key),
            )
        )
    return out


def _slog(chosen: LayoutResult, value: str, trace_s: float | None) -> str:
    zil: Any = chosen.measure.get("zil")
    zil = zil if isinstance(zil, Mapping) else {}
    commits = zil.get("commits")
    text = f"{units.count(commits)} ZIL commits in the replay. " if isinstance(commits, int | float) else ""
    if value == "none":
        if commits == 0:
            return text + "Nothing was synced, so a log device would have nothing to do."
        return text + "Without a log device they go to the data disks, in blocks set aside for the log."
    size = zil.get("slog_bytes")
    if isinstance(size, int | float) and trace_s:
        seconds = chosen.layout.tunables.get("zfs_txg_timeout", 5)
        need = size / trace_s * seconds * LIVE_TXGS
        text += (
            f"A commit waits for the log device only. It holds at most the last {LIVE_TXGS} "
            f"transaction groups: about {units.amount(need)} at the recorded rate. "
            "Latency and power-loss protection matter, size does not."
        )
    else:
        text += "A commit waits for the log device only."
    return text
