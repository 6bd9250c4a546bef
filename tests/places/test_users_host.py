"""What a run on a host of the user's is refused for at its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.databases import registry
from ztune.errors import InputError, ZtuneError
from ztune.places import users_host
from ztune.places.local import Local
from ztune.places.placing import Placing
from ztune.places.users_host import UsersHost
from ztune.runs import refusals
from ztune.runs.at_work import Hosts
from ztune.runs.plan import workload_job
from ztune.study import generic
from ztune.study.layout import with_settings


def test_a_dataset_that_can_have_no_trial_is_refused_before_any_begins(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Each trial was refused for it, after its database was made."""
    asked: list[list[str]] = []
    answer = (2, "", 'Python warns\nztune-trial: parent "tank/x" does not exist on this host')

    def ask(_place: UsersHost, argv: list[str]) -> tuple[int, str, str]:
        asked.append(argv[2:])
        return answer

    monkeypatch.setattr(users_host, "ask", ask)
    place = Local(Placing(parents={"main": "tank/x", "fast": "ssd", "*": "tank/x"}))
    with pytest.raises(InputError, match=r'^parent "tank/x" does not exist on this host$'):
        place.check_placing()
    answer = (1, "", "ztune-trial: zfs get failed")
    with pytest.raises(ZtuneError, match=r"^zfs get failed$"):
        place.check_placing()
    answer = (0, '{"ssd": {"lacks": [], "room": 9}, "tank/x": {"lacks": ["zstd_compress"], "room": 9}}', "")
    place.check_placing()
    place.check_placing()
    assert asked == [["parents", "ssd", "tank/x"]] * 3, "a host that has answered is asked no more"


def test_a_layout_that_an_old_pool_has_no_feature_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    place = Local(Placing(parents={"*": "tank/x"}))
    here = {"openzfs": {"kernel": "2.3.2"}, "tools": {"zfs": "/sbin/zfs", "zpool": "/sbin/zpool"}}
    monkeypatch.setattr(place, "about_host", lambda: here)
    said = '{"tank/x": {"lacks": ["allocation_classes", "zstd_compress"], "room": 9}}'
    monkeypatch.setattr(users_host, "ask", lambda *_: (0, said, ""))
    base = generic.build({"data"})
    place.check(base, base.layout)
    zstd = with_settings(base.layout, {"data.compression": "zstd-3"}, "zstd")
    with pytest.raises(InputError, match='layout "zstd": compression=zstd-3 needs the feature zstd_compress'):
        place.check(base, zstd)


@pytest.mark.parametrize(
    ("have", "set_", "sentence"),
    [
        ("2.2.7-1", {"data.direct": "always"}, r"direct=always needs OpenZFS 2\.3 or later; this host has 2"),
        ("2.2.7-1", {"data.direct": "disabled"}, ""),  # as it acts
        ("2.1.11-1", {"data.checksum": "blake3"}, "checksum=blake3 needs OpenZFS 2.2 or later"),
        ("0.8.6", {"data.compression": "zstd-3"}, "compression=zstd-3 needs OpenZFS 2.0 or later"),
        ("2.3.2", {"data.direct": "always"}, ""),
    ],
)  # fmt: skip
def test_a_value_that_the_host_s_openzfs_lacks_is_refused_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, have: str, set_: dict[str, str], sentence: str
) -> None:
    """Each trial was, with a sentence on "this host" wherever it was."""
    place = Local(Placing(files="/x"))
    here = {"openzfs": {"kernel": have}, "tools": {"zfs": "/sbin/zfs", "zpool": "/sbin/zpool"}}
    monkeypatch.setattr(place, "about_host", lambda: here)
    base = generic.build({"data"})
    layout = with_settings(base.layout, set_, "other")
    if not sentence:
        place.check(base, layout)
        return
    with pytest.raises(InputError, match=rf'^layout "other": {sentence}'):
        place.check(base, layout)


def test_a_database_that_is_larger_than_its_parents_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    """Each trial was refused for it, after the database was made: 400 MiB below a quota of 100."""
    said = '{"tank/x": {"lacks": [], "room": 104857600}}'
    monkeypatch.setattr(users_host, "ask", lambda *_: (0, said, ""))
    layout = generic.build({"data", "wal"}).layout
    place = Local(Placing(parents={"*": "tank/x"}))
    place.check_room(layout, {"data": 90 << 20, "wal": 10 << 20, "not of the layout": 1 << 40})
    place.check_room(layout, {})
    with pytest.raises(InputError, match=r'^parent "tank/x" has 100\.0 MiB left, by its quota or its pool'):
        place.check_room(layout, {"data": 90 << 20, "wal": 11 << 20})
    Local(Placing(files="/big")).check_room(layout, {"data": 1 << 50})


def test_a_run_asks_how_much_room_its_database_takes(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    place = Local(Placing(parents={"*": "tank/x"}))
    monkeypatch.setattr(Local, "check", lambda *_: None)
    monkeypatch.setattr(users_host, "ask", lambda *_: (0, '{"tank/x": {"lacks": [], "room": 1048576}}', ""))
    study = generic.build({"data", "wal"})
    hosts = Hosts(place)
    job = workload_job(registry.make("sqlite", {"size": "400M"}))
    with pytest.raises(InputError, match=r"has 1\.0 MiB left.* takes about [34]\d\d\.\d MiB"):
        refusals.check_there(hosts, hosts.all[0], study, study.layout, job)


def test_what_makes_its_own_pools_has_no_parent_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_host, "ask", lambda *_: pytest.fail("it was asked"))
    Local(Placing(files="/big")).check_placing()


@pytest.mark.parametrize("name", ["", "/tank", "tank/", "tank//x", "tank@x", "-r", "tank/a b", "my pool/x"])
def test_what_is_no_dataset_is_refused_before_the_host_is_asked(name: str) -> None:
    with pytest.raises(InputError, match="it names a pool or dataset such as tank/ztune"):
        Placing.parse(parents=[f"main={name}"])
