"""What all patterns have in common: one worker's side of a synchronization."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...bucket.compressor import Outgoing
from ...bucket.feedback import FeedbackCompressor
from ...bucket.layout import PartTally
from ...errors import CorruptMessage
from ...method import CompressedMethod, Method, PowerSGD, read_config
from ...spans import RECORDER
from ...wire.message import NonFinite, is_refusal
from ..carrier import Payload
from ..resizing import merged, model_of, share_of
from ..rounds import Result, Rounds

BACK = "back"
"""The part of a pattern that keeps what an owner owes to all."""


@dataclass(frozen=True)
class Piece:
    """A range of one parameter's elements."""

    ordinal: int
    """Of the parameter."""
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """A contiguous range of all elements, where one parameter follows the other (Krizhevsky's 1/K shards)."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @property
    def ordinals(self) -> list[int]:
        """Of the parameters that it has a piece of."""
        return [piece.ordinal for piece in self.pieces]

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its pieces of flat tensors [numel], one a parameter; views."""
        return [tensors[piece.ordinal][piece.start : piece.stop] for piece in self.pieces]

    def split(self, values: Tensor) -> list[Tensor]:
        """Its pieces of all its elements; views."""
        return list(torch.split(values, [piece.stop - piece.start for piece in self.pieces]))


class Part(NamedTuple):
    """Some elements, and what keeps their residuals from one synchronization to the next."""

    shard: Shard
    compressor: FeedbackCompressor


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

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [each.numel() for each in self.like]


@dataclass
class Spent:
    """Seconds spent in one synchronization, and what was sent of each parameter."""

    compress_s: float = 0.0
    decompress_s: float = 0.0
    tallies: list[PartTally] = field(default_factory=list)
    """What this worker sent of its own gradient; a parameter may occur more than once."""


