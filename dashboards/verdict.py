"""Which method, at what threshold, saves how much, and what it reaches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.tasks.claims import Difference, difference
from taugrad.platform.tracking import names

from .groups import SIXTEEN_BITS, Estimate, Group, baseline, rules
from .runs import RunHistory

_MARGINS = (0.0, 1.0, 2.0)
"""How many of `Metric.margin` the measured value may be worse than that of the runs without compression."""


@dataclass(frozen=True, eq=False)
class Pick:
    """The setting that sends least among those measured to be no more than so many points worse."""

    allowed_loss: float
    group: Group
    value: Estimate
    """In the unit that people see."""
    compression: Estimate
    """Baseline bytes over wire bytes."""
    change: Difference
    """Against the baseline, and how sure that is."""


def change(group: Group, reference: Group | None) -> Difference | None:
    """How far a setting's value lies from the baseline's; None where there is nothing to compare.

    Without an interval where runs that are judged by a share do not say how many examples tested them, or
    were tested by others; and where those that are judged otherwise have one seed.
    """
    if reference is None or group.is_baseline or group.metric != reference.metric:
        return None
    mine, theirs = group.values, reference.values
    if not mine or not theirs:
        return None
    return difference(mine, theirs, _examples((*group.runs, *reference.runs)), group.metric)


def _examples(runs: Sequence[RunHistory]) -> int | None:
    """The size of the test set that all these runs share; None where they do not say, or have several."""
    counts = {run.final(names.EVAL_EXAMPLES) for run in runs}
    tests = {
        tuple(sorted(item for item in run.params.items() if item[0].startswith("data."))) for run in runs
    }
    (count, *others) = counts
    return int(count) if count and not others and len(tests) == 1 else None


def allowed_losses(groups: Sequence[Group]) -> tuple[float, ...]:
    """What may be lost, from nothing on, in the unit that people see; nothing else without a baseline."""
    reference = baseline(groups)
    value = reference.value if reference else None
    if reference is None or value is None:
        return (0.0,)
    margin = reference.metric.margin(value.mean / reference.metric.scale)
    return tuple(each * margin for each in _MARGINS)


def pick(groups: Sequence[Group], allowed_loss: float) -> Pick | None:
    """The setting that sends least and was measured to be no more than so many points worse.

    Args:
        groups: The experiment's settings; without a baseline among them nothing can be lost or kept.
        allowed_loss: Against the baseline, in the unit that people see.

    Returns:
        None without a baseline, or when every setting is worse than that.
    """
    reference = baseline(groups)
    found = []
    for group in groups:
        value, compression, moved = group.value, group.compression, change(group, reference)
        if value is None or compression is None or moved is None:
            continue
        if moved.lost <= allowed_loss + 1e-9:
            found.append(Pick(allowed_loss, group, value, compression, moved))
    return max(found, key=lambda each: each.compression.mean, default=None)


def picks(groups: Sequence[Group]) -> list[Pick]:
    """The answers for every allowed loss, each setting once, with the smallest loss that admits it."""
    found: list[Pick] = []
    for loss in allowed_losses(groups):
        each = pick(groups, loss)
        if each is not None and all(each.group is not other.group for other in found):
            found.append(each)
    return found


def headline(groups: Sequence[Group]) -> Pick | None:
    """The answer in one setting: the most that is saved within half a point, or what is like it."""
    _, *allowed = allowed_losses(groups)
    found = (pick(groups, each) for each in allowed)
    return next((each for each in found if each is not None), None)


def headline_factor(group: Group) -> tuple[float, str]:
    """What a ratio to float32's bytes is multiplied by for the headline, and what it is then against.

    People exchange 16 bits, half of those bytes, unless they repeat a paper.
    """
    if any(run.paper for run in group.runs):
        return 1.0, "float32"
    return SIXTEEN_BITS, "16 bits"


def representatives(groups: Sequence[Group], most: int = 8) -> list[Group]:
    """One setting for each rule, and the baseline: those that figures of single runs show.

    Of a rule the setting that sends least within half a point of the baseline, or what is like it; otherwise
    the best.

    Args:
        groups: The experiment's settings.
        most: Rules, at most; those that save most stay.

    Returns:
        The baseline first, if there is one, then the rules that save most.
    """
    reference, within = baseline(groups), allowed_losses(groups)[:2][-1]
    chosen = []
    for members in rules(groups).values():
        admitted = pick([*members, *([reference] if reference else [])], within)
        chosen.append(admitted.group if admitted else max(members, key=_goodness))
    chosen.sort(key=_compression, reverse=True)
    return [*([reference] if reference else []), *chosen[:most]]


def _goodness(group: Group) -> float:
    value = group.value
    return group.metric.sign * value.mean if value else -math.inf


def _compression(group: Group) -> float:
    compression = group.compression
    return compression.mean if compression else 0.0
