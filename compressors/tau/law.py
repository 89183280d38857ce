"""What a law says of a run, from what the layers' gradients look like in its first iteration.

The same function serves a run that decides by a law, and the fit of a law to past runs (search/law).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .by_law import Law

_FAINT = 1e-3
"""A percentile counts as at least this part of the root mean square: where most elements are zero it is 0."""


class LayerSeen(NamedTuple):
    """One layer's gradient."""

    elements: float
    rms: float
    p99: float
    p999: float


class Features(NamedTuple):
    """Of all layers together; natural logarithms."""

    rms: float
    """Of the root mean square over all elements."""
    p99: float
    """Of a layer's 99th percentile of magnitudes over its root mean square, mean over elements."""
    p999: float
    """The same of the 99.9th percentile."""
    layer: float
    """Of a layer's number of elements, mean over elements."""


def features(layers: Sequence[LayerSeen]) -> Features | None:
    """The features of a run's layers; None where no gradient is finite and other than zero."""
    seen = [each for each in layers if 0 < each.rms < math.inf]
    total = math.fsum(each.elements for each in seen)
    if not total:
        return None

    def mean(values: Sequence[float]) -> float:
        return math.fsum(each.elements * value for each, value in zip(seen, values, strict=True)) / total

    return Features(
        0.5 * math.log(mean([each.rms**2 for each in seen])),
        mean([math.log(max(each.p99 / each.rms, _FAINT)) for each in seen]),
        mean([math.log(max(each.p999 / each.rms, _FAINT)) for each in seen]),
        mean([math.log(each.elements) for each in seen]),
    )


def by_law(law: Law, found: Features) -> float:
    """The law's number: a floor, or the natural logarithm of a tau."""
    return law.constant + math.fsum(getattr(law, name) * value for name, value in found._asdict().items())