class Pattern(ABC):
    """One worker's side. It keeps the worker's residuals."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.setting = setting
        self.reduction = method.reduction
        self.nonfinite = method.nonfinite
        self.spent = Spent()
        self.rms: dict[str, float] | None = None
        """By parameter, root mean squares of the loss's gradients; set if weights are exchanged instead."""
        self._refused: int | None = None
        """Ordinal of the first parameter that was not finite in this synchronization."""

    @abstractmethod
    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """The worker's side of one synchronization of gradients, flat and contiguous, one a parameter."""

    @abstractmethod
    def assemble(self, agreed: Result) -> Tensor:
        """The mean (or sum) of all workers' gradients, float32 [all elements]; the same on every worker.

        Raises CorruptMessage where a payload is damaged or does not fit.
        """

    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """What keeps what the worker owes by itself, by number; `BACK` keeps what it owes as an owner."""

    def compressors(self) -> list[FeedbackCompressor]:
        """All compressors that keep residuals from one synchronization to the next."""
        return [compressor for _, compressor in self.parts().values()]

    def unsent(self) -> list[Tensor]:
        """What this worker has not sent yet of its own, flat [numel] by parameter; zeros without residuals.

        What a ring's worker keeps also holds what others sent.
        """
        whole = [torch.zeros_like(each, dtype=torch.float32) for each in self.setting.like]
        for shard, compressor in (part for key, part in self.parts().items() if key != BACK):
            for piece, values in zip(shard.pieces, shard.of(whole), strict=True):
                if (name := self.setting.names[piece.ordinal]) in compressor.feedback.residuals:
                    values.copy_(compressor.feedback.residuals[name])
        return whole

    def commit(self) -> None:
        """Tells the compressors that a synchronization is complete."""
        for compressor in self.compressors():
            compressor.commit()

    def put_back(self) -> None:
        """Puts back into the residuals what a cancelled synchronization took out."""
        for compressor in self.compressors():
            compressor.put_back()

    def state_dict(self) -> dict[str, Any]:
        """What the worker keeps, as plain numbers and tensors."""
        names = self.setting.names
        return {
            key: {
                **compressor.state_dict(),
                "starts": {names[piece.ordinal]: piece.start for piece in shard.pieces},
            }
            for key, (shard, compressor) in self.parts().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises ValueError if it does not fit."""
        parts = self.parts()
        if sorted(state) != sorted(parts):
            raise ValueError(f"the state of {len(state)} compressors, this run has {len(parts)}")
        for key, (_, compressor) in parts.items():
            compressor.load_state_dict(state[key])

    def take_over(self, former: Sequence[Mapping[str, Any]]) -> None:
        """Restores this worker's part of what `state_dict` gave to another number of workers, by rank.

        Thresholds are those of one former worker; where a parameter is cut, those of its first piece.
        """
        rank, workers, names = self.setting.rank, self.setting.workers, self.setting.names
        share, sizes = share_of(len(former), workers, self.reduction), self.setting.sizes
        own, model = former[rank::workers], former[model_of(rank, len(former))]
        backs = [state[BACK] for state in former if BACK in state]
        owes: dict[str, dict[str, Tensor]] = {}
        returns: dict[str, dict[str, Tensor]] = {}
        for what in ("residuals", "velocities"):
            (owes[what],) = merged([owed(state, names, sizes, what) for state in own], 1, share)
            returns[what] = _whole(backs, names, sizes, what)
        for key, (shard, compressor) in self.parts().items():
            whole = returns if key == BACK else owes
            states = backs if key == BACK else [state for each, state in model.items() if each != BACK]
            memories = {name: each for state in states[::-1] for name, each in state["memories"].items()}
            here = {names[piece.ordinal]: slice(piece.start, piece.stop) for piece in shard.pieces}
            kept: dict[str, Any] = {
                what: {name: tensors[name][own] for name, own in here.items() if name in tensors}
                for what, tensors in whole.items()
            }
            kept["memories"] = {
                name: each for name, each in memories.items() if name in here or name not in names
            }
            compressor.load_state_dict(kept)

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is kept for later."""
        return any(each.feedback.residuals for each in self.compressors())

    def residual_squares(self) -> float:
        """Sum of squares of all that the worker has not sent yet."""
        return sum(each.residual_squares() for each in self.compressors())

    @property
    def _divisor(self) -> int:
        """What a sum over all workers is divided by."""
        return self.setting.workers if self.reduction == "mean" else 1

    def _cut(self, method: Method, shards: int) -> list[Part]:
        """All elements, in parts that are compressed by themselves."""
        setting, parts = self.setting, []
        for shard in cut(setting.sizes, shards):
            compressor = FeedbackCompressor(
                compressed(method),
                [setting.names[ordinal] for ordinal in shard.ordinals],
                shard.of(setting.like),
                threads=setting.threads,
                hold_back_zeros=setting.hold_back_zeros,
            )
            parts.append(Part(shard, compressor))
        return parts

    def _compress(self, part: Part, pieces: Sequence[Tensor], iteration: int) -> Outgoing:
        with self._clock("compress"):
            own = part.compressor.compress(pieces, iteration, self.rms)
        if self._refused is None and is_refusal(own.payload):
            refusal = part.compressor.read(own.payload)
            assert isinstance(refusal, NonFinite)
            self._refused = part.shard.ordinals[refusal.ordinal]
        return own

    def _sum(
        self, part: Part, payloads: Mapping[int, Payload], divisor: int = 1, total: Tensor | None = None
    ) -> Tensor:
        """What workers sent of a part, added in this order, over a divisor; raises CorruptMessage."""
        shard, compressor = part
        incoming = compressor.compressor.read_all(payloads, compressor.layout)
        for sender, each in zip(payloads, incoming, strict=True):
            if isinstance(each, NonFinite):
                raise CorruptMessage(f"the message of worker {sender} says that there is no update")
        total = self._empty(shard.stop - shard.start) if total is None else total
        compressor.compressor.total(incoming, divisor, total)
        return total

    def _joined(self, parts: Sequence[Part], agreed: Result, divisor: int = 1) -> Tensor:
        """The payload of each part, over a divisor."""
        with self._clock("decode"):
            total = self._empty(parts[-1].shard.stop)
            for number, part in enumerate(parts):
                own = total[part.shard.start : part.shard.stop]
                self._sum(part, {number: agreed[number]}, divisor, own)
        return total

    def _empty(self, elements: int) -> Tensor:
        return torch.empty(elements, device=self.setting.like[0].device)

    @contextmanager
    def _clock(self, what: Literal["compress", "decode"]) -> Iterator[None]:
        started = perf_counter()
        yield
        ended = perf_counter()
        if what == "compress":
            self.spent.compress_s += ended - started
        else:
            self.spent.decompress_s += ended - started
        RECORDER.add(what, "compute", started, ended)


def owed(
    state: Mapping[str, Any], names: Sequence[str], sizes: Sequence[int], what: str = "residuals"
) -> dict[str, Tensor]:
    """What a worker owes by itself, float32 [numel] by parameter, of what `Pattern.state_dict` returned."""
    return _whole([each for key, each in state.items() if key != BACK], names, sizes, what)


def _whole(
    states: Sequence[Mapping[str, Any]], names: Sequence[str], sizes: Sequence[int], what: str
) -> dict[str, Tensor]:
    """Tensors of whole parameters, flat, from those of their pieces; zeros where nothing was kept."""
    whole: dict[str, Tensor] = {}
    numel = dict(zip(names, sizes, strict=True))
    for state in states:
        for name, kept in state[what].items():
            start = state["starts"][name]
            into = whole.setdefault(name, torch.zeros(numel[name]))
            into[start : start + kept.numel()] = kept
    return whole


def cut(sizes: Sequence[int], shards: int) -> list[Shard]:
    """Cuts parameters of these sizes into ranges whose lengths differ by at most one."""
    starts = [0, *accumulate(sizes)]
    bounds = [starts[-1] * i // shards for i in range(shards + 1)]
    found = []
    for low, high in pairwise(bounds):
        pieces = [
            Piece(ordinal, max(low - start, 0), min(high - start, size))
            for ordinal, (start, size) in enumerate(zip(starts, sizes, strict=False))
            if size and start < high and start + size > low
        ]
        found.append(Shard(low, high, tuple(pieces)))
    return found


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
