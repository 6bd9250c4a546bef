"""The door through which everything is printed: names have no power over the terminal, and no module goes
around it."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.progress import Progress, TextColumn
from rich.table import Table

import ztune
from ztune import output
from ztune.errors import InputError

SOURCE = Path(ztune.__file__).parent
HOSTILE = "a\x1b[2J\x07b\x9b31mc\u202ed\x7fe\r\udcff[/x][bold]f:warning:"
WRITTEN = r"a\x1b[2J\x07b\x9b31mc\u202ed\x7fe\x0d\xff[/x][bold]f:warning:"


def test_an_encoding_that_lacks_characters_has_stand_ins() -> None:
    code = "from ztune import output; output.guard(); output.echo('16K → 8K ×0.5 (0.4 … 0.6) ±2 é')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "16K -> 8K x0.5 (0.4 ... 0.6) +-2 \\xe9\n", done.stderr


def test_control_characters_are_written_out() -> None:
    assert output.shown(HOSTILE + "\n\tnext") == WRITTEN + "\n\tnext"
    assert output.line(HOSTILE + "\n\tnext") == WRITTEN + r"\n\tnext"
    assert output.shown("größer · ×1.5 … 日本語 🙂") == "größer · ×1.5 … 日本語 🙂"
    every = "".join(map(chr, range(0x110000)))
    left = output.line(every)
    assert not any(0 <= ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) <= 0xDFFF for c in left)
    assert not set(left) & set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    left.encode()


def test_echo(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(HOSTILE)
    output.echo(HOSTILE, err=True)
    assert capsys.readouterr() == (WRITTEN + "\n", WRITTEN + "\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_rich_draws_is_markup_or_has_power(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = io.StringIO()
    if terminal:
        monkeypatch.setattr(file, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm-256color")
    console = output.Console(file=file)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(output.Text(HOSTILE, style="bold"))
    things = (HOSTILE, table, Panel(HOSTILE, title="x"), output.Text.assemble((HOSTILE, "red"), HOSTILE))
    for thing in things:
        console.print(thing)
    console.rule(output.Text(HOSTILE))
    with console.status(HOSTILE) as status:
        status.update(output.Text(HOSTILE))
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)
    text = file.getvalue()
    assert text.count(r"[/x][bold]f:warning:") >= 6
    for bad in ("\x1b[2J", "\x07", "\x9b", "\u202e", "\x7f", "\udcff"):
        assert bad not in text, repr(bad)


def test_columns_stand_below_each_other_in_spite_of_them() -> None:
    file = io.StringIO()
    table = Table("name", "value")
    for name in (HOSTILE, "plain"):
        table.add_row(name, "1")
        table.add_row(output.Text(name), "1")
    output.Console(file=file, width=200).print(table)
    assert len({len(row) for row in file.getvalue().splitlines()}) == 1


def test_json_is_exact_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({HOSTILE: [HOSTILE, "größer"]})
    text = capsys.readouterr().out
    assert json.loads(text) == {HOSTILE: [HOSTILE, "größer"]}
    assert "größer" in text and r"\u009b31m" in text and "\u202e" not in text


def test_a_name_is_plain_or_refused_in_one_sentence() -> None:
    assert output.plain("8K, zstd [/x] größer", "--name") == "8K, zstd [/x] größer"
    for bad in ("a\x1b[31m", "two\nlines", os.fsdecode(b"caf\xe9"), "a\u202eb", "\x00"):
        with pytest.raises(InputError, match=r'^--name is ".*"; a name has no control characters') as caught:
            output.plain(bad, "--name")
        assert str(caught.value).isprintable()


# --- the command as a user starts it


def start(
    tmp_path: Path, *words: str | bytes, out: str | None = None, err: str | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "ZTUNE_HOME": str(tmp_path / "home"), **env}
    command = [sys.executable, "-c", "from ztune.cli.main import main; main()", *words]
    with open(out or os.devnull, "wb") as stdout, open(err or os.devnull, "wb") as stderr:  # noqa: PTH123
        return subprocess.run(
            command,
            stdout=stdout if out else subprocess.PIPE,
            stderr=stderr if err else subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=environ,
            cwd=tmp_path,
            check=False,
        )


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "words",
    [("--help",), ("runs",), ("list", "layouts", "--schema"), ("list", "profiles")],
    ids=" ".join,
)
def test_a_full_device_behind_stdout_is_one_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = start(tmp_path, *words, out="/dev/full")
    said = done.stderr.decode()
    assert said == "ztune: standard output can't be written: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_full_device_behind_stderr_hinders_nothing(tmp_path: Path) -> None:
    done = start(tmp_path, "list", "profiles", err="/dev/full")
    assert done.returncode == 0 and b"nvme" in done.stdout
    assert start(tmp_path, "show", "nothing", out="/dev/full", err="/dev/full").returncode == 2


def test_a_closed_stdout_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from ztune.cli.main import main; main()' runs >&-"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=False,
        env={**os.environ, "ZTUNE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from ztune.cli.main import main; main()' list layouts --schema | head -1"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, check=False,
        env={**os.environ, "ZTUNE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == b""


def test_a_locale_that_is_not_utf8_takes_everything(tmp_path: Path) -> None:
    done = start(tmp_path, "list", "layouts", "sqlite", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    done = start(tmp_path, "list", "layouts", "--schema", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert done.returncode == 0 and json.loads(done.stdout.decode("latin-1"))


def test_bad_names_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.trace").mkdir()
    for words in (
        ("screen", "x.trace", "--name", b"caf\xe9"),
        ("run", "sqlite", "--on", "mount", "--name", b"a\x1b[31m\n"),
    ):
        done = start(tmp_path, *words)
        assert done.stderr.startswith(b'ztune: --name is "'), done.stderr
        assert done.stderr.count(b"\n") == 1 and done.stderr[:-1].decode().isprintable()
        assert done.returncode == 2


def test_errors_quote_without_obeying(tmp_path: Path) -> None:
    for words in (
        ("show", b"\xff\x1b[2J"), ("trace", "show", b"\xff\x1b[2J"), ("runs", b"--\x1b[2J\xff"),
    ):  # fmt: skip
        done = start(tmp_path, *words)
        assert done.returncode == 2, done.stderr
        assert b"\x1b" not in done.stderr and b"Traceback" not in done.stderr and done.stderr, words
        done.stderr.decode()


def test_a_source_whose_name_is_not_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9\x1b[2J.txt"
    (tmp_path / os.fsdecode(name)).write_text("@:\n[4K, 8K)             120 |@@@@@@@@@@@@@@@@@|\n")
    done = start(
        tmp_path, "observe", "--from", name, "--as", "write-sizes", "--out", "r.html", "--save", "s.json"
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout and rb"caf\xe9" in done.stdout
    page = (tmp_path / "r.html").read_text()
    assert "\x1b" not in page and r"caf\xe9\x1b[2J.txt" in page
    assert start(tmp_path, "observe", "--from", "s.json", "--out", "again.html").returncode == 0


# --- nothing goes around it

# What runs beside the pool or in a process of its own speaks a protocol on its stdout; the lab passes on
# what a command in the guest writes, as it is.
OTHERS = re.compile(r"onhost/|databases/\w+/onhost/|databases/sqlite/crash_client|lab/keeper|output\.py")
FORBIDDEN_IMPORTS = {"rich.console": {"Console"}, "rich.text": {"Text"}, "rich.markup": None, "rich": None}


def around(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_IMPORTS:
            banned = FORBIDDEN_IMPORTS[node.module]
            for alias in node.names:
                allowed = (node.module, alias.name) == ("rich", "box")
                if not allowed and (banned is None or alias.name in banned):
                    found.append(f"{node.lineno}: from {node.module} import {alias.name}")
        elif isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {a.name}" for a in node.names if a.name.split(".")[0] == "rich"]
        elif isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            if call in {"print", "click.echo", "click.secho", "click.echo_via_pager"}:
                found.append(f"{node.lineno}: {call}()")
            if call.startswith(("sys.stdout.", "sys.stderr.")) and call.split(".")[2] in {"write", "buffer"}:
                found.append(f"{node.lineno}: {call}()")
    return found


def test_no_module_prints_around_the_door() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not OTHERS.match(str(path.relative_to(SOURCE)))
        for what in around(ast.parse(path.read_text()))
    ]
    assert not found, "print with ztune.output: " + "; ".join(found)


def test_the_guard_sees_what_it_should() -> None:
    text = "import rich\nfrom rich.console import Console, Group\nfrom rich.markup import escape\nprint(1)\n"
    text += "from rich import box, print\nimport sys\nsys.stdout.write('')\nclick.echo('')\n"
    assert len(around(ast.parse(text))) == 7


def test_a_line_break_in_a_name_begins_no_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("no /srv/pg\nztune: all is well")
    output.warn(InputError("of a\nb\x1b[31m"))
    assert capsys.readouterr().err == ("ztune: no /srv/pg\\nztune: all is well\nwarning: of a\\nb\\x1b[31m\n")
