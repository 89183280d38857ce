"""Who trains, and with how many."""

from typing import Literal

from pydantic import Field

from ..config import Config


class WorkersConfig(Config):
    """Who trains."""

    count: int = Field(default=2, ge=1)
    """How many workers; each is a process with a replica of the model, unless sync.mode is simulated."""
    cpus: float = Field(default=1, gt=0)
    """CPUs that Ray reserves for a worker; its torch and numba threads follow (at least one)."""
    device: Literal["cpu", "cuda"] = "cpu"
    max_restarts: int = Field(default=0, ge=0)
    """How often the run may go on from its last checkpoint after a worker died."""
    min_count: int | None = Field(default=None, ge=1)
    """The fewest workers to go on with after a restart, where the cluster has no place for all; with more
    room their number grows again, to `count` at most. Needs max_restarts and on_resize: merge. Without it
    the run waits until there is room for all."""
    on_resize: Literal["refuse", "merge"] = "refuse"
    """With another number of workers than before (--resume with another workers.count, or min_count):
    whether the workers take over what the former ones have not sent yet. In the mode hybrid they do in any
    case."""
