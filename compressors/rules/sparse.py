"""Rules that send some elements, and keep all of the others: wgt, bgt, qgt, strom, topk, chunked_topk."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..bucket.layout import Part, PartTally, Place, Unit
from ..config.base import SMALLEST_TAU
from ..config.methods import Clip, SparseMethod
from ..ops.cpu import sparse
from ..ops.cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..wire.forms import FORMS
from ..wire.update import NO_TAU, Update
from .base import Context, Ran, Rule, held_back, put_back, squares
from .quantizing import form_of, quantize
from .selection import Taken, Target, build_selection, residual_of

_NO_VALUES = np.empty(0, np.uint8)


class SparseRule(Rule):
    """Selects elements by residual + gradient, and perhaps quantizes what it selected."""

    needs_residual = True

    def __init__(self, config: SparseMethod) -> None:
        self.config = config
        self.selection = build_selection(config)
        self.quantizer = getattr(config, "quantize", None)
        self.clip: Clip | None = getattr(config, "clip", None)
        if self.quantizer is not None:
            self.form = form_of(self.quantizer)
        else:
            self.form = self.selection.rule if self.selection.has_tau else "f32"
        self._bits = FORMS[self.form].paper_bits
        # Blocks of a quantizer and chunks must not reach from one parameter into the next.
        self.by_parameter = self.quantizer is not None or self.selection.chunks is not None

    def run(self, unit: Unit, parts: Sequence[Part], context: Context) -> Ran:
        """See `Rule.run`; one call takes all of the unit's parameters."""
        awake = self._awake(unit, parts, context)
        if self.config.momentum:
            parts = self._advanced(unit, parts, awake, context)
        groups = list(self.groups(unit, parts, context))
        turn = [
            (place, aims[place.ordinal])
            for aims, places in groups
            for place in places
            if awake[place.ordinal]
        ]
        target = self._target(unit, context)
        taken = self.selection.take(
            [in_float32(parts[place.ordinal]) for place, _ in turn],
            [aim for _, aim in turn],
            [place.start - unit.base for place, _ in turn],
            target,
        )
        ends, taus = taken.result.ends, taken.taus
        kept = self._settle(unit, parts, turn, taken, target.words, context)
        updates: list[Update] = []
        tallies: dict[int, PartTally] = {}
        number = sent = 0
        for aims, places in groups:
            begin, by = sent, []
            for place in places:
                ordinal = place.ordinal
                part = parts[ordinal]
                if not awake[ordinal]:
                    tau = float(np.float32(aims[ordinal]))
                    tallies[ordinal] = self.tally(part, 0, squares(part.residual), tau)
                    continue
                end, tau = ends[number], taus[number]
                tallies[ordinal] = self.tally(part, end - sent, kept[number], tau)
                if end > sent:
                    by.append(tau)
                sent, number = end, number + 1
            updates.append(self._update(unit.n, begin, sent, shared_tau(by, aims), target))
        self.note({place.ordinal: tallies[place.ordinal].sent for place, _ in turn}, parts, context)
        if any(taken.result.nonfinite):
            broken = [
                place.ordinal for (place, _), bad in zip(turn, taken.result.nonfinite, strict=True) if bad
            ]
            return self._refuse(unit, parts, updates, min(broken))
        if self.quantizer is not None:
            updates, tallies = self._quantize(unit, parts, updates, tallies, context)
        return Ran(updates, [tallies[place.ordinal] for place in unit.places])

    def _awake(self, unit: Unit, parts: Sequence[Part], context: Context) -> dict[int, bool]:
        """By ordinal, of this unit's places alone, whether they are not held back."""
        if not context.hold_back_zeros:
            return dict.fromkeys([place.ordinal for place in unit.places], True)
        return {place.ordinal: not held_back(parts[place.ordinal], context) for place in unit.places}

    def _advanced(
        self, unit: Unit, parts: Sequence[Part], awake: Mapping[int, bool], context: Context
    ) -> Sequence[Part]:
        """As `advanced` for each part that is awake; one call takes all of the unit's."""
        out = context.scratch.velocities(unit.base, unit.n)
        found, rows, kept = list(parts), [], []
        for place in unit.places:
            part, begin = in_float32(parts[place.ordinal]), place.start - unit.base
            if part.velocity is None or not awake[place.ordinal]:
                continue
            kept.append(part)  # a copy in float32 must live until the call has returned
            rows.append((part.velocity.data_ptr(), part.gradient.data_ptr(), part.elements, begin))
            gradient = torch.from_numpy(out[begin : begin + part.elements])
            found[place.ordinal] = Part(part.name, gradient, part.residual, part.velocity)
        if kept:
            sparse.advance(np.array(rows, np.int64), np.float32(self.config.momentum), out)
        return found

    def _target(self, unit: Unit, context: Context) -> Target:
        """Where the passes over a unit write."""
        rule = self.selection.rule
        dtype = None if rule in WITHOUT_VALUES else VALUE_DTYPE[rule]
        return Target(*context.scratch.room(unit.base, unit.n, dtype), context.threads)

    def _settle(
        self,
        unit: Unit,
        parts: Sequence[Part],
        turn: Sequence[tuple[Place, float]],
        taken: Taken,
        words: NDArray[np.uint32],
        context: Context,
    ) -> list[float]:
        """What comes after the passes; the squares of each residual then."""
        kept = taken.result.residual_squares
        clips = self.clip is not None and (context.iteration + 1) % self.clip.every == 0
        if not clips and not self.config.momentum:
            return kept
        sent = 0
        for number, (place, _) in enumerate(turn):
            part, end = parts[place.ordinal], taken.result.ends[number]
            if part.velocity is not None:
                # Momentum of an element that was sent would carry it on in the old direction.
                sparse.clear(words[sent:end], place.start - unit.base, part.velocity.numpy())
            if self.clip is not None and clips:
                most = self.clip.to * taken.taus[number]
                residual_of(part).clamp_(-most, most)
                kept[number] = squares(part.residual)
            sent = end
        return kept

    def groups(
        self, unit: Unit, parts: Sequence[Part], context: Context
    ) -> Iterator[tuple[dict[int, float], list[Place]]]:
        """Places that share a message: all, or where tau is a value's meaning those of one tau."""
        ordinals = [place.ordinal for place in unit.places]
        turn = [parts[ordinal] for ordinal in ordinals]
        decided = self.selection.aims(turn, context.iteration, context.memories)
        aims = dict(zip(ordinals, decided, strict=True))
        if self.selection.rule == "wgt":
            yield aims, list(unit.places)
            return
        shared: dict[float, tuple[dict[int, float], list[Place]]] = {}
        for aim, ordinal, place in sorted(zip(decided, ordinals, unit.places, strict=True)):
            if aim not in shared:
                shared[aim] = {}, []
            shared[aim][0][ordinal] = aim
            shared[aim][1].append(place)
        yield from shared.values()

    def note(self, sent: dict[int, int], parts: Sequence[Part], context: Context) -> None:
        """Takes note of what was sent, by ordinal, of those of the parts that were not held back."""
        turn = [parts[ordinal] for ordinal in sent]
        self.selection.note(turn, [*sent.values()], context.iteration, context.memories)

    def tally(self, part: Part, sent: int, residual_squares: float, tau: float) -> PartTally:
        """What a parameter sent, before a quantizer."""
        shown = tau if self.selection.has_tau else None
        return PartTally(part.name, part.elements, sent, residual_squares, shown, self._bits * sent)

    def _update(self, n: int, begin: int, end: int, tau: np.float32, target: Target) -> Update:
        rule, chunks = self.selection.rule, self.selection.chunks
        words = target.words[begin:end]
        values = _NO_VALUES if rule in WITHOUT_VALUES else target.values[begin:end]
        if self.form == rule:
            return Update(rule, n, tau, words, values, chunks)
        words &= np.uint32(0xFFFFFFFE)  # these forms' values carry the sign
        if chunks is not None and words.size != chunks.count(n):
            chunks = None  # held back, or refused
        return Update("f32", n, NO_TAU, words, values, chunks)

    def _refuse(self, unit: Unit, parts: Sequence[Part], updates: list[Update], refused: int) -> Ran:
        for update in updates:
            put_back(update, unit, parts)
        tallies = [
            PartTally(parts[place.ordinal].name, place.elements, 0, squares(parts[place.ordinal].residual))
            for place in unit.places
        ]
        return Ran([], tallies, refused)

    def _quantize(
        self,
        unit: Unit,
        parts: Sequence[Part],
        updates: list[Update],
        tallies: dict[int, PartTally],
        context: Context,
    ) -> tuple[list[Update], dict[int, PartTally]]:
        """The quantizer's symbols in place of floats; the error goes where the element came from."""
        (update,), (place,) = updates, unit.places
        if not update.k:
            return [Update.empty(self.form, unit.n)], tallies
        part = parts[place.ordinal]
        assert part.residual is not None
        assert update.words is not None
        error = np.zeros(update.k, np.float32)
        quantized = quantize(self.quantizer, error, update.floats(), context.threads)
        sparse.add_values(update.words, error, part.residual.numpy())  # the pass left 0 there
        sent = Update(self.form, unit.n, NO_TAU, update.words, quantized.values, update.chunks)
        tally = tallies[place.ordinal]
        total = tally.residual_squares + quantized.residual_squares
        return [sent], {
            place.ordinal: PartTally(
                tally.name, tally.elements, tally.sent, total, tally.tau, sent.paper_bits
            )
        }


def shared_tau(taus: Sequence[float], aims: Mapping[int, float]) -> np.float32:
    """What a message says its elements were sent by: the least tau of those that sent any."""
    return np.float32(min(taus) if taus else max(*aims.values(), SMALLEST_TAU))


def in_float32(part: Part) -> Part:
    """A part whose gradient is float32."""
    if part.gradient.dtype == torch.float32:
        return part
    return Part(part.name, part.gradient.float(), part.residual, part.velocity, part.rms)


def advanced(part: Part, momentum: float) -> Part:
    """A part whose gradient is velocity = momentum * velocity + gradient; also the threshold is for that.

    The velocity itself changes only where that is finite; what is not stays in the gradient, so that the
    pass finds it.
    """
    if part.velocity is None:
        return part
    gradient = part.velocity * momentum + part.gradient.float()
    part.velocity.copy_(torch.where(torch.isfinite(gradient), gradient, part.velocity))
    return Part(part.name, gradient, part.residual, part.velocity)
