"""The write-size histograms of published studies: the findings name the record sizes that those concluded."""

from __future__ import annotations

import pytest
from observations import histogram
from published_studies import GRAPH, IMPORT

from ztune.advice.findings import Finding, findings
from ztune.advice.record_size import CANDIDATES, SMALLEST, fit, in_words, moved, typical


def said(role: str, sizes: dict[int, int]) -> dict[str, Finding]:
    return {f.id: f for f in findings(histogram(role, sizes))}


@pytest.mark.parametrize(
    "study", [*GRAPH.values(), *IMPORT.values()], ids=[*GRAPH, "import-wal", "import-data"]
)
def test_the_record_size_of_the_study_is_named(study: tuple[str, dict[int, int], int]) -> None:
    role, sizes, concluded = study
    words = {8192: "8K", 65536: "64K", 524288: "512K"}[concluded]
    found = said(role, sizes)
    finding = found["recordsize-from-writes" if role in {"data", "index"} else "recordsize-from-appends"]
    assert f"recordsize {words}" in finding.sentence
    assert f"`zfs create -o recordsize={words} …`" in finding.do
    assert {e.fact: e.value for e in finding.evidence}["fit"] == concluded


def test_the_import_s_log_is_told_why_32k_or_less_was_faster() -> None:
    found = said("wal", IMPORT["wal"][1])["wal-large-writes"]
    assert "32K or less" in found.do
    assert "wal-large-writes" not in said("wal", {8192: 1000})


def test_where_today_s_advice_differs() -> None:
    data = said("data", GRAPH["data"][1])
    assert "leave the default, latency" in data["old-advice-logbias"].sentence
    assert "Never lzjb" in data["old-advice-compression"].do
    assert "`checksum=on`" in data["old-advice-checksum"].do
    assert "zfs_vdev_cache" in data["old-advice-read-ahead"].sentence
    # The log's logbias was latency in the study, too.
    assert "old-advice-logbias" not in said("wal", GRAPH["wal"][1])


def test_neither_calls_nor_bytes_alone_decide() -> None:
    # Three of four calls are single bytes; they are 0.004% of the bytes.
    assert fit(IMPORT["wal"][1]).recordsize == 65536  # type: ignore[union-attr]
    # A doublewrite buffer: 64 pages of 16K at once, then each to its place. By bytes it is a tie.
    doublewrite = {16384: 64_000, 1 << 20: 1000}
    assert typical(doublewrite) == 1 << 20
    assert fit(doublewrite).recordsize == 16384  # type: ignore[union-attr]


def test_what_a_record_size_moves_is_as_the_docs_say() -> None:
    # By hand: three writes of 8K in records of 16K, one of 64K in four of them, each with 4K beside it.
    assert moved({1: 99, 8192: 3, 65536: 1}, 16384) == 3 * 20480 + 4 * 20480


@pytest.mark.parametrize("size", CANDIDATES)
def test_one_size_of_writes_asks_for_itself(size: int) -> None:
    best = fit({size: 10, 1: 30})
    assert best is not None
    assert (best.recordsize, best.size, best.calls, best.tiny) == (size, size, 10, 0.75)
    assert best.share == size * 10 / (size * 10 + 30)
    assert (best.below is None) is (size == SMALLEST)


def test_writes_below_the_smallest_record_take_the_smallest() -> None:
    best = fit({4096: 100})
    assert best is not None and best.recordsize == SMALLEST and best.share == 1.0
    assert fit({512: 100}).share == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("sizes", [{}, {1: 3276, 256: 7}, {8192: 0}])
def test_writes_below_a_sector_say_nothing(sizes: dict[int, int]) -> None:
    assert fit(sizes) is None
    assert not {"recordsize-from-writes", "recordsize-from-appends"} & set(said("data", sizes))


def test_a_few_large_writes_among_tiny_ones_say_nothing() -> None:
    # Apache Derby's log under small transactions: it fills new files with zeros.
    sizes = {1: 24, 128: 3332, 65536: 15}
    best = fit(sizes)
    assert best is not None and best.calls == 15 and best.share == pytest.approx(0.697, abs=0.001)
    assert "recordsize-from-appends" not in said("wal", sizes)
    assert "recordsize-from-appends" in said("wal", {**sizes, 65536: 100})
    # Nor where most of the bytes are theirs.
    assert "recordsize-from-appends" not in said("wal", {128: 60_000, 65536: 100})


def test_sizes_in_words() -> None:
    assert in_words(IMPORT["data"][1]) == "8 × 399, 64K × 2423"
    assert in_words(IMPORT["wal"][1]) == "1 × 5260, 64K × 1819"
