"""Tables that fit the terminal, however narrow it is, and plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from rich.box import HORIZONTALS, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, OverflowMethod, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

TEXT_WIDTH = 12
"""Smallest width of a column of text, in characters."""


def screen() -> Console:
    """Output for tables and text. They fit a terminal; elsewhere, each line is whole, however long it is."""
    terminal = sys.stdout.isatty()
    return Console(force_terminal=terminal, soft_wrap=not terminal, emoji=False)


class FittedTable(Table):
    """A table whose cells are never cut, even on a narrow terminal.

    Headings wrap at spaces first, then the cells of the widest column do. Columns with ``overflow="fold"`` hold text
    (names, models, messages): long words break there too, at `TEXT_WIDTH` characters or more. On a terminal that is
    narrower still, each row is a block with a line for each column. Without a terminal, each row is one line.

    Args:
        columns: headings.
        right: those of numbers.
        fold: those of text.
    """

    def __init__(self, *columns: str, right: Collection[str] = (), fold: Collection[str] = ()) -> None:
        super().__init__(header_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for name in columns:
            overflow: OverflowMethod = "fold" if name in fold else "ellipsis"
            self.add_column(name, justify="right" if name in right else "left", overflow=overflow)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table, or its blocks, or its lines."""
        if not console.is_terminal:
            yield from self._lines()
            return
        room = options.max_width - 2 * len(self.columns) + 1  # two characters between columns
        heads = [Measurement.get(console, options, column.header) for column in self.columns]
        cells = [_width(column, console, options) for column in self.columns]
        least = [max(head.minimum, cell.minimum) for head, cell in zip(heads, cells, strict=True)]
        if sum(least) > room:
            yield self._blocks()
            return
        widths = [max(head.maximum, cell.maximum) for head, cell in zip(heads, cells, strict=True)]
        while sum(widths) > room:
            widest = max(
                (at for at, width in enumerate(widths) if width > least[at]),
                key=lambda at: (widths[at] > cells[at].maximum, widths[at]),
            )
            widths[widest] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _lines(self) -> Iterator[Text]:
        """A line for the headings and for each row; two spaces or more between cells, and a dash for an empty one."""
        columns = [
            [Text.from_markup(str(cell), emoji=False).plain or "-" for cell in (column.header, *column.cells)]
            for column in self.columns
        ]
        widths = [max(map(cell_len, cells)) for cells in columns]
        for row in zip(*columns, strict=True):
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            yield Text("  ".join(padded).rstrip(), no_wrap=True, overflow="ignore")

    def _blocks(self) -> Table:
        blocks = Table(show_header=False, box=HORIZONTALS, show_edge=False, padding=(0, 1, 0, 0))
        blocks.add_column(style="bold", no_wrap=True)
        blocks.add_column(overflow="fold")
        for row, *cells in zip(self.rows, *(column.cells for column in self.columns), strict=True):
            for column, cell in zip(self.columns, cells, strict=True):
                blocks.add_row(column.header, cell, style=row.style)
            blocks.add_section()
        return blocks


def _width(column: Column, console: Console, options: ConsoleOptions) -> Measurement:
    """Returns the least and the most characters that a line of the column's cells takes."""
    found = [Measurement.get(console, options, cell) for cell in column.cells]
    least = max((each.minimum for each in found), default=0)
    most = max((each.maximum for each in found), default=0)
    return Measurement(min(least, TEXT_WIDTH) if column.overflow == "fold" else least, most)
