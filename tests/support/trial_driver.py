"""Hostile cases and kills on real ZFS: runs as root on a host of its own, such as the lab's guest.

``python3 trial_driver.py DISK DISK [SCENARIO …]`` prints one JSON line per scenario: name, seconds, error.
One process for all of them, because starting Python takes seconds under emulation; every trial and every
clean-up is a fork of it. The host must have no pool and the disks must be empty, and so they are at
the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trial_harness
from trial_job import Writer
from trial_support import RUN, TRIAL, Ran, make_spec, parse_events, pool

from ztune.onhost.events import Events
from ztune.onhost.host import devices, home, labels, mounts
from ztune.onhost.trial import clean as cleaning
from ztune.onhost.trial import lifecycle, lock
from ztune.onhost.trial import spec as specs
from ztune.onhost.trial.journal import Journal

BASE = Path("/var/tmp/ztune-door")
STATE = BASE / "state"
PATIENCE = 40.0
ZT = "zttest-main"
PARAMETERS = ("zfs_arc_max", "zfs_arc_min", "zfs_txg_timeout")


def sh(*argv: str, check: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout


def forked(body: Callable[[Events], str]) -> Ran:
    """Run ``body`` in a process of its own and return what it said; its exit code is -9 after SIGKILL."""
    path = BASE / "events"
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            with path.open("w") as out:
                events = Events(out)
                try:
                    status = body(events)
                except Exception as error:
                    events.error(f"{type(error).__name__}: {error}", "prepare")
                    status = "failed"
                events.send("end", status=status)
            code = 0 if status == "ok" else 1
        finally:
            os._exit(code)
    _pid, ended = os.waitpid(pid, 0)
    return Ran(os.waitstatus_to_exitcode(ended), parse_events(path.read_text()), "")


def trial(
    spec: dict[str, Any], kill: Callable[[Journal, str, dict[str, Any], bool], bool] | None = None
) -> Ran:
    """Run a trial; ``kill(journal, do, fields, written)`` says where it ends by SIGKILL."""

    def body(events: Events) -> str:
        if kill is not None:
            append = Journal.append

            def killing(self: Journal, do: str, **fields: Any) -> None:
                if kill(self, do, fields, False):
                    os.kill(os.getpid(), signal.SIGKILL)
                append(self, do, **fields)
                if kill(self, do, fields, True):
                    os.kill(os.getpid(), signal.SIGKILL)

            Journal.append = killing  # type: ignore[method-assign]
        parsed = specs.parse(json.dumps({**spec, "patience": PATIENCE}))
        held = lock.RunLock(parsed.state, parsed.run)
        held.acquire(60)
        parts = lifecycle.Parts(
            lambda _name: Writer, lambda _context: trial_harness.NoProbe(), trial_harness.Window
        )
        try:
            return lifecycle.RunningTrial(parsed, events, parts, held).run()
        finally:
            held.release()

    return forked(body)


def swept() -> Ran:
    """Run the clean-up."""
    return forked(lambda events: "ok" if cleaning.clean(STATE, events, patience=PATIENCE) else "failed")


def wipe(node: str) -> None:
    """Empty a disk of a user's."""
    fd = os.open(node, os.O_RDWR | os.O_EXCL)
    devices.wipe_edges(fd, os.lseek(fd, 0, os.SEEK_END))
    os.close(fd)
    fd = os.open(node, os.O_RDONLY | os.O_EXCL)
    devices.reread_partitions(fd)
    os.close(fd)


def at_measure(_journal: Journal, do: str, fields: dict[str, Any], written: bool) -> bool:
    return written and do == "step" and fields["step"] == "measure" and fields["state"] == "begin"


