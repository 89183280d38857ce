"""Tables in the papers' layout (threshold, accuracy or loss, GB, %/GB), with the bytes on the wire."""

import csv
import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

from taugrad.platform.tasks.claims import Difference
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

from . import verdict
from .groups import SIXTEEN_BITS, Comparison, Estimate, Group, baseline
from .table import MISSING, in_csv, in_markdown, markdown_table, significant, times


class Column(NamedTuple):
    """A column after method and setting. 1 GB = 1e9 bytes."""

    heading: str
    csv_heading: str
    of: Callable[[Group], Estimate | None]
    """None where a group's runs did not log it."""
    write: Callable[[float], str]
    has_spread: bool = False
    """Whether half of the interval follows, where there is one: from three seeds on."""

    def cell(self, group: Group) -> str:
        """The text of a group's cell."""
        value = self.of(group)
        if value is None:
            return MISSING
        spread = f" ± {self.write(value.spread)}" if self.has_spread and value.count > 2 else ""
        return self.write(value.mean) + spread


def columns(metric: Metric) -> list[Column]:
    """The columns of settings that are judged by a metric; the first one has its values.

    `GB (values)` are bytes as the papers count them, `%/GB` is the papers' Ratio. Bytes are `times smaller`
    than those of the baseline, in float32.
    """
    heading = f"{metric.label} {metric.unit}".rstrip()
    written = f"{{:.{metric.digits}f}}".format
    per_gb = Column("%/GB", "accuracy_percent_per_paper_gb", _of(names.TOTAL_ACCURACY_PER_GB), significant)
    return [
        Column(heading, metric.column, lambda group: group.value, written, has_spread=True),
        Column("GB (values)", "paper_gb", _of(names.TOTAL_PAPER_GB), significant),
        *([per_gb] if metric == ACCURACY else []),
        Column("GB (wire)", "wire_gb", _of(names.TOTAL_WIRE_GB), significant),
        Column("times smaller", "compression_ratio", lambda group: group.compression, times),
        Column("than 16 bits", "compression_ratio_16_bits", _sixteen_bits, times),
        Column("seconds", "seconds", _of(names.TOTAL_SECONDS), significant),
    ]


def _of(metric: str) -> Callable[[Group], Estimate | None]:
    return lambda group: group.estimate(metric)


def _sixteen_bits(group: Group) -> Estimate | None:
    """Bytes of a 16-bit exchange over wire bytes."""
    if (ratio := group.compression) is None:
        return None
    mean, low, high = (SIXTEEN_BITS * value for value in (ratio.mean, ratio.low, ratio.high))
    return Estimate(mean, low, high, ratio.count)


def texts_of(group: Group) -> tuple[str, str]:
    """Method and setting: the threshold, floor, density, rank or bits."""
    return group.rule, group.setting or ("" if group.is_baseline else group.name)


def change_heading(metric: Metric) -> str:
    """The heading of the column of differences: `points (95% interval)`."""
    return f"{metric.difference_unit or 'change'} (95% interval)"


_WIDE = 200.0  # units of the last digit, from which on an interval is written with a digit less


def signed(change: float, decimals: int) -> str:
    """A difference as text, with its sign: `+0.30`."""
    text = f"{change:+.{decimals}f}".replace("-", "−")
    return f"±{text[1:]}" if not text.strip("+−0.") else text


def interval(change: Difference) -> str:
    """The interval as text, `−0.90 to +0.30`; empty without one."""
    if change.low is None or change.high is None:
        return ""
    decimals = change.metric.digits
    if decimals and change.high - change.low >= _WIDE * 10.0**-decimals:
        decimals -= 1
    return f"{signed(change.low, decimals)} to {signed(change.high, decimals)}"


def change_cell(change: Difference | None) -> str:
    """The difference to the runs without compression, and its interval."""
    if change is None:
        return MISSING
    return f"{signed(change.mean, change.metric.digits)} ({interval(change) or 'interval not known'})"


def methods_to_markdown(found: Sequence[Comparison], metric: Metric) -> str:
    """Comparisons that are judged by a metric in Markdown, a table for each, ending with a newline."""
    shown = columns(metric)
    headings = ["method", "threshold", "seeds", *(column.heading for column in shown), change_heading(metric)]
    tables = []
    for comparison in found:
        reference = baseline(comparison.groups)
        cells = (
            [
                *texts_of(group),
                str(len(group.values)),
                *(column.cell(group) for column in shown),
                change_cell(verdict.change(group, reference)),
            ]
            for group in comparison.groups
        )
        heading = f"## {in_markdown(comparison.name)}\n\n" if comparison.name else ""
        tables.append(heading + markdown_table(headings, cells, texts=2))
    return "\n".join(tables)


def _ends(estimate: Estimate | Difference | None) -> list[str]:
    """Cells of CSV: the mean, and the interval's ends."""
    ends = (estimate.mean, estimate.low, estimate.high) if estimate else (None, None, None)
    return ["" if end is None else f"{end:.12g}" for end in ends]


def methods_to_csv(found: Sequence[Comparison], metric: Metric) -> str:
    """Comparisons that are judged by a metric as CSV; missing values are empty.

    With twelve significant digits and the intervals' ends. The column `group` names the comparison.
    """
    text, shown = io.StringIO(), columns(metric)
    unit = "points" if metric.unit == "%" else metric.column.removeprefix(metric.name).lstrip("_")
    moved_by = "_".join(filter(None, (metric.name, "change", unit)))
    writer = csv.writer(text, lineterminator="\n")
    ends = [f"{column.csv_heading}{end}" for column in shown for end in ("", "_low", "_high")]
    ends += [f"{moved_by}{end}" for end in ("", "_low", "_high")]
    writer.writerow(["method", "threshold", "seeds", *map(in_csv, ends), "runs", "group"])
    for comparison in found:
        reference = baseline(comparison.groups)
        for group in comparison.groups:
            found_values = [*(column.of(group) for column in shown), verdict.change(group, reference)]
            values = [text for value in found_values for text in _ends(value)]
            texts = [*map(in_csv, texts_of(group)), len(group.values)]
            run_ids = " ".join(run.run_id for run in group.runs)
            writer.writerow([*texts, *values, run_ids, in_csv(comparison.name)])
    return text.getvalue()
