"""What the door lets through, case by case, on a ZFS that answers as the real tools print (-Hp).

The same cases, and more, run on real ZFS in the lab; these say each rule by itself, and run anywhere.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ztune.errors import InputError, Refused, ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host import mounts, tunables
from ztune.onhost.host import zfs_versions as since
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.zfs import Commands, Value, Zfs, parse_get, parse_version
from ztune.onhost.trial import lifecycle
from ztune.onhost.trial.door import Door
from ztune.onhost.trial.journal import Journal, Thing
from ztune.onhost.trial.lock import RunLock

STATE = Path("/var/tmp/ztune")
MNT = STATE / "r-1/r-1-1/mnt"
LOCAL = {"ztune:run": ("r-1", "local"), "ztune:trial": ("r-1-1", "local")}


class FakeZfs(Commands):
    """Pools and datasets as dictionaries; destroys what it is told to, as ZFS would."""

    def __init__(self) -> None:
        self.said = io.StringIO()
        super().__init__(Events(self.said))
        self.pools: dict[str, dict[str, str]] = {}
        self.datasets: dict[str, dict[str, tuple[str, str]]] = {}
        self.busy = 0
        self.calls: list[list[str]] = []

    def add_pool(self, name: str, guid: str, comment: str) -> None:
        self.pools[name] = {"guid": guid, "comment": comment}
        self.add(name)

    def add(self, name: str, **more: tuple[str, str]) -> None:
        values = {
            "type": ("filesystem", "-"),
            "guid": (str(abs(hash(name)) % 10**9), "-"),
            "origin": ("-", "-"),
        }
        self.datasets[name] = {**values, **LOCAL, **{k.replace("_", ":"): v for k, v in more.items()}}

    def attempt(
        self, argv: Sequence[str], *, timeout: float = 120.0, quiet: bool = False
    ) -> tuple[int, str, str]:
        words = list(argv)
        self.calls.append(words)
        name = words[-1]
        if words[:2] == ["zpool", "list"]:
            return 0, "".join(f"{n}\t{p['guid']}\n" for n, p in self.pools.items()), ""
        if words[:2] == ["zpool", "get"]:
            if name not in self.pools:
                return 1, "", f"cannot open '{name}': no such pool\n"
            return 0, "".join(f"{name}\t{k}\t{v}\t-\n" for k, v in self.pools[name].items()), ""
        if words[:3] == ["zfs", "get", "-r"]:
            found = {
                n: v
                for n, v in self.datasets.items()
                if n == name or n.startswith((name + "/", name + "@", name + "#"))
            }
            if not found:
                return 1, "", f"cannot open '{name}': dataset does not exist\n"
            return (
                0,
                "".join(f"{n}\t{k}\t{v}\t{s}\n" for n, p in found.items() for k, (v, s) in p.items()),
                "",
            )
        if words[:2] == ["zfs", "get"]:
            rows = [(n, p[name][0]) for n, p in self.datasets.items() if name in p and p[name][1] == "local"]
            return 0, "".join(f"{n}\t{v}\n" for n, v in rows), ""
        if self.busy:
            self.busy -= 1
            return 1, "", f"cannot unmount '{name}': pool or dataset is busy\n"
        if words[:2] == ["zpool", "destroy"]:
            del self.pools[name]
            self.datasets = {n: v for n, v in self.datasets.items() if n.split("/")[0].split("@")[0] != name}
            return 0, "", ""
        if words[:2] == ["zfs", "destroy"]:
            if [n for n in self.datasets if n != name and n.startswith((name + "/", name + "@"))]:
                return 1, "", f"cannot destroy '{name}': filesystem has children\n"
            del self.datasets[name]
            return 0, "", ""
        raise AssertionError(words)


class Scene:
    """A trial's pool and its dataset below a parent, both as they were made."""

    def __init__(self) -> None:
        self.zfs = FakeZfs()
        self.mounts: list[mounts.MountInfo] = []
        self.door = Door(
            Zfs(self.zfs),
            run="r-1",
            trial="r-1-1",
            state=STATE,
            directory=STATE / "r-1/r-1-1",
            table=lambda: self.mounts,
        )
        self.zfs.add_pool("tank", "1", "-")
        self.zfs.datasets = {}
        self.zfs.add_pool("zt1-main", "77", self.door.token)
        self.zfs.add("zt1-main/db")
        for name in ("tank/p/ztune-r-1-1", "tank/p/ztune-r-1-1/db"):
            self.zfs.add(name)
        self.mount(f"{MNT}/zt1-main/db", "zt1-main/db")
        self.mount(f"{MNT}/main/db", "tank/p/ztune-r-1-1/db")
        self.pool = Thing(
            "pool:main",
            "pool",
            {
                "name": "zt1-main",
                "guid": "77",
                "datasets": ["zt1-main", "zt1-main/db"],
                "mountpoints": {"zt1-main/db": f"{MNT}/zt1-main/db"},
                "nodes": [],
            },
            made=True,
        )
        names = ["tank/p/ztune-r-1-1", "tank/p/ztune-r-1-1/db"]
        self.below = Thing(
            "datasets:main",
            "datasets",
            {
                "root": names[0],
                "names": names,
                "guids": {n: self.zfs.datasets[n]["guid"][0] for n in names},
                "mountpoints": {names[1]: f"{MNT}/main/db"},
            },
            made=True,
        )

    def mount(self, point: str, source: str, type: str = "zfs", root: str = "/") -> None:
        self.mounts.append(mounts.MountInfo(Path(point), root, type, source, (0, 40 + len(self.mounts))))

    def refused(self, thing: Thing) -> str:
        before = (dict(self.zfs.pools), dict(self.zfs.datasets))
        with pytest.raises(Refused) as caught:
            self.door.remove(thing)
        assert (self.zfs.pools, self.zfs.datasets) == before
        assert not [c for c in self.zfs.calls if c[1] in ("destroy", "export", "unmount")]
        return str(caught.value)


