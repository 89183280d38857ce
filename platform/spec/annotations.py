"""What the annotations of fields say: what a field may be, and which plain types it holds."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel


def values_in(annotation: Any) -> Iterator[Any]:
    """What the values of a dictionary may be, where that is one."""
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        yield arguments[1]
    else:
        for argument in arguments:
            yield from values_in(argument)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may be, but for those in lists and dictionaries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) not in (list, dict, tuple):
        for argument in get_args(annotation):
            yield from models_in(argument)


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """What a union may be, or what is annotated."""
    arguments = get_args(annotation)
    return arguments[:1] if get_origin(annotation) is Annotated else arguments


def entered(annotations: Sequence[Any], *names: str) -> list[Any]:
    """What a field may be.

    Args:
        annotations: what holds it: a model, or what `entered` returned for the group around it.
        names: the field's name, after those of the groups that it lies in from there.

    Returns:
        Its annotation in each member of a union; none where there is no such field.
    """
    for part in names:
        models = (model for annotation in annotations for model in models_in(annotation))
        fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        annotations = fields or [values for annotation in annotations for values in values_in(annotation)]
    return list(annotations)


def held(annotations: Sequence[Any]) -> set[type]:
    """The plain types among annotations, in lists too; text and paths are str."""
    found = set[type]()
    for annotation in annotations:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            found |= {type(choice) for choice in arguments}
        elif arguments and origin is not dict:
            found |= held(arguments)
        elif isinstance(annotation, type) and not issubclass(annotation, BaseModel):
            found.add(str if issubclass(annotation, Path) else annotation)
    return found


def type_name(annotation: Any) -> str:
    """What a field holds, in a word: a type's name, or the choices; without None and limits."""
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    origin = get_origin(annotation)
    if origin in (list, dict, tuple):
        return "list" if origin is tuple else str(origin.__name__)
    if isinstance(annotation, type):
        return "" if issubclass(annotation, BaseModel | NoneType) else annotation.__name__
    named = [type_name(member) for member in alternatives(annotation)]
    return "|".join(name for name in dict.fromkeys(named) if name)
