"""The section workers of a spec, and which runs can continue with another number of them."""

from typing import Literal

from pydantic import Field

from taugrad.compressors.methods import Method

from ..config import Config
from .synchronization import SyncConfig, real


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


def why_no_other_number(sync: SyncConfig, method: Method, workers: WorkersConfig) -> str | None:
    """Why a run may not load the checkpoint of another number of workers; None if it may."""
    mode = real(sync)
    if mode.resizing == "cut":
        return None
    if mode.resizing == "never":
        return (
            f"sync.mode = {mode.mode}: messages on their way have no worker any more; use as many workers as "
            "before"
        )
    if method.brings_exchange:
        kind = f"compressor.kind = {method.kind}"
        return f"{kind}: torch keeps its errors by worker; use as many workers as before"
    if workers.on_resize == "refuse":
        return (
            "workers.on_resize = refuse: each worker's residual belongs to its part of the data; with "
            "--workers.on_resize merge the workers take over what the former ones have not sent"
        )
    return None


def check_elastic(sync: SyncConfig, method: Method, workers: WorkersConfig) -> None:
    """Refuses a `workers.min_count` that cannot be: ValueError names the fields and what would do."""
    if workers.min_count is None:
        return
    asked = f"workers.min_count = {workers.min_count}"
    if workers.min_count > workers.count:
        raise ValueError(f"{asked}: must be at most workers.count = {workers.count}")
    if sync.is_simulated:
        raise ValueError(f"{asked} with sync.mode = simulated: one process has all workers; leave it out")
    if not workers.max_restarts:
        raise ValueError(
            f"{asked} with workers.max_restarts = 0: a lost worker ends the run; use max_restarts: 1 or more"
        )
    reason = why_no_other_number(sync, method, workers)
    if reason is not None:
        raise ValueError(f"{asked}: {reason}")
