"""From a recommendation and a live system to a plan: what changes, what it leaves as it is, what it can't do.

A plan is data; nothing here runs a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from ztune.advice.commands import check_answer, properties, stronger, weakens
from ztune.advice.host import HostProperty, Live, LiveDataset, LivePool, canonical
from ztune.advice.model import Recommendation
from ztune.analysis import units
from ztune.databases.database import every
from ztune.errors import InputError
from ztune.onhost.layout import VdevKind, check_dataset_name
from ztune.onhost.properties import PROPERTIES, feature_of, lacks_feature, version_key
from ztune.onhost.tunables import ARC_MAX, NO_FLUSHES, PARAMETERS, TUNABLES
from ztune.onhost.words import ROLES
from ztune.study import Dataset, DurabilityClass, Layout, Pool
from ztune.study.durability import Judgement, judge, torn_page_settings
from ztune.study.layout import parse_layout
from ztune.units import format_size, listed, parse_size

REWRITE_SINCE = "2.3.4"  # zfs-rewrite(8)
MAX_RECORDSIZE = "zfs_max_recordsize"
LARGEST_BEFORE = (1 << 20, "2.2")  # that by default before that version; 16M from it on


@dataclass(frozen=True)
class PropertyChange:
    """One property of one dataset that is to change."""

    dataset: str
    guid: str
    name: str
    value: str
    before: HostProperty
    why: str

    @property
    def keeps(self) -> bool:
        """Whether it only keeps what is there, which the dataset would lose by inheriting another value."""
        return canonical(self.name, self.before.value) == self.value

    @property
    def command(self) -> list[str]:
        """The command that makes the change."""
        return ["zfs", "set", f"{self.name}={self.value}", self.dataset]

    @property
    def undo(self) -> list[str]:
        """The command that takes it back: the former value, or inheriting it again where it was not local."""
        if self.before.source == "local":
            return ["zfs", "set", f"{self.name}={self.before.value}", self.dataset]
        received = ["-S"] if self.before.source == "received" else []
        return ["zfs", "inherit", *received, self.name, self.dataset]


@dataclass(frozen=True)
class Target:
    """One live dataset and what becomes of it."""

    dataset: LiveDataset
    roles: tuple[str, ...]
    settings: tuple[PropertyChange, ...] = ()
    already: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()
    followers: tuple[tuple[str, str, str], ...] = ()  # dataset below, property it inherits, its value now
    rewrite: tuple[str, ...] = ()  # how to bring what is already written into the new form
    commands: tuple[str, ...] = ()  # the commands for that

    @property
    def following(self) -> tuple[str, ...]:
        """What inherits and changes with it: a sentence for each dataset below."""
        followers: dict[str, list[str]] = {}
        for name, prop, value in self.followers:
            followers.setdefault(name, []).append(f"{prop} (now {value})")
        return tuple(
            f"{name} inherits and changes with it: {', '.join(props)}." for name, props in followers.items()
        )


@dataclass(frozen=True)
class Plan:
    """What ``ztune apply`` would do, and all that it would not."""

    run: str
    layout: str
    layout_hash: str
    evidence: str
    host: str
    version: str
    targets: tuple[Target, ...]
    unmapped: tuple[str, ...]  # roles of the layout that no dataset was named for
    pool: tuple[str, ...]  # sentences on the pool; never done
    pool_commands: tuple[str, ...]
    restart: tuple[str, ...]  # sentences on the database and the kernel module; never done
    restart_commands: tuple[str, ...]
    before: DurabilityClass  # as far as it is known: no change of ours touches what the database does
    after: DurabilityClass
    reasons: tuple[str, ...]  # what decides ``after``
    unknown: tuple[str, ...] = ()  # what nobody has declared, so that it may be worse than ``after``
    hazards: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = field(default=())  # why it can't be done as a whole

    @property
    def settings(self) -> tuple[PropertyChange, ...]:
        """All changes, in the order in which they are made: a dataset before those below it."""
        return tuple(s for t in self.targets for s in t.settings)

    @property
    def weaker(self) -> bool:
        """Whether the changes give up durability that the datasets have now."""
        return self.after.rank > self.before.rank


def parse_datasets(words: Sequence[str], layout: Layout) -> dict[str, str]:
    """Return role → dataset from "data=tank/pg" …; raises InputError for all else and other roles."""
    out: dict[str, str] = {}
    for word in words:
        role, equals, name = word.partition("=")
        name = name.strip("/")
        if not equals or not name:
            raise InputError(f'--dataset is "{word}"; write ROLE=POOL/DATASET, such as data=tank/pg')
        known = [r for d in layout.datasets for r in d.roles]
        if role not in ROLES or role not in known:
            raise InputError(
                f'--dataset is "{word}", but the layout has no role "{role}"; its roles are '
                f"{', '.join(known)}"
            )
        if role in out and out[role] != name:
            raise InputError(f"role {role} is given two datasets, {out[role]} and {name}; it lives on one")
        try:
            check_dataset_name(name)
        except ValueError:
            blank = " that ztune takes: ZFS allows a blank there, ztune does not" if " " in name else ""
            raise InputError(f'--dataset is "{word}", but "{name}" is not a dataset name{blank}') from None
        out[role] = name
    return out


def applicable(recommendation: Recommendation) -> Layout:
    """Return the layout; raises InputError where it is not ZFS, so that there is nothing to set, and where it
    is no answer for the recorded database."""
    check_answer(recommendation)
    layout = parse_layout(recommendation.layout)
    other = [p for p in layout.used_pools() if p.filesystem != "zfs"]
    if other:
        raise InputError(
            f'run {recommendation.subject.run} recommends "{recommendation.layout_name}", which is '
            f"{other[0].filesystem} and not ZFS: there are no properties to set"
        )
    return layout


def parameters(layout: Layout) -> list[str]:
    """Return the module parameters that a plan for ``layout`` wants to know."""
    return list(dict.fromkeys([ARC_MAX, MAX_RECORDSIZE, *NO_FLUSHES, *sorted(layout.tunables)]))


def build(recommendation: Recommendation, mapping: Mapping[str, str], live: Live) -> Plan:
    """Return the plan for the live datasets that ``mapping`` (role → name) names.

    Raises InputError where two datasets of the layout that want different things live on one dataset.
    """
    layout = applicable(recommendation)
    wanted = wanted_by_name(layout, mapping)
    now = {name: dict(live.datasets[name].properties) for name in wanted}
    targets: list[Target] = []
    refused: list[str] = []
    for name in sorted(wanted, key=lambda n: (n.count("/"), n)):
        dataset, roles = wanted[name]
        targets.append(
            _target(recommendation, layout, dataset, roles, live.datasets[name], live, now, refused)
        )
    then = {t.dataset.name: t.dataset.properties for t in targets}
    before = _judge(layout, mapping, then, live)
    mixed = _with_old_records(now, targets)
    after = _judge(layout, mapping, mixed, live)
    reasons, copied = after.reasons, _judge(layout, mapping, now, live).proven
    worse = after.proven
    torn_before = _torn_without(recommendation, layout, mapping, then, live, before)
    torn_after = _torn_without(recommendation, layout, mapping, mixed, live, after)
    if unread := [name for name in torn_after if name not in torn_before]:
        worse = max(worse, DurabilityClass.NOT_KNOWN, key=lambda one: one.rank)
        said = f"the new record size is smaller than the database's pages: without {listed(unread)} a power "
        reasons = (f"{said}cut tears them, and what the server has set was not read", *reasons)
    if copied is not after.proven:
        reasons += (f"the files that are there keep their record size: {copied} once they are copied",)
    pool, pool_commands = _pools(layout, mapping, live)
    restart, restart_commands = _restart(layout, live)
    mapped = {role for d in layout.datasets for role in d.roles if any(r in mapping for r in d.roles)}
    return Plan(
        run=recommendation.subject.run,
        layout=recommendation.layout_name,
        layout_hash=recommendation.layout_hash,
        evidence=recommendation.evidence(),
        host=live.host,
        version=live.version,
        targets=tuple(targets),
        unmapped=tuple(r for d in layout.datasets for r in d.roles if r not in mapped),
        pool=tuple(pool),
        pool_commands=tuple(pool_commands),
        restart=tuple(restart),
        restart_commands=tuple(restart_commands),
        before=before.proven,
        after=worse,
        unknown=after.unknown,
        reasons=reasons,
        hazards=_hazards(recommendation, layout, mapping),
        warnings=tuple(recommendation.warnings),
        refused=tuple(refused),
    )


# Rules on the disks and pools that the layout was tried on: the live ones are others, and are compared.
_OF_POOLS = {"pool", "slog", "special", "l2arc", "ashift"}
_SAID = {"recordsize-new-files", "atime-on"}  # the plan says it itself, of the live datasets


def _hazards(recommendation: Recommendation, layout: Layout, mapping: Mapping[str, str]) -> tuple[str, ...]:
    """Return what can go wrong, with the live datasets' names in place of the layout's."""
    names = {
        dataset.name: next((mapping[r] for r in dataset.roles if r in mapping), "")
        for dataset in layout.datasets
    }
    known = {name: live for name, live in names.items() if live}
    longest = sorted(known, key=len, reverse=True)
    pattern = re.compile("|".join(rf"{re.escape(name)}(?![\w/-])" for name in longest))
    return tuple(
        f"{h.severity}: {pattern.sub(lambda m: known[m[0]], h.sentence) if known else h.sentence}"
        for h in recommendation.hazards
        if h.about not in _OF_POOLS and h.id not in _SAID
    )


def wanted_by_name(layout: Layout, mapping: Mapping[str, str]) -> dict[str, tuple[Dataset, tuple[str, ...]]]:
    """Return live dataset → the layout's dataset for it, and the roles that live there.

    Raises InputError where a dataset would have to be two of the layout's at once, or the other way round.
    """
    out: dict[str, tuple[Dataset, tuple[str, ...]]] = {}
    for dataset in layout.datasets:
        names = {mapping[role] for role in dataset.roles if role in mapping}
        if len(names) > 1:
            raise InputError(
                f"{', '.join(dataset.roles)} share one dataset in this layout, but --dataset gives them "
                f"{' and '.join(sorted(names))}; name one of these, or set the other by hand"
            )
        for name in names:
            if name not in out:
                out[name] = (dataset, dataset.roles)
                continue
            first, roles = out[name]
            one, other = properties(first, layout), properties(dataset, layout)
            differ = [k for k in {**one, **other} if one.get(k) != other.get(k)]
            if differ or first.volume != dataset.volume:
                raise InputError(
                    f"{first.key} and {dataset.key} both live on {name}, but the layout gives them a "
                    f"different {differ[0] if differ else 'volume'}; make {dataset.key} a dataset of its "
                    f"own first (zfs create {shlex.quote(f'{name}/{dataset.key}')}, and move its files there)"
                )
            out[name] = (first, (*roles, *dataset.roles))
    return out


def _why(recommendation: Recommendation, dataset: Dataset, name: str) -> str:
    for role in recommendation.roles:
        if role.dataset == dataset.name:
            for item in role.properties:
                if item.name == name:
                    return " ".join(t for t in (item.reason, item.change.sentence) if t)
    return "No database needs access times." if name == "atime" else ""


def _target(
    recommendation: Recommendation,
    layout: Layout,
    dataset: Dataset,
    roles: tuple[str, ...],
    here: LiveDataset,
    live: Live,
    now: dict[str, dict[str, HostProperty]],
    refused: list[str],
) -> Target:
    """Plan one dataset. ``now``: the values of all targets after the changes so far; this adds its own."""
    if (dataset.volume is not None) != here.is_volume:
        return Target(here, roles, impossible=(_other_kind(dataset, here),))
    mine = now[here.name]
    settings: list[PropertyChange] = []
    already: list[str] = []
    kept: list[str] = []
    impossible: list[str] = []
    wanted = properties(dataset, layout)
    # What the layout leaves open stays as it is, also where a dataset above gets another value.
    before = {n: canonical(n, v.value) for n, v in here.properties.items() if n in PROPERTIES}
    wanted |= {n: v for n, v in before.items() if n not in wanted and v != canonical(n, mine[n].value)}
    for name, value in wanted.items():
        if name not in PROPERTIES:  # keyformat, which goes with encryption
            continue
        known = PROPERTIES[name]
        if (here.is_volume and not known.volumes) or (known.volume_only and not here.is_volume):
            continue
        if version_key(known.needs(value)) > version_key(live.version):
            if not known.needless(value):
                refused.append(
                    f"{name}={value} needs OpenZFS {known.needs(value)}; {live.host} has {live.version}"
                )
            continue
        current = mine.get(name)
        if current is None or current.value == "-":
            continue
        if canonical(name, current.value) == value:
            already.append(f"{name}={value}")
            continue
        shown = canonical(name, current.value)
        if known.at_creation:
            impossible.append(
                f"{name} is {shown} and stays so: it is set when a dataset is made. The layout has {value}: "
                f"make a new dataset with it and copy the files"
            )
            continue
        if stays(name, shown, value):
            kept.append(f"{name}={shown} protects more than the layout's {value}, its default, so it is kept")
            continue
        if current.source == "temporary":
            refused.append(
                f"{name} of {here.name} is {shown} by a mount option for now, which hides its own value; "
                f"mount it again without the option first"
            )
            continue
        refused += _feature(live.pools[here.pool], name, value)
        if name == "recordsize":
            refused += _too_large(value, live)
        settings.append(
            PropertyChange(
                here.name, here.text("guid"), name, value, here.properties[name],
                _why(recommendation, dataset, name),
            )
        )  # fmt: skip
        _hand_down(now, here.name, name, value)
    changed = [n for n, v in before.items() if v != canonical(n, mine[n].value)]
    others = [d for d in here.below if not _covered(d.name, here.name, now)]
    own = _not_weakened(here.name, others, {n: canonical(n, mine[n].value) for n in changed})
    followers = [
        (d.name, name, canonical(name, d.text(name)))
        for d in others
        for name in changed
        if name in d.properties and d.text(name) and _follows(d.properties[name], here.name)
        if not any(_within(d.name, one.dataset) and one.name == name for one in own)
    ]
    sentences, commands = _rewriting(here, settings, live)
    return Target(
        here, roles, (*own, *settings), tuple(already), tuple(kept), tuple(impossible), tuple(followers),
        tuple(sentences), tuple(commands),
    )  # fmt: skip


def stays(name: str, now: str, wanted: str) -> bool:
    """Return whether ``now`` protects more than ``wanted``, ZFS's default: no layout speaks against it."""
    return now in stronger(name, wanted)


