"""The candidates that can win, by the plan's seconds of a step and the known worths of steps."""

from collections.abc import Sequence
from dataclasses import replace

from ..plan.candidate import Candidate
from ..plan.planning import advised


def sift(candidates: Sequence[Candidate]) -> tuple[Candidate, list[Candidate], list[Candidate]]:
    """Separates the fastest exact candidate, those that may be faster to a target, and the rejected.

    `candidates` are sorted by their seconds, and at least one is exact; so are the results.
    """
    exact = next(candidate for candidate in candidates if candidate.is_exact)
    kept: list[Candidate] = []
    rejected: list[Candidate] = []
    for candidate in candidates:
        if candidate is exact:
            continue
        twin = next((other for other in (exact, *kept) if other.learns_like(candidate)), None)
        finer = next((other for other in kept if other.loses_less_than(candidate)), None)
        if not candidate.worth:
            why = "an adaptive optimizer learns little with a threshold on gradients"
        elif twin is not None:
            why = f"learns like {twin}, which is faster"
        elif candidate.least_to_target >= exact.seconds:
            why = f"no faster than {exact}, which loses nothing"
        elif finer is not None:
            why = f"no faster than {finer}, which loses less"
        else:
            kept.append(candidate)
            continue
        rejected.append(replace(candidate, rejected=why))
    return exact, kept, rejected


def by_advice(exact: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The advised candidate, then the others by their expected seconds to a target, the exact one too."""
    ordered = sorted((exact, *candidates), key=lambda candidate: candidate.to_target)
    first = advised(ordered, exact.seconds)
    return [first, *(candidate for candidate in ordered if candidate is not first)]
