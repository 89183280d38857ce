"""Differences in accuracy in words: what an interval carries, and no more."""

from taugrad.platform.tasks.claims import FEWEST_SEEDS, Difference

from .method_table import interval, points

_NOTHING = 0.005  # points that are written as 0.00


def sentence(change: Difference) -> str:
    """What may be said of a difference, with its interval, without a full stop."""
    by = f"{points(change.mean)} points, 95% interval {interval(change)}"
    match change.kind:
        case "kept":
            return f"No accuracy lost: {by}, which rules a loss of {change.margin:g} points out"
        case "gained":
            return f"More accurate: {by}"
        case "lost":
            return f"Less accurate: {by}"
        case "unknown":
            return (
                f"{points(change.mean)} points, and no interval: "
                "the runs do not say how many test examples they share"
            )
    measured = "No loss found" if change.mean > -_NOTHING else f"{-change.mean:.2f} points less measured"
    return f"{measured}, but a loss of up to {change.most_lost:.1f} points is not ruled out ({by})"


def title(change: Difference, allowed_loss: float) -> str:
    """The same for a card: a few words."""
    match change.kind:
        case "kept":
            return f"No accuracy lost: {change.margin:g} points ruled out"
        case "gained":
            return "More accurate"
        case "open" if change.mean > -_NOTHING:
            return f"No loss found; up to {change.most_lost:.1f} points not ruled out"
        case "open" | "lost":
            return f"Measured within {_points(allowed_loss)}; up to {change.most_lost:.1f} not ruled out"
    return f"Measured within {_points(allowed_loss)}"


def seeds(change: Difference) -> str:
    """What the interval rests on."""
    if change.seeds < FEWEST_SEEDS:
        return "Seeds were not repeated."
    return f"The interval covers {change.seeds} seeds and the choice of test examples."


def _points(allowed: float) -> str:
    return f"{allowed:g} point{'s' * (allowed != 1)}" if allowed else "the baseline"
