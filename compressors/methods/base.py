"""The base of all methods, what those work on that send messages, and `none`.

A method is a lossy rule with its options, the head of a chain.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field

from ..fields import Group, Settings, line
from ..lazy import np, torch
from ..ops.array import Flags, Numbers, Tensor
from ..ops.interface import Batch, Form, Ops, Pending, Readback
from ..ops.parts import Part, Tallies
from ..thresholds.base import PolicyMemory
from ..wire.update import Segments, Update
from .quantizers import Quantizer

if TYPE_CHECKING:
    from ..torch_internals import GradBucket

Memories = dict[str, PolicyMemory]
"""Memories of a threshold policy, by parameter name."""
Symbols = Literal["auto", "raw", "huffman"]
"""The codecs of symbols: plain bits, or a code by their frequencies."""


class BucketSum(NamedTuple):
    """A bucket's exchange under way."""

    mean: torch.futures.Future[Tensor]
    """Of the bucket's buffer, which will hold all workers' mean."""
    sent: Mapping[str, int]
    """By parameter, numbers that were sent."""
    under_way: float
    """When the first of them were handed over, in seconds of `perf_counter`."""


class BucketExchange(Protocol):
    """An exchange that a method brings, and what it keeps from step to step."""

    def start(
        self, bucket: GradBucket, names: Sequence[str], sizes: Sequence[int], *, calls_in_order: bool
    ) -> BucketSum:
        """Starts to average a bucket of parameters of these names and elements.

        Where a transport does not run callbacks in order, nothing of it may be left to these.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to continue elsewhere: plain numbers and tensors."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, whole; raises ValueError if it does not fit."""


class Exempt(Group):
    """Parameters that are sent whole, as float32: norms and biases are small and sensitive."""

    smaller_than: int = Field(default=0, ge=0)
    """Send parameters with fewer elements than this without compression."""
    names: tuple[str, ...] = ()
    """Send parameters whose name matches one of these patterns without compression, such as ["*.bias",
    "norm*"]."""


class Method(Settings):
    """Head of a chain; `str` gives the chain's line, which `chain` reads."""

    brings_exchange: ClassVar[bool] = False
    """Whether it brings an exchange of its own, torch's in DDP, and keeps its own memory. There are no
    messages then, and so no pattern, key, scaler, or other number of workers."""
    compares_weights: ClassVar[bool] = False
    """Whether it compares what is to be sent with weights that all agreed on, which only local steps have."""

    if TYPE_CHECKING:
        kind: str
        reduction: Literal["mean", "sum"]
        nonfinite: Literal["refuse", "skip"]

    def __str__(self) -> str:
        return line(self, self.quantizer, self.position_codec, self.symbol_codec)

    def __repr__(self) -> str:
        return f"chain({str(self)!r})"

    @property
    def quantizer(self) -> Quantizer | None:
        """The quantizer of the selected values."""
        quantizer: Quantizer | None = getattr(self, "quantize", None)
        return quantizer

    @property
    def position_codec(self) -> str:
        """The name of the codec of positions, or `auto`."""
        return str(getattr(self, "codec", "auto"))

    @property
    def symbol_codec(self) -> str:
        """The name of the codec of symbols, or `auto`."""
        return str(getattr(self, "symbols", "auto"))

    @property
    def momentum_correction(self) -> float:
        """The factor of momentum correction; 0: none."""
        return float(getattr(self, "momentum", 0.0))

    @property
    def name_patterns(self) -> dict[str, Sequence[str]]:
        """Patterns of parameters' names, by field."""
        return {}

    def exchange(
        self,
        group: torch.distributed.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
    ) -> BucketExchange:
        """Exchanges buckets of `parameters`, which are among those known, where the method brings that."""
        raise TypeError(f"{self.kind} brings no exchange")

    @property
    def has_fixed_size(self) -> bool:
        """Whether the size of a message does not depend on gradients, so that collectives can exchange it."""
        return False

    @classmethod
    def quantizer_error(cls, quantizer: str) -> str:
        """The reason why no quantizer can follow."""
        why = "only what a sparse rule selected whole can be quantized"
        return f"{quantizer} cannot follow {cls.line_name()}: {why}"


