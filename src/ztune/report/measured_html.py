"""What only a measured run has in its HTML report: ranking, every run, why bytes are written, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ztune.analysis import units
from ztune.analysis.contrast import two_factor
from ztune.analysis.disk_use import DiskUse, disk_use, median_trial
from ztune.analysis.metrics import MEASURED
from ztune.analysis.neighbours import measured as beside
from ztune.analysis.predicted import compare
from ztune.analysis.rank import RankedLayout
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing
from ztune.analysis.why import explain, sentence
from ztune.errors import InputError
from ztune.report import charts, effects, measured, processes
from ztune.store.records import Run, Trial

_DOTS = 3  # metrics that are drawn block by block
_EFFECTS = 4  # metrics of the table of effects


def sections(now: Standing, trials: Sequence[Trial], screened: Sequence[Trial]) -> dict[str, Any]:
    """Return what the template's sections of measured runs show; ``screened``: what predicted it."""
    layouts = [p.result for p in now.places]
    shown = _looked_at(now, trials)
    keys = now.columns(6)
    labels = {key: now.label(key) for key in keys[:_EFFECTS]}
    reasons = [(c, w) for c in layouts if (w := explain(c)) is not None]
    compared = compare(layouts, screened)
    return {
        "now": now,
        "head": measured.head(now),
        "outcome": measured.verdict(now),
        "cautions": measured.cautions(now),
        "columns": [(k, now.label(k)) for k in keys],
        "rows": [_row(p, keys, now) for p in now.places],
        "dots": [(now.label(k), charts.dots(layouts, k, now.chosen)) for k in keys[:_DOTS]],
        "causes": charts.causes(reasons),
        "logs": _logs(layouts),
        "has_zil": any(w.zil is not None for _, w in reasons),
        "reasons": [(c, sentence(c, _unit(c))) for c, _ in reasons],
        "classes": _classes(reasons),
        "unit": _unit(layouts[0]) if layouts else "operation",
        "disks": _disks(now, shown),
        "processes": _processes(shown),
        "process_columns": processes.COLUMNS,
        "compared": [(c, charts.scatter(c), measured.accuracy(c)) for c in compared],
        "effects": effects.table(effects.measured(now, labels), labels),
        "interactions": [t for k in now.minimise[:1] for t in two_factor(layouts, k)],
        "beside": beside(now.run, trials),
        "trials": trials,
        "environment": _environment(now.run, layouts),
    }


def _unit(cell: LayoutResult) -> str:
    for result in cell.results.values():
        unit = (result.get("job") or {}).get("unit")
        if isinstance(unit, str) and unit:
            return unit
    return "operation"


def _row(place: RankedLayout, keys: Sequence[str], now: Standing) -> dict[str, Any]:
    cell = place.result
    values: list[dict[str, Any]] = []
    for key in keys:
        estimate = None if key in cell.few_calls else cell.estimates.get(key)
        unit = MEASURED[key].unit
        if estimate is None:
            values.append({"text": "–", "sort": "", "range": ""})
            continue
        span = ""
        if estimate.low is not None and estimate.high is not None:
            span = f"{units.show(estimate.low, unit)} … {units.show(estimate.high, unit)}"
        values.append({"text": units.show(estimate.median, unit), "sort": estimate.median, "range": span})
    key = now.minimise[0] if now.minimise else ""
    return {
        "place": place,
        "cell": cell,
        "values": values,
        "against": "" if not key else measured.against(cell, key),
        "sort": cell.against[key].mean if key in cell.against else 1.0,
        "standing": measured.STANDING[place.standing],
        "recommended": cell is now.chosen,
        "passed_over": now.passed_over if cell is now.first else "",
    }


