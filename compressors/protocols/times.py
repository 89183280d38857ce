"""Where the time of one backward pass goes, as far as the hook causes it.

Two threads take part. The training thread computes gradients, compresses them, and waits: in the hook, and
after the last bucket until DDP has everything. The transport's thread decodes what has arrived, during the
backward pass or while the training thread waits. Time that both spend at once is counted once, for the
training thread; this is only known at the end.
"""

from threading import Lock
from time import perf_counter

from ..bucket.ledger import Step
from ..spans import RECORDER, Interval, common, seconds, united, without


class PassTimes:
    """When messages of one backward pass were under way, when it waited, and when buckets were decoded."""

    def __init__(self) -> None:
        self._lock = Lock()  # the transport's threads call `arrived`
        self._open = 0
        """Buckets that are not finished."""
        self._left: float | None = None
        """When the last bucket's hook returned."""
        self._exchanges: list[Interval] = []
        self._held: list[Interval] = []
        """When the training thread did nothing but wait for a bucket."""
        self._decodes: list[Interval] = []

    def began(self) -> None:
        """A bucket's exchange starts."""
        with self._lock:
            self._open += 1

    def held(self, began: float) -> None:
        """The training thread has waited until now."""
        self._held.append((began, perf_counter()))

    def arrived(
        self, step: Step, handed_over: float, here: float, about: str, *, decoded: bool = True
    ) -> None:
        """A bucket is finished now: its message was handed over, and everybody's were here, at such times.

        It may have been decoded since then. The ledger is written when all buckets are finished.
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
        """The hook of the last bucket returns now: the pass then waits until all buckets are finished."""
        with self._lock:
            self._left = perf_counter()
            self._account(step)

    def _account(self, step: Step) -> None:
        if self._open or self._left is None or not self._exchanges:
            return
        done = max(ended for _, ended in [*self._exchanges, *self._decodes])
        held = united([*self._held, (self._left, max(self._left, done))])
        decodes = united(self._decodes)
        waits, holding = without(held, decodes), common(decodes, held)
        step.exchange_s += seconds(united(self._exchanges))
        step.blocked_s += seconds(waits)
        step.decompress_s += seconds(self._decodes)
        step.beside_s += seconds(decodes) - seconds(holding)
        for began, ended in waits:
            RECORDER.add("wait", "compute", began, ended)
        for began, ended in holding:
            RECORDER.add("decode", "compute", began, ended)
        for began, ended in without(decodes, held):
            RECORDER.add("decode", "wire", began, ended)
