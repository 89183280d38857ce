"""The spec: everything that defines a run, as one tree of models (`run`), and how a user's text becomes one.

`overrides` turns the environment and the command line into trees of fields, and `yaml_file` a file; `reading`
merges them. `explaining` says what is wrong with them. `fields` knows every field by its dotted name, for
`--help` and for messages.
"""

from typing import TYPE_CHECKING, Any

from .errors import COMMAND_LINE, SpecError

if TYPE_CHECKING:
    from .run import RunSpec

__all__ = ["COMMAND_LINE", "RunSpec", "SpecError"]


def __getattr__(name: str) -> Any:
    """Imports the models when they are asked for: commands that read no spec should not wait for them."""
    if name != "RunSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .run import RunSpec  # noqa: PLC0415

    return RunSpec
