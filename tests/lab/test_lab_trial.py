"""Whole trials of fio on real kernel ZFS through the real trial program, in the lab's guest.

What the measure counts is held against what ``zpool``, the kernel, fio, ``zdb`` and the disks themselves
count; and a trial that is cut in the middle of the measure, in each of four ways, leaves nothing.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from guests import Resume

from ztune.databases.fio.workload import Fio
from ztune.disk import server
from ztune.errors import MissingError
from ztune.lab import Guest
from ztune.lab.wire import Frame
from ztune.places import bundle
from ztune.study import profiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WATCHED = Path(__file__).parents[1] / "support" / "trial_watched.py"
DISK = 1 << 30
KEEP = "/var/tmp/keep"
STATE = f"{KEEP}/state"
PATIENCE = 50.0
CLASSES = ("data", "log")


class Lab:
    """A guest with two shaped disks and one of its own that keeps the state directory."""

    def __init__(self, folder: Path, resume: Resume) -> None:
        self.folder = folder
        self._resume = resume
        self._turn: AbstractContextManager[Guest] | None = None
        self.pyz = f"/host{bundle.build().resolve()}"
        self.servers: dict[str, server.DiskServer] = {}
        self.disks: dict[str, str] = {}
        self.guest: Guest | None = None

    def up(self) -> Guest:
        """Start a guest with the disks; it finds them as the last one left them."""
        self.down()
        self._turn = self._resume()
        self.guest = guest = self._turn.__enter__()
        for class_, disk in self.servers.items():
            self.disks[class_] = guest.add_disk(disk.socket, f"trial-{class_}")
        guest.add_disk(self.folder / "keep.img", "trial-keep")
        return guest

    def down(self) -> None:
        """End the guest that is there, if any."""
        turn, self._turn, self.guest = self._turn, None, None
        if turn is not None:
            turn.__exit__(None, None, None)

    def mount(self, *, new: bool) -> None:
        """Mount the disk that keeps the state directory."""
        assert self.guest is not None
        make = "mkfs.ext4 -q -F /dev/disk/by-id/ztune-trial-keep; " if new else ""
        self.shell(f"{make}mkdir -p {KEEP}; mount /dev/disk/by-id/ztune-trial-keep {KEEP}")

    def shell(self, text: str) -> str:
        assert self.guest is not None
        return self.guest.run(["sh", "-euc", text], check=True, timeout=300).stdout.decode()

    def where_it_is(self) -> str:
        """What runs in the guest, what it waits for in the kernel, and what the kernel last said."""
        return self.shell(
            "ps -eo pid,ppid,stat,wchan:30,args | grep -v '\\['; dmesg | tail -n 30; "
            "for p in /proc/[0-9]*; do grep -qs '^State:.*D' $p/status && cat $p/comm $p/stack; done; true"
        )

    def program(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Run the trial program to its end; return its exit code and what it printed."""
        assert self.guest is not None
        done = self.guest.run(["python3", self.pyz, *words], timeout=600)
        return done.returncode, [json.loads(line) for line in done.stdout.decode().splitlines()]

    def spec(self, trial: str, params: dict[str, Any], probes: dict[str, Any]) -> dict[str, Any]:
        vdev = [{"class": c, "kind": "stripe", "disks": 1, "profile": "nvme"} for c in CLASSES]
        dataset = {
            "name": "main/db",
            "roles": ["data", "wal", "temp", "index", "backup", "archive", "source"],
            "properties": {"recordsize": "8K", "compression": "lz4"},
        }
        return {
            **{"format": "ztune-trial", "version": 1, "run": "r-lab", "trial": trial, "state": STATE},
            "place": {"kind": "disks", "disks": {"main": {c: [[self.disks[c]]] for c in CLASSES}}},
            "layout": {"arc": 64 << 20, "pool": [{"name": "main", "vdev": vdev}], "dataset": [dataset]},
            "job": {"name": "fio", "params": Fio(params).resolved()},
            "probes": probes,
            "patience": PATIENCE,
        }

    def begin(self, trial: str) -> Any:
        """Start a long trial and return its channel and lines, in the middle of its measure."""
        assert self.guest is not None
        job = {"rw": "randwrite", "size": "2M", "numjobs": 1, "rate_iops": 50, "seconds": 600, "fsync": 4}
        channel = self.guest.popen(["python3", self.pyz, "run"])
        channel.send(json.dumps(self.spec(trial, job, {"space": True})))
        lines = channel.lines()
        for line in lines:
            event = json.loads(line)
            assert event["event"] not in ("error", "end"), event
            # Progress of the measure comes from the job's run: fio is at work.
            if event.get("step") == "measure" and event["state"] == "progress":
                return channel, lines
        raise AssertionError(f"the trial ended before it measured: {channel.stderr_tail()}")

    def require_nothing_left(self) -> None:
        """All is as it was before the first trial."""
        assert self.shell(
            f"find {KEEP} -mindepth 1 -not -name lost+found; zpool list -H; pgrep -x fio || true; "
            "cat /sys/module/zfs/parameters/zfs_arc_max"
        ) == "0\n"  # fmt: skip
        for class_ in self.disks.values():
            assert self.shell(f"blkid -p {class_} || true; ls {class_}-part1 2>/dev/null || true") == ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, resume: Resume) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    made = Lab(folder, resume)
    try:
        profile = profiles.find("nvme")
        with (folder / "keep.img").open("wb") as file:
            file.truncate(256 << 20)
        for class_ in CLASSES:
            made.servers[class_] = server.start(
                profile, DISK, folder / f"{class_}.img", folder / f"{class_}.s"
            )
        made.up()
        made.mount(new=True)
        yield made
    except MissingError as error:
        pytest.skip(f"no shaped disks here: {error}")
    finally:
        made.down()
        for disk in made.servers.values():
            disk.stop()


