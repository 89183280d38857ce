"""How a run ended, if MLflow could not be told: the last line of the file of undelivered metrics."""

import json
import time
from pathlib import Path
from typing import Literal, get_args

Status = Literal["FINISHED", "FAILED", "KILLED"]
UNDELIVERED = "undelivered-metrics.jsonl"
"""The file, in a run's folder. Each line is a metric."""
ENDED = "ended"
"""The line's first field; no metric has it."""


def end_line(run_id: str, status: Status) -> str:
    """The line that says how a run ended, just now."""
    return json.dumps({ENDED: status, "run": run_id, "time": time.time_ns() // 1_000_000}) + "\n"


def recorded_end(path: Path, run_id: str) -> tuple[Status, int] | None:
    """How the file says that a run ended.

    Returns:
        The state and its time in milliseconds since 1970. None if the file does not say it, because the
        command was killed or MLflow could be told.

    Raises:
        ValueError: the line is about another run, or does not say how a run ended.
    """
    text = path.read_text(encoding="utf-8")
    last = text.rstrip("\n").rpartition("\n")[2]
    if f'"{ENDED}"' not in last:
        return None
    try:
        end = json.loads(last)
        status, run, at = end[ENDED], end["run"], int(end["time"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}, last line: not the end of a run ({error})") from error
    if status not in get_args(Status):
        raise ValueError(
            f"{path}, last line: {status!r} is not a status; expected one of {', '.join(get_args(Status))}"
        )
    if run != run_id:
        raise ValueError(f"{path} is of run {run}, not of {run_id}")
    return status, at
