"""The workload ``valkey`` with the servers that are here: Valkey, Redis, or both."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.block
import pytest
from overheard import overheard

from ztune.databases import registry
from ztune.databases.valkey.onhost.server import MANIFEST, NAMES, SNAPSHOT, find_binaries
from ztune.databases.valkey.workload import Valkey
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import filler
from ztune.onhost.jobs.client_program import Values
from ztune.study import DurabilityClass, generic
from ztune.study.adjust import adjusted
from ztune.study.durability import judge

SMALL: dict[str, object] = {"keys": 2000, "seconds": 1, "rate": 0, "clients": 2}


def here(name: str) -> bool:
    try:
        find_binaries(name)
    except MissingError:
        return False
    return True


SERVERS = [name for name in NAMES if here(name)]
needs_valkey = pytest.mark.skipif(
    not SERVERS, reason="neither Valkey nor Redis here; `ztune setup valkey` brings one"
)
each_server = pytest.mark.parametrize("server", SERVERS or ["any"])


@pytest.fixture(scope="module")
def saved(open_parent: Path) -> Iterator[Path]:
    """The state after the load, as a trial keeps it."""
    parent = open_parent / "valkey"
    places = places_of(parent / "made")
    workload = Valkey(SMALL)
    workload.prepare(WorkDir.create("vk", parent=parent), places)
    assert all(list(path.iterdir()) == [] for path in places.values())
    workload.load()
    workload.cleanup()
    yield places["data"]
    shutil.rmtree(parent)


def places_of(parent: Path) -> dict[str, Path]:
    """One directory for each role, on one file system: only that of data is used."""
    made = {role: parent / role for role in ("data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    parent.parent.chmod(0o755)
    return made


def adopted(saved: Path, parent: Path, values: dict[str, object], **database: str) -> Valkey:
    workload = Valkey({**SMALL, **values}, database={n.replace("_", "-"): v for n, v in database.items()})
    places = places_of(parent / "trial")
    workload.prepare(WorkDir.create("vk", parent=parent), places)
    shutil.copytree(saved, places["data"], dirs_exist_ok=True)
    workload.job.adopt(places)
    return workload


@needs_valkey
@each_server
def test_the_whole_life_leaves_nothing(parent: Path, server: str) -> None:
    with running(Valkey({**SMALL, "server": server}), parent=parent) as workload:
        paths = workload.role_paths()
        assert paths["wal"] == paths["data"] / "appendonlydir"
        # Nobody but the server's own user reaches it.
        socket = workload.job.server.socket
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        result = workload.verify(workload.run())
        details = result.details
        assert 0.5 < result.seconds < 5 and result.operations == details["reads"] + details["writes"]
        assert details["writes"] > 0 < details["reads"] and details["aof_rewrites"] == 1
        assert {check.name for check in result.checks if check.ok} >= {
            "keys in the store",
            "values that are right",
            "the append-only file",
            "the append-only file was written anew",
        }
        assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
        assert result.offered_per_second == 0
        assert (
            workload.info()["version"].lower().startswith(server if server != "any" else ("valkey", "redis"))
        )
        if os.geteuid() == 0:
            assert (paths["data"] / SNAPSHOT).stat().st_uid != 0
    assert list(parent.iterdir()) == []


@needs_valkey
def test_a_copy_is_taken_over_with_the_layouts_settings(saved: Path, parent: Path) -> None:
    workload = adopted(saved, parent, {}, appendfsync="everysec", aof_use_rdb_preamble="off", save="60 1")
    try:
        workload.start()
        assert workload.pids() == [workload.job.server.pid]
        found = workload.job.server.ask("CONFIG", "GET", "*")
        settings = dict(zip(found[::2], found[1::2], strict=True))
        assert settings[b"appendfsync"] == b"everysec" and settings[b"save"] == b"60 1"
        assert settings[b"aof-use-rdb-preamble"] == b"no" and settings[b"port"] == b"0"
        workload.verify(workload.run())
        # A base of commands, since it is not to be a snapshot.
        assert [path.suffix for path in workload.role_paths()["wal"].glob("*.base.*")] == [".aof"]
        workload.stop()
        # What it did is there again.
        workload.start()
        workload.verify(workload.run())
        workload.stop()
    finally:
        workload.cleanup()


@needs_valkey
def test_without_an_append_only_file_there_is_none(saved: Path, parent: Path) -> None:
    workload = adopted(saved, parent, {"save": "1 1", "seconds": 3}, appendonly="off")
    try:
        workload.start()
        result = workload.verify(workload.run())
        assert result.details["aof_bytes"] == 0 and result.details["snapshots"] > 0
        assert not workload.role_paths()["wal"].exists()
        workload.stop()
    finally:
        workload.cleanup()


@needs_valkey
def test_a_pace_and_slow_disks(saved: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = adopted(saved, parent, {"rate": 200.0, "pipeline": 5, "rewrite": False, "read_share": 0})
    workload.job.dilation = 2.0
    try:
        workload.start()
        asked = overheard(workload.job.client, monkeypatch)
        result = workload.verify(workload.run())
        # Twice the time at half the pace, told as if the disks were the real ones.
        told, found = asked["run"]
        assert (told["seconds"], told["rate"], told["pipeline"]) == (2.0, 100.0, 5)
        assert result.offered_per_second == 200 and result.seconds == found["seconds"] / 2
        assert 0 < result.operations == found["writes"] <= 200
        assert result.latency_ms["max"] == pytest.approx(max(found["times_us"]["write"]) / 2000)
        assert result.details["aof_rewrites"] == 0
    finally:
        workload.cleanup()


@needs_valkey
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (("DEL", "user000000000007"), "keys in the store should be 2000 but is 1999"),
        (("SETRANGE", "user000000000007", 500, "?"), "values that are right should be"),
        (("GET", "user000000000007"), "reads, as the server counted them"),
    ],
)
def test_work_that_was_not_done_is_found(
    saved: Path, parent: Path, harm: tuple[str | int, ...], sentence: str
) -> None:
    workload = adopted(saved, parent, {"keys": 2000})
    try:
        workload.start()
        result = workload.run()
        workload.job.server.ask(*harm)
        with pytest.raises(ZtuneError, match=f"the job was not done: {sentence}"):
            workload.verify(result)
    finally:
        workload.cleanup()


@needs_valkey
def test_a_damaged_log_is_found(saved: Path, parent: Path) -> None:
    workload = adopted(saved, parent, {"rewrite": False})
    try:
        workload.start()
        result = workload.run()
        [log] = workload.role_paths()["wal"].glob("*.incr.aof")
        with log.open("r+b") as file:
            file.seek(log.stat().st_size // 2)
            file.write(b"\r\nno command\r\n" * 200)
        with pytest.raises(ZtuneError, match=r"the append-only file should be valid but is .*check-aof"):
            workload.verify(result)
    finally:
        workload.cleanup()


@needs_valkey
def test_a_state_that_is_no_such_state_is_refused(saved: Path, parent: Path) -> None:
    workload = adopted(saved, parent, {"keys": 3000})
    try:
        with pytest.raises(ZtuneError, match="the store holds 2000 keys, not 3000; load it anew"):
            workload.start()
        workload.job.kill()
        data = workload.role_paths()["data"]
        (data / MANIFEST).write_text("no manifest\n")
        with pytest.raises(InputError, match=r"did not start .*manifest"):
            workload.start()
        (data / MANIFEST).unlink()
        with pytest.raises(ZtuneError, match=f"there is no {MANIFEST} to take over; load it anew"):
            workload.job.adopt({role: data.with_name(role) for role in ("data", "wal")} | {"data": data})
    finally:
        workload.cleanup()


@needs_valkey
@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system here")
def test_a_log_on_a_dataset_of_its_own_is_refused(parent: Path) -> None:
    """The server itself would not start: "Invalid cross-device link"."""
    data = places_of(parent / "trial")["data"]
    wal = Path(tempfile.mkdtemp(dir="/dev/shm"))
    if wal.stat().st_dev == data.stat().st_dev:
        pytest.skip("no second file system here")
    workload = Valkey(SMALL)
    try:
        with pytest.raises(
            InputError, match=r"rename, which can't leave a dataset; give one dataset both roles"
        ):
            workload.prepare(WorkDir.create("vk", parent=parent), {"data": data, "wal": wal})
    finally:
        workload.cleanup()
        shutil.rmtree(wal)


@needs_valkey
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"appendfsnc": "no"}, "no setting 'appendfsnc' .*; did you mean 'appendfsync'?"),
        ({"appendfsync": "never"}, "appendfsync is 'never'; it is one of always, everysec, no"),
        ({"requirepass": "x"}, "'requirepass' can't be chosen by a layout: it is reached by its own socket"),
        ({"dir": "/srv"}, "'dir' can't be chosen by a layout"),
        ({"save": "60"}, "save is '60'; it takes pairs of seconds and changes"),
        ({"io-threads": "many"}, "io-threads is 'many'; it takes a whole number"),
    ],
)
def test_settings_that_are_not_a_layouts(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        Valkey(SMALL, database=settings).check()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"save": "60"}, "parameter 'save': it takes pairs of seconds and changes"),
        ({"keys": 1000, "clients": 300}, "clients"),
        ({"value_size": 8}, "value_size"),
    ],
)
def test_parameters_that_make_no_sense(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Valkey(values)


def test_the_tools_alone_are_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's redis-tools has them, which starts no service."""
    if not SERVERS:
        pytest.skip("neither Valkey nor Redis here; `ztune setup valkey` brings one")
    real = find_binaries(SERVERS[0])
    program = tmp_path / f"{SERVERS[0]}-check-rdb"
    program.symlink_to(real.server.resolve())
    (tmp_path / f"{SERVERS[0]}-check-aof").symlink_to(real.check_aof)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_binaries()
    assert (found.server, found.version) == (program, real.version)


