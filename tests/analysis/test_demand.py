"""A job that the modelled disks could not have kept up with is said to be one, with its figures."""

from __future__ import annotations

from typing import Any

import evidence as ev
import pytest

from ztune.advice.model import Recommendation
from ztune.advice.recommend import recommend
from ztune.cli.screen import ranking_json
from ztune.report import html, terminal
from ztune.store.records import Trial
from ztune.study.layout import parse_layout, with_settings

BASE = parse_layout(ev.base_layout())


def trials(recorded_s: float, **needed_s: float) -> list[Trial]:
    """Return the base layout and others by their record size, needing so many seconds."""
    out = []
    for n, (size, seconds) in enumerate(needed_s.items(), 1):
        layout = BASE if size == "base" else with_settings(BASE, {"data.recordsize": size}, size)
        measure: dict[str, Any] = {
            "model": {"modelled_s": seconds, "trace_s": recorded_s},
            "space": {"allocated": 1e9, "logical": 2e9},
            "physical": {"write_bytes": 1e9},
        }
        out.append(ev.trial(layout, n, measure, baseline=size == "base"))
    return out


def judged(recorded_s: float, **needed_s: float) -> Recommendation:
    manifest = ev.manifest().model_copy(update={"duration_ns": int(recorded_s * 1e9)})
    return recommend(ev.run(), trials(recorded_s, **needed_s), manifest=manifest)


def test_a_job_faster_than_all_disks_makes_the_evidence_weak_and_no_order_is_promised() -> None:
    r = judged(2.7, base=31.8, **{"8K": 12.0, "1M": 90.0})
    assert r.confidence.level == "weak"
    for text in (
        "recorded in 2.70 s",
        "31.8 s for it under base",
        "12.0 s for it under 8K",
        "3 of 3 layouts",
    ):
        assert text in r.outpaced
    assert r.outpaced in r.confidence.reasons
    assert "order of layouts holds" not in r.model_dump_json()


@pytest.mark.parametrize(
    "needed, level, said",
    [
        ({"base": 29.0, "8K": 20.0}, "fair", ""),
        ({"base": 31.0, "8K": 20.0}, "limited", "31.0 s for it under base. 1 of 2 layouts"),
        ({"base": 89.0, "8K": 20.0}, "limited", "89.0 s for it under base. 1 of 2 layouts"),
        ({"base": 91.0, "8K": 20.0}, "weak", "91.0 s for it under base. 1 of 2 layouts"),
        # Neither what is recommended nor what it is compared with: a note.
        ({"base": 29.0, "8K": 20.0, "1M": 90.0}, "fair", "90.0 s for it under 1M. 1 of 3 layouts"),
    ],
)
def test_the_bounds(needed: dict[str, float], level: str, said: str) -> None:
    r = judged(30.0, **needed)
    assert r.outpaced == "" if not said else said in r.outpaced
    reasons = [text for text in r.confidence.reasons if "short" not in text]
    assert (r.outpaced in reasons) == bool(said)
    assert r.confidence.level == level


def test_it_is_said_wherever_the_order_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = trials(2.7, base=31.8, **{"8K": 12.0})
    r = judged(2.7, base=31.8, **{"8K": 12.0})
    terminal.show(r)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("these disks need 31.8 s for it under base") == 2  # below the ranking; how sure
    page = html.render(ev.run(), given, r)
    assert page.count("these disks need 31.8 s for it under base") == 3  # on the first screen as well
    plain = {k: v for k, v in ev.run().study.items() if k != "profiles"}
    stored = ranking_json(ev.run(study=plain), given)
    assert "these disks need 31.8 s for it under base" in stored["outpaced"]


def test_the_host_s_processors_are_said_where_the_recording_tells_of_them() -> None:
    def shown(*busy: float | None) -> list[tuple[str, bool]]:
        found = trials(30.0, base=20.0, **{"8K": 10.0})
        for trial, share, cpu in zip(found, busy, (1.0, 3.0), strict=True):
            measure = (trial.result or {})["measure"]
            measure["processor"] = {"host": {"cores": 2, "seconds": cpu}}
            measure["model"] |= {} if share is None else {"host_busy": share}
        r = recommend(ev.run(), found, manifest=ev.manifest())
        return [(h.label, h.side.matters) for h in r.headlines if h.name == "CPU"]

    assert shown(None, None) == [("CPU for data", True)]
    assert shown(0.02, 0.05) == [("host's processor use", False)]  # more than twice as much, of nothing
    assert shown(0.30, 0.36) == [("host's processor use", True)]
