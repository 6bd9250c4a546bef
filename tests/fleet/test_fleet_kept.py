"""Files that a worker was sent."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ztune.fleet import kept
from ztune.onhost.host import shared_files
from ztune.onhost.host.room import NoRoomError
from ztune.places import engine_limits


def _bring(data: bytes, part: int = 3) -> str:
    sha = hashlib.sha256(data).hexdigest()
    for offset in range(0, len(data), part):
        kept.put(sha, offset, data[offset : offset + part], len(data))
    kept.finish(sha)
    return sha


def test_a_file_is_known_by_its_content(home: Path) -> None:
    sha = _bring(b"recording")
    found = kept.find(sha)
    assert found is not None and found.read_bytes() == b"recording"
    assert kept.missing([sha, "0" * 64]) == ["0" * 64]
    assert kept.digest(found) == sha


def test_what_arrived_broken_has_no_name(home: Path) -> None:
    sha = hashlib.sha256(b"recording").hexdigest()
    kept.put(sha, 0, b"recorder!", 9)
    with pytest.raises(OSError, match="is not the file"):
        kept.finish(sha)
    kept.put(sha, 0, b"rec", 9)
    with pytest.raises(OSError, match="has 3 bytes where part 4 begins"):
        kept.put(sha, 4, b"rding", 9)
    assert kept.find(sha) is None and not kept.kept()
    _bring(b"recording")  # a second try begins anew
    assert [path.name for path in kept.folder().iterdir()] == [sha]


@pytest.mark.parametrize("name", ["../../etc/passwd", "0" * 63, "g" * 64])
def test_what_is_no_digest_is_no_path(home: Path, name: str) -> None:
    with pytest.raises(OSError, match="is no digest"):
        kept.put(name, 0, b"", 0)


def test_what_was_not_used_for_longest_goes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROOM", 12)
    one, two = _bring(b"one-one"), _bring(b"two-two")
    assert kept.find(one) is None
    os.utime(kept.folder() / two, (1, 1))
    assert kept.find(two) is not None  # which is a use
    _bring(b"three")
    assert len(kept.kept()) == 2
    monkeypatch.setattr(kept, "ROOM", 2)
    four = _bring(b"larger than all the room there is")
    assert [path.name for path in kept.kept()] == [four]
    kept.drop()
    assert not kept.kept()


def test_a_full_disk_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_limits, "disk_bytes", lambda _folder: 8)
    with pytest.raises(NoRoomError, match=rf"do not fit into {home}"):
        kept.put("0" * 64, 0, b"123", 9)
    assert not list(kept.folder().iterdir())


def test_half_a_file_of_a_killed_worker_goes(home: Path) -> None:
    left = kept.folder() / f".{'0' * 64}.123456789abc.partial"
    left.write_bytes(b"half")
    shared_files.lock_of(left).touch()
    name = _bring(b"recording")
    assert [path.name for path in kept.folder().iterdir()] == [name]


@pytest.mark.usefixtures("home")
def test_what_arrives_at_another_worker_stays() -> None:
    sha = hashlib.sha256(b"recording").hexdigest()
    kept.put(sha, 0, b"reco", 9)
    code = "import sys; from ztune.fleet import kept; kept.drop(); kept.put(sys.argv[1], 0, b'r', 9)"
    elsewhere = ["unshare", "--pid", "--fork"] if os.geteuid() == 0 else []
    subprocess.run([*elsewhere, sys.executable, "-c", code, sha], check=True)
    kept.put(sha, 4, b"rding", 9)
    kept.finish(sha)
    assert [path.name for path in kept.kept()] == [sha]
    with pytest.raises(OSError, match="no part 0"):
        kept.put(sha, 4, b"rding", 9)
    kept.put(sha, 0, b"reco", 9)
    kept.put(sha, 0, b"record", 9)  # who sent it was cut, and begins anew
    kept.put(sha, 6, b"eng", 9)
    with pytest.raises(OSError, match="is not the file"):
        kept.finish(sha)
    assert [path.name for path in kept.folder().iterdir()] == [sha]
