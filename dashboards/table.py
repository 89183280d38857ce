"""The table of runs: a row for each, with its metric and what it sent. 1 MB = 1e6 bytes, 1 GB = 1e9.

Texts that others wrote, such as names of runs in a shared store, are escaped here for Markdown, CSV and file
names. The HTML page escapes all text (`report_page.py`), and figures draw it as it is (`style.as_written`).
"""

import csv
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

if TYPE_CHECKING:
    from rich.table import Table

    from .runs import RunHistory

_MB_PER_GB = 1000.0
MISSING = "–"
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in a line of Markdown; an underscore within a word has none."""
_FORMULA = ("=", "+", "-", "@")
"""How a formula begins, for a spreadsheet that opens CSV."""


@dataclass(frozen=True)
class _Column:
    heading: str
    """With its unit after a line break."""
    csv_heading: str
    logged: str
    """The metric in MLflow, whose last value it shows."""
    factor: float
    """To the displayed unit."""
    write: Callable[[float], str]
    judged_by: Metric | None = None
    """The metric of the runs that have this column; None: all."""

    def of(self, run: "RunHistory") -> float | None:
        """The value for a run; None if it did not log it."""
        value = run.finals.get(self.logged)
        if value is None or self.judged_by not in (None, run.metric):
            return None
        return value * self.factor

    def cell(self, run: "RunHistory") -> str:
        """The text of a cell."""
        value = self.of(run)
        return MISSING if value is None or not math.isfinite(value) else self.write(value)


def significant(value: float) -> str:
    """Three significant digits, or all digits before the point, with separators."""
    if value == 0:
        return "0"
    # The exponent after rounding: 9.999 is written as 10.0.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    return f"{value:,.{decimals}f}"


def times(value: float) -> str:
    """A ratio as text: `12.5x`."""
    return f"{significant(value)}x"


_RATIO, _BY_ACCURACY = names.TOTAL_COMPRESSION_RATIO, names.TOTAL_ACCURACY_PER_GB
_SHARED = (
    _Column("paper\nMB", "paper_mb", names.TOTAL_PAPER_GB, _MB_PER_GB, significant),
    _Column("wire\nMB", "wire_mb", names.TOTAL_WIRE_GB, _MB_PER_GB, significant),
    _Column("sent\n%", "fraction_percent", names.TOTAL_FRACTION, 100, significant),
    _Column("times\nsmaller", "compression_ratio", _RATIO, 1, times),
    _Column("than\n16 bits", "compression_ratio_16_bits", _RATIO, 0.5, times),
    _Column("ratio\n%/GB", "accuracy_percent_per_paper_gb", _BY_ACCURACY, 1, significant, ACCURACY),
    _Column("time\ns", "seconds", names.TOTAL_SECONDS, 1, significant),
)


def _laid_out(runs: Iterable["RunHistory"]) -> "tuple[list[RunHistory], list[_Column]]":
    """Runs, the baseline first, and columns: one for each of their metrics, then those of all runs."""
    ordered = sorted(runs, key=lambda run: not run.is_baseline)
    metrics = list(dict.fromkeys(run.metric for run in ordered)) or [ACCURACY]
    return ordered, [
        *map(_reached, metrics),
        *(column for column in _SHARED if column.judged_by is None or column.judged_by in metrics),
    ]


def _reached(metric: Metric) -> _Column:
    heading, write = f"{metric.label}\n{metric.unit}".rstrip(), f"{{:.{metric.digits}f}}".format
    return _Column(heading, metric.column, names.eval_metric(metric.name), metric.scale, write, metric)


def render(runs: Sequence["RunHistory"]) -> "Table":
    """The table of runs for a terminal."""
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
        # Text: a name may hold rich's markup.
        rendered.add_row(Text(run.name), *(column.cell(run) for column in columns))
    return rendered


def to_markdown(runs: Sequence["RunHistory"]) -> str:
    """The table of runs in Markdown, ending with a newline."""
    ordered, columns = _laid_out(runs)
    headings = ["run", *(column.heading for column in columns)]
    return markdown_table(headings, ([run.name, *(c.cell(run) for c in columns)] for run in ordered), 1)


def to_csv(runs: Sequence["RunHistory"]) -> str:
    """The table of runs as CSV, with twelve significant digits; missing values are empty."""
    text, (ordered, columns) = io.StringIO(), _laid_out(runs)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *(in_csv(column.csv_heading) for column in columns)])
    for run in ordered:
        values = [column.of(run) for column in columns]
        writer.writerow([in_csv(run.name), *("" if value is None else f"{value:.12g}" for value in values)])
    return text.getvalue()


def in_markdown(text: str) -> str:
    """A text for a cell of a Markdown table: on one line, without markup, HTML, links and formulas."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A table in Markdown, ending with a newline; the first columns are texts, the others numbers."""
    ruler = f"|{' --- |' * texts}{' ---: |' * (len(headings) - texts)}"
    first, *lines = ("| " + " | ".join(map(in_markdown, row)) + " |" for row in (headings, *rows))
    return "\n".join([first, ruler, *lines]) + "\n"


def in_csv(text: str) -> str:
    """A text for a cell of CSV, with a `'` before what a spreadsheet would read as a formula."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def in_path(text: str) -> str:
    """A text as a file's name, or a part of one: without slashes, and dots that lead to other folders."""
    return re.sub(r"[^\w-]", "_", text)