class Bench:
    """The host as it was, and ways to ask whether it still is."""

    def __init__(self, disks: list[str]) -> None:
        self.disks = disks
        self.before = self.look()

    def look(self) -> dict[str, Any]:
        return {
            "parameters": {
                name: Path(f"/sys/module/zfs/parameters/{name}").read_text() for name in PARAMETERS
            },
            "arc": [
                line
                for line in Path("/proc/spl/kstat/zfs/arcstats").read_text().splitlines()
                if line.startswith(("c_min ", "c_max "))
            ],
            "pools": sh("zpool", "list", "-H", "-o", "name"),
            "mounts": [[str(m.point), m.source] for m in mounts.table()],
            "partitions": Path("/proc/partitions").read_text(),
            "state": STATE.exists(),
            "files": sorted(str(p) for p in BASE.rglob("*") if p.name != "events"),
        }

    def require_untouched(self) -> None:
        now = self.look()
        for key, value in self.before.items():
            assert now[key] == value, f"{key}: was {value}, is {now[key]}"
        for path in self.disks:
            devices.require_free(path)

    def require_refused(self, *words: str) -> None:
        ran = swept()
        assert ran.rc == 1, f"clean did not refuse: {ran.events[-3:]}"
        for word in words:
            assert word in ran.errors, f'"{word}" is not said: {ran.errors}'

    def require_cleaned(self) -> None:
        ran = swept()
        assert (ran.rc, ran.errors) == (0, ""), ran.errors
        self.require_untouched()

    def spec(self, **changes: Any) -> dict[str, Any]:
        place = {"kind": "disks", "disks": {"main": {"data": [[self.disks[0]]], "log": [[self.disks[1]]]}}}
        log = {"class": "log", "disks": 1, "profile": "nvme"}
        both = pool(vdev=[*pool()["vdev"], log])
        return make_spec(
            STATE, place, **{"layout.pool": [both], "layout.tunables": {"zfs_txg_timeout": 7}, **changes}
        )

    @contextlib.contextmanager
    def killed(self, **changes: Any) -> Iterator[Path]:
        """A trial that died while it was measured; clean at the end, and all as before."""
        ran = trial(self.spec(**changes), at_measure)
        assert ran.rc == -signal.SIGKILL, ran.errors
        deadline = time.monotonic() + 60
        while mounts.users(STATE) and time.monotonic() < deadline:
            time.sleep(0.2)  # what it had started is dying
        yield STATE / "places" / RUN / TRIAL / "mnt" / ZT
        self.require_cleaned()

    @contextlib.contextmanager
    def tank(self) -> Iterator[str]:
        """A pool of the user's with a parent for trials."""
        file = BASE / "tank.img"
        with file.open("wb") as image:
            image.truncate(256 << 20)
        sh("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=/var/tmp/tank", "tank", str(file))
        sh("zfs", "create", "-o", "dnodesize=auto", "tank/ztune")
        sh("zfs", "create", "-o", "ztune:note=mine", "tank/mine")
        Path("/var/tmp/tank/mine/file").write_text("precious")
        before = sh("zfs", "list", "-H", "-o", "name", "-t", "all", "-r", "tank")
        without, self.before = self.before, self.look()
        try:
            yield "tank/ztune"
            assert sh("zfs", "list", "-H", "-o", "name", "-t", "all", "-r", "tank") == before
            assert Path("/var/tmp/tank/mine/file").read_text() == "precious"
        finally:
            self.before = without
            sh("zpool", "destroy", "-f", "tank")
            file.unlink()
            Path("/var/tmp/tank").rmdir()

    def parent_spec(self, parent: str, **changes: Any) -> dict[str, Any]:
        place = {"kind": "parent", "parents": {"main": parent}}
        return make_spec(STATE, place, **changes)


# -- whole trials -----------------------------------------------------------------------------------------


def whole_disks(bench: Bench) -> None:
    ran = trial(bench.spec())
    assert (ran.status, ran.errors) == ("ok", ""), ran.errors
    assert ran.result["measure"]["pools"] == [[ZT, "zfs", ["data", "log"]]]
    assert ran.result["environment"]["tunables"] == {"zfs_txg_timeout": "7"}
    bench.require_untouched()


def whole_parent(bench: Bench) -> None:
    with bench.tank() as parent:
        ran = trial(bench.parent_spec(parent))
        assert (ran.status, ran.errors) == ("ok", ""), ran.errors
        warnings = " ".join(ran.result["warnings"])
        assert "the ARC is not emptied" in warnings and "inherit dnodesize=auto" in warnings
    bench.require_untouched()


