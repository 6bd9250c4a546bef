from __future__ import annotations

from pathlib import Path

import pytest

from ztune.databases.postgresql.onhost import pgbench
from ztune.errors import ZtuneError
from ztune.onhost import latency


def test_closing_report() -> None:
    text = (
        "mode: x\nnumber of transactions actually processed: 15030\nnumber of failed transactions: 2 (0.0%)\n"
    )
    assert pgbench.parse_output(text) == pgbench.PgbenchReport(15030, 2)
    assert pgbench.parse_output("number of transactions actually processed: 7") == pgbench.PgbenchReport(7, 0)
    both = "number of transactions actually processed: 60\ntps = 1.987 (without initial connection time)\n"
    assert pgbench.parse_output(both) == pgbench.PgbenchReport(60, 0, 1.987)
    with pytest.raises(ZtuneError, match="names no number of transactions"):
        pgbench.parse_output("pgbench: nothing to do")


def test_progress_lines() -> None:
    assert pgbench.parse_progress("progress: 3.0 s, 501.2 tps, lat 1.2 ms stddev 0.8, 0 failed") == 3.0
    assert pgbench.parse_progress("starting vacuum...end.") is None


def test_latencies_from_logs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(
        "0 1 1500 0 1700000000 5\n1 1 2500 0 1700000000 6 12\n0 2 failed 0 1700000000 7\n"
    )
    (tmp_path / "b").write_text("2 1 skipped 0 1700000000 8\n2 2 3500 0 1700000000 9\n2 3 99")
    found = pgbench.read_latencies([tmp_path / "a", tmp_path / "b"])
    assert found == [1.5, 2.5, 3.5]
    summary = latency.summary(found)
    assert summary["mean"] == 2.5 and summary["p50"] == 2.5 and summary["max"] == 3.5
    assert latency.summary([]) == {}
    many = latency.summary([float(n) for n in range(1001)])
    assert (many["p50"], many["p90"], many["p99"], many["p999"]) == (500.0, 900.0, 990.0, 999.0)
    assert latency.quantile([1.0, 2.0], 0.25) == 1.25


def test_long_runs_are_sampled() -> None:
    assert pgbench.sampling_rate(30) == 1.0
    assert 0 < pgbench.sampling_rate(86_400) * 86_400 * 10_000 <= pgbench.MAX_LOGGED * 1.01


def test_the_mix_is_two_reads_for_a_write() -> None:
    words = [line.split()[0] for line in pgbench.MIX21.splitlines()]
    writes = words.count("UPDATE") + words.count("INSERT")
    assert words.count("SELECT") == 2 * writes
    # One row of proof per transaction.
    assert words.count("INSERT") == 1
