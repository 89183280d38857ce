"""The base of sparse rules, which send some elements and keep the others (`selection.py`)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU, Form, ThresholdRule
from ..method.sparse import Clip, SparseMethod
from ..ops.interface import Batch, Selected, Target
from ..ops.readback import Pending
from ..ops.segments import Numbers
from ..quantizers.base import Given, Quantization, quantization_of
from ..tau.base import PolicyMemory
from ..tau.samples import with_magnitudes
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

    def __init__(self, config: SparseMethod) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.quantizer = None if config.quantizer is None else quantization_of(config.quantizer)
        self.clip: Clip | None = getattr(config, "clip", None)
        self._selects: Form = "f32" if self.sends == "wgt" else self.sends
        self.form = self._selects if config.quantizer is None else config.quantizer.makes

    @abstractmethod
    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        """The taus, or densities, of parts of one bucket, which have magnitudes where they `need_samples`."""

    def memories(self, parts: Sequence[Part], memories: Memories) -> Sequence[PolicyMemory]:
        """The memories of parts, created where there is none; empty by default."""
        return ()

    def need_samples(
        self, parts: Sequence[Part], iteration: int, known: Sequence[PolicyMemory]
    ) -> Sequence[bool]:
        """Whether `aims` or `take` need samples of the parts."""
        return [False] * len(parts)

    def shares(self, parts: int, iteration: int, known: Sequence[PolicyMemory]) -> Sequence[float] | None:
        """See `ThresholdPolicy.shares`."""
        return None

    @abstractmethod
    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """Starts the passes over some parts; their results are known once `given.readback` is fetched."""

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, known: Sequence[PolicyMemory]
    ) -> None:
        """Records what was sent of parts that were not held back."""

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
        wanted = self.need_samples(parts, context.iteration, known)
        shares = self.shares(len(parts), context.iteration, known)
        sampled = with_magnitudes(parts, wanted, whole, ops, shares)
        aims = self.aims(sampled, context, known)
        target = ops.target(self._room(batch.sizes, given), self.sends, given.readback)
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
        self._tally(selected, numbers, counts, aimed, given)
        self.note(active, counts[numbers].tolist(), context.iteration, known)
        refused: list[int] = segments.places[numbers[selected.nonfinite]].tolist()
        notes = [clipped, given.squares_of(given.held_back)]
        update = self._update(target, counts, taus, given)
        if self.quantizer is not None and not refused:
            update, quantized = self._quantized(self.quantizer, update, whole, given)
            notes.append(quantized)

        def finish() -> list[int]:
            for note in notes:
                note()
            return refused

        return RuleOutput(update, finish)

    def _room(self, sizes: Numbers, given: BucketInput) -> int:
        """How many words the passes may write, at most."""
        chunks = self.chunks
        if chunks is None or given.ops.on_host:  # the CPU's pass writes more of a chunk before it chooses
            # A rank's share changes from one iteration to the next: memory can be used again so.
            return int(sizes.sum())
        return int(chunks.count(sizes).sum())

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
        residuals = [residual_of(part) for part in parts]
        if residuals:
            torch._foreach_clamp_max_(residuals, most)
            torch._foreach_clamp_min_(residuals, [-limit for limit in most])
        return given.squares_of(given.segments.places[given.numbers].tolist())

    def _tally(
        self,
        selected: Selected,
        numbers: Numbers,
        counts: Numbers,
        aims: NDArray[np.float32],
        given: BucketInput,
    ) -> None:
        """Counts what parameters sent, before a quantizer."""
        tallies, ordinals = given.tallies, given.segments.places
        tallies.sent[ordinals] = counts
        tallies.paper_bits[ordinals] = FORMS[self._selects].paper_bits * counts
        if self.has_tau:
            tallies.taus[ordinals] = aims
            tallies.taus[ordinals[numbers]] = selected.taus
        tallies.residual_squares[ordinals[numbers]] = selected.residual_squares

    def _update(
        self, target: Target, counts: Numbers, taus: NDArray[np.float32], given: BucketInput
    ) -> Update:
        """The selected elements."""
        sent, form = int(counts.sum()), self._selects
        values = given.ops.empty(0, np.uint8) if form in ("bgt", "strom") else target.values[:sent]
        taus_sent = taus if FORMS[form].has_tau else None
        words = target.words[:sent]
        return Update(form, given.segments, words, counts, values, taus_sent, chunks=self.chunks)

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


def residual_of(part: Part) -> Tensor:
    """The residual of a part that has one."""
    assert part.residual is not None
    return part.residual
