"""Finding an object by its `package.module:name`."""

from importlib import import_module
from typing import Any

from .user_code import UserCodeError, told


class ImportPathError(UserCodeError):
    """A `package.module:function` that leads to nothing that can be called."""


def import_object(path: str) -> Any:
    """Imports what a `package.module:function` names.

    Args:
        path: Where to look; the part behind the colon may have dots (`module:Class.method`).

    Returns:
        The function, class or other callable; its signature is not checked.

    Raises:
        ImportPathError: There is no such module or attribute, the module could not be imported, or the
            object cannot be called.
    """
    module_name, colon, attributes = path.partition(":")
    if not (colon and all(module_name.split(".")) and all(attributes.split("."))):
        raise ImportPathError(path, "expected the form package.module:function")
    try:
        found: Any = import_module(module_name)
    except ImportError as error:
        raise ImportPathError(path, _import_failure(module_name, error)) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and may be a script
        raise ImportPathError(path, f"importing {module_name} failed: {told(error)}") from error
    reached = module_name
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            raise ImportPathError(path, f"{reached} has no attribute {attribute!r}") from error
        reached += f".{attribute}"
    if not callable(found):
        raise ImportPathError(path, f"{reached} is {type(found).__name__}, which cannot be called")
    return found


def _import_failure(module_name: str, error: ImportError) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module_name}.".startswith(f"{missing}."):
        hint = "; leave out .py" if module_name.endswith(".py") else ""
        return f"no module named {missing!r} in this folder or among installed packages{hint}"
    return f"importing {module_name} failed: {told(error)}"
