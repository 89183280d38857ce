"""Patterns that exchange partial sums, which are compressed again: a ring, and shards with owners.

**Ring**: our own all-reduce, plain or compressed at every hop (Rae, section 2.1; Gibiansky 2017). Elements
are cut into as many chunks as there are workers. In the first half (reduce-scatter) each chunk goes round
once: every worker adds its own gradient to the partial sum that it received, and passes the sum on. In the
second half (all-gather) the finished sums go round unchanged.

**Sharded** (Krizhevsky's 1/K shards): every worker owns a part of the elements, and adds them up for all.
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
from ...bucket.layout import Shard, cut
from ...methods import Method
from ...wire.message import NonFinite
from ..carrier import Payload, Round
from .base import ExchangeRecord, Pattern, Payloads, RefusedUpdate, Rounds, as_messages


class Ring(Pattern):
    """2 (N - 1) rounds, each to the next worker.

    A sum is compressed again at each hop. What the compression leaves out stays in the residual of the worker
    that compressed. Every worker compresses every chunk once, so its residual is as long as the gradient.

    With `nonfinite: skip`, a copy of it is kept from one step to the next: after a step that is skipped, it
    has gained the worker's own gradient, and nothing of the others'.
    """

    compresses_at_once = False

    def __init__(
        self,
        method: Method,
        worker: Worker,
        sizes: Mapping[str, int],
        feedback: Feedback | None = None,
        *,
        shards: Sequence[Shard] | None = None,
    ) -> None:
        """Prepares for some parameters, by default cut into equal chunks, one for each worker."""
        super().__init__(method, worker, sizes, feedback)
        self.shards = shards or cut(sizes, worker.workers)
        self._chunks = self._compressors(method, self.feedback)

    def rounds(
        self, gradients: Sequence[Tensor], iteration: int, record: ExchangeRecord, refused: int | None = None
    ) -> Rounds:
        assert refused is None, "each hop finds out by itself"
        rank, workers = self.worker.rank, self.worker.workers
        payload = self._pass_on(rank, gradients, None, iteration, record)
        for hop in range(workers - 1):
            before = (rank - hop - 1) % workers
            arrived = yield self._round(payload, before)
            payload = self._pass_on(before, gradients, arrived[0] if arrived else None, iteration, record)
        del gradients
        payloads = {(rank + 1) % workers: payload}
        for hop in range(workers - 1):
            chunk = (rank - hop) % workers
            arrived = yield self._round(payload, chunk)
            payload = payloads[chunk] = arrived[0] if arrived else payload[:0]
        return dict(sorted(payloads.items()))

    def _round(self, payload: Payload, chunk: int) -> Round:
        """Sends a payload to the next worker, and receives a chunk from the one before, if not empty."""
        rank, workers = self.worker.rank, self.worker.workers
        senders = [(rank - 1) % workers] if self.shards[chunk].elements else []
        return Round([(payload, [(rank + 1) % workers])] if payload.size else [], senders)

    def _pass_on(
        self,
        chunk: int,
        gradients: Sequence[Tensor],
        partial: Payload | None,
        iteration: int,
        record: ExchangeRecord,
    ) -> Payload:
        """The partial sum plus this worker's gradient, compressed; a refusal is passed on unchanged."""
        compressor, workers = self._chunks[chunk], self.worker.workers
        shard = compressor.shard
        tensors = terms = shard.of(gradients)
        if partial is not None:
            if self._is_refusal(partial):
                if not self.copies:
                    compressor.keep(terms)
                return partial
            began = perf_counter()
            sums = shard.split(self._sum(compressor, {(self.worker.rank - 1) % workers: partial}, 1, None))
            tensors = [received + gradient for received, gradient in zip(sums, terms, strict=True)]
            record.decoding.append((began, perf_counter()))
        has_sums = partial is not None and self.nonfinite == "skip"
        outgoing = self._compress(compressor, tensors, iteration, record, terms=terms if has_sums else None)
        payload: Payload = outgoing.payload
        if not self._is_refusal(payload):
            return payload
        refusal = compressor.read(outgoing.payload)
        assert isinstance(refusal, NonFinite)
        return self._refusal(compressor, shard.ordinals[refusal.ordinal])

    def refusals(self, payloads: Payloads) -> list[RefusedUpdate]:
        return self._refused_shards(self._chunks, payloads)

    def assemble(self, payloads: Payloads, total: Tensor | None = None) -> Tensor:
        workers = self.worker.workers
        writers = [(chunk - 1) % workers for chunk in range(workers)]
        return self._joined(self._chunks, payloads, self._divisor, total, writers)


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
        self._out = self._compressors(method, self.feedback)
        if worker.rank < len(shards):
            sums = self.feedback.sums = self.feedback.sums or Feedback(as_messages(downlink))
            sums.slices |= {part.name: part for part in shards[worker.rank].slices}
        self._downlink = self._compressors(downlink, self.feedback.sums or self.feedback)

    def rounds(
        self, gradients: Sequence[Tensor], iteration: int, record: ExchangeRecord, refused: int | None = None
    ) -> Rounds:
        rank, workers = self.worker.rank, self.worker.workers
        others = [other for other in range(workers) if other != rank]
        owners = [owner for owner, shard in enumerate(self.shards) if shard.elements]
        outgoing = [
            self._compress(compressor, compressor.shard.of(gradients), iteration, record)
            for compressor in self._out
        ]
        del gradients  # in a simulation, many workers wait here at the same time
        payloads = self._to_owners(outgoing, refused)
        sends = [(payloads[owner], [owner]) for owner in owners if owner != rank]
        own = payloads[rank] if rank in owners else None
        del outgoing, payloads  # messages are as large as the gradient where little is left out
        senders = others if rank in owners else []
        arrived = yield Round(sends, senders, sizes=[self._out[rank].nbytes for _ in senders])
        del sends
        sums: dict[int, Payload] = {}
        if own is not None:
            received = dict(sorted({rank: own, **dict(zip(others, arrived, strict=True))}.items()))
            sums[rank] = self._reduced(received, iteration, record)
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

    def _reduced(self, received: Payloads, iteration: int, record: ExchangeRecord) -> Payload:
        """The sum of all workers' updates of this worker's shard, compressed; or a refusal among them."""
        rank, divisor = self.worker.rank, self._divisor
        refusal = next((payload for payload in received.values() if self._is_refusal(payload)), None)
        if refusal is not None:
            return refusal
        began = perf_counter()
        total = self._sum(self._out[rank], received, divisor, None)
        record.decoding.append((began, perf_counter()))
        downlink = self._downlink[rank]
        outgoing = self._compress(downlink, downlink.shard.split(total), iteration, record)
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
