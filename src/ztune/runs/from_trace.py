"""What a trace says of the layouts that are worth trying: what can be built and told, and which values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ztune.analysis.units import amount
from ztune.databases import registry
from ztune.errors import InputError
from ztune.places.replay import beyond_replay
from ztune.study import Dataset, Study, generic
from ztune.study.generic import RoleIO, joined
from ztune.study.layout import MIN_ARC, with_settings
from ztune.study.reduced import merged, noted, without
from ztune.trace import enough, left_out
from ztune.trace.enough import Recorded
from ztune.trace.figures import GroupSummary, Transfers
from ztune.trace.manifest import Manifest
from ztune.trace.one_dataset import Together, together
from ztune.trace.reader import Trace
from ztune.units import format_size

_OF_SIZES = ("recordsize", "compression", "primarycache", "secondarycache", "direct")
_OF_COMMITS = ("logbias",)
NO_DIRECT = (
    "This OpenZFS takes no notice of O_DIRECT, as later ones do with direct=disabled, which the layouts say; "
    "before 2.3 there is nothing to set."
)
LEAST_DIRECT = 0.01
"""Of the bytes that a role's calls move: from this share by O_DIRECT on, and where any is written so, the
property `direct` is tried."""
_NO_SLOG = "No log device was tried: too few commits were recorded."
# From 16K on a record has sectors to save; what a whole record of 1M saves, few files' writes see.
_RATIOS = range(16 << 10, (128 << 10) + 1)


def built_for(trace: Trace, *, arc: bool = False) -> Study:
    """Return the study of a trace for which there is no ready one; ``arc``: whether the user gives it one.

    Raises InputError if the trace is damaged.
    """
    from ztune.trace.summary import summarise  # here, as it takes Polars

    manifest = trace.manifest
    roles = {str(f.role) for f in manifest.files if f.role is not None}
    workload = manifest.workload.name if manifest.workload is not None else None
    pairs = together(manifest)
    groups = _groups(pairs, registry.together(workload))
    counted = enough.recorded(trace)
    summaries = {group.name: group for group in summarise(trace, files=0).roles}
    datasets = joined(roles, groups)
    seen = {of[0]: _role_io([summaries[r] for r in of if r in summaries], _counted(counted, of), manifest)
            for of in datasets}  # fmt: skip
    size, said = (None, "") if arc else host_arc(manifest)
    notes = [_together_note(pairs)] if pairs else []
    notes += [text for of in datasets if (text := _counted(counted, of).lacks(manifest))]
    notes += [text for text in (left_out.sentence(trace), said) if text]
    study = generic.build(roles, groups=groups, seen=seen, arc=size, notes=notes)
    _check_left(study, trace)
    return _asking(study, counted)


def _asking(study: Study, counted: Mapping[str, Recorded]) -> Study:
    """Return ``study`` with the roles whose files were written with O_DIRECT when recorded."""
    direct = tuple(role for role, one in counted.items() if one.written_direct)
    return study.model_copy(update={"layout": replace(study.layout, direct=direct)})


def without_direct(study: Study) -> Study:
    """Return ``study`` for a version of OpenZFS that takes no notice of O_DIRECT: what it does is
    ``direct=disabled``, which keeps its layouts what they are on a later version."""
    axes = [key for key in study.axes if key.rpartition(".")[2] == "direct"]
    if not axes:
        return study
    base = with_settings(study.layout, dict.fromkeys(axes, "disabled"))
    found = study.model_copy(update={"layout": base})
    return without(found, dict.fromkeys(axes), NO_DIRECT, layouts=False)


def suited(study: Study, trace: Trace, *, named: bool) -> Study:
    """Return ``study`` with what ``trace`` says against it: roles that need one dataset have one, and values
    that a replay can't vary are left out, as is what the trace has too little of, unless the user ``named``
    the study; what it was is among its notes.
    """
    pairs = [
        pair
        for pair in together(trace.manifest)
        if len({d.name for role in pair.roles if (d := study.layout.dataset_of(role))}) > 1
    ]
    if pairs:
        study = merged(study, _groups(pairs, ()), _together_note(pairs))
    study = answerable(study)
    counted = enough.recorded(trace)
    for dataset in study.layout.datasets:
        one = _counted(counted, dataset.roles)
        log, sizes = _varies(study, dataset, _OF_COMMITS), _varies(study, dataset, _OF_SIZES)
        text = one.lacks(trace.manifest, log=log, sizes=sizes)
        if text and named:
            study = noted(study, [text])
        elif text:
            unsure = (*(() if one.sizes else _OF_SIZES), *(() if one.commit else _OF_COMMITS))
            axes = dict.fromkeys(f"{dataset.key}.{prop}" for prop in unsure)
            # What somebody put together and named is tried, and the note stands beside it.
            study = without(study, axes, text, layouts=False)
    if not named and not any(_counted(counted, d.roles).commit for d in study.layout.datasets):
        gone = [key for key in study.axes if key.rpartition(".")[2] == "slog"]
        study = without(study, dict.fromkeys(gone), _NO_SLOG, layouts=False) if gone else study
    _check_left(study, trace)
    return _asking(study, counted)


def _check_left(study: Study, trace: Trace) -> None:
    """Raise InputError where nothing is left to try, with what was left out."""
    if study.notes and not study.axes and not study.layouts:
        raise InputError(f"{trace.path} leaves nothing to try. {' '.join(study.notes)}")


def answerable(study: Study) -> Study:
    """Return ``study`` without the values and layouts that a replay can't tell from the base, and a note."""
    if beyond_replay(study, study.layout):
        return study
    asked = [(key, value) for key, values in study.axes.items() for value in values]
    asked += [one for named in study.layouts for one in named.set.items()]
    gone: dict[str, list[str | int]] = {}
    for key, value in dict.fromkeys(asked):
        try:
            alone = with_settings(study.layout, {key: value})
        except ValueError:
            continue  # only with others of its layout, which are looked at too
        if beyond_replay(study, alone):
            gone.setdefault(key, []).append(value)
    if not gone:
        return study
    said = "; ".join(f"{key}={', '.join(map(str, values))}" for key, values in gone.items())
    note = f"Left out, since a replay can't vary them: {said}. `ztune run` measures them."
    return without(study, gone, note)