def whole_files_encrypted_and_volume(bench: Bench) -> None:
    place = {"kind": "files", "dir": str(BASE), "disks": {"main": {"data": [["512M"]]}}}
    data = {"name": "main/a/b", "roles": ["data"], "properties": {"encryption": "aes-256-gcm"}}
    wal = {
        "name": "main/vol",
        "roles": ["wal"],
        "properties": {"compression": "lz4", "volblocksize": "16K", "special_small_blocks": "0"},
        "volume": 64 << 20,
        "filesystem": "ext4",
    }
    ran = trial(make_spec(STATE, place, **{"layout.dataset": [data, wal]}))
    assert (ran.status, ran.errors) == ("ok", ""), ran.errors
    assert ran.result["measure"]["datasets"] == [[f"{ZT}/a/b", "zfs"], [f"{ZT}/vol", "ext4"]] or (
        ran.result["measure"]["datasets"] == [[f"{ZT}/vol", "ext4"], [f"{ZT}/a/b", "zfs"]]
    )
    bench.require_untouched()


def whole_ext4_on_the_same_disk(bench: Bench) -> None:
    place = {"kind": "disks", "disks": {"main": {"data": [[bench.disks[0]]]}}}
    ran = trial(make_spec(STATE, place, **{"layout.pool": [pool(filesystem="ext4")]}))
    assert (ran.status, ran.errors) == ("ok", ""), ran.errors
    bench.require_untouched()


# -- kills ------------------------------------------------------------------------------------------------


class KillAt:
    """Ends a trial at the ``number``-th moment, before or after a record that ``wanted`` picks."""

    def __init__(self, wanted: Callable[[str, dict[str, Any]], bool], number: int) -> None:
        self.wanted, self.number, self.seen = wanted, number, 0

    def __call__(self, _journal: Journal, do: str, fields: dict[str, Any], written: bool) -> bool:
        if not self.wanted(do, fields):
            return False
        self.seen += 1
        return self.seen == self.number


def kills(bench: Bench, spec: dict[str, Any], wanted: Callable[[str, dict[str, Any]], bool]) -> int:
    """Kill a trial before and after each record that ``wanted`` picks, clean up; return how often."""
    number = 1
    while True:
        ran = trial(spec, KillAt(wanted, number))
        if ran.rc != -signal.SIGKILL:
            assert ran.status == "ok", ran.errors
            return number - 1
        try:
            bench.require_cleaned()
        except AssertionError as error:
            raise AssertionError(f"kill {number}: {error}") from None
        number += 1


def kill_pool(bench: Bench) -> None:
    assert kills(bench, bench.spec(), lambda do, f: f.get("id") == "pool:main") >= 12


def kill_rest(bench: Bench) -> None:
    ids = {"parameters", f"disk:{os.path.realpath(bench.disks[0])}"}
    assert kills(bench, bench.spec(), lambda do, f: f.get("id") in ids and do != "made") >= 12


def kill_parent(bench: Bench) -> None:
    with bench.tank() as parent:
        assert kills(bench, bench.parent_spec(parent), lambda do, f: f.get("id") == "datasets:main") >= 8


def next_trial_after_a_kill(bench: Bench) -> None:
    ran = trial(bench.spec(), at_measure)
    assert ran.rc == -signal.SIGKILL
    again = trial(bench.spec())
    assert (again.status, again.errors) == ("ok", ""), again.errors
    bench.require_untouched()


# -- hostile ----------------------------------------------------------------------------------------------


def held_snapshot(bench: Bench) -> None:
    with bench.killed():
        sh("zfs", "snapshot", f"{ZT}/db@mine")
        sh("zfs", "hold", "keep", f"{ZT}/db@mine")
        sh("zfs", "clone", "-o", "mountpoint=none", f"{ZT}/db@mine", f"{ZT}/clone")
        bench.require_refused(f"{ZT}/clone")
        sh("zfs", "destroy", f"{ZT}/clone")
        bench.require_refused(f"snapshot {ZT}/db@mine is not ours, and it is held")
        sh("zfs", "release", "keep", f"{ZT}/db@mine")
        sh("zfs", "bookmark", f"{ZT}/db@mine", f"{ZT}/db#mine")
        sh("zfs", "destroy", f"{ZT}/db@mine")
        bench.require_refused(f"bookmark {ZT}/db#mine is not ours")
        sh("zfs", "destroy", f"{ZT}/db#mine")