def _classes(reasons: Sequence[tuple[LayoutResult, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Return the bytes written by class of device, where there is more than one class."""
    names = list(dict.fromkeys(n for _, w in reasons for n in w.by_class))
    if len(names) < 2:
        return []
    return [
        (c.name, {n: units.amount(w.by_class[n]) if n in w.by_class else "–" for n in names})
        for c, w in reasons
    ]


_LOG = ("log_write", "log_sync", "log_writes", "log_syncs", "log_waits")


def _logs(layouts: Sequence[LayoutResult]) -> dict[str, Any]:
    """Return what the databases counted of their own logs, as a table; no columns where they don't."""
    keys = [k for k in _LOG if any(k in c.estimates for c in layouts)]
    return {
        "columns": [MEASURED[k].named(layouts[0].basis) for k in keys],
        "rows": [(c.name, [c.text(k) for k in keys]) for c in layouts],
    }


def _looked_at(now: Standing, trials: Sequence[Trial]) -> list[tuple[LayoutResult, Trial]]:
    """Return the layouts to look at closely, each with its trial in the middle: the baseline, and the
    recommended one, or the first of the ranking where that is the baseline.
    """
    other = now.first if now.chosen is now.baseline else now.chosen
    cells = [c for c in (now.baseline, other) if c is not None]
    if other is now.baseline:
        cells = cells[:1]
    by_number = {t.number: t for t in trials}
    key = now.minimise[0] if now.minimise else ""
    return [(cell, by_number[median_trial(cell, key)]) for cell in cells]


def _disks(now: Standing, shown: Sequence[tuple[LayoutResult, Trial]]) -> dict[str, Any]:
    """Return what the disks did in these trials; one without a series of its disks says why."""
    # Here, as it takes Parquet, which only this asks for.
    from ztune.store import series

    found: list[tuple[LayoutResult, int, tuple[DiskUse, ...], str]] = []
    for cell, trial in shown:
        uses: tuple[DiskUse, ...] = ()
        why = ""
        try:
            slowed = float(((trial.result or {}).get("environment") or {}).get("dilation") or 1.0)
            uses = disk_use(series.read(trial, "disks"), slowed)
        except InputError as error:
            why = str(error) if any(s.probe == "disks" for s in trial.series) else _NO_DISKS
        found.append((cell, trial.number, uses, why or ("" if uses else _NO_DISKS)))
    every = [use for _, _, uses, _ in found for use in uses]
    most = charts.highest(every)
    seconds = max((use.edges[-1] for use in every), default=0.0)
    lacking = [text for panel, text in _UNCOUNTED.items() if every and panel not in most]
    return {
        "trials": [
            {
                "cell": cell,
                "number": number,
                "plot": charts.disk_use(uses, most, seconds) if uses else "",
                "uses": [(use, i % charts.HUES, _means(use, most)) for i, use in enumerate(uses)],
                "why": why,
            }
            for cell, number, uses, why in found
        ],
        "columns": [name for name, panel in _MEANS.items() if panel in most],
        "lacking": lacking,
        "modelled": now.run.target.get("kind") == "mount",
    }


_NO_DISKS = (
    "Not known: the probe series was off, or the devices are files; "
    "the disk below those does more than the trial's work."
)
_UNCOUNTED = {
    "busy": "How long the disks worked is not known: instant disks keep no time.",
    "queued": "Queues and waits are not known: a modelled disk counts its work, not what waits for it.",
}
_MEANS = {
    "at work": "busy",
    "at most": "busy",
    "under way": "queued",
    "wait": "queued",
    "operations/s": "operations",
    "read/s": "bytes",
    "written/s": "bytes",
}
"""The columns of the means, and the panel without which nobody counted them."""


def _means(use: DiskUse, most: Mapping[str, float]) -> list[str]:
    """Return the cells of a group's row: the means over the whole window."""
    whole = use.whole
    peak = max((one.busy or 0.0 for one in use.intervals), default=0.0)
    cells = {
        "at work": units.show(whole.busy or 0.0, "share"),
        "at most": units.show(peak, "share"),
        "under way": units.show(whole.queued or 0.0, "ratio"),
        "wait": "–" if whole.wait_s is None else units.seconds(whole.wait_s),
        "operations/s": units.show(whole.operations, "rate"),
        "read/s": units.amount(whole.read_bytes),
        "written/s": units.amount(whole.write_bytes),
    }
    return [text for name, text in cells.items() if _MEANS[name] in most]


def _processes(shown: Sequence[tuple[LayoutResult, Trial]]) -> list[dict[str, Any]]:
    """Return what the processes of these trials did, and the host's interrupts; trials that know neither are
    left out.
    """
    found = [(cell, trial, processes.of(trial)) for cell, trial in shown]
    return [{"cell": cell, "number": trial.number, "told": told} for cell, trial, told in found if told.rows]


def _environment(run: Run, cells: Sequence[LayoutResult]) -> dict[str, str]:
    out: dict[str, str] = {"Target": run.where}
    accel = run.target.get("accel")
    if accel:
        out["Virtualisation"] = {
            "tcg": "emulation (TCG): seconds are emulated",
            "kvm": "KVM",
            "uml": "a kernel in user mode (UML), of one processor",
        }.get(accel, str(accel))
    for key, value in run.target.items():
        if key not in {"name", "kind", "accel", "hosts"} and value not in (None, "", {}, []):
            out[key.capitalize().replace("_", " ")] = _text(value)
    for host in run.target.get("hosts", ()):
        out[host["name"]] = _text({k: v for k, v in host.items() if k != "name" and v not in (None, "", {})})
    if run.target.get("kind") in {"lab", "mount"}:
        used = {v.profile for c in cells for p in c.layout.used_pools() for v in p.vdevs}
        out["Disk profiles"] = ", ".join(sorted(used))
    for key, value in run.versions.items():
        out[
            {"openzfs": "OpenZFS", "kernel": "Kernel", "database": "Database", "ztune": "ztune"}.get(key, key)
        ] = value
    for key, value in (run.environment.get("target") or {}).items():
        if key not in {"openzfs", "kernel", "tools", "boot_id", "accel", "root", "host", "mount"}:
            out[f"Target: {key}"] = units.amount(value) if key == "memory" else _text(value)
    out["Job"] = _text(run.job.get("params", {}))
    layouts = {c.layout.arc for c in cells}
    out["ARC"] = ", ".join(units.amount(a) for a in sorted(layouts))
    out["Settled"] = str(run.options.get("settle", "cold"))
    known = (run.environment.get(key) for key in ("kernel", "cpu"))
    out["Host of ztune"] = ", ".join(str(text) for text in known if text)
    return out


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_text(v) for v in value)
    return str(value)
