"""All-gather: every worker's messages go to all others, over links between sites only once for each site."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ...bucket.compressor import Outgoing, Worker
from ...bucket.feedback import Feedback
from ...bucket.layout import cut
from ...errors import CorruptMessage
from ...methods import Method
from ...wire.message import NonFinite, is_refusal
from ..carrier import Payload, Round
from ..sites import Sites
from .base import ExchangeRecord, Pattern, Payloads, RefusedUpdate, Rounds


class AllGather(Pattern):
    """One round; with sites, a second one in which messages are forwarded within each site.

    All workers add up the same messages in rank order.
    """

    def __init__(
        self,
        method: Method,
        worker: Worker,
        sizes: Mapping[str, int],
        feedback: Feedback | None = None,
        *,
        sites: Sites | None = None,
        all_reduces: bool = False,
    ) -> None:
        """Prepares for some parameters; by default all workers are at one site.

        With `all_reduces` it stands for torch's all-reduce in a simulation: it has the same result, and the
        bytes by a formula.
        """
        super().__init__(method, worker, sizes, feedback)
        self.shards = cut(sizes, 1)
        (self._all,) = self._compressors(method, self.feedback)
        self._all_reduces = all_reduces
        rank = worker.rank
        hops = (sites or Sites((tuple(range(worker.workers)),))).hops
        self._receivers = [hop.receiver for hop in hops if hop.source == hop.sender == rank]
        self._sources = [hop.source for hop in hops if hop.receiver == rank and hop.source == hop.sender]
        forwarded = [hop for hop in hops if hop.source != hop.sender]
        self._forwards = bool(forwarded)
        """Whether any worker does."""
        self._forwarded_here = [(hop.source, hop.sender) for hop in forwarded if hop.receiver == rank]
        self._to_forward: defaultdict[int, list[int]] = defaultdict(list)
        """By the worker that wrote a message, to whom this worker forwards it."""
        for hop in forwarded:
            if hop.sender == rank:
                self._to_forward[hop.source].append(hop.receiver)

    def rounds(self, gradients: Sequence[Tensor], record: ExchangeRecord) -> Rounds:
        assert record.refusal is None, "a refusal names a parameter of this bucket"
        outgoing = self._outgoing(self._all, self._all.shard.of(gradients), record)
        del gradients  # in a simulation, many workers wait here at the same time
        payloads: dict[int, Payload] = {self.worker.rank: outgoing.payload}
        arrived = yield Round(
            [(outgoing.payload, self._receivers)],
            self._sources,
            4 * self._all.shard.elements if self._all_reduces else None,
        )
        payloads |= zip(self._sources, arrived, strict=True)
        if self._forwards:
            sends = [(payloads[source], receivers) for source, receivers in self._to_forward.items()]
            arrived = yield Round(sends, [sender for _, sender in self._forwarded_here])
            payloads |= zip((source for source, _ in self._forwarded_here), arrived, strict=True)
        return dict(sorted(payloads.items()))

    def offer(self, gradients: Sequence[Tensor], record: ExchangeRecord, rank: int | None = None) -> Outgoing:
        """What this worker sends to all others in a round whose members change, which is not an `Exchange`.

        Given a rank, it rounds by that one's random numbers.
        """
        if rank is not None:
            self._all.worker = replace(self._all.worker, rank=rank)
        return self._outgoing(self._all, self._all.shard.of(gradients), record)

    def refusals(self, payloads: Payloads) -> list[RefusedUpdate]:
        shard, refusals = self._all.shard, []
        for rank, payload in payloads.items():
            if not is_refusal(payload):
                continue
            (refusal,) = self._all.read_all({rank: payload})
            assert isinstance(refusal, NonFinite)
            if refusal.ordinal >= len(shard.slices):
                raise CorruptMessage(
                    f"worker {rank} names parameter {refusal.ordinal} of the bucket, which has fewer"
                )
            refusals.append(RefusedUpdate(rank, shard.ordinals[refusal.ordinal]))
        return refusals

    def assemble(self, payloads: Payloads, total: Tensor | None = None) -> Tensor:
        # The mean is over all workers, or over the members of a round that closed with a quorum.
        divisor = len(payloads) if self.reduction == "mean" else 1
        return self._all.total(self._all.read_all(payloads), divisor, total)
