"""What is loaded once for several layouts: which share it, who waits for whom, what is kept."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke

from ztune.onhost.host import shared_files
from ztune.places import engine_limits, loaded
from ztune.places.engine import Engine
from ztune.places.engine_spec import engine_spec
from ztune.study import generic
from ztune.study.layout import with_settings

STUDY = generic.build({"data", "wal"})
ENGINE = Engine(Path("/nowhere"), "1", "2.3.2")
NEVER = threading.Event()


def key(changes: dict[str, str | int], seed: int = 1, engine: Engine = ENGINE) -> str:
    layout = with_settings(STUDY.layout, changes)
    spec = {**engine_spec(STUDY, layout, seed), "files": [{"id": 1, "size": 4096}]}
    return loaded.key_of(loaded.load_spec(spec), {}, engine)


@pytest.mark.parametrize(
    "changes",
    [
        {"slog": "nvme"},
        {"l2arc": "nvme"},
        {"arc": 1 << 30},
        {"data.logbias": "throughput"},
        {"data.primarycache": "metadata"},
        {"data.sync": "disabled"},
        {"tunable.zfs_txg_timeout": 1},
    ],
)
def test_what_comes_after_the_load_shares_it(changes: dict[str, str | int]) -> None:
    assert key(changes) == key({})


@pytest.mark.parametrize(
    "changes",
    [
        {"data.recordsize": "16K"},
        {"data.compression": "zstd-3"},
        {"data.checksum": "sha256"},
        {"special": "nvme"},
    ],
)
def test_what_is_stored_differently_is_loaded_anew(changes: dict[str, str | int]) -> None:
    assert key(changes) != key({})


def test_neither_is_another_engine_nor_another_seed() -> None:
    assert len({key({}), key({}, seed=2), key({}, engine=Engine(Path("/nowhere"), "2", "2.3.2"))}) == 3


def test_samples_of_other_content_are_another_load(tmp_path: Path) -> None:
    spec = {**engine_spec(STUDY, STUDY.layout, 1), "files": []}
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"1"), other.write_bytes(b"2")
    keys = {
        loaded.key_of(loaded.load_spec(spec), {"data": loaded.identity(path)}, ENGINE)
        for path in (one, other)
    }
    assert len(keys) == 2


class Loads:
    """A load that writes what it is told, and counts."""

    def __init__(self, text: bytes = b"image") -> None:
        self.text, self.times = text, 0

    def __call__(self, path: Path) -> None:
        self.times += 1
        path.write_bytes(self.text)


def read(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


@pytest.mark.usefixtures("home")
def test_an_image_is_loaded_once_and_kept() -> None:
    load = Loads()
    for _ in range(2):
        with loaded.image("ab" * 16, 10, load, NEVER) as fd:
            assert read(fd) == b"image"
    assert load.times == 1 and loaded.is_there("ab" * 16)
    assert loaded.folder().stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("home")
def test_who_wants_the_same_image_waits_for_it() -> None:
    begun, go = threading.Event(), threading.Event()
    texts: list[bytes] = []

    def slow(path: Path) -> None:
        begun.set()
        assert go.wait(10)
        path.write_bytes(b"first")

    def use(load: object) -> None:
        with loaded.image("ab" * 16, 10, load, NEVER) as fd:  # type: ignore[arg-type]
            texts.append(read(fd))

    second = Loads(b"second")
    threads = [threading.Thread(target=use, args=(one,)) for one in (slow, second)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(10)
    assert texts == [b"first", b"first"] and second.times == 0


@pytest.mark.usefixtures("home")
def test_a_load_that_fails_leaves_nothing_and_the_next_one_tries_again() -> None:
    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise loaded.NotLoadedError("the pool is full")

    with (
        pytest.raises(loaded.NotLoadedError, match="the pool is full"),
        loaded.image("ab" * 16, 10, fails, NEVER),
    ):
        pass
    assert not [path for path in loaded.folder().iterdir() if not path.name.startswith("lock-")]
    with loaded.image("ab" * 16, 10, Loads(), NEVER) as fd:
        assert read(fd) == b"image"


@pytest.mark.usefixtures("home")
def test_who_is_interrupted_while_waiting_gives_up() -> None:
    stop = threading.Event()
    stop.set()
    with (
        pytest.raises(loaded.NotLoadedError, match="interrupted"),
        loaded.image("ab" * 16, 10, Loads(), stop),
    ):
        pass


@pytest.mark.usefixtures("home")
def test_the_oldest_go_when_there_is_no_room_and_readers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "ROOM", 2 << 12)
    keys = [f"{i:02}" * 16 for i in range(4)]
    with loaded.image(keys[0], 10, Loads(), NEVER) as first:
        for i, one in enumerate(keys):
            with loaded.image(one, 10, Loads(), NEVER):
                os.utime(loaded.folder() / f"{one}.image", (i, i))
        assert read(first) == b"image"
    assert [loaded.is_there(one) for one in keys] == [False, False, True, True]
    half = loaded.folder() / f".{'05' * 16}.image.123456789abc.partial"
    half.touch()
    shared_files.lock_of(half).touch()  # and nobody has it
    loaded.drop()
    assert not list(loaded.folder().glob("*.image")) and not half.exists()


@pytest.mark.usefixtures("home")
def test_room_for_the_next_is_made_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "ROOM", 3 << 12)
    most = []

    def load(path: Path) -> None:
        path.write_bytes(b"image")
        most.append(sum(loaded.kept().values()) + path.stat().st_blocks * 512)

    for i in range(5):
        with loaded.image(f"{i:02}" * 16, 10, load, NEVER):
            pass
    assert max(most) == 3 << 12 and sum(loaded.kept().values()) == 3 << 12


@pytest.mark.usefixtures("home")
def test_without_room_on_the_disk_it_is_made_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_limits, "disk_bytes", lambda _: 5)
    load = Loads()
    with loaded.image("ab" * 16, 10, load, NEVER) as fd:
        assert read(fd) == b"image"
    assert load.times == 1 and not loaded.is_there("ab" * 16)


@pytest.mark.usefixtures("home")
def test_clean_lists_and_removes_what_is_kept() -> None:
    with loaded.image("ab" * 16, 10, Loads(), NEVER):
        pass
    code, out, _ = invoke("clean", "--prepared")
    assert code == 0 and f"{'ab' * 16}.image  replay" in out and loaded.is_there("ab" * 16)
    code, out, _ = invoke("clean", "--prepared", "--yes", "--json")
    assert code == 0 and json.loads(out)[0]["removed"] is True and not loaded.is_there("ab" * 16)


def test_a_load_whose_records_differ_by_what_is_touched_goes_by_the_operations() -> None:
    """It loads all, so that its room is that of all, but for other operations with other content."""
    alike: dict[str, Any] = {"files": [{"id": 0, "content": "data"}]}
    apart: dict[str, Any] = {"files": [{"id": 0, "content": "data", "untouched": "data untouched"}]}
    assert [loaded.goes_by_operations(spec) for spec in (alike, apart)] == [False, True]
    assert [loaded.loads_a_part(spec) for spec in (alike, apart)] == [False, False]
    for part in ({"load": "touched"}, {"sample": 4}):
        assert loaded.goes_by_operations({**alike, **part}) and loaded.loads_a_part({**alike, **part})
