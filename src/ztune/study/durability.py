"""What a power cut may lose under a layout, and why."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ztune.databases.database import Combined, own
from ztune.databases.switch import switch
from ztune.onhost.declared import ANY, KNOWN
from ztune.onhost.layout import Dataset, Layout
from ztune.onhost.tunables import NO_FLUSHES
from ztune.onhost.words import DurabilityClass
from ztune.study import profiles
from ztune.units import parse_size

# Nothing on these must survive a power cut: databases empty their temporary files at the start, and a source
# is only read.
_EXPENDABLE = {"temp", "source"}
# These must agree with each other after a power cut: the log describes changes to the rest.
_COUPLED = {"data", "index", "wal"}
# These hold the database's pages.
_PAGED = {"data", "index"}
_Answer = tuple[DurabilityClass, str]


@dataclass(frozen=True)
class _Known:
    """What the folders of ztune's own databases declare of their settings.

    A layout does not say whose settings it has, so a name means the same in all of them (a test).
    """

    answers: Mapping[str, Mapping[str, _Answer]]
    """Setting → value → class and sentence."""
    neutral: frozenset[str]
    combined: tuple[Combined, ...]
    torn: Mapping[str, int]
    """Settings that protect against torn pages → the page size where none is set."""
    pages: Mapping[str, int]
    """Settings that hold the size of a page → the bytes that they count in."""
    direct: Mapping[str, Sequence[str]]
    """Settings that have files of ``_PAGED`` opened with O_DIRECT → the values."""


@functools.cache
def _known() -> _Known:
    facts = [one.facts for one in own()]
    settings = {name: setting for one in facts for name, setting in one.durability.settings.items()}
    return _Known(
        {name: setting.answers(name) for name, setting in settings.items() if setting.torn_page is None},
        frozenset(name for one in facts for name in one.durability.neutral),
        tuple(combined for one in facts for combined in one.durability.combined),
        {name: setting.torn_page for name, setting in settings.items() if setting.torn_page is not None},
        {name: unit for one in facts for name, unit in one.settings.pages.items()},
        {name: values for one in facts for name, values in one.settings.direct.items()},
    )


def torn_page_settings(database: str) -> tuple[str, ...]:
    """Return the settings of one of ztune's own databases that protect pages larger than a record; none of a
    database that is not known."""
    return tuple(
        name
        for one in own()
        if one.name == database
        for name, setting in one.facts.durability.settings.items()
        if setting.torn_page is not None
    )


_DIRECT_IO = "Direct I/O"

# What stands in a judgement for the database as a whole.
_THE_DATABASE = "the database"


@dataclass(frozen=True)
class Judgement:
    """What a power cut may lose, and the sentences behind it; notes that do not change the class come last.

    ``proven``: the worst class that what is known brings, such as ZFS's own settings. ``unknown``: what
    nobody has declared, as ``name=value``.
    """

    proven: DurabilityClass
    unknown: tuple[str, ...]
    reasons: tuple[str, ...]
    disks: tuple[str, ...] = ()
    """Profiles of disks of which nobody has declared what becomes of their cache: the class holds if they
    keep what they were told to flush."""
    but_direct: DurabilityClass | None = None
    """The worst class without what a fault of OpenZFS does to Direct I/O; None: it does nothing here."""

    @property
    def exposed(self) -> str:
        """What that fault does here, as a sentence without its end; "" if nothing."""
        return "" if self.but_direct is None else next(r for r in self.reasons if r.startswith(_DIRECT_IO))

    @property
    def besides(self) -> DurabilityClass:
        """The worst class but for that fault: what the layout itself asks for."""
        return self.proven if self.but_direct is None else self.but_direct

    @property
    def klass(self) -> DurabilityClass:
        """The durability class."""
        if self.unknown and self.proven is not DurabilityClass.CORRUPT:  # nothing is worse
            return DurabilityClass.NOT_KNOWN
        return self.proven

    def no_weaker(self, than: Judgement) -> bool:
        """Say whether a power cut is known to lose no more than under ``than``.

        What is not known is no weaker than the very same.
        """
        return (
            self.unknown == than.unknown
            and self.proven.rank <= than.proven.rank
            and self.besides.rank <= than.besides.rank
        )


@dataclass(frozen=True)
class Bar:
    """Which layouts compete: those of no worse class than ``worst`` in which the same is ``unknown``.

    So a layout of a database that nobody has declared is compared with its like and with nothing else.
    ``direct``: the base is exposed to the fault of OpenZFS in Direct I/O, and so may be what competes; it
    lets nothing else in.
    """

    worst: DurabilityClass
    unknown: tuple[str, ...] = ()
    direct: bool = False

    @classmethod
    def of(cls, allowed: DurabilityClass, base: Layout | None) -> Bar:
        """Return the bar of an objective; ``base`` is what the user lives with today, so it is admitted."""
        if base is None:
            return cls(allowed)
        judged = judge(base)
        worst = max(allowed, judged.besides, key=lambda c: c.rank)
        return cls(worst, judged.unknown, judged.but_direct is not None)

    def admits(self, layout: Layout) -> bool:
        """Say whether ``layout`` competes: one with checksum=off never does, whatever is allowed."""
        if any(d.properties["checksum"] == "off" for d in layout.datasets):
            return False
        judged = judge(layout)
        klass = judged.besides if self.direct else judged.proven
        return judged.unknown == self.unknown and klass.rank <= self.worst.rank


def judge(layout: Layout) -> Judgement:
    """Return the durability class of ``layout``, the worst that any setting brings, and why."""
    found: list[tuple[DurabilityClass, str]] = []
    notes: list[str] = []
    seconds = layout.tunables.get("zfs_txg_timeout", 5)
    zfs = any(p.filesystem == "zfs" for p in layout.used_pools())
    found += _sync(layout, seconds)
    for dataset in layout.datasets:
        if dataset.properties["checksum"] == "off":
            found.append(
                (DurabilityClass.CORRUPT, f"checksum=off on {dataset.name}: damaged data is returned unseen")
            )
    caches = _caches(layout)
    if zfs:
        found += _unflushed(layout, caches, notes)
    past = _past_the_flush(layout, caches, notes) if zfs else []
    found += _database(layout, notes)
    unknown = _declared(layout, found)
    _logbias(layout, notes)
    if zfs and seconds > 5:
        notes.append(
            f"zfs_txg_timeout={seconds}: what was written but never synced may be lost up to "
            f"{seconds} s back instead of 5"
        )
    for pool in layout.used_pools():
        if pool.filesystem != "zfs":
            # ext4: data=ordered and barriers are its defaults (ext4(5)); XFS has always had both.
            notes.append(
                f"pool {pool.name} is {pool.filesystem}: fsync waits for the disk as on ZFS, but data has no "
                "checksums, so damage is returned unseen"
            )
        logs = [v for v in pool.vdevs if v.class_ == "log"]
        if any(v.kind == "stripe" for v in logs):
            notes.append(
                f"the log device of pool {pool.name} is not mirrored: its failure together with a "
                "power cut loses the "
                f"last {seconds} s of acknowledged commits"
            )
        if any(v.class_ == "special" and v.kind == "stripe" for v in pool.vdevs) and any(
            v.class_ == "data" and v.kind != "stripe" for v in pool.vdevs
        ):
            notes.append(
                f"the special vdev of pool {pool.name} has no redundancy: its failure loses the whole pool"
            )
    found += _disks(caches)
    besides = _worst(found)
    found += past
    proven = _worst(found)
    _write_caches(caches, proven, notes)
    found.sort(key=lambda item: -item[0].rank)
    return Judgement(
        proven,
        tuple(unknown),
        (*unknown.values(), *(text for _, text in found), *notes),
        tuple(dict.fromkeys(one.profile for one in caches if one.cache == "not-known")),
        besides if past else None,
    )


def _worst(found: Sequence[_Answer]) -> DurabilityClass:
    return max((c for c, _ in found), key=lambda c: c.rank, default=DurabilityClass.NOTHING)


def smallest_record(layout: Layout) -> tuple[int, str]:
    """Return the smallest recordsize of the datasets with pages of the database, and "zfs".

    Where one of them is on another file system, on a volume too, that one's name, and 0: it writes pages of
    the page cache in place, in any order, and a page may reach a volume in two transaction groups.
    """
    paged = [d for d in layout.datasets if _PAGED.intersection(d.roles)]
    for dataset in paged:
        filesystem = dataset.filesystem or layout.pool(dataset.pool).filesystem
        if filesystem != "zfs":
            return 0, filesystem
    return min((parse_size(d.properties["recordsize"]) for d in paged), default=0), "zfs"


def weakening(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a database's ``settings`` that weaken durability, and what is needed to judge them."""
    found = {
        n: v for n, v in settings.items() if (a := _answer(n, v)) and a[0] is not DurabilityClass.NOTHING
    }
    torn = {n: v for n, v in settings.items() if n in _known().torn and switch(v) == "off"}
    pages = {n: v for n, v in settings.items() if torn and n in _known().pages}
    combined = {
        name
        for one in _known().combined
        if one.holds(settings) or found.keys() & one.settings.keys()
        for name in one.settings
    }
    return {**found, **torn, **pages, **{n: v for n, v in settings.items() if n in combined}}


