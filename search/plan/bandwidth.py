"""The bandwidth for a compute utilization, by way to train, as in Streaming DiLoCo (arXiv 2501.18512).

Utilization is the share of the time in which the model is computed, by the plan's model of a step. Between
sites, the bandwidth is that of the sites' trunks; the workers' own links stay as they are.
"""

from collections.abc import Sequence

from .calibrated import Calibration
from .candidate import Candidate
from .link import Link
from .planning import Comparison, predict

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Compute utilizations."""
MOST = 1e12
"""The highest rate that is tried, bits per second."""
_HALVINGS = 40


def whatever_rate(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The first of the comparisons that differ in nothing but the link's rate, or its trunk's."""
    first: dict[tuple[Link, int], Comparison] = {}
    for comparison in comparisons:
        first.setdefault((_with_rate(comparison.link, MOST), comparison.workers), comparison)
    return list(first.values())


def needs(
    calibration: Calibration, comparison: Comparison
) -> list[tuple[Candidate, tuple[float | None, ...]]]:
    """Each way of a comparison, with `rate_for` for each of `SHARES`."""
    link, workers = comparison.link, comparison.workers
    return [
        (way, tuple(rate_for(calibration, way, link, workers, share) for share in SHARES))
        for way in comparison.candidates
    ]


def rate_for(
    calibration: Calibration, candidate: Candidate, link: Link, workers: int, share: float
) -> float | None:
    """The lowest rate of the link, or of its trunk, for a utilization above 0 and below 1.

    In bits per second, headers included; None if delays and the method's work leave less at any rate.
    """

    def suffices(rate: float) -> bool:
        return predict(calibration, candidate, _with_rate(link, rate), workers).step.utilization >= share

    low, high = 1.0, MOST
    if not suffices(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _with_rate(link: Link, rate: float) -> Link:
    if link.trunk is None:
        return link.model_copy(update={"rate": rate})
    between = _with_rate(link.trunk.link, rate)
    return link.model_copy(update={"trunk": link.trunk.model_copy(update={"link": between})})
