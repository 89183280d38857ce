"""Where the time of one backward pass goes, as far as the hook makes it.

Two threads are at it. The one that trains computes gradients, compresses them, and waits: in the hook, and
after the last bucket until DDP has everything. The transport's own thread decodes what has arrived, beside
the backward pass or while that waits for it. What both do at the same time counts once, for the thread that
trains; that is only known at the end.
"""

from threading import Lock
from time import perf_counter

from ..bucket.ledger import Step
from ..intervals import Interval, common, seconds, united, without
from ..spans import RECORDER


class PassTimes:
    """When messages of one backward pass were on their way, when it waited, when buckets were decoded."""

    def __init__(self) -> None:
        self._lock = Lock()  # the transport's threads call `arrived`
        self._open = 0
        """Buckets that are not done."""
        self._left: float | None = None
        """When the last bucket's hook returned."""
        self._exchanges: list[Interval] = []
        self._held: list[Interval] = []
        """When the thread that trains did nothing but wait for a bucket."""
        self._decodes: list[Interval] = []

    def began(self) -> None:
        """A bucket is on its way."""
        with self._lock:
            self._open += 1

    def held(self, began: float) -> None:
        """The thread that trains has waited until now."""
        self._held.append((began, perf_counter()))

    def arrived(
        self, step: Step, handed_over: float, here: float, about: str, *, decoded: bool = True
    ) -> None:
        """A bucket is done now.

        Args:
            step: the ledger, written when all buckets are done.
            handed_over: when its message was, in seconds of `perf_counter`.
            here: when everybody's had arrived.
            about: which bucket it is.
            decoded: whether it was decoded since.
        """
        now = perf_counter()
        RECORDER.add("exchange", "wire", handed_over, here, about)
        with self._lock:
            self._open -= 1
            self._exchanges.append((handed_over, here))
            if decoded:
                self._decodes.append((here, now))
            self._account(step)

    def left(self, step: Step) -> None:
        """The hook of the last bucket returns now: from here on the pass waits until all buckets are done."""
        with self._lock:
            self._left = perf_counter()
            self._account(step)

    def _account(self, step: Step) -> None:
        if self._open or self._left is None:
            return
        done = max(ended for _, ended in [*self._exchanges, *self._decodes])
        held = united([*self._held, (self._left, max(self._left, done))])
        decodes = united(self._decodes)
        waits, holding = without(held, decodes), common(decodes, held)
        step.exchange_s = seconds(united(self._exchanges))
        step.blocked_s = seconds(waits)
        step.decompress_s = seconds(self._decodes)
        step.beside_s = step.decompress_s - seconds(holding)
        for began, ended in waits:
            RECORDER.add("wait", "compute", began, ended)
        for began, ended in holding:
            RECORDER.add("decode", "compute", began, ended)
        for began, ended in without(decodes, held):
            RECORDER.add("decode", "wire", began, ended)
