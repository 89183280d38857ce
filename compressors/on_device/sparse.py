"""Rules that send some elements, on a device; see `rules/sparse.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..bucket.layout import Part, Place, Unit
from ..ops.cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..ops.cuda import sparse_add
from ..ops.cuda.chunked import chunked_pass
from ..ops.cuda.reports import Report, Reports
from ..ops.cuda.returns import Returns, run_together
from ..ops.cuda.runtime import Runtime
from ..ops.cuda.threshold import threshold_pass
from ..ops.cuda.topk import topk_pass
from ..ops.cuda.words import clear_named, drop_signs
from ..rules import Context
from ..rules.quantizing import form_of
from ..rules.selection import ByChunk, ByRank
from ..rules.sparse import SparseRule, advanced, shared_tau
from ..tau import sampled_tau
from ..wire.update import NO_TAU, Update
from .applying import put_back
from .quantizing import quantize
from .rules import Begun, DeviceRan, DeviceRule, DeviceTally, Squares, empty_update, gradient_of, squares
from .sampling import with_samples


@dataclass(frozen=True)
class _Pass:
    """One parameter's pass; none where it is held back, whose squares are asked for instead."""

    place: Place
    part: Part
    aim: float
    tau: np.float32 | None
    """What it sends by; None where the pass finds it."""
    squares: Squares | None = None


@dataclass(frozen=True)
class _Group:
    """Passes whose elements share a message."""

    unit: Unit
    aims: dict[int, float]
    passes: list[_Pass]


class SparseOnDevice(DeviceRule):
    """Selects elements by residual + gradient, and perhaps quantizes what it selected."""

    def __init__(self, runtime: Runtime, rule: SparseRule) -> None:
        self._runtime, self._rule = runtime, rule

    def begin(
        self,
        units: Sequence[Unit],
        parts: Sequence[Part],
        context: Context,
        awake: set[int],
        returns: Returns,
    ) -> Begun:
        """See `DeviceRule.begin`. Passes append to one another, through all units."""
        runtime, rule = self._runtime, self._rule
        mine = {place.ordinal for unit in units for place in unit.places}
        if rule.config.momentum:
            parts = [
                advanced(part, rule.config.momentum) if ordinal in mine & awake else part
                for ordinal, part in enumerate(parts)
            ]
        samples = self._samples(mine, parts, context)
        room = sum(self._room(place.elements) for unit in units for place in unit.places)
        sends = rule.selection.rule
        words = runtime.empty(room, np.uint32)
        values = runtime.empty(0 if sends in WITHOUT_VALUES else room, VALUE_DTYPE[sends])
        reports, groups = Reports(runtime, len(mine & awake), returns), []
        for unit in units:
            for aims, places in rule.groups(unit, samples, context):
                passes = []
                for place in places:
                    part, aim = parts[place.ordinal], aims[place.ordinal]
                    if place.ordinal not in awake:
                        kept = squares(runtime, part.residual, returns)
                        passes.append(_Pass(place, part, aim, None, kept))
                        continue
                    tau = self._tau(samples[place.ordinal], aim)
                    self._take(part, aim, tau, words, values, reports, place.start - unit.base)
                    passes.append(_Pass(place, part, aim, tau))
                groups.append(_Group(unit, aims, passes))
        return _Begun(runtime, rule, list(units), parts, context, groups, reports, words, values)

    def _samples(self, mine: set[int], parts: Sequence[Part], context: Context) -> list[Part]:
        """The parts; a sample of its magnitudes, on the host, in place of one whose tau it decides."""
        wanted = []
        for ordinal in mine:
            part = parts[ordinal]
            memory = context.memories.get(part.name, {})
            if self._rule.selection.needs_sample(part, context.iteration, memory):
                wanted.append(ordinal)
        return with_samples(self._runtime, parts, wanted)

    def _room(self, elements: int) -> int:
        """How many words a pass may write, at most."""
        selection = self._rule.selection
        if selection.chunks is not None:
            return selection.chunks.count(elements)
        return elements  # a rank's share changes from one iteration to the next: memory can be reused so

    def _tau(self, sample: Part, aim: float) -> np.float32 | None:
        selection = self._rule.selection
        if isinstance(selection, ByRank):
            return sampled_tau(sample, aim) if selection.config.sampled else None
        return np.float32(aim)

    def _take(
        self,
        part: Part,
        aim: float,
        tau: np.float32 | None,
        words: Any,
        values: Any,
        reports: Reports,
        base: int,
    ) -> None:
        runtime, selection = self._runtime, self._rule.selection
        assert part.residual is not None
        gradient, gradient_type = gradient_of(runtime, part.gradient)
        residual = runtime.array(part.residual)
        if isinstance(selection, ByChunk):
            chunks = selection.chunks
            assert chunks is not None
            chunked_pass(
                runtime, residual, gradient, chunks.chunk, chunks.keep, words, values, reports,
                base=base, gradient_type=gradient_type,
            )  # fmt: skip
        elif tau is None:
            assert isinstance(selection, ByRank)
            topk_pass(
                runtime, residual, gradient, selection.count(part.elements, aim), words, values, reports,
                base=base, gradient_type=gradient_type,
            )  # fmt: skip
        else:
            threshold_pass(
                runtime, selection.rule, residual, gradient, float(tau), words, values, reports,
                base=base, gradient_type=gradient_type,
            )  # fmt: skip


