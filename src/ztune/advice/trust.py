"""How sure a recommendation is, what it repeats as warnings, and what was not tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ztune.advice.job import measured_by
from ztune.advice.model import Confidence, Level
from ztune.analysis import demand, units
from ztune.analysis.basis import in_user_space, limits
from ztune.analysis.metrics import number_at
from ztune.analysis.need import BOUND
from ztune.analysis.results import LayoutResult, Results
from ztune.analysis.standing import Standing
from ztune.analysis.stats import ratio
from ztune.onhost.properties import PROPERTIES, STATED
from ztune.runs import offered
from ztune.runs.follow import followed
from ztune.runs.search import stopped
from ztune.study import default_setting
from ztune.study.durability import judge
from ztune.trace.manifest import COLD, DEFAULT_RATIO, Manifest, content_unknown
from ztune.trace.repeats import repeats
from ztune.units import listed

if TYPE_CHECKING:
    from ztune.trace.left_out import LeftOut

# Below four transaction groups at the default zfs_txg_timeout of 5 s, when a group happens to fall decides
# too much.
SHORT_TRACE_S = 20.0
# If the disks of the base layout need less than this share of the recorded time, the job did not wait for
# them.
BUSY_SHARE = 0.5
# ARC hits from this share on mean that reads hardly reach the disks.
CACHED_SHARE = 0.99
# If everything takes less than this many times the ARC, how much of it fits in memory decides the order.
ROOMY = 2.0

# An ARC that never had this share of what it may take has dropped nothing for want of room.
FULL_SHARE = 0.9
# Reads that are fewer than this share of a layout's operations decide little.
FEW_READS = 0.2

# A dataset with less than this share of the space changes little of it, however its files compress.
FEW_BYTES = 0.05

# Trace warnings that mean that I/O is missing from the trace.
_BLIND = {"shared-mmap", "dropped", "incomplete", "lost-events"}
# The first is the best there is.
_MODELLED: dict[Level, str] = {
    "fair": "Fair: nothing speaks against the evidence, but it is modelled, not measured on your disks.",
    "limited": "Limited: the evidence has the gaps below; it is modelled, not measured on your disks.",
    "weak": "Weak: the trace can't carry these numbers. Record again, or measure, before you act.",
}


def trace_seconds(found: Results, manifest: Manifest | None) -> float | None:
    """Return the recorded seconds, from the manifest or from a result."""
    if manifest is not None and manifest.duration_ns:
        return manifest.duration_ns / 1e9
    for result in found.layouts:
        model = result.measure.get("model")
        if isinstance(model, Mapping) and isinstance(model.get("trace_s"), int | float):
            return float(model["trace_s"])
    return None


def warnings(now: Standing, manifest: Manifest | None, left_out: LeftOut | None = None) -> list[str]:
    """Return what of the recording is ``left_out``, and the warnings of the base layout, of the trace, of the
    run and of the trials that the recommendation rests on."""
    out: dict[str, None] = {}
    if left_out is not None:
        out[left_out.sentence()] = None
    base = now.found.base_layout
    if base is not None and (exposed := judge(base).exposed):
        text = f"With the base layout, as it is now, a power cut takes pages that were synced. {exposed}."
        out[text] = None
    if manifest is not None:
        if manifest.dropped:
            out[f"The recorder lost {manifest.dropped:,} events; the trace is incomplete."] = None
        elif not manifest.complete:
            out["The trace is marked incomplete."] = None
        for warning in manifest.warnings:
            out[f"{warning.message} ({warning.count}×)" if warning.count > 1 else warning.message] = None
    told = {warning.message for warning in manifest.warnings} if manifest is not None else set()
    rested = (now.chosen, now.baseline) if now.basis == "modelled" else now.found.layouts
    if now.found.several and not now.found.per_operation:
        text = "The layouts' jobs differ, and not all say how many operations they did: totals of different"
        out[f"{text} jobs stand side by side."] = None
    for text in (*now.run.warnings, *(w for c in rested if c is not None for w in c.warnings)):
        if text not in told and not (left_out is not None and left_out.told(text)):
            out[text] = None
    return list(out)


def searched(now: Standing) -> str:
    """Return why the search of a screening stopped, or of trials that follow one, and which settings of the
    database were tried after it, as sentences; "" of a run that searched nothing."""
    outcome = now.run.outcome
    ended = followed(outcome) if now.run.measured else stopped(outcome)
    found = "" if ended is None else ended.sentence()
    return " ".join(filter(None, (found, offered.kept(outcome).sentence())))


def _size_against_arc(one: LayoutResult) -> float | None:
    """Return allocated space / ARC of a layout; None where the space is missing.

    The ARC is the layout's own: the replay of a sample had a part of it, and counts the space of all.
    """
    allocated = number_at(one.measure, "space", "allocated")
    return None if allocated is None else allocated / one.layout.arc


@dataclass
class _Doubts:
    """What speaks against the numbers: so much that they can't carry a decision, or as a gap; and notes."""

    weak: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def confidence(
    now: Standing,
    chosen: LayoutResult,
    manifest: Manifest | None,
    unscreened: Sequence[str],
    untried: Sequence[str],
    left_out: LeftOut | None = None,
) -> Confidence:
    """Return how far to trust the numbers, with one sentence for each thing that limits it.

    Of replays: ``unscreened``, settings whose part is not known from pairs beside the layout; ``untried``,
    changes that were better in another context; ``left_out``: what of the recording they don't have.
    """
    doubts = _Doubts()
    if left_out is not None:
        doubts.weak.append(left_out.sentence())
    if now.basis == "modelled":
        _of_replays(doubts, now, chosen, manifest)
        if unscreened:
            doubts.limited.append(
                f"Not screened alone: {', '.join(unscreened)}. "
                "Their part in the result is not known from pairs beside this layout."
            )
        if untried:
            doubts.limited.append(
                f"Better in another context, but not tried together with this layout: {'; '.join(untried)}."
            )
        _near(doubts, now, chosen)
        sentences = _MODELLED
    else:
        _of_trials(doubts, now, chosen)
        zfs = "OpenZFS in user space" if in_user_space(now.run) else "real ZFS"
        sentences = {
            "good": f"Good: measured with the real database on {zfs}, and repeated until it was resolved.",
            "limited": f"Limited: measured on {zfs}, with the gaps below.",
            "weak": "Weak: too little was measured. Run more blocks before you act on it.",
        }
    level: Level = "weak" if doubts.weak else "limited" if doubts.limited else next(iter(sentences))
    reasons = [*doubts.weak, *doubts.limited, *doubts.notes]
    return Confidence(level=level, sentence=sentences[level], reasons=reasons, notes=len(doubts.notes))


