"""A run that goes on with another number of workers."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from taugrad.compressors.config import PowerSGD

from ..synchronization.config import AsyncSync, HybridSync, real
from .errors import COMMAND_LINE, SpecError
from .explaining import explain
from .run import RunSpec

CHANGEABLE = ("count", "cpus", "on_resize")
"""What `--resume` may change of `workers`."""


def with_workers(spec: RunSpec, asked: str, changes: Mapping[str, str]) -> RunSpec:
    """The same run with other workers; whole batches stay what they are.

    Args:
        spec: the run's own.
        asked: the command's words, for messages.
        changes: fields of `workers`, those of `CHANGEABLE`, with what they shall be.

    Raises:
        SpecError: it may not, or cannot, have another number.
    """
    fields: dict[str, Any] = spec.model_dump(mode="json")
    fields["workers"] |= changes
    if "count" in changes:
        fields["training"]["batch_per_worker"] = None
    try:
        other = RunSpec.model_validate(fields)
    except ValidationError as error:
        problems = [f"{asked}: {problem}" for _, problem in explain(error.errors())]
        raise SpecError(COMMAND_LINE, problems) from None
    reason = why_no_other_number(other)
    if reason and other.workers.count != spec.workers.count:
        raise SpecError(COMMAND_LINE, [f"{asked}: {reason}"])
    return other


def why_no_other_number(spec: RunSpec) -> str | None:
    """Why a run may not take over the checkpoint of another number of workers; None where it may."""
    mode = real(spec.sync)
    if isinstance(mode, HybridSync):
        return None
    if isinstance(mode, AsyncSync):
        return (
            "sync.mode = async: messages on their way have no worker any more; use as many workers as before"
        )
    if isinstance(spec.compressor, PowerSGD):
        return "compressor.kind = powersgd: torch keeps its errors by worker; use as many workers as before"
    if getattr(mode, "adapt", None) is not None:
        return "sync.adapt follows what its workers have measured; use as many workers as before"
    if spec.workers.on_resize == "refuse":
        return (
            "workers.on_resize = refuse: each worker's residual belongs to its part of the data; with "
            "--workers.on_resize merge the workers take over what the former ones have not sent"
        )
    return None
