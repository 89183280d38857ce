"""What rules share that send some elements, and keep all of the others; `selection.py` has the rules."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bucket.layout import Part, PartTally
from ..method.base import SMALLEST_TAU, Form, ThresholdRule
from ..method.sparse import Clip, SparseMethod
from ..ops.interface import Batch, Selected, Target
from ..ops.readback import Pending
from ..ops.segments import Numbers
from ..quantizers.base import Given, Quantization, Quantized, Work, quantization_of
from ..tau.base import with_magnitudes
from ..wire.forms import FORMS
from ..wire.update import Chunks, Update
from .base import BucketInput, Memories, Rule, RuleOutput


class SparseRule(Rule):
    """Selects elements by residual + gradient, and perhaps quantizes what it selected."""

    config: SparseMethod
    needs_residual = True
    sends: ThresholdRule
    """What stands for an element."""
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
    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """Decides a tau, or a density, for the pass of each part.

        Args:
            parts: of one bucket; with their magnitudes where they `needs_sample`.
            iteration: backward passes before this one.
            memories: receives those of the parts.
        """

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        """Whether a sample of the part decides its tau, in `aims` or in `take`."""
        return False

    @abstractmethod
    def take(
        self, batch: Batch, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        """Starts the passes, whose results are there when `given.readback` was fetched.

        Args:
            batch: some parameters.
            parts: the same, as in `aims`.
            aims: the tau or density of each one's pass.
            given: the bucket.
        """

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Memories) -> None:
        """Records what was sent of parts that were not held back."""

    def run(self, given: BucketInput) -> RuleOutput:
        """See `Rule.run`; passes append to one another, through all parameters."""
        segments, ops, context = given.segments, given.ops, given.context
        parts = self._with_momentum(given) if self.config.momentum else given.parts
        mine = [parts[ordinal] for ordinal in segments.ordinals]
        wanted = [self.needs_sample(part, context.iteration, context.memories) for part in mine]
        looked = with_magnitudes(mine, wanted, ops)
        aims = self.aims(looked, context.iteration, context.memories)
        active = [i for i, ordinal in enumerate(segments.ordinals) if ordinal in given.active]
        own = [parts[segments.ordinals[i]] for i in active]
        target = ops.target(self._room(own, given), self.sends)
        batch = Batch(
            [residual_of(part) for part in own],
            [part.gradient for part in own],
            segments.firsts[active].tolist(),
            target,
        )
        begun = self.take(batch, [looked[i] for i in active], [aims[i] for i in active], given)
        given.readback.fetch()
        selected = begun()
        self._clear_and_clip(batch, own, selected, active, given)
        taus = np.maximum(np.array(aims, np.float32), np.float32(SMALLEST_TAU))
        taus[active] = selected.taus
        counts = np.zeros(len(segments), np.int64)
        counts[active] = np.diff(selected.ends, prepend=0)
        self._tally(parts, active, selected, counts, aims, given)
        sent = counts[active].tolist()
        self.note(own, sent, context.iteration, context.memories)
        refused = [segments.ordinals[i] for i, bad in zip(active, selected.nonfinite, strict=True) if bad]
        update = self._update(target, counts, taus, given)
        if self.quantizer is not None and not refused:
            update = self._quantized(self.quantizer, update, given)
        return RuleOutput(update, refused)

    def _with_momentum(self, given: BucketInput) -> Sequence[Part]:
        """The parts, with the velocity instead of the gradient where there is one."""
        mine = [
            ordinal
            for ordinal in given.segments.ordinals
            if ordinal in given.active and given.parts[ordinal].velocity is not None
        ]
        moved = [given.parts[ordinal] for ordinal in mine]
        velocities = [part.velocity for part in moved if part.velocity is not None]
        gradients = given.ops.apply_momentum(
            velocities, [part.gradient for part in moved], self.config.momentum
        )
        found = list(given.parts)
        for ordinal, part, gradient in zip(mine, moved, gradients, strict=True):
            found[ordinal] = Part(part.name, gradient, part.residual, part.velocity)
        return found

    def _room(self, own: Sequence[Part], given: BucketInput) -> int:
        """How many words the passes may write, at most."""
        chunks = self.chunks
        if chunks is None or given.ops.on_host:  # the CPU's pass writes more of a chunk before it chooses
            # A rank's share changes from one iteration to the next: memory can be used again so.
            return sum(part.elements for part in own)
        return sum(chunks.count(part.elements) for part in own)

    def _clear_and_clip(
        self, batch: Batch, own: Sequence[Part], selected: Selected, active: Sequence[int], given: BucketInput
    ) -> None:
        """What comes after the passes."""
        clip = self.clip
        clips = clip is not None and (given.context.iteration + 1) % clip.every == 0
        if not clips and not self.config.momentum:
            return
        sent = 0
        for number, (part, base, end) in enumerate(zip(own, batch.bases, selected.ends, strict=True)):
            if part.velocity is not None and end > sent:
                # The momentum of an element that was sent would move it further in the old direction.
                given.ops.clear(batch.target.words[sent:end], base, part.velocity)
            if clip is not None and clips:
                most = clip.to * selected.taus[number]
                residual_of(part).clamp_(-most, most)
                selected.residual_squares[number] = 0.0
                ordinal = given.segments.ordinals[active[number]]
                given.squares.append((ordinal, given.ops.squares(part.residual, given.returned)))
            sent = end

    def _tally(
        self,
        parts: Sequence[Part],
        active: Sequence[int],
        selected: Selected,
        counts: Numbers,
        aims: Sequence[float],
        given: BucketInput,
    ) -> None:
        """Counts what parameters sent, before a quantizer."""
        bits, found = FORMS[self._selects].paper_bits, given.tallies
        passes = dict(zip(active, zip(selected.residual_squares, selected.taus, strict=True), strict=True))
        for i, ordinal in enumerate(given.segments.ordinals):
            part, sent = parts[ordinal], int(counts[i])
            squares, tau = passes.get(i, (0.0, float(np.float32(aims[i]))))
            shown = tau if self.has_tau else None
            found[ordinal] = PartTally(part.name, part.elements, sent, squares, shown, bits * sent)
            if i not in passes:
                given.squares.append((ordinal, given.ops.squares(part.residual, given.returned)))

    def _update(
        self, target: Target, counts: Numbers, taus: NDArray[np.float32], given: BucketInput
    ) -> Update:
        """What was selected."""
        sent, form = int(counts.sum()), self._selects
        values = given.ops.empty(0, np.uint8) if form in ("bgt", "strom") else target.values[:sent]
        return Update(
            form,
            given.segments,
            target.words[:sent],
            counts,
            values,
            taus if FORMS[form].has_tau else None,
            chunks=self.chunks,
        )

    def _quantized(self, quantizer: Quantization, update: Update, given: BucketInput) -> Update:
        """The quantizer's symbols instead of floats; the error goes back to where the element came from."""
        ops, segments = given.ops, update.segments
        sent = np.flatnonzero(update.counts)
        counts = update.counts[sent].tolist()
        errors = torch.zeros(sum(counts), dtype=torch.float32, device=ops.device)
        pairs = zip(torch.split(errors, counts), torch.split(ops.tensor(update.values), counts), strict=True)
        quantized = quantizer.apply(
            [Given(error, values) for error, values in pairs] if counts else [],
            Work(ops, given.readback, given.returned),
        )
        ordinals = [segments.ordinals[i] for i in sent]
        residuals = [residual_of(given.parts[ordinal]) for ordinal in ordinals]
        assert update.words is not None
        begin, left = 0, ops.array(errors)
        for i, residual in zip(sent, residuals, strict=True):  # where the pass left 0
            ends, at = update.counts[i : i + 1], slice(begin, begin + int(update.counts[i]))
            ops.add_words(
                update.words[at], ends, -segments.firsts[i : i + 1], None, left[at], ops.array(residual)
            )
            begin = at.stop
        bits = np.zeros(len(segments), np.int64)
        bits[sent] = quantized.bits
        for place, (ordinal, count, width) in enumerate(zip(ordinals, counts, quantized.bits, strict=True)):
            given.squares.append((ordinal, _squares_of(quantized, place)))
            given.tallies[ordinal].paper_bits = width * count
        return replace(
            update,
            form=self.form,
            values=quantized.values,
            bits=bits,
            block=quantized.block,
            tables=quantized.tables,
        )


def _squares_of(quantized: Quantized, place: int) -> Pending[float]:
    return lambda: quantized.passed()[place].residual_squares


def residual_of(part: Part) -> Tensor:
    """The residual of a part that has one."""
    assert part.residual is not None
    return part.residual
