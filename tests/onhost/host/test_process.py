from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.own_directory import NotOursError
from ztune.onhost.host.process import Account, Program, ending, ends_within, last_lines, run
from ztune.onhost.jobs import role_directories as places

ME = Account("me", os.geteuid(), os.getegid(), switch=False)
SHELL = "/bin/sh"


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(condition: object, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_output_and_lines(tmp_path: Path) -> None:
    seen: list[str] = []
    out = run(
        [SHELL, "-c", "read x; echo got $x; echo note >&2"],
        what="sh",
        account=ME,
        cwd=tmp_path,
        stdin="data\n",
        on_line=seen.append,
    )
    assert out == "got data"
    assert sorted(seen) == ["got data", "note"]


def test_failure_names_the_program_and_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ZtuneError, match=r"^loader ended with exit code 3: first \| second$"):
        run([SHELL, "-c", "echo first >&2; echo second >&2; exit 3"], what="loader", account=ME, cwd=tmp_path)
    with pytest.raises(ZtuneError, match="was ended by SIGTERM: it said nothing"):
        run([SHELL, "-c", "kill -TERM $$"], what="loader", account=ME, cwd=tmp_path)


def test_missing_program(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"loader: .*/nowhere/loader is not a program"):
        run([tmp_path / "nowhere" / "loader"], what="loader", account=ME, cwd=tmp_path)


def test_our_environment_is_not_handed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATABASE", "production")
    assert "production" not in run(["/usr/bin/env"], what="env", account=ME, cwd=tmp_path)


