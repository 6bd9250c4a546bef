"""Any user's process can look like a database's server: root runs nothing of it, and tells it no password."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from ztune.databases.observed import databases
from ztune.errors import ZtuneError
from ztune.onhost.host.process import user_of
from ztune.onhost.look import reading
from ztune.onhost.look.reading import Asker, Process, text_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and to be somebody else")
OTHER, THIRD, NAMELESS = 65534, pwd.getpwnam("daemon").pw_uid, 54321
SECRETS: Final = dict.fromkeys(("PGPASSWORD", "MYSQL_PWD", "REDISCLI_AUTH"), "hunter2")
SERVER = """
import ctypes, os, socket, sys
if sys.argv[3] == "hidden":
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
if sys.argv[1] == "port":
    here = socket.create_server(("127.0.0.1", 0))
    sys.argv[2] = str(here.getsockname()[1])
else:
    here = socket.socket(socket.AF_UNIX)
    here.bind(sys.argv[2])
    here.listen()
print(sys.argv[2], flush=True)
sys.stdin.read()
"""
# What a client is run as, and with.
CLIENT = """#!/bin/sh
{ id -u; echo "$0 $*"; env; } >> LOG
echo refused >&2
exit 1
"""


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of another user."""
    path = Path(tempfile.mkdtemp(prefix="fs-", dir="/var/tmp"))
    path.chmod(0o755)
    os.chown(path, OTHER, OTHER)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the clients, which are found first, say how they were run."""
    folder = Path(tempfile.mkdtemp(prefix="fc-", dir="/var/tmp"))
    folder.chmod(0o755)
    log = folder / "log"
    log.touch()
    log.chmod(0o666)
    for name in ("psql", "mariadb", "valkey-cli"):
        (folder / name).write_text(CLIENT.replace("LOG", str(log)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    yield log
    shutil.rmtree(folder)


@contextmanager
def server(
    folder: Path, name: str, address: str, way: str = "", uid: int = OTHER
) -> Iterator[tuple[int, str]]:
    """A process that looks like the server ``name`` and listens; yields its number, and where."""
    program = folder / name
    shutil.copy(Path(sys.executable).resolve(), program)
    kind = "port" if address == "port" else "socket"
    process = subprocess.Popen(
        [name, "-I", "-S", "-c", SERVER, kind, address, way],
        executable=program, cwd=folder, user=uid, group=uid, extra_groups=[], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONHOME": sys.base_prefix},
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
        process.kill()


def cluster(folder: Path, pid: int, socket_folder: str) -> None:
    """Make a folder look like a running cluster's."""
    (folder / "global").mkdir()
    (folder / "PG_VERSION").write_text("15\n")
    (folder / "postmaster.pid").write_text(f"{pid}\n{folder}\n1\n5432\n{socket_folder}\n")


def runs(log: Path) -> list[str]:
    """The users that clients were run as; none was told a secret, or has a home."""
    text = log.read_text()
    lines = text.splitlines()
    assert "hunter2" not in text and not any(name in text for name in SECRETS)
    users = [line for line in lines if line.isdigit()]
    assert lines.count("HOME=/nonexistent") == len(users)
    return users


def test_no_program_beside_a_server_is_run(theirs: Path) -> None:
    (theirs / "pg_controldata").symlink_to("/usr/bin/python3")
    (theirs / "__main__.py").write_text("import os; os.mkdir(__file__ + '.ran')")
    (theirs / "PG_VERSION").write_text("15\n")
    with server(theirs, "postgres", str(theirs / "s")) as (pid, _):
        (found,), _limits = databases([pid])
    assert found.kind == "postgresql" and "block_size" not in found.settings
    assert not (theirs / "__main__.py.ran").exists()


