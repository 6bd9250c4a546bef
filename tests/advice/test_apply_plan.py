"""The plan: what changes, what is left alone, what is refused; all against a stand-in that keeps state."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zfs_machine import MAPPING, STATUS, Machine, do, recommended

from ztune.advice import plan_text
from ztune.advice.host import Host, canonical, read, vdevs_of
from ztune.advice.perform import read_undo, undo
from ztune.advice.plan import Plan, Target, build, parameters, parse_datasets
from ztune.errors import InputError, MissingError
from ztune.study import DurabilityClass
from ztune.study.layout import parse_layout

pytestmark = pytest.mark.usefixtures("answered_here")


def planned(changes: dict[str, Any] | None = None, mapping: dict[str, str] = MAPPING, **layout: Any) -> Plan:
    recommendation = recommended(changes, **layout)
    wanted = parse_layout(recommendation.layout)
    return build(recommendation, mapping, read(Host(), mapping.values(), parameters(wanted)))


def names(plan: Plan) -> list[tuple[str, str, str]]:
    return [(s.dataset, s.name, s.value) for s in plan.settings]


def test_only_what_differs_is_set(machine: Machine) -> None:
    plan = planned({"data.recordsize": "16K", "data.compression": "zstd-3", "wal.logbias": "throughput"})
    assert names(plan) == [
        ("tank/pg", "recordsize", "16K"),
        ("tank/pg", "compression", "zstd-3"),
        # The log inherits both from its parent, and so would follow it: it is given its own.
        ("tank/pg/wal", "recordsize", "128K"),
        ("tank/pg/wal", "compression", "lz4"),
        ("tank/pg/wal", "logbias", "throughput"),
    ]
    sources = [(s.before.value, s.before.source) for s in plan.settings]
    assert sources[:3] == [
        ("131072", "default"), ("lz4", "inherited from tank"), ("131072", "default"),
    ]  # fmt: skip
    assert machine.changes() == []
    text = plan_text.render(plan)
    assert "recordsize           128K (default)  →  16K" in text
    assert "compression          lz4 stays: set here, so that it follows no dataset above" in text
    assert [s.name for s in plan.settings if s.keeps] == ["recordsize", "compression"]
    # What stays needs no rewriting, and hazards speak of the live datasets, not of the disks of the trial.
    assert plan.targets[1].rewrite == ()
    assert any("logbias=throughput on tank/pg/wal" in h for h in plan.hazards)
    assert "tank/data" not in text and "has no redundancy" not in text
    assert "modelled" in text and "nothing was measured" in text
    assert all(len(line) <= 150 for line in text.splitlines())


def test_a_child_that_inherits_what_it_needs_is_not_set(machine: Machine) -> None:
    plan = planned({"data.compression": "zstd-3", "wal.compression": "zstd-3"})
    assert names(plan) == [("tank/pg", "compression", "zstd-3")]


def test_what_the_layout_leaves_open_follows_nothing(machine: Machine) -> None:
    # The layout has data and log beside each other; here the log's dataset is below the data's.
    for change in ({"data.prefetch": "none"}, {"data.secondarycache": "metadata"}):
        plan = planned(change)
        name = next(iter(change)).removeprefix("data.")
        assert names(plan) == [("tank/pg", name, change[f"data.{name}"]), ("tank/pg/wal", name, "all")]
        assert plan.settings[1].keeps
        assert plan.settings[1].undo == ["zfs", "inherit", name, "tank/pg/wal"]


def test_those_below_that_inherit_what_stays_are_not_named(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"].update({"tank/pg/wal/sub": {"type": "filesystem", "guid": "6"}}))
    plan = planned({"data.recordsize": "16K"})
    assert names(plan)[1] == ("tank/pg/wal", "recordsize", "128K")  # as before: so for what is below it
    assert plan.targets[1].followers == ()


def test_those_below_that_inherit_are_named(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg/dump"].update(local={"logbias": "throughput"}))
    plan = planned({"data.recordsize": "16K", "data.logbias": "throughput"})
    followers = plan.targets[0].followers
    assert followers == (("tank/pg/dump", "recordsize", "128K"),)
    assert "tank/pg/dump inherits and changes with it: recordsize (now 128K)." in plan_text.render(plan)


def test_those_below_that_no_role_lives_on_are_not_weakened(machine: Machine, tmp_path: Path) -> None:
    machine.change(lambda s: s["datasets"].update({"tank/pg/dump/sub": {"type": "filesystem", "guid": "6"}}))
    before = machine.datasets()
    plan = planned({"data.sync": "disabled", "wal.sync": "disabled"})
    # Before what would weaken it; what is below it inherits from it.
    assert names(plan)[0] == ("tank/pg/dump", "sync", "standard")
    assert plan.targets[0].followers == () and len(plan.settings) == 2
    assert "tank/pg/dump keeps sync=standard: set there first." in plan_text.render(plan)
    do(plan, tmp_path / "undo.json", DurabilityClass.LAST_SECONDS)
    assert machine.local("tank/pg/dump")["sync"] == "standard"
    assert undo(read_undo(tmp_path / "undo.json"), Host(), lambda _: None, yes=True).left == ()
    assert machine.local("tank/pg/dump") == {} == machine.local("tank/pg/wal")
    assert machine.local("tank/pg") == before["tank/pg"]["local"]


def test_nothing_to_change(machine: Machine) -> None:
    plan = planned({"data.atime": "off", "wal.atime": "off"})
    assert names(plan) == []
    assert "nothing to change" in plan_text.closing(plan)


def test_undo_of_each_source(machine: Machine) -> None:
    def prepare(state: dict[str, Any]) -> None:
        state["datasets"]["tank/pg"]["local"]["logbias"] = "throughput"
        state["datasets"]["tank/pg"]["received"] = {"primarycache": "metadata"}

    machine.change(prepare)
    plan = planned({"data.recordsize": "16K", "data.compression": "zstd-3"}, {"data": "tank/pg"})
    assert {s.name: s.undo for s in plan.settings} == {
        "recordsize": ["zfs", "inherit", "recordsize", "tank/pg"],
        "compression": ["zfs", "inherit", "compression", "tank/pg"],
        "logbias": ["zfs", "set", "logbias=throughput", "tank/pg"],
        "primarycache": ["zfs", "inherit", "-S", "primarycache", "tank/pg"],
    }


def test_stronger_protection_is_kept(machine: Machine) -> None:
    def prepare(state: dict[str, Any]) -> None:
        state["datasets"]["tank/pg"]["local"].update(copies="2", checksum="sha256", sync="always")

    machine.change(prepare)
    plan = planned({}, {"data": "tank/pg"})
    assert names(plan) == []
    assert {k.split("=")[0] for k in plan.targets[0].kept} == {"copies", "checksum", "sync"}
    # And a weaker one is mended: checksum=off is never what anybody should keep.
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(copies="1", checksum="off"))
    plan = planned({}, {"data": "tank/pg"})
    assert names(plan) == [("tank/pg", "checksum", "on")]
    assert (plan.before, plan.after) == (DurabilityClass.CORRUPT, DurabilityClass.NOTHING)
    assert not plan.weaker


def test_durability_before_and_after(machine: Machine) -> None:
    nothing, seconds, _, corrupt = DurabilityClass
    both = planned({"data.sync": "disabled", "wal.sync": "disabled"})
    assert (both.before, both.after, both.weaker) == (nothing, seconds, True)
    # Only the data's dataset is named: what the log has is not known, so the worst is assumed.
    one = planned({"data.sync": "disabled", "wal.sync": "disabled"}, {"data": "tank/pg"})
    assert (one.before, one.after) == (nothing, corrupt)
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(sync="disabled"))
    # It is so already, and is inherited by the log: not weaker than now.
    again = planned({"data.sync": "disabled", "wal.sync": "disabled"})
    assert (again.before, again.after, again.weaker) == (seconds, seconds, False)
    mended = planned({})
    assert (mended.before, mended.after) == (seconds, nothing)
    torn = planned({"data.recordsize": "4K", "database.full_page_writes": "off"}, {"data": "tank/pg"})
    assert torn.after == corrupt


def test_what_protects_pages_and_was_not_read_is_asked_for(machine: Machine) -> None:
    # The recording says nothing of full_page_writes, and the server may have it off.
    found = planned({"data.recordsize": "4K"}, {"data": "tank/pg"})
    assert (found.before, found.after) == (DurabilityClass.NOTHING, DurabilityClass.NOT_KNOWN)
    assert "without full_page_writes a power cut tears them" in found.reasons[0]
    assert found.weaker
    said = planned({"data.recordsize": "4K", "database.full_page_writes": "on"}, {"data": "tank/pg"})
    assert said.after == DurabilityClass.NOTHING
    assert planned({"data.recordsize": "8K"}, {"data": "tank/pg"}).after == DurabilityClass.NOTHING
    # Smaller ones are there already: nothing gets worse.
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(recordsize="4096"))
    assert not planned({"data.recordsize": "8K"}, {"data": "tank/pg"}).weaker


def test_the_pool_that_is_there_decides_what_direct_io_loses(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(direct="disabled"))
    asked = {"data.direct": "always"}
    # One vdev has the log beside the data; the run's own layout has no log device either.
    assert not planned(asked, direct=["data"]).weaker
    machine.change(lambda s: s["pools"]["tank"].update(status=STATUS.replace("\tcache", "\tlogs")))
    found = planned(asked, direct=["data"])
    assert (found.before, found.after) == (DurabilityClass.NOTHING, DurabilityClass.CORRUPT)
    assert "Direct I/O on tank/pg, whose log may lie on other disks" in found.reasons[0]


def test_flushes_that_the_host_leaves_out_are_seen(machine: Machine) -> None:
    recommendation = recommended({"data.recordsize": "16K"})
    live = read(Host(), MAPPING.values(), ())
    for name, klass in (("zfs_nocacheflush", "corrupt"), ("zil_nocacheflush", "last-seconds")):
        assert name in parameters(parse_layout(recommendation.layout))
        found = build(recommendation, MAPPING, replace(live, parameters={name: "1"}))
        assert (found.before, found.after) == (klass, klass)
        assert any(name in reason for reason in found.reasons)


def test_what_the_load_sets_in_the_database_counts(machine: Machine) -> None:
    declared = {
        "default": "nothing-acknowledged",
        "settings": {"appendfsync": {"everysec": "last-seconds"}},
        "parameters": {"fsync": {"everysec": {"appendfsync": "everysec"}}},
    }
    plan = planned(durability=declared, workload={"fsync": "everysec"})
    assert (plan.before, plan.after) == (DurabilityClass.LAST_SECONDS, DurabilityClass.LAST_SECONDS)
    assert plan.reasons[0].startswith("appendfsync=everysec")


def test_where_no_dataset_is_named_no_pool_is_made_up(machine: Machine) -> None:
    plan = planned(mapping={"data": "tank/pg"})
    assert any("of pool tank (live) keep what is flushed" in reason for reason in plan.reasons)
    assert any("the disks that wal may lie on keep what is flushed" in reason for reason in plan.reasons)
    assert "pool unknown" not in plan_text.render(plan)


def test_what_nobody_has_declared_is_not_promised(machine: Machine) -> None:
    plan = planned(durability={"settings": {}})
    assert plan.unknown == ("the database",)
    assert "nothing-acknowledged then, as far as it is known\n  Nobody has declared" in plan_text.render(plan)
    assert "as far as it is known" not in plan_text.render(planned())


def test_a_volume_does_not_keep_pages_whole(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/other"].update(type="volume"))
    off = {"database.full_page_writes": "off"}
    for layout in (off, {**off, "data.volume": "8G", "data.volblocksize": "16K"}):
        plan = planned(layout, {"data": "tank/other"})
        assert (plan.before, plan.after) == (DurabilityClass.CORRUPT, DurabilityClass.CORRUPT)
        assert "which writes in place" in plan.reasons[0]
    assert planned({"data.volume": "8G"}, {"data": "tank/other"}).after == DurabilityClass.NOTHING


def test_files_keep_the_records_that_they_were_made_with(machine: Machine) -> None:
    nothing, _, _, corrupt = DurabilityClass
    wanted = {"data.recordsize": "8K", "database.full_page_writes": "off"}
    safe = planned(wanted)
    assert (safe.before, safe.after) == (nothing, nothing)
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(recordsize="4096"))
    plan = planned(wanted)
    assert ("tank/pg", "recordsize", "8K") in names(plan)
    assert (plan.before, plan.after, plan.weaker) == (corrupt, corrupt, False)
    assert "recordsize 4096 below the page size" in plan.reasons[0]
    assert plan.reasons[-1].endswith(f"keep their record size: {nothing} once they are copied")
    # What is written from now on counts as well.
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(recordsize="8192"))
    smaller = planned({**wanted, "data.recordsize": "4K"})
    assert (smaller.before, smaller.after) == (nothing, corrupt)


def test_rewriting_what_is_there(machine: Machine) -> None:
    plan = planned({"data.recordsize": "16K"}, {"data": "tank/pg"})
    commands = plan.targets[0].commands
    assert commands[0] == "# stop the database first" and commands[1].startswith("# zfs get -s local,")
    assert "cp -ax --reflink=never /srv/pg/. /srv/pg.new/" in commands
    assert "zfs rename tank/pg tank/pg.old" in commands and "zfs rename tank/pg.new tank/pg" in commands
    assert "zfs rename tank/pg.old/wal tank/pg/wal" in commands
    (create,) = [c for c in commands if c.startswith("zfs create")]
    assert "-o recordsize=16K" in create and "-o atime=off" in create and "mountpoint=/srv/pg.new" in create
    text = " ".join(plan.targets[0].rewrite)
    assert "12.3 GiB" in text and "keeps its record size for good" in text
    # Compression alone: from 2.3.4 on in place.
    plan = planned({"data.compression": "zstd-3"}, {"data": "tank/pg"})
    assert any("zfs send" in s or "copy" in s for s in plan.targets[0].rewrite)
    machine.change(lambda s: s.update(version="2.4.1-1"))
    plan = planned({"data.compression": "zstd-3"}, {"data": "tank/pg"})
    assert plan.targets[0].commands == ("zfs rewrite -rx /srv/pg",)
    # What is no matter of blocks needs no rewriting.
    assert planned({"data.logbias": "throughput"}, {"data": "tank/pg"}).targets[0].rewrite == ()
    machine.change(lambda s: s["datasets"]["tank/pg"]["facts"].update(available="1000"))
    plan = planned({"data.recordsize": "16K"}, {"data": "tank/pg"})
    assert any("too little room" in s for s in plan.targets[0].rewrite)
    assert plan.targets[0].commands == ()
    machine.change(lambda s: s["datasets"]["tank/pg"]["facts"].update(available="0"))
    assert planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets[0].commands == ()


def test_a_copy_has_all_that_is_changed_and_not_what_was_set_before(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(sync="disabled", logbias="throughput"))
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets
    assert {(s.name, s.value) for s in target.settings} > {("sync", "standard"), ("logbias", "latency")}
    (create,) = [c for c in target.commands if c.startswith("zfs create")]
    assert all(f"-o {s.name}={s.value} " in create for s in target.settings)
    assert "disabled" not in create and "throughput" not in create
    assert target.rewrite[0].startswith("recordsize: ")


def pasted(target: Target, folder: Path, failing: str = "") -> list[str]:
    """Return which commands are run when the whole of a target's is pasted, and the one ``failing`` fails."""
    programs, log = folder / "programs", folder / "log"
    programs.mkdir(exist_ok=True)
    log.write_text("")
    for name in ("zfs", "cp"):
        said = f'said="{name} $*"; printf "%s\\n" "$said" >> {shlex.quote(str(log))}'
        path = programs / name
        path.write_text(f"#!/bin/sh\n{said}\ncase $said in {failing or 'none'}*) exit 1 ;; esac\n")
        path.chmod(0o755)
    text = "\n".join(f"      {command}" for command in target.commands) + "\n"
    env = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["sh"], input=text, text=True, env=env, timeout=60, check=False)
    return log.read_text().splitlines()