def is_combined(name: str) -> bool:
    """Say whether a database's setting weakens durability together with others."""
    return any(name in one.settings for one in _known().combined)


def _answer(name: str, value: str) -> tuple[DurabilityClass, str] | None:
    answers = _known().answers.get(name, {})
    return answers.get(value.lower(), answers.get(ANY))


def _sync(layout: Layout, seconds: int) -> list[tuple[DurabilityClass, str]]:
    """Judge sync=disabled.

    A pool comes back at one transaction group. Where every dataset that must agree is unsynced and on one
    pool, that is a consistent moment some seconds ago. Where only some are, the synced ones come back newer
    than the others: data pages ahead of their log, or a log whose older part was recycled because the data
    was thought safe.
    """
    disabled = [
        d for d in layout.datasets if d.properties["sync"] == "disabled" and not set(d.roles) <= _EXPENDABLE
    ]
    if not disabled:
        return []
    coupled = [d for d in layout.datasets if set(d.roles) & _COUPLED]
    off: list[Dataset] = [d for d in coupled if d in disabled]
    names = ", ".join(d.name for d in disabled)
    if off and (len(off) < len(coupled) or len({d.pool for d in coupled}) > 1):
        return [
            (
                DurabilityClass.CORRUPT,
                f"sync=disabled on {names}: data and log come back from a power cut at different moments",
            )
        ]
    return [
        (
            DurabilityClass.LAST_SECONDS,
            (
                f"sync=disabled on {names}: a power cut loses what was acknowledged in about the last "
                f"{seconds} s"
            ),
        )
    ]


