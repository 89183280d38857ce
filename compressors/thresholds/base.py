"""The interface of threshold policies: fields, decisions by them, and the memory of a parameter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, Union

from pydantic import BeforeValidator, Discriminator, Tag

from ..fields import POLICIES, Settings, Tau, expand
from ..ops.interface import ThresholdRule
from ..ops.parts import Part
from .samples import as_tau

ALL = ""
"""The key of a memory that all parameters share; no parameter has this name."""


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


class Sender(Protocol):
    """What a policy may know of the method whose thresholds it decides."""

    @property
    def sends(self) -> ThresholdRule:
        """How an element is sent."""

    @property
    def value_bits(self) -> float:
        """About what an element sent takes, besides its position."""


class Policy(Settings):
    """A threshold policy: its fields, `kind` among them, and how it decides taus.

    A call is about several parameters, mostly those of a bucket: in most iterations the work for a parameter
    is less than a call. Which parameters share a call, and in which order, must not change the result: DDP
    rebuilds its buckets. What a policy remembers is in memories, never in itself.
    """

    kind: str
    by_itself: ClassVar[bool] = False
    """Whether it decides for each parameter separately, so that `layers` may use it for some of them: it
    makes no joint decision, and has no memory of all parameters together."""
    together: ClassVar[bool] = False
    """Whether all parameters share one memory, that of ALL."""
    decides_taus: ClassVar[bool] = True
    """Whether `taus` are thresholds; otherwise they are what a method selects by."""
    memory: ClassVar[type[PolicyMemory]] = PolicyMemory
    """The class of its memory of a parameter."""

    def memory_of(self, name: str) -> type[PolicyMemory]:
        """The class of its memory of the parameter of that name."""
        return self.memory

    @abstractmethod
    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Any], method: Sender
    ) -> list[float]:
        """The thresholds for some parameters in one iteration.

        Args:
            parts: the parameters; a residual does not hold the gradient yet. For one that `needs_sample`,
                the method has taken it by now (`sparse.py`): it has `magnitudes_of` it, or what it reached.
            iteration: steps (or exchanges of local steps) before this one, over the whole run.
            memories: theirs, in the same order; may be changed.
            method: what sends the elements that reach them.

        Returns:
            SMALLEST_TAU to LARGEST_TAU, each a float32's value (`samples.as_tau`).
        """

    def needs_sample(self, part: Part, iteration: int, memory: Any) -> bool:
        """Whether `taus` needs a sample of a part's magnitudes."""
        return False

    def need_samples(self, parts: Sequence[Part], iteration: int, memories: Sequence[Any]) -> Sequence[bool]:
        """`needs_sample` of some parameters."""
        pairs = zip(parts, memories, strict=True)
        return [self.needs_sample(part, iteration, memory) for part, memory in pairs]

    def shares(self, iteration: int, memories: Sequence[Any]) -> Sequence[float] | None:
        """The shares of samples whose smallest magnitudes are all that `taus` needs; None: it needs more."""
        return None

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Any]
    ) -> None:
        """Records how many elements of parameters, none held back, were sent with the last tau."""

    def decide(self, due: Sequence[Any], iteration: int, memories: Mapping[str, Any], method: Sender) -> None:
        """Makes joint decisions for all parameters; called before `taus`, of those whose memories are `due`.

        It uses what earlier iterations left in the memories, never this iteration's gradients: a bucket is
        compressed before the gradients of the next one exist, and what is sent must not depend on buckets.
        """


# A number in place of a policy


class FixedTau(Policy):
    """The same tau always: what a number in place of a policy stands for."""

    by_itself = True

    kind: Literal["fixed"] = "fixed"
    tau: float

    def need_samples(self, parts: Sequence[Part], iteration: int, memories: Sequence[Any]) -> list[bool]:
        return [False] * len(parts)

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Any], method: Sender
    ) -> list[float]:
        return [self.tau] * len(parts)


@lru_cache(256)
def _fixed(tau: float) -> FixedTau:
    return FixedTau(tau=as_tau(tau))


def policy_of(tau: float | Policy) -> Policy:
    """The policy of a field that takes a number or a policy."""
    return tau if isinstance(tau, Policy) else _fixed(tau)


def threshold_of(policies: Mapping[str, Any]) -> Any:
    """The type of a field that takes a number, one of these policies (by kind), or a registered one."""
    tagged = [Annotated[policy, Tag(kind)] for kind, policy in policies.items()]
    union: Any = Union[(Annotated[Tau, Tag("number")], *tagged)]
    read = POLICIES.extended(Annotated[union, Discriminator(_kind)])
    return Annotated[read, BeforeValidator(lambda value: expand(value, POLICIES))]


def _kind(value: Any) -> Any:
    """The tag of a value: number, or the kind of a policy."""
    if isinstance(value, dict):
        return value.get("kind")
    return getattr(value, "kind", "number")
