"""The settings that send least within a tolerated loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from taugrad.platform.tasks.claims import Difference, difference
from taugrad.platform.tracking import names

from .groups import SIXTEEN_BITS, Estimate, Group, baseline, goodness, rules
from .runs import RunHistory

_MARGINS = (0.0, 1.0, 2.0)
"""Tolerated losses of the measured value against the baseline's, in multiples of `Metric.margin`."""


@dataclass(frozen=True, eq=False)
class Pick:
    """The setting that sends least within a tolerated loss."""

    allowed_loss: float
    group: Group
    value: Estimate
    """In the metric's displayed unit."""
    compression: Estimate
    """Baseline bytes over wire bytes."""
    change: Difference
    """Against the baseline, with its interval."""


def change(group: Group, reference: Group | None) -> Difference | None:
    """The difference of a setting's value to the baseline's; None if there is nothing to compare.

    It has no interval if runs that are judged by a share do not give the number of their test examples, or
    have different test sets; and if runs that are judged otherwise have one seed.
    """
    if reference is None or group.is_baseline or group.metric != reference.metric:
        return None
    if not group.values or not reference.values:
        return None
    return difference(group.values, reference.values, _examples((*group.runs, *reference.runs)), group.metric)


def _examples(runs: Sequence[RunHistory]) -> int | None:
    """The size of the test set that all these runs share; None if they do not give it, or have several."""
    counts = {run.final(names.EVAL_EXAMPLES) for run in runs}
    tests = {
        tuple(sorted(item for item in run.params.items() if item[0].startswith("data."))) for run in runs
    }
    (count, *others) = counts
    return int(count) if count and not others and len(tests) == 1 else None


def allowed_losses(groups: Sequence[Group]) -> tuple[float, ...]:
    """Tolerated losses, ascending from 0, in the metric's displayed unit; only 0 without a baseline."""
    reference = baseline(groups)
    value = reference.value if reference else None
    if reference is None or value is None:
        return (0.0,)
    margin = reference.metric.margin(value.mean / reference.metric.scale)
    return tuple(count * margin for count in _MARGINS)


def pick(groups: Sequence[Group], allowed_loss: float) -> Pick | None:
    """The setting that sends least within a loss against the baseline, in the metric's displayed unit.

    None without a baseline, or if every setting lost more.
    """
    reference = baseline(groups)
    admitted = []
    for group in groups:
        value, compression, moved = group.value, group.compression, change(group, reference)
        if value is None or compression is None or moved is None:
            continue
        if moved.lost <= allowed_loss + 1e-9:
            admitted.append(Pick(allowed_loss, group, value, compression, moved))
    return max(admitted, key=lambda choice: choice.compression.mean, default=None)


def picks(groups: Sequence[Group]) -> list[Pick]:
    """The settings for all tolerated losses, without duplicates, with the smallest loss that admits each."""
    chosen: list[Pick] = []
    for loss in allowed_losses(groups):
        choice = pick(groups, loss)
        if choice is not None and all(choice.group is not other.group for other in chosen):
            chosen.append(choice)
    return chosen


def headline(groups: Sequence[Group]) -> Pick | None:
    """The setting that saves most within half a point, or the like."""
    _, *allowed = allowed_losses(groups)
    choices = (pick(groups, loss) for loss in allowed)
    return next((choice for choice in choices if choice is not None), None)


def headline_factor(group: Group) -> tuple[float, str]:
    """The factor of a ratio to float32's bytes in the headline, and the reference that it is then against.

    That is a 16-bit exchange, the usual one, unless the runs repeat a paper.
    """
    if any(run.paper for run in group.runs):
        return 1.0, "float32"
    return SIXTEEN_BITS, "16 bits"


def representatives(groups: Sequence[Group], most: int = 8) -> list[Group]:
    """The baseline, and a setting for each of the `most` rules that save most, for figures of single runs.

    A rule's setting is the one that sends least within half a point of the baseline, or the like; otherwise
    the best.
    """
    reference, within = baseline(groups), allowed_losses(groups)[:2][-1]
    chosen = []
    for members in rules(groups).values():
        admitted = pick([*members, *([reference] if reference else [])], within)
        chosen.append(admitted.group if admitted else max(members, key=goodness))
    chosen.sort(key=_compression, reverse=True)
    return [*([reference] if reference else []), *chosen[:most]]


def _compression(group: Group) -> float:
    compression = group.compression
    return compression.mean if compression else 0.0