def _made_up(now: Standing, chosen: LayoutResult, manifest: Manifest) -> list[str]:
    """Return the roles whose content was made up, on datasets that have none that was measured and take no
    small part of the space."""
    whole = chosen.value("allocated") or 0.0
    datasets = (chosen.measure.get("space") or {}).get("datasets") or ()
    space = {one["name"]: float(one.get("allocated") or 0.0) for one in datasets}
    found: list[str] = []
    for dataset in chosen.layout.datasets:
        if space.get(dataset.name, 0.0) >= FEW_BYTES * whole and not manifest.compresses(*dataset.roles):
            found += [role for role in dataset.roles if content_unknown(role) in now.run.warnings]
    return found


def _of_replays(doubts: _Doubts, now: Standing, chosen: LayoutResult, manifest: Manifest | None) -> None:
    weak, limited, notes = doubts.weak, doubts.limited, doubts.notes
    seconds = trace_seconds(now.found, manifest)
    if manifest is None:
        notes.append(
            "The trace is no longer where the run read it, so its own warnings are not repeated here."
        )
    else:
        if manifest.dropped:
            weak.append("The trace is incomplete: the recorder lost events, so all counts are too low.")
        blind = [w for w in manifest.warnings if w.code in _BLIND - {"dropped", "incomplete", "lost-events"}]
        if blind:
            weak.append("Part of the database's I/O is not in the trace (see the warnings).")
        unknown = _made_up(now, chosen, manifest)
        if unknown:
            limited.append(
                f"How well the files of role {listed(unknown)} compress was not measured: their space, "
                f"and what compression saves, are those of content that lz4 compresses {DEFAULT_RATIO:g}:1."
            )
        if repeats(manifest.compressibility):
            limited.append(
                "The recorded data repeats at a distance, as no user's does (see the warnings): what large "
                "records and compression save is less on yours."
            )
    if seconds is not None and seconds < SHORT_TRACE_S:
        limited.append(
            f"The trace is short ({units.seconds(seconds)}): "
            "less than four transaction groups of 5 s decide it."
        )
    baseline = now.baseline
    if baseline is None:
        limited.append("The base layout has no result, so nothing is compared with where you are today.")
    reference = baseline or chosen
    modelled = reference.value("modelled_s")
    if modelled is not None and reference.work is not None:
        modelled *= reference.work
        seconds = number_at(reference.measure, "model", "trace_s")
    if seconds and modelled is not None and modelled < BUSY_SHARE * seconds:
        limited.append(
            f"The recorded job did not wait for these disks: the {'base' if baseline else 'recommended'} "
            f"layout needs {units.seconds(modelled)} of modelled I/O time for {units.seconds(seconds)} "
            "recorded. Ratios say how much I/O a layout saves, not how much faster the job gets."
        )
    busy = chosen.need
    before = baseline.need if baseline is not None and baseline is not chosen else None
    if busy is not None and busy.limited:
        also = f" (base layout: {before.sentence()})" if before is not None and before.limited else ""
        more = (busy.cpu or 0.0) > busy.disks
        if busy.cores is None:
            what = "limit this layout more than its disks" if more else "could not keep this pace"
            limited.append(
                f"Processors {what}: the replay took {busy.sentence()}{also}. "
                "Modelled time leaves processors out; "
                f"{measured_by(now.run, manifest)} measures what they cost."
            )
        else:
            what = "are what limits this layout, not its disks" if more else "could not keep this pace"
            limited.append(
                f"Processors {what}: its compression, checksums, parity and copies take {busy.sentence()}"
                f"{also}. The rest of ZFS and the database take more; "
                f"{measured_by(now.run, manifest)} measures all of it."
            )
    elif before is not None and before.limited and before.cores:
        notes.append(
            f"Under the base layout processors are what limits: {before.sentence()}; here they are not."
        )
    pace = outpaced(now, manifest)
    if pace:
        needs = [n for c in (chosen, baseline) if c is not None and (n := c.need) is not None]
        most = max((need.times for need in needs), default=0.0)
        (weak if most > demand.FAR else limited if most > BOUND else notes).append(pace)
    first = _first_reads(now, chosen, manifest)
    if first:
        (limited if baseline is None or baseline is chosen else weak).insert(0, first)
    share = _hit_share(chosen)
    if share is not None and share >= CACHED_SHARE and not first:
        limited.append(
            f"{share:.1%} of reads were answered by the ARC: the database fits in the modelled ARC, "
            "so reads from disk were hardly tested. Screen with a smaller ARC if yours won't fit."
        )
    times = _size_against_arc(chosen)
    if times is not None and times < ROOMY:
        there = f"{times:.1f} times the modelled ARC" if times >= 0.1 else "a part of the modelled ARC"
        before_times = None if baseline is None else _size_against_arc(baseline)
        # Where the base fits too, or is the one, no gain comes from that.
        gain = baseline is not None and baseline is not chosen and (before_times or 0.0) > 1
        since = ": part of its gain is that more of the database stays in memory" if gain else ""
        less = "gains less" if gain else "has more reads from disk than were tested"
        limited.append(
            f"This layout stores everything in {there}, which keeps blocks compressed{since}. "
            f"A larger database {less}; record one as large, beside its ARC, as yours."
        )
    ended = stopped(now.run.outcome)
    if ended is not None and (text := ended.sentence()):
        (notes if ended.reason in ("enough", "all") else limited).append(text)
    found = now.found
    if now.run.status == "interrupted" or found.pending:
        limited.append(
            f"The run is not complete: {found.pending} of "
            f"{found.pending + len(found.layouts) + len(found.failed)} "
            "layouts have no result yet."
        )


