"""Every rule, quantizer, policy and codec by its name: the built-in ones, and those of installed packages.

A name leads to a class, `module:Class`, which is imported when it is first asked for. Ours are listed here
and nowhere else. Those of other packages come through entry points: their names are known without importing
anything, and what an entry point leads to is checked before it is used.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union

from pydantic import Discriminator, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator

_ROOM = __name__.removesuffix(".method.registry")


AS_IT_IS: Any = SerializeAsAny
"""For types that take others' models besides: they are written down by their own fields."""


class Family(Mapping[str, Any]):
    """Classes of one purpose, by name, ours before those of others."""

    def __init__(self, what: str, group: str, base: str, ours: Mapping[str, str]) -> None:
        """Prepares; nothing is imported.

        Args:
            what: one of them is called so.
            group: of the entry points of others.
            base: `module:Class`, what others derive from, in this room.
            ours: by name `module:Class`, in this room.
        """
        self.what, self.group = what, group
        self._base, self._homes = base, ours
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The class of that name.

        Raises:
            KeyError: there is none.
            ValueError: it is another package's, and cannot be loaded or is not what it must be.
        """
        if name not in self._loaded:
            home = self._homes.get(name)
            self._loaded[name] = _ours(home) if home else self._checked(self.others[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._homes
        yield from self.others

    def __len__(self) -> int:
        return len(self._homes) + len(self.others)

    def __contains__(self, name: object) -> bool:
        return name in self._homes or name in self.others

    @property
    def our_names(self) -> tuple[str, ...]:
        """Of our own."""
        return tuple(self._homes)

    def ours(self, but: str = "") -> dict[str, Any]:
        """Our own classes, without the one of a name."""
        return {name: self[name] for name in self._homes if name != but}

    @cached_property
    def others(self) -> dict[str, EntryPoint]:
        """What other packages bring, by name; none of it is imported.

        Raises:
            ValueError: two have one name, or one has a name of ours.
        """
        found: dict[str, EntryPoint] = {}
        for entry in sorted(entry_points(group=self.group), key=lambda each: (each.name, _package(each))):
            before = found.get(entry.name)
            if before is not None and (before.value, _package(before)) == (entry.value, _package(entry)):
                continue  # one package that is found in two places
            if entry.name in self._homes or before is not None:
                whose = "taugrad itself has" if before is None else f"{_package(before)} has"
                raise ValueError(
                    f"{self.what} {entry.name} of {_package(entry)}: {whose} one of that name; "
                    "uninstall one of them"
                )
            found[entry.name] = entry
        return found

    def _checked(self, entry: EntryPoint) -> Any:
        """What an entry point leads to."""
        said = f"{self.what} {entry.name} of {_package(entry)}"
        try:
            found = entry.load()
        except Exception as error:  # whatever another package's code does when it is imported
            raise ValueError(f"{said} cannot be loaded: {type(error).__name__}: {error}") from error
        base: Any = _ours(self._base)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{said}: {entry.value} is not a subclass of {base.__module__}.{base.__name__}")
        checked: Any = found
        if problem := _lacking(found) or checked.problem(entry.name):
            raise ValueError(f"{said}: {problem}")
        for role in _WORK:
            if any(role in vars(each).get("__annotations__", ()) for each in found.__mro__):
                try:
                    work_at(found, role)
                except ValueError as error:
                    raise ValueError(f"{said}: {error}") from error
        return checked

    def installed(self) -> list[str]:
        """What other packages bring, each in a few words; raises ValueError as `others` does."""
        return [f"{self.what} {name} of {_package(entry)}" for name, entry in self.others.items()]

    def choice(self) -> Any:
        """The type of a field that takes one of the family, by its `kind`."""
        union: Any = Union[tuple(self.ours().values())]  # noqa: UP007 (no other way for a list)
        return self.extended(Annotated[union, Discriminator("kind")])

    def extended(self, ours: Any) -> Any:
        """A type that takes ours, and besides those of others, which are read by their own models."""
        return Annotated[AS_IT_IS[ours], WrapValidator(self._read)]

    def _read(self, value: Any, ours: ValidatorFunctionWrapHandler) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        if not isinstance(kind, str) or kind in self._homes or kind not in self.others:
            return ours(value)
        return self[kind].model_validate(value)


_WORK = {
    "rule": "rules.base:Rule",
    "quantizes": "quantizers.base:Quantization",
    "decides": "tau.base:ThresholdPolicy",
}
"""What classes of fields name by its address, and what that derives from."""


def work_at(fields: type, role: str) -> Any:
    """The class that does the work which a class of fields names.

    Args:
        fields: a subclass of `Settings`.
        role: the name of the class variable that holds the address, such as `rule`.

    Raises:
        ValueError: there is no address, or not what there must be.
    """
    address = getattr(fields, role, None)
    said = f"{fields.__name__}.{role} = {address!r}"
    base = _ours(_WORK[role])
    if address is None:
        raise ValueError(f"{said}: must be the address of a {base.__module__}.{base.__name__}")
    module, _, name = str(address).partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever another package's code does when it is imported
        raise ValueError(f"{said}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{said}: is not a subclass of {base.__module__}.{base.__name__}")
    if lacking := _lacking(found):
        raise ValueError(f"{said}: {lacking}")
    return found


def _lacking(found: type) -> str:
    """What keeps a class from being made; empty if nothing does."""
    lacking = sorted(getattr(found, "__abstractmethods__", ()))
    return f"{found.__name__} lacks {', '.join(lacking)}" if lacking else ""


def _ours(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(f"{_ROOM}.{module}"), name)


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"the package {entry.dist.name}"


RULES = Family(
    "rule",
    "taugrad.rules",
    "method.methods:CompressedMethod",
    {
        "none": "method.methods:NoCompression",
        "powersgd": "method.methods:PowerSGD",
        "wgt": "method.sparse:WholeGradient",
        "bgt": "method.sparse:BinarizedGradient",
        "qgt": "method.sparse:QuantizedGradient",
        "strom": "method.sparse:Strom",
        "topk": "method.sparse:TopK",
        "chunked_topk": "method.sparse:ChunkedTopK",
        "linear": "method.dense:Linear",
        "quantile": "method.dense:Quantile",
        "entropy": "method.dense:Entropy",
        "fp16": "method.dense:Float16",
        "bf16": "method.dense:BFloat16",
        "fp8": "method.dense:Float8",
    },
)
"""Heads of a chain."""

QUANTIZERS = Family(
    "quantizer",
    "taugrad.quantizers",
    "method.quantizers:QuantizerLink",
    {
        "linear": "method.quantizers:LinearLink",
        "quantile": "method.quantizers:QuantileLink",
        "entropy": "method.quantizers:EntropyLink",
        "fp16": "method.quantizers:Float16Link",
        "bf16": "method.quantizers:BFloat16Link",
        "fp8": "method.quantizers:Float8Link",
    },
)
"""Links after a sparse rule."""

POLICIES = Family(
    "policy",
    "taugrad.policies",
    "method.policies:Policy",
    {
        "schedule": "method.policies:ScheduledTau",
        "density": "method.policies:DensityTau",
        "sidco": "method.policies:FittedTau",
        "dl4j": "method.policies:Dl4jTau",
        "allocate": "method.policies:AllocatedTau",
        "law": "method.policies:LawTau",
        "layers": "method.policies:LayeredTau",
    },
)
"""The threshold policies."""

CODECS = Family(
    "codec",
    "taugrad.codecs",
    "wire.codec:Codec",
    {
        "raw": "wire.positions:Raw",
        "packed32": "wire.positions:Packed32",
        "bitmap": "wire.positions:Bitmap",
        "golomb_rice": "wire.positions:GolombRice",
        "chunked": "wire.positions:Chunked",
    },
)
"""The codecs of positions."""

FAMILIES = (RULES, QUANTIZERS, POLICIES, CODECS)
