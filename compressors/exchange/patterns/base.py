"""What all patterns have in common: one worker's side of an exchange, and what it keeps for the next.

Every worker runs the same generator, its pattern's. What it yields is sent, and what it gets back has
arrived; a round takes one delay of the link. `Exchange` (`exchange/exchange.py`) runs it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...bucket.compressor import Compressor, Outgoing, Worker
from ...bucket.feedback import Feedback
from ...bucket.layout import Shard
from ...bucket.ledger import Step, Traffic
from ...errors import CorruptMessage
from ...methods import CompressedMethod, Method, read_config
from ...ops.parts import PartTally, by_parameter
from ...spans import Interval
from ...wire.message import HEADER_BYTES, is_refusal, read_nonfinite, write_nonfinite
from ..carrier import Payload, Round

_RANK = np.dtype("<i8")


Payloads = dict[int, Payload]
"""What all workers have at the end of an exchange, by worker or by shard of the gradient."""
Rounds = Generator[Round, Sequence[Payload], Payloads]
"""A worker's side of an exchange: yields rounds, and gets the payloads that arrived, by `senders`."""


@dataclass
class ExchangeRecord:
    """What a worker's exchange is about, and what it compressed, sent and decoded, counted as it happens."""

    traffic: Traffic
    """What the worker sends and receives."""
    iteration: int = 0
    """Steps before this one, or exchanges of local steps."""
    rms: Mapping[str, float] | None = None
    """By parameter, root mean squares of the loss's gradients where weights are exchanged."""
    weights: Mapping[str, Tensor] | None = None
    """By parameter, agreed weights, flat [numel], where there are any."""
    copies: bool = False
    """Whether `Pattern.put_back` restores copies (see `Compressor.compress`)."""
    refusal: int | None = None
    """The ordinal of a parameter, perhaps of one elsewhere, because of which the worker has no update."""
    columns: list[Iterable[PartTally]] = field(default_factory=list)
    """What it sent of its gradient, by message; a parameter may occur in more than one."""
    sum_columns: list[Iterable[PartTally]] = field(default_factory=list)
    """What it sent of sums that it reduced for all; what these leave out is a residual, too."""
    refused: list[tuple[bool, Callable[[], list[int]]]] = field(default_factory=list)
    """For messages of fixed size, whether of a sum, and `Outgoing.complete`, by the exchange's ordinals."""
    compressing: list[Interval] = field(default_factory=list)
    decoding: list[Interval] = field(default_factory=list)
    waited_s: float = 0.0
    """While messages were under way, where a worker waits for them."""
    compressed_before: int | None = None
    """Where another thread goes on, beside the training: how many of `compressing` there were before."""

    @property
    def layers(self) -> list[PartTally]:
        """What it sent of its gradient, by parameter."""
        tallies = [tally for column in self.columns for tally in column]
        return tallies if len(self.columns) == 1 else by_parameter(tallies)

    def count(self, step: Step, traffic: Traffic) -> None:
        """Adds what was sent and received to a step and to a worker's traffic."""
        traffic.add(self.traffic)
        step.add(self.traffic.sums)


class RefusedUpdate(NamedTuple):
    """A gradient was not finite; all workers learn of it in the same exchange."""

    rank: int
    """Rank of the worker that has no update."""
    ordinal: int
    """Ordinal of its first parameter affected."""


