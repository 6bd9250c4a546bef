"""Tables that stay readable in a terminal that has no room for their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table

from ztune.output import Text

_ALWAYS = 80  # columns in which every table is one; some fold their cells for that
_GAP = 2  # between columns


@dataclass(frozen=True)
class Fitting:
    """``table``, or where it is wider than the terminal a block for each row: its name, and below it each of
    ``heads`` with its cell. ``least``: how wide the columns that ``heads`` does not name have to be.
    """

    table: Table
    least: Sequence[int]
    names: Sequence[Text]
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]

    def __rich_console__(self, _: Any, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the blocks."""
        columns = zip(self.heads, *self.cells, strict=True)
        widths = [*self.least, *(max(map(cell_len, column)) for column in columns)]
        if options.max_width >= min(sum(widths) + _GAP * (len(widths) - 1), _ALWAYS):
            yield self.table
            return
        for name, cells in zip(self.names, self.cells, strict=True):
            yield name
            said = (f"{head} {cell}" for head, cell in zip(self.heads, cells, strict=True) if cell)
            yield Padding(Text(", ".join(said)), (0, 0, 0, 3))
