"""One row a run: what it reached and what it sent. 1 MB = 1e6 bytes, 1 GB = 1e9."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

from .escaping import in_csv, markdown_table

if TYPE_CHECKING:
    from rich.table import Table

    from .runs import RunHistory

_MB_PER_GB = 1000.0
MISSING = "–"


@dataclass(frozen=True)
class _Column:
    heading: str
    """With its unit after a line break."""
    csv_heading: str
    logged: str
    """The metric in MLflow, whose last value it shows."""
    factor: float
    """To the unit that people see."""
    write: Callable[[float], str]
    judged_by: Metric | None = None
    """Only runs that are judged by this have it; None: all."""

    def of(self, run: "RunHistory") -> float | None:
        """None where the run did not log it."""
        value = run.finals.get(self.logged)
        if value is None or self.judged_by not in (None, run.metric):
            return None
        return value * self.factor

    def cell(self, run: "RunHistory") -> str:
        """For people."""
        value = self.of(run)
        return MISSING if value is None or not math.isfinite(value) else self.write(value)


def significant(value: float) -> str:
    """Three significant digits, or all digits before the point, with separators."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is written as 10.0.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


def _times(value: float) -> str:
    return f"{significant(value)}x"


_RATIO, _BY_ACCURACY = names.TOTAL_COMPRESSION_RATIO, names.TOTAL_ACCURACY_PER_GB
_SHARED = (
    _Column("paper\nMB", "paper_mb", names.TOTAL_PAPER_GB, _MB_PER_GB, significant),
    _Column("wire\nMB", "wire_mb", names.TOTAL_WIRE_GB, _MB_PER_GB, significant),
    _Column("sent\n%", "fraction_percent", names.TOTAL_FRACTION, 100, significant),
    _Column("times\nsmaller", "compression_ratio", _RATIO, 1, _times),
    _Column("than\n16 bits", "compression_ratio_16_bits", _RATIO, 0.5, _times),
    _Column("ratio\n%/GB", "accuracy_percent_per_paper_gb", _BY_ACCURACY, 1, significant, ACCURACY),
    _Column("time\ns", "seconds", names.TOTAL_SECONDS, 1, significant),
)


def _laid_out(runs: Iterable["RunHistory"]) -> "tuple[list[RunHistory], list[_Column]]":
    """Runs without compression first; a column for each metric they are judged by, then what all have."""
    ordered = sorted(runs, key=lambda run: not run.is_baseline)
    metrics = list(dict.fromkeys(run.metric for run in ordered)) or [ACCURACY]
    return ordered, [
        *map(_reached, metrics),
        *(each for each in _SHARED if each.judged_by is None or each.judged_by in metrics),
    ]


def _reached(metric: Metric) -> _Column:
    heading, write = f"{metric.label}\n{metric.unit}".rstrip(), f"{{:.{metric.digits}f}}".format
    return _Column(heading, metric.column, names.eval_metric(metric.name), metric.scale, write, metric)


def render(runs: Sequence["RunHistory"]) -> "Table":
    """The table of runs for a terminal: what rich prints."""
    from rich import box  # noqa: PLC0415 - not needed for files
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rendered = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    # In a narrow window long names break; they must not give way to the numbers altogether.
    rendered.add_column("run", overflow="fold", min_width=12)
    ordered, columns = _laid_out(runs)
    for column in columns:
        rendered.add_column(column.heading, justify="right", no_wrap=True)
    for run in ordered:
        # Text, because a name may hold what rich takes for markup.
        rendered.add_row(Text(run.name), *(column.cell(run) for column in columns))
    return rendered


def to_markdown(runs: Sequence["RunHistory"]) -> str:
    """The table of runs in Markdown, ending with a newline."""
    ordered, columns = _laid_out(runs)
    headings = ["run", *(column.heading for column in columns)]
    return markdown_table(headings, ([run.name, *(c.cell(run) for c in columns)] for run in ordered), 1)


def to_csv(runs: Sequence["RunHistory"]) -> str:
    """The table of runs as CSV, with twelve significant digits; what a run did not log is empty."""
    text, (ordered, columns) = io.StringIO(), _laid_out(runs)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *(in_csv(column.csv_heading) for column in columns)])
    for run in ordered:
        values = [column.of(run) for column in columns]
        writer.writerow([in_csv(run.name), *("" if value is None else f"{value:.12g}" for value in values)])
    return text.getvalue()
