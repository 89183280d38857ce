"""The error for every wrong input."""

from collections.abc import Sequence

COMMAND_LINE = "command line"
"""The source of what is wrong there."""


class SpecError(ValueError):
    """A spec that cannot run; the message has a line for each field that is wrong."""

    def __init__(self, source: str, problems: Sequence[str], sources: Sequence[str] = ()) -> None:
        """Takes what is wrong.

        Args:
            source: the file's name, or where else it comes from.
            problems: a line for each field.
            sources: where each of them comes from, if not all do from `source`.
        """
        self.source, self.problems = source, list(problems)
        self.sources = list(sources) or [source] * len(self.problems)
        lines = zip(self.sources, self.problems, strict=True)
        super().__init__("\n".join(f"{where}: {problem}" for where, problem in lines))
