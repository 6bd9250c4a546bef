"""``ztune observe --hosts`` over real ssh to real sshd: what hangs, refuses or lacks Python hurts nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from sshd_hosts import WHY_NOT, SshdHosts, free_port, sshd_hosts

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
# What the other side would run is run where nothing is that begins with python.
WITHOUT_PYTHON = """#!/bin/sh
exec unshare --mount sh -c '
for p in /usr/bin/python3* /usr/local/bin/python3*; do
    [ -e "$p" ] && mount --bind /dev/null "$p"
done
eval "$SSH_ORIGINAL_COMMAND"'
"""


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshdHosts]:
    with sshd_hosts(tmp_path_factory.mktemp("sshd")) as hosts:
        yield hosts


def observe(ssh: SshdHosts, home: Path, lines: list[str], *words: str) -> subprocess.Popen[str]:
    listed = home / "hosts.txt"
    listed.write_text("\n".join(lines) + "\n")
    env = {**children.environment(), "PATH": f"{ssh.bin}:{os.environ['PATH']}", "ZTUNE_HOME": str(home)}
    argv = [sys.executable, "-m", "ztune.cli.main", "observe", "--hosts", str(listed), *words]
    return subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def looking() -> set[int]:
    """The processes that look at this machine for somebody, by what they were started with."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"python3") and any(b'memfd_create("ztune")' in word for word in words):
                found.add(int(entry.name))
    return found


def test_two_hundred_are_asked_and_each_costs_its_own_row(ssh: SshdHosts, tmp_path: Path) -> None:
    well = ssh.start()
    without = ssh.start(f"ForceCommand {ssh.script('without', WITHOUT_PYTHON)}")
    chatters = ssh.start("ForceCommand echo hello")
    fails = ssh.start("ForceCommand sh -c 'sleep 2; echo no shell for you >&2; exit 7'")
    shut = free_port()
    special = {
        f"well:{well}": "", f"without:{without}": "no python3",
        f"chatters:{chatters}": "something else than an observation",
        f"fails:{fails}": "it could not look: no shell for you",
    }  # fmt: skip
    rest = [f"shut{number}:{shut}" for number in range(200 - len(special))]
    before = {path: path.stat().st_mtime_ns for path in Path.home().glob(".cache/ztune/*")}
    done = observe(ssh, tmp_path, [*special, *rest], "--seconds", "0.2", "--timeout", "200", "--json")
    out, err = done.communicate(timeout=250)
    assert done.returncode == 3, err
    assert "asking 200 hosts, 20 at a time, 0.2 s on each" in err
    said = {one["host"]: one for one in json.loads(out)["hosts"]}
    assert len(said) == 200
    assert said[f"well:{well}"]["asked"] is True, said[f"well:{well}"]
    assert said[f"well:{well}"]["observation"]["host"] == os.uname().nodename
    for name, why in special.items():
        if why:
            assert why in said[name]["why"], said[name]
    assert all("Connection refused" in said[name]["why"] for name in rest)
    # Nothing was put there: the host and its home are this machine's.
    assert before == {path: path.stat().st_mtime_ns for path in Path.home().glob(".cache/ztune/*")}


def test_what_hangs_is_cut_at_its_time(ssh: SshdHosts, tmp_path: Path) -> None:
    # Apart from those that answer: how soon they do is this machine's business.
    hangs, deaf = ssh.start("ForceCommand sleep 40"), ssh.deaf()
    done = observe(
        ssh, tmp_path, [f"hangs:{hangs}", f"deaf:{deaf}"], "--seconds", "0.5", "--timeout", "4.5", "--json"
    )
    out, err = done.communicate(timeout=250)
    assert done.returncode == 3, err
    for one in json.loads(out)["hosts"]:
        # ssh itself gives up on one that never speaks, at about half of the time.
        assert one["why"] in (
            "it did not answer within 5 s", "ssh: Connection timed out during banner exchange",
        )  # fmt: skip


def test_ctrl_c_ends_what_runs_on_the_host(ssh: SshdHosts, tmp_path: Path) -> None:
    before = looking()
    done = observe(ssh, tmp_path, [f"db1:{ssh.start()}"], "--seconds", "300")
    try:
        _until(lambda: bool(looking() - before))
        done.send_signal(signal.SIGINT)
        out, _err = done.communicate(timeout=60)
        assert done.returncode == 130 and not out
        _until(lambda: not looking() - before)
    finally:
        done.kill()
        done.wait()


def _until(true: object) -> None:
    assert callable(true)
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not become so within a minute")
