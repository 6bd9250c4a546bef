"""What the program at the other end of a channel says is bounded: its host may be anybody's."""

from __future__ import annotations

import sys

import pytest

from ztune.places import channel
from ztune.places.channel import Lost, ProcessChannel


def test_a_line_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MOST_LINE", 1 << 20)
    said = ProcessChannel([sys.executable, "-c", "print('short'); print('x' * (2 << 20))"])
    try:
        lines = said.lines()
        assert next(lines) == "short"
        with pytest.raises(Lost, match="a line of its answer is longer than 1 MiB"):
            next(lines)
    finally:
        said.close()


def test_of_a_line_of_stderr_without_an_end_the_last_is_kept() -> None:
    said = ProcessChannel([sys.executable, "-c", "import sys; sys.stderr.write('x' * 100_000 + 'end')"])
    try:
        assert list(said.lines()) == [] and said.wait() == 0
        assert len(said.stderr_tail()) < 100_000 and said.stderr_tail().endswith("end")
    finally:
        said.close()
