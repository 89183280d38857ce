"""What may be said of a difference in accuracy: its interval, and the claim that this interval carries.

Two things make a difference uncertain: another seed would have trained another model, and other test
examples would have judged it differently. Each gives an interval, and the two are added in squares (the
"method of variance estimates recovery"; of two single runs this is Newcombe's interval for a difference of
proportions):

- Seeds: Student's t of the differences between runs of the same seed, where at least two seeds are shared;
  Welch's t where both settings have several seeds but share fewer than two.
- Examples: Wilson's intervals of both accuracies, as if each had its own test set. Both are judged by the
  same examples, where they mostly agree, so the true interval is narrower: this one errs to the safe side.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
MARGIN = 0.5
"""Points of accuracy: a loss is ruled out when the interval holds none as large as this."""
FEWEST_SEEDS = 2
"""Runs of one seed say nothing of what another seed would have trained."""

Kind = Literal["lost", "kept", "gained", "open", "unknown"]


@dataclass(frozen=True)
class Difference:
    """A setting's accuracy less that of the runs without compression, in points."""

    mean: float
    low: float | None
    """The 95% interval; None where the number of test examples is not known."""
    high: float | None
    seeds: int
    """Seeds whose spread is in the interval; 1: seeds were not repeated, and only examples are in it."""

    @property
    def kind(self) -> Kind:
        """The claim: `kept` where the interval rules out a loss of `MARGIN`, from two seeds on.

        `lost` and `gained` where it lies on one side of 0, `open` where it settles nothing, `unknown`
        without one.
        """
        if self.low is None or self.high is None:
            return "unknown"
        if self.high < 0:
            return "lost"
        if self.seeds < FEWEST_SEEDS or self.low <= -MARGIN:
            return "open"
        return "gained" if self.low > 0 else "kept"

    @property
    def most_lost(self) -> float | None:
        """Points that may have been lost, at most; 0 where the whole interval is above 0."""
        return None if self.low is None else max(0.0, -self.low)


def difference(
    accuracies: Mapping[str, float], reference: Mapping[str, float], examples: int | None
) -> Difference:
    """How far a setting's accuracy lies from the reference's, and how sure that is.

    Args:
        accuracies: The setting's, 0 to 1, by seed; at least one.
        reference: The same of the runs without compression.
        examples: In the test set that judged them all; None where nobody knows.

    Returns:
        The difference, of the seeds that both have where these are at least two, otherwise of the means.
    """
    shared = sorted(accuracies.keys() & reference.keys())
    if len(shared) >= FEWEST_SEEDS:
        accuracies, reference = ({seed: each[seed] for seed in shared} for each in (accuracies, reference))
        between, seeds = _paired(accuracies, reference), len(shared)
    elif min(len(accuracies), len(reference)) >= FEWEST_SEEDS:
        between, seeds = _welch(accuracies, reference), min(len(accuracies), len(reference))
    else:
        between, seeds = 0.0, 1
    mine, theirs = (float(np.mean(list(each.values()))) for each in (accuracies, reference))
    mean = mine - theirs
    if not examples:
        return Difference(100 * mean, None, None, seeds)
    (my_low, my_high), (their_low, their_high) = wilson(mine, examples), wilson(theirs, examples)
    low = mean - math.sqrt((mine - my_low) ** 2 + (their_high - theirs) ** 2 + between**2)
    high = mean + math.sqrt((my_high - mine) ** 2 + (theirs - their_low) ** 2 + between**2)
    return Difference(100 * mean, 100 * low, 100 * high, seeds)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share of so many examples.

    Args:
        share: 0 to 1; a mean of several runs on the same examples has at most this uncertainty.
        count: Examples, at least 1.
    """
    z = _normal()
    middle = share + z**2 / (2 * count)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    # At 0 and at 1 the ends are exact but for rounding.
    return min(share, (middle - half) / whole), max(share, (middle + half) / whole)


def _paired(accuracies: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Half of the t interval of the mean difference between runs of the same seed."""
    found = [accuracies[seed] - reference[seed] for seed in accuracies]
    return _t(len(found) - 1) * float(np.std(found, ddof=1)) / math.sqrt(len(found))


def _welch(accuracies: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """Half of Welch's t interval of the difference of two means."""
    counts = [len(each) for each in (accuracies, reference)]
    parts = [float(np.var(list(each.values()), ddof=1)) / len(each) for each in (accuracies, reference)]
    whole = sum(parts)
    if whole == 0:
        return 0.0
    degrees = whole**2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return _t(degrees) * math.sqrt(whole)


def _t(degrees: float) -> float:
    from scipy.stats import t  # noqa: PLC0415 - half a second

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


def _normal() -> float:
    from scipy.stats import norm  # noqa: PLC0415 - half a second

    return float(norm.ppf((1 + CONFIDENCE) / 2))