def strange_clones(bench: Bench) -> None:
    """A pool with a past has a clone of ours: what somebody does with it, or beside it."""
    age = {"fill": 0, "rewrites": 1, "snapshots": 1, "clones": 1, "write": 8192}
    with bench.killed(**{"layout.age": age}):
        clone, snapshot = f"{ZT}/ztune-clone-1-0", f"{ZT}/db@ztune-age-1"
        assert sh("zfs", "get", "-H", "-o", "value", "origin", clone).strip() == snapshot
        sh("zfs", "snapshot", f"{clone}@mine")
        bench.require_refused(f"snapshot {clone}@mine is not ours")
        sh("zfs", "destroy", f"{clone}@mine")
        sh("zfs", "clone", "-o", "mountpoint=none", snapshot, f"{ZT}/theirs")
        bench.require_refused(f"{ZT}/theirs")
        sh("zfs", "destroy", f"{ZT}/theirs")
        sh("zfs", "promote", clone)
        bench.require_refused(ZT)
        sh("zfs", "promote", f"{ZT}/db")
        sh("zfs", "set", "canmount=noauto", "mountpoint=/var/tmp/theirs", clone)
        sh("zfs", "mount", clone)
        bench.require_refused(f"{clone}: left alone: somebody mounted it at")
        sh("zfs", "unmount", clone)
        sh("zfs", "destroy", clone)
        sh("zfs", "snapshot", f"{ZT}/db@other")
        sh("zfs", "clone", "-o", "canmount=off", f"{ZT}/db@other", clone)
        bench.require_refused(f"snapshot {ZT}/db@other is not ours")
        sh("zfs", "destroy", clone)
        sh("zfs", "destroy", f"{ZT}/db@other")


def taken_datasets_and_names(bench: Bench) -> None:
    """What somebody made of our datasets and of our pool's name: of one dead trial, which clean leaves as it
    is each time that it refuses. To make it takes longer than all of these."""
    with bench.killed() as mnt:
        foreign_child(bench, mnt)
        replaced_dataset(bench)
        same_name(bench)  # last: clean finds the exported pool by its disks


def foreign_child(bench: Bench, mnt: Path) -> None:
    sh("zfs", "create", "-o", f"mountpoint=/{ZT}/mine", f"{ZT}/db/mine")
    (mnt / "mine/file").write_text("precious")
    # By inheritance it carries our properties already; now by its own hand too.
    bench.require_refused(f"this trial did not make {ZT}/db/mine")
    sh("zfs", "set", f"ztune:run={RUN}", f"ztune:trial={TRIAL}", f"ztune:state={STATE}", f"{ZT}/db/mine")
    bench.require_refused(f"this trial did not make {ZT}/db/mine")
    assert (mnt / "mine/file").read_text() == "precious"
    sh("zfs", "destroy", f"{ZT}/db/mine")


def replaced_dataset(bench: Bench) -> None:
    sh("zfs", "inherit", "ztune:trial", f"{ZT}/db")
    bench.require_refused(f"inherited from {ZT}", "set on itself")
    sh("zfs", "set", "ztune:trial=r-other-1", f"{ZT}/db")
    bench.require_refused('is "r-other-1" (local)')
    sh("zfs", "set", f"ztune:trial={TRIAL}", f"{ZT}/db")


def other_name(bench: Bench) -> None:
    with bench.killed():
        sh("zpool", "export", ZT)
        node = os.path.realpath(bench.disks[0]) + "1"
        log = os.path.realpath(bench.disks[1]) + "1"
        sh("zpool", "import", "-N", "-o", "cachefile=none", "-d", node, "-d", log, ZT, "renamed")
        bench.require_refused(f'pool {ZT}: left alone: somebody imported it as "renamed"')
        sh("zpool", "export", "renamed")
        # Under its new name in the labels it is not the pool of the journal.
        bench.require_refused('somebody renamed it to "renamed" and exported it')
        sh("zpool", "import", "-N", "-o", "cachefile=none", "-d", node, "-d", log, "renamed", ZT)


