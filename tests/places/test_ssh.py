"""The ssh target against a stand-in for the OpenSSH client that runs the commands here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import children
import pytest
from fake_place import PROGRAM, layouts, study

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.places import ssh as module
from ztune.places.channel import Lost, ask
from ztune.places.placing import Placing
from ztune.places.ssh import Ssh

STAND_IN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
with open({log!r}, "a") as log: log.write(repr(words) + "\\n")
takes = {{"-o", "-p", "-O"}}
options, rest = [], []
while words:
    word = words.pop(0)
    if not rest and word in takes: options.append((word, words.pop(0)))
    elif not rest and word.startswith("-"): options.append((word, ""))
    else: rest.append(word)
if ("-O", "exit") in options: sys.exit(0)
assert ("-o", "BatchMode=yes") in options
trouble = os.environ.get("TROUBLE", "")
if trouble == "denied":
    print("Warning: something else", file=sys.stderr)
    print("user@host: Permission denied (publickey).", file=sys.stderr); sys.exit(255)
host, command = rest[0], " ".join(rest[1:])
env = {{**os.environ, "HOME": {home!r}}}
if "BIN" in os.environ: env["PATH"] = os.environ["BIN"]
code = subprocess.run(["/bin/sh", "-c", command], env=env).returncode
if trouble == "cut" and "run" in command.split():
    print("client_loop: send disconnect: Broken pipe", file=sys.stderr); sys.exit(255)
sys.exit(code)
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The remote host's home. Its sh finds only what is in ``bin`` when BIN is set."""
    home, bin_ = tmp_path / "remote home", tmp_path / "clients"
    home.mkdir()
    bin_.mkdir()
    client = bin_ / "ssh"
    client.write_text(STAND_IN.format(python=sys.executable, log=str(tmp_path / "log"), home=str(home)))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return home


def host(url: str = "ssh://me@host:2222") -> Ssh:
    return Ssh(url, Placing(parents={"*": "tank/ztune"}))


@pytest.mark.root
def test_a_host_with_everything(there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    with host() as place:
        assert place.about_host()["python"].startswith("3.")
        copied = place.put(PROGRAM)
        assert Path(copied).name == "fake_trial.py" and Path(copied).parents[1] == there / ".cache/ztune"
        assert Path(copied).read_bytes() == PROGRAM.read_bytes()
        before = (tmp_path / "log").read_text().count("cat >")
        place.put(PROGRAM)
        assert (tmp_path / "log").read_text().count("cat >") == before  # copied once
        code, out, _ = ask(place, ["printf", "%s\n", "a b; $c 'd'"])
        assert (code, out) == (0, "a b; $c 'd'")
        assert ask(place, ["sh", "-c", "echo no >&2; exit 7"])[::2] == (7, "no")
        channel = place.open(["cat"])
        channel.send("hello")
        assert next(iter(channel.lines())) == "hello"
        channel.close()
        assert place.place_spec(layouts()[0])["kind"] == "parent"
        sockets = [p for p in tmp_path.iterdir() if p.name.startswith("ztune-ssh-")]
        assert len(sockets) == 1 and sockets[0].stat().st_mode & 0o077 == 0
    log = (tmp_path / "log").read_text()
    assert (
        "'-p', '2222'" in log and "'me@host'" in log and "ControlMaster=auto" in log and "'-O', 'exit'" in log
    )
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("ztune-ssh-")]
    assert not (there / ".cache/ztune").exists()


