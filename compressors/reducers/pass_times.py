"""Seconds of one backward pass: computing, compressing, waiting and decoding, each moment once."""

from collections.abc import Sequence
from threading import Lock
from time import perf_counter

from ..bucket.ledger import Step
from ..spans import RECORDER, Interval, difference, duration, intersection, union


class PassTimes:
    """When messages of one backward pass were under way, when it waited, and when buckets were decoded.

    Two threads take part. The training thread computes gradients, compresses them, and waits: in the hook,
    and after the last bucket until DDP has everything. A thread beside it decodes what has arrived, and
    compresses the partial sums of a pattern's later rounds, during the backward pass or while the training
    thread waits. Time that both spend at once is counted once, for the training thread; this is only known
    at the end.
    """

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
        self._compresses: list[Interval] = []
        """After the first round."""

    def began(self) -> None:
        """A bucket's exchange starts."""
        with self._lock:
            self._open += 1

    def held(self, began: float, ended: float) -> None:
        """The training thread has waited between such times."""
        self._held.append((began, ended))

    def arrived(
        self,
        step: Step,
        handed_over: float,
        here: float,
        about: str,
        *,
        compressing: Sequence[Interval] = (),
        decoding: Sequence[Interval] = (),
    ) -> None:
        """A bucket is finished: its message was handed over, and everybody's were here, at such times.

        Between them, and after, it was compressed again and decoded. The ledger is written when all buckets
        are finished.
        """
        # What was done before was counted as compressing.
        compresses, decodes = (
            [(began, ended) for began, ended in intervals if began >= handed_over]
            for intervals in (compressing, decoding)
        )
        exchanges = difference([(handed_over, here)], union([*compresses, *decodes]))
        for began, ended in exchanges:
            RECORDER.add("exchange", "wire", began, ended, about)
        with self._lock:
            self._open -= 1
            self._exchanges += exchanges
            self._compresses += compresses
            self._decodes += decodes
            self._account(step)

    def left(self, step: Step) -> None:
        """The hook of the last bucket returns now: the pass then waits until all buckets are finished."""
        with self._lock:
            self._left = perf_counter()
            self._account(step)

    def _account(self, step: Step) -> None:
        if self._open or self._left is None:
            return
        done = max([self._left, *(ended for _, ended in [*self._exchanges, *self._decodes])])
        held = union([*self._held, (self._left, done)])
        decodes, compresses = union(self._decodes), union(self._compresses)
        waits, holding = difference(held, union([*decodes, *compresses])), intersection(decodes, held)
        step.exchange_s += duration(union(self._exchanges))
        step.blocked_s += duration(waits)
        step.compress_s += duration(intersection(compresses, held))
        step.decompress_s += duration(self._decodes)
        step.overlapped_decode_s += duration(decodes) - duration(holding)
        for began, ended in waits:
            RECORDER.add("wait", "compute", began, ended)
        for name, work in (("decode", decodes), ("compress", compresses)):
            for began, ended in intersection(work, held):
                RECORDER.add(name, "compute", began, ended)
            for began, ended in difference(work, held):
                RECORDER.add(name, "wire", began, ended)
