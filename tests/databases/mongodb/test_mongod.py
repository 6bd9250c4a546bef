"""``mongo-restore`` on a MongoDB: programs that stand in for it, since it can't be had everywhere.

What they stand in for: a server that answers on its socket and keeps what it is given, ``mongorestore`` that
gives it an archive, ``mongodump`` that reads it back.
"""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest
from mongo_dumps import WHOLE

from ztune.databases.mongodb.onhost import bson, mongod
from ztune.databases.mongodb.onhost.restore import MongoRestore as Job
from ztune.databases.mongodb.workload import MongoRestore
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import software

MONGOD = """
import os, signal, socket, struct, sys
if "--version" in sys.argv:
    print("db version v5.0.9\\nBuild Info: {}")
    sys.exit()
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
journal = os.path.join(said["--dbpath"], "journal")
assert os.path.islink(journal)
open(os.path.join(journal, "WiredTigerLog.0000000001"), "wb").write(b"log")
open(STATE + "/arguments", "w").write("\\n".join(sys.argv[1:]))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
line = socket.socket(socket.AF_UNIX)
line.bind(said["--unixSocketPrefix"] + "/mongodb-" + said["--port"] + ".sock")
line.listen()
while True:
    client, _ = line.accept()
    asked = client.recv(65536)
    open(STATE + "/asked", "ab").write(asked)
    if os.path.exists(STATE + "/refuses") and b"fsync" in asked:
        body = b"\\x02errmsg\\0" + struct.pack("<i", 8) + b"no disk\\0\\0"
        reply = struct.pack("<i", 4 + len(body)) + body
    else:
        reply = b"\\x11\\0\\0\\0\\x01ok\\0" + struct.pack("<d", 1.0) + b"\\0"
    client.sendall(struct.pack("<iiiiiB", 16 + 5 + len(reply), 2, 1, 2013, 0, 0) + reply)
    client.close()
"""
RESTORE = """
import shutil, sys
open(STATE + "/restored", "w").write("\\n".join(sys.argv[1:]))
source = sys.argv[-1].removeprefix("--archive=")
shutil.copyfile(source, STATE + "/kept.gz")
said = "COUNT document(s) restored successfully. 0 document(s) failed to restore."
sys.stderr.write("2022-06-22T10:00:00 " + said + "\\n")
sys.exit(STATUS)
"""
DUMP = """
import shutil, sys
[target] = [one.removeprefix("--archive=") for one in sys.argv if one.startswith("--archive=")]
shutil.copyfile(STATE + "/LEFT", target)
"""


def packed(*numbers: int) -> bytes:
    return gzip.compress(b"".join(bson.encode({"_id": n, "text": f"text {n}"}) for n in numbers))