@pytest.fixture(scope="module")
def watched(lab: Lab, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A whole trial with the probes on: its result, and what others counted in the same window.

    Without ``syscalls``: perf alone takes a minute for its summary under emulation;
    tests/onhost/probes has it. ``sizes`` with ``--long``: bpftrace takes half a minute to begin.
    """
    job = {"rw": "randrw", "rwmixread": 33, "size": "6M", "numjobs": 1, "rate_iops": 0, "seconds": 0}
    probes = dict.fromkeys(("disks", "iostat", "kstat", "txgs", "datasets", "cpu", "series"), True)
    probes |= dict.fromkeys(("space", "zdb"), True)
    if request.config.getoption("--long"):
        probes["sizes"] = True
    assert lab.guest is not None
    command = lab.guest.start(["python3", f"/host{WATCHED}", lab.pyz, f"/host{lab.folder}"])
    command.write(json.dumps(lab.spec("r-lab-0001", job, probes)).encode() + b"\n")
    text = {Frame.STDOUT: b"", Frame.STDERR: b""}
    found: dict[str, Any] = {"events": [], "probes": probes}
    # Of the whole and not of each silence: a command that hangs is told of each minute.
    until = time.monotonic() + 750
    while True:
        try:
            piece = command.read(max(0.0, until - time.monotonic()))
        except TimeoutError:
            command.signal(signal.SIGUSR1)
            said = lab.where_it_is() + command.read_stderr().decode()
            raise AssertionError(f"the trial hangs after {found['events'][-3:]}: {text}\n{said}") from None
        if piece is None:
            break
        frame, data = piece
        *lines, text[frame] = (text[frame] + data).split(b"\n")
        for line in lines:
            if frame is Frame.STDOUT:
                found["events"].append(json.loads(line))
            elif line.startswith(b"{"):
                look = json.loads(line)
                look["disks"] = {class_: disk.stats() for class_, disk in lab.servers.items()}
                found[look["name"]] = look
                (lab.folder / look["name"]).touch()
    assert command.wait() == 0, (found["events"][-5:], text)
    (found["result"],) = (e["result"] for e in found["events"] if e["event"] == "result")
    lab.require_nothing_left()
    return found


def moved(watched: dict[str, Any], pick: Any) -> Any:
    """Return after − before of what ``pick`` takes from each look."""
    return {key: value - pick(watched["before"])[key] for key, value in pick(watched["after"]).items()}


@pytest.mark.parametrize("class_", CLASSES)
def test_each_disk_s_counts_are_those_of_all_others(watched: dict[str, Any], class_: str) -> None:
    """Reads, writes, bytes and flushes of a device: to the last one."""
    (row,) = (r for r in watched["result"]["measure"]["by_vdev"] if r["class"] == class_)
    assert row["source"] == "vdev"
    mine = {key: row[key] for key in ("reads", "writes", "read_bytes", "write_bytes")}
    assert row["writes"] >= 60 and row["flushes"] >= 2
    # What zpool says of the vdev.
    nth = CLASSES.index(class_)

    def vdevs(look: dict[str, Any]) -> dict[str, int]:
        table: dict[str, dict[str, int]] = {}
        for line in look["vdevs"].splitlines():
            name, key, value = line.split("\t")
            table.setdefault(name, {})[key.replace("_ops", "s")] = int(value)
        (_root, *leaves) = table.values()
        return leaves[nth]

    assert moved(watched, vdevs) == mine

    def sizes(look: dict[str, Any]) -> dict[str, int]:
        columns = [0] * 14
        for line in look["sizes"].split("\n\n")[1 + nth].splitlines():
            words = line.split("\t")
            if len(words) == 15:
                columns = [have + int(word) for have, word in zip(columns, words[1:], strict=True)]
        # Alone and aggregated by kind: sync read, sync write, async read, async write, scrub, trim, rebuild.
        return {
            "reads": sum(columns[i] for i in (0, 1, 4, 5, 8, 9)),
            "writes": sum(columns[i] for i in (2, 3, 6, 7)),
        }

    assert moved(watched, sizes) == {"reads": mine["reads"], "writes": mine["writes"]}
    # What the kernel says of the disk: it counts each flush as a write too.
    kernel = moved(watched, lambda look: dict(enumerate(look["block"][class_])))
    assert (kernel[0] + kernel[1], kernel[2] * 512) == (mine["reads"], mine["read_bytes"])
    assert (kernel[4] + kernel[5], kernel[6] * 512) == (mine["writes"] + row["flushes"], mine["write_bytes"])
    assert kernel[15] == row["flushes"]
    # What reached the disk itself, outside the guest.
    keys = (*mine, "flushes")
    disk = moved(watched, lambda look: {key: look["disks"][class_][key] for key in keys})
    assert disk == mine | {"flushes": row["flushes"]}


def test_what_the_job_asked_for_is_what_fio_says(watched: dict[str, Any]) -> None:
    result = watched["result"]
    fio, measure = result["job"]["details"], result["measure"]
    assert measure["operations"] == result["job"]["operations"] == 768
    data = fio["roles"]["data"]
    assert measure["logical"] == {
        "reads": data["read"]["operations"],
        "read_bytes": fio["read_bytes"],
        "writes": data["write"]["operations"],
        "write_bytes": fio["write_bytes"],
        "source": "datasets",
    }
    assert measure["zil"]["commits"] == fio["syncs"]
    assert measure["zil"]["slog_bytes"] <= watched["result"]["measure"]["by_vdev"][1]["write_bytes"]
    # Cold: every read missed, and each block of 8 KiB was read once.
    assert measure["arc"]["demand_data_misses"] == data["read"]["operations"]
    assert measure["txgs"] >= 1 and measure["seconds"] >= result["job"]["seconds"]
    total = {key: sum(row[key] for row in measure["by_vdev"]) for key in measure["physical"]}
    assert measure["physical"] == total


def test_each_probe_agrees_with_the_measure(watched: dict[str, Any]) -> None:
    result = watched["result"]
    measure, probes = result["measure"], result["probes"]
    for row in probes["iostat"]["devices"]:
        (device,) = (r for r in measure["by_vdev"] if r["name"] == row["name"])
        # The probe's window is a little wider: it holds what the look beside it took.
        counts = {
            way: sum(sum(h.values()) for k, h in row["size_bytes"].items() if way in k)
            for way in ("read", "write")
        }
        assert counts["read"] >= device["reads"] and counts["write"] >= device["writes"]
        assert counts["write"] <= device["writes"] + 200
    assert {d["name"] for d in probes["disks"]["disks"]} == {"data-0/0", "log-0/0"}
    (dataset,) = probes["datasets"]["datasets"]
    assert dataset["nwritten"] == measure["logical"]["write_bytes"]
    assert probes["kstat"]["zil"]["zil_commit_count"] == measure["zil"]["commits"]
    assert probes["txgs"]["main"]["count"] >= measure["txgs"]
    rows = probes["txgs"]["main"]["rows"]
    assert len(rows) == probes["txgs"]["main"]["kept"] and all(row[0] for row in rows)
    # Two readings of a clock that goes on: the probe's window is around the measure's.
    assert 0 < measure["cpu"]["user_s"] <= probes["cpu"]["job"]["user_s"] + 0.01
    sent = {e["probe"] for e in watched["events"] if e["event"] == "series"}
    assert sent == {"disks", "arc", "datasets", "host"}
    if "sizes" in probes:
        (sizes,) = probes["sizes"]["datasets"]
        assert sizes["write_bytes"] == measure["logical"]["write_bytes"]
    elif "sizes" in watched["probes"]:
        assert "probe sizes is left out: bpftrace is missing" in result["warnings"]


def test_what_the_layout_does_not_say_of_access_times_is_off(watched: dict[str, Any]) -> None:
    assert watched["after"]["atime"] == "off"


def test_space_is_what_zdb_finds(watched: dict[str, Any]) -> None:
    measure, probes = watched["result"]["measure"], watched["result"]["probes"]
    space, found = measure["space"], probes["zdb"]["pools"]["main"]
    assert found["leaked"] is False
    # zdb walks the pool a transaction group later: its own blocks, and those it has not yet freed.
    assert space["allocated"] == pytest.approx(found["allocated"], abs=1 << 20)
    assert space["allocated"] == pytest.approx(sum(found["classes"].values()), abs=1 << 20)
    (dataset,) = space["by_dataset"]
    files = found["types"]["ZFS plain file"]
    assert dataset["used"] == pytest.approx(files["allocated"], rel=0.02)
    assert probes["space"]["data"] == {
        "files": 1,
        "logical": 6 << 20,
        "used": pytest.approx(files["allocated"], rel=0.01),
    }


@pytest.mark.long  # without a guest: test_stopped_in_order of test_trial_baseline
def test_a_lost_connection_ends_it_in_order(lab: Lab) -> None:
    channel, lines = lab.begin("r-lab-0002")
    channel.command.end_of_input()
    rest = [json.loads(line) for line in lines]
    assert rest[-1] == {"event": "end", "status": "stopped"}
    assert [e["text"] for e in rest if e["event"] == "error"] == ["stopped before its end, as was asked for"]
    assert channel.command.wait(120) == 1
    lab.require_nothing_left()


@pytest.mark.long  # test_lab_door's scenarios begin with such a kill and end with such a clean
def test_killed_in_the_measure_and_cleaned(lab: Lab) -> None:
    channel, _lines = lab.begin("r-lab-0003")
    channel.command.signal(signal.SIGKILL)
    assert channel.command.wait(120) != 0
    assert lab.shell("zpool list -H -o name") == "ztlab-main\n"
    rc, events = lab.program("clean", "--state", STATE, "--patience", f"{PATIENCE:g}")
    assert (rc, events[-1]) == (0, {"event": "end", "status": "ok"}), events
    lab.require_nothing_left()


@pytest.mark.long
def test_after_a_power_cut_another_boot_cleans(lab: Lab) -> None:
    """The disks lose what was in their caches, too: each is its own process, and sees its guest vanish."""
    lab.begin("r-lab-0004")
    assert lab.guest is not None
    lab.guest.cut()
    guest = lab.up()
    lab.mount(new=False)
    assert guest.run(["zpool", "list", "-H"], check=True).stdout == b""
    rc, (left,) = lab.program("list", "--state", STATE)
    assert rc == 0
    kinds = [thing["kind"] for thing in left["trials"][0]["things"]]
    assert kinds[0] == "parameters" and {"disk", "pool"} <= set(kinds)
    rc, events = lab.program("clean", "--state", STATE, "--patience", f"{PATIENCE:g}")
    assert (rc, events[-1]) == (0, {"event": "end", "status": "ok"}), events
    lab.require_nothing_left()
