"""``ztune run --on mount``: workloads on OpenZFS in user space, what it refuses, what a kill leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ztune.cli.main import ztune
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import mounted, mounts
from ztune.onhost.host.mounted import MountOptions
from ztune.places import mount_program
from ztune.places import named as places
from ztune.places.mount import MountPlace
from ztune.places.placing import Placing
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study
from ztune.study.loader import resolve_profiles

CODE = "from ztune.cli.main import main; main()"
SMALL = """
name = "small"
workload = "{workload}"
{parameters}
[layout]
[[layout.pool]]
name = "tank"
[[layout.pool.vdev]]
profile = "{profile}"
size = "2G"
[[layout.dataset]]
name = "tank/data"
roles = ["data", "wal"]
[axes]
"data.recordsize" = ["8K"]
"""
FIO = {"size": "4M", "numjobs": 1, "seconds": 1}
SQLITE = {"size": "8M", "seconds": 1, "warmup": 0, "clients": 2}


POOL = {"name": "tank", "vdev": [{"profile": "nvme"}]}
DATA = {"name": "tank/data", "roles": ["data"]}


def study_of(**changes: Any) -> Study:
    raw: dict[str, Any] = {
        "name": "small",
        "layout": {
            "pool": [{"name": "tank", "vdev": [{"profile": "ssd-sata"}]}],
            "dataset": [{"name": "tank/data", "roles": ["data"]}],
        },
        "axes": {"arc": ["128M"]},
    }
    raw["layout"].update(changes)
    return resolve_profiles(Study.model_validate(raw))


# -- without the program -----------------------------------------------------------------------------------


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a short name, as sockets need, that a database's own user may pass."""
    with tempfile.TemporaryDirectory(prefix="ztm-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        monkeypatch.setenv("ZTUNE_HOME", str(folder / "h"))
        yield folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pool": [{**POOL, "filesystem": "ext4"}]}, "OpenZFS and nothing else"),
        (
            {"dataset": [{**DATA, "volume": "1G", "filesystem": "ext4"}]},
            "a mount has file systems only",
        ),
        ({"dataset": [{**DATA, "encryption": "aes-256-gcm"}]}, "no encryption"),
        ({"arc": "1P"}, "more than half of this host's memory"),
    ],
)  # fmt: skip
def test_what_a_mount_cannot_do_is_refused(home: Path, changes: dict[str, Any], said: str) -> None:
    study = study_of(**changes)
    with pytest.raises(InputError, match=said) as error:
        MountPlace().check(study, study.layout)
    assert "\n" not in str(error.value)


def test_what_the_mounts_openzfs_lacks_is_refused_before_any_trial(home: Path) -> None:
    place: Any = MountPlace()
    place._program = SimpleNamespace(openzfs="2.1.11")
    study = study_of()
    place.check(study, study.layout)
    study = study_of(dataset=[{**DATA, "checksum": "blake3"}])
    with pytest.raises(
        InputError, match=r"checksum=blake3 needs OpenZFS 2\.2 or later; the mount has 2\.1\.11$"
    ):
        place.check(study, study.layout)


def test_what_a_layout_changes_and_a_mount_does_not_have_is_refused(home: Path) -> None:
    study = study_of()

    def changed(**changes: Any) -> Layout:
        return replace(study.layout, **changes)

    constant = changed(tunables={"zfs_vdev_aggregation_limit": 65536})
    (dataset,) = study.layout.datasets
    properties = {**dataset.properties, "dnodesize": "auto"}
    for layout in (constant, changed(datasets=(replace(dataset, properties=properties),))):
        try:
            MountPlace().check(study, layout)
        except InputError as error:
            assert "which a mount does not have; --on lab or --on local does" in str(error)
        else:
            pytest.fail(f"{layout} is taken")
    # In the base it is only noted: it is the same for every layout.
    base = study.model_copy(update={"layout": constant})
    MountPlace().check(base, base.layout)


