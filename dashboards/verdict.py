"""Which method, at what threshold, saves how much, at what accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.tasks.claims import Difference, difference
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names

from .groups import Estimate, Group, baseline, rules
from .runs import RunHistory

MARGIN = ACCURACY.margin(1.0)
ALLOWED_LOSSES = (0.0, MARGIN, 1.0)
"""Points by which the measured accuracy may lie below that of the runs without compression."""

_HEADLINE_LOSS = MARGIN


@dataclass(frozen=True, eq=False)
class Pick:
    """The setting that sends least among those measured to be no more than so many points worse."""

    allowed_loss: float
    group: Group
    accuracy: Estimate
    """Percent."""
    compression: Estimate
    """Baseline bytes over wire bytes."""
    change: Difference
    """Points against the baseline, and how sure they are."""


def change(group: Group, reference: Group | None) -> Difference | None:
    """How far a setting's accuracy lies from the baseline's; None where there is nothing to compare.

    Without an interval where the runs do not say how many examples tested them, or were tested by others.
    """
    if reference is None or group.is_baseline:
        return None
    mine, theirs = (each.by_seed(names.EVAL_ACCURACY) for each in (group, reference))
    if not mine or not theirs:
        return None
    return difference(mine, theirs, _examples((*group.runs, *reference.runs)), ACCURACY)


def _examples(runs: Sequence[RunHistory]) -> int | None:
    """The size of the test set that all these runs share; None where they do not say, or have several."""
    counts = {run.final(names.EVAL_EXAMPLES) for run in runs}
    tests = {
        tuple(sorted(item for item in run.params.items() if item[0].startswith("data."))) for run in runs
    }
    (count, *others) = counts
    return int(count) if count and not others and len(tests) == 1 else None


def pick(groups: Sequence[Group], allowed_loss: float) -> Pick | None:
    """The setting that sends least and was measured to be no more than so many points worse.

    Args:
        groups: The experiment's settings; without a baseline among them nothing can be lost or kept.
        allowed_loss: Points, against the baseline.

    Returns:
        None without a baseline, or when every setting is further below it.
    """
    reference = baseline(groups)
    found = []
    for group in groups:
        accuracy, compression, moved = _accuracy(group), group.compression, change(group, reference)
        if accuracy is None or compression is None or moved is None:
            continue
        if moved.mean >= -allowed_loss - 1e-9:
            found.append(Pick(allowed_loss, group, accuracy, compression, moved))
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
