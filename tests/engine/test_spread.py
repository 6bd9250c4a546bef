"""Where on the whole disk lies what was loaded of it, alone, under sanitizers."""

from __future__ import annotations

import subprocess

from engine_build import PLAIN


def spread(*lines: str) -> list[float]:
    """Return what the lines ask for, and how many times as much the whole is."""
    done = subprocess.run(
        [str(PLAIN), "spread"], input="".join(f"{line}\n" for line in lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


def test_what_was_left_out_lies_between() -> None:
    """Ten bytes of a hundred, then none of a hundred, then a hundred of a hundred."""
    parts = ["add 10 10", "add 0 90", "add 0 100", "add 100 100"]
    # Of 110 bytes the first ten lie at the beginning, the others behind two hundred.
    assert spread(*parts, "at 0", "at 0.0454545454", "at 0.0909090910", "at 0.5454545454", "at 1") == [
        0, 0.016666667, 0.666666667, 0.833333333, 1, 2.727272727,
    ]  # fmt: skip


def test_of_nothing_all_lies_where_it_lies() -> None:
    assert spread("at 0.25", "at 1") == [0.25, 1, 1]
    assert spread("add 0 0", "add 0 100", "at 0.25") == [0.25, 1]


def test_the_whole_is_never_less() -> None:
    assert spread("add 100 50", "at 0.5") == [0.5, 1]
