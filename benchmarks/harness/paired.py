"""Differences between trainings of the same seed, with what chance leaves open."""

from collections.abc import Sequence
from statistics import fmean

from taugrad.platform.tasks import claims
from taugrad.platform.tasks.metric import LOSS


def interval(differences: Sequence[float], decimals: int = 3) -> str:
    """The mean with its 95% interval over seeds (Student's t); one seed has none."""
    mean, ends = f"{fmean(differences):+.{decimals}f}", claims.interval(differences, None, LOSS)
    return f"{mean} ({ends[0]:+.{decimals}f} to {ends[1]:+.{decimals}f})" if ends else mean
