"""The section `workers` of a spec."""

from typing import Literal

from pydantic import Field

from ..config import Config


class WorkersConfig(Config):
    """The workers."""

    count: int = Field(default=2, ge=1)
    """Number of workers. Each is a process with a replica of the model, unless sync.mode is simulated."""
    cpus: float = Field(default=1, gt=0)
    """CPUs that Ray reserves for a worker. It uses as many torch and numba threads (at least one)."""
    device: Literal["cpu", "cuda"] = "cpu"
    max_restarts: int = Field(default=0, ge=0)
    """How often the run may continue from its last checkpoint after a worker has died."""
    min_count: int | None = Field(default=None, ge=1)
    """The smallest number of workers to continue with after a restart, if the cluster has no room for all.
    When there is more room, the number grows again, up to `count`. Needs max_restarts and on_resize: merge.
    Without this field, the run waits until there is room for all."""
    on_resize: Literal["refuse", "merge"] = "refuse"
    """With another number of workers than before (--resume with another workers.count, or min_count): whether
    the workers take over the residuals of the former ones, which are gradients not sent yet. The mode hybrid
    always does."""
