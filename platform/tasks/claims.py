"""Intervals of a metric's value or of a difference, and the claims that they support.

Two things make a value uncertain: another seed would have trained another model, and other test examples
would have judged it differently. Each gives an interval, and the two are added in squares (the "method of
variance estimates recovery"; of two single runs this is Newcombe's interval for a difference of
proportions):

- Seeds: Student's t; of a difference that of the differences between runs of the same seed, where at least
  two seeds are shared, and Welch's t where both settings have several seeds but share fewer than two.
- Examples, where the metric is a share of them: Wilson's interval; of a difference those of both shares, as
  if each had its own test set. Both are judged by the same examples, where they mostly agree, so the true
  interval is narrower: this one errs to the safe side. Of other metrics, such as a loss, runs do not say how
  much single examples differ: only seeds count, and of one seed there is no interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy as np

from .metric import Metric

CONFIDENCE = 0.95
FEWEST_SEEDS = 2
"""Runs of one seed say nothing of what another seed would have trained."""

Kind = Literal["lost", "kept", "gained", "open", "unknown"]


@dataclass(frozen=True)
class Difference:
    """A setting's value less that of the runs without compression, in the unit that people see."""

    mean: float
    low: float | None
    """The 95% interval; None where there is none."""
    high: float | None
    seeds: int
    """Seeds whose spread is in the interval; 1: seeds were not repeated, and only examples are in it."""
    metric: Metric
    margin: float
    """A loss is ruled out when the interval holds none as large as this."""

    @property
    def lost(self) -> float:
        """By how much the setting is worse; below 0: it is better."""
        return -self.metric.sign * self.mean

    @property
    def kind(self) -> Kind:
        """The claim: `kept` where the interval rules out a loss of `margin`, from two seeds on.

        `lost` and `gained` where it lies on one side of 0, `open` where it settles nothing, `unknown`
        without one.
        """
        if self.low is None or self.high is None:
            return "unknown"
        least, most = sorted(-self.metric.sign * end for end in (self.low, self.high))
        if least > 0:
            return "lost"
        if self.seeds < FEWEST_SEEDS or most >= self.margin:
            return "open"
        return "gained" if most < 0 else "kept"

    @property
    def most_lost(self) -> float | None:
        """What may have been lost, at most; 0 where the whole interval is on the better side."""
        if self.low is None or self.high is None:
            return None
        return max(0.0, *(-self.metric.sign * end for end in (self.low, self.high)))


def judged(values: Sequence[float], metric: Metric) -> float:
    """The value by which a search ranks several seeds: their mean, made worse by its standard error."""
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return fmean(values) - metric.sign * error


def difference(
    values: Mapping[str, float], reference: Mapping[str, float], examples: int | None, metric: Metric
) -> Difference:
    """How far a setting's value lies from the reference's, and how sure that is.

    Values are as they are logged, by seed; the reference's are those of the same runs without compression.
    `examples`: in the test set that judged them all; None where nobody knows. The difference is of the seeds
    that both have where these are at least two, otherwise of the means.
    """
    shared = sorted(values.keys() & reference.keys())
    if len(shared) >= FEWEST_SEEDS:
        values, reference = ({seed: by_seed[seed] for seed in shared} for by_seed in (values, reference))
        between = half_interval([values[seed] - reference[seed] for seed in shared])
        seeds = len(shared)
    elif min(len(values), len(reference)) >= FEWEST_SEEDS:
        between, seeds = _welch(values, reference), min(len(values), len(reference))
    else:
        between, seeds = 0.0, 1
    mine, theirs = (float(np.mean(list(by_seed.values()))) for by_seed in (values, reference))
    mean, scale, margin = mine - theirs, metric.scale, metric.margin(theirs)
    if not (examples if metric.is_share else seeds >= FEWEST_SEEDS):
        return Difference(scale * mean, None, None, seeds, metric, margin)
    (my_low, my_high), (their_low, their_high) = (
        wilson(mean, examples) if metric.is_share and examples else (mean, mean) for mean in (mine, theirs)
    )
    low = mean - math.sqrt((mine - my_low) ** 2 + (their_high - theirs) ** 2 + between**2)
    high = mean + math.sqrt((my_high - mine) ** 2 + (theirs - their_low) ** 2 + between**2)
    return Difference(scale * mean, scale * low, scale * high, seeds, metric, margin)


def interval(values: Sequence[float], examples: int | None, metric: Metric) -> tuple[float, float] | None:
    """The 95% interval of the mean of one setting's values, one a seed, as they are logged.

    It is of seeds and examples, as far as they are known; None where neither is.
    """
    mean, between = float(np.mean(values)), 0.0
    if len(values) < FEWEST_SEEDS and not (metric.is_share and examples):
        return None
    if len(values) >= FEWEST_SEEDS:
        between = half_interval(values)
    if not (metric.is_share and examples):
        return mean - between, mean + between
    low, high = wilson(mean, examples)
    # No share is below 0 or above 1.
    return max(0.0, mean - math.hypot(mean - low, between)), min(1.0, mean + math.hypot(high - mean, between))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of so many examples.

    Args:
        share: 0 to 1; a mean of several runs on the same examples has at most this uncertainty.
        count: Examples, at least 1.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = share + z**2 / (2 * count)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    # At 0 and at 1 the ends are exact but for rounding.
    return min(share, (middle - half) / whole), max(share, (middle + half) / whole)


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95% t interval of the mean of two or more values."""
    return _t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _welch(values: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Half of Welch's t interval of the difference of two means."""
    counts = [len(by_seed) for by_seed in (values, reference)]
    parts = [float(np.var(list(by_seed.values()), ddof=1)) / len(by_seed) for by_seed in (values, reference)]
    whole = sum(parts)
    if whole == 0:
        return 0.0
    degrees = whole**2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return _t(degrees) * math.sqrt(whole)


def _t(degrees: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - `scipy.stats` would take a second to import

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
