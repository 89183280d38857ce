"""What the rules on a device have in common: gradients as arrays, tallies whose squares come later."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bucket.layout import Part, PartTally, Unit
from ..ops.cuda import looking
from ..ops.cuda.reports import GradientType
from ..ops.cuda.returns import Returns
from ..ops.cuda.runtime import Runtime
from ..rules import Context
from ..wire.forms import FORMS, Form
from ..wire.update import NO_TAU, Update

_TYPES: dict[torch.dtype, GradientType] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}

Squares = Callable[[], float]
"""A sum of squares, to be asked for when what is returned was fetched."""


@dataclass(frozen=True)
class DeviceTally:
    """What one parameter sent."""

    tally: PartTally
    """But for the squares."""
    squares: Squares

    def settled(self) -> PartTally:
        """All of it, once what is returned was fetched."""
        return replace(self.tally, residual_squares=self.squares())


@dataclass(frozen=True)
class DeviceRan:
    """What a rule made of one unit; see `rules.base.Ran`."""

    unit: Unit
    updates: list[Update]
    tallies: list[DeviceTally]
    refused: int | None = None


class Begun(ABC):
    """A rule's passes over the units of a bucket, all of them started."""

    @abstractmethod
    def finish(self, returns: Returns) -> list[DeviceRan]:
        """What they came to, once the returns that they began with were fetched.

        Args:
            returns: to be fetched before tallies are settled.
        """


class DeviceRule(ABC):
    """A rule at work on a device, on all units of a bucket at once."""

    @abstractmethod
    def begin(
        self,
        units: Sequence[Unit],
        parts: Sequence[Part],
        context: Context,
        awake: set[int],
        returns: Returns,
    ) -> Begun:
        """Starts the passes.

        Args:
            units: of the bucket.
            parts: of the bucket, by ordinal.
            context: see there.
            awake: ordinals of the parameters that are not held back.
            returns: to be fetched before `finish` is called.
        """


def gradient_of(runtime: Runtime, gradient: Tensor) -> tuple[Any, GradientType]:
    """A gradient as an array, and what its bits mean."""
    if gradient.dtype not in _TYPES:
        gradient = gradient.float()
    return runtime.array(gradient), _TYPES[gradient.dtype]


def squares(runtime: Runtime, residual: Tensor | None, returns: Returns) -> Squares:
    """The sum of squares of a residual as it is now; 0 without one."""
    if residual is None:
        return lambda: 0.0
    slot = returns.take(1, np.float64)
    looking.add_squares(runtime, runtime.array(residual), slot.array)
    return lambda: float(slot.values[0])


def find_awake(runtime: Runtime, parts: Sequence[Part], context: Context) -> set[int]:
    """Ordinals of the parameters that are not held back; waits once, if any may be."""
    if not context.hold_back_zeros:
        return set(range(len(parts)))
    returns = Returns(runtime)
    found = []
    for part in parts:
        gradient, gradient_type = gradient_of(runtime, part.gradient)
        found.append(returns.take(1, np.int32))
        looking.find_nonzero(runtime, gradient, found[-1].array, gradient_type=gradient_type)
    returns.fetch()
    return {ordinal for ordinal, slot in enumerate(found) if slot.values[0]}


def empty_update(runtime: Runtime, form: Form, n: int) -> Update:
    """An update in which nothing is sent."""
    return Update(form, n, NO_TAU, runtime.empty(0, np.uint32), runtime.empty(0, FORMS[form].dtype))
