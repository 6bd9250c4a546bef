"""Where a layout's pools go on a host of the user's: below a dataset, on disks, or in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ztune.errors import InputError
from ztune.onhost.fields import to_json
from ztune.onhost.layout import CLASSES, check_dataset_name
from ztune.study import Layout, Pool, Study
from ztune.units import counted, parse_size

DEFAULT_FILE_SIZE = "8G"


@dataclass(frozen=True)
class Placing:
    """What the user offers: exactly one of ``parents``, ``disks`` and ``files``.

    ``parents``: pool of the layout → dataset; "*" stands for every pool. ``disks``: pool → class → paths.
    ``files``: a directory; each disk is then a file of ``size``.
    """

    parents: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    files: str | None = None
    size: str = DEFAULT_FILE_SIZE

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError if the layout can't be placed so."""
        for pool in layout.used_pools():
            where = f'layout "{layout.name}" of study "{study.name}"'
            if self.parents:
                self._check_parent(study, layout, pool, where)
            elif self.disks:
                self._check_disks(pool, where)

    def _check_parent(self, study: Study, layout: Layout, pool: Pool, where: str) -> None:
        if pool.name not in self.parents and "*" not in self.parents:
            raise InputError(
                f"{where} has a pool {pool.name}, for which no dataset is named; "
                f"add --parent {pool.name}=POOL/DATASET"
            )
        if pool.filesystem != "zfs":
            raise InputError(
                f"{where} puts {pool.name} on {pool.filesystem}, which needs a disk, not a dataset"
            )
        base = {p.name: p for p in study.layout.pools}.get(pool.name)
        if base is not None and (base.vdevs, base.ashift) != (pool.vdevs, pool.ashift):
            raise InputError(
                f"{where} changes the disks of pool {pool.name}; below a dataset of yours they stay as they "
                "are: name disks with --disk, or leave the layout out with --layouts"
            )

    def _check_disks(self, pool: Pool, where: str) -> None:
        given = self.disks.get(pool.name, {})
        for class_ in CLASSES:
            needed = sum(v.disks for v in pool.of_class(class_))
            have = len(given.get(class_, ()))
            if needed > have:
                what = f"{pool.name}.{class_}" if class_ != "data" else pool.name
                raise InputError(
                    f"{where} needs {counted(needed, f'{class_} disk')} for pool {pool.name}, "
                    f"{have} given; name them with --disk {what}=/dev/…"
                )

    def spec(self, layout: Layout) -> dict[str, Any]:
        """Return the spec's ``place`` for a layout that passed ``check``."""
        pools = layout.used_pools()
        if self.parents:
            every = self.parents.get("*", "")
            return {"kind": "parent", "parents": {p.name: self.parents.get(p.name, every) for p in pools}}
        if self.disks:
            return {"kind": "disks", "disks": {p.name: _dealt(p, self.disks[p.name]) for p in pools}}
        assert self.files is not None
        disks = {
            p.name: {c: [[self.size] * v.disks for v in p.of_class(c)] for c in CLASSES if p.of_class(c)}
            for p in pools
        }
        return {"kind": "files", "dir": self.files, "disks": disks}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the run's record: the one way that is used."""
        used = ("parents",) if self.parents else ("disks",) if self.disks else ("files", "size")
        return {key: value for key, value in to_json(self).items() if key in used}

    @classmethod
    def parse(
        cls,
        *,
        pool: str | None = None,
        parents: Sequence[str] = (),
        disks: Sequence[str] = (),
        files: str | None = None,
        size: str = DEFAULT_FILE_SIZE,
    ) -> Placing:
        """Return what the command line offers. Raises InputError.

        ``parents``: "main=tank/ztune"; ``disks``: "main=/dev/a,/dev/b" or "main.log=/dev/c".
        """
        ways = [w for w, given in (("--pool or --parent", bool(pool or parents)), ("--disk", bool(disks)),
                                   ("--files", files is not None)) if given]  # fmt: skip
        if len(ways) != 1:
            raise InputError(
                "say where the pools go: --pool POOL/DATASET, --disk POOL=/dev/…, or --files DIRECTORY"
                + (f"; {' and '.join(ways)} can't go together" if ways else "")
            )
        try:
            parse_size(size)
        except ValueError as error:
            raise InputError(f"--size: {error}") from None
        if files is not None and not files.startswith("/"):
            raise InputError(f'--files is "{files}"; write an absolute path')
        named = {} if pool is None else {"*": _dataset(pool, f"--pool {pool}")}
        for text in parents:
            name, _, dataset = text.partition("=")
            named[name] = _dataset(dataset, f"--parent {text}")
        return cls(named, _disks(disks), files, size)


def _dataset(name: str, flag: str) -> str:
    try:
        check_dataset_name(name)
        if " " in name:  # ZFS allows it in a pool's name, a trial does not
            raise ValueError
    except ValueError:
        raise InputError(f"{flag}: it names a pool or dataset such as tank/ztune") from None
    return name


def _disks(given: Sequence[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    seen: set[str] = set()
    for text in given:
        left, equals, right = text.partition("=")
        pool, _, class_ = left.partition(".")
        class_ = class_ or "data"
        listed = tuple(path for path in right.split(",") if path)
        if not equals or not pool or not listed or class_ not in CLASSES:
            raise InputError(
                f"--disk {text}: write POOL=/dev/…,/dev/… or POOL.CLASS=/dev/…, CLASS one of "
                f"{', '.join(CLASSES)}"
            )
        for path in listed:
            if not path.startswith("/"):
                raise InputError(f'--disk {text}: "{path}" is not an absolute path')
            if path in seen:
                raise InputError(f"--disk {text}: {path} is named twice")
            seen.add(path)
        found.setdefault(pool, {})
        found[pool][class_] = (*found[pool].get(class_, ()), *listed)
    return found


def _dealt(pool: Pool, given: Mapping[str, tuple[str, ...]]) -> dict[str, list[list[str]]]:
    """Deal the disks of each class to the pool's vdevs, in the order they were named."""
    out: dict[str, list[list[str]]] = {}
    for class_ in CLASSES:
        vdevs, left = pool.of_class(class_), list(given.get(class_, ()))
        if vdevs:
            out[class_] = [[left.pop(0) for _ in range(v.disks)] for v in vdevs]
    return out