@pytest.mark.parametrize("way", ["", "hidden"])
@pytest.mark.parametrize("name", ["postgres", "mariadbd", "valkey-server"])
def test_a_server_that_refuses_its_own_user_never_sees_root(
    theirs: Path, log: Path, name: str, way: str
) -> None:
    place = str(theirs / (".s.PGSQL.5432" if name == "postgres" else "s"))
    with server(theirs, name, place, way) as (pid, _):
        cluster(theirs, pid, str(theirs))
        (found,), _limits = databases([pid])
    assert found.asked_as is None and any("asked as nobody: " in why for why in found.unknown.values())
    assert runs(log) == [str(OTHER)]
    said = log.read_text()
    if name == "postgres":
        assert "PGPASSFILE=/dev/null" in said and "PGREQUIREAUTH=none" in said
    if name == "mariadbd":
        assert "/mariadb --no-defaults --local-infile=0 " in said


def test_the_file_of_a_server_does_not_say_as_whom_it_is_asked(theirs: Path, log: Path) -> None:
    with subprocess.Popen(["sleep", "60"], user=THIRD) as victim:
        with server(theirs, "postgres", str(theirs / ".s.PGSQL.5432")) as (pid, _):
            cluster(theirs, victim.pid, str(theirs))
            databases([pid])
            databases(roots=[theirs / "global"])
            assert runs(log) == [str(OTHER)] * 2
        # Found by its files alone, there is nobody to ask as.
        (found,), _limits = databases(roots=[theirs])
        victim.kill()
    assert "no process of it was observed" in found.unknown["full_page_writes"] and len(runs(log)) == 2


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("db.example.org", "names no socket in a folder"),
        ("FOLDER,db.example.org", "names no socket in a folder"),
        ("@abstract", "names no socket in a folder"),
        ("/nonexistent", "No such file"),
        ("THIRD", f"belongs to user {THIRD}"),
        ("PLAIN", "is no socket"),
    ],
)
def test_no_socket_of_anybody_else_is_asked(theirs: Path, log: Path, place: str, why: str) -> None:
    for name, uid in (("third", THIRD), ("plain", OTHER)):
        (theirs / name).mkdir()
        at = theirs / name / ".s.PGSQL.5432"
        if name == "plain":
            at.touch()
        else:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(at))
        os.chown(at, uid, uid)
    place = place.replace("FOLDER", str(theirs))
    place = str(theirs / place.lower()) if place in ("THIRD", "PLAIN") else place
    with server(theirs, "postgres", str(theirs / "s")) as (pid, _):
        cluster(theirs, pid, place)
        (found,), _limits = databases([pid])
    assert why in found.unknown["full_page_writes"] and runs(log) == []


def test_a_user_without_a_name_is_nobody_to_ask_as(theirs: Path, log: Path) -> None:
    os.chown(theirs, NAMELESS, NAMELESS)
    with server(theirs, "mariadbd", str(theirs / "s"), uid=NAMELESS) as (pid, _):
        (found,), _limits = databases([pid])
    assert f"user {NAMELESS}, as whom process" in found.unknown["datadir"] and runs(log) == []


def test_a_port_is_the_servers_own_and_of_this_host(theirs: Path) -> None:
    with server(theirs, "valkey-server", "port") as (pid, text):
        port = int(text)

        def one(uid: int | None) -> Process:
            return Process(pid, "valkey-server", (), None, None, uid)

        reading.require_port("127.0.0.1", port, one(OTHER))
        for host, uid, why in (
            ("127.0.0.1", THIRD, "another user than the server's"),
            ("127.0.0.1", None, "another user than the server's"),
            ("127.0.0.2", OTHER, "nothing listens"),
            ("192.0.2.1", OTHER, "no address of this host"),
            ("localhost", OTHER, "is no address, but a name"),
        ):
            with pytest.raises(ZtuneError, match=why):
                reading.require_port(host, port, one(uid))


def test_a_port_of_another_network_is_not_asked(theirs: Path) -> None:
    with (
        server(theirs, "valkey-server", "port") as (_, text),
        subprocess.Popen(["unshare", "--net", "sleep", "60"]) as away,
    ):
        here = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{away.pid}/ns/net").readlink() == here:
            time.sleep(0.01)
        with pytest.raises(ZtuneError, match=f"process {away.pid} is in another network"):
            reading.require_port("127.0.0.1", int(text), Process(away.pid, "x", (), None, None, OTHER))
        away.kill()


