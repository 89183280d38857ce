"""What workers tell one another beside a round: how many examples they learned from, and buffers."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from ..errors import CorruptMessage
from .carrier import Carrier, Payload
from .tensors import to_bytes

_TAG = "aside"


class Aside:
    """Numbers of all workers, and worker 0's buffers; they are under way beside a round's messages."""

    def __init__(
        self, carriers: Sequence[Carrier], examples: Sequence[float], buffers: Sequence[Tensor]
    ) -> None:
        """Sends what the workers of these carriers tell: examples, and buffers, of which worker 0's are told.

        Either is empty on all processes, or on none.
        """
        self._own = {c.rank: each for c, each in zip(carriers, examples, strict=False)}
        self._buffers = to_bytes(buffers) if carriers[0].rank == 0 else np.empty(0, np.uint8)
        self._senders = range(carriers[0].workers) if examples else range(1 if buffers else 0)
        for carrier in carriers:
            if carrier.rank in self._senders:
                own = np.array([self._own.get(carrier.rank, 0.0)]).view(np.uint8)
                message = np.concatenate([own, self._buffers]) if carrier.rank == 0 else own
                for other in carrier.others:
                    carrier.send(other, _TAG, message)
        # Asked for here, in the order in which all send: who waits for it later may do so in another order.
        self._coming = [
            (source, carrier.receive(source, _TAG))
            for carrier in carriers
            for source in self._senders
            if source != carrier.rank
        ]

    @cached_property
    def _heard(self) -> tuple[float, Payload]:
        """The sum of all workers' examples, in the order of ranks, and worker 0's buffers."""
        examples, buffers = dict(self._own), self._buffers
        for source, coming in self._coming:
            message = coming.result()
            if message.size < np.float64().nbytes:
                raise CorruptMessage(f"worker {source} told {message.size} bytes beside a round")
            examples[source] = float(message[:8].view(np.float64)[0])
            if source == 0:
                buffers = message[8:]
        return sum(examples[rank] for rank in sorted(examples)), buffers

    @property
    def examples(self) -> float:
        """All workers' together, once all have told theirs; 0 where none are told."""
        return self._heard[0]

    @property
    def buffers(self) -> Payload:
        """Worker 0's, as `to_bytes` made them; empty where none are told."""
        return self._heard[1]
