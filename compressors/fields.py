"""The base classes of all configurations, the families of their classes, and how a chain writes them."""

import ast
import difflib
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Union, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    ValidationError,
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


_SHOWN = 100
"""Characters of a value in a message."""


def problem_line(error: ValidationError) -> str:
    """What pydantic refuses, in one line: each field that is wrong, dotted, its value, and what is valid."""
    return "; ".join(map(_problem, error.errors()))


def _problem(problem: Any) -> str:
    where = [str(part) for part in problem["loc"]]
    if where[-1:] == ["number"]:  # of a number or a policy
        where.pop()
    field, value = ".".join(where), problem["input"]
    said = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{field}: is missing"
    if problem["type"] == "extra_forbidden":
        known = next((family[where[-2]] for family in FAMILIES if where[-2:-1] and where[-2] in family), None)
        there = [name for name in known.model_fields if name != "kind"] if known else []
        return f"{field}: no such field" + f"; there are {', '.join(there)}" * bool(there)
    if not field or isinstance(value, dict | BaseModel):
        return f"{field}: {said}" if field else said
    shown = repr(value)
    return f"{field} = {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}: {said}"


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


# Names with fields in brackets, as in a chain, parsed and printed; nothing is evaluated

LONGEST = 10_000
"""Largest length of a chain in characters."""
Known = Mapping[str, type[Settings]]


def parse_expression(text: str) -> ast.expr | None:
    """The syntax tree of a chain; None if it cannot be parsed."""
    if len(text) > LONGEST:
        return None
    try:
        return ast.parse(" ".join(text.strip().splitlines()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def expand(value: Any, known: Known = POLICIES, *, bare: bool = False) -> Any:
    """`density(0.01)` as the dictionary that it stands for; anything else as it is.

    `known` has the field's classes by name. With `bare`, a name needs no brackets, and numbers are refused.

    Raises:
        ValueError: it is text, and neither a number nor one of those known.
    """
    if not isinstance(value, str) or (_is_number(value) and not bare):
        return value
    node = parse_expression(f"{value}()" if bare and "(" not in value else value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        what = "not a quantizer" if bare else "not a number, and not a policy"
        raise ValueError(f"{what} with its fields in brackets: {', '.join(known)}")
    return read_call(node, known)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_known(name: str, known: Collection[str]) -> str:
    """The name, if it is one of those known; a ValueError names the choice."""
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{name} is unknown: choose {', '.join(known)}{meant}")
    return name


def groups() -> dict[str, type[Settings]]:
    """Groups of fields, which have no kinds, by their names in a line."""
    classes = sorted(Group.__subclasses__(), key=lambda group: group.__name__)
    return {group.line_name(): group for group in classes}


def read_call(node: ast.Call, known: Known) -> dict[str, Any]:
    """`kind(first, field=value)` as a dictionary.

    Raises:
        ValueError: the kind is unknown, a field has no name or stands twice, or a value is no literal.
    """
    assert isinstance(node.func, ast.Name)
    kind = require_known(node.func.id, known)
    model = known[kind]
    fields: dict[str, Any] = {} if issubclass(model, Group) else {"kind": kind}
    if len(node.args) > 1:
        raise ValueError(f"{kind} takes one field without a name, the others as name=value")
    for argument in node.args:
        if not model.first_field:
            raise ValueError(f"{kind} takes its fields as name=value")
        fields[model.first_field] = _value(argument, model, model.first_field)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{kind} takes its fields as name=value, not from **")
        if keyword.arg in fields:
            raise ValueError(f"{kind}: {keyword.arg} is given twice")
        fields[keyword.arg] = _value(keyword.value, model, keyword.arg)
    return fields


def _value(node: ast.expr, model: type[Settings], field: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name in groups() and name != field:
            raise ValueError(f"{name}(...) is a value of the field {name}, not of {field}")
        return read_call(node, _classes_of(model, field))
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_literal(key): _value(value, model, field) for key, value in pairs if key is not None}
    return _literal(node)


def _classes_of(model: type[Settings], field: str) -> Known:
    """The classes of a field, by name; all policies and groups if the field is of several or unknown."""
    info = model.model_fields.get(field)
    models = [] if info is None else list(_models(info.annotation))
    if len(models) == 1:
        return {models[0].line_name(): models[0]}
    return ChainMap[str, Any](groups(), POLICIES)


def _models(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(f"{ast.unparse(node)} is not a number, text, list or policy") from None


def line(config: Settings, quantize: Settings | None, codec: str, symbols: str) -> str:
    """A method, its quantizer and its codecs as a chain on one line, without fields of default values."""
    fields = type(config).model_fields
    links = [_call_text(config, exclude=("quantize", "codec", "symbols"))]
    default = fields["quantize"].default if "quantize" in fields else None
    if quantize is not None and quantize != default:
        links.append(_call_text(quantize))
    elif quantize is None and default is not None:
        links[0] = _with_field(links[0], "quantize=None")
    if codec != "auto":
        links.append(codec)
    if symbols == "raw" and codec == "auto" and "codec" in fields:
        links[0] = _with_field(links[0], "symbols='raw'")  # alone it would be read as the codec of positions
    elif symbols != "auto":
        links.append(symbols)
    return " | ".join(links)


def _with_field(call: str, field: str) -> str:
    return f"{call[:-1]}, {field})" if call.endswith(")") else f"{call}({field})"


def _call_text(model: Settings, exclude: Sequence[str] = ()) -> str:
    arguments = []
    fields = type(model).model_fields
    for name in sorted(
        fields, key=lambda name: name != model.first_field
    ):  # first, the others in their order
        info, value = fields[name], getattr(model, name)
        if name == "kind" or name in exclude or (value == info.default and str(value) != "-0.0"):
            continue
        arguments.append(f"{name}={_value_text(value)}")
    kind = model.line_name()
    return f"{kind}({', '.join(arguments)})" if arguments else kind


def _value_text(value: Any) -> str:
    if isinstance(value, Settings):
        text = _call_text(value)
        return text if text.endswith(")") else f"{text}()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value_text(item)}" for key, item in value.items()) + "}"
    short = f"{value:g}" if isinstance(value, float) else "-0"  # which would be read as the integer 0
    return short if short != "-0" and float(short) == value else repr(value)