def host_arc(manifest: Manifest) -> tuple[int | None, str]:
    """Return the bytes of ARC that the recorded host has for these files, with a sentence; None: not known.

    What its OpenZFS allows; without ZFS half of its memory, the default of OpenZFS up to 2.2 on Linux
    (zfs(4), zfs_arc_max). Not above a quarter of this machine's memory, since the engine takes it; and more
    than all files of the trace would change nothing. A power of two, so that recordings can be compared.
    """
    files = sum(max(f.size_start, f.size_end) for f in manifest.files if f.role is not None)
    allowed, memory = (_bytes(manifest.environment.get(name)) for name in ("arc_max", "memory"))
    if allowed:
        said = f"the recorded host allows {amount(allowed)}"
    elif memory:
        said = f"half of the recorded host's memory is {amount(memory // 2)}"
    elif files <= MIN_ARC:
        return None, ""
    else:
        return None, (
            f"The layouts have an ARC of {format_size(MIN_ARC)}, as the recording does not tell its host's "
            "memory: no sample can be taken with so little. --arc sets another."
        )
    whole = allowed or memory // 2
    import psutil  # here, as it takes 20 ms to load

    here = psutil.virtual_memory().total // 4
    if here < min(whole, files):
        said += f", and this machine can replay {amount(here)}"
    elif files < whole:
        said += f", and the recorded files are {amount(files)}"
    size = MIN_ARC
    while 2 * size <= min(whole, here) and size < files:
        size <<= 1
    return size, f"The layouts have an ARC of {format_size(size)}: {said}. --arc sets another."


def _bytes(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _groups(pairs: Sequence[Together], beside: Sequence[str]) -> list[set[str]]:
    return [*({*pair.roles} for pair in pairs), *([{"data", *beside}] if beside else [])]


def _together_note(pairs: Sequence[Together]) -> str:
    found = [f"{' and '.join(pair.roles)}: {pair.why}" for pair in pairs]
    return f"These roles have one dataset, since they can't have two. {'; '.join(found)}."


def _counted(counted: dict[str, Recorded], roles: Sequence[str]) -> Recorded:
    return enough.summed([counted[role] for role in roles if role in counted])


def _varies(study: Study, dataset: Dataset, properties: Collection[str]) -> bool:
    return any(f"{dataset.key}.{prop}" in study.varied for prop in properties)


def _role_io(groups: Sequence[GroupSummary], counted: Recorded, manifest: Manifest) -> RoleIO:
    """Return what was recorded of the roles of one dataset."""
    roles = [group.role for group in groups]
    reads, writes = [group.reads for group in groups], [group.writes for group in groups]

    ratios: dict[str, float] = {}
    for entry in manifest.compresses(*roles):
        if entry.recordsize in _RATIOS:
            ratios[entry.algorithm] = max(entry.ratio, ratios.get(entry.algorithm, 1.0))
    return RoleIO(
        reads=_sizes(reads),
        writes=_sizes(writes),
        reads_sequential=_sequential(reads),
        writes_sequential=_sequential(writes),
        largest=max((max(f.size_start, f.size_end) for f in manifest.files if f.role in roles), default=0),
        ratios=ratios,
        page=max((size for role, size in manifest.page_size.items() if role in roles), default=None),
        sizes=counted.sizes,
        commits=counted.commit,
        direct=counted.direct >= LEAST_DIRECT * counted.bytes > 0 or counted.written_direct > 0,
    )


def _sizes(parts: Sequence[Transfers]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for part in parts:
        found.update({size: calls for size, calls in part.sizes.items() if size >= enough.TINY})
    return dict(found)


def _sequential(parts: Sequence[Transfers]) -> float:
    count = sum(part.count for part in parts)
    return sum(part.count * part.sequential for part in parts) / count if count else 0.0
