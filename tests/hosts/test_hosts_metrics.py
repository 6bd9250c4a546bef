"""Metrics: what is told, that a real Prometheus scrapes it, and that the dashboard's queries have answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any

import observations as made
import pytest
from click.testing import CliRunner
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from zfs_machine import recommended

from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.hosts.asking import HostAnswer
from ztune.hosts.drift import read_expected
from ztune.hosts.listed import ListedHost
from ztune.hosts.metrics import ObservedMetrics, address
from ztune.observe.model import Observation

PROMETHEUS = shutil.which("prometheus", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def read(metrics: ObservedMetrics) -> list[Metric]:
    return list(text_string_to_metric_families(metrics.text().decode()))  # type: ignore[no-untyped-call]


def seen() -> Observation:
    """A host whose pool writes three bytes for each that is asked for; one danger on it."""
    found = made.observation(
        data={"sync": "disabled", "used": 1 << 30},
        arc={"hits": 90, "misses": 10},
        begun="2026-01-02T03:04:05.000Z",
    )
    assert found.zfs is not None
    found.zfs.counters["objsets tank"] = {"reads": 1, "nread": 1, "writes": 1, "nwritten": 2 << 20}
    found.zfs.counters["vdevs tank"] = {
        "reads": 1, "read_bytes": 60 << 20, "writes": 1, "write_bytes": 6 << 20,
    }  # fmt: skip
    return found


@pytest.fixture
def metrics(tmp_path: Path) -> ObservedMetrics:
    file = tmp_path / "recommended.json"
    file.write_text(recommended({"data.recordsize": "32K"}).model_dump_json())
    found = ObservedMetrics(read_expected(file))
    answers = [("db1", seen()), ("db2", None)]
    found.take(HostAnswer(ListedHost(name, name, None), one, "it hangs") for name, one in answers)
    return found


def test_openmetrics_of_two_hosts(metrics: ObservedMetrics) -> None:
    text = metrics.text().decode()
    assert text.endswith("# EOF\n")
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in read(metrics)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return float(values[(name, *sorted(labels.items()))])

    assert (value("ztune_up", host="db1"), value("ztune_up", host="db2")) == (1, 0)
    assert value("ztune_pool_write_amplification", host="db1", pool="tank") == 3
    assert value(
        "ztune_pool_device_bytes_per_second", host="db1", pool="tank", direction="read"
    ) == pytest.approx((60 << 20) / made.SECONDS)
    assert value("ztune_findings", host="db1", severity="danger") == 1
    assert value("ztune_finding", host="db1", id="sync-disabled", severity="danger", about="tank/data") == 1
    assert value("ztune_dataset_bytes", host="db1", dataset="tank/data", kind="used") == 1 << 30
    role = {"host": "db1", "role": "data", "dataset": "tank/data"}
    assert value("ztune_role_write_mean_bytes", **role) == 8192
    assert value("ztune_role_write_size_bytes_bucket", **role, le="16383.0") == 10_000
    assert value("ztune_role_write_size_bytes_gsum", **role) == 10_000 * 8192
    assert value("ztune_drifts", host="db1") > 0
    info = next(key for key in values if key[0] == "ztune_dataset_info" and ("dataset", "tank/data") in key)
    assert ("recordsize", "16384") in info and ("sync", "disabled") in info


def test_hostile_names_stay_in_their_quotes(metrics: ObservedMetrics) -> None:
    name = 'x"} 1\nztune_up{host="y'
    metrics.take([HostAnswer(ListedHost(name, name, None), seen())])
    (family,) = [f for f in read(metrics) if f.name == "ztune_up"]
    assert [sample.labels["host"] for sample in family.samples] == [name]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (":9743", ("127.0.0.1", 9743)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:80", ("::1", 80)),
        ("out.prom", None), ("dir/out:80", None),
    ],
)  # fmt: skip
def test_where_it_listens(text: str, where: tuple[str, int] | None) -> None:
    assert address(text) == where


def test_a_port_that_is_none_or_is_taken(metrics: ObservedMetrics) -> None:
    with pytest.raises(InputError, match="from 1 to 65535"):
        address(":99999")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="can't listen on"):
            metrics.serve(("127.0.0.1", taken.getsockname()[1]))


def dashboard() -> dict[str, Any]:
    text = resources.files("ztune.report").joinpath("dashboard.json").read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def test_the_dashboard_asks_for_metrics_that_there_are(metrics: ObservedMetrics) -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    told = metrics.text().decode()
    for panel in panels:
        (target,) = panel["targets"]
        assert target["expr"].split("ztune_")[1].split("{")[0] in told.replace("ztune_", ""), panel["title"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus (scripts/test-tools.sh)")
def test_a_real_prometheus_scrapes_it_and_answers_the_dashboard(
    metrics: ObservedMetrics, tmp_path: Path
) -> None:
    port, own = free_port(), free_port()
    server = metrics.serve(("127.0.0.1", port))
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        f"  - job_name: ztune\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    )
    assert PROMETHEUS is not None
    process = subprocess.Popen(
        [
            PROMETHEUS, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(query: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/query?{words}", timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success"
        return list(said["data"]["result"])

    try:
        for _ in range(600):
            try:
                if ask("ztune_up"):
                    break
            except OSError:
                pass
            time.sleep(0.1)
        assert {row["metric"]["host"]: row["value"][1] for row in ask("ztune_up")} == {"db1": "1", "db2": "0"}
        for panel in dashboard()["panels"]:
            (target,) = panel["targets"]
            assert ask(target["expr"].replace("$host", ".*")), panel["title"]
        (half,) = ask('histogram_quantile(0.5, ztune_role_write_size_bytes_bucket{role="data"})')
        assert 8191 <= float(half["value"][1]) <= 16383
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


def test_one_host_is_told_and_compared_too(tmp_path: Path) -> None:
    saved, out = tmp_path / "seen.json", tmp_path / "ztune.prom"
    saved.write_text(json.dumps(made.observation(host="db1").to_json()))
    wanted = tmp_path / "recommended.json"
    wanted.write_text(recommended({"data.recordsize": "32K"}).model_dump_json())
    words = ["observe", "--from", str(saved), "--expect", str(wanted), "--metrics", str(out)]
    done = CliRunner().invoke(ztune, words, standalone_mode=False)
    assert done.exception is None and done.return_value == 1
    assert "Not as" in done.output and "32K" in done.output
    text = out.read_text()
    assert 'ztune_up{host="db1"} 1.0' in text and "# EOF" not in text  # as textfile collectors read it
    done = CliRunner().invoke(ztune, ["observe", "--dashboard"], standalone_mode=False)
    assert json.loads(done.output) == dashboard()
    bad = CliRunner().invoke(ztune, ["observe", "--hosts", str(saved), "--pid", "1"], standalone_mode=False)
    assert "--pid observes this host; --hosts asks others" in str(bad.exception)