def test_a_pasted_copy_stops_where_it_fails_and_destroys_nothing(machine: Machine, tmp_path: Path) -> None:
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets
    run = pasted(target, tmp_path)
    assert [" ".join(line.split()[:2]) for line in run[:6]] == [
        "zfs create", "cp -ax", "zfs set", "zfs rename", "zfs rename", "zfs set",
    ]  # fmt: skip
    assert all(line.startswith("zfs rename tank/pg.old/") for line in run[6:]) and run[6:]
    for failing, count in (("zfs\\ create", 1), ("cp", 2), ("zfs\\ set", 3), ("zfs\\ rename", 4)):
        assert pasted(target, tmp_path, failing) == run[:count]
    # What destroys stands below, for later, and leaves what is still below the old dataset.
    *_, start, snapshots, old = target.commands
    assert start.startswith("# start the database, check it, and only then destroy")
    assert snapshots == "#   zfs destroy tank/pg.old@%" and old == "#   zfs destroy tank/pg.old"
    assert not any("destroy -" in command for command in target.commands)
    assert "stop at the first one that fails" in target.rewrite[-1]


def test_a_copy_is_encrypted_as_what_it_copies(machine: Machine) -> None:
    key = {"encryption": "aes-256-gcm", "keyformat": "hex", "keylocation": "file:///etc/pg.key"}

    def prepare(state: dict[str, Any]) -> None:
        for name in ("tank/pg", "tank/pg/wal"):
            state["datasets"][name].setdefault("facts", {}).update(key, encryptionroot="tank/pg")

    machine.change(prepare)
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets
    (create,) = [c for c in target.commands if c.startswith("zfs create")]
    assert all(f"-o {name}={value}" in create for name, value in key.items())
    assert "so copy these too: tank/pg/wal." in " ".join(target.rewrite)
    assert not any("tank/pg.old/wal" in c for c in target.commands)
    assert target.commands[-1].endswith("zfs destroy tank/pg.old")
    # What has its key from above gets it again, and is moved.
    machine.change(
        lambda s: [
            s["datasets"][n]["facts"].update(encryptionroot="tank") for n in ("tank/pg", "tank/pg/wal")
        ]
    )
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets
    assert not any("encryption" in c for c in target.commands)
    assert "zfs rename tank/pg.old/wal tank/pg/wal" in target.commands


