"""DTrace: ``quantize()`` and ``count()`` as dtrace prints them, and what the scripts in ``dtrace/`` print.

Those scripts say before each aggregation what it is, in a line such as ``#ztune write-sizes call path``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ztune.observe import histograms
from ztune.observe.model import Buckets, ObservedTransfers
from ztune.observe.sources import figures, histogram_meaning
from ztune.observe.sources.collect import add, direction, plain_call
from ztune.observe.sources.histogram_meaning import Keys, Meaning
from ztune.observe.sources.source import Source

SCRIPT_VERSION: Final = 1
_WIDTH: Final = 40  # columns of the bars of all rows together, each rounded
HISTOGRAMS: Final = {
    "read-sizes": Meaning("read"),
    "write-sizes": Meaning("write"),
    "read-latency": Meaning("read", False),
    "write-latency": Meaning("write", False),
    "sync-latency": Meaning("sync", False),
}
"""Histograms that a script can announce; latency is in ns."""
SUMS: Final = frozenset({"read-bytes", "write-bytes", "calls", "call-ns", "errors"})
"""Plain aggregations that a script can announce."""
KEYS: Final = frozenset({"call", "path"})
FACTS: Final = frozenset({"observe.d", "platform", "seconds", "end"})
"""Headers with a value of their own."""

_HEADER = re.compile(r"#ztune (\S+)((?: \S+)*)\s*")
_TITLE = re.compile(r"\s*value\s+-+ Distribution -+\s+count\s*")
_NUMBER = r"-?\d[\d.,'_\u00a0\u202f\u2019]*"
_LABEL = re.compile(rf"(?:(<|>=)\s*)?({_NUMBER})")
_BAR = re.compile(rf"(?:(?:<|>=)\s*)?{_NUMBER}\s*\|")
_OTHER_STYLE = re.compile(r"\s*(?:key\s+)?min \.-+\. max\s+\| count\s*")
_NOISE = re.compile(
    r"dtrace: .*|\s*\^C\s*|CPU\s+ID\s+FUNCTION:NAME|\s*\d+\s+\d+\s+\S*:(?:entry|return|END|BEGIN|tick-\S+)\s*"
)


class DTrace:
    """Reads both."""

    name = "dtrace"
    what = "DTrace quantize() and count(), and the scripts in dtrace/"

    def recognise(self, head: str) -> bool:
        """True if a histogram's title or one of our headers is there."""
        return any(
            _TITLE.fullmatch(line) or _header(line) is not None or _OTHER_STYLE.fullmatch(line)
            for line in head.splitlines()
        )

    def read(self, source: Source) -> None:
        """Add the histograms and counts."""
        reading = _Reading(source)
        for line in source.lines():
            reading.line(line)
        reading.end()


@dataclass
class _Histogram:
    keys: list[str]
    buckets: Buckets = field(default_factory=dict)
    filled: int = 0
    """Rows that are not empty."""
    bar: int = 0
    """Columns of all bars."""
    closed: bool = False
    """Its last row was an empty one, or the one of all greater values: dtrace always ends with such a row."""

    @property
    def cut(self) -> bool:
        """True if rows are missing: the last one, or those of bars that would make up the whole width."""
        return not self.closed or 0 < self.bar < _WIDTH - self.filled


def _header(line: str) -> tuple[str, list[str]] | None:
    found = _HEADER.fullmatch(line)
    if found is None:
        return None
    kind, words = found[1], found[2].split()
    known = kind in FACTS or ((kind in HISTOGRAMS or kind in SUMS) and KEYS.issuperset(words))
    return (kind, words) if known else None


