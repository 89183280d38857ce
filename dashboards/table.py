"""One row a run: what it reached and what it sent."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, NamedTuple

from taugrad.platform.tracking import names

if TYPE_CHECKING:
    from rich.table import Table

    from .runs import RunHistory

_MB_PER_GB = 1000.0
MISSING = "–"


@dataclass(frozen=True)
class Row:
    """What a table says of a run; None where the run did not log it. 1 MB = 1e6 bytes, 1 GB = 1e9."""

    name: str
    accuracy: float | None
    """Test accuracy at the end, percent."""
    paper_mb: float | None
    """Value bits only, MB, sent by all workers."""
    wire_mb: float | None
    """What went over the wire, MB, sent by all workers."""
    fraction: float | None
    """Elements sent, percent of all."""
    compression: float | None
    """Baseline bytes over wire bytes."""
    accuracy_per_gb: float | None
    """The papers' Ratio: accuracy in percent over paper GB."""
    seconds: float | None


class _Column(NamedTuple):
    heading: str
    """With its unit after a line break."""
    csv_heading: str
    write: Callable[[float], str]


def significant(value: float) -> str:
    """Three significant digits, or all digits before the point, with separators."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is written as 10.0.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


# In the order of Row's fields, after the name.
_COLUMNS = (
    _Column("accuracy\n%", "accuracy_percent", "{:.2f}".format),
    _Column("paper\nMB", "paper_mb", significant),
    _Column("wire\nMB", "wire_mb", significant),
    _Column("sent\n%", "fraction_percent", significant),
    _Column("times\nsmaller", "compression_ratio", lambda value: f"{significant(value)}x"),
    _Column("ratio\n%/GB", "accuracy_percent_per_paper_gb", significant),
    _Column("time\ns", "seconds", significant),
)


def rows(runs: Iterable["RunHistory"]) -> list[Row]:
    """The rows of a table: runs without compression first, otherwise in the order given.

    Args:
        runs: The runs.

    Returns:
        One row a run.
    """
    return [_row(run) for run in sorted(runs, key=lambda run: not run.is_baseline)]


def render(table: Sequence[Row]) -> "Table":
    """The table for a terminal.

    Args:
        table: Its rows.

    Returns:
        What rich prints.
    """
    from rich import box  # noqa: PLC0415 - not needed for files
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rendered = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    # In a narrow window long names break; they must not give way to the numbers altogether.
    rendered.add_column("run", overflow="fold", min_width=12)
    for column in _COLUMNS:
        rendered.add_column(column.heading, justify="right", no_wrap=True)
    for row in table:
        # Text, because a name may hold what rich takes for markup.
        rendered.add_row(Text(row.name), *_cells(row))
    return rendered


def to_markdown(table: Sequence[Row]) -> str:
    """The table in Markdown.

    Args:
        table: Its rows.

    Returns:
        The text, ending with a newline.
    """
    lines = [
        "| run | " + " | ".join(" ".join(column.heading.split()) for column in _COLUMNS) + " |",
        "| --- |" + " ---: |" * len(_COLUMNS),
    ]
    for row in table:
        name = " ".join(row.name.replace("\\", "\\\\").replace("|", "\\|").split())
        lines.append(f"| {name} | " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines) + "\n"


def to_csv(table: Sequence[Row]) -> str:
    """The table as CSV, with twelve significant digits; what a run did not log is empty.

    Args:
        table: Its rows.

    Returns:
        The text, ending with a newline.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *(column.csv_heading for column in _COLUMNS)])
    for row in table:
        name, *values = astuple(row)
        writer.writerow([name, *("" if value is None else f"{value:.12g}" for value in values)])
    return text.getvalue()


def _row(run: "RunHistory") -> Row:
    accuracy = run.finals.get(names.EVAL_ACCURACY)
    return Row(
        name=run.name,
        accuracy=_scaled(accuracy, 100),
        paper_mb=_scaled(run.finals.get(names.TOTAL_PAPER_GB), _MB_PER_GB),
        wire_mb=_scaled(run.finals.get(names.TOTAL_WIRE_GB), _MB_PER_GB),
        fraction=_scaled(run.finals.get(names.TOTAL_FRACTION), 100),
        compression=run.finals.get(names.TOTAL_COMPRESSION_RATIO),
        accuracy_per_gb=run.finals.get(names.TOTAL_ACCURACY_PER_GB),
        seconds=run.finals.get(names.TOTAL_SECONDS),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _cells(row: Row) -> list[str]:
    values: tuple[float | None, ...] = astuple(row)[1:]
    return [_cell(value, column) for value, column in zip(values, _COLUMNS, strict=True)]


def _cell(value: float | None, column: _Column) -> str:
    return MISSING if value is None or not math.isfinite(value) else column.write(value)
