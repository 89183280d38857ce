"""A plan as text: tables, with a sentence for each."""

import csv
import io
import math
from collections.abc import Sequence

from ..advice import CLEARLY
from ..tables import TextTable
from .bandwidth import SHARES, needs
from .calibrated import Calibration
from .candidate import Candidate
from .planning import Comparison

HEADINGS = (
    *("way", "s a step", "times faster than fp16", "worth of a step", "times faster to a target"),
    *("computing %", "MB received a step", "MB of memory"),
)
NEVER = "never"
"""Stands for a rate if none suffices."""
_LEAST = 1e-4
_CSV_COLUMNS = (
    *("link", "workers", "method", "mode"),
    *("seconds", "compute_s", "exchange_s", "received_bytes", "memory_bytes"),
)
LIMITS = (
    "This predicts the time of a step, not what it learns: what a step is worth, in steps without "
    "compression, was measured with other models (docs/results). taugrad auto --link measures it with yours. "
    "Memory does not include activations."
)


def steps_of(comparison: Comparison) -> TextTable:
    """The predictions of a comparison."""
    rows = [
        (
            str(candidate),
            number(candidate.seconds),
            number(comparison.times_faster(candidate)),
            f"{candidate.worth:.2f}",
            number(comparison.baseline.seconds / candidate.to_target),
            number(100 * candidate.step.utilization),
            number(candidate.step.received / 1e6),
            number(candidate.memory / 1e6),
        )
        for candidate in comparison.candidates
    ]
    return TextTable(HEADINGS, rows, title=title_of(comparison), spare=3)


def rates_of(calibration: Calibration, comparison: Comparison) -> TextTable:
    """The rates of the link that the ways of a comparison need, without ways for which none suffices."""
    link, trunk = comparison.link, comparison.link.trunk
    whose, lies = "worker", link if trunk is None else trunk.link
    given = _workers(comparison)
    if trunk is not None:
        whose = "site"
        worker_link = link.model_copy(update={"trunk": None})
        given += f" with {worker_link} at {trunk.sites} sites"
    lost = f", {100 * lies.loss:.4g}% lost" if lies.loss else ""
    title = (
        f"Mbit/s of each {whose}'s link for this share of the time computing; "
        f"{given}, delay {1000 * lies.delay:.4g} ms{lost}"
    )
    ways = needs(calibration, comparison)
    rows = [
        (str(way), *(NEVER if rate is None else number(rate / 1e6) for rate in rates))
        for way, rates in ways
        if any(rates)
    ]
    if len(ways) > len(rows):
        title += f"; {len(ways) - len(rows)} of {len(ways)} ways reach none of them at any rate"
    return TextTable(("way", *(f"{share:.0%}" for share in SHARES)), rows, title=title)


def title_of(comparison: Comparison) -> str:
    """Link and workers."""
    return f"{comparison.link}, {_workers(comparison)}"


def _workers(comparison: Comparison) -> str:
    return f"{comparison.workers} worker{'s' * (comparison.workers != 1)}"


def sentence(comparison: Comparison) -> str:
    """Says which way is best and why it is not the fastest one, or that compression does not pay."""
    best, base, where = comparison.best, comparison.baseline, f"At {title_of(comparison)}"
    compressed = [candidate for candidate in comparison.candidates if candidate.compresses]
    fastest = min(compressed, key=lambda candidate: candidate.to_target, default=best)
    if not comparison.pays:
        learns = math.isfinite(fastest.to_target) and fastest is not best
        other = f"; the fastest to a target that compresses is {_named(fastest)}" if learns else ""
        return f"{where} compression does not pay: {_named(best)}{other}."
    text = (
        f"{where}: {_named(best)} ({number(base.seconds / best.seconds)} times faster than {base.method}; "
        f"about {number(base.seconds / best.to_target)} times faster to a target)."
    )
    if fastest is not best:
        text += (
            f" {fastest} may be {number(best.to_target / fastest.to_target)} times faster still, but worths "
            f"were measured with other models: below {CLEARLY:g} times, the usual way is advised."
        )
    return text


def markdown(comparisons: Sequence[Comparison], rates: Sequence[TextTable]) -> str:
    """All tables and sentences."""
    parts = []
    for comparison in comparisons:
        steps = steps_of(comparison)
        parts.append(f"## {steps.title}\n\n{sentence(comparison)}\n\n{steps.markdown()}\n")
    parts += [f"## {table.title}\n\n{table.markdown()}\n" for table in rates]
    return "\n".join([*parts, LIMITS]) + "\n"


def as_csv(comparisons: Sequence[Comparison]) -> str:
    """All predictions as CSV, in seconds and bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for comparison in comparisons:
        for candidate in comparison.candidates:
            step = candidate.step
            numbers = (candidate.seconds, step.compute_s, step.exchange_s, step.received, candidate.memory)
            named = (comparison.link, comparison.workers, candidate.method, candidate.mode)
            writer.writerow((*named, *(f"{number:.6g}" for number in numbers)))
    return text.getvalue()


def number(value: float) -> str:
    """A number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= _LEAST or not value else f"<{_LEAST:g}"


def _named(candidate: Candidate) -> str:
    return f"{candidate}, {number(candidate.seconds)} s a step"