def test_what_is_ours_goes_and_nothing_else() -> None:
    scene = Scene()
    scene.door.remove(scene.pool)
    assert list(scene.zfs.pools) == ["tank"]
    scene.door.remove(scene.below)
    assert scene.zfs.datasets == {}
    destroys = [c for c in scene.zfs.calls if c[1] == "destroy"]
    assert destroys == [
        ["zpool", "destroy", "zt1-main"],
        ["zfs", "destroy", "tank/p/ztune-r-1-1/db"],
        ["zfs", "destroy", "tank/p/ztune-r-1-1"],
    ]
    # A second time there is nothing to do, and nothing is done.
    scene.door.remove(scene.pool)
    scene.door.remove(scene.below)
    assert len([c for c in scene.zfs.calls if c[1] == "destroy"]) == 3


@pytest.mark.parametrize("which", ["pool", "below"])
@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("/db@mine", {"userrefs": ("1", "-")}, "is not ours, and it is held"),
        ("/db@mine", {"clones": ("tank/c", "-"), "userrefs": ("0", "-")}, "and tank/c is a clone of it"),
        ("/db#mark", {}, "bookmark"),
        ("/db/mine", {}, "this trial did not make"),
        ("/db", {"ztune_run": ("r-1", "inherited from zt1-main")}, "inherited from zt1-main"),
        ("/db", {"ztune_trial": ("r-1-1", "received")}, "(received)"),
        ("/db", {"ztune_trial": ("r-1-2", "local")}, 'is "r-1-2" (local)'),
        ("/db", {"ztune_run": ("-", "-")}, "is not set"),
        ("/db", {"origin": ("tank/x@s", "-")}, "it is a clone of tank/x@s"),
        ("", {"ztune_run": ("r-1", "inherited from tank")}, "inherited from tank"),
    ],
)
def test_each_doubt_is_a_refusal(
    which: str, name: str, more: dict[str, tuple[str, str]], sentence: str
) -> None:
    scene = Scene()
    thing = scene.pool if which == "pool" else scene.below
    full = ("zt1-main" if which == "pool" else "tank/p/ztune-r-1-1") + name
    guid = scene.zfs.datasets.get(full, {}).get("guid", ("5", "-"))
    scene.zfs.add(full, **{**more, "guid": guid})
    assert sentence in scene.refused(thing)