def _follows(value: HostProperty, parent: str) -> bool:
    """Say whether a dataset below ``parent`` has its value from there or above, or the default."""
    if value.source == "default":
        return True
    origin = value.source.removeprefix("inherited from ")
    return value.source.startswith("inherited from ") and (
        parent == origin or parent.startswith(origin + "/")
    )


def _within(name: str, dataset: str) -> bool:
    return name == dataset or name.startswith(dataset + "/")


def _not_weakened(
    parent: str, below: Sequence[LiveDataset], changed: Mapping[str, str]
) -> tuple[PropertyChange, ...]:
    """Return changes by which datasets below ``parent`` that no role lives on keep what protects them.

    The layout's promise says nothing of those. They are made before ``changed`` (name → new value) of
    ``parent``, so that nothing is unprotected in between.
    """
    out: list[PropertyChange] = []
    for name, new in changed.items():
        for dataset in sorted(below, key=lambda d: d.name.count("/")):
            before = dataset.properties.get(name)
            if before is None or not _follows(before, parent):
                continue
            value = canonical(name, before.value)
            if weakens(name, new, value) and not any(
                _within(dataset.name, one.dataset) and one.name == name for one in out
            ):
                why = "No role of the layout lives there."
                out.append(PropertyChange(dataset.name, dataset.text("guid"), name, value, before, why))
    return tuple(out)


