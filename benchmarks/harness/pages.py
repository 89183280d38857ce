"""Figures of results: cells of the tables in docs/results/, addressed by benchmark, table, row and column."""

import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def cell(benchmark: str, row: str, column: str, table: str = "") -> str:
    """A figure of a benchmark's newest results.

    Args:
        benchmark: its name.
        row: the row's first cells, joined by " / "; * stands for any.
        column: the column's heading.
        table: words of the heading above the table; empty for any table.

    Raises:
        LookupError: there is no such figure.
    """
    wanted, columns, heading = row.split(" / "), list[str](), ""
    for line in results_of(benchmark).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if not cells or not column:
            columns = []
        elif not columns:
            columns = cells
        elif (
            column in columns
            and table in heading
            and all(w in ("*", c) for w, c in zip(wanted, cells, strict=False))
        ):
            return cells[columns.index(column)].partition(" (goal")[0]
    raise LookupError(f"{results_of(benchmark).name}: no row {row!r} with {column!r}")


def results_of(benchmark: str) -> Path:
    """The newest results of a benchmark; raises LookupError: there are none."""
    newest = max(RESULTS.glob(f"????-??-??-{benchmark}.md"), default=None)
    if newest is None:
        raise LookupError(f"docs/results: no page of {benchmark}")
    return newest
