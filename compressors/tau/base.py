"""The interface of threshold policies: their decisions, and their memory of a parameter."""

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
from ..ops.cpu.ranking import magnitude_at, rank_at
from ..ops.interface import Batch, Ops
from ..ops.readback import Readback

ALL = ""
"""The key of a memory that all parameters share; no parameter has this name."""
SAMPLE = 2**14
"""Elements of a sample of a parameter, at most."""
_FLOAT32 = struct.Struct("f")


@dataclass(slots=True)
class PolicyMemory:
    """Base of the records that policies keep of a parameter.

    Fields are numbers, lists of numbers, or None. All have a default.
    """

    def plain(self) -> dict[str, Any]:
        """Its fields by name, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The reverse of `plain`; ValueError if a field is missing, unknown, or no number."""
        names = [field.name for field in fields(cls)]
        if missing := sorted(set(names) - set(plain)):
            raise ValueError(f"without {', '.join(missing)}")
        if unknown := sorted(set(map(str, plain)) - set(names)):
            raise ValueError(f"with {', '.join(unknown)}, which is unknown")
        return cls(**{name: _number(name, plain[name]) for name in names})


def _number(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_number(name, item) for item in value]
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{name} = {value!r} is not a number")
    return value


M = TypeVar("M", bound=PolicyMemory)


class ThresholdPolicy(ABC, Generic[M]):
    """Decides taus; automatic policies also follow how much they led to.

    A call is about several parameters, mostly those of a bucket: in most iterations the work for a parameter
    is less than a call. Which parameters share a call, and in which order, must not change the result: DDP
    rebuilds its buckets.
    """

    together: ClassVar[bool] = False
    """Whether all parameters share one memory, that of ALL."""
    memory: ClassVar[type[PolicyMemory]] = PolicyMemory
    """The class of its memory of a parameter."""

    def __init__(self, config: Any, method: Any) -> None:
        self.config, self.method = config, method

    def memory_of(self, name: str) -> type[PolicyMemory]:
        """The class of its memory of the parameter of that name."""
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
        """Whether `taus` needs a sample of a part's magnitudes."""
        return False

    def need_samples(self, parts: Sequence[Part], iteration: int, memories: Sequence[M]) -> Sequence[bool]:
        """`needs_sample` of some parameters."""
        pairs = zip(parts, memories, strict=True)
        return [self.needs_sample(part, iteration, memory) for part, memory in pairs]

    def shares(self, iteration: int, memories: Sequence[M]) -> Sequence[float] | None:
        """The shares of samples whose smallest magnitudes are all that `taus` needs; None: it needs more."""
        return None

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[M]) -> None:
        """Records how many elements of parameters, none held back, were sent with the last tau."""

    def decide(self, due: Sequence[M], iteration: int, memories: Mapping[str, M]) -> None:
        """Makes joint decisions for all parameters; called before `taus`, of those whose memories are `due`.

        It uses what earlier iterations left in the memories, never this iteration's gradients: a bucket is
        compressed before the gradients of the next one exist, and what is sent must not depend on buckets.
        """

    def retarget(self, before: float, memories: Mapping[str, M]) -> None:
        """Adapts the memories of all parameters from another target density (`Settings.aimed_at`)."""


class Fixed(ThresholdPolicy[PolicyMemory]):
    """The same tau always."""

    def __init__(self, value: float) -> None:
        self.value = value

    def need_samples(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]
    ) -> list[bool]:
        return [False] * len(parts)

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]) -> list[float]:
        return [self.value] * len(parts)


def policy_of(tau: float | Policy, method: ThresholdedMethod) -> ThresholdPolicy[Any]:
    """The policy of a method's field `tau`; ValueError if it cannot be imported or created."""
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


def magnitudes_of(part: Part) -> NDArray[np.float32]:
    """float32 [SAMPLE at most], the finite ones among a sample of magnitudes of residual + gradient."""
    assert part.magnitudes is not None, "needs_sample must say that they are wanted"
    return part.magnitudes


# Samples of the magnitudes of parameters


def with_magnitudes(
    parts: Sequence[Part],
    wanted: Sequence[bool],
    batch: Batch,
    ops: Ops,
    shares: Sequence[float] | None = None,
) -> list[Part]:
    """The parameters of a batch, the wanted ones with a sample of their magnitudes.

    With shares, only with the magnitude that a share of the sample reaches (`Part.reached`). Waits once for
    all; twice with shares if a sample is not finite.
    """
    numbers = np.flatnonzero(np.array(wanted, np.bool_))
    with_samples = list(parts)
    if shares is not None and numbers.size:
        sampled = batch.select(numbers)
        counts = np.minimum(sampled.sizes, SAMPLE).tolist()
        pairs = zip(numbers.tolist(), counts, strict=True)
        ranks = [rank_at(shares[number], count) for number, count in pairs]
        reached, broken = ops.ranked_samples(sampled, counts, ranks)
        for number, magnitude in zip(numbers.tolist(), reached.tolist(), strict=True):
            with_samples[number] = replace(parts[number], reached=magnitude)
        numbers = numbers[broken]
    if numbers.size:
        readback, sampled = Readback(ops), batch.select(numbers)
        samples = ops.samples(sampled, np.minimum(sampled.sizes, SAMPLE).tolist(), readback)
        readback.fetch()
        for number, sample in zip(numbers.tolist(), samples(), strict=True):
            with_samples[number] = replace(parts[number], magnitudes=np.abs(sample[np.isfinite(sample)]))
    return with_samples


def reached_by(part: Part, share: float) -> float:
    """What a share of a part's sample reaches, between the smallest and the largest tau."""
    if part.reached is not None:
        return as_tau(part.reached)
    return as_tau(float(magnitude_at(magnitudes_of(part), share)))
