"""What all patterns have in common: one worker's side of an exchange, and what it keeps for the next."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...bucket.compressor import Outgoing
from ...bucket.feedback import Feedback, FeedbackCompressor, residual_squares
from ...bucket.layout import ParameterSlice
from ...errors import CorruptMessage
from ...methods import CompressedMethod, Method, PowerSGD, read_config
from ...ops.readback import Readback
from ...wire.message import HEADER_BYTES, NonFinite, is_refusal, read_nonfinite, write_nonfinite
from ..carrier import Payload
from ..resizing import resharded
from ..rounds import ExchangeRecord, Payloads, Rounds

_RANK = np.dtype("<i8")
_SHORTEST_SLICE = 1024
"""Elements: parameters that would be cut into shorter slices are reduced by one worker each."""


@dataclass(frozen=True)
class Shard:
    """Some elements of the parameters, one slice after the other; another worker may reduce each shard."""

    start: int
    stop: int
    """Its place among all elements, shard after shard."""
    slices: tuple[ParameterSlice, ...]

    @property
    def elements(self) -> int:
        """How many it has."""
        return self.stop - self.start

    @property
    def ordinals(self) -> list[int]:
        """Ordinals of the parameters that it has elements of."""
        return [part.ordinal for part in self.slices]

    def names(self, names: Sequence[str]) -> list[str]:
        """Names of these parameters, given the names of all."""
        return [names[part.ordinal] for part in self.slices]

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its slices of flat tensors [numel], one a parameter; views."""
        return [
            tensors[part.ordinal][part.start : part.stop] if part.stop - part.start < part.whole
            else tensors[part.ordinal]
            for part in self.slices
        ]  # fmt: skip

    def split(self, values: Tensor) -> list[Tensor]:
        """Its slices of all its elements; views."""
        return list(torch.split(values, [part.stop - part.start for part in self.slices]))


class CompressedShard(NamedTuple):
    """A shard, and what compresses it."""

    shard: Shard
    compressor: FeedbackCompressor


Cut = Callable[[Sequence[int], int], list[Shard]]
"""Cuts parameters of these sizes into so many shards."""


@dataclass(frozen=True)
class Setting:
    """What a worker's side needs to know."""

    names: Sequence[str]
    """Names of the parameters, in the same order on all workers."""
    like: Sequence[Tensor]
    """For each parameter a flat tensor [numel], on the device where gradients will be."""
    rank: int
    workers: int
    threads: int = 1
    """How many threads may share a pass on the CPU."""
    hold_back_zeros: bool = False
    """Send nothing for parameters whose gradient is zero everywhere."""
    whole: Sequence[int] = ()
    """Elements of each parameter in the model, which decide what is exempt; by default those of `like`."""
    feedback: Feedback | None = None
    """What the worker has not sent yet, perhaps with that of other parameters; by default a new one."""
    back: Feedback | None = None
    """Likewise, what it has not sent of sums that it reduced."""
    readback: Readback | None = None
    """See `Context`; messages are then of fixed size, and stay on the device."""

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [tensor.numel() for tensor in self.like]


class RefusedUpdate(NamedTuple):
    """A gradient was not finite; all workers learn of it in the same exchange."""

    rank: int
    """Rank of the worker that has no update."""
    ordinal: int
    """Ordinal of its first parameter affected."""


