"""The same past in a replay and on a mount: free space is as full and as fragmented."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import engine_build
import pytest
from mount_ground import Mounted, spec

from ztune.onhost.age import FILLER, FILLER_PROPERTIES
from ztune.onhost.host import mounted
from ztune.onhost.layout import Dataset
from ztune.onhost.trial.age import Aging
from ztune.onhost.trial.pools import Filled, Made, Pools
from ztune.study import generic
from ztune.study.layout import with_settings

pytestmark = pytest.mark.timeout(600)

MIB = 1 << 20
SIZE, DISK = 24 * MIB, 512 * MIB


class OneMount:
    """What an aging asks of a trial's pools, of a mount."""

    def __init__(self, ground: Mounted, datasets: tuple[Dataset, ...]) -> None:
        self.ground = ground
        self.made = [Made(d, d.name, ground.places[d.name], d.pool) for d in datasets]

    def end_group(self) -> None:
        self.ground.sync()

    def filled(self) -> dict[str, Filled]:
        (pool,) = mounted.ask(self.ground.mount.store, "stats", 60)["pools"]
        return {"tank": Filled(pool["size"], pool["allocated"], pool.get("fragmentation"))}

    def snapshot(self, name: str) -> None:
        mounted.ask(self.ground.mount.store, f"snapshot {name}", 60)

    def clone(self, snapshot: str, number: int) -> None:
        mounted.ask(self.ground.mount.store, f"clone {snapshot} {number}", 60)


# The last has what the others have.
@pytest.mark.parametrize(
    ("snapshots", "clones"),
    [*(pytest.param(n, 0, marks=pytest.mark.long) for n in (0, 1)), (1, 1)],
)
def test_a_mount_ages_as_a_replay_does(
    own_mount: Callable[..., Mounted], tmp_path: Path, snapshots: int, clones: int
) -> None:
    if not engine_build.ENGINE.is_file():
        pytest.skip("the engine is not built: `make build`")
    filler = {"name": f"tank/{FILLER}", "properties": FILLER_PROPERTIES, "filler": True}
    data: dict[str, Any] = {"name": "tank/data", "properties": {"recordsize": "8K", "compression": "off"}}
    ground = own_mount({**spec(disk=DISK), "datasets": [data, filler]})
    place = ground.places["tank/data"] / "data"
    place.mkdir()
    content = random.Random(3).randbytes(SIZE)
    (place / "file").write_bytes(content)
    layout = with_settings(
        generic.build({"data"}).layout,
        {
            "data.recordsize": "8K",
            "age": f"fill 60% rewrites 2 snapshots {snapshots} clones {clones} write 8K",
        },
    )
    pools = OneMount(ground, (*layout.datasets, *layout.fillers()))
    here = Aging(layout, cast(Pools, pools), {"data": place}, 1, lambda text, share: None).run()
    assert (place / "file").read_bytes() == content

    pool = engine_build.content(tmp_path / "noise.bin")
    replayed = engine_build.spec(
        pool, size=SIZE, properties={"recordsize": "8K"}, disk=DISK,
        age={"fill": 60, "rewrites": 2, "snapshots": snapshots, "clones": clones},
    )  # fmt: skip
    replayed["datasets"].append(filler)
    replayed["files"][0]["rewrite"] = {"write": 8192, "in_order": False, "commits": True}
    there = engine_build.replay(tmp_path, replayed, engine_build.Ops())["age"]
    assert (here["rewritten"], here["commits"]) == (there["rewritten"], there["commits"])
    mine, theirs = here["pools"][0], there["pools"][0]
    assert mine["size"] == theirs["size"] and abs(mine["capacity"] - theirs["capacity"]) <= 1
    assert abs(mine["allocated"] - theirs["allocated"]) < 2 * MIB
    assert abs(mine["fragmentation"] - theirs["fragmentation"]) <= 6, (mine, theirs)