def test_a_copied_volume_keeps_its_properties_and_its_key(machine: Machine, tmp_path: Path) -> None:
    volume = {"type": "volume", "guid": "9", "local": {"compression": "off", "sync": "always"},
              "facts": {"referenced": "1073741824"}}  # fmt: skip
    machine.change(lambda s: s["datasets"].update({"tank/vol": volume}))
    asked = {"data.volume": "8G", "data.compression": "zstd-3"}
    (target,) = planned(asked, {"data": "tank/vol"}).targets
    (send,) = [c for c in target.commands if c.startswith("zfs send")]
    assert "receive -o sync=always -o compression=zstd-3 tank/vol.new" in send
    run = pasted(target, tmp_path)
    assert sorted(line.split()[1] for line in run) == ["receive", "rename", "rename", "send", "snapshot"]
    for failing in ("zfs\\ snapshot", "zfs\\ receive"):
        assert not any("rename" in line for line in pasted(target, tmp_path, failing))
    machine.change(lambda s: s["datasets"]["tank/vol"]["facts"].update(available="4096"))
    (target,) = planned(asked, {"data": "tank/vol"}).targets
    assert target.commands == () and "too little room" in target.rewrite[-1]
    machine.change(lambda s: s["datasets"]["tank/vol"]["facts"].update(encryptionroot="tank/vol"))
    (target,) = planned(asked, {"data": "tank/vol"}).targets
    assert target.commands == () and "with a key of its own" in target.rewrite[-1]