class Pattern(ABC):
    """One worker's side of exchanges: who sends what to whom, so that every worker ends with the same mean.

    Attributes:
        feedback: what the worker has not sent yet, by parameter.
        back: what it has not sent yet of the sums that it reduces for all; None where it reduces none.
        copies: whether `put_back` restores copies (see `FeedbackCompressor.compress`).
        rms: by parameter, root mean squares of the loss's gradients; set if weights are exchanged instead.
        compressors: of all shards, also of those that others reduce.
    """

    shards: Sequence[Shard]
    """All elements; `assemble` gives them in this order."""
    compresses_at_once = True
    """Whether all of the worker's gradient is compressed before the first round."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.setting = setting
        self.reduction, self.nonfinite = method.reduction, method.nonfinite
        self.feedback = setting.feedback or Feedback(compressed(method))
        self.back: Feedback | None = None
        self.copies = False
        self.rms: dict[str, float] | None = None
        self.compressors: list[FeedbackCompressor] = []

    @abstractmethod
    def rounds(
        self, gradients: Sequence[Tensor], iteration: int, record: ExchangeRecord, refused: int | None = None
    ) -> Rounds:
        """The worker's side of one exchange.

        Args:
            gradients: flat and contiguous, one a parameter.
            iteration: exchanges before this one.
            record: of the exchange.
            refused: that the worker has no update: the ordinal of a parameter, perhaps of one elsewhere.
        """

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
        parameters = torch.split(flat, self.setting.sizes)
        places = [place for shard in self.shards for place in shard.of(parameters)]
        torch._foreach_copy_(places, list(torch.split(total, [place.numel() for place in places])))
        return flat

    def unsent(self) -> list[Tensor]:
        """What this worker has not sent yet of its own, flat [numel] by parameter; zeros without residuals.

        What a ring's worker keeps also holds what others sent.
        """
        kept = self.feedback.residuals
        named = zip(self.setting.names, self.setting.like, strict=True)
        return [
            kept[name].clone() if name in kept else torch.zeros_like(tensor, dtype=torch.float32)
            for name, tensor in named
        ]

    def commit(self) -> None:
        """Tells the compressors that an exchange is complete."""
        for compressor in self.compressors:
            compressor.commit()

    def put_back(self, stepped: Set[str] = frozenset()) -> None:
        """Puts back into the residuals what a cancelled exchange took out, but of some parameters."""
        for compressor in self.compressors:
            compressor.put_back(stepped)

    def state_dict(self) -> dict[str, Any]:
        """What the worker keeps, as plain numbers and tensors."""
        state = self.feedback.state_dict()
        return state if self.back is None else state | {"back": self.back.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises ValueError if it does not fit."""
        if (self.back is None) == ("back" in state):
            raise ValueError("a state of a worker that reduces a shard, or this one does, and not both")
        like = dict(zip(self.setting.names, self.setting.like, strict=True))
        self.feedback.load_state_dict(state, like)
        if self.back is not None:
            self.back.load_state_dict(state["back"], like)

    def take_over(self, former: Sequence[Mapping[str, Any]]) -> None:
        """Restores this worker's part of what `state_dict` gave to another number of workers, by rank."""
        rank, workers, names = self.setting.rank, self.setting.workers, self.setting.names
        names_of_shards = [shard.names(names) for shard in self.shards]
        self.load_state_dict(resharded(former, rank, workers, self.reduction, names_of_shards, self.back))

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is kept for later."""
        return any(kept.residuals for kept in self._kept)

    def residual_squares(self) -> float:
        """Sum of squares of all that the worker has not sent yet."""
        return residual_squares(self._kept, self.compressors[0].compressor.ops)

    @property
    def _kept(self) -> list[Feedback]:
        return [self.feedback] if self.back is None else [self.feedback, self.back]

    @property
    def _divisor(self) -> int:
        """What a sum over all workers is divided by."""
        return self.setting.workers if self.reduction == "mean" else 1

    def _compressed(self, method: Method, shards: Sequence[Shard], kept: Feedback) -> list[CompressedShard]:
        """Shards that are compressed one by one, with their part of what is kept."""
        setting = self.setting
        parts = [
            CompressedShard(
                shard,
                FeedbackCompressor(
                    compressed(method),
                    shard.names(setting.names),
                    shard.of(setting.like),
                    threads=setting.threads,
                    hold_back_zeros=setting.hold_back_zeros,
                    whole=[setting.whole[ordinal] for ordinal in shard.ordinals] if setting.whole else (),
                    feedback=kept,
                    slices=None if len(shards) == 1 else shard.slices,
                    shard=number if len(shards) > 1 and kept is self.feedback else None,
                    readback=setting.readback,
                ),
            )
            for number, shard in enumerate(shards)
        ]
        self.compressors += [part.compressor for part in parts]
        return parts

    def _compress(
        self,
        part: CompressedShard,
        tensors: Sequence[Tensor],
        iteration: int,
        record: ExchangeRecord,
        *,
        terms: Sequence[Tensor] | None = None,
    ) -> Outgoing:
        """What this worker sends of a shard's pieces, counted."""
        began, ordinals = perf_counter(), part.shard.ordinals
        is_sum = part.compressor.feedback is self.back
        # In a step that is skipped, workers take back their part of a sum.
        copies, terms = self.copies or (is_sum and self.nonfinite == "skip"), None if self.copies else terms
        outgoing = part.compressor.compress(tensors, iteration, self.rms, copies=copies, terms=terms)
        record.compressing.append((began, perf_counter()))
        record.traffic.sums.paper_bits += int(outgoing.tallies.paper_bits.sum())
        if not is_sum:
            record.traffic.sums.sent += int(outgoing.tallies.sent.sum())
            record.columns.append(outgoing.tallies)
        else:
            record.sum_columns.append(outgoing.tallies)
        if self.setting.readback is not None:
            record.refused.append(lambda: [ordinals[number] for number in outgoing.refused()])
        return outgoing

    def _is_refusal(self, payload: Payload) -> bool:
        """Whether a message says that there is no update; one of fixed size never does."""
        return self.setting.readback is None and is_refusal(payload)

    def _sum(self, part: CompressedShard, payloads: Payloads, divisor: int, total: Tensor | None) -> Tensor:
        """What workers sent of a shard, added in this order, over a divisor; raises CorruptMessage."""
        compressor = part.compressor
        incoming = compressor.compressor.read_all(payloads, compressor.layout)
        total = self._empty(part.shard.elements) if total is None else total
        compressor.compressor.total(incoming, divisor, total)
        return total

    def _joined(
        self, parts: Sequence[CompressedShard], payloads: Payloads, divisor: int, total: Tensor | None
    ) -> Tensor:
        """The sum of each shard, from its payload, over a divisor; of one that is refused, zeros."""
        incoming = {
            number: part.compressor.compressor.read_all({number: payloads[number]}, part.compressor.layout)
            for number, part in enumerate(parts)
            if not self._is_refusal(payloads[number])
        }
        total = self._empty(parts[-1].shard.stop) if total is None else total
        for number, (shard, compressor) in enumerate(parts):
            compressor.compressor.total(incoming.get(number, []), divisor, total[shard.start : shard.stop])
        return total

    def _empty(self, elements: int) -> Tensor:
        return torch.empty(elements, device=self.setting.like[0].device)

    # A refusal that others pass on: a message that says so, and the rank of the worker that has no update.

    def _refusal(self, part: CompressedShard, ordinal: int) -> Payload:
        """Says, in place of a shard, that this worker has no update, by the ordinal of a parameter."""
        refusal = NonFinite(part.compressor.compressor.form, part.shard.elements, ordinal)
        rank = np.array([self.setting.rank], _RANK)
        return np.concatenate([write_nonfinite(refusal), rank.view(np.uint8)])

    def _refused(self, part: CompressedShard, payload: Payload) -> RefusedUpdate:
        """Which worker's refusal was passed on in place of a shard; raises CorruptMessage."""
        message, rank = payload[:HEADER_BYTES], payload[HEADER_BYTES:]
        if rank.size != _RANK.itemsize:
            raise CorruptMessage(f"a refusal and {rank.size} bytes, a rank has {_RANK.itemsize}")
        return RefusedUpdate(int(rank.view(_RANK)[0]), read_nonfinite(message, part.shard.elements).ordinal)

    def _refused_shards(self, parts: Sequence[CompressedShard], payloads: Payloads) -> list[RefusedUpdate]:
        by_worker: dict[tuple[int, int], RefusedUpdate] = {}
        for number, payload in payloads.items():
            if self._is_refusal(payload):
                refusal = self._refused(parts[number], payload)
                by_worker[refusal.rank, refusal.ordinal] = refusal
        return [refusal for _, refusal in sorted(by_worker.items())]


