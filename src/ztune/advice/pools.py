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
# By the last word of a setting's factor: what it is, and whether it is spoken of where nothing was set or
# varied.
_POOL = {
    "data": ("Data vdevs", True),
    "slog": ("Log device (SLOG)", True),
    "ashift": ("Sector size (ashift)", True),
    "special": ("Special vdev", False),
    "l2arc": ("Cache device (L2ARC)", False),
    "filesystem": ("File system", False),
}
_OF_FIRST = {"slog", "special", "l2arc"}  # the first pool's have no prefix
_NOT_SET = {"none", "zfs"}


def pool_advice(found: Changes, screened: Changes | None, trace_s: float | None) -> list[PoolAdvice]:
    """Return one entry for each setting that is no dataset property: set, varied, or always asked about.

    ``screened``: what a screening says of the same layout, to stand beside what was measured. ``trace_s``:
    how long the recording took.
    """
    chosen = found.chosen
    modelled, layout = chosen.basis == "modelled", chosen.layout
    varied = {
        key
        for c in found.layouts
        for key in {*c.settings, *chosen.settings}
        if c.settings.get(key) != chosen.settings.get(key)
    }
    out: list[PoolAdvice] = []

    def add(subject: str, key: str, reason: str, value: str | None = None) -> None:
        shown = value or chosen.settings.get(key, default_setting(key) or ABSENT)
        change, before = found.change(key), modelled_change(screened, key)
        out.append(
            PoolAdvice(
                subject=subject, setting=key, value=shown, reason=reason, change=change, modelled=before
            )
        )

    used = layout.used_pools()
    for i, pool in enumerate(layout.pools):
        if pool not in used:
            continue
        why = {
            "data": f"The disks that the {'study describes' if modelled else 'layout ran on'}.",
            "ashift": f"ashift {pool.ashift} is {1 << pool.ashift:,} bytes; "
            "it is set when a vdev is made and can't be changed.",
            "special": "Holds metadata, and small blocks if special_small_blocks says so.",
            "l2arc": "Keeps what the ARC lets go; each block on it costs memory.",
            "filesystem": "ZFS, or another one in its place as a baseline.",
        }
        for short, (subject, always) in _POOL.items():
            key = short if i == 0 and short in _OF_FIRST else f"pool.{pool.name}.{short}"
            value = chosen.settings.get(key, "none")
            if always or value not in _NOT_SET or key in varied:
                why["slog"] = _slog(chosen, value, trace_s)
                add(subject + (f" of pool {pool.name}" if len(used) > 1 else ""), key, why[short])
    first = layout.datasets[0]
    for dataset in layout.datasets:
        key = f"{dataset.key}.pool"
        if dataset.pool != first.pool or (key in varied and dataset is not first):
            where = "a pool of its own" if dataset.pool != first.pool else f"the same pool as {first.key}"
            add(
                f"Pool of {dataset.key}",
                key,
                f"{dataset.key} lives on {where} ({dataset.pool}). A pool of its own "
                "separates the disks' work, but no snapshot covers two pools at one moment.",
            )
        for short, subject in (("volume", "Volume"), ("filesystem", "File system on the volume")):
            if (key := f"{dataset.key}.{short}") in varied:
                add(f"{subject} of {dataset.key}", key, "Where the role lives.")
    add(
        "ARC",
        "arc",
        f"The memory that the {'replay gave the ARC' if modelled else 'ARC had'}; what it keeps is not read "
        "again. Give it what the host can spare beside the database's own cache.",
    )
    for key in sorted({*chosen.settings, *varied}):
        kind, _, name = key.partition(".")
        if kind == "tunable":
            known = TUNABLES.get(name)
            unset: str | None = None
            if known is not None and key not in chosen.settings:
                unset = "its default" if known.default is None else known.text(known.default)
            add(name, key, known.doc if known else "", unset)
        elif kind == "database":
            more = "; no layout of this run varies it" if modelled and key not in varied else ""
            add(name, key, f"A setting of the database itself{more}.")
        elif kind == "workload":
            add(f"{name} of the load", key, "What the load does, not what ZFS is set to: set it in the load.")
    return out


def modelled_change(screened: Changes | None, factor: str) -> Change | None:
    """Return what a screening says of one setting; None where it was not screened."""
    found = None if screened is None else screened.change(factor)
    return found if found is not None and found.sides else None


def _slog(chosen: LayoutResult, value: str, trace_s: float | None) -> str:
    if chosen.basis != "modelled":
        return "Where a commit waits for its log record."
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
