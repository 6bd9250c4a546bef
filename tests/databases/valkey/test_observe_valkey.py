"""What Valkey and Redis say of their own settings: real servers, their files, their configuration."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ztune.databases.observed import databases
from ztune.databases.valkey.onhost import settings as valkey
from ztune.databases.valkey.onhost.server import NAMES, find_binaries
from ztune.errors import MissingError
from ztune.onhost.host.process import Account
from ztune.onhost.look.reading import ObservedDatabase, Process
from ztune.trace.roles import RoleRules

SECRET = "hunter2"


def here(name: str) -> bool:
    try:
        find_binaries(name)
    except MissingError:
        return False
    return shutil.which(f"{name}-cli") is not None


SERVERS = [name for name in NAMES if here(name)]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="vk-", dir="/var/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """A server as a user has it: started from a configuration file, reached by TCP or by a socket."""

    def __init__(self, name: str, folder: Path, lines: str) -> None:
        account = Account.for_database(name)
        if account.owner:
            os.chown(folder, *account.owner)  # as a server's data is its user's
        config = folder / "server.conf"
        config.write_text(f"dir {folder}\nlogfile {folder}/log\nappendonly yes\nsave 60 7\n{lines}\n")
        program = folder / f"{name}-server"
        program.symlink_to(find_binaries(name).server)
        self.popen = subprocess.Popen([program, config], cwd="/", **account.popen_args)
        deadline = time.monotonic() + 30
        while "eady to accept connections" not in self._log(folder):  # "Ready", and "now ready"
            assert self.popen.poll() is None and time.monotonic() < deadline, self._log(folder)
            time.sleep(0.05)

    def _log(self, folder: Path) -> str:
        path = folder / "log"
        return path.read_text() if path.exists() else ""

    def __enter__(self) -> int:
        return self.popen.pid

    def __exit__(self, *_: object) -> None:
        self.popen.terminate()
        self.popen.wait(30)


def one(pids: list[int], roots: list[Path], user: str | None = None) -> ObservedDatabase:
    found, _limits = databases(pids, roots, user)
    (database,) = [d for d in found if d.kind in NAMES]
    assert SECRET not in json.dumps(asdict(database))
    return database


@pytest.mark.skipif(not SERVERS, reason="neither Valkey nor Redis with its client here")
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("way", ["port", "socket"])
def test_a_server_is_asked(folder: Path, name: str, way: str) -> None:
    port = free_port()
    lines = f"bind 127.0.0.1\nport {port}" if way == "port" else f"port 0\nunixsocket {folder}/s.sock"
    with Running(name, folder, f"{lines}\nappendfsync always\nauto-aof-rewrite-min-size 3mb") as pid:
        before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.aof*")}
        found = one([pid], [])
        assert (found.kind, found.version) == (name, find_binaries(name).version)
        assert found.where == (f"127.0.0.1:{port}" if way == "port" else f"{folder}/s.sock")
        assert found.asked_as and found.unknown == {}
        settings = found.settings
        assert settings["appendonly"] == "yes" and settings["appendfsync"] == "always"
        assert settings["save"] == "60 7" and settings["dir"] == str(folder)
        assert settings["auto-aof-rewrite-min-size"] == str(3 << 20)
        # Found by its folder too, and once.
        assert one([], [folder / "appendonlydir"]) == found
        assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.aof*")} == before
    # It has ended: its files say what it was.
    left = one([], [folder])
    assert (left.kind, left.version, left.where) == (name, found.version, str(folder))
    assert "no server process" in left.unknown["appendfsync"]


@pytest.mark.skipif(not SERVERS, reason="neither Valkey nor Redis with its client here")
def test_a_password_keeps_its_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "_FILES", (str(folder / "server.conf"),))
    port = free_port()
    lines = f"bind 127.0.0.1\nport {port}\nrequirepass {SECRET}\nappendfsync no"
    with Running(SERVERS[0], folder, lines) as pid:
        found = one([pid], [])
        assert found.where == str(folder)
        assert found.settings["appendfsync"] == "no" and found.settings["save"] == "60 7"
        assert "NOAUTH" in found.unknown["rdbcompression"]
        # The caller's own, as the client takes it; root's only if root is named.
        monkeypatch.setenv("REDISCLI_AUTH", SECRET)
        me = pwd.getpwuid(os.geteuid()).pw_name
        assert one([pid], [], me).settings["rdbcompression"] == "yes"
        unknown = one([pid], []).unknown
        assert ("NOAUTH" in unknown["rdbcompression"]) if os.geteuid() == 0 else not unknown


def test_a_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("appendfsync everysec\nrdbcompression no\n")
    path = tmp_path / "valkey.conf"
    path.write_text(
        f"# save 1 1\nrequirepass {SECRET}\nsave 3600 1\nsave 60 10000\nAppendFsync always\n"
        'include more.conf\ndir "/srv/my data"\nauto-aof-rewrite-min-size 64mb\nmaxmemory 2g\nbroken "\n'
    )
    assert valkey.parse_options(path) == {
        "save": "3600 1 60 10000",
        "appendfsync": "everysec",
        "rdbcompression": "no",
        "dir": "/srv/my data",
        "auto-aof-rewrite-min-size": str(64 << 20),
        "maxmemory": "2000000000",
    }
    path.write_text('save 3600 1\nsave ""\n')
    assert valkey.parse_options(path) == {"save": ""}


def test_only_what_they_wrote_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").write_bytes(b"a dump of something else, with redis-ver 7.0.1 in it")
    assert databases(roots=[tmp_path]) == ((), ())
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0011\xfa\tvalkey-ver\x058.0.1\xfa\nredis-bits\xc0@")
    found = one([], [tmp_path])
    assert (found.kind, found.version) == ("valkey", "8.0.1")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("redis-server 127.0.0.1:6379",), [("-h", "127.0.0.1", "-p", "6379")]),
        (("valkey-server *:6380 [cluster]",), [("-h", "127.0.0.1", "-p", "6380")]),
        (("valkey-server [::1]:6379",), [("-h", "::1", "-p", "6379")]),
        (("valkey-server unixsocket:/run/v.sock",), []),
    ],
)
def test_what_it_calls_itself_names_its_port(argv: tuple[str, ...], expected: list[tuple[str, ...]]) -> None:
    assert valkey._addresses(Process(2**22 - 1, "x", argv, None, None)) == expected


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/var/lib/valkey/dump.rdb", "data"),
        ("/var/lib/valkey/temp-4711.rdb", "data"),
        ("/var/lib/valkey/appendonlydir/appendonly.aof.3.incr.aof", "wal"),
        ("/var/lib/valkey/appendonlydir/appendonly.aof.3.base.rdb", "wal"),
        ("/var/lib/valkey/appendonlydir/appendonly.aof.manifest", "wal"),
        ("/var/lib/valkey/appendonlydir/temp-appendonly.aof.manifest", "wal"),
        ("/var/lib/valkey/temp-rewriteaof-bg-99.aof", "wal"),
        ("/var/lib/valkey/temp-rewriteaof-99.aof", "wal"),
        ("/var/lib/valkey/appendonly.aof", "wal"),
        ("/var/lib/valkey/nodes.conf", None),
    ],
)
def test_files_of_theirs_have_roles(path: str, role: str | None) -> None:
    assert RoleRules.parse().role(path) == role
