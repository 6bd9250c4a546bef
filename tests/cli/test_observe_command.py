"""``ztune observe`` as a user runs it: a live process, files of other tools, what is wrong with the words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from invoked import invoke
from observations import group, observation

from ztune.cli.main import ztune
from ztune.errors import InputError
from ztune.hosts.asking import HostAnswer
from ztune.observe.model import Observation, ObservedFiles
from ztune.observe.subjects import ObservedSubject

HISTOGRAM = """
  wal
           value  ------------- Distribution ------------- count
           32768 |                                         0
           65536 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 102876
          131072 |                                         0

"""
# Writes 8 KiB, syncs, and goes on until it is killed; creates no file while it is watched.
WRITER = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(f, bytes(1 << 20), 0)
print("ready", flush=True)
i = 0
while True:
    os.pwrite(f, os.urandom(8192), (i * 37 % 128) * 8192); os.fdatasync(f)
    i += 1; time.sleep(0.005)
"""


def observe(*words: str | Path | float) -> Result:
    return CliRunner().invoke(
        ztune, ["observe", *map(str, words)], catch_exceptions=False, standalone_mode=False
    )


@pytest.fixture
def database() -> Iterator[tuple[int, Path]]:
    """A process that writes a file below a folder; its pid and the folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ztune-observed-") as folder:
        file = Path(folder) / "data" / "table"
        file.parent.mkdir()
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process.pid, Path(folder)
        process.kill()
        process.wait()
        process.stdout.close()


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names, kinds, owners and sizes below a folder, and when names changed: what observing leaves."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        s = path.lstat()
        names = s.st_mtime_ns if path.is_dir() else 0
        found[str(path)] = (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, names)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_live_process_and_a_report(database: tuple[int, Path], tmp_path: Path) -> None:
    pid, folder = database
    before = state(folder)
    page, kept = tmp_path / "report.html", tmp_path / "seen.json"
    done = observe("--pid", pid, "--seconds", 2, "--role", f"{folder}/data/**=data", "--json", "--out", page,
                   "--save", kept)  # fmt: skip
    assert state(folder) == before  # nothing made, removed or changed; the writer goes on
    found = json.loads(done.stdout)
    seen: dict[str, Any] = found["observation"]
    assert seen["source"] == "live" and seen["seconds"] >= 1.5
    if any("eBPF" in text or "BTF" in text for text in seen["limits"]):
        pytest.skip(f"the kernel can't add up here: {seen['limits'][0]}")
    (role,) = (g for g in seen["groups"] if g["kind"] == "role" and g["name"] == "data")
    assert role["writes"]["sizes"] == {"8192": role["writes"]["calls"]}
    assert role["writes"]["overwritten"] == role["writes"]["bytes"] == 8192 * role["writes"]["calls"] > 0
    # The window may begin or end between a write and its sync.
    assert abs(role["syncs"]["calls"] - role["writes"]["calls"]) <= 1
    assert {"cpu", "memory", "run_queue"} <= seen["series"].keys()
    (files,) = seen["files"]
    assert (files["role"], files["count"], files["bytes"]) == ("data", 1, 1 << 20)
    assert {c["algorithm"] for c in files["compressed"]} >= {"lz4", "zstd-3", "zstd-9", "gzip-6"}
    text = page.read_text()
    assert "What this database does" in text and "http" not in text.partition("</style>")[2]
    assert "1M to 2M: 1 of 1 files" in text
    again = json.loads(observe("--from", kept, "--json").stdout)
    assert again["observation"] == seen and again["findings"] == found["findings"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_in_the_terminal(database: tuple[int, Path]) -> None:
    _, folder = database
    done = observe(
        "--path", folder, "--seconds", 1.5, "--no-files", "--all", "--role", f"{folder}/data/**=data"
    )
    for part in (f"folder {folder}", "Findings", "Writes", "data write sizes", "Not known"):
        assert part in done.stdout, part
    assert "Sampled blocks" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_interrupted_one_keeps_what_was_seen(database: tuple[int, Path], tmp_path: Path) -> None:
    pid, folder = database
    command = [sys.executable, "-c", "from ztune.cli.main import main; main()", "observe", "--pid", str(pid)]
    process = subprocess.Popen(
        [*command, "--seconds", "600", "--role", f"{folder}/data/**=data", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None and "observing process" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    seen = json.loads(out)["observation"]
    assert seen["seconds"] < 100 and any(g["kind"] == "role" for g in seen["groups"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_of_no_known_role_are_said_first_and_not_that_all_is_well(
    database: tuple[int, Path], tmp_path: Path
) -> None:
    _, folder = database
    page, kept = tmp_path / "report.html", tmp_path / "seen.json"
    done = observe("--path", folder, "--seconds", 1.5, "--no-files", "--out", page, "--save", kept)
    if "eBPF" in done.stdout or "BTF" in done.stdout:
        pytest.skip("the kernel can't add up here")
    text = " ".join(done.stdout.partition(" s\n")[2].split())
    assert text.startswith("No file's role is known, so no rule about record sizes or the log could be asked")
    assert "--role 'GLOB=ROLE'" in text
    assert f"did: --role {folder}/data/table=data (overwritten in place, in pieces of 8K)." in text
    assert "rules fire" not in done.stdout and "of the rules fires" not in page.read_text()
    assert "No file's role is known" in page.read_text().replace("&#39;", "'")
    assert json.loads(observe("--from", kept, "--json").stdout)["unknown_roles"]
    known = observe("--path", folder, "--seconds", 1.5, "--no-files", "--role", f"{folder}/**=data", "--json")
    assert json.loads(known.stdout)["unknown_roles"] == ""


def test_a_histogram_of_another_tool(tmp_path: Path) -> None:
    file, page = tmp_path / "writes.txt", tmp_path / "r.html"
    file.write_text(HISTOGRAM)
    done = observe("--from", file, "--as", "write-sizes", "--out", page)
    assert "recordsize 64K" in " ".join(done.stdout.split())
    assert "102,876" in page.read_text()


def test_no_file_is_written_over_another_that_was_named(tmp_path: Path) -> None:
    file, other = tmp_path / "writes.txt", tmp_path / "other"
    file.write_text(HISTOGRAM)
    read = ["--from", str(file), "--as", "write-sizes"]
    for flag in ("--out", "--save"):
        with pytest.raises(InputError, match=f"{flag} would replace the file of --from"):
            observe(*read, flag, f"{tmp_path}/./writes.txt")
    with pytest.raises(InputError, match="--out would replace the file of --save"):
        observe(*read, "--out", other, "--save", other)
    assert observe(*read, "--out", "/dev/null", "--save", "/dev/null").exit_code == 0
    assert file.read_text() == HISTOGRAM and not other.exists()


def test_what_json_printed_is_read_again(tmp_path: Path) -> None:
    file, printed = tmp_path / "writes.txt", tmp_path / "printed.json"
    file.write_text(HISTOGRAM)
    printed.write_text(observe("--from", file, "--as", "write-sizes", "--json").stdout)
    assert observe("--from", printed, "--json").stdout == printed.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what to observe with one of --pid, --unit, --dataset and --path"),
        (["--pid", 1, "--path", "/"], "not with --pid and --path at once"),
        (["--pid", 2**22 + 1], "there is no process"),
        (["--path", "/nowhere/at/all"], "there is no folder /nowhere/at/all"),
        (["--dataset", "nopool/none"], "no dataset nopool/none is mounted"),
        (["--unit", "ztune-no-such-unit"], "ztune-no-such-unit.service is not running here"),
        (["--pid", 1, "--as", "write-sizes"], "--as and --format say what --from reads"),
        (["--from", "x", "--seconds", 3], "--from reads files: leave out --pid, "),
        (["--from", "x", "--calls"], "--from reads files: leave out --pid, "),
        (["--from", "x", "--sample", "1/8"], "--from reads files: leave out --pid, "),
        (["--pid", 1, "--sample", "1/65"], "--sample: 1/65 of the time is too little; 1/64 is the least"),
        (["--pid", 1, "--sample", "8"], '--sample: "8" is no rate; write 1/N'),
        (["--path", "/", "--calls"], "--calls times all calls of processes: it goes with --pid or --unit"),
        (["--from", "/nowhere/file"], "/nowhere/file"),
        (["--pid", 1, "--role", "x=nonsense"], "names no known role"),
    ],
)
def test_bad_words_get_one_sentence(words: list[Any], sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from ztune.cli.main import main; main()", "observe", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_windows_that_follow_each_other_look_at_the_files_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    clock = [0.0]
    data = ObservedFiles(role="data", count=3, bytes=1, allocated=1)

    def look(*how: Any, quiet: bool) -> Observation:
        asked.append(how[5])
        return observation().model_copy(update={"files": (data,) if how[5] else ()})

    def serve(answers: Callable[[], Sequence[HostAnswer]], *_: object) -> int:
        for clock[0] in (0, 60, 3599, 3600):
            assert [answer.seen.files for answer in answers() if answer.seen] == [(data,)]
        return 0

    monkeypatch.setattr("ztune.cli.observe._observe", look)
    monkeypatch.setattr("ztune.cli._hosts.watch", serve)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    result = observe("--pid", os.getpid(), "--metrics", ":9743", "--seconds", 5)
    assert (result.return_value, asked) == (0, [True, False, False, True])


def test_why_settings_are_not_known_is_said_where_they_are_counted() -> None:
    why = "the server could not be asked (Access denied), and its option files do not set it"
    unknown = dict.fromkeys(["innodb_page_size", "innodb_doublewrite"], why)
    database = {"kind": "mariadb", "where": "/srv/db", "settings": {}, "unknown": unknown}
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "seen.json"
        saved.write_text(json.dumps(observation(databases=[database]).to_json()))
        shown = " ".join(observe("--from", saved, "--all").output.split())
    assert f"0 settings read, 2 are unknown: {why};" in shown


def test_the_first_screen_has_the_answer_and_the_rest_is_a_flag_away(tmp_path: Path) -> None:
    """Of a server that does much an observation was 250 lines long, with what matters above the screen."""
    writes = {"calls": 900, "bytes": 900 << 13, "sizes": {1 << i: 90 for i in range(9, 19)}}
    syncs = {"calls": 90, "latency": {1 << i: 9 for i in range(16, 26)}, "latency_total": 10**8}
    group = {"reads": writes, "writes": writes, "syncs": syncs}
    roles = ("data", "index", "wal", "temp", "backup", "archive")
    seen = observation(
        groups=[{"kind": "role", "name": role, **group} for role in roles],
        limits=[f"Limit {number} is this. It has more to say." for number in range(9)],
    )
    saved = tmp_path / "seen.json"
    saved.write_text(json.dumps(seen.to_json()))
    first, everything = observe("--from", saved).output, observe("--from", saved, "--all").output
    assert first.count("\n") < 40 < 90 < everything.count("\n")
    assert all(f"\n{role} " in first for role in roles) and "evidence:" in everything
    assert "Limit 2 is this." in first and "Limit 3" not in first and "6 more limits" in first


def test_what_to_do_is_not_cut_in_the_middle_of_a_sentence(tmp_path: Path) -> None:
    """ "Leave recordsize at the default of 128K" is the half of it: "; 1M where they are large" follows."""
    saved = tmp_path / "seen.json"
    written = group("backup", None, writes__sequential=9999, writes__overwritten=0, reads__calls=0)
    saved.write_text(json.dumps(observation(groups=[written]).to_json()))
    shown = " ".join(observe("--from", saved).output.split())
    assert "default of 128K for these files; 1M where they are large and read as they were written." in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every", "5"], "--every goes with --metrics :PORT"),
        (["--every", "5", "--metrics", "m.prom"], "--every goes with --metrics :PORT"),
        (["--metrics", ":9743", "--out", "o.html"], "leave out --out, --save and --json"),
        (["--metrics", ":9743", "--save", "o.json"], "leave out --out, --save and --json"),
        (["--metrics", ":9743", "--json"], "leave out --out, --save and --json"),
    ],
)
def test_what_would_do_nothing_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        observe("--pid", os.getpid(), *words)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("flag", ["--out", "--save", "--metrics"])
def test_what_was_seen_is_shown_before_a_disk_is_found_full(flag: str, tmp_path: Path) -> None:
    saved = tmp_path / "seen.json"
    saved.write_text(json.dumps(observation().to_json()))
    code, out, err = invoke("observe", "--from", str(saved), flag, "/dev/full")
    assert (code, "No space left" in err) == (1, True)
    assert "--all" in out


def test_a_place_for_metrics_is_looked_at_before_the_window(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its directory does not exist"):
        observe("--pid", os.getpid(), "--metrics", tmp_path / "none" / "m.prom")


def test_metrics_of_a_unit_outlive_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is stopped for an upgrade ended the metrics for good, without a word."""
    there = [True]
    subject = ObservedSubject("unit", "pg.service", "unit pg.service", pids=(1,))

    def chosen(*_: object, **named: object) -> ObservedSubject:
        if not there[0]:
            raise InputError("the unit pg.service is not running here: it has no control group")
        return subject

    told: list[HostAnswer] = []

    def serve(ask: Callable[[], Sequence[HostAnswer]], where: str, every: float, expected: object) -> int:
        for there[0] in (True, False, True):
            told.extend(ask())
        return 0

    monkeypatch.setattr("ztune.cli.observe.choose", chosen)
    monkeypatch.setattr("ztune.cli.observe._observe", lambda *_, quiet: observation(seconds=5.0))
    monkeypatch.setattr("ztune.cli._hosts.watch", serve)
    result = observe("--unit", "pg", "--metrics", ":9743", "--seconds", 5)
    assert result.return_value == 0
    assert [one.seen is not None for one in told] == [True, False, True]
    assert "not running" in told[1].why and result.stderr.count("not running") == 1
