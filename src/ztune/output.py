"""The one door through which everything is printed.

What ztune prints holds names from outside: of files, runs, layouts, workloads, and what databases say. Here,
and nowhere else, they lose their power over the terminal: a character that a terminal obeys, or that turns
the direction of text, is shown as ``\\x1b`` or ``\\u202e``, and no text is ever taken for markup. JSON stays
exact. A test holds that no other module prints.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
from collections.abc import Container, Iterable, Sequence
from typing import IO, Any, Literal

import click
import rich.console
import rich.text
from rich.cells import cell_len
from rich.segment import Segment
from rich.status import Status
from rich.table import Table

from ztune.errors import InputError, ZtuneError

# C0 but newline and tab, DEL, C1; what turns the direction of text or breaks lines (Unicode's Bidi_Control,
# U+2028, U+2029, the deprecated format characters); and surrogates, which stand for bytes that are not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]"
)
_CLEAR = "\r\033[K"
_WHOLE = 16  # a table's cell of so many characters is not folded


def shown(text: str) -> str:
    r"""Return ``text`` with its control characters written out (``\x1b``); newlines and tabs stay."""
    return _CONTROL.sub(_written, text)


def line(text: object) -> str:
    """Return ``text`` as ``shown`` does, on one line: newlines and tabs are written out too."""
    return shown(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(text: str, what: str) -> str:
    """Return a name that the user gave by the flag ``what``.

    Raises InputError for one that holds control characters, line breaks, or bytes that are not UTF-8.
    """
    if line(text) != text:
        raise InputError(
            f'{what} is "{line(text)}"; '
            "a name has no control characters, line breaks, or bytes that are not UTF-8"
        )
    return text


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print ``text`` to stdout, or to stderr with ``err``."""
    # Named, since click takes an ASCII stream for a mistake and writes UTF-8 to it.
    click.echo(shown(text), file=sys.stderr if err else sys.stdout, nl=nl)


def note(text: object) -> None:
    """Print one line of ztune's own to stderr: a line break in a name begins no other."""
    echo(f"ztune: {line(text)}", err=True)


def warn(text: object) -> None:
    """Print a warning to stderr, on one line as ``note`` has it."""
    echo(f"warning: {line(text)}", err=True)


def paragraph(text: str) -> None:
    """Print a sentence to stdout, on a terminal broken between words."""
    console = Console(highlight=False)
    console.print(text, soft_wrap=not console.is_terminal)


def rewrite(text: str = "") -> None:
    """Put ``text`` in place of the line that stderr, a terminal, is on; no line end follows."""
    click.echo(_CLEAR + line(text), file=sys.stderr, nl=False)


def json_text(value: object, indent: int | None = 1) -> str:
    r"""Return ``value`` as JSON for people: readable, exact; control characters as ``\u001b``."""
    encoded = json.dumps(value, indent=indent, ensure_ascii=False)
    # Outside of its strings JSON has none of them.
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", encoded)


def print_json(value: object) -> None:
    """Print ``value`` to stdout as JSON."""
    text = json_text(value)
    if not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf"):
        text = json.dumps(value, indent=1)
    click.echo(text, file=sys.stdout)


class Text(rich.text.Text):
    """Rich's text without control characters."""

    def __init__(self, text: str = "", style: Any = "", **options: Any) -> None:
        super().__init__(shown(text), style, **options)

    def append(self, text: rich.text.Text | str, style: Any = None) -> Text:
        """Add ``text`` at the end."""
        super().append(shown(text) if isinstance(text, str) else text, style)
        return self


class Console(rich.console.Console):
    """Rich's console: what it is given is text, never markup, and has no control characters."""

    def __init__(
        self,
        *,
        stderr: bool = False,
        highlight: bool = True,
        width: int | None = None,
        file: IO[str] | None = None,
    ) -> None:
        super().__init__(
            stderr=stderr, highlight=highlight, width=width, file=file, markup=False, emoji=False
        )

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """Return ``text`` as rich's; here, so that widths are those of what is shown."""
        return super().render_str(shown(text), **options)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything; whatever made a segment, its text has no control characters."""
        for segment in super().render(renderable, options):
            if segment.control is None and _CONTROL.search(segment.text):
                segment = Segment(shown(segment.text), segment.style)
            yield segment

    def status(self, status: Any, **options: Any) -> Status:
        """Return a line with a spinner; rich would take a string for markup."""
        return super().status(Text(status) if isinstance(status, str) else status, **options)


def wide(otherwise: int) -> Console:
    """Return a console on stdout: as wide as the terminal or COLUMNS say, else ``otherwise`` wide."""
    console = Console(highlight=False)
    asked = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    return console if asked else Console(highlight=False, width=otherwise)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | rich.text.Text]],
    *,
    right: Container[str] = (),
    otherwise: int = 160,
) -> None:
    """Print ``rows`` below ``heads``; the columns in ``right`` are flush right. No head is ever cut.

    Long cells are folded; where there is no room for that either, each row is a block of its own with a line
    for each head. ``otherwise``: the width where stdout is no terminal.
    """
    console = wide(otherwise)
    cells = [[cell if isinstance(cell, rich.text.Text) else Text(cell) for cell in row] for row in rows]
    longest = [max((row[i].cell_len for row in cells), default=0) for i in range(len(heads))]
    least = [max(cell_len(head), min(size, _WHOLE)) for head, size in zip(heads, longest, strict=True)]
    if sum(least) + 2 * (len(heads) - 1) > console.width:
        indent = max(map(cell_len, heads)) + 2
        for number, row in enumerate(cells):
            block = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            block.add_column(style="bold", no_wrap=True, width=indent - 2)
            block.add_column(overflow="fold")
            for head, cell in zip(heads, row, strict=True):
                if cell.plain:
                    block.add_row(Text(head), cell)
            if number:
                console.print()
            console.print(block)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head, width in zip(heads, least, strict=True):
        side: Literal["left", "right"] = "right" if head in right else "left"
        table.add_column(Text(head), justify=side, overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


class _Stream(io.FileIO):
    """stdout or stderr; where nothing can be written to it, one sentence, and Python's exit stays quiet."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "wb", closefd=False)

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        """Write; raise ZtuneError where stdout can't take it. What stderr can't take nobody can be told."""
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            # Else what is still buffered would fail again, at exit, with a traceback of Python's own.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if self.fileno() == 2:
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise
            raise ZtuneError(f"standard output can't be written: {error.strerror}") from None


_STAND_IN = "ztune-stand-in"
_ASCII = {
    "→": "->", "←": "<-", "×": "x", "±": "+-", "…": "...", "–": "-", "—": "-", "−": "-", "·": "-", "•": "*",
    "≥": ">=", "≤": "<=", "≈": "~", "µ": "u", "“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ",
    "\u202f": " ", "✓": "ok", "◀": "<",
}  # fmt: skip


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what stands for characters that the encoding lacks; an escape for all that have no stand-in."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(
        _ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking
    ), error.end


codecs.register_error(_STAND_IN, _stand_in)


def guard() -> None:
    """Make stdout and stderr fail with one sentence, and take any text whatever the locale's encoding."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if not isinstance(old, io.TextIOWrapper) or old is not getattr(sys, f"__{name}__"):
            continue  # closed, or somebody's own
        old.flush()
        stream = io.TextIOWrapper(
            io.BufferedWriter(_Stream(old.fileno())),
            encoding=old.encoding,
            errors=_STAND_IN,
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )
        setattr(sys, name, stream)