def test_too_long_is_an_error_and_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(ZtuneError, match="did not end within 1 s"):
        run([SHELL, "-c", script], what="sh", account=ME, cwd=tmp_path, seconds=1)
    assert until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_what_the_watch_raises_ends_the_program(tmp_path: Path) -> None:
    def watch() -> None:
        if (tmp_path / "pid").exists():
            raise ZtuneError("the server died")

    with pytest.raises(ZtuneError, match="the server died"):
        run(
            [SHELL, "-c", f"echo $$ > {tmp_path}/pid; exec sleep 300"],
            what="sh",
            account=ME,
            cwd=tmp_path,
            watch=watch,
        )
    assert until(lambda: gone(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("told", [True, False], ids=["the kernel says so", "it is looked for"])
def test_an_end_is_seen(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    if not told:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    process = subprocess.Popen([SHELL, "-c", "read x; exit 3"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert not ends_within(process, 0.01) and process.returncode is None
    process.stdin.close()
    assert ends_within(process, 3e6) and process.returncode == 3
    assert ends_within(process, 0)


def test_stop_escalates(tmp_path: Path) -> None:
    script = f"trap '' INT QUIT; : > {tmp_path}/ready; while :; do sleep 0.1; done"
    program = Program.start([SHELL, "-c", script], what="deaf", account=ME, cwd=tmp_path)
    assert until((tmp_path / "ready").exists)
    program.stop([(signal.SIGINT, 0.2), (signal.SIGQUIT, 0.2)])
    assert not program.alive() and program.how_it_ended() == "was ended by SIGKILL"


def test_a_child_ends_when_ztune_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, time
from pathlib import Path
from ztune.onhost.host.process import Account, Program
p = Program.start(["/bin/sleep", "300"], what="s", account=Account("me", os.geteuid(), os.getegid(), False),
                  cwd=Path("{tmp_path}"))
Path("{tmp_path}/pid").write_text(str(p.pid)); time.sleep(300)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    # Give setpriv the time to become what it starts.
    assert until(lambda: gone(pid) or psutil.Process(pid).name() == "sleep")
    parent.kill()
    parent.wait()
    assert until(lambda: gone(pid))


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 20_000 + b"\n" + b"".join(b"line %d\n\n" % n for n in range(20)) + b"\xff\n")
    assert last_lines(log, 3) == "line 18 | line 19 | \N{REPLACEMENT CHARACTER}"
    assert last_lines(tmp_path / "none") == "" and last_lines(None) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="switching users needs root")
def test_root_never_runs_a_database_itself(tmp_path: Path) -> None:
    account = Account.for_database("no-such-user")
    assert account.name == "nobody" and account.switch and account.owner == (account.uid, account.gid)
    assert run(["/usr/bin/id", "-u"], what="id", account=account, cwd=Path("/")) == str(account.uid)
    assert run(["/usr/bin/id", "-G"], what="id", account=account, cwd=Path("/")) == str(account.gid)


def test_without_root_a_database_runs_as_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    account = Account.for_database("postgres")
    assert (account.uid, account.switch, account.owner) == (4242, False, None)


def test_why_it_died_is_said_before_how() -> None:
    lines = ["LOG: began", "PANIC: no space", *(f"LOG: shutting down {n}" for n in range(20))]
    assert ending(lines, 3) == (
        "PANIC: no space | LOG: shutting down 17 | LOG: shutting down 18 | LOG: shutting down 19"
    )
    # As a terminal shows it, and no line at full length.
    assert ending(["finished 100 ops \rfinished 200 ops \rput error: full\r", "", "x" * 400]) == (
        f"put error: full | {'x' * 300} …"
    )


def test_links_that_an_account_puts_into_its_directory_are_not_followed(tmp_path: Path) -> None:
    """Root writes logs and configurations where the database's own user may write too."""
    precious, home = tmp_path / "precious", tmp_path / "home"
    precious.write_text("irreplaceable")
    precious.chmod(0o640)
    home.mkdir()
    for name in ("log", "conf"):
        (home / name).symlink_to(precious)
    os.mkfifo(home / "fifo")
    os.link(precious, home / "linked")
    me = Account("me", os.geteuid(), os.getegid(), switch=os.geteuid() == 0)
    with pytest.raises(NotOursError, match="log is a link"):
        Program.start(["/bin/echo", "evil"], what="echo", account=me, cwd=home, log=home / "log")
    for name in ("conf", "fifo", "linked"):
        with pytest.raises(NotOursError, match=f"{name} is .*; nothing was written"):
            places.write(home / name, "evil")
    (home / "deep").mkdir()
    (home / "deep" / "link").symlink_to(precious)
    (home / "linked").unlink()
    places.hand_over(home, me)
    assert (precious.read_text(), precious.stat().st_mode & 0o777) == ("irreplaceable", 0o640)
    assert (home / "deep").stat().st_mode & 0o777 == 0o700
    places.write(home / "deep" / "file", "fine", mode=0o644)
    places.write(home / "deep" / "file", b", more", append=True)
    assert (home / "deep" / "file").read_text() == "fine, more"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has accounts for databases")
def test_a_directory_that_an_account_swaps_for_a_link_is_not_followed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    secret, home = tmp_path / "secret", tmp_path / "home"
    secret.mkdir(mode=0o700)
    (secret / "log").write_text("PANIC: irreplaceable\n")
    (tmp_path / "input").write_text("evil")
    for path in (home, home / "theirs"):
        path.mkdir()
        os.chown(path, 65534, 65534)
    (home / "deep").symlink_to(secret)
    os.chown(home / "deep", 65534, 65534, follow_symlinks=False)
    (home / "link").symlink_to(secret / "log")
    for name in ("deep/log", "deep/new", "link"):
        with pytest.raises(NotOursError, match="link"):
            places.write(home / name, "evil")
        with pytest.raises(NotOursError, match="link"):
            places.copy(tmp_path / "input", home / name)
        assert last_lines(home / name) == ""
    # A link that root made may have been moved there, too.
    (home / "theirs" / "moved").symlink_to(secret)
    with pytest.raises(NotOursError, match="belongs to user 65534"):
        places.write(home / "theirs" / "moved" / "log", "evil")
    assert [path.name for path in secret.iterdir()] == ["log"]
    assert (secret / "log").read_text() == "PANIC: irreplaceable\n"
    # A link of root's, where nobody else can make one, is part of the way.
    (tmp_path / "way").symlink_to(home)
    places.copy(tmp_path / "input", tmp_path / "way" / "theirs" / "file")
    assert last_lines(home / "theirs" / "file") == "evil"
    os.mkfifo(home / "fifo")
    assert last_lines(home / "fifo") == ""
    with pytest.raises(FileNotFoundError, match="missing/file"):
        places.write(home / "missing" / "file", "")
