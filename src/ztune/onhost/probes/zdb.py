"""Space as ``zdb`` finds it by walking every block pointer of the pool: exact, by kind of block."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from ztune.errors import ZtuneError
from ztune.onhost.probes import devzfs, vdevs
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.probe import Cost, Probe, needs_root, needs_zfs

_TOTALS = {
    "bp count": "blocks",
    "ganged count": "ganged",
    "bp logical": "logical",
    "bp physical": "physical",
    "bp allocated": "allocated",
}
_CLASSES = {
    "Normal class": "normal",
    "Special class": "special",
    "Dedup class": "dedup",
    "Embedded log class": "embedded_log",
    "Log class": "log",
}


def parse_blocks(text: str) -> dict[str, Any]:
    """Return what ``zdb -bbP`` says of a pool's blocks.

    Bytes of all block pointers: ``logical`` (uncompressed), ``physical`` (compressed; no parity, no copies),
    ``allocated`` (with both). ``types``: the same three by kind of block. ``classes``: bytes allocated by
    class of device, as the space maps have it. ``leaked``: True when blocks and space maps differ.
    Raises ZtuneError when there is no such summary.
    """
    found: dict[str, Any] = {"classes": {}, "types": {}}
    for line in text.partition("Block Size Histogram")[0].splitlines():
        name, colon, rest = line.strip().partition(":") if ":" in line else _spaced(line)
        words = rest.split()
        if colon and words and words[0].isdigit():
            if name in _TOTALS:
                found[_TOTALS[name]] = int(words[0])
            elif name in _CLASSES:
                found["classes"][_CLASSES[name]] = int(words[0])
            continue
        columns = re.split(r"\s+", line.strip(), maxsplit=7)
        # Blocks, LSIZE, PSIZE, ASIZE, average, compression, share, kind.
        if len(columns) == 8 and all(c.isdigit() for c in columns[:4]):
            if columns[7] in ("Total", "Metadata Total"):
                continue
            found["types"][columns[7]] = {
                "blocks": int(columns[0]),
                "logical": int(columns[1]),
                "physical": int(columns[2]),
                "allocated": int(columns[3]),
            }
    if "allocated" not in found:
        raise ZtuneError("zdb printed no sum of blocks")
    found["leaked"] = "No leaks" not in text
    return found


def _spaced(line: str) -> tuple[str, str, str]:
    """Return name, mark, rest of "Embedded log class     0  used: …", which has no colon after its name."""
    match = re.match(r"\s*([A-Z][a-z]+(?: [a-z]+)* class)\s+(\d.*)", line)
    return (match[1], ":", match[2]) if match else ("", "", "")


class ZdbProbe(Probe):
    """The pool's blocks, counted one by one."""

    name: ClassVar[str] = "zdb"
    measures: ClassVar[str] = (
        "space by kind of block, found by `zdb -bb`, which reads every block pointer of the pool after the "
        "window, and whether it agrees with the pool's space maps"
    )
    cost: ClassVar[Cost] = "after"
    default: ClassVar[bool] = False
    options = {"timeout": 1800.0, "tries": 3.0}  # noqa: RUF012 - never changed

    @classmethod
    def available(cls, context: Context) -> str | None:
        """It needs root, zdb, and a pool that is ztune's: a user's would be read as a whole."""
        if reason := needs_zfs(context) or needs_root("zdb"):
            return reason
        return (
            None
            if any(p.ours for p in context.zfs_pools)
            else "zdb would read all of a pool that is not ztune's"
        )

    def begin(self) -> None:
        """Nothing is read before the end."""

    def freeze(self) -> None:
        """Nothing is read in the window."""

    def finish(self) -> dict[str, Any]:
        """Run zdb for every pool of ours.

        zdb finds the pool by its disks (-e), which it only reads; it never goes through the module. What is
        written meanwhile makes it stumble, so it is tried again.
        """
        found: dict[str, Any] = {}
        for pool in self.context.zfs_pools:
            if not pool.ours:
                continue
            argv = ["zdb", "-e"]
            for leaf in vdevs.leaves(devzfs.pool_stats(pool.name)):
                if leaf.class_ != "cache":
                    argv += ["-p", leaf.path]
            problem = ""
            for _ in range(max(1, int(self.option["tries"]))):
                try:
                    self.context.command(["zpool", "sync", pool.name])
                    text = self.context.command([*argv, "-bbP", pool.guid], timeout=self.option["timeout"])
                    listed = self.context.command(["zpool", "list", "-Hp", "-o", "allocated", pool.name])
                    found[pool.layout_name] = parse_blocks(text) | {"zpool_allocated": int(listed)}
                    break
                except (ZtuneError, ValueError) as error:
                    problem = str(error)
            else:
                self.context.warn(f"probe zdb, pool {pool.layout_name}: {problem}")
        return {"pools": found}
