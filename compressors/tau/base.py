"""The interface of threshold policies at work: what they remember of a parameter, what they decide."""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..method.base import LARGEST_TAU, SMALLEST_TAU
from ..method.policies import Policy
from ..method.registry import implementation_of
from ..method.sparse import ThresholdedMethod
from ..ops.interface import Ops
from ..ops.readback import Readback

ALL = ""
"""The name under which a policy remembers what it remembers of all parameters together; none has it."""
SAMPLE = 2**14
"""Elements of a parameter that are looked at, at most."""
_FLOAT32 = struct.Struct("f")


@dataclass(slots=True)
class Memory:
    """What a policy remembers of one parameter; each policy has its own.

    Its fields are numbers, lists of them, or None where there is nothing to remember yet. All have a
    default: a new one remembers nothing.
    """

    def plain(self) -> dict[str, Any]:
        """Its fields by name, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The reverse of `plain`.

        Raises:
            ValueError: a field is missing, unknown, or no number.
        """
        names = [each.name for each in fields(cls)]
        if missing := sorted(set(names) - set(plain)):
            raise ValueError(f"without {', '.join(missing)}")
        if unknown := sorted(set(map(str, plain)) - set(names)):
            raise ValueError(f"with {', '.join(unknown)}, which is unknown")
        return cls(**{name: _number(name, plain[name]) for name in names})


def _number(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_number(name, each) for each in value]
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{name} = {value!r} is not a number")
    return value


M = TypeVar("M", bound=Memory)


class ThresholdPolicy(ABC, Generic[M]):
    """Decides taus; automatic policies also learn from what they led to.

    Several parameters are decided for in one call, a bucket's mostly: in most iterations there is little to
    do for each, and a call for each would take longer than that. Which of them share a call, and in which
    order, must not change the result: DDP rebuilds its buckets.
    """

    together: ClassVar[bool] = False
    """Whether all parameters have one memory between them, that of ALL."""
    memory: ClassVar[type[Memory]] = Memory
    """What it remembers of a parameter."""

    def __init__(self, config: Any, method: Any) -> None:
        """By the policy's fields, and those of the method that it decides for."""
        self.config, self.method = config, method

    def memory_of(self, name: str) -> type[Memory]:
        """What it remembers of the parameter of that name."""
        return self.memory

    @abstractmethod
    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[M]) -> list[float]:
        """The thresholds for some parameters in one iteration.

        Args:
            parts: the parameters; a residual does not hold the gradient yet. One that `needs_sample` has the
                magnitudes of a sample (`magnitudes_of`).
            iteration: backward passes before this one, over the whole run.
            memories: theirs, in the same order; may be changed.

        Returns:
            SMALLEST_TAU to LARGEST_TAU, each a float32's value (`as_tau`).
        """

    def needs_sample(self, part: Part, iteration: int, memory: M) -> bool:
        """Whether `taus` is going to look at a part's magnitudes."""
        return False

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[M]) -> None:
        """Records how many elements of each parameter were sent with the last tau.

        Args:
            parts: the parameters; none that was held back.
            sent: how many of each one's elements.
            iteration: as for `taus`.
            memories: theirs; may be changed.
        """

    def settle(self, turn: Sequence[M], iteration: int, memories: Mapping[str, M]) -> None:
        """Makes the decisions for all parameters at once; called before `taus`.

        It uses what earlier iterations left in the memories, never this iteration's gradients: a bucket is
        compressed before the gradients of the next one exist, and what is sent must not depend on buckets.

        Args:
            turn: the memories of the parameters whose turn it is.
            iteration: as for `taus`.
            memories: of all parameters; may be changed.
        """

    def turn(self, before: float, memories: Mapping[str, M]) -> None:
        """Adapts memories from another target density (`Settings.aimed_at`).

        Args:
            before: that density.
            memories: of all parameters; may be changed.
        """


class Fixed(ThresholdPolicy[Memory]):
    """The same tau always."""

    def __init__(self, value: float) -> None:
        """tau."""
        self.value = value

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        return [self.value] * len(parts)


def policy_of(tau: float | Policy, method: ThresholdedMethod) -> ThresholdPolicy[Any]:
    """What decides the thresholds that a method's field describes.

    Raises:
        ValueError: the address of the policy's work leads to none.
    """
    if not isinstance(tau, Policy):
        return Fixed(as_tau(tau))
    policy: ThresholdPolicy[Any] = implementation_of(type(tau), "decides", ThresholdPolicy)(tau, method)
    return policy


def as_tau(tau: float) -> float:
    """The nearest number that messages can carry as tau, a float32; 1 for a NaN or an infinity."""
    if not math.isfinite(tau):
        return 1.0
    nearest: float = _FLOAT32.unpack(_FLOAT32.pack(min(max(tau, SMALLEST_TAU), LARGEST_TAU)))[0]
    return nearest


def with_magnitudes(parts: Sequence[Part], wanted: Sequence[bool], ops: Ops) -> list[Part]:
    """Some parameters; those that are wanted with a sample of their magnitudes. Waits once, for all."""
    looked = [part for part, each in zip(parts, wanted, strict=True) if each]
    readback, sizes = Readback(ops), [min(SAMPLE, part.elements) for part in looked]
    samples = ops.samples([(part.residual, part.gradient) for part in looked], sizes, readback)
    readback.fetch()
    magnitudes = iter([np.abs(each[np.isfinite(each)]) for each in samples()])
    return [
        replace(part, magnitudes=next(magnitudes)) if each else part
        for part, each in zip(parts, wanted, strict=True)
    ]


def magnitudes_of(part: Part) -> NDArray[np.float32]:
    """float32 [SAMPLE at most], the finite ones among a sample of magnitudes of residual + gradient."""
    assert part.magnitudes is not None, "needs_sample must say that they are wanted"
    return part.magnitudes
