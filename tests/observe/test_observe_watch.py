"""What is counted in a window, and from when to when."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.observe import watch, zfs_state
from ztune.observe.live import LiveObservation
from ztune.observe.live_kernel import SeenFile
from ztune.observe.model import Group
from ztune.observe.subjects import ObservedSubject


class Ended(Exception):
    """The window is over: what follows is not looked at here."""


def test_all_counters_have_the_window_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load the programs takes 16 s in an emulated guest: of 25 s ZFS's counters were those of 41."""
    order: list[str] = []

    class Noted:
        """A stand-in whose methods are noted by their names."""

        def __init__(self, words: dict[str, str]) -> None:
            self.words = words
            self.note("__init__")

        def note(self, method: str) -> None:
            if method in self.words:
                order.append(self.words[method])

        def freeze(self) -> None:
            self.note("freeze")

        def start(self) -> None:
            self.note("start")

        def stop(self) -> None:
            self.note("stop")

        def __enter__(self) -> Noted:
            self.note("__enter__")
            return self

        def __exit__(self, *_: object) -> None:
            self.note("__exit__")

        def wait(self, _: float) -> bool:
            self.note("wait")
            return True

        def finish(self) -> None:
            raise Ended

    calls = {"__enter__": "calls begin", "wait": "window", "__exit__": "calls end"}
    monkeypatch.setattr(watch, "LiveObservation", lambda *_: Noted(calls))
    zfs = {"__init__": "zfs", "freeze": "zfs again"}
    monkeypatch.setattr(zfs_state, "ZfsWatch", lambda: Noted(zfs))
    monkeypatch.setattr(watch, "Sampler", lambda: Noted({"start": "host", "stop": "host again"}))
    with pytest.raises(Ended):
        watch.watch(ObservedSubject("pid", "1", "process 1", pids=(1,)), 1.0)
    assert order == ["calls begin", "zfs", "host", "window", "zfs again", "host again", "calls end"]


def test_a_table_elsewhere_does_not_have_all_between_be_looked_through() -> None:
    """Of a tablespace beside the server's folder their common one was walked, with other servers' files."""
    names = ["/srv/pg/base/5/1", "/srv/pg/base/4/2", "/srv/pg/global/3", "/srv/fast/PG_15_1/5/9"]
    seen = [Group(kind="file", name=name, role="data") for name in names]
    seen.append(Group(kind="file", name="/srv/pg/pg_wal/000000010000000000000001", role="wal"))
    subject = ObservedSubject("pid", "1", "process 1", pids=(1,))
    assert watch.folders(subject, seen, ["/srv/pg", "/"]) == ["/srv/fast/PG_15_1/5", "/srv/pg"]
    assert watch.folders(subject, seen) == ["/srv"]


@pytest.mark.parametrize(("index", "role"), [("foo.index", "wal"), ("bar.index", None)])
def test_a_binary_log_of_any_name_is_known_by_what_lies_beside_it(
    tmp_path: Path, index: str, role: str | None
) -> None:
    for name in ("foo.000001", index):
        (tmp_path / name).write_bytes(b"")
    live = LiveObservation(ObservedSubject("pid", "1", "process 1", pids=(1,)))
    assert live._role(SeenFile(str(tmp_path / "foo.000001"), 1, 2, 0)) == role
