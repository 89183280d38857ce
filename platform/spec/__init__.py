"""The spec: everything that defines a run, as one tree of models (`run`), and how a user's text becomes one.

`overrides` turns the environment and the command line into trees of fields, and `yaml_file` a file; `reading`
merges them. `explaining` says what is wrong with them. `fields` knows every field by its dotted name, for
`--help` and for messages.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import RunSpec

__all__ = ["COMMAND_LINE", "RunSpec", "SpecError", "refusal"]


COMMAND_LINE = "command line"
"""The source of what is wrong there."""


class SpecError(ValueError):
    """A spec that cannot run; the message has a line for each field that is wrong."""

    def __init__(self, source: str, *problems: str, sources: Sequence[str] = ()) -> None:
        """Takes what is wrong: a line for each field.

        `source` is the file's name, or where else it comes from; `sources` that of each line, if they differ.
        """
        self.source, self.problems = source, list(problems)
        self.sources = list(sources) or [source] * len(self.problems)
        lines = zip(self.sources, self.problems, strict=True)
        super().__init__("\n".join(f"{where}: {problem}" for where, problem in lines))


def refusal(problem: str) -> SpecError:
    """An error of the command line."""
    return SpecError(COMMAND_LINE, problem)


def __getattr__(name: str) -> Any:
    """Imports the models when they are asked for: commands that read no spec should not wait for them."""
    if name != "RunSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .run import RunSpec  # noqa: PLC0415

    return RunSpec