def _hand_down(now: dict[str, dict[str, HostProperty]], dataset: str, name: str, value: str) -> None:
    """Note that ``dataset`` has ``value`` now, and so have the targets below that inherit it."""
    below = [n for n in now if n.startswith(dataset + "/") and name in now[n]]
    for other in below:
        if now[other][name].value != "-" and _follows(now[other][name], dataset):
            now[other][name] = HostProperty(value, f"inherited from {dataset}")
    now[dataset][name] = HostProperty(value, "local")


def _covered(name: str, parent: str, targets: Mapping[str, object]) -> bool:
    """Say whether a dataset below ``parent`` is a target itself, or lies below a nearer one."""
    return any(name == t or name.startswith(t + "/") for t in targets if t.startswith(parent + "/"))


def _feature(pool: LivePool, name: str, value: str) -> list[str]:
    need = feature_of(name, value)
    if not need or pool.feature(need) in {"enabled", "active", ""}:
        return []
    return [lacks_feature(name, value, need, pool.name)]


def _too_large(value: str, live: Live) -> list[str]:
    """Return why the host takes no recordsize of ``value``; nothing where it does."""
    known = live.parameters.get(MAX_RECORDSIZE, "")
    most, since = LARGEST_BEFORE
    if known.isdigit():
        if parse_size(value) <= int(known):
            return []
        said = f"{MAX_RECORDSIZE} of {live.host} allows, {format_size(int(known))}; that can be set up to 16M"
    elif parse_size(value) <= most or version_key(live.version) >= version_key(since):
        return []
    else:
        said = (
            f"OpenZFS {live.version} takes by default; it takes 1M, and up to 16M with the module parameter "
            f"{MAX_RECORDSIZE}, or from {since} on"
        )
    return [f"recordsize={value} is more than {said}"]


