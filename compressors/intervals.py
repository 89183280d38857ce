"""Sets of moments, as intervals that do not overlap: what several threads did at once counts once."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""From and to, in seconds."""


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """The moments that lie in any of these: ascending and apart, as the other functions have them."""
    apart: list[Interval] = []
    for began, ended in sorted(intervals):
        if apart and began <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], ended)
        elif ended > began:
            apart.append((began, ended))
    return apart


def common(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The moments that lie in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in these for c, d in those)
    return [(began, ended) for began, ended in pairs if ended > began]


def without(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The moments that lie in the former and not in the latter."""
    left = []
    for began, ended in these:
        at = began
        for hole_began, hole_ended in common([(began, ended)], those):
            left.append((at, hole_began))
            at = hole_ended
        left.append((at, ended))
    return [(began, ended) for began, ended in left if ended > began]


def seconds(intervals: Iterable[Interval]) -> float:
    """How long they are together."""
    return sum(ended - began for began, ended in intervals)
