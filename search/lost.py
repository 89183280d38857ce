"""Trials that began and of whose end nothing was heard: taken up again, and given up at last.

Their process may have been killed. And Ray Tune may end a trial without telling anybody: where the process of
an earlier one was not ready for it in time, Tune gives it up, calls no callback and counts it as done.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from .progress import Progress

MOST = 3
"""Times that a trial is begun in one start of a search before it counts as failed."""


def run_all(progress: Progress, run: Callable[[], None], resumable: Callable[[], Mapping[str, str]]) -> None:
    """Runs trials until each has an end, or a budget is used up.

    Args:
        progress: of the search.
        run: one Ray Tune run of what is left.
        resumable: brings MLflow and the journal together after one; returns the runs that can go on.
    """
    begun = Counter[int]()
    while progress.incomplete:
        left = progress.left
        run()
        lost = progress.lose_all()
        if progress.exhausted() or (progress.left == left and not lost):
            return  # another run would do no more than this one
        begun.update(lost)
        for number in lost:
            if begun[number] >= MOST:
                progress.give_up(
                    number, f"begun {MOST} times; its process died, or Ray Tune never told how it ended"
                )
        if lost:
            progress.unfinished = dict(resumable())
