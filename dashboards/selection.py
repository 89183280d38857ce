"""Which runs the prepared view shows, where an experiment has more than MLflow's UI compares at once."""

from collections.abc import Sequence

import numpy as np

from .groups import Group, by_setting, rules
from .runs import RunHistory

MOST_RUNS = 100
"""Up to this number, the view shows all runs; of more, MLflow's UI would show the first hundred."""
SHOWN = 40
"""Of more runs, so many are shown: their lines can still be told apart, and the page opens in seconds."""


def selected(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """The runs to show: all, or of many a few that represent every rule.

    Of each setting there is at most one run, the oldest. Every rule has as many settings as the others, as
    far as it has them: the one that reached most, and others spread from the most wire bytes to the fewest.

    Args:
        runs: those that trained something.

    Returns:
        At most `SHOWN`; all of them if there are at most `MOST_RUNS`, or if none has come to its end.
    """
    settings = by_setting(runs)
    if len(runs) <= MOST_RUNS or not settings:
        return list(runs)
    families = [[each for each in settings if each.is_baseline], *rules(settings).values()]
    families = [family for family in families if family]
    return [
        group.runs[0]
        for family, share in zip(families, shares([len(each) for each in families], SHOWN), strict=True)
        for group in spread(family, share)
    ]


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """How many each gets of a total, one after the other, and none more than its size."""
    given = [0] * len(sizes)
    while sum(given) < min(total, sum(sizes)):
        for i, size in enumerate(sizes):
            given[i] += given[i] < size and sum(given) < total
    return given


def spread(family: Sequence[Group], count: int) -> list[Group]:
    """Some settings of one rule: the one that reached most, and others at equal distances in their order."""
    if not count:
        return []
    places = np.unique(np.linspace(0, len(family) - 1, count).round().astype(int))
    best = max(range(len(family)), key=lambda i: _reached(family[i]))
    if best not in places:
        moved = places[1:-1] if len(places) > 2 else places  # a view: the ends stay, where there are others
        moved[np.abs(moved - best).argmin()] = best
    return [family[i] for i in places]


def _reached(group: Group) -> float:
    value = group.value
    if value is None:
        return -np.inf
    return value.mean if group.metric.more_is_better else -value.mean
