"""What all patterns have in common: one worker's side of a synchronization."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from taugrad.compressors.bucket.feedback import FeedbackCompressor, Sent
from taugrad.compressors.bucket.layout import PartTally, Unit
from taugrad.compressors.config import CompressedMethod, Method, PowerSGD, read_config
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import NonFinite, is_refusal
from taugrad.compressors.wire.update import Update

from ..pieces import Shard
from ..resizing import Ranges
from ..rounds import Agreed, Payload, Rounds


@dataclass(frozen=True)
class Setting:
    """What a worker's side needs to know."""

    names: Sequence[str]
    """Of the parameters, in the order in which all workers have them."""
    like: Sequence[Tensor]
    """A flat tensor [numel] of each, on the device where gradients will be."""
    rank: int
    workers: int
    threads: int = 1
    """How many may share a pass on the CPU."""
    hold_back_zeros: bool = False
    """Send nothing for parameters whose gradient is zero everywhere."""

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [each.numel() for each in self.like]


@dataclass
class Spent:
    """Seconds, and what became of each parameter, in one synchronization."""

    compress_s: float = 0.0
    decompress_s: float = 0.0
    tallies: list[PartTally] = field(default_factory=list)
    """Of what this worker sent of its own gradient; a parameter may occur more than once."""


class Pattern(ABC):
    """One worker's side. It keeps the worker's residuals."""

    def __init__(self, method: Method, setting: Setting) -> None:
        self.setting = setting
        self.reduction = method.reduction
        self.nonfinite = method.nonfinite
        self.spent = Spent()
        self.rms: dict[str, float] | None = None
        """By parameter, root mean squares of the loss's gradients; for weights in their place."""

    @abstractmethod
    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """The worker's side of one synchronization.

        Args:
            gradients: flat and contiguous, one a parameter.
            iteration: synchronizations before this one.
        """

    @abstractmethod
    def assemble(self, agreed: Agreed) -> Tensor:
        """The mean (or sum) of all workers' gradients, float32 [all elements]; the same on every worker.

        Raises:
            CorruptMessage: a payload is damaged or does not fit.
        """

    @abstractmethod
    def compressors(self) -> list[FeedbackCompressor]:
        """Whatever keeps something from one synchronization to the next."""

    @abstractmethod
    def ranges_of(self, workers: int) -> Ranges:
        """What the `compressors` of each worker are about in a crew of this size, with the same setting."""

    def unsent(self) -> list[Tensor]:
        """What this worker has not sent yet of its own, flat [numel] by parameter; zeros without residuals.

        Raises:
            TypeError: residuals hold what other workers sent, too.
        """
        raise TypeError(f"{type(self).__name__} keeps no residual of a worker's own alone")

    def _unsent(self, shards: Sequence[Shard], compressors: Sequence[FeedbackCompressor]) -> list[Tensor]:
        """The same from a compressor for each shard."""
        whole = [torch.zeros_like(each, dtype=torch.float32) for each in self.setting.like]
        for shard, compressor in zip(shards, compressors, strict=True):
            for piece, values in zip(shard.pieces, shard.of(whole), strict=True):
                residual = compressor.feedback.residuals.get(self.setting.names[piece.ordinal])
                if residual is not None:
                    values.copy_(residual)
        return whole

    def commit(self) -> None:
        """Says that a synchronization came to its end."""
        for compressor in self.compressors():
            compressor.commit()

    def put_back(self) -> None:
        """Undoes what a synchronization that was given up took out of the residuals."""
        for compressor in self.compressors():
            compressor.put_back()

    def state_dict(self) -> dict[str, Any]:
        """What the worker keeps, as plain numbers and tensors."""
        return {str(i): each.state_dict() for i, each in enumerate(self.compressors())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; raises ValueError where it does not fit."""
        expected = [str(i) for i in range(len(self.compressors()))]
        if sorted(state) != sorted(expected):
            raise ValueError(f"the state of {len(state)} compressors, this run has {len(expected)}")
        for key, each in zip(expected, self.compressors(), strict=True):
            each.load_state_dict(state[key])

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is kept for later."""
        return any(each.feedback.residuals for each in self.compressors())

    def residual_squares(self) -> float:
        """Sum of squares of all that the worker has not sent yet."""
        return sum(each.residual_squares() for each in self.compressors())

    def _compressor(self, method: Method, shard: Shard) -> FeedbackCompressor:
        """One for the pieces of a shard."""
        return FeedbackCompressor(
            compressed(method),
            [self.setting.names[ordinal] for ordinal in shard.ordinals],
            shard.of(self.setting.like),
            threads=self.setting.threads,
            hold_back_zeros=self.setting.hold_back_zeros,
        )

    def _compress(self, compressor: FeedbackCompressor, gradients: Sequence[Tensor], iteration: int) -> Sent:
        with self._clock("compress"):
            return compressor.compress(gradients, iteration, self.rms)

    def _read(
        self, compressor: FeedbackCompressor, sender: int, payload: Payload
    ) -> list[tuple[Update, Unit]]:
        """What a worker sent of a shard; raises CorruptMessage."""
        try:
            incoming = compressor.read(payload)
        except CorruptMessage as reason:
            raise CorruptMessage(f"the message of worker {sender}: {reason}") from None
        if isinstance(incoming, NonFinite):
            raise CorruptMessage(f"the message of worker {sender} says that there is no update")
        return incoming

    def _add(self, compressor: FeedbackCompressor, sender: int, payload: Payload, total: Tensor) -> None:
        """Adds what a worker sent of a shard, or nothing of it where it is not valid."""
        compressor.compressor.add(self._read(compressor, sender, payload), total)

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


def refused_by(own: Sent, compressor: FeedbackCompressor, ordinals: Sequence[int]) -> int | None:
    """The ordinal of the parameter because of which a worker sends no update, if that is so."""
    if not is_refusal(own.payload):
        return None
    refusal = compressor.read(own.payload)
    assert isinstance(refusal, NonFinite)
    return ordinals[refusal.ordinal]


def divide(total: Tensor, workers: int) -> None:
    """The mean of a sum over workers, in place."""
    # A tensor and no number: a GPU multiplies by a number's reciprocal, which rounds otherwise.
    total.div_(torch.tensor(workers, dtype=torch.float32, device=total.device))


def compressed(method: Method) -> CompressedMethod:
    """A method as messages can carry it: without compression every parameter is exempt, sent whole."""
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