@pytest.mark.root
def test_what_a_killed_client_left_is_removed_and_no_other_client_s(there: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    with host() as place:
        kept = Path(place.put(PROGRAM)).parents[1]
        mine = Path(place.put(PROGRAM)).parent.name
        client, _pid, _began, _own = mine.split("-")
        dead, other = kept / f"{client}-4194999-1000-abcd1234", kept / "0badcafe-4194999-1000-abcd1234"
        for folder in (dead, other, kept / "theirs"):
            folder.mkdir(mode=0o700)
            (folder / "file").touch()
        with host():
            assert sorted(p.name for p in kept.iterdir()) == sorted([mine, other.name, "theirs"])
        assert Path(place.put(PROGRAM)).exists()
    assert sorted(p.name for p in kept.iterdir()) == sorted([other.name, "theirs"])


@pytest.mark.root
@pytest.mark.parametrize("where", ["", ".cache", ".cache/ztune"])
def test_a_program_of_somebody_else_is_not_run_as_root(there: Path, where: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    kept = there / ".cache/ztune"
    kept.mkdir(parents=True)
    os.chown(there / where, 65534, 65534)
    with (
        host() as place,
        pytest.raises(ZtuneError, match=r"can't be copied to host:.* belongs to user 65534"),
    ):
        place.put(PROGRAM)
    os.chown(there / where, 0, 0)
    (there / where).chmod(0o777)
    with host() as place, pytest.raises(ZtuneError, match="can be written by"):
        place.put(PROGRAM)


@pytest.mark.root
def test_a_home_that_is_a_link_of_root_s(there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    there.rename(tmp_path / "moved")
    there.symlink_to(tmp_path / "moved")
    with host() as place:
        assert Path(place.put(PROGRAM)).read_bytes() == PROGRAM.read_bytes()
        assert place.about_host()["python"].startswith("3.")


def test_a_host_that_does_not_let_us_in(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUBLE", "denied")
    with pytest.raises(
        Lost, match=r"^host can't be reached by ssh: user@host: Permission denied \(publickey\)\.$"
    ):
        host().__enter__()


@pytest.mark.root
def test_a_connection_that_is_cut(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    with host() as place:
        monkeypatch.setenv("TROUBLE", "cut")
        channel = place.open(["printf", "one\\ntwo\\n", "run"])
        got = []
        with pytest.raises(Lost, match="send disconnect: Broken pipe"):
            for line in channel.lines():
                got.append(line)
        assert got[:2] == ["one", "two"]
        channel.close()


def tools(folder: Path, **scripts: str) -> None:
    """Make a folder of programs that is all that the remote host has."""
    folder.mkdir()
    for name in ("sh", "cat", "mkdir", "mv", "wc", "printf", "env"):
        (folder / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("scripts", "sentence"),
    [
        ({"id": "echo 0"}, "host has no python3; install python3"),
        ({"id": "echo 0", "python3": "case $2 in *print*) echo 3.9;; *) exit 1;; esac"},
         "host has Python 3.9; trials need 3.11 or newer"),
        ({"id": "echo 1000", "python3": "exit 0"}, "trials need root: on host log in as root, or allow sudo"),
        ({"id": "echo 1000", "sudo": "exit 1", "python3": "exit 0"}, "allow sudo without a password"),
        ({"id": "echo 0", "python3": "echo broken >&2; case $1 in -c) exit 0;; *) exit 1;; esac"},
         "the trial program does not run on host: broken"),
    ],
)  # fmt: skip
def test_what_a_host_lacks_is_said(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str], sentence: str
) -> None:
    tools(tmp_path / "bin", **scripts)
    monkeypatch.setenv("BIN", str(tmp_path / "bin"))
    with pytest.raises(MissingError, match=sentence), host() as place:
        place.about_host()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("ztune-ssh-")]


def test_a_host_without_zfs(monkeypatch: pytest.MonkeyPatch) -> None:
    place = host()
    answer: dict[str, Any] = {"openzfs": None, "tools": {}}
    monkeypatch.setattr(place, "about_host", lambda: answer)
    with pytest.raises(MissingError, match="host has no OpenZFS kernel module loaded"):
        place.check(study(), layouts()[0])
    answer.update(openzfs={"kernel": "2.3.2"}, tools={"zpool": "/sbin/zpool"})
    with pytest.raises(MissingError, match="host has no zfs command"):
        place.check(study(), layouts()[0])


@pytest.mark.parametrize(
    "url",
    [
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://h/path",
        "ssh://h:port",
        "ssh://a b",
        "ftp://h",
        "ssh://-x@h",
    ],
)
def test_what_is_no_host(url: str) -> None:
    with pytest.raises(InputError, match="is not a host"):
        host(url)


def test_hosts() -> None:
    assert host("ssh://db7")._destination == "db7" and host("ssh://db7").shared(Path("/")) is None
    assert (host("ssh://u@h:22")._destination, host("ssh://u@h:22")._port) == ("u@h", 22)
    assert module._LOST == 255


@pytest.mark.root
def test_the_sockets_of_a_killed_client_are_removed_by_the_next(there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    code = (
        "from ztune.places.placing import Placing; from ztune.places.ssh import Ssh\n"
        "with Ssh('ssh://me@host', Placing(parents={'*': 'tank/ztune'})): print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=children.environment() | {"PATH": os.environ["PATH"]},
    ) as client:  # fmt: skip
        assert client.stdout is not None and client.stdout.readline()
        (left,) = sockets(tmp_path)
        with host():
            assert left in sockets(tmp_path)  # it lives
        client.kill()
    assert sockets(tmp_path) == [left]
    with host():
        assert len(sockets(tmp_path)) == 1 and not left.exists()
    assert sockets(tmp_path) == []


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("ztune-ssh-")]