def test_what_is_missing_or_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=r"neither Valkey nor Redis was found .*; install it with `"):
        find_binaries()
    with pytest.raises(MissingError, match="no Redis was found"):
        find_binaries("redis")
    for name in ("redis-server", "redis-check-aof"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=0:0 bits=64'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(MissingError, match=r"is Redis 6\.0\.16, .* version 7\.0 or later is needed"):
        find_binaries()


def test_values_compress_as_real_ones_do() -> None:
    values = Values(1000, filler.fresh_share(0.5), list(filler.PHRASES), 1)
    data = b"".join(
        b"%016x " % version + values.of(key, version)[:983] for key in range(800) for version in (0,)
    )
    blocks = [data[at : at + 131072] for at in range(0, len(data) - 131072, 131072)]
    ratio = len(blocks) * 131072 / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks)
    assert 1.7 < ratio < 2.4


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, DurabilityClass.NOTHING),
        ({"save": "60 1"}, DurabilityClass.NOTHING),
        ({"appendfsync": "everysec"}, DurabilityClass.LAST_SECONDS),
        ({"appendfsync": "no"}, DurabilityClass.LAST_SECONDS),
        ({"appendonly": False}, DurabilityClass.CORRUPT),
        ({"appendonly": False, "save": "3600 1 300 100 60 10000"}, DurabilityClass.CORRUPT),
    ],
)
def test_what_a_power_cut_loses_is_declared(params: dict[str, Any], expected: DurabilityClass) -> None:
    study = generic.build({"data", "wal"}, groups=[("data", *registry.together("valkey"))])
    declared = registry.declared("valkey", params)
    study = adjusted(study, database=registry.settings_of("valkey", params), declared=declared)
    assert judge(study.layout).klass is expected
    for more, klass in (
        ({"no-appendfsync-on-rewrite": "yes"}, DurabilityClass.LAST_SECONDS),
        ({"aof-load-truncated": "no"}, DurabilityClass.CORRUPT),
        ({"rdbcompression": "no", "auto-aof-rewrite-percentage": "100"}, DurabilityClass.NOTHING),
        ({"lua-time-limit": "5"}, DurabilityClass.NOT_KNOWN),
    ):
        changed = replace(study.layout, database={**study.layout.database, **more})
        assert judge(changed).klass is max((expected, klass), key=lambda c: c.rank), more
    assert registry.declared("valkey", {"clients": 8, "pipeline": 16}).together == 128


def test_data_and_log_have_one_dataset() -> None:
    """The server can't part them; so also where a recording saw the log alone."""
    for roles in ({"data", "wal"}, {"wal"}):
        study = generic.build(roles, groups=[("data", *registry.together("valkey"))])
        assert [dataset.roles for dataset in study.layout.datasets] == [("data", "wal")]
        assert "data.recordsize" in study.axes and "wal.recordsize" not in study.axes
    assert (
        len(generic.build({"data", "wal"}, groups=[("data", *registry.together("rocksdb"))]).layout.datasets)
        == 2
    )
