from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console
from trace_builder import MS, S, build, files

from ztune import output
from ztune.cli import record
from ztune.cli.main import main
from ztune.trace import view
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op


@dataclass
class Ran:
    returncode: int
    stdout: str
    stderr: str


def ztune(*arguments: object, columns: int = 80, encoding: str = "utf-8") -> Ran:
    """Run the command as a user without a terminal would, but in this process: starting Python takes long."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(one, encoding) for one in written)
    with (
        mock.patch.dict(os.environ, COLUMNS=str(columns)),
        mock.patch.object(sys, "argv", ["ztune", "trace", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    out.flush()
    err.flush()
    return Ran(int(ended.value.code or 0), *(one.getvalue().decode(encoding) for one in written))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    events: list[dict[str, int]] = []
    for n in range(200):
        events += [
            {
                "t": n * 20 * MS,
                "op": Op.WRITE,
                "flags": Flag.POSITIONED,
                "file": 1,
                "offset": n * 8192,
                "size": 8192,
                "tid": 5,
            },
            {"t": n * 20 * MS + 1, "dur": 2 * MS, "op": Op.FDATASYNC, "file": 1, "tid": 5},
            {
                "t": n * 20 * MS + 2,
                "op": Op.READ,
                "file": 0,
                "offset": (n * 37 % 100) * 8192,
                "size": 8192,
                "tid": 6,
            },
        ]
    events.append({"t": 4 * S, "op": Op.WRITE, "file": 2, "offset": 0, "size": 70, "tid": 7})
    return build(
        tmp_path_factory.mktemp("cli") / "oltp.trace",
        events,
        files(
            ("/srv/pg/base/5/1", "data", 1 << 30),
            ("/srv/pg/pg_wal/0001", "wal", 0),
            ("/srv/pg/log.txt", None, 0),
        ),
        dropped=1234,
        command=["pgbench", "-c", "[bold]2"],
        warnings=[{"code": "shared-mmap", "message": "/x is mapped shared and writable.", "count": 3}],
        page_size={"data": 8192},
        compressibility=[
            {"role": "data", "recordsize": 8192, "algorithm": "lz4", "ratio": 2.1, "stdev": 0.2, "blocks": 64}
        ],
    )


def test_show(trace: Trace) -> None:
    result = ztune("show", trace.path)
    assert result.returncode == 0, result.stderr
    out = result.stdout
    for part in (
        "oltp  pgbench -c [bold]2",
        "1,234 events were dropped: every count and byte below is too low",
        "/x is mapped shared and writable. (3 times)",
        "wal write sizes",
        "data read sizes",
        "2.10",
        "syncs/s",
    ):
        assert part in out
    [wal] = [line.split() for line in out.splitlines() if line.startswith("wal") and "%" in line]
    #      role   calls  bytes   mean seq.   sync    over  aligned       touched
    assert wal == ["wal", "200", "1.56M", "8K", ">99%", "100%", "0%", "100%", "8K", "1.56M"]
    [syncs] = [
        line.split()
        for line in out.splitlines()
        if line.startswith("wal") and "200   " in line and "%" not in line
    ]
    assert syncs[-5:] == ["200", "20.0", "2", "2", "2"]
    # The last of the seconds that are drawn may be a part of one.
    assert "mean 20, most" in out
    heads = ["call", "calls", "mean", "std.", "dev."]
    by_call = [line.split() for line in out.splitlines()]
    assert by_call[by_call.index(heads) + 1 :].count(["pwrite", "200", "8K", "0B"]) == 1


@pytest.mark.parametrize("columns", [60, 80, 140, 300])
@pytest.mark.parametrize("by", ["role", "file"])
def test_no_line_is_wider_than_the_terminal(trace: Trace, columns: int, by: str) -> None:
    lines = ztune("show", trace.path, "--by", by, columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    if columns >= 80:
        assert not any("…" in line for line in lines)


def test_a_terminal_without_unicode(trace: Trace) -> None:
    result = ztune("show", trace.path, encoding="ascii")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert "@@@" in result.stdout


@pytest.mark.parametrize("spinning", [True, False])
def test_what_is_done_after_a_command_has_ended_is_shown(
    monkeypatch: pytest.MonkeyPatch, spinning: bool
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda stderr: Console(file=shown, force_terminal=stderr))
    with record._progress(spinning) as (say, tick):
        if spinning:
            tick(1.0, None)
        # The terminal is the command's until it ends.
        assert bool(shown.getvalue()) == spinning
        say("writing the trace")
    assert "writing the trace" in shown.getvalue()


def test_when_it_was_recorded_is_when_that_began(trace: Trace) -> None:
    at = 1_790_000_000 * S  # an hour's recording is written an hour later
    for began, said in ((at, "began 2026-09-21 14:13:20 UTC"), (0, f"written {trace.manifest.created[:10]}")):
        manifest = trace.manifest.model_copy(update={"started_unix_ns": began})
        assert view._when(manifest).startswith(said)
    shown = " ".join(ztune("show", trace.path).stdout.split())
    assert view._when(trace.manifest) in shown


def test_no_warning_about_drops_where_there_were_none(tmp_path: Path) -> None:
    trace = build(tmp_path / "a.trace", [], files(("/a", "data", 0)))
    assert "dropped" not in ztune("show", trace.path).stdout


def test_what_a_cut_recording_has_is_not_too_low(tmp_path: Path) -> None:
    trace = build(tmp_path / "a.trace", [], files(("/a", "data", 0)), complete=False)
    assert "too low" not in ztune("show", trace.path).stdout


def test_show_json(trace: Trace) -> None:
    data = json.loads(ztune("show", trace.path, "--json").stdout)
    assert data["trace"]["dropped"] == 1234
    assert [one["name"] for one in data["roles"]] == ["data", "wal", "none"]
    wal = data["roles"][1]
    assert wal["writes"]["sizes"] == {"8192": 200}
    assert wal["sync_share"] == 1.0
    assert sum(data["rates"]["roles"]["wal"]["syncs"]) == 200
    one = json.loads(ztune("show", trace.path, "--json", "--role", "wal").stdout)
    assert one["roles"] == [wal]
    assert list(one["rates"]["roles"]) == ["wal"]


def test_show_json_by_file(trace: Trace) -> None:
    data = json.loads(ztune("show", trace.path, "--json", "--by", "file", "--top", "1").stdout)
    assert [one["name"] for one in data["files"]] == ["/srv/pg/base/5/1"]
    data = json.loads(ztune("show", trace.path, "--json", "--by", "file", "--role", "none").stdout)
    assert [one["name"] for one in data["files"]] == ["/srv/pg/log.txt"]


def test_show_by_file_names_the_common_folder_once(trace: Trace) -> None:
    out = ztune("show", trace.path, "--by", "file", "--top", "2").stdout
    assert "below /srv/pg" in out
    assert "\nbase/5/1 " in out
    assert "and 1 more files" in out


def test_files(trace: Trace) -> None:
    assert "/srv/pg/log.txt" in ztune("files", trace.path).stdout
    listed = json.loads(ztune("files", trace.path, "--role", "none", "--json").stdout)
    assert [one["path"] for one in listed] == ["/srv/pg/log.txt"]


@pytest.mark.parametrize("command", ["roles", "files"])
def test_a_trace_without_files_says_so(tmp_path: Path, command: str) -> None:
    empty = build(tmp_path / "empty.trace", [], files())
    assert ztune(command, empty.path).stdout == "The trace names no files.\n"
    assert ztune(command, empty.path, "--json").stdout.strip() == "[]"


def test_check(trace: Trace) -> None:
    assert "601 events, whole and unchanged; 1,234 were dropped" in ztune("check", trace.path).stdout
    assert json.loads(ztune("check", trace.path, "--json").stdout)["sha256"] == trace.sha


def test_export(trace: Trace, tmp_path: Path) -> None:
    result = ztune("export-ops", trace.path, tmp_path / "ops.bin", "--json")
    data = json.loads(result.stdout)
    assert (data["nops"], data["threads"], data["left_out"]) == (600, 2, 1)
    assert (tmp_path / "ops.bin").stat().st_size == 32 + 600 * 64


def test_an_export_does_not_take_the_place_of_what_was_recorded(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(trace.path / "events.parquet")
    for out in (trace.path / "events.parquet", trace.path / "trace.json", tmp_path / "link"):
        result = ztune("export-ops", trace.path, out)
        assert (result.returncode, result.stderr.count("is within the trace")) == (2, 1)
    assert ztune("check", trace.path).returncode == 0


@pytest.mark.parametrize("command", ["show", "files", "check"])
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, command: str) -> None:
    result = ztune(command, tmp_path / "none.trace")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ztune: there is no trace")
    assert result.stderr.count("\n") == 1


def test_a_role_that_no_file_has(trace: Trace) -> None:
    result = ztune("show", trace.path, "--role", "index")
    assert result.returncode == 2
    assert "it has: data, wal, none" in result.stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0B"),
        (1, "1B"),
        (1023, "1023B"),
        (1024, "1K"),
        (8192, "8K"),
        (1536, "1.5K"),
        (1000 * 1024, "1000K"),
        (123456789, "117M"),
        (1 << 40, "1T"),
        (2**63 - 1, "8E"),
        (1023.99 * 1024, "1024K"),
    ],
)
def test_sizes_as_text(value: float, text: str) -> None:
    assert view.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100k"), (1_234_567, "1.23M"), (5e15, "5.00P")],
)
def test_counts_as_text(value: float, text: str) -> None:
    assert view.count(value) == text


def test_shares_never_round_to_none_or_all() -> None:
    assert [view.share(value) for value in (0, 1e-9, 0.005, 0.5, 0.999, 1)] == [
        "0%",
        "<1%",
        "<1%",
        "50%",
        ">99%",
        "100%",
    ]


def test_sparklines() -> None:
    assert view.sparkline([0, 1, 8, 4], 10) == " ▁█▄"
    assert view.sparkline([1, 1, 3, 3], 2) == "▃█"
    assert view.sparkline([], 10) == ""
    assert view.sparkline([0, 0], 10) == "  "
    assert view.sparkline([1e-9, 1], 10) == "▁█"  # a little is seen


def test_common_folder() -> None:
    assert view.common_folder(["/a/b/c", "/a/b/d/e"]) == "/a/b"
    assert view.common_folder(["/a/b", "/c/d"]) == ""
    assert view.common_folder(["socket:[1]", "/a/b"]) == ""
    assert view.common_folder([]) == ""


def test_every_command_is_documented_with_an_example() -> None:
    from ztune.cli.trace import command

    page = (Path(__file__).parents[2] / "docs/trace-format.md").read_text()
    for name, one in command.commands.items():
        assert "Example" in (one.help or ""), name
        assert f"ztune trace {name}" in page


def test_windows_are_one_column_each(tmp_path: Path) -> None:
    event = {"t": 0, "op": Op.WRITE, "flags": Flag.POSITIONED, "file": 0, "offset": 0, "size": 8192}
    windows = [{"t": n * S, "duration_ns": S, "started_unix_ns": n * 60 * S} for n in (0, 1)]
    made = build(tmp_path / "w.trace", [event], files(("/d/a", "data", 0)), windows=windows)
    lines = ztune("show", made.path).stdout.splitlines()
    head = next(line for line in lines if "window began" in line)
    assert head.split() == ["window", "began", "second", "seconds"]


@pytest.mark.parametrize(
    ("role", "events", "then"), [("data", 1, "ztune screen "), (None, 1, "ztune trace roles "), (None, 0, "")]
)
def test_what_to_do_next_fits_the_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str | None, events: int, then: str
) -> None:
    event = {"t": 0, "op": Op.WRITE, "flags": Flag.POSITIONED, "file": 0, "offset": 0, "size": 8192}
    record._print(build(tmp_path / "a.trace", [event] * events, files(("/d/a", role, 0))), None)
    said = capsys.readouterr().err
    assert then + f"{tmp_path}/a.trace" in said if then else "Next" not in said


def test_where_much_is_left_out_roles_are_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"t": 0, "op": Op.WRITE, "flags": Flag.POSITIONED, "offset": 0, "size": 8 << 20}
    events = [{**event, "file": 0}, {**event, "file": 1}]
    record._print(build(tmp_path / "a.trace", events, files(("/d/a", "data", 0), ("/d/b", None, 0))), None)
    assert f"ztune trace roles {tmp_path}/a.trace" in capsys.readouterr().err
