"""Versions of OpenZFS side by side."""

from __future__ import annotations

from types import MappingProxyType

from ztune.analysis.across import Across, LayoutAcross


def layout(name: str, before: dict[str, float], after: dict[str, float]) -> LayoutAcross:
    return LayoutAcross(name, name, name == "a", MappingProxyType({"2.3.2": before, "2.4.4": after}), {})


def test_ratios_are_to_the_first_version() -> None:
    layouts = (
        layout(
            "a",
            {"written": 100.0, "read": 0.0, "read_ops": 0.0},
            {"written": 90.0, "read": 0.0, "read_ops": 5.0},
        ),
        layout("b", {"written": 10.0}, {"written": 20.0}),
        layout("c", {"written": 10.0}, {"written": 10.0}),
        layout("d", {"written": 10.0}, {}),
    )
    found = Across(("2.3.2", "2.4.4"), ("x", "y"), layouts)
    assert found.ratio(layouts[0], "2.4.4", "written") == 0.9
    # Nothing before and nothing after is no change; from nothing to something has no ratio.
    assert found.ratio(layouts[0], "2.4.4", "read") == 1.0
    assert found.ratio(layouts[0], "2.4.4", "read_ops") is None
    assert found.ratio(layouts[3], "2.4.4", "written") is None
    change = found.change("2.4.4", "written")
    assert change is not None
    assert (change.median, change.low, change.high, change.layouts) == (1.0, 0.9, 2.0, 3)
    assert found.change("2.4.4", "allocated") is None
