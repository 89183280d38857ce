"""What methods have in common that send some elements and keep the others: the head of a chain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..fields import QUANTIZERS, Group, expand
from ..lazy import np
from ..ops.interface import SMALLEST_TAU, Batch, Form, Ops, Pending, Selected, Target, ThresholdRule
from ..ops.parts import Part
from ..thresholds.base import ALL, Policy, PolicyMemory, policy_of
from ..thresholds.samples import with_samples
from ..wire.forms import FORMS
from ..wire.update import Chunks, Update
from .base import BucketInput, CompressedMethod, Memories, RuleOutput, Symbols
from .entropy import Entropy
from .quantizers import BFloat16, Float8, Float16, Linear, Quantile, Quantizer, QuantizerInput

QUANTIZERS.add_builtin(Linear, Quantile, Entropy, Float16, BFloat16, Float8)

Positions = Literal["auto", "raw", "packed32", "bitmap", "golomb_rice"]
"""The codecs of positions (`wire.positions`)."""

if TYPE_CHECKING:
    AnyQuantizer = Quantizer
else:
    AnyQuantizer = Annotated[
        QUANTIZERS.union(), BeforeValidator(lambda value: expand(value, QUANTIZERS, bare=True))
    ]


class Clip(Group):
    """Clips the residual every few iterations to a few tau (DL4J)."""

    first_field: ClassVar[str] = "every"

    every: int = Field(default=5, ge=1)
    """Iterations between two clippings."""
    to: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """The largest magnitude that is kept, in multiples of tau."""


class SparseMethod(CompressedMethod):
    """Sends the elements that are selected by residual + gradient, and keeps the rest."""

    needs: ClassVar[Mapping[str, str]] = {"sends": "how an element is sent: wgt, bgt, qgt or strom"}
    needs_residual = True
    sends: ClassVar[ThresholdRule]
    """How an element is sent."""
    has_tau: ClassVar[bool] = True
    """Whether a tau is recorded for each parameter."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum correction (Deep Gradient Compression, section 3.2): momentum before the selection, instead of
    in the optimizer. It is reset where an element is sent."""
    codec: Positions = "auto"
    """Encoding of the positions of what is sent; auto takes the smallest for each message."""

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position, to plan by: a sign takes a bit."""
        return 1.0

    @property
    def policy(self) -> Policy:
        """Decides what `take` goes by."""
        return policy_of(SMALLEST_TAU)

    @property
    def chunks(self) -> Chunks | None:
        """What the positions of the elements sent are regular in."""
        return None

    @property
    def message_form(self) -> Form:
        return self._selected_form if self.quantizer is None else self.quantizer.makes

    @property
    def _selected_form(self) -> Form:
        return "f32" if self.sends == "wgt" else self.sends

    def memory_of(self, name: str) -> type[PolicyMemory]:
        return self.policy.memory_of(name)

    @abstractmethod
    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """Starts the passes over some parts; their results are known once `given.readback` is fetched.

        `taus` is what the policy decided for each part.
        """

    def _memories(self, policy: Policy, parts: Sequence[Part], memories: Memories) -> list[PolicyMemory]:
        """The policy's memories of parts, created where there is none."""
        names = [ALL] * len(parts) if policy.together else [part.name for part in parts]
        try:
            return [memories[name] for name in names]
        except KeyError:
            return [memories.setdefault(name, policy.memory_of(name)()) for name in names]

    def run(self, given: BucketInput) -> RuleOutput:
        """See `CompressedMethod.run`; passes append to one another, through all parameters."""
        segments, ops, memories = given.segments, given.ops, given.memories
        whole, numbers = given.batch(), given.numbers
        parts = given.parts
        batch = whole.select(numbers)
        active = parts if batch is whole else [parts[number] for number in numbers]
        if self.momentum:
            velocities = [part.velocity for part in active if part.velocity is not None]
            batch = ops.apply_momentum(batch, velocities, self.momentum)
            whole = whole.replaced(numbers, batch)
        policy, chunks, iteration = self.policy, self.chunks, given.iteration
        known = self._memories(policy, parts, memories)
        wanted, shares = policy.need_samples(parts, iteration, known), policy.shares(iteration, known)
        sampled = with_samples(parts, wanted, whole, ops, shares)
        policy.decide(known, iteration, memories, self)
        decided = policy.taus(sampled, iteration, known, self)
        # All elements: a rank's share changes by iteration, and so the same memory can be used again. The
        # CPU's pass writes more of a chunk before it chooses.
        room = batch.sizes if chunks is None or ops.on_host else chunks.count(batch.sizes)
        target = ops.target(int(room.sum()), self.sends, given.readback)
        tried = np.array(decided, np.float32)
        if batch is not whole:
            sampled = [sampled[number] for number in numbers]
            decided = [decided[number] for number in numbers]
            known = [known[number] for number in numbers] if known else known
        pending = self.take(batch, target, sampled, decided, given)
        given.readback.fetch()
        selected = pending()
        clipped = self._clip(active, selected, given)
        taus = np.maximum(tried, np.float32(SMALLEST_TAU))
        counts = np.zeros(len(segments), np.int64)
        taus[numbers], counts[numbers] = selected.taus, np.diff(selected.ends, prepend=0)
        tallies, ordinals, form = given.tallies, segments.places, self._selected_form
        tallies.sent[ordinals], tallies.paper_bits[ordinals] = counts, FORMS[form].paper_bits * counts
        if self.has_tau:
            if policy.decides_taus:
                tallies.taus[ordinals] = tried
            tallies.taus[ordinals[numbers]] = selected.taus
        tallies.residual_squares[ordinals[numbers]] = selected.residual_squares
        policy.note(active, counts[numbers].tolist(), iteration, known)
        refused: list[int] = ordinals[numbers[selected.nonfinite]].tolist()
        notes = [clipped, given.squares_of(given.held_back)]
        words = target.words[: int(counts.sum())]
        values = target.values[: len(words)] if self.sends in ("wgt", "qgt") else ops.empty(0, np.uint8)
        taus_sent = taus if FORMS[form].has_tau else None
        update = Update(form, segments, words, counts, values, taus_sent, chunks=chunks)
        if self.quantizer is not None and not refused:
            update, quantized = self._quantized(self.quantizer, update, whole, given)
            notes.append(quantized)

        def finish() -> list[int]:
            for note in notes:
                note()
            return refused

        return RuleOutput(update, finish)

    def on_sent(self, update: Update, parts: Sequence[Part], ops: Ops) -> None:
        """Clears the velocities of what was sent: they would move it further in the old direction."""
        if not self.momentum or not update.k:
            return
        assert update.words is not None
        segments = update.segments
        velocities = [parts[ordinal].velocity for ordinal in segments.ordinals]
        starts = np.array([0 if each is None else each.data_ptr() for each in velocities], np.int64)
        rows = np.stack((starts, starts, segments.sizes, segments.firsts), axis=1)
        ops.add_words(update.words, np.cumsum(update.counts), rows, None, None)

    def _clip(self, parts: Sequence[Part], selected: Selected, given: BucketInput) -> Callable[[], None]:
        """Clips residuals after the passes; returns what tallies their squares."""
        clip: Clip | None = getattr(self, "clip", None)
        if clip is None or (given.iteration + 1) % clip.every:
            return lambda: None
        # Where a sum was not finite nothing is sent, and topk has no tau.
        taus = np.where(selected.nonfinite, np.inf, selected.taus)
        most = [clip.to * tau for tau in taus.tolist()]
        given.ops.clamp([part.residual for part in parts if part.residual is not None], most)
        return given.squares_of(given.segments.places[given.numbers].tolist())

    def _quantized(
        self, quantizer: Quantizer, update: Update, batch: Batch, given: BucketInput
    ) -> tuple[Update, Callable[[], None]]:
        """Quantizes the values; the error goes back to the residual.

        Also returns what completes the tallies, once results are fetched.
        """
        ops, counts = given.ops, update.counts
        sent = np.flatnonzero(counts)
        errors = ops.zeros(update.k, np.float32)
        selected = Batch.flat(ops.tensor(errors), ops.tensor(update.values), counts[sent])
        quantized = quantizer.apply(QuantizerInput(selected, ops, given.readback))
        assert update.words is not None
        rows = batch.rows[sent]
        ops.add_words(update.words, np.cumsum(counts[sent]), rows, None, errors)  # where 0 was left
        bits = np.zeros(len(update.segments), np.int64)
        bits[sent] = quantized.bits
        ordinals = update.segments.places[sent]
        given.tallies.paper_bits[ordinals] = bits[sent] * counts[sent]

        def note() -> None:
            given.tallies.residual_squares[ordinals] += quantized.passed().residual_squares

        values, block, tables = quantized.values, quantized.block, quantized.tables
        form = quantizer.makes
        update = replace(update, form=form, values=values, bits=bits, block=block, tables=tables)
        return update, note