def aged(**more: tuple[str, str]) -> tuple[Scene, str]:
    """A trial's pool with a snapshot of its own, which the journal names."""
    scene, name = Scene(), "zt1-main/db@ztune-age-1"
    scene.pool.facts["snapshots"] = [name]
    scene.zfs.add(name, **{"userrefs": ("0", "-"), "clones": ("", "-"), **more})
    return scene, name


def test_snapshots_that_a_trial_took_go_with_its_pool() -> None:
    scene, _name = aged()
    scene.door.remove(scene.pool)
    assert list(scene.zfs.pools) == ["tank"] and not [n for n in scene.zfs.datasets if "@" in n]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"userrefs": ("1", "-")}, "is not ours, and it is held"),
        ({"clones": ("tank/c", "-")}, "and tank/c is a clone of it"),
        ({"ztune_run": ("r-1", "inherited from zt1-main")}, "inherited from zt1-main"),
        ({"ztune_trial": ("r-1-2", "local")}, 'is "r-1-2" (local)'),
        ({"ztune_trial": ("-", "-")}, "is not set"),
    ],
)
def test_each_doubt_of_a_snapshot_is_a_refusal(more: dict[str, tuple[str, str]], sentence: str) -> None:
    scene, _name = aged(**more)
    assert sentence in scene.refused(scene.pool)


def test_a_snapshot_that_the_journal_does_not_name_is_somebody_elses() -> None:
    scene, name = aged()
    scene.pool.facts["snapshots"] = ["zt1-main/db@ztune-age-2"]
    assert f"snapshot {name} is not ours" in scene.refused(scene.pool)
    # What is below a dataset of the user's has no past, whatever a journal says.
    scene, other = Scene(), "tank/p/ztune-r-1-1/db@ztune-age-1"
    scene.zfs.add(other, userrefs=("0", "-"), clones=("", "-"))
    scene.below.facts["snapshots"] = [other]
    assert f"snapshot {other} is not ours" in scene.refused(scene.below)


def cloned(snapshot: str = "zt1-main/db@ztune-age-1", **more: tuple[str, str]) -> tuple[Scene, str]:
    """The same, with a clone of that snapshot, which the journal names too."""
    clone = "zt1-main/ztune-clone-1-0"
    scene, name = aged(clones=(clone, "-"))
    scene.pool.facts["clones"] = {clone: name}
    scene.zfs.add(clone, **{"origin": (snapshot, "-"), **more})
    return scene, clone


def test_clones_that_a_trial_made_go_with_its_pool() -> None:
    scene, _clone = cloned()
    scene.door.remove(scene.pool)
    assert list(scene.zfs.pools) == ["tank"] and not [n for n in scene.zfs.datasets if "clone" in n]


@pytest.mark.parametrize(
    ("snapshot", "more", "sentence"),
    [
        # Somebody destroyed ours and made one of another snapshot under its name.
        ("zt1-main/db@theirs", {}, "it is not the clone of zt1-main/db@ztune-age-1 that this trial made"),
        # Somebody promoted it: it is no clone any more, and our dataset is one.
        ("-", {}, "it is not the clone of zt1-main/db@ztune-age-1 that this trial made"),
        ("zt1-main/db@ztune-age-1", {"ztune_trial": ("r-1-2", "local")}, 'is "r-1-2" (local)'),
        ("zt1-main/db@ztune-age-1", {"ztune_run": ("r-1", "inherited from zt1-main")}, "inherited from"),
        ("zt1-main/db@ztune-age-1", {"ztune_run": ("-", "-")}, "is not set"),
    ],
)
def test_each_doubt_of_a_clone_is_a_refusal(
    snapshot: str, more: dict[str, tuple[str, str]], sentence: str
) -> None:
    scene, _clone = cloned(snapshot, **more)
    assert sentence in scene.refused(scene.pool)
    assert "zt1-main" in scene.zfs.pools