def test_the_options_of_other_places_are_refused() -> None:
    for on, more, said in (
        ("mount", {"placing": Placing(files="/x")}, "leave --pool, --disk and --files out"),
        ("mount", {"dilation": 2.0}, "--dilation is for the lab"),
        ("local", {"openzfs": "2.3"}, "--openzfs is for the lab and a mount"),
        ("lab", {"mounting": MountOptions()}, "--disks and --page-cache are for --on mount"),
        ("local", {"placing": Placing(files="/x"), "mounting": MountOptions()}, "are for --on mount"),
        ("mountain", {}, "write lab, mount, local, ssh://HOST or a file"),
    ):
        with pytest.raises(InputError, match=said):
            places.make(on, **{"placing": None, **more})  # type: ignore[arg-type]


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _need_program()
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / ("x" * 80)))
    with pytest.raises(InputError, match="set ZTUNE_HOME to a shorter one"), MountPlace():
        pass


# -- with it -----------------------------------------------------------------------------------------------


def _need_program() -> None:
    if os.geteuid() != 0:
        pytest.skip("where trials go without root is another user's home; root's is tried here")
    try:
        mount_program.check()
    except MissingError as error:
        pytest.skip(str(error))


class Scene:
    """A study on small disks, a state directory of its own, and whether anything is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "t"
        self.study("fio", FIO)

    def study(self, workload: str, parameters: dict[str, Any], profile: str = "ssd-sata") -> None:
        listed = "\n".join(f"{k} = {json.dumps(v)}" for k, v in parameters.items())
        text = SMALL.format(workload=workload, parameters=f"[parameters]\n{listed}\n", profile=profile)
        (self.folder / "small.toml").write_text(text)

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(ztune, list(words), standalone_mode=False, catch_exceptions=True)

    def ok(self, *words: str) -> str:
        done = self.call(*words)
        if done.exception is not None:
            raise done.exception
        assert done.return_value in (0, None), done.output
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        code = f"import ztune.places.mount as m; m.STATE = {str(self.state)!r}; {CODE}"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def stores(self) -> Path:
        return self.folder / "h" / "scratch" / "stores"

    def server(self) -> int | None:
        """Return the process of the trial that is mounted just now."""
        for store in self.stores.glob("*/disks"):
            pid = mounted.serving(store)
            if pid is not None:
                return pid
        return None

    def left(self) -> list[str]:
        """Return what trials left behind."""
        found = [str(p) for p in self.stores.iterdir()] if self.stores.is_dir() else []
        found += [str(m.point) for m in mounts.table() if self.state in m.point.parents]
        found += [str(self.state)] if self.state.exists() else []
        return found + mounts.users(self.folder)


@pytest.fixture
def scene(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    _need_program()
    found = Scene(home)
    monkeypatch.chdir(home)
    monkeypatch.setattr("ztune.places.mount.STATE", str(found.state))
    yield found
    pid = found.server()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    for mount in reversed(mounted.all_ours()):
        if home in mount.point.parents:
            mounted.detach(mount.point)


def last() -> tuple[Run, list[Trial]]:
    with Store.open() as store:
        run = store.run("last")
        return run, store.trials(run.id)


INSTANT = ("--on", "mount", "--disks", "instant", "--blocks", "1")


def test_sqlite_runs_on_two_layouts(scene: Scene) -> None:
    scene.study("sqlite", SQLITE)
    shown = " ".join(scene.ok("run", "small.toml", *INSTANT, "--page-cache").split())
    assert "in user space, disks as fast as this machine, real time, with the kernel's page cache" in shown
    run, trials = last()
    assert [t.status for t in trials] == ["ok", "ok"]
    assert run.target == {
        **{"name": "mount", "kind": "mount", "accel": "none", "dilation": 1.0, "patience": 1.0},
        **{"disks": "instant", "cache": "volatile", "page_cache": True},
    }
    assert run.versions["openzfs"] == trials[0].openzfs_version and run.versions["ztune-mount"]
    page_8k = next(t for t in trials if t.layout_name == "data.recordsize=8K")
    assert page_8k.result is not None
    measure = page_8k.result["measure"]
    assert measure["zil"]["commits"] > 0 and measure["zil"]["bytes"] > 0
    assert measure["physical"]["flushes"] > 0 and measure["physical"]["write_bytes"] > 0
    assert measure["arc"]["hits"] > 0 and measure["txgs"] > 0
    assert measure["space"]["allocated"] > 8 << 20
    assert measure["cpu"]["mount_user_s"] + measure["cpu"]["mount_system_s"] > 0
    # The database was loaded once, and copied.
    assert {t.result["environment"]["start"] for t in trials if t.result} == {"copy"}
    scene.ok("report", run.id, "--out", "report.html")
    page = (scene.folder / "report.html").read_text()
    assert "OpenZFS in user space, behind FUSE" in page and "ZFS and FUSE in the mount took" in page
    assert "in user space" in scene.ok("recommend", run.id)
    assert scene.left() == []


def test_fio_on_a_disk_with_the_times_of_its_profile(scene: Scene) -> None:
    scene.study("fio", {**FIO, "fsync": 1, "rate_iops": 0, "rw": "randwrite"}, "hdd-7200")
    scene.ok("run", "small.toml", "--on", "mount", "--blocks", "1")
    _, trials = last()
    for trial in trials:
        assert trial.result is not None, trial.error
        result = trial.result
        (disk,) = result["measure"]["by_vdev"]
        assert (disk["pool"], disk["name"], disk["profile"]) == ("tank", "data-0/0", "hdd-7200")
        # One thread that syncs each write waits for the disk, whose arm moves. A busy host only adds to it.
        assert disk["busy_ms"] > 0 and result["job"]["per_second"] < 400
        causes = result["measure"]["by_cause"]
        physical = result["measure"]["physical"]
        assert sum(c["write_bytes"] for c in causes.values()) == physical["write_bytes"]
        assert sum(c["writes"] for c in causes.values()) == physical["writes"] == disk["writes"]
        probe = result["probes"]["mount"]
        assert [d["roles"] for d in probe["datasets"]] == [["data", "wal"]]
        assert probe["causes"]["zil"]["writes"] > 0 and "kstat" not in result["probes"]
    assert trials[0].series
    assert scene.left() == []


@pytest.mark.parametrize(
    "who",
    [
        "the trial and ztune",
        pytest.param("ztune", marks=pytest.mark.long),
        pytest.param("the mount", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_is_resumed_and_leaves_nothing(scene: Scene, who: str) -> None:
    scene.study("fio", {**FIO, "seconds": 3})
    process = scene.start("run", "small.toml", *INSTANT)
    deadline = time.monotonic() + 90
    while (server := scene.server()) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server is not None, process.poll()
    if who == "the mount":
        os.kill(server, signal.SIGKILL)
        assert process.wait(120) == 1
        _, trials = last()
        assert sorted(t.status for t in trials) == ["failed", "ok"]
        failed = next(t for t in trials if t.status == "failed")
        assert failed.error is not None and "was killed by SIGKILL" in failed.error
        assert scene.left() == []
    else:
        parent = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        if who == "the trial and ztune":
            os.kill(parent, signal.SIGSTOP)  # so that it can't tidy up when ztune is gone
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if who == "the trial and ztune":
            os.kill(parent, signal.SIGKILL)
        while (mounted_by := scene.server()) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mounted_by is None
        if who == "the trial and ztune":
            assert scene.left() != []
            shown = scene.ok("clean", "--on", "mount")
            assert "store" in shown and "--yes destroys it" in shown and scene.left() != []
            scene.ok("clean", "--on", "mount", "--yes")
            assert scene.left() == []
    run, _ = last()
    scene.ok("run", "--resume", run.id)
    run, trials = last()
    assert run.status == "done" and [t.status for t in trials] == ["ok", "ok"]
    assert scene.left() == []


def test_clean_up_needs_no_room_and_trials_do(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(total=100 << 30, used=100 << 30, free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert scene.ok("clean", "--on", "mount", "--yes") == "nothing is left on mount\n"
    done = scene.call("run", "small.toml", *INSTANT)
    assert isinstance(done.exception, ZtuneError)
    assert "are needed below" in str(done.exception) or "no room for the mounts' disks" in str(done.exception)
    assert scene.left() == []


def test_where_loaded_pools_are_kept_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(InputError, match="is no directory; make it first"):
        MountPlace.check_keeping(kept, cold=True)
    kept.mkdir(mode=0o700)
    MountPlace.check_keeping(kept, cold=True)
    with pytest.raises(InputError, match="add --caches cold"):
        MountPlace.check_keeping(kept, cold=False)
    kept.chmod(0o777)
    with pytest.raises(InputError, match="--saved: "):
        MountPlace.check_keeping(kept, cold=True)