class WholeValues(SparseMethod):
    """Sends the selected values as they are, or quantized."""

    sends = "wgt"

    quantize: AnyQuantizer | None = None
    """The quantizer of the values that are sent; the error stays in the residual."""
    symbols: Symbols = "auto"
    """Encoding of the quantizer's symbols."""

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position, to plan by."""
        return 32.0 if self.quantize is None else self.quantize.value_bits

    @model_validator(mode="after")
    def _symbols_fit(self) -> WholeValues:
        if self.symbols != "auto" and (self.quantize is None or not self.quantize.has_symbols):
            floats = self.line_name() if self.quantize is None else self.quantize.kind
            raise ValueError(
                f"{self.symbols} encodes symbols, but {floats} sends floats: {symbols_wanted()} between"
            )
        if self.codec == "raw" and self.quantize is not None:
            raise ValueError(
                f"raw cannot follow {self.quantize.kind}, which has no bin for the zeros that raw writes "
                "where nothing is sent: choose another codec"
            )
        return self


def symbols_wanted() -> str:
    """Advice where a codec of symbols follows floats."""
    names = [name for name in QUANTIZERS.builtin if getattr(QUANTIZERS[name], "has_symbols", False)]
    return f"put {' or '.join(', '.join(names).rsplit(', ', 1))}"