@dataclass(frozen=True)
class _Cache:
    """The write caches of the disks of one profile that do one thing for a pool."""

    pool: str
    log: bool
    profile: str
    cache: str

    def text(self) -> str:
        """Say which they are."""
        what = "log devices" if self.log else "disks"
        return f"the {what} of pool {self.pool} ({self.profile})"


def _caches(layout: Layout) -> list[_Cache]:
    """Return the write caches that a power cut meets; what is in an L2ARC need not survive."""
    found = dict.fromkeys(
        (pool.name, vdev.class_ == "log", vdev.profile)
        for pool in layout.used_pools()
        for vdev in pool.vdevs
        if vdev.class_ != "cache"
    )
    shipped = profiles.shipped_caches()
    return [
        _Cache(pool, log, name, layout.disks.get(name) or shipped.get(name, "not-known"))
        for pool, log, name in found
    ]


_KEPT = ("protected", "none")


def _unflushed(layout: Layout, caches: Sequence[_Cache], notes: list[str]) -> list[_Answer]:
    """Judge module parameters that leave flushes out."""
    found: list[_Answer] = []
    for name, klass, loses in (
        (NO_FLUSHES[0], DurabilityClass.CORRUPT, "corrupts the pool"),
        (NO_FLUSHES[1], DurabilityClass.LAST_SECONDS, "loses log records"),
    ):
        if layout.tunables.get(name) != 1:
            continue
        lost = next((one for one in caches if one.cache not in _KEPT), None)
        if lost is None:
            names = ", ".join(dict.fromkeys(one.profile for one in caches))
            notes.append(f"{name}=1 is safe only as long as the write caches of {names} are protected")
        else:
            found.append((klass, f"{name}=1: without a protected write cache a power cut {loses}"))
    return found


