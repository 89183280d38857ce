"""The file of a journal: a head that says how far it is shipped, and a record a line.

Checkpoints and files for `taugrad deliver` have the same lines.
"""

import os
import time
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

UNDELIVERED = "undelivered-metrics.jsonl"
"""The file, in a run's folder, of the records that did not reach MLflow during the run."""
Status = Literal["FINISHED", "FAILED", "KILLED"]

BEGIN = 8
"""Where the records begin, behind how far they are shipped."""
LARGE = 2**26
"""A journal that is this long begins anew once all of it is shipped."""


class Record(BaseModel):
    """A line of the journal."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    time: int
    """Milliseconds since 1970."""
    step: int = 0
    metrics: dict[str, float] = {}
    tags: dict[str, str] = {}
    ended: Status | None = None
    """How the run ended, where MLflow could not be told: the last line of a file for `taugrad deliver`."""
    run: str = ""
    """Which one ended."""

    @classmethod
    def now(cls, **fields: Any) -> "Record":
        """What happens now."""
        return cls(time=time.time_ns() // 1_000_000, **fields)

    def to_line(self) -> str:
        """As text."""
        return self.model_dump_json(exclude_unset=True) + "\n"


def records_of(text: str, name: str) -> list[Record]:
    """The records of a file, whose name is for messages. Raises ValueError: a line is not a record."""
    records = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{name}, line {number}: not a record ({where} {first['msg']})") from error
    return records


def shipped(journal: int) -> int:
    """How far a journal, given by its file descriptor, is in MLflow."""
    return max(BEGIN, int.from_bytes(os.pread(journal, 8, 0), "little"))


def write_down(journal: int, position: int) -> None:
    """Says how far a journal is in MLflow; where a full disk does not take that, records are read again."""
    with suppress(OSError):
        os.pwrite(journal, position.to_bytes(8, "little"), 0)