def _other_kind(dataset: Dataset, here: LiveDataset) -> str:
    if here.is_volume:
        return (
            f"{here.name} is a volume, and the layout has {', '.join(dataset.roles)} as files: make a file "
            f"system, and copy the files from the volume to it; nothing is changed on the volume"
        )
    block = dataset.properties["volblocksize"]
    return (
        f"{here.name} is a file system, and the layout has {', '.join(dataset.roles)} on a volume with "
        f"{dataset.filesystem}: make one (zfs create -V SIZE -o volblocksize={block} …, "
        f"mkfs.{dataset.filesystem}), and copy the files to it; nothing is changed on the file system"
    )


def _rewriting(
    here: LiveDataset, settings: Sequence[PropertyChange], live: Live
) -> tuple[list[str], list[str]]:
    """Return what the changes leave as it is, and commands that write it anew.

    ``settings``: all changes of ``here``; a copy has them too, for it takes the place of what was changed.
    """
    size = here.number("referenced")
    new_only = [s for s in settings if PROPERTIES[s.name].new_blocks_only and not s.keeps]
    if not new_only or not size:
        return [], []
    names = ", ".join(s.name for s in new_only)
    amount = units.amount(size)
    said = [
        f"{names}: for what is written from now on. The {amount} there keep what they have until rewritten."
    ]
    if here.is_volume:
        if here.has_key:
            said.append(
                "It is encrypted with a key of its own, and a plain zfs send would be received without: "
                "copy what is on it to a new volume with the same encryption."
            )
            return said, []
        snapshot = shlex.quote(f"{here.name}@ztune-move")
        new = shlex.quote(f"{here.name}.new")
        said.append(
            "Blocks of a volume take the new values as they are overwritten, or all at once by a copy."
        )
        if no_room := _no_room(here, size):
            return [*said, no_room], []
        return [*said, _BLOCK], [
            "# stop what uses the volume",
            _WHAT_ELSE.format(name=shlex.quote(here.name), new=new),
            *_until_one_fails(
                f"zfs snapshot {snapshot}",
                f"zfs send {snapshot} | zfs receive {_own(here, settings)} {new}",
                f"zfs rename {shlex.quote(here.name)} {shlex.quote(here.name + '.old')}",
                f"zfs rename {new} {shlex.quote(here.name)}",
            ),
        ]
    if here.text("mounted") == "no":
        said.append(
            "It is not mounted, so there are no commands: what lies at its mountpoint is not its own."
        )
        return said, []
    record = any(s.name == "recordsize" for s in new_only)
    if record:
        said.append(
            "A file of more than one block keeps its record size for good: "
            "zfs send, zfs receive and zfs rewrite keep it too. "
            "Only copying the files makes them anew; a copy by reflink would share the old blocks."
        )
    elif version_key(live.version) >= version_key(REWRITE_SINCE):
        mount = here.text("mountpoint")
        said.append(
            "zfs rewrite does it in place while the database runs; snapshots keep the old blocks as well."
        )
        return said, [f"zfs rewrite -rx {shlex.quote(mount)}"] if mount.startswith("/") else []
    else:
        said.append("Writing it anew takes a copy: of the files, or by zfs send and zfs receive.")
    if no_room := _no_room(here, size):
        return [*said, no_room], []
    if "/" not in here.name:
        said.append("The root of a pool can't be renamed: make a dataset below it, and move the files there.")
        return said, []
    if here.below:
        said.append("The datasets below it move with it when it is renamed; rename them back one by one.")
    if here.has_key:
        said.append("It is encrypted with a key of its own: the new dataset is made with one as well.")
        if here.locked:
            names = ", ".join(d.name for d in here.locked)
            said.append(f"ZFS moves nothing from under its key, so copy these too: {names}.")
    commands = _copy(here, settings)
    return ([*said, _BLOCK] if commands else said), commands