def test_what_can_t_be_copied_by_commands_gets_none(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank"].update(facts={"referenced": "4096000"}))
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank"}).targets
    assert target.commands == () and "root of a pool can't be renamed" in target.rewrite[-1]
    machine.change(lambda s: s["datasets"]["tank/pg"]["facts"].update(mounted="no"))
    (target,) = planned({"data.recordsize": "16K"}, {"data": "tank/pg"}).targets
    assert target.commands == () and "not mounted" in target.rewrite[-1]


def test_the_pool_is_compared_and_never_changed(machine: Machine) -> None:
    plan = planned({"slog": "mirror 2 nvme", "pool.tank.ashift": 13})
    said = " ".join(plan.pool)
    assert "has a log device (mirror 2 nvme), pool tank has none" in said
    assert "Pool tank has a cache device (disk), the layout has none" in said
    assert "The data disks were disk where the layout was tried; pool tank has mirror 2" in said
    assert "ashift is 12 on pool tank and 13 in the layout" in said
    assert plan.pool_commands == ("zpool add tank log mirror DISK1 DISK2",)
    assert all("add" not in " ".join(s.command) for s in plan.settings)


@pytest.fixture
def lsblk(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's disks have sectors of 4 KiB, but for the cache's."""
    folder = machine.file.with_name("kernel")
    folder.mkdir()
    program = folder / "lsblk"
    program.write_text(
        '#!/bin/sh\nprintf "/dev/sda1 4096\\n/dev/sdb1 512\\n/dev/sdc1 8192\\n/dev/sdd 4096\\n"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def sectors(machine: Machine, ashift: int, more: str = "") -> list[str]:
    """Return what a plan says of ashift where ZFS chose that of tank's mirror, and that of another disk."""

    def change(state: dict[str, Any]) -> None:
        pool = state["pools"]["tank"]
        pool["properties"]["ashift"] = "0"  # as it is where it was not given
        pool["vdevs"] = {"root-0": {"ashift": "0"}, "mirror-0": {"ashift": str(ashift)}}
        pool["vdevs"] |= {"sdc": {"ashift": "9", "path": "/dev/sdc1"}}
        if more:
            pool["status"] = STATUS.replace("\tcache", "\t  /dev/sdd ONLINE 0 0 0\n\tcache")
            pool["vdevs"]["sdd"] = {"ashift": more, "path": "/dev/sdd"}

    machine.change(change)
    return [text for text in planned().pool if "ashift" in text]


def test_an_ashift_that_zfs_chose_is_compared(machine: Machine, lsblk: None) -> None:
    assert sectors(machine, 12) == []
    (other,) = sectors(machine, 13)
    assert other == (
        "ashift is 13 on pool tank and 12 in the layout. It is fixed when a vdev is made; "
        "another one takes a new pool."
    )
    (both,) = sectors(machine, 12, "13")
    assert both.startswith("ashift is 12 and 13, by vdev, on pool tank and 12 in the layout")


def test_an_ashift_below_the_disks_sectors_is_said(machine: Machine, lsblk: None) -> None:
    other, small = sectors(machine, 9)
    assert other.startswith("ashift is 9 on pool tank and 12 in the layout")
    assert small == (
        "ashift 9 of mirror-0 on pool tank is too small for its disks: they have sectors of 4,096 bytes, and "
        "read and write one for each smaller block. It is fixed when a vdev is made; another one takes a new "
        "pool."
    )
    assert "ashift 9 of mirror-0 (and 1 more) on pool tank" in sectors(machine, 9, "9")[1]


def test_where_vdevs_have_no_properties_nothing_is_said_of_their_sectors(
    machine: Machine, lsblk: None
) -> None:
    machine.change(lambda s: s.update(version="2.1.11-1"))
    assert sectors(machine, 9) == []


def test_roles_that_the_layout_keeps_on_two_pools(machine: Machine) -> None:
    pools = [{"name": n, "vdev": [{"profile": "nvme"}]} for n in ("tank", "fast")]
    datasets = [{"name": "tank/data", "roles": ["data"]}, {"name": "fast/wal", "roles": ["wal"]}]
    plan = planned({}, pool=pools, dataset=datasets)
    assert any("has wal on a pool of its own; here all is on tank" in s for s in plan.pool)


def test_database_and_module(machine: Machine) -> None:
    plan = planned(
        {"database.full_page_writes": "off", "database.shared_buffers": "1GB", "tunable.zfs_txg_timeout": 10}
    )
    said = " ".join(plan.restart)
    assert "full_page_writes = off in the database: reload" in said
    assert "shared_buffers = 1GB in the database: restart" in said
    assert "zfs_txg_timeout = 10" in said
    assert plan.restart_commands == (
        "echo 10 > /sys/module/zfs/parameters/zfs_txg_timeout",
        "echo 'options zfs zfs_txg_timeout=10' >> /etc/modprobe.d/zfs.conf",
    )


@pytest.mark.parametrize(
    ("version", "changes", "sentence"),
    [
        (
            "2.1.11-1",
            {"data.prefetch": "metadata"},
            "prefetch=metadata needs OpenZFS 2.2.4; this host has 2.1.11-1",
        ),
        ("2.1.11-1", {"data.recordsize": "4M"}, "recordsize=4M is more than OpenZFS 2.1.11-1 takes"),
        ("2.2.7-1", {"data.direct": "always"}, "direct=always needs OpenZFS 2.3; this host has 2.2.7-1"),
        ("2.1.5-1", {"data.redundant_metadata": "some"}, "redundant_metadata=some needs OpenZFS 2.1.7"),
        ("0.8.6-1", {"data.compression": "zstd-3"}, "compression=zstd-3 needs OpenZFS 2.0"),
    ],
)
def test_too_old_for_a_property(
    machine: Machine, version: str, changes: dict[str, Any], sentence: str
) -> None:
    machine.change(lambda s: s.update(version=version))
    plan = planned(changes, {"data": "tank/pg"})
    assert plan.refused[0].startswith(sentence)
    assert sentence in " ".join(plan_text.render(plan).split()).replace(
        sentence[:1].upper() + sentence[1:], sentence
    )


@pytest.mark.parametrize(
    ("version", "most", "refused"),
    [("2.1.11-1", 16 << 20, False), ("2.1.11-1", 1 << 20, True), ("2.3.2-1", 1 << 20, True)],
)
def test_the_host_says_how_large_records_may_be(
    machine: Machine, version: str, most: int, refused: bool
) -> None:
    machine.change(lambda s: s.update(version=version))
    recommendation = recommended({"data.recordsize": "4M"})
    live = replace(read(Host(), ["tank/pg"]), parameters={"zfs_max_recordsize": str(most)})
    plan = build(recommendation, {"data": "tank/pg"}, live)
    said = "recordsize=4M is more than zfs_max_recordsize of this host allows, 1M; that can be set up to 16M"
    assert plan.refused == ((said,) if refused else ())
    assert "zfs_max_recordsize" in parameters(parse_layout(recommendation.layout))


def test_attributes_that_an_older_openzfs_keeps_in_directories(machine: Machine) -> None:
    # zfs get prints `on` for dir up to 2.2, and for nothing from 2.3 on: zfs_prop.c, xattr_table.
    machine.change(lambda s: s.update(version="2.2.7-1"))
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].update(xattr="on"))
    plan = planned({"data.xattr": "sa"}, {"data": "tank/pg"})
    assert names(plan) == [("tank/pg", "xattr", "sa")]
    assert plan.settings[0].undo == ["zfs", "set", "xattr=on", "tank/pg"]
    assert names(planned({"data.xattr": "dir"}, {"data": "tank/pg"})) == []


