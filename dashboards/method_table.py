"""Tables in the papers' layout (threshold, accuracy or loss, GB, %/GB), with the bytes on the wire."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taugrad.platform.tasks.claims import Difference
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

from . import verdict
from .groups import SIXTEEN_BITS, Comparison, Estimate, Group, baseline
from .table import MISSING, in_csv, in_markdown, markdown_table, significant


@dataclass(frozen=True)
class MethodRow:
    """One setting of a method; None where its runs did not log it. 1 GB = 1e9 bytes."""

    method: str
    setting: str
    """The threshold, floor, density, rank or bits."""
    seeds: int
    value: Estimate | None
    """The metric, in its displayed unit."""
    change: Difference | None
    """Against the runs without compression."""
    paper_gb: Estimate | None
    """As the papers count: value bits only."""
    accuracy_per_gb: Estimate | None
    """The papers' Ratio: percent over paper GB; of accuracies only."""
    wire_gb: Estimate | None
    compression: Estimate | None
    """Baseline bytes (float32) over wire bytes."""
    compression_16: Estimate | None
    """Bytes of a 16-bit exchange over wire bytes."""
    seconds: Estimate | None
    run_ids: tuple[str, ...]


class Column(NamedTuple):
    """A column after method and setting."""

    field: str
    heading: str
    csv_heading: str
    write: Callable[[float], str]


def columns(metric: Metric) -> list[Column]:
    """The columns of settings that are judged by a metric."""
    heading = f"{metric.label} {metric.unit}".rstrip()
    all_columns = [
        Column("value", heading, metric.column, f"{{:.{metric.digits}f}}".format),
        Column("paper_gb", "GB (values)", "paper_gb", significant),
        Column("accuracy_per_gb", "%/GB", "accuracy_percent_per_paper_gb", significant),
        Column("wire_gb", "GB (wire)", "wire_gb", significant),
        Column("compression", "times smaller", "compression_ratio", _times),
        Column("compression_16", "than 16 bits", "compression_ratio_16_bits", _times),
        Column("seconds", "seconds", "seconds", significant),
    ]
    return [column for column in all_columns if metric == ACCURACY or column.field != "accuracy_per_gb"]


def change_heading(metric: Metric) -> str:
    """The heading of the column of differences: `points (95% interval)`."""
    return f"{metric.difference_unit or 'change'} (95% interval)"


def _times(value: float) -> str:
    return f"{significant(value)}x"


_WIDE = 200.0  # units of the last digit, from which on an interval is written with a digit less


def method_rows(groups: Sequence[Group]) -> list[MethodRow]:
    """One row for each setting, in the order of the groups."""
    reference = baseline(groups)
    return [
        MethodRow(
            method=group.rule,
            setting=group.setting or ("" if group.is_baseline else group.name),
            seeds=len(group.values),
            value=group.value,
            change=verdict.change(group, reference),
            paper_gb=group.estimate(names.TOTAL_PAPER_GB),
            accuracy_per_gb=group.estimate(names.TOTAL_ACCURACY_PER_GB) if group.metric == ACCURACY else None,
            wire_gb=group.estimate(names.TOTAL_WIRE_GB),
            compression=group.compression,
            compression_16=_halved(group.compression),
            seconds=group.estimate(names.TOTAL_SECONDS),
            run_ids=tuple(run.run_id for run in group.runs),
        )
        for group in groups
    ]


def _halved(ratio: Estimate | None) -> Estimate | None:
    if ratio is None:
        return None
    mean, low, high = (SIXTEEN_BITS * value for value in (ratio.mean, ratio.low, ratio.high))
    return Estimate(mean, low, high, ratio.count)


def cell(row: MethodRow, column: Column) -> str:
    """The text of a cell: the mean, with ± half of the interval if there are several seeds."""
    value: Estimate | None = getattr(row, column.field)
    if value is None:
        return MISSING
    text = column.write(value.mean)
    if value.count > 1 and column.field == "value":
        text += f" ± {column.write(value.spread)}"
    return text


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
        cells = (
            [row.method, row.setting, str(row.seeds), *(cell(row, c) for c in shown), change_cell(row.change)]
            for row in method_rows(comparison.groups)
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
        for row in method_rows(comparison.groups):
            values: list[str] = []
            for column in shown:
                values += _ends(getattr(row, column.field))
            values += _ends(row.change)
            texts = in_csv(row.method), in_csv(row.setting), row.seeds
            writer.writerow([*texts, *values, " ".join(row.run_ids), in_csv(comparison.name)])
    return text.getvalue()
