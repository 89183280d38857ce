"""Rules that send every element in fewer bits, on a device; see `rules/dense.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..bucket.layout import Part, PartTally, Unit
from ..config.quantizers import EntropyFields
from ..ops.cuda.returns import Returns, run_together
from ..ops.cuda.runtime import Runtime
from ..rules import Context
from ..rules.dense import DenseRule
from ..wire.update import NO_TAU, Update
from .quantizing import Outcome, quantize
from .rules import Begun, DeviceRan, DeviceRule, DeviceTally, Squares, empty_update, gradient_of, squares
from .sampling import with_samples


class DenseOnDevice(DeviceRule):
    """Quantizes residual + gradient of every parameter."""

    def __init__(self, runtime: Runtime, rule: DenseRule) -> None:
        self._runtime, self._rule = runtime, rule

    def begin(
        self,
        units: Sequence[Unit],
        parts: Sequence[Part],
        context: Context,
        awake: set[int],
        returns: Returns,
    ) -> Begun:
        """See `DeviceRule.begin`."""
        runtime, rule, looks = self._runtime, self._rule, Returns(self._runtime)
        places = [unit.places[0].ordinal for unit in units if unit.places[0].ordinal in awake]
        wanted = [ordinal for ordinal in places if rule.needs_sample(parts[ordinal], context)]
        samples = with_samples(runtime, parts, wanted)
        works = []
        for unit in units:
            part = parts[unit.places[0].ordinal]
            if unit.places[0].ordinal in awake:
                config = rule.decided(samples[unit.places[0].ordinal], context)
                wide = part.gradient.float() if isinstance(config, EntropyFields) else part.gradient
                gradient, gradient_type = gradient_of(runtime, wide)
                residual = None if part.residual is None else runtime.array(part.residual)
                works.append(
                    quantize(runtime, config, residual, gradient, gradient_type, looks, returns, part.rms)
                )
        ran = iter(run_together(looks, works))
        quantized: list[_Quantized] = []
        for unit in units:
            part = parts[unit.places[0].ordinal]
            if unit.places[0].ordinal in awake:
                quantized.append(_Quantized(unit, part, next(ran), None))
            else:
                quantized.append(_Quantized(unit, part, None, squares(runtime, part.residual, returns)))
        return _Begun(runtime, self._rule, quantized)


@dataclass(frozen=True)
class _Quantized:
    """One parameter's pass; none where it is held back, whose squares are asked for instead."""

    unit: Unit
    part: Part
    outcome: Outcome | None
    squares: Squares | None


class _Begun(Begun):
    def __init__(self, runtime: Runtime, rule: DenseRule, quantized: list[_Quantized]) -> None:
        self._runtime, self._rule, self._quantized = runtime, rule, quantized

    def finish(self, returns: Returns) -> list[DeviceRan]:
        """See `Begun.finish`."""
        return [self._ran(each) for each in self._quantized]

    def _ran(self, one: _Quantized) -> DeviceRan:
        unit, part, form = one.unit, one.part, self._rule.form
        if one.outcome is None:
            assert one.squares is not None
            tally = PartTally(part.name, part.elements, 0, 0.0)
            return DeviceRan(
                unit, [empty_update(self._runtime, form, unit.n)], [DeviceTally(tally, one.squares)]
            )
        (report,) = one.outcome.reports.fetched()
        if report.nonfinite:
            return DeviceRan(unit, [], [], unit.places[0].ordinal)
        update = Update(form, unit.n, NO_TAU, None, one.outcome.values)
        tally = PartTally(part.name, part.elements, unit.n, 0.0, paper_bits=update.paper_bits)
        return DeviceRan(unit, [update], [DeviceTally(tally, lambda: report.residual_squares)])
