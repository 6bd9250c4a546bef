"""The workload ``rocksdb`` with the RocksDB that is here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import pytest

from ztune.databases.rocksdb.onhost import random_keys as rocksdb
from ztune.databases.rocksdb.workload import Rocksdb
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import filler
from ztune.onhost.jobs.client_program import Values

SMALL = {
    **{"size": "4M", "operations": 600, "threads": 2, "rate": 0},
    **{"write_buffer": "128K", "compression": "none"},
}

needs_rocksdb = pytest.mark.skipif(
    shutil.which("ldb") is None, reason="no RocksDB here; `ztune setup rocksdb` brings it"
)


@pytest.fixture(scope="module")
def saved(open_parent: Path) -> Iterator[dict[str, Path]]:
    """The state after the load, as a trial keeps it."""
    parent = open_parent / "rocks"
    places = places_of(parent / "made")
    workload = Rocksdb(SMALL)
    workload.prepare(WorkDir.create("rk", parent=parent), places)
    assert all(list(path.iterdir()) == [] for path in places.values())
    workload.load()
    workload.cleanup()
    yield places
    shutil.rmtree(parent)


def places_of(parent: Path) -> dict[str, Path]:
    made = {role: parent / role for role in ("data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    parent.parent.chmod(0o755)
    return made


def adopted(saved: dict[str, Path], parent: Path, values: dict[str, object], **database: str) -> Rocksdb:
    workload = Rocksdb({**SMALL, **values}, database=database)
    places = places_of(parent / "trial")
    workload.prepare(WorkDir.create("rk", parent=parent), places)
    for role, path in saved.items():
        shutil.copytree(path, places[role], dirs_exist_ok=True)
    workload.job.adopt(places)
    return workload


@needs_rocksdb
@pytest.mark.parametrize("mix", ["mixed", "update", "overwrite"])
def test_a_copy_is_taken_over_and_the_job_proved(saved: dict[str, Path], parent: Path, mix: str) -> None:
    workload = adopted(saved, parent, {"mix": mix}, block_size="8192", use_direct_reads="off")
    try:
        workload.start()
        assert len(workload.pids()) == 1
        result = workload.verify(workload.run())
        details = result.details
        assert result.operations == 600 and all(check.ok for check in result.checks)
        read, written = details["keys_read"], details["keys_written"]
        if mix == "mixed":
            assert read + written == 600 and 320 < read < 480
        else:
            assert (read, written) == (600 if mix == "update" else 0, 600)
            assert details["flushed_bytes"] > 0
        assert result.commits == written
        assert details["wal_bytes_per_write"] > 416 and details["wal_syncs"] * 2 >= written
        assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
        kinds = {"mixed": {"read", "write"}, "update": {"read", "write"}, "overwrite": {"write"}}
        assert details["latency_ms_by_kind"].keys() == kinds[mix]
        assert details["settings"]["block_size"] == "8192"
        paths = workload.role_paths()
        assert list(paths["wal"].glob("*.log")) and not list(paths["data"].glob("*.log"))
        written_options = max(paths["data"].glob("OPTIONS-*")).read_text()
        assert "block_size=8192" in written_options and f"wal_dir={paths['wal']}" in written_options
        workload.stop()
    finally:
        workload.cleanup()


@needs_rocksdb
def test_the_whole_life_leaves_nothing(parent: Path) -> None:
    with running(Rocksdb({**SMALL, "seconds": 1, "sync": False}), parent=parent) as workload:
        result = workload.verify(workload.run())
        # By the clock, not by the count.
        assert result.seconds > 0.5 and result.operations > 600
        assert result.details["wal_syncs"] == 0
        assert result.commits == 0
        blocks = []
        for path in workload.role_paths()["data"].glob("*.sst"):
            data = path.read_bytes()
            blocks += [data[at : at + 16384] for at in range(0, len(data) - 16384, 16384)]
        ratio = len(blocks) * 16384 / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks)
        assert 1.4 < ratio < 2.3
    assert list(parent.iterdir()) == []


@needs_rocksdb
def test_work_that_was_not_done_is_found(saved: dict[str, Path], parent: Path) -> None:
    workload = adopted(saved, parent, {})
    try:
        workload.start()
        result = workload.run()
        workload.job.client.do("close")
        key = workload.job._ldb("scan", "--max_keys=1", "--hex").split()[0]
        workload.job._ldb("--hex", "delete", key)
        with pytest.raises(ZtuneError, match="the job was not done: keys in the database should be"):
            workload.verify(result)
    finally:
        workload.cleanup()


@needs_rocksdb
def test_a_state_of_other_keys_is_refused(saved: dict[str, Path], parent: Path) -> None:
    """As that of an older version, whose keys db_bench had made."""
    workload = adopted(saved, parent, {"size": "5M"})
    try:
        with pytest.raises(ZtuneError, match="holds other keys than this job's; load it anew"):
            workload.start()
    finally:
        workload.cleanup()


@needs_rocksdb
def test_a_state_that_is_damaged_is_told_with_rocksdb_s_words(saved: dict[str, Path], parent: Path) -> None:
    workload = adopted(saved, parent, {})
    try:
        for path in workload.role_paths()["data"].glob("MANIFEST-*"):
            path.write_bytes(b"no manifest")
        with pytest.raises(ZtuneError, match=r"the RocksDB client failed in 'open': .*[Cc]orrupt"):
            workload.start()
        for path in workload.role_paths()["data"].glob("CURRENT"):
            path.unlink()
        with pytest.raises(ZtuneError, match="there is no RocksDB database to take over"):
            workload.job.adopt(workload.role_paths())
    finally:
        workload.cleanup()


@needs_rocksdb
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blok_size": "1"}, "did you mean 'block_size'"),
        ({"db": "/x"}, "no setting 'db' that a layout could choose"),
        ({"compression_type": "best"}, "compression_type can't be 'best'; it is one of none, snappy"),
        ({"block_size": "big"}, r"does not take the settings: .*block_size"),
        ({"block_size": "1;wal_dir=/x"}, "block_size can't be '1;wal_dir=/x'"),
        ({"compaction_style": "9"}, "compaction_style can't be '9'; it is one of 0, 1, 2"),
    ],
)
def test_settings_are_checked_before_anything_is_made(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Rocksdb(SMALL, database=settings).check()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match="ldb was not found; install it with"):
        Rocksdb(SMALL).check()
    with pytest.raises(InputError, match="too few for 4 threads"):
        Rocksdb({"operations": 3})


@needs_rocksdb
def test_every_setting_is_one_of_rocksdb_s() -> None:
    """Each in a value that it can have, in one database: RocksDB reads them all, and opens with them."""
    words = {
        **{"compression_type": "zstd", "blob_compression_type": "lz4", "wal_compression": "none"},
        **{"compaction_style": "1", "compression_level": "3", "min_level_to_compress": "2"},
    }
    switches = ("use_", "mmap_", "enable_", "allow_", "unordered_", "manual_", "sync")
    given = {
        name: words.get(name, "off" if name.startswith(switches) else "2097152" if "size" in name else "4")
        for name in rocksdb.SETTINGS
    }
    job = Rocksdb(SMALL, database=given).job
    assert job.check().startswith("RocksDB ")
    assert "compression_per_level=kNoCompression:kNoCompression:kZSTD:" in job.options()
    assert "filter_policy=bloomfilter:4:false" in job.options()


@needs_rocksdb
def test_a_rate_is_kept_and_the_load_s_last_compaction_is_waited_for(parent: Path) -> None:
    values = {"operations": 120, "rate": 60, "mix": "overwrite", "value_size": "8K"}
    with running(Rocksdb({**SMALL, **values}), parent=parent) as workload:
        result = workload.verify(workload.run())
        # 120 due one after the other: the last after 119 / 60 s. It may be late, never early.
        assert result.operations == 120 and result.seconds >= 119 / 60
        assert result.offered_per_second == 60
        assert result.details["flushed_bytes"] > 0 and result.details["closing_seconds"] > 0


def test_a_run_without_a_rate_from_before_there_was_one_goes_as_fast_as_it_can() -> None:
    params = {name: value for name, value in Rocksdb(SMALL).job.params.items() if name != "rate"}
    assert rocksdb.Rocksdb(params)._rate == 0


@pytest.mark.parametrize("compressible", [0.25, 0.35, 0.5, 0.7, 0.9, 1.0])
def test_values_compress_as_asked(compressible: float) -> None:
    fresh = filler.fresh_share(compressible)
    values = Values(400, fresh, list(filler.PHRASES), seed=1)
    content = b"".join(values.of(key, 0) for key in range(5000))
    assert len(content) == 5000 * 400 and values.of(7, 0) == values.of(7, 0) != values.of(7, 1)
    blocks = [content[at : at + 131072] for at in range(0, len(content), 131072)]
    left = sum(min(len(b), len(lz4.block.compress(b, store_size=False))) for b in blocks) / len(content)
    assert left == pytest.approx(compressible, abs=0.06)
    for size in (1, 15, 100_000):
        assert len(Values(size, fresh, list(filler.PHRASES), seed=1).of(1, 1)) == size
