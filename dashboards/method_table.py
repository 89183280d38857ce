"""Tables in the papers' own layout: threshold, accuracy, GB, %/GB; and what went over the wire."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taugrad.platform.tracking import names

from .groups import Estimate, Group
from .table import MISSING, significant


@dataclass(frozen=True)
class MethodRow:
    """One setting of a method; None where its runs did not log it. 1 GB = 1e9 bytes."""

    method: str
    setting: str
    """The threshold; or the floor, density, rank or bits that take its place."""
    accuracy: Estimate | None
    """Percent."""
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


def method_rows(groups: Sequence[Group]) -> list[MethodRow]:
    """One row for each setting, in the order of the groups."""
    return [
        MethodRow(
            method=group.rule,
            setting=group.setting or ("" if group.is_baseline else group.name),
            accuracy=group.estimate(names.EVAL_ACCURACY, 100),
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


def methods_to_markdown(rows: Sequence[MethodRow]) -> str:
    """The table in Markdown, ending with a newline."""
    headings = ["method", "threshold", "seeds", *(column.heading for column in COLUMNS)]
    lines = ["| " + " | ".join(headings) + " |", "| --- | --- |" + " ---: |" * (1 + len(COLUMNS))]
    for row in rows:
        cells = [row.method, row.setting, str(len(row.run_ids)), *(cell(row, column) for column in COLUMNS)]
        lines.append("| " + " | ".join(" ".join(each.replace("|", "\\|").split()) for each in cells) + " |")
    return "\n".join(lines) + "\n"


def methods_to_csv(rows: Sequence[MethodRow]) -> str:
    """The table as CSV with twelve significant digits and the intervals' ends; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = [f"{column.csv_heading}{end}" for column in COLUMNS for end in ("", "_low", "_high")]
    writer.writerow(["method", "threshold", "seeds", *ends, "runs"])
    for row in rows:
        values: list[str] = []
        for column in COLUMNS:
            each: Estimate | None = getattr(row, column.field)
            values += (
                ["", "", ""] if each is None else [f"{v:.12g}" for v in (each.mean, each.low, each.high)]
            )
        writer.writerow([row.method, row.setting, len(row.run_ids), *values, " ".join(row.run_ids)])
    return text.getvalue()