class _Reading:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.into = source.into
        self.kind: str | None = None  # as the last header said
        self.key_names: list[str] = []
        self.ours = self.ended = False
        self.open: _Histogram | None = None
        self.before: list[str] = []  # lines that may be the keys of the histogram to come

    def line(self, line: str) -> None:
        if line.startswith("#ztune"):
            self._close()
            self._announced(line)
        elif _TITLE.fullmatch(line):
            self._close()
            self.open = _Histogram(self._keys_before())
            self.before = []
        elif self.open is not None and _BAR.match(line.lstrip()):
            self._row(line)
        elif not line.strip():
            self._close()
            self.before = []
        elif _OTHER_STYLE.fullmatch(line):
            self.source.limit("histograms printed with -x aggpack or agghist are not read; print without it.")
        elif _BAR.match(line.lstrip()):
            self.source.limit("rows of a histogram whose title line is missing were left out.")
        elif not _NOISE.fullmatch(line):
            self._close()
            if not self._number(line):
                self.before.append(line)

    def end(self) -> None:
        cut = self.source.unended and self.open is not None
        self._close()
        if self.ours and not self.ended:
            self.source.limit("the file ends before the script's last line; it is cut.")
        elif cut:
            self.source.limit("the file ends within a line; what was read before it is kept.")

    def _announced(self, line: str) -> None:
        found = _header(line)
        self.kind, self.key_names, self.before = None, [], []
        if found is None:
            self.source.limit(
                f"the header {line[:60]!r} is not known to this version of ztune; "
                "what follows it was left out."
            )
            self.kind = "unknown"
            return
        kind, words = found
        if kind not in FACTS:
            self.kind, self.key_names = kind, words
            return
        self.ours = True
        self.ended |= kind == "end"
        if kind == "platform" and words:
            self.into.platform = words[0]
            if words[0] == "freebsd":
                self.source.limit(
                    "descriptors that were open before the script began are named PROCESS:DESCRIPTOR, "
                    "and may be sockets; procstat -f tells which file each is, "
                    "--role 'PROCESS:DESCRIPTOR=ROLE' its role."
                )
        elif kind == "seconds" and words:
            self.into.lasted(figures.decimal(words[0]))
        elif kind == "observe.d" and words[:1] != [str(SCRIPT_VERSION)]:
            self.source.limit("it is of another version of observe.d; what has the same form was read.")

    def _keys_before(self) -> list[str]:
        texts = [line.strip() for line in self.before]
        if self.kind is not None and self.key_names:
            # A path may hold two spaces: it is the last key, and keeps them.
            parts = re.split(r"\s{2,}", " ".join(texts), maxsplit=len(self.key_names) - 1)
            return parts
        return [key for text in texts for key in re.split(r"\s{2,}|\t", text)]

    def _row(self, line: str) -> None:
        assert self.open is not None
        label, _, rest = line.partition("|")
        found = _LABEL.fullmatch(label.strip())
        low = figures.count(found[2]) if found else None
        n = figures.count(rest.lstrip("@ \t"))
        if found is None or low is None or n is None or n < 0:
            self.open.closed = False
            self.source.limit(f"the row {line.strip()[:60]!r} is cut or not understood; left out.")
            return
        self.open.closed = n == 0 or found[1] == ">="
        if not n:
            return
        self.open.filled += 1
        self.open.bar += rest.count("@")
        if low < 0 or found[1] == "<":
            self.source.limit(
                f"{n} values below {'zero' if low <= 0 else low} (calls that failed) were left out."
            )
            return
        if low & (low - 1):
            self.source.limit(
                "linear histograms (lquantize) were put into buckets of powers of two by lower bound."
            )
        add(self.open.buckets, {histograms.bucket(low): n})

    def _close(self) -> None:
        histogram, self.open = self.open, None
        if histogram is None:
            return
        if histogram.cut:
            self.source.limit(
                f"the histogram {' '.join(histogram.keys) or 'without a key'!r} is cut: rows are missing."
            )
        if self.kind == "unknown":
            return
        if self.kind in HISTOGRAMS:
            call, path = self._named(histogram.keys)
            histogram_meaning.enter(
                self.into, HISTOGRAMS[self.kind], histogram.buckets, Keys(call, path, path)
            )
            return
        if self.kind is not None:
            self.source.limit(f"a histogram under the header {self.kind!r} was left out.")
            return
        at = histogram_meaning.keys(histogram.keys or [self.source.path.stem])
        histogram_meaning.enter(self.into, self._means(at), histogram.buckets, at)

    def _means(self, at: Keys) -> Meaning:
        """Return what a histogram without a header counts."""
        if self.source.means is not None:
            return self.source.means
        side = direction(at.call) if at.call else None
        if side == "sync":
            self.source.limit(f"the histogram of {at.call} is taken for its time in ns; --as says otherwise.")
            return Meaning("sync", False)
        if side == "read":
            self.source.limit("histograms of reading calls are taken for sizes; --as says otherwise.")
            return Meaning("read")
        self.source.limit(
            "histograms that do not say what they count are taken for sizes of writes; --as says otherwise."
        )
        return Meaning("write")

    def _named(self, texts: Sequence[str]) -> tuple[str | None, str | None]:
        values = dict(zip(self.key_names, texts, strict=False))
        call = values.get("call")
        return (plain_call(call) if call else None), values.get("path") or None

    def _number(self, line: str) -> bool:
        """Enter a line of keys and one number; False if it is none."""
        *words, last = re.split(r"\s{2,}", line.strip())
        n = figures.count(last)
        if not words or n is None or n < 0:
            return False
        if self.kind in SUMS:
            keys = line.strip().removesuffix(last).rstrip()
            call, path = self._named(re.split(r"\s{2,}", keys, maxsplit=max(0, len(self.key_names) - 1)))
            self._sum(call, path, n)
            return True
        if self.kind is None:
            calls = [plain_call(key) for key in words if direction(key) is not None]
            if len(calls) == 1:
                self.into.call(calls[0], n)
                return True
        return False

    def _sum(self, call: str | None, path: str | None, n: int) -> None:
        if self.kind in ("read-bytes", "write-bytes"):
            role = self.into.role(path) if path else None
            moved = ObservedTransfers(bytes=n)
            reads, writes = (moved, None) if self.kind == "read-bytes" else (None, moved)
            self.into.enter(path=path, call=call, role=role, reads=reads, writes=writes)
        elif call:
            self.into.call(
                call,
                calls=n if self.kind == "calls" else 0,
                errors=n if self.kind == "errors" else None,
                seconds=n / 1e9 if self.kind == "call-ns" else None,
            )