def _first_reads(now: Standing, chosen: LayoutResult, manifest: Manifest | None) -> str:
    """Return, as a sentence, that what was read from disk had not been read before, and would stay in the
    ARC: of a database that runs already it says little. "" where reads are few, where layouts do not differ
    by them, or where the ARC had to drop anything.
    """
    if manifest is None or COLD not in {warning.code for warning in manifest.warnings}:
        return ""
    base = now.baseline
    both = [chosen] if base is None or base is chosen else [base, chosen]
    reads, full = [], 0.0
    for one in both:
        count, writes = (number_at(one.measure, "physical", key) for key in ("reads", "writes"))
        most, room = (number_at(one.measure, "arc", key) for key in ("size_max", "c_max"))
        if count is None or writes is None or most is None or not room:
            return ""
        if {one.settings.get(f"{d.key}.primarycache") for d in one.layout.datasets} - {None, "all"}:
            return ""
        reads.append((count, count / max(count + writes, 1.0)))
        full = max(full, most / room)
    if full >= FULL_SHARE or max(share for _, share in reads) < FEW_READS:
        return ""
    told = f"The ARC was {full:.0%} full at most, so that each read from disk, "
    then = "; once a database has run for a while, such reads no longer come"
    if len(reads) == 1:
        return f"{told}{reads[0][0]:,.0f} of them, was the first of its record{then}."
    (before, _), (after, _) = reads
    if abs(after - before) <= now.within * max(before, after):
        return ""
    return (
        f"{told}{before:,.0f} under the base layout and {after:,.0f} here, was the first of its record"
        f"{then}, and what the layouts differ by in them is gone. Compare what they write, or measure: "
        f"{measured_by(now.run, manifest)} does."
    )