def _no_room(here: LiveDataset, size: int) -> str:
    """Return a sentence where a copy of ``size`` bytes has no room beside what it copies; else nothing."""
    free = here.number("available")
    if not here.text("available").isdigit() or free >= size:
        return ""
    return f"There is too little room for a copy, so there are no commands: {units.amount(free)} free."


_BLOCK = "The commands in brackets stop at the first one that fails."


def _until_one_fails(*commands: str) -> list[str]:
    """Return the commands as a block that can be pasted: none is run after one that failed."""
    return ["( set -eu", *commands, ")"]


_WHAT_ELSE = "# zfs get -s local,received all {name}: what else is set there, such as a quota, {new} has not"


def _own(here: LiveDataset, settings: Sequence[PropertyChange]) -> str:
    """Return the options that make a dataset with the own properties of ``here``, changed by ``settings``."""
    changed = {s.name: s.value for s in settings}
    local = {
        name: value.value
        for name, value in here.properties.items()
        if value.source in {"local", "received"} and name in PROPERTIES
        if name not in changed and not PROPERTIES[name].at_creation
    }
    return " ".join(f"-o {shlex.quote(f'{name}={value}')}" for name, value in {**local, **changed}.items())


def _copy(here: LiveDataset, settings: Sequence[PropertyChange]) -> list[str]:
    """Return commands that copy the files to a new dataset and put it in the old one's place."""
    mount = here.text("mountpoint")
    if not mount.startswith("/"):
        return []  # legacy or none: where it is mounted is up to others
    point = here.properties["mountpoint"]
    fixed = point.source in {"local", "received"}
    key = [
        f"-o {shlex.quote(f'{name}={here.text(name)}')}"
        for name in ("encryption", "keyformat", "keylocation")
        if here.has_key
    ]
    old, new, name = (shlex.quote(here.name + end) for end in (".old", ".new", ""))
    parent, leaf = mount.rstrip("/").rpartition("/")[::2]
    target = f"{parent}/{leaf}.new" if fixed else f"{parent}/{here.name.rpartition('/')[2]}.new"
    options = " ".join(
        [*key, _own(here, settings), *([f"-o mountpoint={shlex.quote(target)}"] if fixed else [])]
    )
    block = [
        f"zfs create {options} {new}",
        f"cp -ax --reflink=never {shlex.quote(mount.rstrip('/'))}/. {shlex.quote(target)}/",
    ]
    if fixed:
        block.append(f"zfs set mountpoint={shlex.quote(mount + '.old')} {name}")
    block += [f"zfs rename {name} {old}", f"zfs rename {new} {name}"]
    if fixed:
        block.append(f"zfs set mountpoint={shlex.quote(mount)} {name}")
    block += [
        f"zfs rename {shlex.quote(here.name + '.old' + d.name.removeprefix(here.name))} {shlex.quote(d.name)}"
        for d in here.below
        if d.name.count("/") == here.name.count("/") + 1
        if d not in here.locked
    ]
    return [
        "# stop the database first",
        _WHAT_ELSE.format(name=name, new=new),
        *_until_one_fails(*block),
        # Comments, so that nobody pastes them along. Without -r the last fails while a dataset is below.
        "# start the database, check it, and only then destroy the old one's snapshots, if any, and itself:",
        f"#   zfs destroy {old}@%",
        f"#   zfs destroy {old}",
    ]


