"""Records a few steps of this process for a timeline of all workers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from time import perf_counter, time

from taugrad.compressors.spans import RECORDER, Span

from ..synchronization.gathering import all_gather_texts
from ..tracking.timeline import Timeline, moved

WARM_UP = 10
"""Steps of a process that are not recorded: kernels are compiled, layers are looked at."""


class Recording:
    """The spans of the steps behind the first ones.

    Machines' wall clocks put the workers of several of them side by side. Workers on one machine have one
    clock.
    """

    def __init__(self, steps: int) -> None:
        """Records `steps` steps; 0: none."""
        self._steps = range(WARM_UP, WARM_UP + steps)
        self._spans: list[Span] = []

    @contextmanager
    def step(self, before: int, number: int) -> Iterator[None]:
        """One step, recorded if it is one of those.

        Args:
            before: how many steps this process made before.
            number: its number in the run, from 1.
        """
        if before not in self._steps:
            yield
            return
        RECORDER.start()
        began = perf_counter()
        try:
            yield
        finally:
            ended = perf_counter()
            RECORDER.add("step", "compute", began, ended, str(number))
            ahead = time() - perf_counter()  # of seconds since 1970
            self._spans += [moved(span, ahead) for span in RECORDER.stop()]

    def gathered(self) -> Timeline | None:
        """Gathers all workers' steps; all call this together. None where a worker has recorded nothing."""
        if not self._steps:
            return None
        texts = all_gather_texts(json.dumps([astuple(span) for span in self._spans]))  # times keep every bit
        workers = [[Span(*fields) for fields in json.loads(text)] for text in texts]
        return Timeline.of(workers) if all(workers) else None
