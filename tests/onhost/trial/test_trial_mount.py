"""Trials with OpenZFS in user space: whole ones, killed ones, and those whose mount dies. Not a stand-in."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import needs
import pytest
from mounted_trial import Host, at, clean_watched, run_watched
from trial_support import RUN, TRIAL, clean, run_trial

from ztune.errors import InputError
from ztune.onhost.events import Events
from ztune.onhost.host import mounted, mounts
from ztune.onhost.host.home import RunHome
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.onhost.host.zfs import Commands, Zfs
from ztune.onhost.jobs.beside import NAME
from ztune.onhost.trial import spec as specs
from ztune.onhost.trial.door import Door
from ztune.onhost.trial.journal import NAME as JOURNAL
from ztune.onhost.trial.journal import Journal
from ztune.onhost.trial.mount_store import MARKER
from ztune.onhost.trial.mounted_pools import MOUNTS, STORE

pytestmark = pytest.mark.skipif(bool(needs.mount()), reason=needs.mount())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    for pid in found.programs():
        os.kill(pid, signal.SIGKILL)
    for mount in reversed(mounted.all_ours()):
        if tmp_path in mount.point.parents:
            mounted.detach(mount.point)


def test_a_whole_trial_leaves_nothing(host: Host) -> None:
    ran = run_trial(host.spec())
    assert (ran.rc, ran.status, ran.errors) == (0, "ok", "")
    result = ran.result
    assert result["job"]["operations"] == 20 and all(c["ok"] for c in result["job"]["checks"])
    assert result["measure"]["pools"] == [["main", "zfs", ["data"]]]
    assert result["measure"]["datasets"] == [["main/db", "zfs"], ["main/log", "zfs"]]
    environment = result["environment"]
    assert environment["openzfs"]["library"] and environment["place"] == "mount"
    assert environment["mount"]["disks"] == "instant" and environment["mount"]["page_cache"] is False
    assert environment["pools"]["main"]["devices"] == [["data", str(host.disks / "disk-main-data-0-0.img")]]
    # Cold: it was mounted anew between the load and the measure; warm: it was not.
    assert sum("mounted by process" in e.get("text", "") for e in ran.events) == 2
    warm = run_trial(host.spec(settle="warm"))
    assert sum("mounted by process" in e.get("text", "") for e in warm.events) == 1
    host.require_untouched()


def _two_jobs(which: str, pause: float = 0.0) -> dict[str, Any]:
    first = {"name": "trial_job:Writer", "params": {"records": 5}}
    theirs = {"name": "trial_job:Writer", "params": {"records": 7, "pause": pause}}
    return {"name": NAME, "params": {"first": first, "neighbour": theirs, "which": which}}


def test_two_jobs_have_datasets_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path, neighbour=("data", "wal"))
    saved = tmp_path / "saved"
    ran = run_trial(host.spec(job=_two_jobs("both"), start={"kind": "keep", "save": str(saved)}))
    assert (ran.rc, ran.status, ran.errors) == (0, "ok", "")
    job = ran.result["job"]
    assert (job["operations"], job["details"]["neighbour"]["operations"]) == (5, 7)
    names = ran.result["environment"]["datasets"]
    assert sorted(names) == ["main/db", "main/log", "main/ztune-neighbour-data", "main/ztune-neighbour-wal"]
    host.require_untouched()
    # What was loaded for both serves each of them alone.
    ran = run_trial(host.spec(job=_two_jobs("neighbour"), start={"kind": "copy", "from": str(saved)}))
    assert (ran.status, ran.errors, ran.result["job"]["operations"]) == ("ok", "", 7)
    host.require_untouched()


def test_ctrl_c_ends_both_jobs(tmp_path: Path) -> None:
    host = Host(tmp_path, neighbour=("data", "wal"))
    ran = run_watched(
        host.spec(job=_two_jobs("both", pause=600)),
        at("measure", lambda pid: os.kill(pid, signal.SIGINT)),
    )
    assert ran.status == "stopped", ran.errors
    host.require_untouched()


def test_a_saved_state_is_copied_onto_a_mount(host: Host, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    ran = run_trial(host.spec(start={"kind": "keep", "save": str(saved)}))
    assert ran.status == "ok", ran.errors
    again = run_trial(host.spec(start={"kind": "copy", "from": str(saved)}))
    assert (again.status, again.errors) == ("ok", "")
    host.require_untouched()


def test_loaded_once(host: Host, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    first = run_trial(host.keeping(kept))
    assert (first.status, first.errors) == ("ok", "")
    # To load, after the copy, and cold for the measure.
    assert sum("mounted by process" in e.get("text", "") for e in first.events) == 3
    [pools] = kept.iterdir()
    before = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in pools.iterdir()}
    # A long name, too: the path of a socket has at most 107 bytes, a mount's store is not bound by that.
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    other = Host(deep, settings={"slog": "nvme", "data.logbias": "throughput"})
    again = run_trial(other.keeping(kept))
    assert (again.status, again.errors) == ("ok", "")
    assert sum("mounted by process" in e.get("text", "") for e in again.events) == 2
    assert all(c["ok"] for c in again.result["job"]["checks"])
    assert [class_ for class_, _ in again.result["environment"]["pools"]["main"]["devices"]] == [
        "data",
        "log",
    ]
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in pools.iterdir()} == before
    # Other records do lie otherwise.
    (tmp_path / "c").mkdir()
    third = Host(tmp_path / "c", settings={"data.recordsize": "8K"})
    assert run_trial(third.keeping(kept)).status == "ok"
    assert len(list(kept.iterdir())) == 2
    for one in (host, other, third):
        one.require_untouched()


def test_pools_that_others_could_have_written_are_not_begun_with(host: Host, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    assert run_trial(host.keeping(kept)).status == "ok"
    [pools] = kept.iterdir()
    pools.chmod(0o777)
    ran = run_trial(host.keeping(kept))
    assert ran.status == "failed" and "place.kept.folder: " in ran.errors
    host.require_untouched()


def test_data_that_does_not_fit_is_the_fault_of_the_disk(host: Host) -> None:
    ran = run_trial(host.spec(job={"name": "writer", "params": {"load": 300 << 20}}))
    assert ran.status == "failed" and "role data is larger than the disk" in ran.errors
    full = {"load": 300 << 20, "fail": "full"}
    ran = run_trial(host.spec(job={"name": "writer", "params": full}))
    assert ran.status == "failed" and "is full; take a larger disk" in ran.errors
    host.require_untouched()


@pytest.mark.parametrize("step", ["load", "measure"])
def test_a_mount_that_dies_fails_the_trial_and_says_so(host: Host, step: str) -> None:
    def kill(_pid: int) -> None:
        server = mounted.serving(host.disks)
        assert server is not None
        os.kill(server, signal.SIGKILL)

    params = {"load": 32 << 20, "records": 2000, "pause": 0.01}
    ran = run_watched(host.spec(job={"name": "writer", "params": params}), at(step, kill))
    assert (ran.status, ran.rc) == ("failed", 1)
    assert "ztune-mount, which holds the pools, was killed by SIGKILL" in ran.errors
    host.require_untouched()


def test_the_last_words_of_a_mount_are_told(host: Host) -> None:
    words = "OpenZFS stopped itself"
    # Dies by its own failed check when it is told to, as from a fault inside it.
    ran = run_watched(
        host.spec(job={"name": "writer", "params": {"records": 2000, "pause": 0.01}}),
        at("measure", lambda _pid: os.kill(mounted.serving(host.disks) or 0, signal.SIGABRT)),
    )
    assert ran.status == "failed" and words in ran.errors
    host.require_untouched()


def test_a_job_that_waits_for_ever_is_woken_when_the_mount_dies(host: Host) -> None:
    # The job's own process never touches the mount again, so that nothing but the watch tells.
    params = {"records": 1, "pause": 600}
    ran = run_watched(
        host.spec(job={"name": "writer", "params": params}),
        at("measure", lambda _pid: os.kill(mounted.serving(host.disks) or 0, signal.SIGKILL)),
    )
    assert ran.status == "failed" and "was killed by SIGKILL" in ran.errors
    host.require_untouched()


def test_a_program_that_cannot_mount_fails_the_trial_with_its_words(host: Host) -> None:
    ran = run_trial(host.spec(host.wrapper('echo "no such luck" >&2; exit 3')))
    assert ran.status == "failed" and "no such luck" in ran.errors
    # Once it works; the next time, in the settle step, it doesn't.
    once = f'if mkdir {host.folder}/once; then exec "$mount" "$@"; fi; echo "not again" >&2; exit 1'
    ran = run_trial(host.spec(host.wrapper(once)))
    assert ran.status == "failed" and ran.errors == "not again"
    missing = run_trial(host.spec(host.folder / "nothing"))
    assert missing.rc == 3 and "can't be run" in missing.errors
    host.require_untouched()


def test_a_stop_is_no_failure_and_leaves_nothing(host: Host) -> None:
    params = {"records": 2000, "pause": 0.01}
    ran = run_watched(
        host.spec(job={"name": "writer", "params": params}),
        at("measure", lambda pid: os.kill(pid, signal.SIGTERM)),
    )
    assert ran.status == "stopped" and "as was asked for" in ran.errors
    host.require_untouched()


def killed_then_cleaned(host: Host, number: int) -> bool:
    """Kill a trial at one moment and clean; whether the trial still ran then."""
    ran = run_trial(host.spec(), kill=number)
    if ran.rc != -signal.SIGKILL:
        assert ran.status == "ok", (number, ran.errors)
        return False
    cleaned = clean(host.state)
    assert (cleaned.rc, cleaned.errors) == (0, ""), (number, cleaned.errors)
    try:
        host.require_untouched()
    except AssertionError as error:
        raise AssertionError(f"after kill {number}: {error}") from None
    return True


# Records of the journal around the store's and the mounts' making, the settle step and the end: before a
# record is written for an even number, after it for an odd one.
@pytest.mark.parametrize("number", [7, 9, 11, 13, 22, 27, 31])
def test_a_trial_killed_at_a_step_is_cleaned(host: Host, number: int) -> None:
    assert killed_then_cleaned(host, number)


# Around the keeping of loaded pools.
@pytest.mark.parametrize("number", [17, 19, 20, 21, 22, 23, 25])
def test_pools_that_were_cut_while_they_were_kept_go(host: Host, tmp_path: Path, number: int) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    assert run_trial(host.keeping(kept), kill=number).rc == -signal.SIGKILL
    cleaned = clean(host.state)
    assert (cleaned.rc, cleaned.errors) == (0, "")
    # All of it, or nothing.
    assert not any(".partial-" in path.name for path in kept.iterdir())
    host.require_untouched()


@pytest.mark.long
def test_a_trial_killed_at_any_record_is_cleaned(host: Host) -> None:
    number = 2
    while killed_then_cleaned(host, number):
        number += 1
    assert number > 50
    host.require_untouched()


@pytest.mark.parametrize(
    "text",
    [
        # The trial is gone before the program mounts, while it does, and when all is mounted. The last two
        # run below a shell: what ends with the trial is the shell alone, and clean has to find the program.
        'kill -9 $PPID; sleep 0.2; exec "$mount" "$@"',
        'setsid "$mount" "$@" & sleep 0.05; kill -9 $PPID; wait',
        'setsid "$mount" "$@" & while ! [ -S "$4/control" ]; do sleep 0.02; done; kill -9 $PPID; wait',
    ],
    ids=["before", "while", "after"],
)
def test_a_trial_killed_while_it_mounts_is_cleaned(host: Host, text: str) -> None:
    ran = run_trial(host.spec(host.wrapper(text)))
    assert ran.rc == -signal.SIGKILL
    # What was on its way when the trial died comes up, or ends, by itself.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        cleaned = clean(host.state)
        if cleaned.rc == 0 and not host.programs():
            break
        time.sleep(0.2)
    assert (cleaned.rc, cleaned.errors) == (0, "")
    host.require_untouched()


def test_a_program_that_still_makes_its_pools_is_waited_for(host: Host) -> None:
    # It has the store by then, and nobody can ask it yet: it stands still until `clean` has come to it.
    until = 'until [ -e "$4/disk-main-data-0-0.img" ]; do :; done; kill -STOP $!'
    ran = run_trial(host.spec(host.wrapper(f'setsid "$mount" "$@" & {until}; kill -9 $PPID; wait')))
    assert ran.rc == -signal.SIGKILL
    stopped = [pid for pid in host.programs() if Path(f"/proc/{pid}/exe").resolve() == host.program.resolve()]

    def go_on(event: dict[str, Any], _pid: int) -> None:
        if event.get("text") == f"trial {TRIAL}":
            time.sleep(0.5)
            os.kill(stopped[0], signal.SIGCONT)

    cleaned = clean_watched(host.state, go_on)
    assert (cleaned.rc, cleaned.errors) == (0, "")
    host.require_untouched()


def test_a_program_that_takes_the_store_late_goes_with_it(host: Host) -> None:
    ran = run_trial(host.spec(host.wrapper("kill -9 $PPID")))
    assert ran.rc == -signal.SIGKILL
    home = RunHome(host.state, RUN)
    journal = Journal.open(home.believed / TRIAL / JOURNAL)
    door = Door(
        Zfs(Commands(Events(io.StringIO()))),
        run=RUN,
        trial=TRIAL,
        state=host.state,
        directory=home.places / TRIAL,
        home=home.believed / TRIAL,
    )
    things = dict(journal.things)
    journal.close()
    door.remove(things[MOUNTS])
    places = {name: Path(point) for name, point in things[MOUNTS].facts["places"].items()}
    Mount.start(host.program, host.engine, host.disks, places, MountOptions(disks="instant"))
    door.remove(things[STORE])
    assert not mounts.below(home.places, mounts.table())
    cleaned = clean(host.state)
    assert (cleaned.rc, cleaned.errors) == (0, "")
    host.require_untouched()


def dead_trial(host: Host) -> None:
    ran = run_watched(host.spec(), at("measure", lambda pid: os.kill(pid, signal.SIGKILL)))
    assert ran.rc == -signal.SIGKILL


def test_the_next_trial_of_a_run_undoes_the_last(host: Host) -> None:
    dead_trial(host)
    again = host.spec(trial=TRIAL + "-1")
    ran = run_trial(again)
    assert (ran.status, ran.errors) == ("ok", "")
    host.require_untouched()


def test_what_may_be_somebody_elses_is_left_alone(host: Host) -> None:
    dead_trial(host)
    point = host.state / "places" / RUN / TRIAL / "mnt" / "main" / "db"
    mounted.detach(point)  # dead
    subprocess.run(["mount", "-t", "tmpfs", "foreign", str(point)], check=True)
    try:
        refused = clean(host.state)
        assert refused.rc == 1 and f"foreign (tmpfs) at {point} is not ours" in refused.errors
    finally:
        subprocess.run(["umount", str(point)], check=True)
    store = host.stores / TRIAL
    marker = (store / MARKER).read_text()
    (store / MARKER).write_text(marker.replace('"token": "', '"token": "0'))
    refused = clean(host.state)
    assert refused.rc == 1 and "is that of another store" in refused.errors
    assert (store / "disks").is_dir()
    (store / MARKER).write_text(marker)
    (store / "disks" / "mine").write_text("precious")
    refused = clean(host.state)
    assert refused.rc == 1 and "disks/mine in it is no file of a store's" in refused.errors
    assert (store / "disks" / "mine").read_text() == "precious"
    (store / "disks" / "mine").unlink()
    assert (clean(host.state).rc, list(host.stores.iterdir())) == (0, [])
    host.require_untouched()


def test_a_place_that_does_not_fit_is_refused(host: Host) -> None:
    def parse(**changes: Any) -> specs.Spec:
        spec = host.spec()
        spec["place"] |= changes
        return specs.parse(json.dumps(spec))

    mounting = parse(notes=["a note"], page_cache=True).place.mounting
    assert mounting is not None and mounting.options.page_cache and mounting.notes == ("a note",)
    for changes, said in (
        ({"disks": "fast"}, '"fast" is not one of profile, instant'),
        ({"cache": 1}, "is not one of volatile, none, lazy"),
        ({"page_cache": "yes"}, "neither true nor false"),
        ({"program": "ztune-mount"}, "is not an absolute path"),
        ({"stores": "/a/../b"}, "is not an absolute path"),
        ({"engine": []}, "it has other datasets than the layout"),
        ({"engine": {"datasets": [{"name": "main/db"}]}}, "it has other datasets than the layout"),
        ({"notes": "x"}, "is not a list"),
        ({"extra": 1}, '"extra" is not a key here'),
    ):
        with pytest.raises(InputError, match=said.replace("/", "/")):
            parse(**changes)


@pytest.mark.parametrize("step", ["prepare", "load", "settle", "measure", "collect"])
def test_a_stop_is_heard_in_every_step(step: str, host: Host) -> None:
    """Also where what is cut fails for it, and its error takes the place of the interrupt."""
    spec = host.spec(None, **{"job.params": {"block": step}})

    def stop(pid: int) -> None:
        # The step has begun; what it waits for comes a moment later, and either is a stop.
        time.sleep(0.5)
        os.kill(pid, signal.SIGTERM)

    ran = run_watched(spec, at(step, stop))
    assert ran.status == "stopped", ran.errors
    assert ran.errors == "stopped before its end, as was asked for"
    host.require_untouched()
