"""Tables in the papers' own layout: threshold, accuracy, GB, %/GB; and what went over the wire."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taugrad.platform.tasks.claims import Difference
from taugrad.platform.tracking import names

from . import verdict
from .groups import Estimate, Group, baseline
from .table import MISSING, significant


@dataclass(frozen=True)
class MethodRow:
    """One setting of a method; None where its runs did not log it. 1 GB = 1e9 bytes."""

    method: str
    setting: str
    """The threshold; or the floor, density, rank or bits that take its place."""
    seeds: int
    accuracy: Estimate | None
    """Percent."""
    change: Difference | None
    """Points of accuracy against the runs without compression."""
    paper_gb: Estimate | None
    """As the papers count: value bits only."""
    accuracy_per_gb: Estimate | None
    """The papers' Ratio: percent over paper GB."""
    wire_gb: Estimate | None
    compression: Estimate | None
    """Baseline bytes over wire bytes."""
    seconds: Estimate | None
    run_ids: tuple[str, ...]


class Column(NamedTuple):
    """A column after method and setting."""

    field: str
    heading: str
    csv_heading: str
    write: Callable[[float], str]


COLUMNS = (
    Column("accuracy", "accuracy %", "accuracy_percent", "{:.2f}".format),
    Column("paper_gb", "GB (values)", "paper_gb", significant),
    Column("accuracy_per_gb", "%/GB", "accuracy_percent_per_paper_gb", significant),
    Column("wire_gb", "GB (wire)", "wire_gb", significant),
    Column("compression", "times smaller", "compression_ratio", lambda value: f"{significant(value)}x"),
    Column("seconds", "seconds", "seconds", significant),
)


CHANGE = "points (95% interval)"
_WIDE = 2.0  # points; hundredths say nothing of an interval as wide as this


def method_rows(groups: Sequence[Group]) -> list[MethodRow]:
    """One row for each setting, in the order of the groups."""
    reference = baseline(groups)
    return [
        MethodRow(
            method=group.rule,
            setting=group.setting or ("" if group.is_baseline else group.name),
            seeds=len(group.by_seed(names.EVAL_ACCURACY)),
            accuracy=group.estimate(names.EVAL_ACCURACY, 100),
            change=verdict.change(group, reference),
            paper_gb=group.estimate(names.TOTAL_PAPER_GB),
            accuracy_per_gb=group.estimate(names.TOTAL_ACCURACY_PER_GB),
            wire_gb=group.estimate(names.TOTAL_WIRE_GB),
            compression=group.compression,
            seconds=group.estimate(names.TOTAL_SECONDS),
            run_ids=tuple(run.run_id for run in group.runs),
        )
        for group in groups
    ]


def cell(row: MethodRow, column: Column) -> str:
    """A cell for people: the mean, and half of the interval behind ± where there are several seeds."""
    each: Estimate | None = getattr(row, column.field)
    if each is None:
        return MISSING
    text = column.write(each.mean)
    if each.count > 1 and column.field == "accuracy":
        text += f" ± {each.spread:.2f}"
    return text


def points(change: float, decimals: int = 2) -> str:
    """Points of accuracy for people, with their sign: `+0.30`."""
    text = f"{change:+.{decimals}f}".replace("-", "−")
    return f"±{text[1:]}" if not text.strip("+−0.") else text


def interval(change: Difference) -> str:
    """The interval for people, `−0.90 to +0.30`; empty where there is none."""
    if change.low is None or change.high is None:
        return ""
    decimals = 1 if change.high - change.low >= _WIDE else 2
    return f"{points(change.low, decimals)} to {points(change.high, decimals)}"


def change_cell(change: Difference | None) -> str:
    """Points against the runs without compression, and their interval."""
    if change is None:
        return MISSING
    return f"{points(change.mean)} ({interval(change) or 'interval not known'})"


def methods_to_markdown(rows: Sequence[MethodRow]) -> str:
    """The table in Markdown, ending with a newline."""
    headings = ["method", "threshold", "seeds", *(column.heading for column in COLUMNS), CHANGE]
    lines = ["| " + " | ".join(headings) + " |", "| --- | --- |" + " ---: |" * (2 + len(COLUMNS))]
    for row in rows:
        cells = [row.method, row.setting, str(row.seeds), *(cell(row, column) for column in COLUMNS)]
        cells.append(change_cell(row.change))
        lines.append("| " + " | ".join(" ".join(each.replace("|", "\\|").split()) for each in cells) + " |")
    return "\n".join(lines) + "\n"


def methods_to_csv(rows: Sequence[MethodRow]) -> str:
    """The table as CSV with twelve significant digits and the intervals' ends; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = [f"{column.csv_heading}{end}" for column in COLUMNS for end in ("", "_low", "_high")]
    ends += [f"accuracy_change_points{end}" for end in ("", "_low", "_high")]
    writer.writerow(["method", "threshold", "seeds", *ends, "runs"])
    for row in rows:
        values: list[str] = []
        for column in COLUMNS:
            each: Estimate | None = getattr(row, column.field)
            values += (
                ["", "", ""] if each is None else [f"{v:.12g}" for v in (each.mean, each.low, each.high)]
            )
        moved = row.change
        ends_of_change = (moved.mean, moved.low, moved.high) if moved else (None, None, None)
        values += ["" if value is None else f"{value:.12g}" for value in ends_of_change]
        writer.writerow([row.method, row.setting, row.seeds, *values, " ".join(row.run_ids)])
    return text.getvalue()
