"""Advice that is not a dataset property: log device, pools, sector size, ARC, module parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ztune.advice.evidence import change
from ztune.advice.model import PoolAdvice
from ztune.analysis import units
from ztune.analysis.candidates import Candidate
from ztune.analysis.effects import ABSENT, Pair
from ztune.study.tunables import TUNABLES

# A log device holds the synced writes of the transaction groups that are not on disk yet: one open, one
# quiescing, one syncing (the three states of a txg).
LIVE_TXGS = 3


def pool_advice(
    chosen: Candidate,
    candidates: Sequence[Candidate],
    defaults: Mapping[str, str],
    pairs: Sequence[Pair],
    minimise: Sequence[str],
    within: float,
    trace_s: float | None,
) -> list[PoolAdvice]:
    """Return one entry for each setting that is no dataset property: set, varied, or always asked about."""
    varied = {
        key
        for c in candidates
        for key in {*c.settings, *chosen.settings}
        if c.settings.get(key) != chosen.settings.get(key)
    }
    out: list[PoolAdvice] = []

    def add(subject: str, key: str, reason: str, value: str | None = None) -> None:
        shown = value or chosen.settings.get(key, ABSENT)
        evidence = change(chosen, key, defaults, candidates, pairs, minimise, within)
        out.append(PoolAdvice(subject=subject, setting=key, value=shown, reason=reason, change=evidence))

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


def _slog(chosen: Candidate, value: str, trace_s: float | None) -> str:
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
