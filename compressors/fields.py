"""The base classes of all configurations, and the families of classes that a chain's names stand for."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from .ops.interface import LARGEST_TAU, SMALLEST_TAU


def _fits_float32(tau: float) -> float:
    span = f"({SMALLEST_TAU:.2g} to {LARGEST_TAU:.2g})"
    if not tau > 0:
        raise ValueError(f"must be greater than 0 {span}")
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ValueError(f"is not a threshold that float32 can hold {span}")
    return tau


Tau = Annotated[float, AfterValidator(_fits_float32)]
Share = Annotated[float, Field(gt=0, le=1)]
"""A part of all elements, such as 0.01."""


class Settings(BaseModel):
    """A group of fields, frozen, strict about names, described by its docstrings; and its work."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    first_field: ClassVar[str] = ""
    """The field that needs no name in a chain; empty if there is none."""
    needs: ClassVar[Mapping[str, str]] = {}
    """Class variables that a class must have to be registered, and what they are."""

    def __hash__(self) -> int:
        # A field may be a dictionary, which has no hash. Equal models have one hash: -0.0 equals 0.0.
        return hash((type(self), self.model_dump_json().replace("-0.0", "0.0")))

    @classmethod
    def line_name(cls) -> str:
        """The name in a chain: the kind, or that of the class if it has no kind."""
        kind = cls.model_fields.get("kind")
        return cls.__name__.lower() if kind is None else str(kind.default)

    @classmethod
    def registration_error(cls) -> str:
        """The reason why the class cannot be registered; empty if there is none."""
        if missing := sorted(cls.__abstractmethods__):
            return f"{cls.__name__} lacks {', '.join(missing)}"
        if "kind" not in cls.model_fields or not isinstance(cls.model_fields["kind"].default, str):
            return f'{cls.__name__} needs a field such as kind: Literal["mine"] = "mine"'
        if cls.first_field and cls.first_field not in cls.model_fields:
            return f"{cls.__name__}.first_field = {cls.first_field} is none of its fields"
        needs = [need for kind in reversed(cls.__mro__) for need in getattr(kind, "needs", {}).items()]
        absent = [f"{cls.__name__} needs {name}, {what}" for name, what in needs if not hasattr(cls, name)]
        return next(iter(absent), "")


class Group(Settings):
    """Fields of one option, such as those of `clip(5, to=3)`; the field has the name of the class."""


_AS_IT_IS: Any = SerializeAsAny
"""For types that also take registered models: these are serialized by their own fields."""


class Family(dict[str, type[Any]]):
    """Classes of one kind by name, built-in ones first.

    Attributes:
        what: what one of them is called.
        builtin: the names of the built-in ones.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.builtin = what, tuple[str, ...]()

    @property
    def registered(self) -> dict[str, type[Any]]:
        """Those of other packages (`methods.register`)."""
        return {name: kind for name, kind in self.items() if name not in self.builtin}

    def add_builtin(self, *classes: type[Settings]) -> None:
        """Adds classes of this package."""
        self.update({kind.line_name(): kind for kind in classes})
        self.builtin = tuple(self)

    def add(self, added: type[Settings]) -> None:
        """Adds a class of another package; ValueError if its name is taken, or it lacks something."""
        name = added.line_name()
        title = f"{self.what} {name} ({_address(added)})"
        if name in self.builtin:
            raise ValueError(f"{title}: taugrad has one of that name")
        before = self.get(name)
        if before is not None and _address(before) != _address(added):
            raise ValueError(f"{title}: {_address(before)} has that name")
        if error := added.registration_error():
            raise ValueError(f"{title}: {error}")
        self[name] = added

    def union(self) -> Any:
        """The type of a field that takes one of them, by its `kind`."""
        builtin: Any = Union[tuple(self[name] for name in self.builtin)]  # noqa: UP007
        return self.extended(Annotated[builtin, Discriminator("kind")])

    def extended(self, builtin: Any) -> Any:
        """The type of a field that also takes registered classes."""
        return Annotated[_AS_IT_IS[builtin], WrapValidator(self._read)]

    def _read(self, value: Any, builtin: ValidatorFunctionWrapHandler) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        registered = self.registered.get(kind) if isinstance(kind, str) else None
        return builtin(value) if registered is None else registered.model_validate(value)


RULES = Family("rule")
"""Heads of a chain, listed in `methods.parsing`."""
QUANTIZERS = Family("quantizer")
"""Links after a sparse rule, listed in `methods.sparse`."""
POLICIES = Family("policy")
"""The threshold policies, listed in `thresholds`."""
FAMILIES = (RULES, QUANTIZERS, POLICIES)


def _address(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
