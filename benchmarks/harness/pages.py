"""Figures of results: cells of the tables in docs/results/, addressed by benchmark, table, row and column."""

import re
from collections.abc import Iterator
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
    wanted = row.split(" / ")
    for heading, columns, rows in tables(results_of(benchmark).read_text(encoding="utf-8")):
        if table in heading and column in columns:
            for cells in rows:
                if all(w in ("*", c) for w, c in zip(wanted, cells, strict=False)):
                    return cells[columns.index(column)].partition(" (goal")[0]
    raise LookupError(f"{results_of(benchmark).name}: no row {row!r} with {column!r}")


def results_of(benchmark: str) -> Path:
    """The newest results of a benchmark; raises LookupError: there are none."""
    newest = max(RESULTS.glob(f"????-??-??-{benchmark}.md"), default=None)
    if newest is None:
        raise LookupError(f"docs/results: no page of {benchmark}")
    return newest


def tables(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Markdown's tables: the heading above each, its columns, and its rows."""
    heading, lines = "", list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif lines:
            columns, _, *rows = lines
            yield heading, columns, rows
            lines = []
        if line.startswith("## "):
            heading = line.removeprefix("## ")
