"""Trials that started, but never reported an end: they are continued, and in the end given up.

Their process may have been killed. Ray Tune may also end a trial silently: if the process of an earlier trial
is not ready for it in time, Tune gives the trial up, calls no callback, and counts it as done.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from .progress import Progress

MOST = 3
"""How often a trial is started in one start of a search before it counts as failed."""


def run_all(progress: Progress, run: Callable[[], None], resumable: Callable[[], Mapping[str, str]]) -> None:
    """Runs trials until each has ended, or a budget is used up.

    Args:
        progress: of the search.
        run: one Ray Tune run of what is left.
        resumable: makes MLflow and the journal agree after such a run; returns the runs that can continue.
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
