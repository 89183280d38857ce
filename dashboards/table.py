"""One row a run: what it reached and what it sent."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

from .escaping import in_csv, in_markdown

if TYPE_CHECKING:
    from rich.table import Table

    from .runs import RunHistory

_MB_PER_GB = 1000.0
MISSING = "–"


@dataclass(frozen=True)
class Row:
    """What a table says of a run; None where the run did not log it. 1 MB = 1e6 bytes, 1 GB = 1e9."""

    name: str
    metric: Metric
    """What the run is judged by."""
    value: float | None
    """At the end, in the unit that people see."""
    paper_mb: float | None
    """Value bits only, MB, sent by all workers."""
    wire_mb: float | None
    """What went over the wire, MB, sent by all workers."""
    fraction: float | None
    """Elements sent, percent of all."""
    compression: float | None
    """Baseline bytes (float32) over wire bytes."""
    compression_16: float | None
    """Bytes of a 16-bit exchange over wire bytes."""
    accuracy_per_gb: float | None
    """The papers' Ratio: accuracy in percent over paper GB; of accuracies only."""
    seconds: float | None


class _Column(NamedTuple):
    heading: str
    """With its unit after a line break."""
    csv_heading: str
    write: Callable[[float], str]
    of: "Callable[[Row], float | None]"


def significant(value: float) -> str:
    """Three significant digits, or all digits before the point, with separators."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is written as 10.0.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


def _times(value: float) -> str:
    return f"{significant(value)}x"


_SHARED = (
    _Column("paper\nMB", "paper_mb", significant, lambda row: row.paper_mb),
    _Column("wire\nMB", "wire_mb", significant, lambda row: row.wire_mb),
    _Column("sent\n%", "fraction_percent", significant, lambda row: row.fraction),
    _Column("times\nsmaller", "compression_ratio", _times, lambda row: row.compression),
    _Column("than\n16 bits", "compression_ratio_16_bits", _times, lambda row: row.compression_16),
    _Column("ratio\n%/GB", "accuracy_percent_per_paper_gb", significant, lambda row: row.accuracy_per_gb),
    _Column("time\ns", "seconds", significant, lambda row: row.seconds),
)


def _columns(table: Sequence[Row]) -> list[_Column]:
    """One for each metric that runs are judged by, then those that all have."""
    metrics = list(dict.fromkeys(row.metric for row in table)) or [ACCURACY]
    shared = [each for each in _SHARED if ACCURACY in metrics or "accuracy" not in each.csv_heading]
    return [*map(_reached, metrics), *shared]


def _reached(metric: Metric) -> _Column:
    return _Column(
        f"{metric.label}\n{metric.unit}".rstrip(),
        metric.column,
        f"{{:.{metric.digits}f}}".format,
        lambda row: row.value if row.metric == metric else None,
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

    rendered = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    # In a narrow window long names break; they must not give way to the numbers altogether.
    rendered.add_column("run", overflow="fold", min_width=12)
    columns = _columns(table)
    for column in columns:
        rendered.add_column(column.heading, justify="right", no_wrap=True)
    for row in table:
        # Text, because a name may hold what rich takes for markup.
        rendered.add_row(Text(row.name), *_cells(row, columns))
    return rendered


def to_markdown(table: Sequence[Row]) -> str:
    """The table in Markdown.

    Args:
        table: Its rows.

    Returns:
        The text, ending with a newline.
    """
    columns = _columns(table)
    lines = [
        "| run | " + " | ".join(in_markdown(column.heading) for column in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for row in table:
        cells = [row.name, *_cells(row, columns)]
        lines.append("| " + " | ".join(map(in_markdown, cells)) + " |")
    return "\n".join(lines) + "\n"


def to_csv(table: Sequence[Row]) -> str:
    """The table as CSV, with twelve significant digits; what a run did not log is empty.

    Args:
        table: Its rows.

    Returns:
        The text, ending with a newline.
    """
    text, columns = io.StringIO(), _columns(table)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *(in_csv(column.csv_heading) for column in columns)])
    for row in table:
        values = [column.of(row) for column in columns]
        writer.writerow([in_csv(row.name), *("" if value is None else f"{value:.12g}" for value in values)])
    return text.getvalue()


def _row(run: "RunHistory") -> Row:
    compression, metric = run.finals.get(names.TOTAL_COMPRESSION_RATIO), run.metric
    by_accuracy = metric == ACCURACY
    return Row(
        name=run.name,
        metric=metric,
        value=_scaled(run.finals.get(names.eval_metric(metric.name)), metric.scale),
        paper_mb=_scaled(run.finals.get(names.TOTAL_PAPER_GB), _MB_PER_GB),
        wire_mb=_scaled(run.finals.get(names.TOTAL_WIRE_GB), _MB_PER_GB),
        fraction=_scaled(run.finals.get(names.TOTAL_FRACTION), 100),
        compression=compression,
        compression_16=_scaled(compression, 0.5),
        accuracy_per_gb=run.finals.get(names.TOTAL_ACCURACY_PER_GB) if by_accuracy else None,
        seconds=run.finals.get(names.TOTAL_SECONDS),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _cells(row: Row, columns: Sequence[_Column]) -> list[str]:
    return [_cell(column.of(row), column) for column in columns]


def _cell(value: float | None, column: _Column) -> str:
    return MISSING if value is None or not math.isfinite(value) else column.write(value)
