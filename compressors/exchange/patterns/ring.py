"""A ring: our own all-reduce, plain or compressed at every hop (Rae, section 2.1; Gibiansky 2017).

Elements are cut into as many chunks as there are workers. In the first half (reduce-scatter) each chunk goes
round once: every worker adds its own gradient to the partial sum that it received, and passes the sum on. In
the second half (all-gather) the finished sums go round unchanged.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

from torch import Tensor

from ...bucket.compressor import Worker
from ...bucket.feedback import Feedback
from ...bucket.layout import Shard, cut
from ...methods import Method
from ...wire.message import NonFinite
from ..carrier import Payload, Round
from .base import ExchangeRecord, Pattern, Payloads, RefusedUpdate, Rounds


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

    def rounds(self, gradients: Sequence[Tensor], record: ExchangeRecord) -> Rounds:
        assert record.refusal is None, "each hop finds out by itself"
        rank, workers = self.worker.rank, self.worker.workers
        payload = self._pass_on(rank, gradients, None, record)
        for hop in range(workers - 1):
            before = (rank - hop - 1) % workers
            arrived = yield self._round(payload, before)
            payload = self._pass_on(before, gradients, arrived[0] if arrived else None, record)
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
        self, chunk: int, gradients: Sequence[Tensor], partial: Payload | None, record: ExchangeRecord
    ) -> Payload:
        """The partial sum plus this worker's gradient, compressed; a refusal is passed on unchanged."""
        compressor, workers = self._chunks[chunk], self.worker.workers
        shard = compressor.shard
        tensors = terms = shard.of(gradients)
        if partial is not None:
            if self._is_refusal(partial):
                if not record.copies:
                    compressor.keep(terms)
                return partial
            began = perf_counter()
            received = compressor.read_all({(self.worker.rank - 1) % workers: partial})
            sums = shard.split(compressor.total(received, 1))
            tensors = [before + gradient for before, gradient in zip(sums, terms, strict=True)]
            record.decoding.append((began, perf_counter()))
        has_sums = partial is not None and self.nonfinite == "skip"
        outgoing = self._outgoing(compressor, tensors, record, terms=terms if has_sums else None)
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