def same_name(bench: Bench) -> None:
    sh("zpool", "export", ZT)
    image = BASE / "same.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    properties = [f"ztune:run={RUN}", f"ztune:trial={TRIAL}", f"ztune:state={STATE}"]
    options = [word for text in properties for word in ("-O", text)]
    sh("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=none", *options, ZT, str(image))
    sh("zfs", "create", f"{ZT}/db")
    bench.require_refused(f"pool {ZT}: left alone: it has another guid")
    assert f"{ZT}/db" in sh("zfs", "list", "-H", "-o", "name")
    sh("zpool", "destroy", ZT)
    image.unlink()


def taken_name(bench: Bench) -> None:
    image = BASE / "same.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    sh("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=none", ZT, str(image))
    ran = trial(bench.spec())
    assert ran.rc == 1 and f'pool name "{ZT}" is taken on this host' in ran.errors, ran.errors
    sh("zpool", "destroy", ZT)
    image.unlink()
    bench.require_untouched()


def mounted_over(bench: Bench) -> None:
    with bench.killed() as mnt:
        point = str(mnt / "db")
        sh("mount", "-t", "tmpfs", "none", point)
        bench.require_refused("none (tmpfs) is mounted on it or below")
        sh("umount", point)
        sh("mount", "-t", "tmpfs", "none", f"{point}/data")
        bench.require_refused("none (tmpfs) is mounted on it or below")
        sh("umount", f"{point}/data")
        other = BASE / "bind"
        other.mkdir()
        sh("mount", "--bind", point, str(other))
        bench.require_refused(f"somebody mounted it at {other}")
        sh("umount", str(other))
        other.rmdir()


def disk_reused(bench: Bench) -> None:
    with bench.killed():
        sh("zpool", "destroy", ZT)
        node = os.path.realpath(bench.disks[1])
        wipe(node)
        sh("mkfs.ext4", "-q", "-F", node)
        bench.require_refused(
            f"disk {bench.disks[1]}: left alone: it holds an ext4 file system that is not ours"
        )
        fd = os.open(node, os.O_RDONLY)
        assert labels.filesystem(fd) is not None
        os.close(fd)
        wipe(node)
        sh("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=none", "theirs", node)
        bench.require_refused(f"disk {bench.disks[1]} is in use", 'the ZFS pool "theirs"')
        sh("zpool", "export", "theirs")
        bench.require_refused('it carries a label of the ZFS pool "theirs"')
        wipe(node)


def disks_in_use(bench: Bench) -> None:
    """What a trial must not take: a disk of a pool, imported or exported, and one with any content."""
    node = os.path.realpath(bench.disks[1])
    sh("zpool", "create", "-o", "cachefile=none", "-O", "mountpoint=none", "theirs", node)
    ran = trial(bench.spec())
    assert "has a partition table" in ran.errors or "is in use" in ran.errors, ran.errors
    part = {"kind": "disks", "disks": {"main": {"data": [[f"{node}1"]]}}}
    ran = trial(make_spec(STATE, part))
    assert f"disk {node}1 is in use" in ran.errors and '"theirs"' in ran.errors, ran.errors
    sh("zpool", "export", "theirs")
    ran = trial(make_spec(STATE, part))
    assert 'it holds a label of the ZFS pool "theirs" (exported)' in ran.errors, ran.errors
    sh("zpool", "import", "-N", "-o", "cachefile=none", "-d", f"{node}1", "theirs")
    sh("zpool", "destroy", "theirs")
    wipe(node)
    bench.require_untouched()


