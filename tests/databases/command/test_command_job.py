"""The workload ``command``: the documentation's example as it stands, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from ztune.databases.command.onhost.commands import parse
from ztune.databases.command.workload import Command
from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Identity
from ztune.onhost.host.workdir import WorkDir

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"

# No server: the measure command is the database.
PLAIN = """
name = "lines"
version = "echo 1.0"
roles = ["data"]
load = 'echo first > "$ZTUNE_DATA/lines"'
measure = 'for i in 1 2 3; do echo $word >> "$ZTUNE_DATA/lines"; done; sync; echo did 3 in 0.25 s'
operations = 'did ([0-9]+)'
seconds = 'in ([0-9.]+) s'
[settings]
word = "usual"
[[check]]
name = "lines with the word"
command = 'grep -c "^$word$" "$ZTUNE_DATA/lines"'
expect = "{operations}"
"""


def example() -> str:
    section = PAGE.read_text(encoding="utf-8").partition("\n## command\n")[2]
    found = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def made(text: str, **database: str) -> Command:
    return Command({"file": "my.toml", "file_text": text}, database=database)


def places_of(parent: Path) -> dict[str, Path]:
    found = {role: parent / role for role in ("data", "wal")}
    for path in found.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    return found


def test_the_example_of_the_page_works(needs_postgres: None, parent: Path, tmp_path: Path) -> None:
    text = example().replace("/usr/lib/postgresql/15/bin", str(find_binaries().directory))
    path = tmp_path / "my-postgres.toml"
    path.write_text(text)
    first = Command({"file": str(path)})
    loaded = places_of(parent / "first")
    first.prepare(WorkDir.create("cmd", parent=parent), loaded)
    first.load()
    first.stop()
    first.cleanup()
    # As a trial does it: copied elsewhere, with a setting of the layout's.
    workload = Command({"file": str(path)}, database={"full_page_writes": "off"})
    places = places_of(parent / "second")
    workload.prepare(WorkDir.create("cmd", parent=parent), places)
    try:
        for role, source in loaded.items():
            shutil.copytree(source, places[role], symlinks=True, dirs_exist_ok=True)
        workload.job.adopt(places)
        assert (places["data"] / "db/pg_wal").readlink() == places["wal"] / "log"
        workload.start()
        server, shell = workload.pids()
        result = workload.verify(workload.run())
        assert result.operations > 0 and result.unit == "transaction" and 1.5 < result.seconds < 20
        assert [check.name for check in result.checks] == ["some operations were done", "rows in the history"]
        assert workload.page_sizes() == {"data": 8192}
        assert "PostgreSQL" in workload.check()
        assert b"full_page_writes=off" in Path(f"/proc/{server}/cmdline").read_bytes()
        workload.stop()
        assert Identity.of(server) is None and Identity.of(shell) is None
        assert not (places["data"] / "db/postmaster.pid").exists()
    finally:
        workload.cleanup()


def test_a_server_that_dies_or_does_not_start_is_told_with_its_last_words(parent: Path) -> None:
    server = PLAIN.replace("[settings]", 'start = "echo starting; exec sleep 60"\nready = "true"\n[settings]')
    workload = made(server.replace("for i in", "sleep 20; for i in"))
    died = r"lines died during the work \(was ended by SIGKILL\); its log ends: starting"
    with pytest.raises(ZtuneError, match=died), running(workload, parent=parent):

        def kill(_step: str, _done: float) -> None:
            os.kill(workload.pids()[0], signal.SIGKILL)

        workload.run(kill)
    assert list(parent.iterdir()) == []
    cases = {
        "echo no licence; exit 3": r"did not start \(ended with exit code 3\); its log ends: no licence",
        "exec sleep 60": r"within 1 s; the last time, lines: ready .*exit code 1.*: no socket; its log ends",
    }
    for command, said in cases.items():
        text = server.replace("echo starting; exec sleep 60", command).replace(
            'ready = "true"', 'ready = "echo no socket; false"'
        )
        limited = made(text + "[limits]\nstart = 1\n")
        with pytest.raises(InputError, match=said), running(limited, parent=parent):
            pass
    assert list(parent.iterdir()) == []


def test_without_a_server_and_with_a_setting_of_the_layout(parent: Path) -> None:
    with running(made(PLAIN, word="other"), parent=parent) as workload:
        [shell] = workload.pids()
        result = workload.verify(workload.run())
        assert (result.operations, result.seconds, result.unit) == (3, 0.25, "operation")
        assert result.details["settings"] == {"word": "other"}
        assert (workload.role_paths()["data"] / "lines").read_text() == "first\nother\nother\nother\n"
        assert Identity.of(shell) is not None
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1 2 3", "1 2", "the job was not done: lines with the word should be 3 but is 2"),
        ("did 3", "did nothing", "no number matches operations = 'did .*it ends: did nothing in 0.25 s"),
        ("did 3", "did 0", "some operations were done should be yes but is no"),
        (
            "; sync",
            "; echo the disk is full; exit 7",
            "lines: measure ended with exit code 7: the disk is full",
        ),
        ("echo first >", "echo no room >&2; exit 4 >", "lines: load ended with exit code 4: no room"),
    ],
)
def test_work_that_was_not_done_is_found(parent: Path, old: str, new: str, said: str) -> None:
    with (
        pytest.raises(ZtuneError, match=said),
        running(made(PLAIN.replace(old, new)), parent=parent) as workload,
    ):
        workload.verify(workload.run())
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name =", "nmae =", "my.toml: 'nmae' is not known; did you mean 'name'"),
        ('version = "echo 1.0"', "", "my.toml: version is missing"),
        ('roles = ["data"]', 'roles = ["log"]', "roles must list some of data, wal"),
        ("did ([0-9]+)", "did [0-9]+", "operations must have one group"),
        ("did ([0-9]+)", "did ([0-9]+", "operations is no regular expression"),
        ('word = "usual"', 'Word = "usual"', "settings: 'Word' can't be used"),
        ('word = "usual"', "word = 1.5", "settings.* must hold names and str or int values"),
        ("[settings]", 'start = "x"\n[settings]', "start and ready belong together"),
        ("[settings]", 'stop = "x"\n[settings]', "stop is for a server"),
        ("[settings]", "[limits]\nlaod = 3\n[settings]", "limits has no 'laod'"),
        ('expect = "{operations}"', "", "each .*check.* has name, command and expect"),
        ('name = "lines"', "name = ", "it is not TOML"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse(PLAIN.replace(old, new, 1), "my.toml")
    assert "\n" not in str(caught.value)


def test_without_a_check_nothing_runs() -> None:
    with pytest.raises(InputError, match=r"there is no \[\[check\]\]"):
        parse(PLAIN.partition("[[check]]")[0], "my.toml")
    with pytest.raises(InputError, match="name the file that describes your database"):
        Command({})
    with pytest.raises(InputError, match=r"command file /no/such.toml: No such file"):
        Command({"file": "/no/such.toml"})
    with pytest.raises(InputError, match=r"the layout sets 'size', but \[settings\] of my.toml has word"):
        made(PLAIN, size="1").check()
    with pytest.raises(MissingError, match=r"lines is not here: `no-such-db --version`: .*not found"):
        made(PLAIN.replace("echo 1.0", "no-such-db --version")).check()