def _with_old_records(
    now: Mapping[str, Mapping[str, HostProperty]], targets: Sequence[Target]
) -> dict[str, dict[str, HostProperty]]:
    """Return ``now`` with the smaller of the old and the new recordsize, since the plan rewrites no file."""
    out = {name: dict(values) for name, values in now.items()}
    for old, mine in ((target.dataset.properties, out[target.dataset.name]) for target in targets):
        if "recordsize" in old:
            sizes = [old["recordsize"], mine["recordsize"]]
            mine["recordsize"] = min(sizes, key=lambda one: 0 if one.value == "-" else parse_size(one.value))
    return out


_Values = Mapping[str, Mapping[str, HostProperty]]


def _torn_without(
    recommendation: Recommendation,
    layout: Layout,
    mapping: Mapping[str, str],
    values: _Values,
    live: Live,
    judged: Judgement,
) -> list[str]:
    """Return the settings of the database that the layout says nothing of, and without which a power cut
    tears pages with ``values``. ``judged``: what it loses with them."""
    if judged.proven is DurabilityClass.CORRUPT:
        return []  # with or without them

    def torn(name: str) -> bool:
        without = replace(layout, database={**layout.database, name: "off"})
        return _judge(without, mapping, values, live).proven is DurabilityClass.CORRUPT

    names = torn_page_settings(recommendation.subject.database)
    return [name for name in names if name not in layout.database and torn(name)]


