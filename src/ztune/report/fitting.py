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
        columns = list(zip(self.heads, *self.cells, strict=True))
        room = options.max_width - sum(self.least) - _GAP * (len(self.least) + len(columns) - 1)
        wide = [max(map(cell_len, column)) for column in columns]
        if sum(wide) <= room or self._fold(columns, wide, room):
            yield self.table
            return
        for name, cells in zip(self.names, self.cells, strict=True):
            yield name
            said = (f"{head} {cell}" for head, cell in zip(self.heads, cells, strict=True) if cell)
            yield Padding(Text(", ".join(said)), (0, 0, 0, 3))

    def _fold(self, columns: Sequence[Sequence[str]], wide: Sequence[int], room: int) -> bool:
        """Give the columns that may fold widths that fit; return whether there are such. Rich's own choice
        is narrower than a column's least, and then cuts off the last one.
        """
        made = self.table.columns[len(self.least) :]
        widths = []
        for column, (head, *cells), full in zip(made, columns, wide, strict=True):
            # A heading folds between words, a ratio before its interval.
            parts = "\n".join([head.replace(" ", "\n"), *(cell.replace(" (", "\n(") for cell in cells)])
            widths.append(full if column.no_wrap else max(map(cell_len, parts.split("\n"))))
        spare = room - sum(widths)
        if spare < 0:
            return False
        # The last column, which compares, is the first to stay whole; the others share what is left.
        whole = min(spare, wide[-1] - widths[-1])
        widths[-1] += whole
        spare -= whole
        while spare > 0 and (folded := [i for i, full in enumerate(wide) if widths[i] < full]):
            for i in folded[:spare]:
                widths[i] += 1
            spare -= len(folded[:spare])
        first = self.table.columns[len(self.least) - 1]
        for column, width in zip([first, *made], [self.least[-1] + spare, *widths], strict=True):
            column.width = width
        return True