class _Common(Method):
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse", "skip"] = "refuse"
    """What to do about a NaN or Inf in a gradient: raise an error that names the parameter, or skip the step
    and count it."""


class NoCompression(_Common):
    """Plain all-reduce of the whole gradient: the baseline, bit for bit what DDP does without a hook."""

    kind: Literal["none"] = "none"


# Methods that send messages


@dataclass(slots=True)
class RuleOutput:
    """The update of a bucket."""

    update: Update
    """It is on the device of the gradients."""
    complete: Pending[Sequence[int]] = list
    """Once everything was fetched, completes the tallies, and returns the ordinals of the parameters whose
    residual + gradient was not finite somewhere. With any, the update is to be put back: residuals have
    gained every finite element of the gradient but what was taken out."""


@dataclass(slots=True)
class BucketInput:
    """A bucket on its way through a rule."""

    segments: Segments
    all_parts: Sequence[Part]
    """All of the bucket, by ordinal; residuals and velocities change in place."""
    active: Flags
    """bool [parameters of the bucket], which are not held back."""
    iteration: int
    """Steps before this one, or exchanges of local steps."""
    memories: Memories
    """What the threshold policy remembers."""
    ops: Ops
    readback: Readback
    """Results of passes. A rule fetches it if it needs them to go on; it is fetched again with the update."""
    tallies: Tallies
    stream: int = 0
    """Tells apart who draws random numbers: each worker, and each that compresses sums."""
    has_fixed_size: bool = False
    """Whether every element of every segment is sent, that of what is held back as zeros."""

    @property
    def parts(self) -> Sequence[Part]:
        """Those of the segments."""
        every, ordinals = self.all_parts, self.segments.ordinals
        return every if len(ordinals) == len(every) else [every[ordinal] for ordinal in ordinals]

    @property
    def numbers(self) -> Numbers:
        """int64, which of the segments are not held back."""
        return np.flatnonzero(self.active[self.segments.places])

    @property
    def held_back(self) -> list[int]:
        """Ordinals of the segments that are."""
        places = self.segments.places
        held: list[int] = places[~self.active[places]].tolist()
        return held

    def batch(self) -> Batch:
        """The segments, for passes."""
        residuals = [part.residual for part in self.parts]
        gradients = [part.gradient for part in self.parts]
        return Batch.of(residuals, gradients, self.segments.sizes, self.segments.firsts)

    def squares_of(self, ordinals: Sequence[int]) -> Callable[[], None]:
        """Sums the squares of residuals that no pass reads; returns what tallies them, once fetched."""
        if not ordinals:
            return lambda: None
        squares = self.ops.squares([self.all_parts[ordinal].residual for ordinal in ordinals], self.readback)

        def note() -> None:
            self.tallies.residual_squares[ordinals] = squares()

        return note


class CompressedMethod(_Common):
    """Methods that send messages (`wire`): they split residual + gradient into an update and a new residual.

    State is in the parts and the memories, never in the method. The result for a parameter must not depend on
    its neighbours: DDP rebuilds its buckets.
    """

    needs_residual: ClassVar[bool] = False
    """Whether it needs a residual even if nothing is kept in it."""

    exempt: Exempt = Exempt()
    """Parameters that are sent whole."""
    decay: float = Field(default=1.0, ge=0, le=1)
    """Factor of the residual from one iteration to the next (error feedback): 1 keeps it, 0 drops it."""

    @property
    def name_patterns(self) -> dict[str, Sequence[str]]:
        return {"exempt.names": self.exempt.names}

    @property
    def keeps_residuals(self) -> bool:
        """Whether parameters that are not exempt have a residual."""
        return bool(self.needs_residual or self.decay)

    @property
    @abstractmethod
    def message_form(self) -> Form:
        """The form of values in its messages."""

    @abstractmethod
    def run(self, given: BucketInput) -> RuleOutput:
        """Adds gradients to residuals, and takes out the update; `given.tallies` has what it counts."""

    def on_sent(self, update: Update, parts: Sequence[Part], ops: Ops) -> None:
        """Called once an update of some parts is known to count: not where a step is refused or skipped."""

    def memory_of(self, name: str) -> type[PolicyMemory]:
        """The class of the memory of a parameter, or of all together (`thresholds.base.ALL`)."""
        return PolicyMemory
