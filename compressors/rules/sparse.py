"""Sparse rules, which send some elements and keep the others: by a threshold, by rank, by rank in a chunk."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU, Form, ThresholdRule
from ..method.sparse import ChunkedTopK, Clip, SparseMethod, ThresholdedMethod, TopK
from ..ops.interface import Batch, Selected, Target
from ..ops.readback import Pending
from ..quantizers.base import Given, Quantization, quantization_of
from ..tau.base import ALL, Fixed, PolicyMemory, ThresholdPolicy, policy_of, reached_by, with_magnitudes
from ..tau.density import density_at
from ..wire.forms import FORMS
from ..wire.update import Chunks, Update
from .base import BucketInput, Context, Memories, Rule, RuleOutput


class SparseRule(Rule):
    """Selects elements by residual + gradient, and may quantize them."""

    config: SparseMethod
    needs_residual = True
    sends: ThresholdRule
    """How an element is sent."""
    has_tau = True
    chunks: Chunks | None = None
    policy: ThresholdPolicy[Any] = Fixed(SMALLEST_TAU)
    """Decides what `take` goes by."""

    def __init__(self, config: SparseMethod) -> None:
        super().__init__(config)
        self.quantizer = None if config.quantizer is None else quantization_of(config.quantizer)
        self.clip: Clip | None = getattr(config, "clip", None)
        self._selects: Form = "f32" if self.sends == "wgt" else self.sends
        self.form = self._selects if config.quantizer is None else config.quantizer.makes

    def memory_of(self, name: str) -> type[PolicyMemory]:
        return self.policy.memory_of(name)

    def retarget(self, before: float, memories: Memories) -> None:
        self.policy.retarget(before, memories)

    def memories(self, parts: Sequence[Part], memories: Memories) -> list[PolicyMemory]:
        """The policy's memories of parts, created where there is none."""
        names = [ALL] * len(parts) if self.policy.together else [part.name for part in parts]
        try:
            return [memories[name] for name in names]
        except KeyError:
            return [memories.setdefault(name, self.policy.memory_of(name)()) for name in names]

    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        """The policy's taus, or densities, of parts of one bucket, which have the samples that it needs."""
        self.policy.decide(known, context.iteration, context.memories)
        return self.policy.taus(parts, context.iteration, known)

    @abstractmethod
    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """Starts the passes over some parts; their results are known once `given.readback` is fetched."""

    def run(self, given: BucketInput) -> RuleOutput:
        """See `Rule.run`; passes append to one another, through all parameters."""
        segments, ops, context = given.segments, given.ops, given.context
        whole, numbers = given.batch(), given.numbers
        parts = given.parts.of(segments)
        batch = whole.select(numbers)
        active = parts if batch is whole else [parts[number] for number in numbers]
        if self.config.momentum:
            velocities = [part.velocity for part in active if part.velocity is not None]
            batch = ops.apply_momentum(batch, velocities, self.config.momentum)
            whole = whole.replaced(numbers, batch)
        known = self.memories(parts, context.memories)
        wanted = self.policy.need_samples(parts, context.iteration, known)
        shares = self.policy.shares(context.iteration, known)
        sampled = with_magnitudes(parts, wanted, whole, ops, shares)
        aims = self.aims(sampled, context, known)
        # All elements: a rank's share changes by iteration, and so the same memory can be used again. The
        # CPU's pass writes more of a chunk before it chooses.
        room = batch.sizes if self.chunks is None or ops.on_host else self.chunks.count(batch.sizes)
        target = ops.target(int(room.sum()), self.sends, given.readback)
        aimed = np.array(aims, np.float32)
        if batch is not whole:
            sampled, aims = [sampled[number] for number in numbers], [aims[number] for number in numbers]
            known = [known[number] for number in numbers] if known else known
        pending = self.take(batch, target, sampled, aims, given)
        given.readback.fetch()
        selected = pending()
        clipped = self._clear_and_clip(batch, target, active, selected, given)
        taus = np.maximum(aimed, np.float32(SMALLEST_TAU))
        counts = np.zeros(len(segments), np.int64)
        taus[numbers], counts[numbers] = selected.taus, np.diff(selected.ends, prepend=0)
        tallies, ordinals, form = given.tallies, segments.places, self._selects
        tallies.sent[ordinals], tallies.paper_bits[ordinals] = counts, FORMS[form].paper_bits * counts
        if self.has_tau:
            tallies.taus[ordinals] = aimed
            tallies.taus[ordinals[numbers]] = selected.taus
        tallies.residual_squares[ordinals[numbers]] = selected.residual_squares
        self.policy.note(active, counts[numbers].tolist(), context.iteration, known)
        refused: list[int] = ordinals[numbers[selected.nonfinite]].tolist()
        notes = [clipped, given.squares_of(given.held_back)]
        words = target.words[: int(counts.sum())]
        values = target.values[: len(words)] if self.sends in ("wgt", "qgt") else ops.empty(0, np.uint8)
        taus_sent = taus if FORMS[form].has_tau else None
        update = Update(form, segments, words, counts, values, taus_sent, chunks=self.chunks)
        if self.quantizer is not None and not refused:
            update, quantized = self._quantized(self.quantizer, update, whole, given)
            notes.append(quantized)

        def finish() -> list[int]:
            for note in notes:
                note()
            return refused

        return RuleOutput(update, finish)

    def _clear_and_clip(
        self, batch: Batch, target: Target, parts: Sequence[Part], selected: Selected, given: BucketInput
    ) -> Callable[[], None]:
        """Clears velocities and clips residuals after the passes; returns what tallies their squares."""
        if self.config.momentum and len(parts):
            # The momentum of an element that was sent would move it further in the old direction.
            rows = batch.rows.copy()
            rows[:, 0] = [0 if part.velocity is None else part.velocity.data_ptr() for part in parts]
            given.ops.add_words(target.words[: int(selected.ends[-1])], selected.ends, rows, None, None)
        clip = self.clip
        if clip is None or (given.context.iteration + 1) % clip.every:
            return lambda: None
        most = [clip.to * tau for tau in selected.taus.tolist()]
        if residuals := [part.residual for part in parts if part.residual is not None]:
            torch._foreach_clamp_max_(residuals, most)
            torch._foreach_clamp_min_(residuals, [-limit for limit in most])
        return given.squares_of(given.segments.places[given.numbers].tolist())

    def _quantized(
        self, quantizer: Quantization, update: Update, batch: Batch, given: BucketInput
    ) -> tuple[Update, Callable[[], None]]:
        """Quantizes the values; the error goes back to the residual.

        Also returns what completes the tallies, once results are fetched.
        """
        ops, counts = given.ops, update.counts
        sent = np.flatnonzero(counts)
        errors = torch.zeros(update.k, dtype=torch.float32, device=ops.device)
        values = Batch.flat(errors, ops.tensor(update.values), counts[sent])
        quantized = quantizer.apply(Given(values, ops, given.readback))
        assert update.words is not None
        rows = batch.rows[sent]
        ops.add_words(
            update.words, np.cumsum(counts[sent]), rows, None, ops.array(errors)
        )  # where 0 was left
        bits = np.zeros(len(update.segments), np.int64)
        bits[sent] = quantized.bits
        ordinals = update.segments.places[sent]
        given.tallies.paper_bits[ordinals] = bits[sent] * counts[sent]

        def note() -> None:
            given.tallies.residual_squares[ordinals] += quantized.passed().residual_squares

        coded = quantized.values, quantized.block, quantized.tables
        update = replace(update, form=self.form, values=coded[0], bits=bits, block=coded[1], tables=coded[2])
        return update, note


