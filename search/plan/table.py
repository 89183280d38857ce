"""A plan as text: tables, with a sentence for each."""

import csv
import io
import math
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from .planning import Comparison, Prediction

HEADINGS = (
    "method",
    "mode",
    "s a step",
    "times faster than fp16",
    "worth of a step",
    "computing %",
    "MB received a step",
    "MB of memory",
)
_TEXTS = (0, 1)
"""Columns of text; the others have numbers."""
_LEAST = 1e-4
LIMITS = (
    "This predicts the time of a step, not what it learns: what a step is worth, in steps without "
    "compression, was measured with other models (docs/results). taugrad auto --link measures it with yours. "
    "Memory does not include activations."
)


def rows_of(comparison: Comparison) -> list[tuple[str, ...]]:
    """A line for each prediction, under `HEADINGS`."""
    return [
        (
            each.candidate.method,
            each.candidate.mode,
            number(each.seconds),
            number(comparison.times_faster(each)),
            f"{each.candidate.value:.2f}",
            number(100 * each.step.utilization),
            number(each.step.received / 1e6),
            number(each.memory / 1e6),
        )
        for each in comparison.predictions
    ]


def title_of(comparison: Comparison) -> str:
    """Link and workers."""
    return f"{comparison.link}, {comparison.workers} worker{'s' * (comparison.workers != 1)}"


def sentence(comparison: Comparison) -> str:
    """The best choice, or that compression does not pay."""
    best, base = comparison.best, comparison.baseline
    if comparison.pays:
        gain = base.seconds / best.to_target
        return (
            f"At {title_of(comparison)}: {_named(best)} ({number(base.seconds / best.seconds)} times faster "
            f"than {base.candidate.method}; about {number(gain)} times faster to a target)."
        )
    said = f"At {title_of(comparison)} compression does not pay: {_named(best)}"
    compressed = [each for each in comparison.predictions if each.candidate.compresses]
    if compressed:
        fastest = min(compressed, key=lambda each: each.to_target)
        if math.isfinite(fastest.to_target):
            said += f"; the fastest to a target that compresses is {_named(fastest)}"
    return said + "."


def shown(comparison: Comparison) -> Table:
    """For a terminal."""
    return as_table(HEADINGS, rows_of(comparison), title_of(comparison), _TEXTS)


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All tables and sentences."""
    parts = []
    for each in comparisons:
        table = as_markdown(HEADINGS, rows_of(each), _TEXTS)
        parts.append(f"## {title_of(each)}\n\n{sentence(each)}\n\n{table}\n")
    return "\n".join([*parts, LIMITS]) + "\n"


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """One table of everything, with unrounded numbers: seconds, bytes, shares."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            "link",
            "workers",
            "method",
            "mode",
            "seconds",
            "compute_s",
            "exchange_s",
            "received_bytes",
            "memory_bytes",
        )
    )
    for comparison in comparisons:
        for each in comparison.predictions:
            step = each.step
            numbers = (each.seconds, step.compute_s, step.exchange_s, step.received, each.memory)
            writer.writerow(
                (
                    *(comparison.link, comparison.workers, each.candidate.method, each.candidate.mode),
                    *(f"{number:.6g}" for number in numbers),
                )
            )
    return text.getvalue()


def number(value: float) -> str:
    """A number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= _LEAST or not value else f"<{_LEAST:g}"


def as_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str, texts: Collection[int]
) -> Table:
    """A table for a terminal.

    Args:
        headings: of the columns.
        rows: a text for each column.
        title: above it.
        texts: columns of text, which is folded where it is long; the others have numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for place, heading in enumerate(headings):
        if place in texts:
            table.add_column(heading, overflow="fold")
            continue
        words = heading.split()
        above = (len(words) + 1) // 2
        in_two = " ".join(words[:above]) + "\n" + " ".join(words[above:])
        table.add_column(in_two, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def as_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int]) -> str:
    """The same for a file."""
    ruler = ["---" if place in texts else "---:" for place in range(len(headings))]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in each)} |"
        for each in (headings, ruler, *rows)
    )


def _named(prediction: Prediction) -> str:
    return f"{prediction.candidate}, {number(prediction.seconds)} s a step"