def test_a_clone_that_the_journal_does_not_name_is_somebody_elses() -> None:
    scene, clone = cloned()
    theirs = "zt1-main/theirs"
    scene.zfs.datasets["zt1-main/db@ztune-age-1"]["clones"] = (f"{clone},{theirs}", "-")
    assert f"and {theirs} is a clone of it" in scene.refused(scene.pool)
    # Elsewhere in the pool under our mark, but made by nobody that the journal knows of.
    scene, clone = cloned()
    scene.zfs.add("zt1-main/ztune-clone-2-0", origin=("zt1-main/db@ztune-age-1", "-"))
    assert "this trial did not make zt1-main/ztune-clone-2-0" in scene.refused(scene.pool)
    # What somebody hung on our clone: a snapshot, a dataset, a mount.
    for more in ("@theirs", "/theirs"):
        scene, clone = cloned()
        scene.zfs.add(clone + more)
        assert clone + more in scene.refused(scene.pool)
    scene, clone = cloned()
    scene.mount("/mnt/copy", clone)
    assert f"{clone}: left alone: somebody mounted it at /mnt/copy" in scene.refused(scene.pool)
    # Our dataset itself was made a clone of something.
    scene, clone = cloned()
    scene.zfs.datasets["zt1-main/db"]["origin"] = (f"{clone}@promoted", "-")
    assert f"it is a clone of {clone}@promoted" in scene.refused(scene.pool)
    # Below a dataset of the user's there are none of ours, whatever a journal says.
    scene = Scene()
    scene.zfs.add("tank/p/ztune-r-1-1/clone", origin=("tank/p@s", "-"))
    scene.below.facts["clones"] = {"tank/p/ztune-r-1-1/clone": "tank/p@s"}
    assert "this trial did not make tank/p/ztune-r-1-1/clone" in scene.refused(scene.below)


def test_another_pool_under_our_name_and_ours_under_another() -> None:
    scene = Scene()
    scene.zfs.pools["zt1-main"]["guid"] = "78"
    assert "another guid" in scene.refused(scene.pool)
    scene = Scene()
    scene.zfs.pools["mine"] = scene.zfs.pools.pop("zt1-main")
    assert 'somebody imported it as "mine"' in scene.refused(scene.pool)
    scene = Scene()
    scene.zfs.pools["zt1-main"]["comment"] = "my pool"
    assert 'its comment is "my pool"' in scene.refused(scene.pool)


def test_a_dataset_in_the_place_of_ours_and_ours_renamed() -> None:
    scene = Scene()
    scene.zfs.datasets["tank/p/ztune-r-1-1"]["guid"] = ("4", "-")
    assert "another guid" in scene.refused(scene.below)
    scene = Scene()
    for suffix in ("", "/db"):
        scene.zfs.datasets[f"tank/q/ztune-r-1-1{suffix}"] = scene.zfs.datasets.pop(
            f"tank/p/ztune-r-1-1{suffix}"
        )
    assert 'renamed it to "tank/q/ztune-r-1-1"' in scene.refused(scene.below)


def test_a_dataset_whose_pool_is_exported_is_said_not_taken_for_destroyed() -> None:
    """`ztune clean --yes` said that all of it was gone, and the dataset came back with its pool."""
    scene = Scene()
    del scene.zfs.pools["tank"]
    scene.zfs.datasets = {}
    scene.door.remove(scene.below)
    assert "pool tank is not imported on this host; once it is, `ztune clean`" in scene.zfs.said.getvalue()
    destroyed = Scene()
    destroyed.zfs.datasets = {}
    destroyed.door.remove(destroyed.below)
    assert "not imported" not in destroyed.zfs.said.getvalue()


