"""Differences in words, which claim no more than their intervals show."""

from taugrad.platform.tasks.claims import FEWEST_SEEDS, Difference
from taugrad.platform.tasks.metric import ACCURACY

from .method_table import interval, signed


def sentence(change: Difference) -> str:
    """A difference and its interval as a sentence, without a full stop."""
    metric, measured_change = change.metric, _change(change)
    by = f"{measured_change}, 95% interval {interval(change)}"
    match change.kind:
        case "kept":
            return f"{_kept(change)}: {by}, which rules a loss of {metric.amount(change.margin)} out"
        case "gained":
            return f"{'More accurate' if metric == ACCURACY else 'Better'}: {by}"
        case "lost":
            return f"{'Less accurate' if metric == ACCURACY else 'Worse'}: {by}"
        case "unknown":
            return f"{measured_change}, and no interval: {no_interval(change)}"
    measured = "No loss found"
    if not _is_nothing(change):
        worse = "less" if metric.more_is_better else "more"
        measured = f"{change.lost:.{metric.digits}f} {metric.difference_unit} {worse} measured"
    return f"{' '.join(measured.split())}, but a loss of up to {_most_lost(change)} is not ruled out ({by})"


def no_interval(change: Difference) -> str:
    """The reason why a difference has no interval."""
    if change.metric.is_share:
        return "the runs do not say how many test examples they share"
    return "seeds were not repeated"


def _kept(change: Difference) -> str:
    return "No accuracy lost" if change.metric == ACCURACY else "No worse"


def _change(change: Difference) -> str:
    return f"{signed(change.mean, change.metric.digits)} {change.metric.difference_unit}".rstrip()


def _is_nothing(change: Difference) -> bool:
    """Whether the loss is written as 0, or is a gain."""
    return bool(change.lost < 0.5 * 10.0**-change.metric.digits)


def _most_lost(change: Difference) -> str:
    digits = 1 if change.metric.unit == "%" else change.metric.digits
    return f"{change.most_lost:.{digits}f} {change.metric.difference_unit}".rstrip()


def title(change: Difference, allowed_loss: float) -> str:
    """A difference in a few words, for a card."""
    match change.kind:
        case "kept":
            return f"{_kept(change)}: {change.metric.amount(change.margin)} ruled out"
        case "gained":
            return "More accurate" if change.metric == ACCURACY else "Better"
        case "open" if _is_nothing(change):
            return f"No loss found; up to {_most_lost(change)} not ruled out"
        case "open" | "lost":
            most = _most_lost(change).partition(" ")[0]
            return f"Measured within {_allowed(change, allowed_loss)}; up to {most} not ruled out"
    return f"Measured within {_allowed(change, allowed_loss)}"


def seeds(change: Difference) -> str:
    """The sentence about the seeds in the interval."""
    if change.seeds < FEWEST_SEEDS:
        return "Seeds were not repeated."
    examples = " and the choice of test examples" if change.metric.is_share else ""
    return f"The interval covers {change.seeds} seeds{examples}."


def _allowed(change: Difference, allowed: float) -> str:
    return change.metric.amount(allowed) if allowed else "the baseline"
