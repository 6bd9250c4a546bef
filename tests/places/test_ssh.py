"""The ssh target against a stand-in for the OpenSSH client that runs the commands here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import children
import pytest
from fake_place import PROGRAM, layouts, study

from ztune import paths
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
if trouble == "killed" and "run" in command.split(): os.kill(os.getpid(), 9)
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


CLIENT = """
import sys
from pathlib import Path
from ztune.places.placing import Placing
from ztune.places.ssh import Ssh
with Ssh("ssh://me@host", Placing(parents={"*": "tank/ztune"})) as place:
    print(place.put(Path(sys.argv[1])) if len(sys.argv) > 1 else "", flush=True)
    input()
"""


@contextlib.contextmanager
def client(*words: str, before: Sequence[str] = (), home: Path | None = None) -> Iterator[str]:
    """A client in a process of its own that is killed in the end; yields what it put there."""
    environment = children.environment(**({} if home is None else {"ZTUNE_HOME": str(home)}))
    with subprocess.Popen(
        [*before, sys.executable, "-c", CLIENT, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.mark.root
def test_what_a_killed_client_left_is_removed_and_no_other_client_s(there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    locks = tmp_path / "home/connections"
    with client(str(PROGRAM)) as put, client(str(PROGRAM), home=tmp_path / "another") as other:
        dead, others = Path(put).parent, Path(other).parent
        with host() as place:
            # Both live: one has a lock here, of the other there is none.
            mine = Path(place.put(PROGRAM)).parent
            assert {p.name for p in dead.parent.iterdir()} == {dead.name, others.name, mine.name}
            assert {p.stem for p in locks.iterdir()} == {dead.name, mine.name}
    for name in ("theirs", "0badcafe-4194999-1000-abcd1234", 32 * "0"):
        (dead.parent / name).mkdir(mode=0o700)
        (dead.parent / name / "file").touch()
    assert dead.exists() and not mine.exists()
    # What a host says is there is no path of ours.
    (locks / "theirs.lock").touch()
    with host() as place:
        mine = Path(place.put(PROGRAM)).parent
        with host():
            assert Path(place.put(PROGRAM)).exists() and mine.exists()
        found = {p.name for p in dead.parent.iterdir()}
        # The other's client is killed, too, but with a state directory that is not ours.
        assert found == {mine.name, others.name, "theirs", "0badcafe-4194999-1000-abcd1234", 32 * "0"}
    assert [p.name for p in locks.iterdir()] == ["theirs.lock"] and not mine.exists()


@pytest.mark.root
def test_a_client_in_another_container_of_the_same_name_and_account_lives(there: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    # One host name, one account, one state directory, and a number that no process has here.
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*elsewhere, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no namespaces here")
    with client(str(PROGRAM), before=elsewhere) as put:
        with host() as place:
            place.put(PROGRAM)
        assert Path(put).exists()


@pytest.mark.root
def test_what_a_program_still_runs_from_stays_for_the_next(there: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    (tmp_path / "waits.py").write_text("input()")
    with client(str(tmp_path / "waits.py")) as put:
        pass
    with subprocess.Popen([sys.executable, put], stdin=subprocess.PIPE) as trial:
        while put.encode() not in Path(f"/proc/{trial.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        with host():
            assert Path(put).exists()
    with host():
        assert not Path(put).parent.exists()
    assert list((tmp_path / "home/connections").iterdir()) == []


@pytest.mark.root
def test_without_room_here_a_connection_works_all_the_same(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")

    def full(*_: object) -> Path:
        raise InputError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(paths, "below", full)
        with host() as place:
            put = Path(place.put(PROGRAM))
            with host():
                assert put.exists()
        assert not put.exists()


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


@pytest.mark.root
def test_a_client_that_is_killed_is_a_connection_that_is_cut(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("the stand-in host is this one, and trials need root there")
    with host() as place:
        monkeypatch.setenv("TROUBLE", "killed")
        channel = place.open(["printf", "one\ntwo\n", "run"])
        with pytest.raises(Lost, match="the connection to host was lost: ssh was ended by SIGKILL"):
            list(channel.lines())
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
    with client():
        (left,) = sockets(tmp_path)
        with host():
            assert left in sockets(tmp_path)  # it lives
    assert sockets(tmp_path) == [left]
    with host():
        assert len(sockets(tmp_path)) == 1 and not left.exists()
    assert sockets(tmp_path) == []


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith("ztune-ssh-")]