def hostile_parent(bench: Bench) -> None:
    with bench.tank() as parent:
        ran = trial(bench.parent_spec(parent), at_measure)
        assert ran.rc == -signal.SIGKILL, ran.errors
        ours = f"{parent}/ztune-{TRIAL}"
        # A copy of ours that carries our properties as received ones, beside and below.
        sh("zfs", "snapshot", "-r", f"{ours}@copy")
        for target in (f"{parent}/copy", f"{ours}/copy"):
            with subprocess.Popen(["zfs", "send", "-p", f"{ours}/db@copy"], stdout=subprocess.PIPE) as sender:
                subprocess.run(
                    ["zfs", "recv", "-u", "-x", "mountpoint", target], stdin=sender.stdout, check=True
                )
        bench.require_refused("is not ours")
        for name in (f"{ours}@copy", f"{ours}/db@copy", f"{ours}/copy@copy"):
            sh("zfs", "destroy", name)
        bench.require_refused(f"this trial did not make {ours}/copy")
        sh("zfs", "destroy", f"{ours}/copy")
        # Its parent renamed by the user, and the name taken by a dataset of the user's.
        sh("zfs", "rename", ours, f"{parent}/kept")
        sh("zfs", "create", "-o", f"ztune:run={RUN}", "-o", f"ztune:trial={TRIAL}", ours)
        bench.require_refused(f"dataset {ours}: left alone: it has another guid")
        sh("zfs", "destroy", ours)
        sh("zfs", "rename", f"{parent}/kept", ours)
        # Everything of the pool says that it is ours, by inheritance: it is not.
        sh("zfs", "set", f"ztune:run={RUN}", f"ztune:trial={TRIAL}", f"ztune:state={STATE}", "tank")
        ran = swept()
        assert ran.rc == 1 and "pool tank: left alone" in ran.errors, ran.errors
        for name in ("run", "trial", "state"):
            sh("zfs", "inherit", f"ztune:{name}", "tank")
        sh("zfs", "destroy", "-r", f"{parent}/copy")
        bench.require_cleaned()
    bench.require_untouched()


def without_journal(bench: Bench) -> None:
    """The state directory was lost: what says by its own properties that it is ours goes all the same."""
    ran = trial(bench.spec(), at_measure)
    assert ran.rc == -signal.SIGKILL
    journal = STATE / "state" / RUN / TRIAL / "journal.jsonl"
    text = journal.read_text()
    journal.unlink()
    sh("zfs", "snapshot", f"{ZT}/db@mine")
    bench.require_refused(f"snapshot {ZT}/db@mine is not ours")
    sh("zfs", "destroy", f"{ZT}/db@mine")
    ran = swept()
    assert ZT not in sh("zpool", "list", "-H", "-o", "name"), ran.errors
    # The settings are only in the journal.
    assert any("zfs_arc_max is" in e["text"] for e in ran.events if e["event"] == "warning"), ran.events
    assert not (STATE / "places" / RUN).exists()
    journal.parent.mkdir(mode=0o700, parents=True)
    journal.write_text(text)
    for made in (journal.parents[1] / home.LOCK, STATE / lock.STATE_MARKER):
        made.touch()
    bench.require_cleaned()


def old_or_missing(bench: Bench) -> None:
    """What this OpenZFS does not know is a sentence, before anything is made."""
    for change, sentence in (
        ({"layout.tunables": {"zfs_no_such_thing": 1}}, "tunable zfs_no_such_thing does not exist"),
        ({"layout.arc": 1 << 50}, "this host has"),
        ({"layout.arc": 16 << 20}, "the kernel's ARC takes 64M and more"),
    ):
        ran = trial(bench.spec(**change))
        assert sentence in ran.errors, ran.errors
    with bench.tank():
        missing = trial(bench.parent_spec("tank/no"))
        assert 'parent "tank/no" does not exist' in missing.errors, missing.errors
        flushes = trial(bench.spec(**{"layout.tunables": {"zfs_nocacheflush": 1}}))
        assert "the flushes of all pools that are imported on this host, tank" in flushes.errors, (
            flushes.errors
        )
    bench.require_untouched()


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    f.__name__: f
    for f in (
        *(whole_disks, whole_parent, whole_files_encrypted_and_volume, whole_ext4_on_the_same_disk),
        *(kill_pool, kill_rest, kill_parent, next_trial_after_a_kill),
        *(
            held_snapshot,
            strange_clones,
            taken_datasets_and_names,
            other_name,
            taken_name,
            mounted_over,
        ),
        *(disk_reused, disks_in_use, hostile_parent, without_journal, old_or_missing),
    )
}


def main(words: list[str]) -> None:
    BASE.mkdir(mode=0o711, exist_ok=True)
    disks, names = words[:2], words[2:] or list(SCENARIOS)
    bench = Bench(disks)
    for name in names:
        began = time.monotonic()
        error = ""
        try:
            SCENARIOS[name](bench)
        except Exception:
            error = traceback.format_exc()
        print(
            json.dumps({"name": name, "seconds": round(time.monotonic() - began, 1), "error": error}),
            flush=True,
        )
        if error:
            break  # what comes after would only meet what this one left


if __name__ == "__main__":
    main(sys.argv[1:])