class _Begun(Begun):
    def __init__(
        self,
        runtime: Runtime,
        rule: SparseRule,
        units: list[Unit],
        parts: Sequence[Part],
        context: Context,
        groups: list[_Group],
        reports: Reports,
        words: Any,
        values: Any,
    ) -> None:
        self._runtime, self._rule, self._units, self._parts = runtime, rule, units, parts
        self._context, self._groups, self._reports = context, groups, reports
        self._words, self._values = words, values

    def finish(self, returns: Returns) -> list[DeviceRan]:
        """See `Begun.finish`."""
        updates: dict[Unit, list[Update]] = {unit: [] for unit in self._units}
        tallies: dict[int, DeviceTally] = {}
        noted: dict[int, int] = {}
        refused: dict[Unit, int] = {}
        reports, sent = iter(self._reports.fetched()), 0
        for group in self._groups:
            begin, taus = sent, []
            for one in group.passes:
                ordinal = one.place.ordinal
                if one.squares is not None:
                    tally = self._rule.tally(one.part, 0, 0.0, float(np.float32(one.aim)))
                    tallies[ordinal] = DeviceTally(tally, one.squares)
                    continue
                report = next(reports)
                tau = report.tau if one.tau is None else one.tau
                words = self._words[sent : report.sent]
                tallies[ordinal] = self._settle(one, group.unit, words, tau, report, returns)
                if report.sent > sent:
                    taus.append(float(tau))
                if report.nonfinite:
                    refused[group.unit] = min(refused.get(group.unit, ordinal), ordinal)
                noted[ordinal], sent = report.sent - sent, report.sent
            tau = shared_tau(taus, group.aims)
            updates[group.unit].append(self._update(group.unit, begin, sent, tau))
        self._rule.note(noted, self._parts, self._context)
        for unit in refused:
            for update in updates.pop(unit):
                put_back(self._runtime, update, unit, self._parts)
        if self._rule.quantizer is not None:
            self._quantize(updates, tallies, returns)
        return [
            DeviceRan(unit, [], [], refused[unit])
            if unit in refused
            else DeviceRan(unit, updates[unit], [tallies[place.ordinal] for place in unit.places])
            for unit in self._units
        ]

    def _settle(
        self, one: _Pass, unit: Unit, words: Any, tau: np.float32, report: Report, returns: Returns
    ) -> DeviceTally:
        """What comes after a pass."""
        runtime, rule, part = self._runtime, self._rule, one.part
        assert part.residual is not None
        if part.velocity is not None and words.size:
            # Momentum of an element that was sent would carry it on in the old direction.
            clear_named(runtime, words, one.place.start - unit.base, runtime.array(part.velocity))
        kept: Squares = lambda: report.residual_squares  # noqa: E731
        if rule.clip is not None and (self._context.iteration + 1) % rule.clip.every == 0:
            most = rule.clip.to * float(tau)
            part.residual.clamp_(-most, most)
            kept = squares(runtime, part.residual, returns)
        return DeviceTally(rule.tally(part, int(words.size), 0.0, float(tau)), kept)

    def _update(self, unit: Unit, begin: int, end: int, tau: np.float32) -> Update:
        rule = self._rule
        words, values = self._words[begin:end], self._values[begin:end]
        sends, chunks = rule.selection.rule, rule.selection.chunks
        if rule.form == sends:
            return Update(sends, unit.n, tau, words, values, chunks)
        drop_signs(self._runtime, words)  # these forms' values carry the sign
        if chunks is not None and end - begin != chunks.count(unit.n):
            chunks = None  # held back, or refused
        return Update("f32", unit.n, NO_TAU, words, values, chunks)

    def _quantize(
        self, updates: dict[Unit, list[Update]], tallies: dict[int, DeviceTally], returns: Returns
    ) -> None:
        """The quantizer's symbols in place of floats; the error goes where the element came from."""
        runtime, rule, looks = self._runtime, self._rule, Returns(self._runtime)
        form, works = form_of(rule.quantizer), []
        for unit, (update,) in updates.items():
            if not update.k:
                updates[unit] = [empty_update(runtime, form, unit.n)]
                continue
            error = runtime.zeros(update.k, np.float32)
            steps = quantize(runtime, rule.quantizer, error, update.values, "float32", looks, returns)
            works.append((unit, update, error, steps))
        outcomes = run_together(looks, [steps for *_, steps in works])
        for (unit, update, error, _), outcome in zip(works, outcomes, strict=True):
            ordinal = unit.places[0].ordinal
            residual = self._parts[ordinal].residual
            assert residual is not None
            # The pass left 0 there.
            sparse_add.add_values(runtime, update.words, error, runtime.array(residual))
            sent = Update(form, unit.n, NO_TAU, update.words, outcome.values, update.chunks)
            updates[unit] = [sent]
            tallies[ordinal] = _with_error(tallies[ordinal], sent.paper_bits, outcome.reports)


def _with_error(tally: DeviceTally, paper_bits: int, reports: Reports) -> DeviceTally:
    """A tally to which a quantizer's error and bits are added."""
    before = tally.squares
    return DeviceTally(
        replace(tally.tally, paper_bits=paper_bits), lambda: before() + reports.fetched()[0].residual_squares
    )
