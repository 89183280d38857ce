"""The spec: everything that defines a run, as one tree of models (`run`), and how a user's text becomes one.

`overrides` makes trees of fields of the environment and the command line, `yaml_file` of a file; `reading`
lays them over one another. `explaining` says what is wrong with them. `fields` knows every field by its
dotted name, for `--help` and for messages.
"""

from .errors import COMMAND_LINE, SpecError
from .run import RunSpec

__all__ = ["COMMAND_LINE", "RunSpec", "SpecError"]
