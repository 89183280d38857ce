"""Rules that send some elements, and keep all of the others: wgt, bgt, qgt, strom, topk, chunked_topk."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from ..config.base import SMALLEST_TAU
from ..config.methods import Clip, SparseMethod
from ..forms import FORMS
from ..kernels import sparse
from ..kernels.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..parts import Part, PartTally, Place, Unit
from ..quantizing import form_of, quantize
from ..update import NO_TAU, Update
from .base import Context, Ran, Rule, held_back, positions_of, put_back, squares
from .selection import Taken, Target, build_selection


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
        # Blocks of a quantizer and chunks must not reach from one parameter into the next.
        self.by_parameter = self.quantizer is not None or self.selection.chunks is not None

    def run(self, unit: Unit, parts: Sequence[Part], context: Context) -> Ran:
        """See `Rule.run`."""
        rule = self.selection.rule
        awake = {  # of this unit: a bucket may have several
            place.ordinal for place in unit.places if not held_back(parts[place.ordinal], context)
        }
        if self.config.momentum:
            parts = [
                advanced(part, self.config.momentum) if ordinal in awake else part
                for ordinal, part in enumerate(parts)
            ]
        context.scratch.reserve(unit.n, None if rule in WITHOUT_VALUES else VALUE_DTYPE[rule])
        updates: list[Update] = []
        tallies: dict[int, PartTally] = {}
        refused, sent = None, 0
        for aims, places in self.groups(unit, parts, context):
            begin, taus = sent, []
            for place in places:
                part, aim = parts[place.ordinal], aims[place.ordinal]
                if place.ordinal not in awake:
                    tallies[place.ordinal] = self.tally(part, 0, squares(part.residual), np.float32(aim))
                    continue
                tallies[place.ordinal], taken = self._take(part, place, aim, unit, context, sent)
                if taken.result.sent > sent:
                    taus.append(taken.tau)
                if taken.result.nonfinite:  # groups are visited by tau
                    refused = place.ordinal if refused is None else min(refused, place.ordinal)
                sent = taken.result.sent
            updates.append(self._update(unit, begin, sent, shared_tau(taus, aims.values()), context))
        self.note({ordinal: tallies[ordinal].sent for ordinal in awake}, parts, context)
        if refused is not None:
            return self._refuse(unit, parts, updates, refused)
        if self.quantizer is not None:
            updates, tallies = self._quantize(unit, parts, updates, tallies, context)
        return Ran(updates, [tallies[place.ordinal] for place in unit.places])

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
        ordered = sorted(unit.places, key=lambda place: (aims[place.ordinal], place.ordinal))
        for _, group in groupby(ordered, key=lambda place: aims[place.ordinal]):
            places = list(group)
            yield {place.ordinal: aims[place.ordinal] for place in places}, places

    def _take(
        self, part: Part, place: Place, aim: float, unit: Unit, context: Context, sent: int
    ) -> tuple[PartTally, Taken]:
        """One parameter's pass, and what comes after it."""
        assert part.residual is not None
        gradient, scratch = part.gradient.float(), context.scratch
        target = Target(scratch.words, scratch.values, place.start - unit.base, sent, context.threads)
        taken = self.selection.take(part, gradient, aim, target)
        words = scratch.words[sent : taken.result.sent]
        if part.velocity is not None and words.size:
            # Momentum of an element that was sent would carry it on in the old direction.
            part.velocity[positions_of(words, target.base)] = 0
        residual_squares = taken.result.residual_squares
        if self.clip is not None and (context.iteration + 1) % self.clip.every == 0:
            most = self.clip.to * float(taken.tau)
            part.residual.clamp_(-most, most)
            residual_squares = squares(part.residual)
        return self.tally(part, words.size, residual_squares, taken.tau), taken

    def note(self, sent: dict[int, int], parts: Sequence[Part], context: Context) -> None:
        """Takes note of what was sent, by ordinal, of those of the parts that were not held back."""
        turn = [parts[ordinal] for ordinal in sent]
        self.selection.note(turn, [*sent.values()], context.iteration, context.memories)

    def tally(self, part: Part, sent: int, residual_squares: float, tau: np.float32) -> PartTally:
        """What a parameter sent, before a quantizer."""
        bits = FORMS[self.form].paper_bits * sent
        shown = float(tau) if self.selection.has_tau else None
        return PartTally(part.name, part.elements, sent, residual_squares, shown, bits)

    def _update(self, unit: Unit, begin: int, end: int, tau: np.float32, context: Context) -> Update:
        scratch, rule = context.scratch, self.selection.rule
        values = scratch.values[:0] if rule in WITHOUT_VALUES else scratch.values[begin:end]
        words, chunks = scratch.words[begin:end], self.selection.chunks
        if self.form == rule:
            return Update(rule, unit.n, tau, words, values, chunks)
        words &= np.uint32(0xFFFFFFFE)  # these forms' values carry the sign
        if chunks is not None and words.size != chunks.count(unit.n):
            chunks = None  # held back, or refused
        return Update("f32", unit.n, NO_TAU, words, values, chunks)

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


def shared_tau(taus: Sequence[np.float32], aims: Iterable[float]) -> np.float32:
    """What a message says its elements were sent by: the least tau of those that sent any."""
    return min(taus, default=np.float32(max(*aims, SMALLEST_TAU)))


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
