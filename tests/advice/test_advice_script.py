"""The script: what it would run, what it refuses, and that nothing gets out of its quotes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import evidence as ev
import pytest

from ztune.advice.commands import create_commands, properties, relative_names, script
from ztune.advice.model import Recommendation, SettingChange
from ztune.advice.recommend import recommend
from ztune.study import DurabilityClass, Objective
from ztune.study.layout import parse_layout

FAKE_ZFS = r"""#!/bin/sh
# Stands in for zfs: writes down each call; `list` succeeds for the names in $EXISTING.
if [ "$1" = list ]; then
	for name in $EXISTING; do
		[ "$name" = "$5" ] && exit 0
	done
	exit 1
fi
for word in "$@"; do printf '%s\n' "$word" >>"$LOG"; done
printf '%s\n' -- >>"$LOG"
"""


def recommendation(raw: dict[str, Any] | None = None, name: str = "base", **run: Any) -> Recommendation:
    layout = parse_layout({**(raw or ev.base_layout()), "name": name})
    measure = {
        "model": {"modelled_s": 1.0, "trace_s": 30.0},
        "space": {"allocated": 1.0},
        "physical": {"write_bytes": 1.0},
    }
    return recommend(ev.run(**run), [ev.trial(layout, 1, measure, baseline=True)], manifest=ev.manifest())


class Shell:
    def __init__(self, folder: Path, text: str) -> None:
        self.file, self.log = folder / "layout.sh", folder / "log"
        self.file.write_text(text)
        (folder / "zfs").write_text(FAKE_ZFS)
        (folder / "zfs").chmod(0o755)
        self.folder = folder

    def __call__(self, *words: str, existing: str = "tank") -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        return subprocess.run(
            ["sh", str(self.file), *words],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PATH": f"{self.folder}:{os.environ['PATH']}",
                "LOG": str(self.log),
                "EXISTING": existing,
            },
        )

    def calls(self) -> list[list[str]]:
        return [call.splitlines() for call in self.log.read_text().split("--\n") if call]


def test_a_dry_run_prints_and_runs_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation()))
    done = shell("tank/pg", existing="")  # not even the root needs to exist
    assert done.returncode == 0
    assert shell.calls() == []
    lines = done.stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["tank/pg/data", "tank/pg/wal"]
    assert all(line.startswith("zfs create -o recordsize=128K -o compression=lz4 ") for line in lines)
    assert "nothing was changed" in done.stderr


def test_yes_runs_what_was_printed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation()))
    done = shell("--yes", "tank", existing="tank")
    assert done.returncode == 0, done.stderr
    assert [" ".join(["zfs", *call]) for call in shell.calls()] == done.stdout.splitlines()
    assert [call[-1] for call in shell.calls()] == ["tank/data", "tank/wal"]
    assert all(call[0] == "create" for call in shell.calls())


def test_it_refuses_before_the_first_change_if_a_dataset_exists(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation()))
    done = shell("--yes", "tank", existing="tank tank/wal")
    assert done.returncode == 1
    assert "tank/wal exists already; nothing was changed" in done.stderr
    assert shell.calls() == []


def test_a_weaker_layout_is_made_only_where_that_is_accepted(tmp_path: Path) -> None:
    raw = ev.base_layout()
    for dataset in raw["dataset"]:
        dataset["sync"] = "disabled"
    weak = Objective(durability=DurabilityClass.LAST_SECONDS)
    run = Shell(tmp_path, script(recommendation(raw, objective=weak)))
    dry = run("tank")
    assert dry.returncode == 0 and run.calls() == []
    warned, *_ = dry.stdout.splitlines()
    assert warned.startswith("# sync=disabled on tank/data, tank/wal: a power cut loses what was ")
    assert warned.endswith(": --yes takes --accept-durability last-seconds as well")
    for words in (["--yes"], ["--yes", "--accept-durability", "corrupt"], ["--yes", "--accept-durability"]):
        refused = run(*words, "tank")
        assert refused.returncode != 0 and run.calls() == [], words
    assert "nothing was changed: sync=disabled on " in run("--yes", "tank").stderr
    done = run("--yes", "--accept-durability", "last-seconds", "tank")
    assert done.returncode == 0, done.stderr
    assert [call[0] for call in run.calls()] == ["create", "create"]
    assert "--accept-durability" not in script(recommendation())


def test_it_refuses_a_root_that_is_not_there(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation()))
    done = shell("--yes", "tank/none", existing="tank")
    assert done.returncode == 1
    assert 'there is no dataset or pool "tank/none"' in done.stderr
    assert shell.calls() == []


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--force", "tank"], ["--yes"]])
def test_wrong_usage_is_exit_2(tmp_path: Path, words: list[str]) -> None:
    done = Shell(tmp_path, script(recommendation()))(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sh layout.sh [--yes] ROOT")


@pytest.mark.parametrize(
    "root", ["", "/tank", "tank/", "tank//pg", "ta nk", "-rf", "tank;reboot", "$(reboot)", "9tank"]
)
def test_bad_roots_are_refused(tmp_path: Path, root: str) -> None:
    shell = Shell(tmp_path, script(recommendation()))
    done = shell("--yes", root, existing=root)
    assert done.returncode != 0
    assert shell.calls() == []


def test_it_only_lists_and_creates() -> None:
    text = script(recommendation())
    commands = [
        line.strip() for line in text.splitlines() if line.strip().startswith(("run ", "zfs ", "zpool "))
    ]
    assert commands
    assert all(line.startswith(("run zfs create ", "zfs list ")) for line in commands)


def test_text_from_outside_cannot_leave_a_comment(tmp_path: Path) -> None:
    evil = "x\ntouch escaped\r\n$(touch escaped)`touch escaped`\x1b[2J\u2028touch escaped"
    text = script(recommendation(name=evil))
    shell = Shell(tmp_path, text)
    assert shell("--yes", "tank").returncode == 0
    assert not (tmp_path / "escaped").exists()
    assert not Path("escaped").exists()
    assert "\x1b" not in text
    assert not any(line.lstrip().startswith("touch") for line in text.splitlines())


TWO_POOLS = ev.base_layout(
    pool=[
        {
            "name": "tank",
            "ashift": 12,
            "vdev": [{"class": "data", "kind": "mirror", "disks": 2, "profile": "hdd-7200"}],
        },
        {
            "name": "fast",
            "ashift": 13,
            "vdev": [
                {"class": "data", "profile": "nvme"},
                {"class": "log", "kind": "mirror", "disks": 2, "profile": "nvme"},
                {"class": "cache", "profile": "nvme"},
                {"class": "special", "kind": "mirror", "disks": 2, "profile": "nvme"},
            ],
        },
    ],
    dataset=[
        {"name": "tank/db/main/data", "roles": ["data"], "recordsize": "16K"},
        {"name": "tank/db/side/temp", "roles": ["temp"], "sync": "disabled", "atime": "on"},
        {"name": "fast", "roles": ["wal"], "special_small_blocks": "8K"},
    ],
    tunables={"zfs_txg_timeout": 10},
)


def test_two_pools_take_two_roots_on_two_pools(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation(TWO_POOLS)))
    done = shell("--yes", "slow/pg", "quick", existing="slow/pg quick")
    assert done.returncode == 0, done.stderr
    assert [call[-1] for call in shell.calls()] == [
        "slow/pg/main",
        "slow/pg/side",
        "quick/wal",
        "slow/pg/main/data",
        "slow/pg/side/temp",
    ]
    assert shell.calls()[0] == ["create", "-o", "canmount=off", "slow/pg/main"]
    wal = shell.calls()[2]
    assert "special_small_blocks=8K" in wal
    assert "secondarycache=all" in wal
    same = shell("--yes", "slow/a", "slow/b", existing="slow/a slow/b")
    assert same.returncode == 1
    assert "the roots are to be on different pools" in same.stderr
    assert shell.calls() == []


def test_parents_that_exist_are_left_alone(tmp_path: Path) -> None:
    shell = Shell(tmp_path, script(recommendation(TWO_POOLS)))
    shell("--yes", "slow", "quick", existing="slow quick slow/main")
    assert "slow/main" not in [call[-1] for call in shell.calls()]
    assert "slow/side" in [call[-1] for call in shell.calls()]


def test_disks_are_suggested_not_touched() -> None:
    text = script(recommendation(TWO_POOLS))
    assert "#   zpool create -o ashift=12 POOL mirror DATA-DISK-1 DATA-DISK-2" in text
    assert "#   zpool add POOL log mirror LOG-DISK-1 LOG-DISK-2" in text
    assert "#   zpool add POOL cache CACHE-DISK-1" in text
    assert "#     echo 10 > /sys/module/zfs/parameters/zfs_txg_timeout" in text


def test_settings_of_the_database_are_left_to_the_user() -> None:
    raw = {**ev.base_layout(), "database": {"full_page_writes": "off", "wal_compression": "lz4"}}
    assert "#   In the database: full_page_writes = off, wal_compression = lz4.\n" in script(
        recommendation(raw)
    )
    assert "In the database" not in script(recommendation())


def test_properties_are_spelled_out_and_atime_is_off_unless_the_layout_says() -> None:
    layout = parse_layout(TWO_POOLS)
    by = {d.name: properties(d, layout) for d in layout.datasets}
    assert by["tank/db/main/data"] == {
        "recordsize": "16K",
        "compression": "lz4",
        "logbias": "latency",
        "sync": "standard",
        "primarycache": "all",
        "checksum": "on",
        "redundant_metadata": "all",
        "copies": "1",
        "atime": "off",
    }
    assert by["tank/db/side/temp"]["atime"] == "on"


def test_names_are_relative_to_what_all_share() -> None:
    names = relative_names(parse_layout(TWO_POOLS))
    assert names == {"tank/db/main/data": "main/data", "tank/db/side/temp": "side/temp", "fast": "wal"}


def test_bare_commands_are_those_of_the_script(tmp_path: Path) -> None:
    r = recommendation()
    shell = Shell(tmp_path, script(r))
    shell("--yes", "tank")
    assert [["zfs", *call] for call in shell.calls()] == create_commands(r)


@pytest.mark.parametrize("raw", [None, TWO_POOLS], ids=["one", "two"])
def test_the_shell_and_shellcheck_accept_it(tmp_path: Path, raw: dict[str, Any] | None) -> None:
    file = tmp_path / "layout.sh"
    file.write_text(script(recommendation(raw)))
    assert subprocess.run(["sh", "-n", file], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_arc_of_a_replay_is_no_advice_unless_it_was_found() -> None:
    text = script(recommendation())
    assert "echo BYTES > /sys/module/zfs/parameters/zfs_arc_max" in text
    assert "which is no advice: leave it the memory" in text.replace("\n#   ", " ")
    smaller = [parse_layout({**ev.base_layout(arc=arc), "name": arc}) for arc in ("128M", "64M")]
    found = recommend(ev.run(), ev.trials(smaller), manifest=ev.manifest())
    found = found.model_copy(
        update={
            "layout": smaller[1].to_json(),
            "changes": [SettingChange(setting="arc", now="128M", value="64M")],
        }
    )
    text = script(found)
    assert f"echo {64 << 20} > /sys/module/zfs/parameters/zfs_arc_max" in text and "no advice" not in text
