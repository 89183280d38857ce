"""Shards with owners (Krizhevsky's 1/K shards): every worker owns a part of the elements, and adds them up.

Strom's workers send each update to all others, so what a worker receives grows with the number of workers
(section 4). Here, a worker sends the update of a shard only to its owner. The owner sends the compressed sum
to all, and keeps what the compression leaves out in a residual of its own. So nothing is lost, neither on the
way to the owner nor on the way back.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np
from torch import Tensor

from ...bucket.compressor import Outgoing, Worker
from ...bucket.feedback import Feedback
from ...bucket.layout import Shard
from ...methods import Method
from ...wire.message import NonFinite
from ..carrier import Payload, Round
from .base import ExchangeRecord, Pattern, Payloads, RefusedUpdate, Rounds, as_messages


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server."""

    reduces_shards = True

    def __init__(
        self,
        method: Method,
        downlink: Method,
        worker: Worker,
        sizes: Mapping[str, int],
        shards: Sequence[Shard],
        feedback: Feedback | None = None,
    ) -> None:
        """Gives the shards to owners, from worker 0 on; workers send by one method, owners by the other."""
        super().__init__(method, worker, sizes, feedback)
        self.shards = shards
        # A step that is skipped takes back sums, too.
        downlink = downlink.model_copy(update={"nonfinite": method.nonfinite})
        self._out = self._compressors(method, self.feedback)
        if worker.rank < len(shards):
            sums = self.feedback.sums = self.feedback.sums or Feedback(as_messages(downlink))
            sums.slices |= {part.name: part for part in shards[worker.rank].slices}
        self._downlink = self._compressors(downlink, self.feedback.sums or self.feedback)

    def rounds(self, gradients: Sequence[Tensor], record: ExchangeRecord) -> Rounds:
        rank, workers = self.worker.rank, self.worker.workers
        others = [other for other in range(workers) if other != rank]
        owners = [owner for owner, shard in enumerate(self.shards) if shard.elements]
        outgoing = [
            self._outgoing(compressor, compressor.shard.of(gradients), record) for compressor in self._out
        ]
        del gradients  # in a simulation, many workers wait here at the same time
        payloads = self._to_owners(outgoing, record.refusal)
        sends = [(payloads[owner], [owner]) for owner in owners if owner != rank]
        own = payloads[rank] if rank in owners else None
        del outgoing, payloads  # messages are as large as the gradient where little is left out
        senders = others if rank in owners else []
        arrived = yield Round(sends, senders, sizes=[self._out[rank].nbytes for _ in senders])
        del sends
        sums: dict[int, Payload] = {}
        if own is not None:
            received = dict(sorted({rank: own, **dict(zip(others, arrived, strict=True))}.items()))
            sums[rank] = self._reduced(received, record)
            del received
        del own, arrived
        senders = [owner for owner in owners if owner != rank]
        sizes = [self._downlink[owner].nbytes for owner in senders]
        gathered = [(sums[rank], others)] if rank in owners else []
        arrived = yield Round(gathered, senders, sizes=sizes, is_gather=True)
        sums |= zip(senders, arrived, strict=True)
        empty: Payload = self.worker.ops.empty(0, np.uint8)
        return dict.fromkeys(range(len(self.shards)), empty) | sums

    def _to_owners(self, outgoing: Sequence[Outgoing], refused: int | None) -> list[Payload]:
        """What each owner gets: an update of its shard, or that this worker has none, of any shard."""
        for compressor, update in zip(self._out, outgoing, strict=True):
            if refused is None and self._is_refusal(update.payload):
                refusal = compressor.read(update.payload)
                assert isinstance(refusal, NonFinite)
                refused = compressor.shard.ordinals[refusal.ordinal]
        if refused is None:
            return [update.payload for update in outgoing]
        return [self._refusal(compressor, refused) for compressor in self._out]

    def _reduced(self, received: Payloads, record: ExchangeRecord) -> Payload:
        """The sum of all workers' updates of this worker's shard, compressed; or a refusal among them."""
        rank = self.worker.rank
        refusal = next((payload for payload in received.values() if self._is_refusal(payload)), None)
        if refusal is not None:
            return refusal
        began = perf_counter()
        total = self._out[rank].total(self._out[rank].read_all(received), self._divisor)
        record.decoding.append((began, perf_counter()))
        downlink = self._downlink[rank]
        outgoing = self._outgoing(downlink, downlink.shard.split(total), record)
        payload: Payload = outgoing.payload
        if not self._is_refusal(payload):
            return payload
        overflow = downlink.read(outgoing.payload)
        assert isinstance(overflow, NonFinite)
        return self._refusal(downlink, downlink.shard.ordinals[overflow.ordinal])

    def refusals(self, payloads: Payloads) -> list[RefusedUpdate]:
        return self._refused_shards(self._downlink, payloads)

    def assemble(self, payloads: Payloads, total: Tensor | None = None) -> Tensor:
        return self._joined(self._downlink, payloads, 1, total, range(len(self.shards)))
