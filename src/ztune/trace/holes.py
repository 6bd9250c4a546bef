"""Whether a replay takes more space than the recorded files would: its load fills their holes."""

from __future__ import annotations

from collections.abc import Collection

from ztune.trace.manifest import Manifest

LEAST_BYTES = 256 << 20
LEAST_SHARE = 0.25  # of all files that are loaded


def filled_holes(manifest: Manifest, roles: Collection[str]) -> list[str]:
    """Return a sentence if much of the files of ``roles`` that a load writes is zeros or holes, else nothing.

    ZFS keeps no blocks of zeros where it compresses. Where they are a trace does not say, so a load writes
    content there too, but where it has a content of what is not touched, with its zeros.
    """
    sizes: dict[str, int] = {}
    for file in manifest.files:
        if file.role is not None:
            sizes[file.role] = sizes.get(file.role, 0) + file.size_start
    finest = {
        entry.role: entry
        for entry in sorted(manifest.compressibility, key=lambda entry: -entry.recordsize)
        if entry.algorithm == "lz4" and not entry.touched
    }
    filled = {
        role: round(sizes.get(role, 0) * entry.holes / (entry.holes + entry.blocks))
        for role, entry in finest.items()
        if entry.holes and role in roles
    }
    total = sum(filled.values())
    if not total or total < max(LEAST_BYTES, LEAST_SHARE * sum(sizes.values())):
        return []
    most = max(filled, key=lambda role: filled[role])
    said = (
        f"about {total / 2**30:.1f} GiB of the files are holes or zeros, most in those of role {most}; "
        "a replay writes content there, so the space that it says is too large by up to as much"
    )
    return [said]