@pytest.mark.parametrize(
    ("point", "source", "sentence"),
    [
        (f"{MNT}/zt1-main/db", "none", "is mounted on it or below"),
        (f"{MNT}/zt1-main/db/data", "/dev/sdb1", "is mounted on it or below"),
        (f"{MNT}/zt1-main/db", "zt1-main/db", "2 file systems are mounted"),
        ("/home/mine", "zt1-main/db", "somebody mounted it at /home/mine"),
    ],
)
def test_mounts(point: str, source: str, sentence: str) -> None:
    scene = Scene()
    scene.mount(point, source, "zfs" if source.startswith("zt") else "tmpfs")
    assert sentence in scene.refused(scene.pool)


def test_busy_is_tried_again_and_then_said() -> None:
    scene = Scene()
    scene.zfs.busy = 1
    scene.door.remove(scene.pool)
    assert "zt1-main" not in scene.zfs.pools
    [told] = [
        event for line in scene.zfs.said.getvalue().splitlines() if (event := json.loads(line)).get("waits")
    ]
    assert told["text"] == "pool zt1-main is busy, and tried again for a while"
    scene = Scene()
    scene.zfs.busy = 10**6
    scene.door._patience = 0.01
    with pytest.raises(ZtuneError, match=r"pool zt1-main: zpool destroy failed: .*busy"):
        scene.door.remove(scene.pool)


def test_a_journal_moved_to_another_state_directory_opens_no_door(tmp_path: Path) -> None:
    held = RunLock(tmp_path, "r-1")
    held.acquire()
    folder = tmp_path / "state/r-1/r-1-1"
    folder.mkdir()
    Journal.create(folder / "journal.jsonl", run="r-1", trial="r-1-1", token="ztune:other", about={}).close()
    left = lifecycle.undo(held, "r-1-1", Zfs(FakeZfs()), patience=1, progress=lambda share, text: None)
    held.release()
    assert left and "its journal is another trial's" in left[0]
    assert (folder / "journal.jsonl").exists()


def test_files_are_removed_by_name_only(tmp_path: Path) -> None:
    scene = Scene()
    folder = tmp_path / "r-1/r-1-1"
    folder.mkdir(parents=True)
    (tmp_path / "outside").write_text("x")
    (folder / "main-data-0-0").symlink_to(tmp_path / "outside")
    thing = Thing("files", "files", {"dir": str(folder), "names": ["main-data-0-0"]})
    with pytest.raises(Refused, match="it is not the file that this trial made"):
        scene.door.remove(thing)
    (folder / "main-data-0-0").unlink()
    (folder / "main-data-0-0").write_bytes(b"")
    scene.door.remove(thing)
    assert (tmp_path / "outside").read_text() == "x"
    assert list(tmp_path.iterdir()) == [tmp_path / "outside"]
    # A directory that was replaced by a link to another is not followed.
    (tmp_path / "r-1").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/main-data-0-0").write_text("x")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="it is not the directory that this trial made"):
        scene.door.remove(thing)
    assert (tmp_path / "elsewhere/main-data-0-0").exists()


def test_files_are_known_by_their_inodes(tmp_path: Path) -> None:
    folder = tmp_path / "r-1/r-1-1"
    folder.mkdir(parents=True)
    path = folder / "main-data-0-0"
    path.touch(0o600)
    found = path.stat()

    def thing(device: int, inode: int, boot: str) -> Thing:
        facts = {"dir": str(folder), "names": [path.name], "inodes": {path.name: [device, inode]}}
        return Thing("files", "files", {**facts, "made_run": False}, made=True, boot=boot)

    door = Scene().door
    for device, inode, boot in (
        (found.st_dev, found.st_ino + 1, boot_id()),
        (found.st_dev + 1, found.st_ino, boot_id()),
        (found.st_dev, found.st_ino + 1, "another boot"),
    ):
        with pytest.raises(Refused, match="another file has taken its place"):
            door.remove(thing(device, inode, boot))
    # After a reboot the disk may have another number.
    door.remove(thing(found.st_dev + 1, found.st_ino, "another boot"))
    assert list(tmp_path.iterdir()) == [tmp_path / "r-1"], "the run's directory was there before"


