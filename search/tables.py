"""Tables for a terminal and for Markdown files, and rounded numbers."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class TextTable:
    """Cells under headings.

    Attributes:
        headings: of the columns.
        rows: cells.
        text: the places of columns of text; the others are numbers.
        title: above it; may be empty.
        spare: number of the last columns that a terminal of less than 110 columns leaves out.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: Collection[int] = (0,)
    title: str = ""
    spare: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For a terminal: columns of text fold, numbers stay on one line under headings of two."""
        shown = len(self.headings) - (self.spare if options.max_width < 110 else 0)
        near = (0, 1, 0, 0)  # so that 80 columns hold more
        table = Table(
            box=box.SIMPLE_HEAD, padding=near, pad_edge=False, title=self.title or None, title_justify="left"
        )
        for place, heading in enumerate(self.headings[:shown]):
            if place in self.text:
                table.add_column(heading, overflow="fold")
            else:
                table.add_column(_in_two(heading), justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(Text, row[:shown]))
        yield table

    def markdown(self) -> str:
        """For a file, without the title and a last line's end."""
        marks = ["---" if place in self.text else "---:" for place in range(len(self.headings))]
        lines = ([cell.replace("|", r"\|") for cell in row] for row in (self.headings, marks, *self.rows))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _in_two(heading: str) -> str:
    words = heading.split()
    return "\n".join(" ".join(part) for part in (words[: len(words) // 2], words[len(words) // 2 :]) if part)


def rounded(value: float, digits: int) -> float:
    """A number with this many significant digits."""
    return float(f"{value:.{digits}g}")


def rounded_down(value: float) -> float:
    """A number above 0 with three significant digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return rounded(math.floor(value / unit * (1 + 1e-12)) * unit, 3)