class ByThreshold(SparseRule):
    """Selects what reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, config: ThresholdedMethod) -> None:
        self.sends = config.sends
        super().__init__(config)
        self.policy = policy_of(config.tau, config)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_by_threshold(self.sends, batch, target, aims)


class Ranks(ThresholdPolicy[PolicyMemory]):
    """In place of tau, the share of a parameter's elements to send."""

    config: TopK

    def need_samples(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]
    ) -> list[bool]:
        return [self.config.sampled] * len(parts)

    def shares(self, iteration: int, memories: Sequence[PolicyMemory]) -> list[float]:
        return [density_at(self.config.density, self.config.warmup, iteration)] * len(memories)

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]) -> list[float]:
        return self.shares(iteration, memories)


class ByRank(SparseRule):
    """The largest magnitudes of each parameter, a share of its elements."""

    config: TopK
    sends = "wgt"

    def __init__(self, config: TopK) -> None:
        super().__init__(config)
        self.policy = Ranks(config, config)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        if self.config.sampled:
            taus = [reached_by(part, aim) for part, aim in zip(parts, aims, strict=True)]
            return given.ops.take_by_threshold(self.sends, batch, target, taus)
        counts = np.maximum((np.array(aims, np.float64) * batch.sizes).astype(np.int64), 1)
        return given.ops.take_largest(batch, target, counts.tolist())


class ByChunk(SparseRule):
    """The largest magnitudes of every chunk, the same number from each."""

    config: ChunkedTopK
    sends = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        super().__init__(config)
        self.chunks = Chunks(config.chunk, config.keep)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_largest_of_chunks(batch, target, self.config.chunk, self.config.keep)