def cut(sizes: Sequence[int], shards: int) -> list[Shard]:
    """Cuts parameters of these sizes into ranges whose lengths differ by at most one (Krizhevsky's 1/K)."""
    starts = [0, *accumulate(sizes)]
    bounds = [starts[-1] * i // shards for i in range(shards + 1)]
    ranges = []
    for low, high in pairwise(bounds):
        slices = [
            ParameterSlice(ordinal, max(low - start, 0), min(high - start, size), size)
            for ordinal, (start, size) in enumerate(zip(starts, sizes, strict=False))
            if size and start < high and start + size > low
        ]
        ranges.append(Shard(low, high, tuple(slices)))
    return ranges


def compressed(method: Method) -> CompressedMethod:
    """A method that writes messages; without compression, all parameters are exempt (sent whole)."""
    assert not isinstance(method, PowerSGD), "its factors go through all-reduce"
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


def shards_of(slices: Sequence[Mapping[str, ParameterSlice]], names: Sequence[str]) -> list[Shard]:
    """The shards of a bucket of these parameters, each of which is cut alike in whatever bucket it is."""
    shards, start = [], 0
    for of_shard in slices:
        here = tuple(
            of_shard[name]._replace(ordinal=ordinal) for ordinal, name in enumerate(names) if name in of_shard
        )
        stop = start + sum(part.stop - part.start for part in here)
        shards.append(Shard(start, stop, here))
        start = stop
    return shards


def cut_parameters(sizes: Mapping[str, int], shards: int) -> list[dict[str, ParameterSlice]]:
    """Cuts each parameter into as many slices as there are shards, or gives it to one of these whole."""
    slices: list[dict[str, ParameterSlice]] = [{} for _ in range(shards)]
    for ordinal, (name, size) in enumerate(sizes.items()):
        bounds = [size * number // shards for number in range(shards + 1)]
        if size < shards * _SHORTEST_SLICE:
            bounds = [0 if number <= ordinal % shards else size for number in range(shards + 1)]
        for shard, (start, stop) in zip(slices, pairwise(bounds), strict=True):
            if start < stop:
                shard[name] = ParameterSlice(ordinal, start, stop, size)
    return slices
