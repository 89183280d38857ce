"""Whether other processes keep this machine busy, so that measured seconds are too long."""

import os
from collections.abc import Callable
from time import monotonic, sleep

import psutil

SHARE = 0.25
"""Of the machine's processors: what other processes may take without a warning."""
_LEAST_S, _LOOK_S = 0.4, 0.5
"""Seconds that say anything; of a look before something is measured."""


def _busy() -> float:
    """Processor seconds that the whole machine has computed."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _own() -> float:
    """Those of this process and of its children that have ended."""
    return sum(os.times()[:4])


class OthersWork:
    """What processes other than this one and its children compute from now on."""

    def __init__(
        self,
        busy: Callable[[], float] = _busy,
        own: Callable[[], float] = _own,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._busy, self._own, self._clock = busy, own, clock
        self._began = busy() - own(), clock()

    def warning(self) -> str:
        """A line for people where they took a large share of the machine; else empty."""
        seconds = self._clock() - self._began[1]
        if seconds < _LEAST_S:
            return ""
        processors = (self._busy() - self._own() - self._began[0]) / seconds
        count = os.cpu_count() or 1
        if processors <= SHARE * count:
            return ""
        return (
            f"warning: this machine is busy: other processes used {processors:.1f} of its {count} "
            "processors, so measured seconds are too long; measure again when it is idle"
        )


def busy_now() -> str:
    """The same of the next half second, in which this process does nothing."""
    watch = OthersWork()
    sleep(_LOOK_S)
    return watch.warning()