def _judge(layout: Layout, mapping: Mapping[str, str], values: _Values, live: Live) -> Judgement:
    """Return what a power cut may lose of the live datasets with ``values`` on the pools of ``live``.

    Roles without a dataset count as ZFS's defaults on another pool: nothing is known of them.
    """
    entries: dict[str, dict[str, Any]] = {}
    for dataset in layout.datasets:
        name = next((mapping[r] for r in dataset.roles if r in mapping), None)
        found = values.get(name or "", {})
        entry = entries.setdefault(
            name or f"{_SOMEWHERE}/{dataset.key}",
            {"name": name or f"{_SOMEWHERE}/{dataset.key}", "roles": []},
        )
        entry["roles"] += dataset.roles
        if "type" in found and found["type"].value == "volume":
            # Of any size: a file system on it writes pages in place, whichever it is.
            entry |= {"volume": "1G", "filesystem": dataset.filesystem or "ext4"}
        for prop in ("sync", "checksum", "recordsize", "direct"):
            if prop in found and found[prop].value != "-":
                entry[prop] = canonical(prop, found[prop].value)
    pools = dict.fromkeys(name.split("/")[0] for name in entries)
    judged = parse_layout(
        {
            "pool": [{"name": p, "vdev": _vdevs(live.pools.get(p))} for p in pools],
            "dataset": list(entries.values()),
            "tunables": {name: 1 for name in NO_FLUSHES if live.parameters.get(name) == "1"},
            "database": layout.database,
            "workload": layout.workload,
            "durability": layout.declared,
            **({"direct": list(layout.direct)} if layout.direct else {}),
        }
    )
    loses = judge(judged)
    if _SOMEWHERE in live.pools:
        return loses
    roles = listed([r for d in layout.datasets if not any(r in mapping for r in d.roles) for r in d.roles])
    somewhere = f"the disks of pool {_SOMEWHERE} (live)"
    said = [note.replace(somewhere, f"the disks that {roles} may lie on") for note in loses.reasons]
    return replace(loses, reasons=tuple(said))


_SOMEWHERE = "unknown"
"""The pool of roles that no --dataset names."""


def _vdevs(pool: LivePool | None) -> list[dict[str, Any]]:
    """Return the vdevs of a live pool as a layout has them; of their disks' caches nothing is known."""
    found = [] if pool is None else [(c, one.split()) for c in _JUDGED for one in pool.vdevs.get(c, ())]
    return [
        {
            "class": class_,
            "profile": "live",
            # Of dRAID as of others with several disks: it is one vdev.
            "kind": "stripe" if len(words) == 1 else words[0] if words[0] in get_args(VdevKind) else "mirror",
            "disks": int(words[1]) if len(words) > 1 else 1,
        }
        for class_, words in found
    ] or [{"profile": "live"}]


_JUDGED = ("data", "special", "log")
"""The classes of vdevs whose write caches a power cut meets."""

_CLASSES = {
    "log": ("log device", "log", "Synced writes go there first. zpool remove takes it out again."),
    "cache": ("cache device", "cache", "It keeps what the ARC lets go. zpool remove takes it out again."),
    "special": (
        "special vdev", "special",
        ("Metadata and small blocks go there, and its loss loses the pool. "
        "On a pool with RAID-Z it can't be taken out again."),
    ),
}  # fmt: skip


def _pools(layout: Layout, mapping: Mapping[str, str], live: Live) -> tuple[list[str], list[str]]:
    """Return what the layout's pools have that the live ones have not, and commands that only people run."""
    said: list[str] = []
    commands: list[str] = []
    homes: dict[str, list[str]] = {}
    for pool in layout.used_pools():
        names = dict.fromkeys(
            mapping[r].split("/")[0]
            for d in layout.datasets if d.pool == pool.name for r in d.roles if r in mapping
        )  # fmt: skip
        for name in names:
            homes.setdefault(name, []).append(pool.name)
            more, lines = _pool(pool, live.pools[name])
            said += more
            commands += lines
        if len(names) > 1:
            said.append(
                f"In the layout one pool holds what is on {' and '.join(names)} here: the disks share the "
                f"work in another way than measured, and no snapshot covers two pools at one moment."
            )
    for name, several in homes.items():
        if len(several) > 1:
            apart = [d.key for d in layout.datasets if d.pool == several[1] and d.key in mapping]
            said.append(
                f"The layout has {', '.join(apart)} on a pool of its own; here all is on {name}. That takes "
                f"another pool: make it (zpool create), stop the database, copy the files there."
            )
    return list(dict.fromkeys(said)), list(dict.fromkeys(commands))