def _near(doubts: _Doubts, now: Standing, chosen: LayoutResult) -> None:
    """Note a second layout that is as good, and that nothing was repeated."""
    runner = next((r.result for r in now.ranked if r.result is not chosen), None)
    key = now.minimise[0]
    if runner is not None:
        gap = ratio(runner.value(key), chosen.value(key))
        if gap is not None and gap <= 1 + now.within:
            doubts.notes.append(
                f"{runner.name} is within {units.show(now.within, 'share')} in "
                f"{now.label(key)}; differences that small are too small to matter."
            )
    if all(c.estimates[key].n == 1 for c in now.found.layouts if key in c.estimates):
        doubts.notes.append(
            "One replay per layout: a difference below about 1% in bytes or 3% in operations says nothing."
        )


def _of_trials(doubts: _Doubts, now: Standing, chosen: LayoutResult) -> None:
    weak, limited, notes, run = doubts.weak, doubts.limited, doubts.notes, now.run
    caution = now.caution()
    if caution is not None:
        limited.append(caution)
    if len(chosen.trials) < 2:
        weak.append("The recommended layout ran once: nothing is known of how much its runs differ.")
    base = now.baseline
    if base is None:
        weak.append("The baseline has no result, so nothing is compared with where you are today.")
    if not now.outcome.get("verdict"):
        limited.append("Nothing was compared: no other layout that may be recommended has a result.")
    elif now.outcome["verdict"] == "open":
        limited.append("The run ended before the best layout was known beyond doubt: more blocks are needed.")
    if run.status in {"interrupted", "failed"}:
        limited.append(f"The run is not complete: {now.found.pending} trials did not run.")
    note = limits(run, now.found.layouts)
    if note is not None:
        notes.append(note)
        if not limited:
            limited.append("What your disks do beyond their profile is not in it.")
    ended = followed(run.outcome)
    if ended is not None:
        (limited if ended.reason in ("most", "going on") else notes).append(ended.sentence())
        if text := ended.disagreement():
            notes.append(text)
    equal = [p.result.name for p in now.places if p.standing == "equal" and p.result is not chosen]
    if equal:
        notes.append(
            f"Equal within {units.show(now.within, 'share')}: {', '.join(equal)}; any of them will do."
        )


def outpaced(now: Standing, manifest: Manifest | None) -> str:
    """Return which of the ranked layouts could not have kept the recorded pace; "" if all could."""
    named = [c for c in (now.baseline, now.chosen) if c is not None]
    return demand.outpaced_sentence([r.result for r in now.ranked], named, measured_by(now.run, manifest))


