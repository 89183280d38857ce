"""Says that numba compiles kernels, where that takes long: the first use on a machine looks like a hang."""

import logging
import threading
import time

from numba.core import event

_LONG_S = 3.0
log = logging.getLogger("taugrad")


class _Announcement(event.Listener):
    """Warns once per process, when its kernels have been compiled for three seconds in all."""

    def __init__(self) -> None:
        self._depth, self._spent_s, self._began = 0, 0.0, 0.0
        self._timer = threading.Timer(_LONG_S, self._warn)
        self._warned = False

    def on_start(self, _: event.Event) -> None:  # numba holds its compiler's lock
        self._depth += 1
        if self._depth == 1 and not self._warned:
            self._began = time.monotonic()
            self._timer = threading.Timer(max(0.0, _LONG_S - self._spent_s), self._warn)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, _: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0 and not self._warned:
            self._timer.cancel()
            self._spent_s += time.monotonic() - self._began

    def _warn(self) -> None:
        self._warned = True
        log.warning("compiling kernels for this machine, once; this may take a minute")


def announce() -> None:
    """Begins to watch the compiler."""
    event.register("numba:compile", _Announcement())