def test_features_and_mount_options_stand_in_the_way(machine: Machine) -> None:
    def prepare(state: dict[str, Any]) -> None:
        state["pools"]["tank"]["properties"]["feature@large_blocks"] = "disabled"
        state["datasets"]["tank/pg"]["temporary"] = {"atime": "on"}

    machine.change(prepare)
    plan = planned({"data.recordsize": "1M"}, {"data": "tank/pg"})
    assert "needs the feature large_blocks, which pool tank has disabled" in plan.refused[0]
    assert "by a mount option" in plan.refused[1]


@pytest.mark.parametrize(
    ("name", "value", "feature"),
    [
        ("checksum", "sha512", "sha512"),
        ("checksum", "skein", "skein"),
        ("checksum", "edonr", "edonr"),
        ("checksum", "blake3", "blake3"),
        ("dnodesize", "auto", "large_dnode"),
    ],
)
def test_features_of_checksums_and_dnodes(machine: Machine, name: str, value: str, feature: str) -> None:
    # zfs set refuses these, and only these: zfs_check_settable() in zfs_ioctl.c.
    machine.change(lambda s: s["pools"]["tank"]["properties"].update({f"feature@{feature}": "disabled"}))
    plan = planned({f"data.{name}": value}, {"data": "tank/pg"})
    assert f"{name}={value} needs the feature {feature}, which pool tank has disabled" in plan.refused[0]
    for harmless in ({}, {"data.checksum": "sha256"}):
        assert planned(harmless, {"data": "tank/pg"}).refused == ()


