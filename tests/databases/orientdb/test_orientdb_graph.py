"""``orientdb-graph`` on the real OrientDB, at its smallest; skipped where it isn't installed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ztune.databases.orientdb.onhost.graph import OrientdbGraph as GraphJob
from ztune.databases.orientdb.workload import OrientdbGraph
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir

pytestmark = pytest.mark.timeout(900)

# Repeats, a loop, a term that is subject and object, text that JSON and Java must not stumble over.
TRIPLES = "".join(
    f"<urn:s{n % 40}> <urn:p{n % 3}> <urn:s{n % 7}> .\n"
    f'<urn:s{n % 40}> <urn:label> "text {n} \\\\ \\"ü\\" ." .\n'
    for n in range(60)
)


@pytest.fixture(scope="module")
def own(open_parent: Path) -> Path:
    path = open_parent / "own.nt"
    path.write_text(TRIPLES, encoding="utf-8")
    return path


def workload(own: Path, **values: object) -> OrientdbGraph:
    made = OrientdbGraph({"file": str(own), "triples": 0, "disk_cache": "16M", **values})
    try:
        made.check()
    except MissingError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture(scope="module")
def loaded(own: Path, open_parent: Path) -> Iterator[OrientdbGraph]:
    parent = open_parent / "graph"
    parent.mkdir(mode=0o755)
    with running(workload(own, commit_every=7), parent=parent) as made:
        yield made
    assert list(parent.iterdir()) == []


def test_the_triples_are_in_and_proved(loaded: OrientdbGraph) -> None:
    [pid] = loaded.pids()
    process = psutil.Process(pid)
    assert process.uids().real != 0 and process.net_connections() == []
    result = loaded.verify(loaded.run())
    assert all(check.ok for check in result.checks) and len(result.checks) == 6
    assert result.operations == 120 and result.details["commits"] == 18
    # 40 subjects, of which 7 are objects too, and 60 texts.
    assert result.details["vertices_created"] == 100 and result.details["vertices_found"] == 140
    assert result.details["input"]["lines"] == 120 and result.details["closing_seconds"] >= 0
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
    assert result.details["settings"]["storage.diskCache.pageSize"] == "64"
    assert loaded.page_sizes() == {"data": 65536}
    paths = loaded.role_paths()
    assert set(paths) == {"source", "data", "wal"}
    assert list(paths["wal"].glob("*.wal")) and not list(paths["data"].rglob("*.wal"))
    # Work that was not done is found: the same triples once more are twice as many edges.
    loaded.run()
    with pytest.raises(ZtuneError, match="edges should be 120 but is 240"):
        loaded.verify(result)


def test_death_in_the_middle_is_told(loaded: OrientdbGraph) -> None:
    """The last that the loaded one does: its fixture sees that nothing is left."""
    os.kill(loaded.pids()[0], signal.SIGKILL)
    time.sleep(0.5)
    with pytest.raises(ZtuneError, match=r"OrientDB died in .*SIGKILL"):
        loaded.run()
    loaded.cleanup()


def test_places_settings_and_a_state_that_is_taken_over(own: Path, parent: Path) -> None:
    made = workload(own)
    params = made.resolved()
    folders = {role: parent / role for role in ("source", "data", "wal")}
    for path in folders.values():
        path.mkdir()
    job = GraphJob(params, {"storage.diskCache.pageSize": "16"})
    try:
        job.prepare(WorkDir.create("graph", parent=parent), folders)
        job.load()
        again = GraphJob(params, {"storage.diskCache.pageSize": "16"})
        again._paths, again._java = job._paths, job._java
        again.workdir = job.workdir
        again.adopt(folders)
        again.start()
        result = again.verify(again.run())
        assert result.operations == 120 and again.page_sizes() == {"data": 16384}
        again.stop()
    finally:
        job.cleanup()
    assert any(folders["data"].rglob("*.pcl"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input": "file"}, "no file is named"),
        ({"input": "debian", "file": "x"}, "leave one out"),
        ({"page_size": "12K"}, "power of two"),
        ({"commit_every": 0}, "commit_every"),
    ],
)
def test_parameters_that_make_no_sense(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        OrientdbGraph(values)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("storage.wal.path", "/x", "the role wal says"),
        ("storage.compressionMethod", "gzip", "not compressed"),
        ("storage.diskCache.pagesize", "16", "did you mean 'storage.diskCache.pageSize'"),
        ("storage.diskCache.pageSize", "12", "is one of 4, 8"),
        ("storage.diskCache.bufferSize", "lots", "whole number"),
    ],
)
def test_settings_that_are_not_the_layouts(own: Path, name: str, value: str, said: str) -> None:
    params = OrientdbGraph({"file": str(own)}).resolved()
    with pytest.raises(InputError, match=said):
        GraphJob(params, {name: value}).check()


def test_a_size_decides_the_triples(own: Path, parent: Path) -> None:
    made = OrientdbGraph({"size": "uncached", "arc": "32M"})
    assert made.resolved()["size"] == "192M" and 760_000 < made.resolved()["triples"] < 780_000
    assert OrientdbGraph({"size": "1M"}).resolved()["triples"] == 1000
    assert OrientdbGraph({}).resolved()["triples"] == 50_000
    # What the input doesn't have is told, not left out.
    told = pytest.raises(InputError, match=r"takes about \d+ triples, but .*own.nt has 120; choose a smaller")
    with told, running(workload(own, size="cached"), parent=parent):
        pass


def test_a_term_that_no_page_can_hold(parent: Path) -> None:
    long = parent / "long.nt"
    long.write_text(f'<urn:a> <urn:b> "{"long " * 300}" .\n')
    told = pytest.raises(InputError, match="1502 bytes is too long for the index on pages of 4 KiB")
    with told, running(workload(long, page_size="4K"), parent=parent):
        pass


def test_times_are_longer_where_everything_is_slower() -> None:
    def of(database: dict[str, str], dilation: float) -> dict[str, str]:
        return GraphJob(OrientdbGraph({}).resolved(), database, dilation=dilation).settings()

    usual, slow = of({}, 1), of({"storage.wal.commitTimeout": "200"}, 20)
    assert usual["storage.wal.commitTimeout"] == "1000" and slow["storage.wal.commitTimeout"] == "4000"
    assert slow["storage.diskCache.writeCachePageFlushInterval"] == "500"
    assert {n: v for n, v in slow.items() if n not in of({}, 1) or v == usual[n]} == {
        n: usual[n] for n in ("storage.diskCache.pageSize", "storage.diskCache.bufferSize")
    }
