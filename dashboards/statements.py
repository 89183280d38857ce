"""Differences in words: what an interval carries, and no more."""

from taugrad.platform.tasks.claims import FEWEST_SEEDS, Difference
from taugrad.platform.tasks.metric import ACCURACY

from .method_table import interval, signed


def sentence(change: Difference) -> str:
    """What may be said of a difference, with its interval, without a full stop."""
    metric, moved = change.metric, _moved(change)
    by = f"{moved}, 95% interval {interval(change)}"
    match change.kind:
        case "kept":
            return f"{_kept(change)}: {by}, which rules a loss of {metric.amount(change.margin)} out"
        case "gained":
            return f"{'More accurate' if metric == ACCURACY else 'Better'}: {by}"
        case "lost":
            return f"{'Less accurate' if metric == ACCURACY else 'Worse'}: {by}"
        case "unknown":
            return f"{moved}, and no interval: {no_interval(change)}"
    measured = "No loss found"
    if not _is_nothing(change):
        worse = "less" if metric.more_is_better else "more"
        measured = f"{change.lost:.{metric.digits}f} {metric.difference_unit} {worse} measured"
    return f"{' '.join(measured.split())}, but a loss of up to {_most_lost(change)} is not ruled out ({by})"


def no_interval(change: Difference) -> str:
    """Why a difference has none."""
    if change.metric.is_share:
        return "the runs do not say how many test examples they share"
    return "seeds were not repeated"


def _kept(change: Difference) -> str:
    return "No accuracy lost" if change.metric == ACCURACY else "No worse"


def _moved(change: Difference) -> str:
    return f"{signed(change.mean, change.metric.digits)} {change.metric.difference_unit}".rstrip()


def _is_nothing(change: Difference) -> bool:
    """Whether what was lost is written as 0, or something was gained."""
    return bool(change.lost < 0.5 * 10.0**-change.metric.digits)


def _most_lost(change: Difference) -> str:
    digits = 1 if change.metric.unit == "%" else change.metric.digits
    return f"{change.most_lost:.{digits}f} {change.metric.difference_unit}".rstrip()


def title(change: Difference, allowed_loss: float) -> str:
    """The same for a card: a few words."""
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
    """What the interval rests on."""
    if change.seeds < FEWEST_SEEDS:
        return "Seeds were not repeated."
    examples = " and the choice of test examples" if change.metric.is_share else ""
    return f"The interval covers {change.seeds} seeds{examples}."


def _allowed(change: Difference, allowed: float) -> str:
    return change.metric.amount(allowed) if allowed else "the baseline"