class Pattern(ABC):
    """One worker's side of exchanges: who sends what to whom, so that every worker ends with the same mean.

    Attributes:
        sizes: elements of each parameter by name, in the same order on all workers.
        feedback: what the worker has not sent yet, by parameter, and of the sums that it reduces for all.
        compressors: of all shards, also of those that others reduce.
    """

    shards: Sequence[Shard]
    """All elements; `assemble` gives them in this order."""
    compresses_at_once = True
    """Whether all of the worker's gradient is compressed before the first round."""
    reduces_shards = False
    """Whether some workers reduce shards for all, and keep what they have not sent of the sums."""

    def __init__(
        self, method: Method, worker: Worker, sizes: Mapping[str, int], feedback: Feedback | None = None
    ) -> None:
        """Prepares for parameters of these sizes, by default with a memory of their own."""
        self.worker, self.sizes, self.names = worker, sizes, list(sizes)
        self.reduction, self.nonfinite = method.reduction, method.nonfinite
        self.feedback = feedback or Feedback(as_messages(method))
        self.compressors: list[Compressor] = []
        self._without_sum: set[int] = set()
        """Shards of which some worker had no update, in a step that is skipped."""

    @abstractmethod
    def rounds(self, gradients: Sequence[Tensor], record: ExchangeRecord) -> Rounds:
        """The worker's side of one exchange of gradients, flat and contiguous, one per parameter."""

    @abstractmethod
    def refusals(self, payloads: Payloads) -> list[RefusedUpdate]:
        """Which workers had no update, by what all have at the end; raises CorruptMessage as `assemble`."""

    @abstractmethod
    def assemble(self, payloads: Payloads, total: Tensor | None = None) -> Tensor:
        """The mean (or sum) of all workers' gradients, float32 [all elements]; the same on every worker.

        A refusal counts as zeros. `total` may be given, to be filled. Raises CorruptMessage where a payload
        is damaged or does not fit; then nothing is filled.
        """

    def by_parameter(self, total: Tensor) -> Tensor:
        """What `assemble` gave, with the elements in the order of the parameters: float32 [all elements]."""
        if len(self.shards) == 1:
            return total
        flat = torch.empty_like(total)
        parameters = torch.split(flat, list(self.sizes.values()))
        places = [place for shard in self.shards for place in shard.of(parameters)]
        torch._foreach_copy_(places, list(torch.split(total, [place.numel() for place in places])))
        return flat

    def unsent(self) -> list[Tensor]:
        """What this worker has not sent yet of its own, flat [numel] by parameter; zeros without residuals.

        What a ring's worker keeps also holds what others sent.
        """
        kept, device = self.feedback.residuals, self.worker.ops.device
        return [
            kept[name].clone() if name in kept else torch.zeros(size, dtype=torch.float32, device=device)
            for name, size in self.sizes.items()
        ]

    def commit(self) -> None:
        """Tells the compressors that an exchange is complete."""
        self._without_sum = set()
        for compressor in self.compressors:
            compressor.commit()

    def put_back(self, stepped: Set[str] = frozenset()) -> None:
        """Puts back into the residuals what a cancelled exchange took out.

        What was sent of the parameters in `stepped` stays sent, unless there was no sum of their shard.
        """
        for place, compressor in enumerate(self.compressors):
            has_sum = place % len(self.shards) not in self._without_sum
            compressor.put_back(stepped if has_sum else frozenset())
        self._without_sum = set()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `feedback.state_dict` returned; raises ValueError if it does not fit."""
        scalar = torch.empty((), device=self.worker.ops.device)
        self.feedback.load_state_dict(state, {name: scalar.expand(size) for name, size in self.sizes.items()})

    def residual_squares(self) -> float:
        """Sum of squares of all that the worker has not sent yet."""
        return self.feedback.residual_squares(self.worker.ops)

    @property
    def _divisor(self) -> int:
        """What a sum over all workers is divided by."""
        return self.worker.workers if self.reduction == "mean" else 1

    def _compressors(self, method: Method, kept: Feedback) -> list[Compressor]:
        """What compresses each shard by itself, with its part of what is kept."""
        is_cut = len(self.shards) > 1 and kept is self.feedback
        compressors = [
            Compressor(as_messages(method), self.worker, shard, kept, number=number if is_cut else None)
            for number, shard in enumerate(self.shards)
        ]
        self.compressors += compressors
        return compressors

    def _outgoing(
        self,
        compressor: Compressor,
        tensors: Sequence[Tensor],
        record: ExchangeRecord,
        *,
        terms: Sequence[Tensor] | None = None,
    ) -> Outgoing:
        """What this worker sends of a shard's pieces, counted."""
        began, ordinals = perf_counter(), compressor.shard.ordinals
        is_sum = compressor.feedback is self.feedback.sums
        # In a step that is skipped, workers take back their part of a sum.
        copies = record.copies or (is_sum and self.nonfinite == "skip")
        terms = None if record.copies else terms
        outgoing = compressor.compress(
            tensors, record.iteration, record.rms, weights=record.weights, copies=copies, terms=terms
        )
        record.compressing.append((began, perf_counter()))
        record.traffic.sums.paper_bits += int(outgoing.tallies.paper_bits.sum())
        if not is_sum:
            record.traffic.sums.sent += int(outgoing.tallies.sent.sum())
            record.columns.append(outgoing.tallies)
        else:
            record.sum_columns.append(outgoing.tallies)
        if self.worker.readback is not None:
            record.refused.append((is_sum, lambda: [ordinals[number] for number in outgoing.complete()]))
        return outgoing

    def _is_refusal(self, payload: Payload) -> bool:
        """Whether a message says that there is no update; one of fixed size never does."""
        return self.worker.readback is None and is_refusal(payload)

    def _joined(
        self,
        compressors: Sequence[Compressor],
        payloads: Payloads,
        divisor: int,
        total: Tensor | None,
        writers: Sequence[int],
    ) -> Tensor:
        """The sum of each shard, from the payload of its writer, over a divisor; of a refusal, zeros."""
        incoming = {
            number: compressor.read_all({writers[number]: payloads[number]})
            for number, compressor in enumerate(compressors)
            if not self._is_refusal(payloads[number])
        }
        if total is None:
            total = torch.empty(self.shards[-1].stop, dtype=torch.float32, device=self.worker.ops.device)
        for number, compressor in enumerate(compressors):
            shard = compressor.shard
            compressor.total(incoming.get(number, []), divisor, total[shard.start : shard.stop])
        return total

    # A refusal that others pass on: a message that says so, and the rank of the worker that has no update.

    def _refusal(self, compressor: Compressor, ordinal: int) -> Payload:
        """Says, in place of a shard, that this worker has no update, by the ordinal of a parameter."""
        rank = np.array([self.worker.rank], _RANK)
        return np.concatenate([write_nonfinite(compressor.refusal(ordinal)), rank.view(np.uint8)])

    def _refused(self, compressor: Compressor, payload: Payload) -> RefusedUpdate:
        """Which worker's refusal was passed on in place of a shard; raises CorruptMessage."""
        message, rank = payload[:HEADER_BYTES], payload[HEADER_BYTES:]
        if rank.size != _RANK.itemsize:
            raise CorruptMessage(f"a refusal and {rank.size} bytes, a rank has {_RANK.itemsize}")
        refusal = read_nonfinite(message, compressor.shard.elements)
        return RefusedUpdate(int(rank.view(_RANK)[0]), refusal.ordinal)

    def _refused_shards(self, compressors: Sequence[Compressor], payloads: Payloads) -> list[RefusedUpdate]:
        by_worker: dict[tuple[int, int], RefusedUpdate] = {}
        for number, payload in payloads.items():
            if self._is_refusal(payload):
                refusal = self._refused(compressors[number], payload)
                by_worker[refusal.rank, refusal.ordinal] = refusal
                self._without_sum.add(number)
        return [refusal for _, refusal in sorted(by_worker.items())]


def as_messages(method: Method) -> CompressedMethod:
    """A method that writes messages; without compression, all parameters are exempt (sent whole)."""
    assert not method.brings_exchange, "it writes no messages"
    if isinstance(method, CompressedMethod):
        return method
    whole = read_config(
        {
            "kind": "fp16",
            "exempt": {"smaller_than": 2**31},
            "reduction": method.reduction,
            "nonfinite": method.nonfinite,
        }
    )
    assert isinstance(whole, CompressedMethod)
    return whole
