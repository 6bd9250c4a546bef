"""The file of hosts for trials: what it says, and what is wrong with one, by file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_place import study
from invoked import invoke

from ztune.databases import registry
from ztune.errors import InputError
from ztune.places import named, rack
from ztune.places.placing import Placing
from ztune.places.rack import Rack
from ztune.runs import refusals
from ztune.runs.at_work import Hosts
from ztune.runs.plan import workload_job

GOOD = """
[[host]]
on = "ssh://db1"
pool = "tank/ztune"

[[host]]
on = "ssh://root@db2:2222"
disks = { main = ["/dev/sdb", "/dev/sdc"], "main.log" = ["/dev/nvme1n1"] }

[[host]]
on = "ssh://db3"
parents = { main = "tank/a", fast = "ssd/b" }

[[host]]
on = "ssh://db4"
files = "/srv/try"
size = "4G"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_each_host_has_its_own_way(tmp_path: Path) -> None:
    found = rack.read(written(tmp_path, GOOD))
    assert found.name == "fleet.toml"
    assert [place.name for place in found.places] == [
        "ssh://db1", "ssh://root@db2:2222", "ssh://db3", "ssh://db4",
    ]  # fmt: skip
    placings = [place.placing for place in found.places]
    assert placings[0].parents == {"*": "tank/ztune"}
    disks = {"main": {"data": ("/dev/sdb", "/dev/sdc"), "log": ("/dev/nvme1n1",)}}
    assert placings[1].disks == disks
    assert placings[2].parents == {"main": "tank/a", "fast": "ssd/b"}
    assert (placings[3].files, placings[3].size) == ("/srv/try", "4G")
    # What a run keeps of it is enough to go on with it.
    again = Rack.of({"name": found.name, **found.describe()})
    assert [(p.name, p.placing.to_json()) for p in again.places] == [
        (p.name, p.placing.to_json()) for p in found.places
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"fleet.toml: host is missing"),
        ("host = []", r"lists no host; write a table \[\[host\]\] for each"),
        ('[[host]]\npool = "tank"', r"fleet.toml:1: host\[0\].on is missing; write on = \"ssh://HOST\""),
        ('[[host]]\non = "db1"\npool = "t"', r'fleet.toml:1: host\[0\]: "db1" is not a host; write ssh://HOST'),
        ('[[host]]\non = "local"\npool = "t"', r'"local" is not a host; write ssh://HOST'),
        ('[[host]]\non = "ssh://a"', r"fleet.toml:1: host\[0\]: say where the pools go"),
        (
            '[[host]]\non = "ssh://a"\npool = "t"\nfiles = "/x"',
            r"host\[0\]: say where the pools go.*--pool or --parent and --files can't go together",
        ),
        (
            '[[host]]\non = "ssh://a"\npool = "t"\n\n[[host]]\non = "ssh://a"\npool = "u"',
            r"fleet.toml:5: host\[1\]: ssh://a is there twice; leave one of them out",
        ),
        (
            '[[host]]\non = "ssh://a"\ndisk = "/dev/sdb"',
            r'fleet.toml:3: "disk" is not a key of host\[0\]; its keys are on, pool, parents, disks, files',
        ),
        ('[[host]]\non = "ssh://a"\npool = 3', r"fleet.toml:3: host\[0\].pool is 3; input should"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rack.read(written(tmp_path, text))


def test_where_pools_go_is_said_in_the_file_alone(tmp_path: Path) -> None:
    path = str(written(tmp_path, GOOD))
    assert isinstance(named.make_all(path, None), Rack)
    with pytest.raises(InputError, match="says for each host where its pools go; leave --pool"):
        named.make_all(path, Placing(parents={"*": "tank"}))
    code, _, err = invoke("run", "fio", "--on", path, "--openzfs", "2.3")
    assert code == 2 and "leave --pool, --disk and the like out" in err
    code, _, err = invoke("tune", "fio", "--on", path)
    assert code == 2 and "names several hosts" in err


def test_a_host_is_named_where_a_layout_can_not_be_placed(tmp_path: Path) -> None:
    text = '[[host]]\non = "ssh://db1"\ndisks = { other = ["/dev/sdb"] }\n'
    hosts = Hosts(rack.read(written(tmp_path, text)))
    job = workload_job(registry.make("fio", {}))
    with pytest.raises(InputError, match=r'^ssh://db1: layout "base" of study .* needs 1 data disk'):
        refusals.check_there(hosts, hosts.all[0], study(), study().layout, job)
