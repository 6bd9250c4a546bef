"""What a database's client prints ends: a server that is any user's may answer for ever."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.host.process import all_pids
from ztune.onhost.look import reading
from ztune.onhost.look.reading import Asker, ask

ENDLESS = "while :; do printf '%065536d' 0; done"
OURSELVES = Asker(None, True)


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """Where a client notes its number."""
    return tmp_path / "pid"


def run(client: Path, script: str, by: Asker = OURSELVES) -> str:
    return ask(["sh", "-c", f"echo $$ > {client}; {script}"], {}, by)


def is_gone(client: Path) -> bool:
    """Whether the client's whole session has ended."""
    leader = int(client.read_text())
    for _ in range(100):
        found = [pid for pid in all_pids() if _session(pid) == leader]
        if not found:
            return True
        time.sleep(0.05)
    return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@pytest.mark.parametrize(
    "script",
    [
        ENDLESS,
        f"({ENDLESS}) >&2",
        f"({ENDLESS}) & wait",  # one that it started
        f"trap '' TERM PIPE; {ENDLESS}",
        "head -c 1048577 /dev/zero",  # a byte too much
    ],
)
def test_an_answer_without_end_is_one_sentence_and_ends(client: Path, script: str) -> None:
    with pytest.raises(ZtuneError) as found:
        run(client, script)
    assert str(found.value) == "sh answered with more than 1M, and was ended"
    assert is_gone(client)


def test_an_answer_as_long_as_may_be_is_whole(client: Path) -> None:
    assert len(run(client, "head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2")) == 1 << 20
    assert run(client, "") == ""
    with pytest.raises(ZtuneError, match=r"^sh: no such role$"):
        run(client, "echo some; echo no such role >&2; exit 3")


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "while :; do echo more; sleep 0.05; done",
        "sleep 60 &",  # which holds its output open
        "exec >&- 2>&-; sleep 60",  # says no more, and stays
    ],
)
def test_one_that_is_late_is_ended(client: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(reading, "CLIENT_SECONDS", 1.0)
    with pytest.raises(ZtuneError, match=r"^sh did not answer within 1 s$"):
        run(client, script)
    assert is_gone(client)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_s_client_has_the_same_bound() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chown(name, 65534, 65534)
        client = Path(name, "pid")
        with pytest.raises(ZtuneError, match=r"^sh answered with more than 1M, and was ended$"):
            run(client, ENDLESS, Asker("nobody", False))
        assert client.stat().st_uid == 65534 and is_gone(client)
