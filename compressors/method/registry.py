"""Rules, quantizers, threshold policies and codecs by name: the built-in ones, and registered ones."""

from importlib import import_module
from typing import Annotated, Any, Union

from pydantic import Discriminator, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator

AS_IT_IS: Any = SerializeAsAny
"""For types that also take registered models: these are serialized by their own fields."""


class Family(dict[str, Any]):
    """Classes of one kind by name, built-in ones first.

    Attributes:
        what: what one of them is called.
        builtin: the names of the built-in ones.
    """

    def __init__(self, what: str, *builtin: str) -> None:
        """Starts with the names of built-in classes that are defined elsewhere (`wire.positions`)."""
        super().__init__(dict.fromkeys(builtin))
        self.what, self.builtin = what, builtin

    @property
    def registered(self) -> dict[str, Any]:
        """Those of other packages (`registration.register`)."""
        return {name: kind for name, kind in self.items() if name not in self.builtin}

    def add_builtin(self, *classes: type) -> None:
        """Adds classes of this package."""
        self.update({_name_of(kind): kind for kind in classes})
        self.builtin = tuple(self)

    def add(self, added: type) -> None:
        """Adds a class of another package; ValueError if its name is taken, or it lacks something."""
        name = _name_of(added)
        said = f"{self.what} {name} ({_address(added)})"
        if name in self.builtin:
            raise ValueError(f"{said}: taugrad has one of that name")
        before = self.get(name)
        if before is not None and _address(before) != _address(added):
            raise ValueError(f"{said}: {_address(before)} has that name")
        if problem := abstract_methods(added) or added.problem():  # type: ignore[attr-defined]
            raise ValueError(f"{said}: {problem}")
        self[name] = added

    def union(self) -> Any:
        """The type of a field that takes one of them, by its `kind`."""
        builtin: Any = Union[tuple(self[name] for name in self.builtin)]  # noqa: UP007
        return self.extended(Annotated[builtin, Discriminator("kind")])

    def extended(self, builtin: Any) -> Any:
        """The type of a field that also takes registered classes."""
        return Annotated[AS_IT_IS[builtin], WrapValidator(self._read)]

    def _read(self, value: Any, builtin: ValidatorFunctionWrapHandler) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        registered = self.registered.get(kind) if isinstance(kind, str) else None
        return builtin(value) if registered is None else registered.model_validate(value)


RULES = Family("rule")
"""Heads of a chain."""
QUANTIZERS = Family("quantizer")
"""Links after a sparse rule."""
POLICIES = Family("policy")
"""The threshold policies."""
CODECS = Family("codec", "raw", "packed32", "bitmap", "golomb_rice", "chunked")
"""The codecs of positions."""

FAMILIES = (RULES, QUANTIZERS, POLICIES, CODECS)


def _name_of(kind: Any) -> str:
    return str(kind.line_name())


def _address(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def implementation_of(fields: type, attribute: str, base: type) -> Any:
    """The class that implements what a class of fields describes.

    Its class variable `attribute` holds the class, a subclass of `base`, or its address,
    `package.module:Class`, which is imported here, so that fields can be read without it.

    Raises:
        ValueError: there is none, or it cannot be imported or created.
    """
    implementation = getattr(fields, attribute, None)
    field = f"{fields.__name__}.{attribute} = {implementation!r}"
    if isinstance(implementation, str):
        module, _, name = implementation.partition(":")
        try:
            implementation = getattr(import_module(module), name)
        except Exception as error:  # whatever another package's code raises
            raise ValueError(f"{field}: cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(implementation, type) and issubclass(implementation, base)):
        raise ValueError(f"{field}: must be a subclass of {base.__module__}.{base.__name__}")
    if problem := abstract_methods(implementation):
        raise ValueError(f"{field}: {problem}")
    return implementation


def abstract_methods(kind: type) -> str:
    """The abstract methods of a class, in a sentence; empty if there are none."""
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    return f"{kind.__name__} lacks {', '.join(missing)}" if missing else ""
