"""The spec: everything that defines a run, as one tree of models (`run`), and how a user's text becomes one.

`overrides` turns the environment and the command line into trees of fields, and `yaml_file` a file; `reading`
merges them. `explaining` says what is wrong with them. `fields` knows every field by its dotted name, for
`--help` and for messages.
"""

from .errors import COMMAND_LINE, SpecError
from .run import RunSpec

__all__ = ["COMMAND_LINE", "RunSpec", "SpecError"]
