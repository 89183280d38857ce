"""A metric of an evaluation, with what tables, figures and searches need to know about it."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Final

_MARGINS: Final = {"%": 0.5, "nats": 0.02}
_MOST_DIGITS: Final = 17


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: in MLflow, after `eval/`; also in a spec.
        label: in words, for tables and axes.
        unit: of what `shown` returns; empty if it has none.
        scale: the factor of a value when it is shown.
        digits: after the decimal point, when it is shown.
        more_is_better: which way is better.
        is_share: whether it is the share of test examples that the model gets right, 0 to 1.
    """

    name: str
    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 4
    more_is_better: bool = False
    is_share: bool = False

    @property
    def sign(self) -> int:
        """1 if more is better, otherwise -1: values times this should be large."""
        return 1 if self.more_is_better else -1

    def shown(self, value: float) -> str:
        """A value as people read it: `96.38%`, `2.0551 nats`."""
        return self.written(self.scale * value)

    def written(self, seen: float) -> str:
        """The same of a number that is in that unit already."""
        text = f"{seen:.{self.digits}f}" if math.isfinite(seen) else str(seen)
        return f"{text}{'' if self.unit in ('', '%') else ' '}{self.unit}"

    @property
    def difference_unit(self) -> str:
        """The unit of a difference between two values: `points` where the metric is in percent."""
        return "points" if self.unit == "%" else self.unit

    def amount(self, difference: float) -> str:
        """A difference, in the unit that people see: `0.5 points`, `0.02 nats`."""
        unit = "point" if self.unit == "%" and difference == 1 else self.difference_unit
        return f"{difference:.4g} {unit}".rstrip()

    @property
    def column(self) -> str:
        """The heading in CSV: `accuracy_percent`, `loss_nats`."""
        unit = "percent" if self.unit == "%" else self.unit.replace(" ", "_")
        return f"{self.name}_{unit}" if unit else self.name

    def lost(self, value: float, reference: float) -> float:
        """How much worse a value is than a reference, in the unit that people see; below 0: it is better."""
        return self.scale * self.sign * (reference - value)

    def margin(self, reference: float) -> float:
        """The default tolerance, in the unit that is shown.

        Half a point; 0.02 nats; for other metrics a hundredth of the reference, the value without
        compression.
        """
        known = _MARGINS.get(self.unit)
        return abs(self.scale * reference) / 100 if known is None else known

    def is_better(self, value: float, than: float) -> bool:
        """Whether one value is better than another; NaN is worse than any value."""
        if math.isnan(value) or math.isnan(than):
            return math.isnan(than) and not math.isnan(value)
        return self.sign * value > self.sign * than

    def to_json(self) -> str:
        """For a run's tag."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Metric":
        """Reads what `to_json` wrote; raises ValueError: it did not write that."""
        try:
            made = cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"no metric: {text!r:.100}") from error
        texts = all(isinstance(text, str) for text in (made.name, made.label, made.unit))
        numbers = isinstance(made.scale, float | int) and type(made.digits) is int
        if not (texts and numbers and made.label and 0 <= made.digits <= _MOST_DIGITS):
            raise ValueError(f"no metric: {text!r:.100}")
        return made


ACCURACY: Final = Metric("accuracy", "accuracy", "%", 100.0, 2, more_is_better=True, is_share=True)
LOSS: Final = Metric("loss", "test loss", "nats")
PERPLEXITY: Final = Metric("perplexity", "perplexity", digits=3)
BITS_PER_BYTE: Final = Metric("bits_per_byte", "bits per byte")
ERROR: Final = Metric("loss", "test error")
"""The loss of a regression; in the targets' units, or their square."""
