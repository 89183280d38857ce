"""Calls a user's own functions, and says in one line what went wrong in them."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from .places import enter_folder
from .terminal import short

TRACEBACK = "TAUGRAD_TRACEBACK"
"""The environment variable with which whole tracebacks are shown."""
_LONGEST = 200
"""Characters of an error's text; torch's can have thousands."""
_ROOT = Path(__file__).resolve().parent.parent
_NOT_OWN = (
    *(f"{_ROOT / room}/" for room in ("compressors", "platform", "search", "dashboards", "src/taugrad")),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Where code lies that users did not write: ours (theirs may stand beside it, in a clone), installed code."""


class UserCodeError(ValueError):
    """A user's function that cannot be used; the message is one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot use {path!r}: {reason}")
        self.path = path
        """`package.module:function`"""
        self.reason = reason

    def __reduce__(self) -> tuple[type["UserCodeError"], tuple[str, str]]:
        """Pickles by its two arguments, so that Ray can hand it from a worker to the driver."""
        return type(self), (self.path, self.reason)


class UserCodeRaised(RuntimeError):
    """What a user's code raised while it trained; the message is one line, with the place."""


@contextmanager
def placing_errors() -> Iterator[None]:
    """Raises `UserCodeRaised` for an error in a user's code, whose type another process may not know."""
    try:
        yield
    except UserCodeError:
        raise
    except Exception as error:
        if not _place(error):
            raise
        raise UserCodeRaised(told(error)) from error


def call(path: str, function: Callable[..., Any], arguments: Mapping[str, Any], contract: str) -> Any:
    """Calls a user's function, in the folder where the command was given; returns what it returned.

    The path is its `package.module:function`; the contract says what it must take and return. Raises
    UserCodeError: it takes other arguments, or it raised.
    """
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        signature = None
    if signature is not None:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            takes = f"{path.partition(':')[2]}{signature}"
            raise UserCodeError(
                path, f"{takes} cannot be called with {given}: {error}; {contract}"
            ) from error
    enter_folder()
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:  # whatever it raises
        raise UserCodeError(path, f"called with {given} it raised {told(error)}; {contract}") from error


def told(error: BaseException) -> str:
    """An error on one line: its type and text, and the line of the user's code that it came from."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({short(Path(error.filename or '?'))}:{error.lineno})"
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    where = _place(error)
    return f"{type(error).__name__}{': ' * bool(text)}{text}{f' ({where})' if where else ''}"


def _place(error: BaseException) -> str:
    """The innermost line of the user's own code that an error came through; "" if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{short(Path(frames[-1].filename))}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def _is_own(file: str) -> bool:
    path = Path(file).resolve()
    return (
        not file.startswith("<") and "site-packages" not in path.parts and not str(path).startswith(_NOT_OWN)
    )


def import_object(path: str) -> Any:
    """Imports the callable that a `package.module:function` names; its signature is not checked.

    The part behind the colon may have dots (`module:Class.method`). Raises UserCodeError: there is no such
    module or attribute, the module could not be imported, or the object cannot be called.
    """
    module_name, colon, attributes = path.partition(":")
    if not (colon and all(module_name.split(".")) and all(attributes.split("."))):
        raise UserCodeError(path, "expected the form package.module:function")
    try:
        value: Any = import_module(module_name)
    except ImportError as error:
        raise UserCodeError(path, _import_failure(module_name, error)) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and may be a script
        raise UserCodeError(path, f"importing {module_name} failed: {told(error)}") from error
    reached = module_name
    for attribute in attributes.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError as error:
            raise UserCodeError(path, f"{reached} has no attribute {attribute!r}") from error
        reached += f".{attribute}"
    if not callable(value):
        raise UserCodeError(path, f"{reached} is {type(value).__name__}, which cannot be called")
    return value


def _import_failure(module_name: str, error: ImportError) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module_name}.".startswith(f"{missing}."):
        hint = "; leave out .py" if module_name.endswith(".py") else ""
        return f"no module named {missing!r} in this folder or among installed packages{hint}"
    return f"importing {module_name} failed: {told(error)}"