def test_a_process_in_a_folder_above_is_no_server_of_what_is_below(theirs: Path) -> None:
    data = theirs / "data"
    data.mkdir()
    os.chown(data, THIRD, THIRD)
    cluster(data, 1, "/nonexistent")
    (data / "postmaster.pid").unlink()
    # Its own folder, but the cluster's is nearer.
    with server(theirs, "mariadbd", str(theirs / "s")) as (pid, _):
        found, _limits = databases(roots=[data / "global"])
        assert [one.kind for one in found] == ["postgresql"]
        assert "mariadb" in [one.kind for one in databases([pid], roots=[data])[0]]
    # Nobody's own folder: the other user just works there.
    shutil.rmtree(data)
    data.mkdir()
    os.chown(theirs, 0, 0)
    with server(theirs, "mariadbd", "port") as (pid, _):
        assert databases(roots=[data])[0] == ()
        assert [one.kind for one in databases([pid])[0]] == ["mariadb"]


def test_what_a_container_calls_its_own_is_not_read_from_here(theirs: Path) -> None:
    (theirs / "data").mkdir()
    (theirs / "data" / "my.cnf").write_text("[mysqld]\ninnodb_page_size=4k\n")
    shutil.copy(Path(sys.executable).resolve(), theirs / "mariadbd")
    mounted = (
        f"mount -t tmpfs none {theirs}/data && cd {theirs}/data && exec {theirs}/mariadbd -I -S -c "
        f"'print(flush=True); input()' --defaults-file={theirs}/data/my.cnf"
    )
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mounted],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONHOME": sys.base_prefix, **os.environ},
    ) as inside:
        assert inside.stdout is not None
        inside.stdout.readline()
        found, limits = databases([inside.pid])
        inside.kill()
    assert found == ()
    (said,) = limits
    assert said.startswith(f"process {inside.pid} (mariadbd) sees other files than ztune, as in a container")


def test_root_itself_asks_only_where_nobody_else_can_put_a_socket(theirs: Path) -> None:
    for folder in (theirs, Path(tempfile.mkdtemp(prefix="own-", dir="/var/tmp"))):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(folder / "s"))
            if folder == theirs:
                with pytest.raises(ZtuneError, match=f"belongs to user {OTHER}"):
                    reading.require_socket(folder / "s", 0, Asker(None, False))
                reading.require_socket(folder / "s", OTHER, Asker("nobody", False))
            else:
                reading.require_socket(folder / "s", 0, Asker(None, False))
                shutil.rmtree(folder)


def test_whose_a_process_is() -> None:
    code = "import os, sys; os.setresuid({}, {}, {}); print(flush=True); sys.stdin.read()"
    for uids, expected in (((OTHER, OTHER, OTHER), OTHER), ((OTHER, 0, 0), None), ((0, 0, 0), 0)):
        with subprocess.Popen(
            [sys.executable, "-c", code.format(*uids)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert user_of(process.pid) == expected
            process.kill()
    gone = Process(2**22 - 1, "postgres", ("postgres",), None, None, OTHER)
    with pytest.raises(ZtuneError, match="has ended, or runs as more than one user"):
        reading.asker(None, gone)
    assert reading.asker("root", gone) == Asker("root", True)


def test_only_files_are_read(theirs: Path) -> None:
    os.mkfifo(theirs / "fifo")
    (theirs / "link").symlink_to("/etc/shadow")
    os.chown(theirs / "link", OTHER, OTHER, follow_symlinks=False)
    (theirs / "conf").write_text("a = 1\n")
    (theirs / "own").symlink_to("conf")  # root's
    for place in (
        "fifo",
        "link",
        "/dev/zero",
        "/dev/null",
        "/proc/self/environ",
        "/sys/kernel/uevent_seqnum",
        ".",
    ):
        with pytest.raises(ZtuneError, match=r"no regular file|another user's file"):
            text_of(theirs / place)
    assert text_of(theirs / "conf") == text_of(theirs / "own") == "a = 1\n"
    os.chown(theirs / "conf", OTHER, OTHER)
    os.chown(theirs / "own", OTHER, OTHER, follow_symlinks=False)
    assert text_of(theirs / "own") == "a = 1\n"
