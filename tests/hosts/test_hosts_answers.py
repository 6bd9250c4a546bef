"""What hosts answer: roles of their datasets, one ranked table, and what has drifted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import observations as made
import pytest
from zfs_machine import recommended

from ztune.advice import exports
from ztune.errors import InputError
from ztune.hosts.answer import observation
from ztune.hosts.asking import HostAnswer
from ztune.hosts.drift import ExpectedLayout, drifts, read_expected
from ztune.hosts.listed import ListedHost
from ztune.hosts.ranked import ranked, severities
from ztune.observe.model import Observation
from ztune.report import hosts
from ztune.report.hosts import first_sentence

CHANGES = {"data.recordsize": "16K", "wal.logbias": "throughput", "tunable.zfs_txg_timeout": 10}


def answer(name: str, seen: Observation | None, why: str = "") -> HostAnswer:
    return HostAnswer(ListedHost(name, name, None), seen, why)


def said(**changes: Any) -> dict[str, Any]:
    """What a host says, as it comes over the wire."""
    seen = made.observation(groups=[], **changes).to_json()
    zfs = seen["zfs"]
    zfs["counters"]["objset tank/wal"] = {"reads": 1, "nread": 8192, "writes": 10, "nwritten": 81920}
    for dataset in zfs["datasets"]:
        dataset["roles"] = []
    plain = {key: seen[key] for key in ("subject", "seconds", "zfs", "disks", "databases")}
    files = {
        "/pg/pg_wal/000000010000000000000001": "tank/wal", "/pg/base/1/2": "tank/data",
        "/pg/base/pgsql_tmp/pgsql_tmp1.0": "tank/data", "/pg/base/1/1": None,
    }  # fmt: skip
    return json.loads(json.dumps({"observation": plain, "files": files}))  # type: ignore[no-any-return]


def test_datasets_get_roles_and_a_dataset_of_one_role_its_counts() -> None:
    seen = observation(said())
    assert seen.zfs is not None
    assert {d.name: d.roles for d in seen.zfs.datasets} == {
        "tank/data": ("data", "temp"), "tank/wal": ("wal",),
    }  # fmt: skip
    (group,) = seen.groups
    assert (group.name, group.dataset, group.writes.calls, group.writes.bytes) == (
        "wal", "tank/wal", 10, 81920,
    )  # fmt: skip
    assert "Python alone" in seen.limits[-1]
    ranked([answer("db1", seen)])  # rules take a group without sizes


@pytest.mark.parametrize("nonsense", [{}, {"files": {}, "observation": {"zfs": 3}}, {"files": [], "x": 1}])
def test_an_answer_that_makes_no_sense_is_refused(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no observation"):
        observation(nonsense)


def test_what_many_have_is_one_row_and_the_worst_comes_first() -> None:
    well, lax = made.observation(), made.observation(data={"sync": "disabled"})
    both = made.observation(data={"sync": "disabled", "atime": "on"})
    rows = ranked([answer("a", well), answer("b", lax), answer("c", both), answer("d", None, "it hangs")])
    assert (rows[0].finding.id, rows[0].about) == ("sync-disabled", "tank/data")
    assert sorted(rows[0].hosts) == ["b", "c"]
    assert severities(rows)["danger"] == 2
    order = ["danger", "warning", "note"]
    assert [order.index(row.finding.severity) for row in rows] == sorted(
        order.index(row.finding.severity) for row in rows
    )


def test_the_first_sentence_is_cut_outside_of_commands() -> None:
    assert first_sentence("`a. b; c` does. More.") == "`a. b; c` does."
    assert first_sentence("One only") == "One only"


@pytest.fixture
def expected(tmp_path: Path) -> ExpectedLayout:
    file = tmp_path / "recommended.json"
    mapping = {"data": "tank/data", "wal": "tank/wal"}
    file.write_text(exports.as_json(recommended(CHANGES), mapping, None))
    return read_expected(file)


def as_recommended(expected: ExpectedLayout, **changes: Any) -> Observation:
    """A host that is as recommended, but for the changes."""
    from ztune.advice.commands import settable

    layout = expected.layout
    datasets = [
        made.dataset(expected.names[d.name], list(d.roles), **settable(d, layout)) for d in layout.datasets
    ]
    (pool,) = layout.used_pools()
    vdevs = [
        made.vdev("sda", ["sda"], role=v.class_) | {"kind": "disk"}
        for v in pool.vdevs
        for _ in range(v.disks)
    ]
    tunables = {name: str(number) for name, number in layout.tunables.items()}
    return made.observation(**{"datasets": datasets, "vdevs": vdevs, "tunables": tunables, **changes})


def test_no_drift_where_all_is_as_recommended(expected: ExpectedLayout) -> None:
    assert expected.names
    assert drifts(as_recommended(expected), expected) == []


def test_properties_devices_and_parameters_drift(expected: ExpectedLayout) -> None:
    seen = as_recommended(expected, tunables={"zfs_txg_timeout": "5"})
    assert seen.zfs is not None
    data = next(d for d in seen.zfs.datasets if d.name == "tank/data")
    data.properties["recordsize"].value = "131072"
    pool = seen.zfs.pools[0]
    pool.vdevs[0].ashift = 9
    log = pool.vdevs[0].model_copy(update={"role": "log"})
    pool.vdevs = (*pool.vdevs, log)
    found = {(d.kind, d.about, d.what): (d.expected, d.found) for d in drifts(seen, expected)}
    assert found == {
        ("property", "tank/data", "recordsize"): ("16K", "128K"),
        ("device", "tank", "log vdevs"): ("none", "1 × disk"),
        ("device", "tank", "ashift"): ("12", "9"),
        ("tunable", "host", "zfs_txg_timeout"): ("10", "5"),
    }


def test_what_apply_keeps_since_it_protects_more_is_no_drift(expected: ExpectedLayout) -> None:
    seen = as_recommended(expected)
    assert seen.zfs is not None
    data = next(d for d in seen.zfs.datasets if d.name == "tank/data")
    for name, value in {"sync": "always", "copies": "2", "checksum": "sha256"}.items():
        data.properties[name].value = value
    assert drifts(seen, expected) == []
    data.properties["sync"].value = "disabled"
    assert [(d.what, d.found) for d in drifts(seen, expected)] == [("sync", "disabled")]


def test_what_cannot_be_compared_is_no_agreement(expected: ExpectedLayout) -> None:
    seen = as_recommended(expected)
    assert seen.zfs is not None
    gone = seen.model_copy(update={"zfs": seen.zfs.model_copy(update={"datasets": seen.zfs.datasets[1:]})})
    assert [(d.kind, d.found) for d in drifts(gone, expected)] == [("unknown", "not seen")]
    assert drifts(seen.model_copy(update={"zfs": None}), expected)[0].kind == "unknown"


def test_a_recommendation_without_names_finds_datasets_by_their_roles(tmp_path: Path) -> None:
    file = tmp_path / "recommended.json"
    file.write_text(recommended(CHANGES).model_dump_json())
    expected = read_expected(file)
    assert not expected.names
    found = drifts(made.observation(), expected)
    assert ("wal", "throughput") in {(d.about.split("/")[-1], d.expected) for d in found}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"layout": {}}', '{"layout": {"pool": 1}}'])
def test_what_is_no_recommendation_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_expected(file)
    assert str(file) in str(caught.value)


def test_what_a_host_hides_is_said_also_where_there_is_no_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = observation(said())
    blind = plain.model_copy(update={"limits": ("zpool get: Permission denied.", *plain.limits)})
    hosts.show([answer("open", plain)], [], everything=True)
    assert capsys.readouterr().out == "1 host answered: nothing to say.\n"
    both = [answer("open", plain), answer("closed", blind), answer("gone", None, "no route")]
    hosts.show(both, [], everything=False)
    assert "Of 1 host not all could be seen: --all says what, and why." in capsys.readouterr().out
    hosts.show(both, [], everything=True)
    assert "closed  zpool get: Permission denied." in capsys.readouterr().out