class Fake:
    """A MongoDB on the PATH, and what it is to do."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.state = parent / "state"
        self.programs = parent / "bin"
        for path in (self.state, self.programs):
            path.mkdir()
            path.chmod(0o777)
        self.make()

    def make(self, *, count: int = 120, status: int = 0, left: str = "kept.gz") -> None:
        account = Account.for_database("mongodb")
        python, _ = next(software.pythons("print(1)", account))
        for name, text in {"mongod": MONGOD, "mongorestore": RESTORE, "mongodump": DUMP}.items():
            text = text.replace("COUNT", str(count)).replace("STATUS", str(status)).replace("LEFT", left)
            path = self.programs / name
            path.write_text(f"#!{python}\nSTATE = {str(self.state)!r}\n{text}")
            path.chmod(0o755)


@pytest.fixture
def fake(parent: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(parent)
    monkeypatch.setenv("PATH", f"{made.programs}:{os.environ['PATH']}")
    return made


def workload(fake: Fake, data: bytes, **values: object) -> MongoRestore:
    path = fake.parent / "own.gz"
    path.write_bytes(data)
    return MongoRestore({"file": str(path), **values})


def test_both_programs_are_used_and_what_they_did_is_proved(fake: Fake) -> None:
    work = fake.parent / "work"
    work.mkdir(mode=0o755)
    with running(workload(fake, packed(*range(120)), leaf_page="64K"), parent=work) as made:
        assert made.check() == "MongoDB 5.0.9"
        assert len(made.pids()) == 2
        journal = made.role_paths()["data"] / "journal"
        assert journal.resolve() == made.role_paths()["wal"]
        assert list(made.role_paths()["wal"].iterdir())
        result = made.verify(made.run())
        assert result.operations == 120 and all(check.ok for check in result.checks)
        assert result.details["settings"]["block_compressor"] == "snappy"
    assert list(work.iterdir()) == []
    arguments = (fake.state / "arguments").read_text().split("\n")
    said = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert said["--bind_ip"] == "127.0.0.1" and said["--syncdelay"] == "60"
    assert said["--wiredTigerCollectionConfigString"] == "leaf_page_max=65536"
    assert said["--wiredTigerEngineConfigString"] == f"cache_size={64 << 20}"
    assert b"fsync" in (fake.state / "asked").read_bytes()
    restored = (fake.state / "restored").read_text().split("\n")
    assert restored[-1].endswith("/documents.bson.gz") and "--gzip" in restored
    assert {"--db=ztune", "--collection=documents", '--writeConcern={"w": 1, "j": true}'} <= set(restored)
    assert restored[0].startswith("--uri=mongodb://%2F") and restored[0].endswith(".sock/")


def test_an_archive_is_restored_as_one(fake: Fake) -> None:
    fake.make(count=4)
    with running(workload(fake, WHOLE, sync="off"), parent=fake.parent) as made:
        result = made.verify(made.run())
        assert {check.name for check in result.checks} >= {"documents in shop.a", "documents in shop.b"}
    restored = (fake.state / "restored").read_text().split("\n")
    assert restored[-1].startswith("--archive=/") and "--nsExclude=admin.*" in restored
    assert '--writeConcern={"w": 1, "j": false}' in restored


@pytest.mark.parametrize(
    ("count", "status", "left", "said"),
    [
        (119, 0, "kept.gz", "documents restored should be 120 but is 119"),
        (120, 0, "less.gz", "documents in ztune.documents should be 120 but is 119"),
        (120, 0, "other.gz", "sum over all documents should be"),
        (120, 0, "cut.gz", "what mongodump read back is no whole archive"),
        (120, 1, "kept.gz", "mongorestore ended with exit code 1: 2022-06-22T10:00:00 120 document"),
    ],
)
def test_what_was_not_done_is_found(fake: Fake, count: int, status: int, left: str, said: str) -> None:
    for name, data in {
        "less.gz": packed(*range(119)),
        "other.gz": packed(*range(119), 500),
        "cut.gz": packed(*range(120))[:-9],
    }.items():
        (fake.state / name).write_bytes(data)
    fake.make(count=count, status=status, left=left)
    told = pytest.raises(ZtuneError, match=said)
    with told, running(workload(fake, packed(*range(120))), parent=fake.parent) as made:
        made.verify(made.run())


def test_a_checkpoint_that_is_refused_is_told(fake: Fake) -> None:
    (fake.state / "refuses").touch()
    told = pytest.raises(ZtuneError, match="mongod refused fsync: no disk")
    with told, running(workload(fake, packed(1, 2)), parent=fake.parent) as made:
        made.run()


def test_a_server_that_dies_is_told(fake: Fake) -> None:
    told = pytest.raises(ZtuneError, match=r"mongod died during the work \(was ended by SIGKILL\)")
    with told, running(workload(fake, packed(1, 2)), parent=fake.parent) as made:
        os.kill(made.pids()[0], 9)
        made.run()


@pytest.mark.parametrize(
    ("values", "database", "said"),
    [
        ({"batch": 10}, {}, "mongorestore sends 1000 documents at once"),
        ({"block_compressor": "lz4"}, {}, "which MongoDB does not have"),
        ({}, {"log.file_max": "1000000"}, "one that mongod has no option for"),
    ],
)
def test_what_it_can_not_do_is_refused(
    fake: Fake, values: dict[str, object], database: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Job(workload(fake, packed(1), **values).resolved(), database).check()


def test_both_programs_must_be_there(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake.programs))
    assert mongod.is_here()
    (fake.programs / "mongodump").unlink()
    with pytest.raises(MissingError, match="mongodump was not found"):
        workload(fake, packed(1)).check()
    (fake.programs / "mongorestore").unlink()
    assert not mongod.is_here()
    with pytest.raises(MissingError, match="mongorestore was not found"):
        workload(fake, packed(1), engine="mongod").check()


def test_the_socket_is_its_user_s_own(fake: Fake) -> None:
    job = Job(workload(fake, packed(1)).resolved())
    try:
        job.prepare(WorkDir.create("mongo", parent=fake.parent), None)
        assert stat.S_IMODE(job.server.socket_dir.stat().st_mode) == 0o700
    finally:
        job.cleanup()
