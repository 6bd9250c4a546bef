"""The study for a trace that no ready study is made for: built from the roles that the trace has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ztune.onhost.words import ROLES
from ztune.study.loader import resolve_profiles
from ztune.study.study import Study

# What is worth trying for each role: random pages; an append-only log; scratch; large sequential files.
_PAGES = ("8K", "16K", "32K", "64K", "128K", "1M")
_AXES: dict[str, dict[str, tuple[str, ...]]] = {
    "data": {
        "recordsize": _PAGES,
        "compression": ("off", "lz4", "zstd-3"),
        "logbias": ("latency", "throughput"),
        "primarycache": ("all", "metadata"),
    },
    "wal": {"recordsize": ("16K", "32K", "128K", "1M"), "logbias": ("latency", "throughput")},
    "index": {"recordsize": _PAGES, "compression": ("off", "lz4", "zstd-3")},
    "temp": {"recordsize": ("32K", "128K", "1M"), "compression": ("off", "lz4")},
    "backup": {"recordsize": ("128K", "1M"), "compression": ("lz4", "zstd-3")},
    "archive": {"recordsize": ("128K", "1M"), "compression": ("lz4", "zstd-3", "gzip-9")},
    "source": {"recordsize": ("128K", "1M"), "primarycache": ("all", "metadata")},
}


def build(
    roles: Iterable[str],
    profile: str = "hdd-7200",
    page_sizes: Mapping[str, int] | None = None,
    together: Collection[str] = (),
) -> Study:
    """Return a study with one dataset for each role on one pool of one disk with ``profile``.

    ``page_sizes`` (bytes, by role): the database's page, tried as a record size of that role too.
    ``together``: roles that can't have another dataset than ``data``, whether there is data or not.
    """
    wanted = set(roles)
    beside = [role for role in ROLES if role in wanted and role in together]
    there = [role for role in ROLES if role in wanted or (role == "data" and beside)]
    names = [role for role in there if role not in beside]
    axes: dict[str, tuple[str | int, ...]] = {}
    for role in names:
        for prop, values in _AXES[role].items():
            axes[f"{role}.{prop}"] = values
        page = (page_sizes or {}).get(role)
        key = f"{role}.recordsize"
        if page is not None and page & (page - 1) == 0 and 4096 <= page <= 1 << 20:
            text = f"{page >> 10}K" if page < 1 << 20 else "1M"
            if text not in axes[key]:
                axes[key] = (text, *axes[key])
    if profile != "nvme" and any(role in names for role in ("data", "wal", "index")):
        axes["slog"] = ("none", "nvme")
    study = Study.model_validate(
        {
            "name": "generic",
            "description": "One dataset for each role of the trace, on one disk",
            "layout": {
                "pool": [{"name": "tank", "vdev": [{"profile": profile}]}],
                "dataset": [
                    {"name": f"tank/{role}", "roles": [role, *(beside if role == "data" else ())]}
                    for role in names
                ],
            },
            "axes": axes,
            "cross": [["data.recordsize", "data.compression"]] if "data" in names else [],
        }
    )
    return resolve_profiles(study)
