from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztune.trace.figures import PAGE
from ztune.trace.pages import READ, WRITTEN, Pages

MIB = 1 << 20
FILES = 3
call = st.tuples(
    st.sampled_from([READ, WRITTEN]),
    st.integers(0, FILES - 1),
    st.one_of(st.integers(0, 20_000), st.integers(0, 100 * MIB), st.just(16 * MIB - 1)),
    st.one_of(st.integers(0, 20_000), st.integers(0, 40 * MIB)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(call, max_size=12), st.sampled_from([0, 1 << 29]))
def test_against_sets(calls: list[tuple[int, int, int, int]], pack: int) -> None:
    pages = Pages([0, 5 * MIB, 200 * MIB], pack)
    sets: dict[tuple[int, int], set[int]] = {}
    for kind, file, offset, size in calls:
        pages.add(kind, *(np.array([value]) for value in (file, offset, size)))
        if size:
            touched = range(offset // PAGE, (offset + size - 1) // PAGE + 1)
            sets.setdefault((kind, file), set()).update(touched)
    counts = pages.counts()
    for file in range(FILES):
        read, written = (sets.get((kind, file), set()) for kind in (READ, WRITTEN))
        found = [counts[kinds][file] for kinds in (READ, WRITTEN, READ | WRITTEN)]
        assert found == [len(read), len(written), len(read | written)]


@pytest.mark.parametrize("pack", [0, 1 << 29])
def test_many_calls_at_once(pack: int) -> None:
    draw = np.random.default_rng(1)
    n = 200_000
    file = np.sort(draw.integers(0, FILES, n))
    offset, size = draw.integers(0, 1 << 32, n), draw.integers(0, 64 << 10, n)
    pages = Pages([0] * FILES, pack)
    pages.add(READ, file, offset, size)
    for one in range(FILES):
        touched = np.zeros(2 + ((1 << 32) >> 12) + 16, np.int64)
        some = (file == one) & (size > 0)
        np.add.at(touched, offset[some] // PAGE, 1)
        np.add.at(touched, (offset[some] + size[some] - 1) // PAGE + 1, -1)
        assert pages.counts()[READ][one] == np.count_nonzero(np.cumsum(touched))


def test_what_no_file_system_holds_takes_no_room() -> None:
    pages = Pages([0, 2**63 - 1])
    zero = np.array([0])
    pages.add(READ, zero, np.array([0]), np.array([PAGE * 10]))
    pages.add(READ, zero, np.array([PAGE * 5]), np.array([2**61]))
    pages.add(WRITTEN, zero, np.array([2**62]), np.array([1]))
    pages.add(WRITTEN, zero, np.array([PAGE * 2]), np.array([1]))
    counts = pages.counts()
    assert counts[READ][0] == 5 + 2**49
    assert counts[WRITTEN][0] == 2
    assert counts[READ | WRITTEN][0] == 5 + 2**49 + 1