class Kernel:
    """The module's parameters, with the ARC's rules of arc_tuning_update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, low: int, high: int) -> None:
        self.values = {
            "zfs_arc_max": "0",
            "zfs_arc_min": "0",
            "zfs_txg_timeout": "5",
            "zfs_max_recordsize": "1048576",
        }
        self.low, self.high, self.memory = low, high, 64 << 30
        monkeypatch.setattr(tunables, "read", self.values.get)
        monkeypatch.setattr(tunables, "write", self.write)
        monkeypatch.setattr(tunables, "arc_limits", lambda: (self.low, self.high))

    def write(self, name: str, value: str) -> None:
        self.values[name] = value
        low, high = int(self.values["zfs_arc_min"]), int(self.values["zfs_arc_max"])
        if low and 32 << 20 <= low <= self.high:
            self.low = low
        if high and 64 << 20 <= high < self.memory and high > self.low:
            self.high = high

    def snapshot(self) -> tuple[dict[str, str], int, int]:
        return dict(self.values), self.low, self.high


@pytest.mark.parametrize("arc", [64 << 20, 1 << 30, 16 << 30])
@pytest.mark.parametrize("cut", range(8))
def test_the_arc_is_put_back_from_wherever_it_was_cut(
    monkeypatch: pytest.MonkeyPatch, arc: int, cut: int
) -> None:
    kernel = Kernel(monkeypatch, 2 << 30, 32 << 30)
    before = kernel.snapshot()
    plan = tunables.plan(arc, {"zfs_txg_timeout": 30}, (2, 3, 2)) if arc < _memory() else None
    if plan is None:
        pytest.skip("this host has less memory")
    writes = 0

    def write(name: str, value: str) -> None:
        nonlocal writes
        if writes == cut:
            raise KeyboardInterrupt
        writes += 1
        kernel.write(name, value)

    monkeypatch.setattr(tunables, "write", write)
    try:
        tunables.apply(plan)
        assert (kernel.low, kernel.high) == (arc, arc)
    except KeyboardInterrupt:
        pass
    monkeypatch.setattr(tunables, "write", kernel.write)
    assert tunables.restore(plan) == []
    assert kernel.snapshot() == before


def _memory() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_parameter_that_somebody_else_changed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, 2 << 30, 32 << 30)
    plan = tunables.plan(64 << 20, {"zfs_txg_timeout": 30}, (2, 3, 2))
    tunables.apply(plan)
    kernel.values["zfs_txg_timeout"] = "60"
    scene = Scene()
    thing = Thing("parameters", "parameters", plan, boot=boot_id())
    scene.door.remove(thing)  # not refused: that would be for ever, and a journal is kept for what is refused
    assert "tunable zfs_txg_timeout stays 60: somebody set it" in scene.zfs.said.getvalue()
    assert kernel.values["zfs_txg_timeout"] == "60"
    assert (kernel.low, kernel.high) == (2 << 30, 32 << 30)
    # After a reboot the module has its own values: nothing to put back.
    kernel.values["zfs_txg_timeout"] = "5"
    before = kernel.snapshot()
    scene.door.remove(Thing("parameters", "parameters", plan, boot="another boot"))
    assert kernel.snapshot() == before


@pytest.mark.parametrize(
    ("name", "value", "version", "sentence"),
    [
        (
            "compression",
            "zstd-3",
            "0.8.4",
            "compression=zstd-3 needs OpenZFS 2.0 or later; this host has 0.8.4",
        ),
        ("checksum", "blake3", "2.1.11-1+deb12u1", "needs OpenZFS 2.2 or later; this host has 2.1.11"),
        ("direct", "always", "2.2.7", "needs OpenZFS 2.3 or later"),
        ("prefetch", "none", "2.2.3", "prefetch=none needs OpenZFS 2.2.4 or later; this host has 2.2.3"),
        ("redundant_metadata", "some", "2.1.6", "needs OpenZFS 2.1.7"),
        ("recordsize", "4M", "2.1.11", "after zfs_max_recordsize is raised to 16777216"),
    ],
)
def test_an_old_zfs_is_told_with_the_version_that_knows(
    name: str, value: str, version: str, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        since.check_property(name, value, parse_version(version), 1 << 20)
    assert sentence in str(caught.value)


def test_a_new_zfs_is_not() -> None:
    for name, value in (
        ("compression", "zstd-3"),
        ("checksum", "blake3"),
        ("recordsize", "1M"),
        ("direct", "always"),
    ):
        since.check_property(name, value, (2, 3, 2), 16 << 20)
    since.check_property("prefetch", "none", (2, 2, 4), 16 << 20)


def test_a_parameter_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch, 2 << 30, 32 << 30)
    with pytest.raises(InputError, match=r"tunable l2arc_exclude_special needs OpenZFS 2\.1\.6 or later"):
        tunables.plan(64 << 20, {"l2arc_exclude_special": 1}, (2, 1, 5))
    with pytest.raises(InputError, match="tunable zfs_nothing does not exist"):
        tunables.plan(64 << 20, {"zfs_nothing": 1}, (2, 3, 2))
    with pytest.raises(InputError, match="the kernel's ARC takes 64M and more"):
        tunables.plan(16 << 20, {}, (2, 3, 2))


def test_tables_as_the_tools_print_them() -> None:
    text = "tank/a b\tztune:run\tr-1\tinherited from tank\ntank/a b\tguid\t5\t-\nshort line\n"
    assert parse_get(text) == {
        "tank/a b": {"ztune:run": Value("r-1", "inherited from tank"), "guid": Value("5", "-")}
    }
    mount = "36 35 0:29 / /mnt/a\\040b rw,relatime shared:1 - zfs tank/a\\040b rw,xattr\n"
    assert mounts.parse(mount) == [mounts.MountInfo(Path("/mnt/a b"), "/", "zfs", "tank/a b", (0, 29))]
    assert parse_version("zfs-2.3.2-2~bpo12+2") == (2, 3, 2)
    assert parse_version("") == ()


def test_what_a_thing_left_still_uses_is_left(tmp_path: Path) -> None:
    scene = Scene()
    journal = Journal.create(tmp_path / "j", run="r-1", trial="r-1-1", token=scene.door.token, about={})
    folder = tmp_path / "r-1" / "r-1-1"
    folder.mkdir(parents=True)
    (folder / "disk").write_bytes(b"x")
    journal.make("files", "files", dir=str(folder), names=["disk"])
    facts: Mapping[str, Any] = {**scene.pool.facts, "uses": ["files"]}
    journal.make("pool:main", "pool", **facts)
    scene.zfs.add("zt1-main/db@mine")
    left = lifecycle.teardown(journal, scene.door, lambda share, text: None)
    assert len(left) == 2 and "files: left alone, as pool:main still uses it" in left
    assert (folder / "disk").exists()
    del scene.zfs.datasets["zt1-main/db@mine"]
    again = Journal.open(tmp_path / "j")
    assert list(again.things) == ["files", "pool:main"]
    scene.door.directory = scene.door.home = tmp_path / "gone"
    assert lifecycle.teardown(again, scene.door, lambda share, text: None) == []
    assert not folder.exists() and "zt1-main" not in scene.zfs.pools


def test_trials_that_come_and_go_at_once_leave_no_state_directory(tmp_path: Path) -> None:
    """One removes it as the last one there, while another finds it and begins."""
    tmp_path.chmod(0o755)
    state = tmp_path / "state"

    def come_and_go(run: str) -> None:
        for _ in range(50):
            held = RunLock(state, run)
            assert held.acquire()
            held.release()

    several = [threading.Thread(target=come_and_go, args=(f"r-{n}",)) for n in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert not state.exists()