def asks_direct(settings: Mapping[str, str]) -> frozenset[str] | None:
    """Return the roles that a database with these ``settings`` opens with O_DIRECT; None: they don't say."""
    said = [settings[n].lower() in values for n, values in _known().direct.items() if n in settings]
    return frozenset(_PAGED if any(said) else ()) if said else None


def is_direct(name: str) -> bool:
    """Say whether a database's setting decides on O_DIRECT."""
    return name in _known().direct


def _past_the_flush(layout: Layout, caches: Sequence[_Cache], notes: list[str]) -> list[_Answer]:
    """Judge what a fault of OpenZFS from 2.3 on does to Direct I/O (tests/lab/test_lab_direct_cut.py): a sync
    has the disks flushed that its log records lie on, and not those that whole records went to before.
    """
    roles = asks_direct(_settings(layout))
    asked = set(layout.direct) if roles is None else roles
    found: list[_Answer] = []
    for dataset in layout.datasets:
        pool, how = layout.pool(dataset.pool), dataset.properties.get("direct", "standard")
        past = how == "always" or (how == "standard" and not asked.isdisjoint(dataset.roles))
        exposed = past and dataset.properties["sync"] != "disabled" and not set(dataset.roles) <= _EXPENDABLE
        apart = sum(v.disks if v.kind == "stripe" else 1 for v in pool.vdevs if v.class_ != "cache") > 1
        if not exposed or not apart or pool.filesystem != "zfs" or dataset.volume is not None:
            continue
        where = f"{_DIRECT_IO} on {dataset.name}, whose log may lie on other disks than its records"
        lost = [one for one in caches if one.pool == pool.name and not one.log and one.cache not in _KEPT]
        if lost:
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    (
                        f"{where}: OpenZFS from 2.3 on does not have these flushed at a sync, so a power cut "
                        "takes pages that were synced; direct=disabled keeps them (docs/durability.md, What "
                        "was found in OpenZFS)"
                    ),
                )
            )
        else:
            notes.append(f"{where}, is safe only as long as the disks' write caches are protected")
    return found


def _disks(caches: Sequence[_Cache]) -> list[_Answer]:
    """Judge the disks that don't do what they are told to flush."""
    found: list[_Answer] = []
    for one in caches:
        if one.cache == "ignores-flushes" and one.log:
            found.append(
                (
                    DurabilityClass.LAST_SECONDS,
                    f"{one.text()} ignore flushes: a power cut loses commits that were acknowledged",
                )
            )
        elif one.cache == "ignores-flushes":
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    (
                        f"{one.text()} ignore flushes: a power cut takes what they said was written, and "
                        "the pool may not come back"
                    ),
                )
            )
    return found


def _write_caches(caches: Sequence[_Cache], proven: DurabilityClass, notes: list[str]) -> None:
    """Note what the promise of a layout of class ``proven`` rests on."""
    for one in caches:
        if one.cache == "volatile" and proven is DurabilityClass.NOTHING:
            notes.append(
                f"{one.text()} have a volatile write cache: a power cut loses nothing acknowledged only "
                "because they are told to flush it"
            )
        elif one.cache == "not-known":
            notes.append(f"nobody has declared that {one.text()} keep what is flushed: cache in the profile")