def _hit_share(one: LayoutResult) -> float | None:
    """Return the share of reads that the ARC answered; None where they are few, or where so much came from
    the disks that the ARC can't have kept it: a scan finds in the ARC what was read ahead of it.
    """
    found = [number_at(one.measure, "arc", f"demand_data_{key}") for key in ("hits", "misses")]
    hits, misses = (value or 0.0 for value in found)
    came = number_at(one.measure, "physical", "read_bytes") or 0.0
    return None if hits + misses < 1000 or came > one.layout.arc else hits / (hits + misses)


def not_tested(
    now: Standing,
    chosen: LayoutResult,
    workload: str | None,
    manifest: Manifest | None,
    ages: Sequence[str] = ("new",),
    beside: bool = False,
) -> list[str]:
    """Return, as sentences, what this run says nothing about.

    ``ages``: what its pools were, in words. ``beside``: whether another job was tried on the pool too.
    """
    modelled = now.basis == "modelled"

    def fixed_to(key: str) -> bool:
        return len({c.settings.get(key) for c in now.found.layouts}) == 1

    same: dict[str, list[str]] = {}
    for dataset in chosen.layout.datasets:
        for name in STATED if modelled else dataset.properties:
            key = f"{dataset.key}.{name}"
            if modelled and name == "special_small_blocks" and chosen.settings.get("special") == "none":
                continue
            if fixed_to(key):
                value = f"={chosen.settings.get(key)}" if modelled else ""
                same.setdefault(dataset.key, []).append(name + value)
    out = []
    if same:
        varied = "; ".join(f"{role}: {', '.join(names)}" for role, names in same.items())
        out.append(f"Properties with one value in all layouts: {varied}.")
    if not modelled:
        out += [_other_ages(ages, "each trial starts"), *([] if beside else [_NO_NEIGHBOUR])]
        out.append(
            f"Other workloads than {workload or 'this one'}, such as backups, "
            "imports and long reports; other sizes."
        )
        return out
    fixed = [
        f"{word} ({chosen.settings.get(key)})"
        for key, word in (
            ("slog", "log device"),
            ("l2arc", "cache device"),
            ("special", "special vdev"),
            ("arc", "ARC"),
        )
        if key in chosen.settings and fixed_to(key)
    ]
    fixed += [
        f"{key.removeprefix('pool.')} ({value})"
        for key, value in chosen.settings.items()
        if key.startswith("pool.") and default_setting(key) is None and fixed_to(key)
    ]
    if fixed:
        out.append(f"Pool and memory settings with one value in all layouts: {', '.join(fixed)}.")
    handed = sorted(n for n, p in PROPERTIES.items() if not p.replayed and n not in {"snapdir", "acltype"})
    out.append(f"Properties that the replay does not model: {', '.join(handed)}.")
    text = (
        "Your disks and your kernel: device times come from a profile, and of ZFS's processor time only what "
        "it does to data is in the modelled time: compression, checksums, parity, copies."
    )
    if not next(iter(chosen.results.values()))["measure"].get("processor", {}).get("host", {}).get("name"):
        text += " It is this machine's, paced at rates that ztune ships; --processor takes your host's."
    out.append(text)
    out += [_other_ages(ages, "the replay starts"), *([] if beside else [_NO_NEIGHBOUR])]
    if manifest is not None and manifest.workload is not None:
        out.append(
            f"Other workloads than {manifest.workload.name}, such as backups, imports and long reports."
        )
    else:
        out.append(
            "Other hours and other jobs than the recorded ones, such as backups, imports and long reports."
        )
    settings = {key for c in now.found.layouts for key in c.settings if key.startswith("database.")}
    if all(map(fixed_to, settings)):
        out.append("Settings of the database itself (page size, full_page_writes, WAL recycling).")
    return out


_NO_NEIGHBOUR = "Another job on the same pool at the same time; `--with` tries one."


def _other_ages(tried: Sequence[str], who: str) -> str:
    """Return which pools nothing ran on; ``tried``: what they were, in words."""
    if list(tried) == ["new"]:
        return (
            f"An aged pool: {who} on an empty one, without fragmentation and snapshots. "
            "`--age used` tries one."
        )
    return f"Pools of other ages than these: {'; '.join(tried)}."
