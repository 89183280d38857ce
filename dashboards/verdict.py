"""Which method, at what threshold, saves how much, at what accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.tracking import names

from .groups import Estimate, Group, baseline, rules

ALLOWED_LOSSES = (0.0, 0.5, 1.0)
"""Points of accuracy that may be lost against the mean of the runs without compression."""

_HEADLINE_LOSS = 0.5


@dataclass(frozen=True, eq=False)
class Pick:
    """The setting that sends least among those that lose no more than so many points."""

    allowed_loss: float
    group: Group
    accuracy: Estimate
    """Percent."""
    compression: Estimate
    """Baseline bytes over wire bytes."""
    change: float
    """Points against the baseline's mean; negative when accuracy was lost."""


def pick(groups: Sequence[Group], allowed_loss: float) -> Pick | None:
    """The setting that sends least and loses no more than so many points of accuracy.

    Args:
        groups: The experiment's settings; without a baseline among them nothing can be lost or kept.
        allowed_loss: Points, against the baseline's mean.

    Returns:
        None without a baseline, or when every setting loses more.
    """
    reference = _accuracy(baseline(groups))
    if reference is None:
        return None
    found = []
    for group in groups:
        accuracy, compression = _accuracy(group), group.compression
        if group.is_baseline or accuracy is None or compression is None:
            continue
        change = accuracy.mean - reference.mean
        if change >= -allowed_loss - 1e-9:
            found.append(Pick(allowed_loss, group, accuracy, compression, change))
    return max(found, key=lambda each: each.compression.mean, default=None)


def picks(groups: Sequence[Group]) -> list[Pick]:
    """The answers for every allowed loss, each setting once, with the smallest loss that admits it."""
    found: list[Pick] = []
    for loss in ALLOWED_LOSSES:
        each = pick(groups, loss)
        if each is not None and all(each.group is not other.group for other in found):
            found.append(each)
    return found


def headline(groups: Sequence[Group]) -> Pick | None:
    """The answer in one setting: the most that is saved within half a point."""
    return pick(groups, _HEADLINE_LOSS) or pick(groups, ALLOWED_LOSSES[-1])


def representatives(groups: Sequence[Group], most: int = 8) -> list[Group]:
    """One setting for each rule, and the baseline: those that figures of single runs show.

    Of a rule the setting that sends least within half a point of the baseline; otherwise the most accurate.

    Args:
        groups: The experiment's settings.
        most: Rules, at most; those that save most stay.

    Returns:
        The baseline first, if there is one, then the rules that save most.
    """
    reference = baseline(groups)
    chosen = []
    for members in rules(groups).values():
        admitted = pick([*members, *([reference] if reference else [])], _HEADLINE_LOSS)
        chosen.append(admitted.group if admitted else max(members, key=_mean_accuracy))
    chosen.sort(key=_compression, reverse=True)
    return [*([reference] if reference else []), *chosen[:most]]


def _accuracy(group: Group | None) -> Estimate | None:
    return group.estimate(names.EVAL_ACCURACY, 100) if group else None


def _mean_accuracy(group: Group) -> float:
    accuracy = _accuracy(group)
    return accuracy.mean if accuracy else 0.0


def _compression(group: Group) -> float:
    compression = group.compression
    return compression.mean if compression else 0.0