def _logbias(layout: Layout, notes: list[str]) -> None:
    """Note what logbias=throughput exposes to a fault of OpenZFS (tests/lab/test_lab_mount_pool.py)."""
    indirect = [
        d.name
        for d in layout.datasets
        if layout.pool(d.pool).filesystem == "zfs"
        and d.properties["logbias"] == "throughput"
        and d.properties["sync"] != "disabled"
        and not set(d.roles) <= _EXPENDABLE
    ]
    if indirect:
        notes.append(
            f"logbias=throughput on {', '.join(indirect)}: if a file is written, "
            "cut short and written again between two syncs, "
            "a power cut can take the last of it (docs/durability.md, What was found in OpenZFS)"
        )


def _declared(layout: Layout, found: list[_Answer]) -> dict[str, str]:
    """Judge the database's settings by what is declared; return what is not, each with its sentence."""
    declared = layout.declared or KNOWN
    unknown: dict[str, str] = {}
    default = declared.default
    if default is None and not declared.known:
        unknown[_THE_DATABASE] = (
            "nobody has declared what a power cut loses of this database ([durability], default)"
        )
    elif default is not None and default is not DurabilityClass.NOTHING:
        found.append((default, f"the database as it is set: declared to be {default}"))
    # What a default of ours says is of settings that are not touched, not of the workload's own.
    spoken_of = declared.own if default is not None or not declared.known else {}
    for name, value in _settings(layout).items():
        klass = declared.answer(name, value)
        if klass is not None:
            if klass is not DurabilityClass.NOTHING:
                found.append((klass, f"{name}={value}: declared to be {klass}"))
        elif (
            name not in declared.neutral
            and spoken_of.get(name) != value
            and not (declared.known and _is_known(name, value))
        ):
            unknown[f"{name}={value}"] = (
                f"{name}={value}: nobody has declared what a power cut loses with it ([durability])"
            )
    return unknown


def _settings(layout: Layout) -> dict[str, str]:
    """Return the database's settings: those it has anyway, overridden by the layout's."""
    if layout.declared is None:
        return dict(layout.database)
    return {**layout.declared.own, **layout.declared.made_by(layout.workload), **layout.database}


def _is_known(name: str, value: str) -> bool:
    """Say whether ztune knows what a database's setting means for durability."""
    return (
        name in _known().neutral
        or _answer(name, value) is not None
        or (name in _known().torn and switch(value) is not None)
    )


def _database(layout: Layout, notes: list[str]) -> list[tuple[DurabilityClass, str]]:
    if layout.declared is not None and not layout.declared.known:
        return []  # another database may mean something else by the same name
    settings = _settings(layout)
    said = [_answer(name, settings[name]) for name in _known().answers if name in settings]
    found = [answer for answer in said if answer is not None and answer[0] is not DurabilityClass.NOTHING]
    found += [(one.class_, one.why) for one in _known().combined if one.holds(settings)]
    recordsize, filesystem = smallest_record(layout)
    for name, page in _known().torn.items():
        if switch(settings.get(name, "")) != "off":
            continue
        sizes = [parse_size(settings[n]) * unit for n, unit in _known().pages.items() if n in settings]
        size = next(iter(sizes), page)
        if filesystem != "zfs":
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    f"{name}=off on {filesystem}, which writes in place and not a page at once: torn pages",
                )
            )
        elif recordsize < size:
            found.append(
                (
                    DurabilityClass.CORRUPT,
                    f"{name}=off with recordsize {recordsize} below the page size {size}: torn pages",
                )
            )
        else:
            notes.append(
                f"{name}=off is safe here only because ZFS writes a record of at least one page at once; "
                "copies made elsewhere than on ZFS are not protected"
            )
    return found
