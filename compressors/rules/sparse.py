"""Rules that send some elements, and keep all of the others: wgt, bgt, qgt, strom, topk, chunked_topk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..bucket.layout import Part, PartTally, Place, Unit
from ..config.base import SMALLEST_TAU
from ..config.sparse import SparseMethod
from ..ops.interface import Ops
from ..ops.results import Batch, Taken, Target
from ..ops.returns import Pending, Steps
from ..quantizers.base import Given, Outcomes, Quantizer, Work
from ..tau.base import SAMPLE
from ..wire.columns.updates import UpdateColumns
from ..wire.columns.values import SharedValues, beside
from ..wire.columns.words import Words
from ..wire.forms import FORMS, Form
from ..wire.update import NO_TAU, Update
from .base import Context, Ran, Rule, Turn


@dataclass(slots=True)
class _Group:
    """Places whose elements share a message."""

    unit: Unit
    """What the message is about."""
    aims: dict[int, float]
    places: list[Place]


class SparseRule(Rule):
    """Selects elements by residual + gradient, and perhaps quantizes what it selected."""

    needs_residual = True

    def __init__(self, config: SparseMethod) -> None:
        self.config = config
        self.selection = config.selection()
        self.quantizer, self.clip = config.quantizer, config.clipping
        if self.quantizer is not None:
            self.form = self.quantizer.makes
        else:
            self.form = self.selection.rule if self.selection.has_tau else "f32"
        self._bits = FORMS[self.form].paper_bits
        # Blocks of a quantizer and chunks must not extend from one parameter into the next.
        self.by_parameter = self.quantizer is not None or self.selection.chunks is not None

    def run(self, turn: Turn) -> Steps[Ran]:
        """See `Rule.run`; passes append to one another, through all units."""
        parts = self._advanced(turn) if self.config.momentum else turn.parts
        samples = self._samples(parts, turn)
        groups = self._groups(samples, turn)
        each = [(group, place) for group in groups for place in group.places if place.ordinal in turn.awake]
        target = turn.ops.target(self._room(each, turn), self.selection.rule)
        batch = Batch(
            [residual_of(parts[place.ordinal]) for _, place in each],
            [parts[place.ordinal].gradient for _, place in each],
            [place.start - group.unit.base for group, place in each],
            target,
        )
        looked = [samples[place.ordinal] for _, place in each]
        aims = [group.aims[place.ordinal] for group, place in each]
        begun = self.selection.take(batch, looked, aims, turn.ops, turn.looks)
        yield
        taken = begun()
        self._settle(each, parts, taken, target, turn)
        refused = [place.ordinal for (_, place), bad in zip(each, taken.nonfinite, strict=True) if bad]
        ends, taus = self._tallied(groups, parts, taken, turn)
        updates: Sequence[Update]
        if len(groups) == 1 and self.form == self.selection.rule:
            updates = [self._alone(groups[0].unit.n, taus[0], target, ends[0], turn.ops)]
        else:
            updates = floats = self._columns(groups, taus, target, ends, turn.ops)
        self.note(
            {place.ordinal: turn.tallies.found[place.ordinal].sent for _, place in each}, parts, turn.context
        )
        if self.quantizer is not None and not refused:
            updates = yield from self._quantize(self.quantizer, floats, turn)
        return Ran([group.unit for group in groups], updates, min(refused, default=None))

    def _advanced(self, turn: Turn) -> Sequence[Part]:
        """The parts, with the velocity instead of the gradient where there is one."""
        mine = [
            place.ordinal
            for unit in turn.units
            for place in unit.places
            if place.ordinal in turn.awake and turn.parts[place.ordinal].velocity is not None
        ]
        moved = [turn.parts[ordinal] for ordinal in mine]
        velocities = [part.velocity for part in moved if part.velocity is not None]
        gradients = turn.ops.advance(velocities, [part.gradient for part in moved], self.config.momentum)
        found = list(turn.parts)
        for ordinal, part, gradient in zip(mine, moved, gradients, strict=True):
            found[ordinal] = Part(part.name, gradient, part.residual, part.velocity)
        return found

    def _samples(self, parts: Sequence[Part], turn: Turn) -> Sequence[Part]:
        """The parts as policies may look at them."""
        if turn.ops.on_host:
            return parts
        context, wanted = turn.context, []
        for unit in turn.units:
            for place in unit.places:
                part = parts[place.ordinal]
                if self.selection.needs_sample(part, context.iteration, context.memories):
                    wanted.append(place.ordinal)
        taken = turn.ops.samples(
            [parts[ordinal].residual for ordinal in wanted],
            [parts[ordinal].gradient for ordinal in wanted],
            SAMPLE,
        )
        found = list(parts)
        for ordinal, sample in zip(wanted, taken, strict=True):
            found[ordinal] = Part(parts[ordinal].name, sample)
        return found

    def _groups(self, samples: Sequence[Part], turn: Turn) -> list[_Group]:
        """Places that share a message: all of a unit, or where tau is a value's meaning those of one tau."""
        groups = []
        for unit in turn.units:
            ordinals = [place.ordinal for place in unit.places]
            looked = [samples[ordinal] for ordinal in ordinals]
            decided = self.selection.aims(looked, turn.context.iteration, turn.context.memories)
            if self.selection.rule == "wgt":
                groups.append(_Group(unit, dict(zip(ordinals, decided, strict=True)), list(unit.places)))
                continue
            shared: dict[float, _Group] = {}
            for aim, ordinal, place in sorted(zip(decided, ordinals, unit.places, strict=True)):
                group = shared.setdefault(aim, _Group(unit, {}, []))
                group.aims[ordinal] = aim
                group.places.append(place)
            groups += shared.values()
        return groups

    def _room(self, each: Sequence[tuple[_Group, Place]], turn: Turn) -> int:
        """How many words the passes may write, at most."""
        chunks = self.selection.chunks
        if chunks is None or turn.ops.on_host:  # the CPU's pass writes more of a chunk before it chooses
            # A rank's share changes from one iteration to the next: memory can be used again so.
            return sum(place.elements for _, place in each)
        return sum(chunks.count(place.elements) for _, place in each)

    def _settle(
        self,
        each: Sequence[tuple[_Group, Place]],
        parts: Sequence[Part],
        taken: Taken,
        target: Target,
        turn: Turn,
    ) -> None:
        """What comes after the passes."""
        clip = self.clip
        clips = clip is not None and (turn.context.iteration + 1) % clip.every == 0
        if not clips and not self.config.momentum:
            return
        sent = 0
        for number, (group, place) in enumerate(each):
            part, end = parts[place.ordinal], taken.ends[number]
            if part.velocity is not None and end > sent:
                # The momentum of an element that was sent would move it further in the old direction.
                turn.ops.clear(target.words[sent:end], place.start - group.unit.base, part.velocity)
            if clip is not None and clips:
                most = clip.to * taken.taus[number]
                residual_of(part).clamp_(-most, most)
                taken.residual_squares[number] = 0.0
                turn.tallies.add_squares(place.ordinal, turn.ops.squares(part.residual, turn.returned))
            sent = end

    def _tallied(
        self, groups: Sequence[_Group], parts: Sequence[Part], taken: Taken, turn: Turn
    ) -> tuple[list[int], list[np.float32]]:
        """Counts what parameters sent; returns where each group's words end, and its tau."""
        ends, taus = [], []
        tallies, number, sent = turn.tallies, 0, 0
        for group in groups:
            by = []
            for place in group.places:
                ordinal = place.ordinal
                part = parts[ordinal]
                if ordinal not in turn.awake:
                    tallies.found[ordinal] = self.tally(part, 0, 0.0, float(np.float32(group.aims[ordinal])))
                    tallies.add_squares(ordinal, turn.ops.squares(part.residual, turn.returned))
                    continue
                end, tau = taken.ends[number], taken.taus[number]
                tallies.found[ordinal] = self.tally(part, end - sent, taken.residual_squares[number], tau)
                if end > sent:
                    by.append(tau)
                sent, number = end, number + 1
            ends.append(sent)
            taus.append(shared_tau(by, group.aims))
        return ends, taus

    def _alone(self, n: int, tau: np.float32, target: Target, sent: int, ops: Ops) -> Update:
        """What was sent by a threshold, as the bucket's only update."""
        rule = self.selection.rule
        values = ops.empty(0, np.uint8) if rule in ("bgt", "strom") else target.values[:sent]
        return Update(rule, n, tau, target.words[:sent], values)

    def _columns(
        self,
        groups: Sequence[_Group],
        taus: Sequence[np.float32],
        target: Target,
        ends: Sequence[int],
        ops: Ops,
    ) -> UpdateColumns:
        """What was sent, as an update for each group."""
        sent = ends[-1] if ends else 0
        form: Form = self.selection.rule if self.form == self.selection.rule else "f32"
        words = Words(target.words[:sent], np.array(ends, np.int64))
        if form == "f32":
            ops.drop_signs(words.array)  # its values carry the sign
        return UpdateColumns(
            form,
            np.array([group.unit.n for group in groups], np.int64),
            words,
            None if form in ("bgt", "strom") else beside(form, words, target.values[:sent]),
            np.array(taus, np.float32) if FORMS[form].has_tau else None,
            self.selection.chunks,
        )

    def note(self, sent: dict[int, int], parts: Sequence[Part], context: Context) -> None:
        """Takes note of what was sent, by ordinal, of those of the parts that were not held back."""
        noted = [parts[ordinal] for ordinal in sent]
        self.selection.note(noted, [*sent.values()], context.iteration, context.memories)

    def tally(self, part: Part, sent: int, residual_squares: float, tau: float) -> PartTally:
        """What a parameter sent, before a quantizer."""
        shown = tau if self.selection.has_tau else None
        return PartTally(part.name, part.elements, sent, residual_squares, shown, self._bits * sent)

    def _quantize(self, quantizer: Quantizer, updates: UpdateColumns, turn: Turn) -> Steps[Sequence[Update]]:
        """The quantizer's symbols instead of floats; the error goes back to where the element came from."""
        ops, work, floats = turn.ops, Work(turn.ops, turn.looks, turn.returned), updates.values
        assert updates.words is not None
        assert floats is not None
        counts = updates.counts.tolist()
        sent = [number for number, count in enumerate(counts) if count]
        errors = torch.zeros(sum(counts), dtype=torch.float32, device=ops.device)
        pairs = zip(
            *(torch.split(each, counts) for each in (errors, ops.tensor(floats.symbols))), strict=True
        )
        given = [Given(error, values) for error, values in pairs if values.numel()]
        outcomes = yield from quantizer.apply_all(given, work)
        ordinals = [turn.units[number].places[0].ordinal for number in sent]
        residuals = [residual_of(turn.parts[ordinal]) for ordinal in ordinals]
        of_each = [counts[number] for number in sent]
        ops.add_to_each(updates.words.array, of_each, ops.array(errors), residuals)  # the pass left 0 there
        for place, ordinal in enumerate(ordinals):
            turn.tallies.add_squares(ordinal, _squares_of(outcomes, place))
        quantized = self._quantized(updates, outcomes, sent, ops)
        for number, ordinal in zip(sent, ordinals, strict=True):
            bits = (
                quantized.value_bits if isinstance(quantized, UpdateColumns) else quantized[number].value_bits
            )
            turn.tallies.found[ordinal].paper_bits = bits * counts[number]
        return quantized

    def _quantized(
        self, updates: UpdateColumns, outcomes: Outcomes, sent: Sequence[int], ops: Ops
    ) -> Sequence[Update]:
        """The updates, with quantized values."""
        if isinstance(outcomes.values, SharedValues) and len(sent) == len(updates):
            return replace(updates, form=self.form, values=outcomes.values)
        found = [Update.empty(self.form, n, ops=ops) for n in updates.n.tolist()]
        for number, values in zip(sent, outcomes.values, strict=True):
            update = updates[number]
            found[number] = Update(self.form, update.n, NO_TAU, update.words, values, update.chunks)
        return found


def _squares_of(outcomes: Outcomes, place: int) -> Pending[float]:
    return lambda: outcomes.passed()[place].residual_squares


def residual_of(part: Part) -> Tensor:
    """The residual of a part that has one."""
    assert part.residual is not None
    return part.residual


def shared_tau(taus: Sequence[float], aims: Mapping[int, float]) -> np.float32:
    """What a message says its elements were sent by: the least tau of those that sent any."""
    return np.float32(min(taus) if taus else max(*aims.values(), SMALLEST_TAU))