def test_files_and_volumes_are_not_mixed_up(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/other"].update(type="volume"))
    plan = planned({"data.recordsize": "16K"}, {"data": "tank/other"})
    assert names(plan) == []
    assert (
        "tank/other is a volume, and the layout has data, temp, index as files"
        in plan.targets[0].impossible[0]
    )
    assert "\n  - tank/other is a volume" in plan_text.render(plan)
    plan = planned({"data.volume": "8G"}, {"data": "tank/pg"})
    assert names(plan) == []
    assert "zfs create -V SIZE -o volblocksize=16K" in plan.targets[0].impossible[0]
    volume = planned(
        {"data.volume": "8G", "data.volblocksize": "8K", "data.compression": "off"}, {"data": "tank/other"}
    )
    assert names(volume) == [("tank/other", "compression", "off")]
    assert volume.targets[0].impossible[0].startswith("volblocksize is 16K and stays so")


def test_encryption_takes_a_new_dataset(machine: Machine) -> None:
    plan = planned({"data.encryption": "on"}, {"data": "tank/pg"})
    assert names(plan) == []
    assert "encryption is off and stays so" in plan.targets[0].impossible[0]


@pytest.mark.parametrize("role", ["data", "wal"])
def test_roles_on_one_dataset_differ_in_what_one_of_them_sets(machine: Machine, role: str) -> None:
    with pytest.raises(InputError, match="both live on tank/pg, but the layout gives them a different pref"):
        planned({f"{role}.prefetch": "none"}, {"data": "tank/pg", "wal": "tank/pg"})


def test_roles_on_one_dataset(machine: Machine) -> None:
    with pytest.raises(
        InputError, match=r"data and wal both live on tank/pg.*a different recordsize.*make wal"
    ):
        planned({"data.recordsize": "16K"}, {"data": "tank/pg", "wal": "tank/pg"})
    same = planned({"data.logbias": "throughput", "wal.logbias": "throughput"},
                   {"data": "tank/pg", "wal": "tank/pg"})  # fmt: skip
    assert names(same) == [("tank/pg", "logbias", "throughput")]
    assert same.targets[0].roles == ("data", "temp", "index", "wal")
    with pytest.raises(InputError, match="share one dataset in this layout"):
        planned({}, {"data": "tank/pg", "index": "tank/other"})


def test_what_dataset_words_are_refused() -> None:
    layout = parse_layout(recommended().layout)
    assert parse_datasets(["data=tank/pg", "wal=tank/pg/wal"], layout) == MAPPING
    for word, sentence in (
        ("tank/pg", "write ROLE=POOL/DATASET"),
        ("backup=tank/pg", 'no role "backup"'),
        ("data=tank/p g;rm", "is not a dataset name"),
        ("data=tank/p g", "that ztune takes: ZFS allows a blank there"),
        ("data=-o/x", "is not a dataset name"),
        ("data=", "write ROLE=POOL/DATASET"),
    ):
        with pytest.raises(InputError, match=sentence):
            parse_datasets([word], layout)
    with pytest.raises(InputError, match="given two datasets"):
        parse_datasets(["data=tank/a", "data=tank/b"], layout)


def test_a_layout_that_is_not_zfs(machine: Machine) -> None:
    with pytest.raises(InputError, match="which is ext4 and not ZFS"):
        planned({"pool.tank.filesystem": "ext4"})


def test_missing_things_are_said_in_a_sentence(machine: Machine) -> None:
    with pytest.raises(InputError, match=r"there is no dataset tank/nil on this host"):
        planned({}, {"data": "tank/nil"})
    with pytest.raises(InputError, match=r"--on is \"ssh://-oProxyCommand=x\""):
        Host("ssh://-oProxyCommand=x")
    with pytest.raises(InputError, match="it is local or ssh://"):
        Host("http://x")


def test_without_zfs(no_zfs: None) -> None:
    with pytest.raises(MissingError, match=r"no zfs on this host.*--export"):
        planned()


def test_over_ssh_words_are_quoted() -> None:
    host = Host("ssh://admin@db1:2222", ["sudo", "-n"])
    argv = host.argv(["zfs", "set", "recordsize=16K", "tank/p g"])
    assert argv[:8] == ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-p", "2222", "--"]
    assert argv[8] == "admin@db1"
    shell, option, script = shlex.split(argv[9])
    assert (shell, option) == ("sh", "-c")
    command, _, code = script.partition(" || ")
    assert command.endswith("sudo -n zfs set recordsize=16K 'tank/p g'")
    assert code == "exit $(( $? == 255 ? 1 : $? ))"


def test_vdevs_from_a_status() -> None:
    text = (
        "  pool: t\n state: ONLINE\nconfig:\n\n\tNAME STATE\n\tt ONLINE\n\t  raidz2-0 ONLINE\n"
        + "".join(f"\t    /dev/sd{c} ONLINE\n" for c in "abcd")
        + "\tspecial\n\t  mirror-1 ONLINE\n\t    /dev/a ONLINE\n\t    /dev/b ONLINE\n"
        + "\tlogs\n\t  /dev/c ONLINE\n\tcache\n\t  /dev/d ONLINE\n\nerrors: none\n"
    )
    assert vdevs_of(text, "t") == {
        "data": ("raidz2 4",), "special": ("mirror 2",), "log": ("disk",), "cache": ("disk",),
    }  # fmt: skip
    assert canonical("recordsize", "131072") == "128K"
    assert canonical("mountpoint", "/x") == "/x"
