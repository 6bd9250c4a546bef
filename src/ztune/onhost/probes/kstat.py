"""Reads OpenZFS's kernel statistics, ``/proc/spl/kstat/zfs``: text in, numbers out.

Formats: named kstats have a line of module facts, a line of headings, then ``name type value``; type 7 is
text, 3 and 4 are numbers (spl-kstat.c). ``txgs`` is a table with its own headings (spa_stats.c); before 2.0
it had the line of facts too. All counters only grow, except those that are sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

ROOT = Path("/proc/spl/kstat/zfs")


def parse_named(text: str) -> dict[str, int]:
    """Return the numbers of a named kstat by name; text values are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines()[2:]:
        fields = line.split()
        if len(fields) == 3 and fields[1] != "7":
            try:
                found[fields[0]] = int(fields[2])
            except ValueError:
                continue
    return found


def pick(text: str, names: Collection[str]) -> dict[str, int]:
    """Return some numbers of a named kstat: for readings that are taken often."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in names:
            found[name] = int(rest.split()[1])
    return found


def dataset_name(text: str) -> str:
    """Return the dataset that an ``objset-0x…`` kstat is about; empty when it does not say."""
    for line in text.splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[0] == "dataset_name":
            return fields[2].rstrip()
    return ""


def parse_txgs(text: str) -> list[dict[str, int | str]]:
    """Return the rows of a ``txgs`` kstat, oldest first.

    Keys are its headings: txg, birth (ns), state (O open, Q quiescing, W waiting, S syncing, C committed),
    ndirty, nread, nwritten (bytes), reads, writes (I/Os), otime, qtime, wtime, stime (ns in each state).
    """
    heads: list[str] = []
    rows: list[dict[str, int | str]] = []
    for line in text.splitlines():
        fields = line.split()
        if fields[:2] == ["txg", "birth"]:
            heads = fields
        elif heads and len(fields) == len(heads):
            rows.append({h: f if h == "state" else int(f) for h, f in zip(heads, fields, strict=True)})
    return rows


def parse_assign(text: str) -> dict[int, int]:
    """Return the histogram of a ``dmu_tx_assign`` kstat: upper bound in ns → transactions."""
    found: dict[int, int] = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) == 3 and fields[0].isdigit() and fields[1] == "4":
            found[int(fields[0])] = int(fields[2])
    return found


def read(name: str, root: Path = ROOT) -> dict[str, int]:
    """Return a named kstat below ``root``, such as "arcstats"; empty when this release has none."""
    try:
        return parse_named((root / name).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return {}


def read_text(name: str, root: Path = ROOT) -> str:
    """Return the text of a kstat; empty when this release has none."""
    try:
        return (root / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def objset_files(pools: Iterable[str], names: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """Return dataset → its kstat's file, for the mounted ones of ``names`` in ``pools``."""
    wanted = set(names)
    found: dict[str, Path] = {}
    for path in (path for pool in pools for path in sorted((root / pool).glob("objset-*"))):
        try:
            name = dataset_name(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if name in wanted:
            found[name] = path
    return found


def committed(text: str) -> int | None:
    """Return the last transaction group that is on the disks, None when the kstat tells of none."""
    done = [row["txg"] for row in parse_txgs(text) if row["state"] == "C"]
    return max((int(txg) for txg in done), default=None)


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return after − before for every name of ``after``; a name that is new counts from 0."""
    return {name: value - before.get(name, 0) for name, value in after.items()}


def moved(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the differences that are not 0."""
    return {name: value for name, value in difference(before, after).items() if value}
