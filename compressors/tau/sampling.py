"""What policies look at: magnitudes of residual + gradient at a few places of a parameter."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..ops.interface import Ops

SAMPLE = 2**14
"""Elements of a parameter that are looked at, at most."""


def with_magnitudes(parts: Sequence[Part], wanted: Sequence[bool], ops: Ops) -> list[Part]:
    """Some parameters; those that are wanted with a sample of their magnitudes. Waits once, for all."""
    looked = [part for part, each in zip(parts, wanted, strict=True) if each]
    found = ops.samples([part.residual for part in looked], [part.gradient for part in looked], SAMPLE)
    taken = iter(found)
    return [
        replace(part, magnitudes=next(taken)) if each else part
        for part, each in zip(parts, wanted, strict=True)
    ]


def magnitudes_of(part: Part) -> NDArray[np.float32]:
    """float32 [SAMPLE at most], the finite ones among a sample of magnitudes of residual + gradient."""
    assert part.magnitudes is not None, "needs_sample must say that they are wanted"
    return part.magnitudes
