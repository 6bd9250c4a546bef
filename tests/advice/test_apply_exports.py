"""Exports: valid without ZFS, nothing in them escapes its quotes, and they say the same as the plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from zfs_machine import MAPPING, Machine, recommended

from ztune.advice import exports
from ztune.advice.host import Host, read
from ztune.advice.plan import build
from ztune.study.layout import parse_layout

CHANGES = {"data.recordsize": "16K", "data.compression": "zstd-3", "wal.logbias": "throughput"}


def run(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.sh"
    path.write_text(script)
    return subprocess.run(["sh", str(path), *words], capture_output=True, text=True, timeout=60, check=False)


def test_script_for_existing_datasets_does_what_apply_does(machine: Machine, tmp_path: Path) -> None:
    recommendation = recommended(CHANGES)
    plan = build(recommendation, MAPPING, read(Host(), MAPPING.values()))
    script = exports.shell(recommendation, MAPPING, plan)
    shown = run(script, tmp_path)
    assert shown.returncode == 0 and "nothing was changed" in shown.stderr
    assert shown.stdout.splitlines() == [" ".join(s.command) for s in plan.settings]
    assert machine.changes() == []
    assert run(script, tmp_path, "--yes").returncode == 0
    assert machine.changes() == [" ".join(s.command) for s in plan.settings]
    assert machine.local("tank/pg")["recordsize"] == "16384"
    for setting in plan.settings:
        assert f"#   {' '.join(setting.undo)}" in script
    assert run(script, tmp_path, "--help").returncode == 0
    assert run(script, tmp_path, "tank").returncode == 2


def test_a_script_for_one_host_sets_nothing_on_another(machine: Machine, tmp_path: Path) -> None:
    recommendation = recommended(CHANGES)
    live = read(Host(), MAPPING.values())
    script = exports.shell(recommendation, MAPPING, build(recommendation, MAPPING, live))
    assert f"# For {live.host}, and for these datasets alone" in script
    # The last one that is to be changed: all are looked at before the first change.
    machine.change(lambda s: s["datasets"]["tank/pg/wal"].update(guid="77"))
    assert run(script, tmp_path).returncode == 0
    done = run(script, tmp_path, "--yes")
    assert done.returncode == 1 and done.stdout == ""
    assert "nothing was changed: tank/pg/wal is not the dataset that was compared" in done.stderr
    assert "(its guid is 77, not 3)" in done.stderr
    machine.change(lambda s: s["datasets"].pop("tank/pg/wal"))
    assert "(its guid is none, not 3)" in run(script, tmp_path, "--yes").stderr
    assert machine.changes() == []


def test_exports_name_what_changes_below(machine: Machine) -> None:
    recommendation = recommended({"data.recordsize": "16K"})
    plan = build(recommendation, {"data": "tank/pg"}, read(Host(), ["tank/pg"]))
    (sentence,) = [text for target in plan.targets for text in target.following if "tank/pg/dump" in text]
    assert sentence.startswith("tank/pg/dump inherits and changes with it: recordsize (now 128K)")
    for export in (exports.shell, exports.ansible):
        said = export(recommendation, {"data": "tank/pg"}, plan).replace("\n# ", " ")
        assert sentence in said


def test_script_without_a_live_system_sets_everything(no_zfs: None, tmp_path: Path) -> None:
    script = exports.shell(recommended(CHANGES), MAPPING, None)
    assert "guid" not in script
    lines = run(script, tmp_path).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["tank/pg", "tank/pg/wal"]
    assert "recordsize=16K compression=zstd-3 logbias=latency sync=standard" in lines[0]
    assert "logbias=throughput" in lines[1] and "atime=off" in lines[1]


def test_script_without_datasets_creates_them(no_zfs: None, tmp_path: Path) -> None:
    script = exports.shell(recommended({"data.volume": "8G", "wal.recordsize": "1M"}), {}, None)
    lines = run(script, tmp_path, "tank/new").stdout.splitlines()
    assert lines[0].startswith("zfs create -s -V 8589934592 -o compression=lz4")
    assert "-o volblocksize=16K" in lines[0] and "recordsize" not in lines[0]
    assert lines[1] == "mkfs.ext4 /dev/zvol/tank/new/data"
    assert "-o recordsize=1M" in lines[2]


def test_what_is_set_unseen_weakens_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg"].update(local={"sync": "always", "checksum": "blake3"}))
    machine.change(lambda s: s["datasets"]["tank/pg/wal"].update(local={"sync": "disabled"}))
    done = run(exports.shell(recommended(CHANGES), MAPPING, None), tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    assert machine.local("tank/pg")["sync"] == "always" and machine.local("tank/pg")["checksum"] == "blake3"
    assert machine.local("tank/pg")["recordsize"] == "16384"
    assert "# sync of tank/pg stays always, which protects more" in done.stdout
    # The promise beside it rests on this one.
    assert machine.local("tank/pg/wal")["sync"] == "standard"
    asked = json.loads(exports.as_json(recommended(CHANGES), MAPPING, None))["datasets"][0]
    assert asked["properties"]["sync"] == "standard" and asked["stays"]["sync"] == ["always"]


def test_one_below_does_not_take_what_weakens_the_one_above_after_it(
    machine: Machine, tmp_path: Path
) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg"].update(local={"sync": "always"}))
    machine.change(lambda s: s["datasets"]["tank/pg/wal"].update(local={}))
    recommendation, turned = recommended({"wal.sync": "disabled"}), {"wal": "tank/pg", "data": "tank/pg/wal"}
    script = exports.shell(recommendation, turned, None)
    assert run(script, tmp_path, "--yes").returncode == 0
    assert machine.local("tank/pg")["sync"] == "disabled"
    assert machine.local("tank/pg/wal").get("sync") == "standard"
    zfs = [task["community.general.zfs"] for task in tasks(exports.ansible(recommendation, turned))[1::2]]
    assert [one["name"] for one in zfs] == ["tank/pg", "tank/pg/wal"]  # type: ignore[index]
    # Each host names the datasets of a role of Ansible's: what weakens comes first, wherever it is.
    of_role = tasks(exports.ansible_role(recommendation, {})["tasks/main.yml"])
    zfs = [task["community.general.zfs"] for task in of_role if "community.general.zfs" in task]
    assert "ztune_datasets.wal" in zfs[0]["name"]  # type: ignore[index]


def test_what_weakens_says_that_those_below_take_it_unseen() -> None:
    recommendation = recommended({"data.sync": "disabled"})
    for text in (exports.shell(recommendation, MAPPING, None), exports.ansible(recommendation, MAPPING)):
        said = text.replace("\n# ", " ")
        assert "Datasets below tank/pg that are not named here take sync=disabled from it" in said
        assert "below tank/pg/wal" not in said


def test_ansible_weakens_nothing() -> None:
    found = tasks(exports.ansible(recommended(CHANGES), MAPPING))
    look, change = found[0], found[1]
    assert look["ansible.builtin.command"]["argv"][5] == "sync,checksum"  # type: ignore[index]
    properties = change["community.general.zfs"]["extra_zfs_properties"]  # type: ignore[index]
    for there, sync, checksum in (
        (["on", "standard"], "standard", "on"),
        (["blake3", "always"], "always", "blake3"),
        (["off", "disabled"], "standard", "on"),
    ):
        said = {"ztune_there_0": {"stdout_lines": there}}
        assert jinja2.Template(properties["sync"]).render(said) == sync
        assert jinja2.Template(properties["checksum"]).render(said) == checksum


@pytest.mark.parametrize("change", [{"data.prefetch": "none"}, {"data.secondarycache": "metadata"}])
def test_what_is_set_unseen_for_one_does_not_reach_those_below(
    machine: Machine, tmp_path: Path, change: dict[str, str]
) -> None:
    (name,) = (key.removeprefix("data.") for key in change)
    recommendation = recommended(change)
    assert run(exports.shell(recommendation, MAPPING, None), tmp_path, "--yes").returncode == 0
    assert machine.local("tank/pg")[name] == change[f"data.{name}"]
    assert machine.local("tank/pg/wal")[name] == "all"
    beside = exports.shell(recommendation, {**MAPPING, "wal": "tank/wal"}, None)
    assert f"{name}=all" not in beside
    # A role's datasets are named by each host.
    role = tasks(exports.ansible_role(recommendation, {})["tasks/main.yml"])
    zfs = [t["community.general.zfs"] for t in role if "community.general.zfs" in t]
    assert zfs[1]["extra_zfs_properties"][name] == "all"  # type: ignore[index]


def tasks(text: str) -> list[dict[str, object]]:
    found = yaml.safe_load(text)
    assert isinstance(found, list) and all(isinstance(t, dict) and "name" in t for t in found)
    return found


def test_ansible_for_existing_datasets() -> None:
    found = tasks(exports.ansible(recommended({**CHANGES, "tunable.zfs_txg_timeout": 10}), MAPPING))
    zfs = [t["community.general.zfs"] for t in found if "community.general.zfs" in t]
    assert [z["name"] for z in zfs] == ["tank/pg", "tank/pg/wal"]  # type: ignore[index]
    properties = zfs[0]["extra_zfs_properties"]  # type: ignore[index]
    # Texts, so that off is no boolean; bytes, which is what the module compares with.
    assert properties["atime"] == "off" and properties["recordsize"] == "16384"
    assert all(isinstance(v, str) for v in properties.values())
    checks = [t for t in found if "ansible.builtin.command" in t]
    assert len(checks) == 2 and all(t["changed_when"] is False for t in checks)
    (line,) = [t["ansible.builtin.lineinfile"] for t in found if "ansible.builtin.lineinfile" in t]
    assert line["line"] == "options zfs zfs_txg_timeout=10"  # type: ignore[index]
    (now,) = [t for t in found if "ansible.builtin.shell" in t]
    assert now["when"] == "(ztune_zfs_txg_timeout.content | b64decode | trim) != '10'"


@pytest.mark.parametrize(("changes", "given"), [(CHANGES, False), ({"data.copies": "2"}, True)])
def test_what_is_set_unseen_takes_no_copies_away(changes: dict[str, Any], given: bool) -> None:
    recommendation = recommended(changes)
    script = exports.shell(recommendation, MAPPING, None)
    (line,) = [one for one in script.splitlines() if one.startswith("run") and one.endswith(" tank/pg")]
    task = exports.ansible(recommendation, MAPPING).partition('index on tank/pg"')[2].partition("wal on")[0]
    asked = json.loads(exports.as_json(recommendation, MAPPING, None))["datasets"][0]["properties"]
    by_hand = exports.shell(recommendation, {}, None).partition("#   zfs set")[2]
    for text in (line, task, " ".join(asked), by_hand.partition("\n")[0]):
        assert ("copies" in text) is given, text
        assert "sync" in text
    # Comments are broken into lines.
    assert "where sync=always" in script.replace("\n# ", " ")


def test_ansible_for_new_datasets() -> None:
    pools = [{"name": n, "vdev": [{"profile": "nvme"}]} for n in ("tank", "fast")]
    datasets = [{"name": "tank/data", "roles": ["data"]}, {"name": "fast/wal", "roles": ["wal"]}]
    found = tasks(exports.ansible(recommended({"data.volume": "8G"}, pool=pools, dataset=datasets), {}))
    zfs = [t["community.general.zfs"] for t in found]
    assert [z["name"] for z in zfs] == ["{{ ztune_root_tank }}/data", "{{ ztune_root_fast }}/wal"]  # type: ignore[index]
    assert zfs[0]["extra_zfs_properties"]["volsize"] == str(8 << 30)  # type: ignore[index]
    assert zfs[0]["extra_zfs_properties"]["volblocksize"] == "16384"  # type: ignore[index]


def test_hostile_names_stay_inside(tmp_path: Path) -> None:
    recommendation = recommended(CHANGES).model_copy(update={"layout_name": 'x"\n- rm: -rf\n$(touch owned)'})
    assert len(tasks(exports.ansible(recommendation, MAPPING))) == 4
    run(exports.shell(recommendation, MAPPING, None), tmp_path)
    assert not (Path.cwd() / "owned").exists() and not (tmp_path / "owned").exists()


DIRECT = {**CHANGES, "data.direct": "disabled"}


@pytest.mark.parametrize("version", ["2.1.11-1", "2.3.2-1"])
def test_a_property_that_an_openzfs_lacks_and_acts_by_is_left_out(
    machine: Machine, tmp_path: Path, version: str
) -> None:
    machine.change(lambda s: s.update(version=version))
    done = run(exports.shell(recommended(DIRECT), MAPPING, None), tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    assert ("direct=disabled" in done.stdout) == (version > "2.3") == ("direct" in machine.local("tank/pg"))
    assert machine.local("tank/pg")["recordsize"] == "16384"
    shown = run(exports.shell(recommended(DIRECT), {}, None), tmp_path, "tank")
    assert shown.returncode == 0 and ("-o direct=disabled" in shown.stdout) == (version > "2.3")
    plan = build(recommended(DIRECT), MAPPING, read(Host(), MAPPING.values()))
    assert ("direct" in [s.name for s in plan.settings]) == (
        version > "2.3" and "direct" not in machine.local("tank/pg")
    )


def test_where_no_host_was_asked_all_properties_are_shown(no_zfs: None, tmp_path: Path) -> None:
    for mapping, words in ((MAPPING, ()), ({}, ("tank/new",))):
        shown = run(exports.shell(recommended(DIRECT), mapping, None), tmp_path, *words)
        assert shown.returncode == 0 and "direct=disabled" in shown.stdout


def test_ansible_asks_for_a_property_that_an_openzfs_may_lack() -> None:
    for mapping in (MAPPING, {}):
        look, *others = tasks(exports.ansible(recommended(DIRECT), mapping))
        assert look["register"] == "ztune_has_direct" and "before 2.3" in str(look["name"])
        apart = [t for t in others if "when" in t]
        assert {t["when"] for t in apart} == {"'invalid property' not in ztune_has_direct.stderr"}
        # The log's dataset lies below the data's, where it would inherit that.
        found = [t["community.general.zfs"]["extra_zfs_properties"] for t in apart]  # type: ignore[index]
        assert found == [{"direct": value} for value in ("disabled", "standard")[: len(mapping) or 1]]
        rest = [t["community.general.zfs"] for t in others if "community.general.zfs" in t and t not in apart]
        assert rest and not any("direct" in one["extra_zfs_properties"] for one in rest)  # type: ignore[index]


def test_json(machine: Machine) -> None:
    recommendation = recommended(CHANGES)
    plan = build(recommendation, MAPPING, read(Host(), MAPPING.values()))
    data = json.loads(exports.as_json(recommendation, MAPPING, plan))
    assert data["format"] == "ztune-apply" and data["version"] == 1
    assert parse_layout(data["layout"]).hash == data["layout_hash"]
    first = data["plan"]["targets"][0]
    assert first["dataset"] == "tank/pg"
    assert first["settings"][0]["command"] == "zfs set recordsize=16K tank/pg"
    assert first["settings"][0]["undo"] == "zfs inherit recordsize tank/pg"
    assert data["plan"]["after"] == "nothing-acknowledged"
    assert json.loads(exports.as_json(recommendation, {}, None))["plan"] is None


def test_ansible_compares_guids_before_the_first_change_and_right_before_each(machine: Machine) -> None:
    recommendation = recommended(DIRECT)
    live = read(Host(), MAPPING.values())
    plan = build(recommendation, MAPPING, live)
    text = exports.ansible(recommendation, MAPPING, plan)
    said = text.replace("\n# ", " ")
    assert f"For {live.host}, and for these datasets alone, by their guids: tank/pg 2, tank/pg/wal 3." in said
    found = tasks(text)

    def guid_of(task: dict[str, Any]) -> tuple[str, str] | None:
        argv = task.get("ansible.builtin.command", {}).get("argv", [])
        if "guid" not in argv:
            return None
        register = task["register"]
        same = jinja2.Environment().compile_expression(task["failed_when"])
        for guid in ("2", "3"):
            if not same(**{register: {"rc": 0, "stdout": f"{guid}\n"}}):
                assert same(**{register: {"rc": 1, "stdout": f"{guid}\n"}})
                assert same(**{register: {"rc": 0, "stdout": f"{guid}{guid}"}})
                assert same(**{register: {"rc": 0, "stdout": ""}})
                assert task["check_mode"] is False and task["changed_when"] is False
                return argv[-1], guid
        raise AssertionError(task)

    assert [guid_of(task) for task in found[:2]] == [("tank/pg", "2"), ("tank/pg/wal", "3")]
    sets = [i for i, task in enumerate(found) if "community.general.zfs" in task]
    assert len(sets) == 4  # direct apart, since an OpenZFS may lack it
    for i in sets:
        name = found[i]["community.general.zfs"]["name"]  # type: ignore[index]
        assert (guid_of(found[i - 1]) or "")[0] == name
    # Nothing is known of hosts that were not looked at.
    assert "guid" not in exports.ansible(recommendation, MAPPING)
    assert "guid" not in "".join(exports.ansible_role(recommendation, MAPPING).values())


def test_a_guid_that_is_none_is_no_part_of_an_expression(machine: Machine) -> None:
    machine.change(lambda s: s["datasets"]["tank/pg"].update(guid="2' or true or '{{ 1 }}"))
    recommendation = recommended(CHANGES)
    plan = build(recommendation, MAPPING, read(Host(), MAPPING.values()))
    first, *_ = tasks(exports.ansible(recommendation, MAPPING, plan))
    failed = "ztune_first_0.rc != 0 or (ztune_first_0.stdout | trim) != 'not known'"
    assert first["failed_when"] == failed and "{{" not in str(first)


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_ansible_sets_nothing_on_another_dataset_of_that_name(
    machine: Machine, tmp_path: Path, when: str
) -> None:
    recommendation = recommended(CHANGES)
    plan = build(recommendation, MAPPING, read(Host(), MAPPING.values()))
    found = tasks(exports.ansible(recommendation, MAPPING, plan))
    state = os.environ["FAKE_ZFS"]
    swap: dict[str, object] = {
        "name": "somebody makes the dataset anew",
        "ansible.builtin.command": {"argv": ["sed", "-i", 's/"guid": "3"/"guid": "77"/', state]},
    }
    last = max(i for i, task in enumerate(found) if "community.general.zfs" in task)
    found.insert(0 if when == "before" else last - 1, swap)
    plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": found}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
    before = machine.local("tank/pg/wal")
    done = subprocess.run(
        ["ansible-playbook", str(tmp_path / "play.yml")], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "tank/pg/wal is the dataset that was compared: its guid is 3" in done.stdout
    assert ("recordsize" in machine.local("tank/pg")) == (when == "meanwhile")
    assert machine.local("tank/pg/wal") == before


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook")
@pytest.mark.parametrize("compared", [False, True])
def test_ansible_does_it_and_a_second_run_changes_nothing(
    machine: Machine, tmp_path: Path, compared: bool
) -> None:
    recommendation = recommended(CHANGES)
    plan = build(recommendation, MAPPING, read(Host(), MAPPING.values())) if compared else None
    (tmp_path / "tasks.yml").write_text(exports.ansible(recommendation, MAPPING, plan))
    (tmp_path / "play.yml").write_text(
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n"
        "  tasks:\n    - ansible.builtin.import_tasks: tasks.yml\n"
    )
    for changed in (2, 0):
        done = subprocess.run(
            ["ansible-playbook", str(tmp_path / "play.yml")], capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"changed={changed} " in done.stdout
    assert machine.local("tank/pg")["recordsize"] == "16384"
    assert machine.local("tank/pg/wal")["logbias"] == "throughput"


def test_a_role_names_its_datasets_by_a_variable(no_zfs: None) -> None:
    role = exports.ansible_role(recommended({**CHANGES, "tunable.zfs_txg_timeout": 10}), MAPPING)
    assert yaml.safe_load(role["defaults/main.yml"]) == {
        "ztune_datasets": {"data": "tank/pg", "wal": "tank/pg/wal"}
    }
    found = tasks(role["tasks/main.yml"])
    assert "ansible.builtin.assert" in found[0]
    zfs = [t["community.general.zfs"] for t in found if "community.general.zfs" in t]
    assert [z["name"] for z in zfs] == ["{{ ztune_datasets.data }}", "{{ ztune_datasets.wal }}"]  # type: ignore[index]
    plain = tasks(exports.ansible(recommended({**CHANGES, "tunable.zfs_txg_timeout": 10}), MAPPING))
    assert len(found) == len(plain) + 1
    assert yaml.safe_load(exports.ansible_role(recommended(CHANGES), {})["defaults/main.yml"]) == {
        "ztune_datasets": {}
    }
    assert yaml.safe_load(role["meta/main.yml"])["galaxy_info"]["license"] == "MIT"


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook")
def test_a_role_sets_many_hosts_and_a_second_run_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    for name, text in exports.ansible_role(recommended(CHANGES), {}).items():
        path = tmp_path / "roles" / "ztune" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hosts = {}
    for number, data in enumerate(("tank/pg", "tank/other")):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        Machine(folder)
        names = {"data": data, "wal": "tank/pg/wal"}
        hosts[f"host{number}"] = {"state": str(folder / "state.json"), "ztune_datasets": names}
    # Each host has the stand-in's state in a file of its own. The last gives two roles one dataset.
    hosts["amiss"] = {**hosts["host0"], "ztune_datasets": {"data": "tank/pg", "wal": "tank/pg"}}
    inventory = {"all": {"hosts": hosts, "vars": {"ansible_connection": "local"}}}
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  environment:\n    FAKE_ZFS: '{{ state }}'\n  roles: [ztune]\n"
    )
    argv = ["ansible-playbook", "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml")]
    for changed in (2, 0):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=250)
        said = {line.split()[0]: line for line in done.stdout.splitlines() if "unreachable=" in line}
        assert len(said) == 3, done.stdout + done.stderr
        for name in hosts:
            good = name != "amiss"
            assert f"changed={changed if good else 0} " in said[name], done.stdout
            assert f"failed={int(not good)} " in said[name], done.stdout
    for number, data in enumerate(("tank/pg", "tank/other")):
        state = json.loads((tmp_path / f"host{number}" / "state.json").read_text())["datasets"]
        assert state[data]["local"]["recordsize"] == "16384"
        assert state["tank/pg/wal"]["local"]["logbias"] == "throughput"
