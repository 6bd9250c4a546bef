"""What a reader of a tool's output is: one module per format behind one protocol."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ztune import files
from ztune.errors import InputError
from ztune.observe.sources.collect import Collected
from ztune.observe.sources.figures import LARGEST
from ztune.observe.sources.histogram_meaning import Meaning

HEAD_CHARS: Final = 1 << 16
MOST_JSON: Final = 1 << 28
"""Bytes of a JSON document that are read at most: it must be held in memory."""
LONGEST_LINE: Final = 1 << 20


def decoder() -> json.JSONDecoder:
    """Return a decoder of other tools' JSON; a number that no counter can hold becomes None."""
    return json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=lambda _: None)


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= 20 and abs(int(text)) <= LARGEST else None


def _real(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def readable(value: Any) -> Any:
    """Return JSON values whose text can be written: half of a surrogate pair is replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [readable(one) for one in value]
    if isinstance(value, dict):
        return {readable(key): readable(one) for key, one in value.items()}
    return value


def one_line(text: str, most: int = 300) -> str:
    """Return ``text`` as a part of a sentence: what can't be printed is escaped, what is too long is cut."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:most])
    return shown if len(text) <= most else shown + "…"


@dataclass
class Source:
    """A file that is read line by line."""

    path: Path
    into: Collected
    """What all files together are read into."""
    means: Meaning | None = None
    """What the user says that histograms without a header count."""
    unended: bool = field(default=False, init=False)
    """After the last line: it had no newline, so it may be cut."""

    @property
    def name(self) -> str:
        """The file's name, as sentences name it."""
        return self.path.name

    def head(self) -> str:
        """Return the beginning of the text; raises InputError."""
        try:
            with self.path.open(encoding="utf-8-sig", errors="replace") as file:
                return file.read(HEAD_CHARS)
        except OSError as error:
            raise InputError(f"can't read {self.path}: {error.strerror}") from None

    def lines(self) -> Iterator[str]:
        """Give the lines without their ends; raises InputError."""
        try:
            with self.path.open(encoding="utf-8-sig", errors="replace") as file:
                while line := file.readline(LONGEST_LINE):
                    self.unended = not line.endswith("\n")
                    yield line.rstrip("\r\n")
        except OSError as error:
            raise InputError(f"can't read {self.path}: {error.strerror}") from None

    def text(self) -> str:
        """Return all of it, for JSON; raises InputError."""
        try:
            return files.read(self.path, MOST_JSON).decode("utf-8-sig", errors="replace")
        except OSError as error:
            raise InputError(f"can't read {self.path}: {error.strerror}") from None

    def limit(self, sentence: str) -> None:
        """Note what this file does not tell."""
        self.into.limit(f"{self.name}: {sentence}")


class Reader(Protocol):
    """Reads one format."""

    name: str
    """As ``--format`` names it."""
    what: str
    """The tool and its option, in words."""

    def recognise(self, head: str) -> bool:
        """True if this beginning of a file is of this format."""
        ...

    def read(self, source: Source) -> None:
        """Add what the file says to ``source.into``.

        What is wrong with it goes into ``limits``, or is an InputError.
        """
        ...
