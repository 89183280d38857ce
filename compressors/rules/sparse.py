"""Rules that send some elements, and keep all of the others: wgt, bgt, qgt, strom, topk, chunked_topk."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bucket.layout import Part, PartTally
from ..method.base import SMALLEST_TAU, Form
from ..method.registry import work_at
from ..method.sparse import SparseMethod
from ..ops.readback import Pending
from ..ops.results import Batch, Selected, Target
from ..ops.segments import Numbers
from ..quantizers.base import Given, Quantization, Quantized, Work, quantization_of
from ..tau.base import SAMPLE, Memory
from ..wire.forms import FORMS
from ..wire.update import Update
from .base import BucketInput, Rule, RuleOutput
from .selection import Selection


class SparseRule(Rule):
    """Selects elements by residual + gradient, and perhaps quantizes what it selected."""

    needs_residual = True

    config: SparseMethod

    def __init__(self, config: SparseMethod) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.selection: Selection = work_at(type(config), "selects")(config)
        self.quantizer = None if config.quantizer is None else quantization_of(config.quantizer)
        self.clip = config.clipping
        self._selects: Form = "f32" if self.selection.rule == "wgt" else self.selection.rule
        self.form = self._selects if config.quantizer is None else config.quantizer.makes

    def memory_of(self, name: str) -> type[Memory]:
        """See `Rule.memory_of`."""
        return self.selection.memory_of(name)

    def turn(self, before: float, memories: dict[str, Memory]) -> None:
        """See `Rule.turn`."""
        self.selection.turn(before, memories)

    def run(self, given: BucketInput) -> RuleOutput:
        """See `Rule.run`; passes append to one another, through all parameters."""
        segments, ops, context = given.segments, given.ops, given.context
        parts = self._with_momentum(given) if self.config.momentum else given.parts
        samples = self._samples(parts, given)
        looked = [samples[ordinal] for ordinal in segments.ordinals]
        aims = self.selection.aims(looked, context.iteration, context.memories)
        active = [i for i, ordinal in enumerate(segments.ordinals) if ordinal in given.active]
        own = [parts[segments.ordinals[i]] for i in active]
        target = ops.target(self._room(own, given), self.selection.rule)
        batch = Batch(
            [residual_of(part) for part in own],
            [part.gradient for part in own],
            segments.firsts[active].tolist(),
            target,
        )
        begun = self.selection.take(
            batch, [looked[i] for i in active], [aims[i] for i in active], ops, given.readback
        )
        given.readback.fetch()
        selected = begun()
        self._clear_and_clip(batch, own, selected, active, given)
        taus = np.maximum(np.array(aims, np.float32), np.float32(SMALLEST_TAU))
        taus[active] = selected.taus
        counts = np.zeros(len(segments), np.int64)
        counts[active] = np.diff(selected.ends, prepend=0)
        self._tally(parts, active, selected, counts, aims, given)
        sent = counts[active].tolist()
        self.selection.note(own, sent, context.iteration, context.memories)
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

    def _samples(self, parts: Sequence[Part], given: BucketInput) -> Sequence[Part]:
        """The parts as policies may look at them."""
        if given.ops.on_host:
            return parts
        context = given.context
        wanted = [
            ordinal
            for ordinal in given.segments.ordinals
            if self.selection.needs_sample(parts[ordinal], context.iteration, context.memories)
        ]
        taken = given.ops.samples(
            [parts[ordinal].residual for ordinal in wanted],
            [parts[ordinal].gradient for ordinal in wanted],
            SAMPLE,
        )
        found = list(parts)
        for ordinal, sample in zip(wanted, taken, strict=True):
            found[ordinal] = Part(parts[ordinal].name, sample)
        return found

    def _room(self, own: Sequence[Part], given: BucketInput) -> int:
        """How many words the passes may write, at most."""
        chunks = self.selection.chunks
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
                given.tallies.add_squares(ordinal, given.ops.squares(part.residual, given.returned))
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
        bits, found = FORMS[self._selects].paper_bits, given.tallies.found
        passes = dict(zip(active, zip(selected.residual_squares, selected.taus, strict=True), strict=True))
        for i, ordinal in enumerate(given.segments.ordinals):
            part, sent = parts[ordinal], int(counts[i])
            squares, tau = passes.get(i, (0.0, float(np.float32(aims[i]))))
            shown = tau if self.selection.has_tau else None
            found[ordinal] = PartTally(part.name, part.elements, sent, squares, shown, bits * sent)
            if i not in passes:
                given.tallies.add_squares(ordinal, given.ops.squares(part.residual, given.returned))

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
            chunks=self.selection.chunks,
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
        firsts = segments.firsts[sent].tolist()
        ops.add_to_each(update.words, counts, firsts, ops.array(errors), residuals)  # the pass left 0 there
        bits = np.zeros(len(segments), np.int64)
        bits[sent] = quantized.bits
        for place, (ordinal, count, width) in enumerate(zip(ordinals, counts, quantized.bits, strict=True)):
            given.tallies.add_squares(ordinal, _squares_of(quantized, place))
            given.tallies.found[ordinal].paper_bits = width * count
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
