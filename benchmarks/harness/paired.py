"""Differences between trainings of the same seed, with what chance leaves open."""

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import t as student


def interval(differences: Sequence[float], decimals: int = 3) -> str:
    """The mean with its 95% interval over seeds (Student's t); one seed has none."""
    mean = fmean(differences)
    if len(differences) < 2:
        return f"{mean:+.{decimals}f}"
    low, high = bounds(differences)
    return f"{mean:+.{decimals}f} ({low:+.{decimals}f} to {high:+.{decimals}f})"


def bounds(differences: Sequence[float]) -> tuple[float, float]:
    """Between which the mean lies, with 95% confidence; of at least two seeds."""
    mean = fmean(differences)
    half = float(student.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    return mean - half, mean + half