def _pool(pool: Pool, here: LivePool) -> tuple[list[str], list[str]]:
    said: list[str] = []
    commands: list[str] = []
    if here.properties.get("health", "ONLINE") != "ONLINE":
        said.append(
            f"Pool {here.name} is {here.properties['health']}: see zpool status before anything else."
        )
    if not here.vdevs:
        said.append(f"The disks of pool {here.name} could not be read, so they are not compared.")
        return said, commands
    for class_, (word, keyword, effect) in _CLASSES.items():
        wanted = [v for v in pool.vdevs if v.class_ == class_]
        if wanted and not here.has(class_):
            disks = " ".join(
                " ".join(
                    [*([] if v.kind == "stripe" else [v.kind]), *(f"DISK{i}" for i in range(1, v.disks + 1))]
                )
                for v in wanted
            )
            said.append(
                f"The layout has a {word} ({pool.vdev_text(class_)}), pool {here.name} has none. {effect} "
                f"ztune never adds a disk; the command for you, with your disks in place of the capitals:"
            )
            commands.append(f"zpool add {shlex.quote(here.name)} {keyword} {disks}")
        elif not wanted and here.has(class_):
            said.append(
                f"Pool {here.name} has a {word} ({', '.join(here.vdevs[class_])}), the layout has none: its "
                f"numbers hold without one."
            )
    shapes = sorted(
        "disk" if v.kind == "stripe" else f"{v.kind} {v.disks}"
        for v in pool.vdevs if v.class_ == "data"
        for _ in range(v.disks if v.kind == "stripe" else 1)
    )  # fmt: skip
    mine = sorted(here.vdevs.get("data", ()))
    if mine != shapes:
        said.append(
            f"The data disks were {', '.join(shapes)} where the layout was tried; pool {here.name} has "
            f"{', '.join(mine)}. That can't be changed on an existing pool, and the gains may differ."
        )
    said += _ashift(pool, here)
    return said, commands


def _ashift(pool: Pool, here: LivePool) -> list[str]:
    """Return where the ashift of a live pool is another than the layout's, or too small for its disks."""
    said: list[str] = []
    given = here.properties.get("ashift", "0")
    values = sorted({v.ashift for v in here.sectors if v.class_ == "data"})
    there = [str(v) for v in values] or ([] if given in {"0", "-"} else [given])
    if there and there != [str(pool.ashift)]:
        said.append(
            f"ashift is {listed(there)}{', by vdev,' if len(there) > 1 else ''} on pool {here.name} and "
            f"{pool.ashift} in the layout. It is fixed when a vdev is made; another one takes a new pool."
        )
    small = [
        (v, v.physical)
        for v in here.sectors
        if v.class_ not in {"log", "cache", "spare"}  # which zpool remove takes out, to be added anew
        if v.physical is not None and 1 << v.ashift < v.physical
    ]
    for vdev, physical in small[:1]:
        more = f" (and {len(small) - 1} more)" if len(small) > 1 else ""
        said.append(
            f"ashift {vdev.ashift} of {vdev.name}{more} on pool {here.name} is too small for its disks: they "
            f"have sectors of {physical:,} bytes, and read and write one for each smaller block. It is fixed "
            f"when a vdev is made; another one takes a new pool."
        )
    return said


def _restart(layout: Layout, live: Live) -> tuple[list[str], list[str]]:
    """Return what is the database's and the kernel module's, and commands that only people run."""
    said: list[str] = []
    commands: list[str] = []
    settings = [one.facts.settings for one in every()]
    for name, value in sorted(layout.database.items()):
        how = (
            "reload the database's configuration"
            if any(name in one.reload for one in settings)
            else "fixed when the database is made: a dump into a new one"
            if any(name in one.anew for one in settings)
            else "restart the database"
        )
        said.append(f"The layout was tried with {name} = {value} in the database: {how} if yours differs.")
    for name, value in sorted(layout.workload.items()):
        said.append(f"The layout was tried with {name} = {value} of the load: set it there if yours differs.")
    for name, number in sorted(layout.tunables.items()):
        known = TUNABLES[name]
        if number == known.default_in(live.version):
            continue
        current = live.parameters.get(name)
        if current == str(number):
            continue
        said.append(
            f"The layout sets the module parameter {name} = {known.text(number)}"
            + (f", which is {current} now" if current is not None else "")
            + ". It acts on every pool of the host, so it is left to you: now, and for each boot (where ZFS "
            "is in the initramfs, build that anew):"
        )
        commands.append(f"echo {number} > {PARAMETERS}/{name}")
        commands.append(f"echo 'options zfs {name}={number}' >> /etc/modprobe.d/zfs.conf")
    limit = live.parameters.get(ARC_MAX)
    said.append(
        f"The ARC was limited to {units.amount(layout.arc)} where the layout was tried; here its limit is "
        f"{_limit(limit)}. Leave it the memory that the host can spare."
    )
    return said, commands


def _limit(text: str | None) -> str:
    if text is None or not text.isdigit():
        return "not known"
    return units.amount(int(text)) if int(text) else "ZFS's own choice"
