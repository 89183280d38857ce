"""An exchange in rounds that starts while gradients are being computed.

As soon as the backward pass has computed all gradients of a range, a hook compresses the range and sends it
to its owner. If an owner has received a range from all workers, a hook adds it up and sends the sum back. The
rounds that follow the backward pass send the rest. Messages, results and ledgers are the same as those of
rounds that start after the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from ..training.replica import Replica
from .ahead import Ahead
from .patterns import Sharded
from .patterns.sharded import has_refusal
from .rounds import Payload


class Overlap:
    """Sends one worker's gradients while others are being computed."""

    def __init__(self, replica: Replica, pattern: Sharded, ahead: Ahead) -> None:
        """Watches the parameters' gradients from now on.

        Args:
            replica: computes them; they must be what is compressed, as they come.
            pattern: compresses them, without ever having to put back what it took out of residuals.
            ahead: takes the messages.
        """
        self._replica, self._pattern, self._ahead = replica, pattern, ahead
        self._ranges_of: list[list[int]] = [[] for _ in replica.parameters]
        for number, shard in enumerate(pattern.ranges):
            for ordinal in shard.ordinals:
                self._ranges_of[ordinal].append(number)
        ahead.take = self._send_back
        self._listens = False
        self._iteration = 0
        self._flat: dict[int, Tensor] = {}
        self._missing: list[int] = []
        self._done: set[int] = set()
        """Ranges of this worker's whose sums are on their way."""
        for ordinal, parameter in enumerate(replica.parameters):
            hook = partial(self._computed, ordinal)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def during(self, iteration: int) -> Iterator[None]:
        """A worker's backward pass goes on inside; what is computed elsewhere is not sent.

        Args:
            iteration: synchronizations before this one.
        """
        self._ahead.begin()
        self._iteration, self._flat = iteration, {}
        self._missing = [len(shard.pieces) for shard in self._pattern.ranges]
        self._done = set()
        self._listens = True
        try:
            yield
        finally:
            self._listens = False
            self._flat = {}

    @contextmanager
    def not_yet(self) -> Iterator[None]:
        """Gradients that are computed inside are not whole: others are added to them."""
        self._listens = False
        yield
        self._listens = True

    def _computed(self, ordinal: int, parameter: Tensor) -> None:
        """A parameter has its gradient.

        Raises:
            RuntimeError: it has had one in this backward pass, which is on its way.
            CorruptMessage: what a worker sent is not valid.
        """
        if not self._listens:
            return
        if ordinal in self._flat:
            raise RuntimeError(
                f"the gradient of {self._replica.names[ordinal]} came twice in one backward pass, as with "
                "reentrant checkpoints; it was sent the first time: set sync.overlap: false"
            )
        assert parameter.grad is not None
        self._flat[ordinal] = parameter.grad.flatten()
        for number in self._ranges_of[ordinal]:
            self._missing[number] -= 1
            if not self._missing[number]:
                pieces = self._pattern.ranges[number].pieces
                gradients = [self._flat[each.ordinal][each.start : each.stop] for each in pieces]
                self._pattern.send(number, gradients, self._iteration)
        for number in self._ahead.mine:
            others = self._ahead.arrived(number)
            if others is not None:
                self._send_back(number, others)

    def _send_back(self, number: int, others: dict[int, Payload]) -> None:
        """Sends the sum of one of this worker's ranges, if that is not done and its own part is there.

        Args:
            number: of the range.
            others: parts about it, by sender.
        """
        own = self._pattern.own(number)
        if own is None or number in self._done:
            return
        self._done.add(number)
        incoming = {sender: self._pattern.content(part) for sender, part in others.items()}
        incoming[self._pattern.setting.rank] = own
        # One that says that there is no update ends the synchronization, as all learn in the round.
        if not has_refusal(incoming):
            self._pattern.send_back(number, incoming, self._iteration)
