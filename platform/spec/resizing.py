"""A run that continues with another number of workers."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from . import COMMAND_LINE, SpecError
from .explaining import explain
from .run import RunSpec
from .workers import why_no_other_number

CHANGEABLE = ("count", "cpus", "max_restarts", "min_count", "on_resize")
"""What `--resume` may change of `workers`."""


def with_workers(spec: RunSpec, asked: str, changes: Mapping[str, str]) -> RunSpec:
    """The same run with other workers; whole batches stay what they are.

    `asked` are the command's words; of the fields of `workers` those of `CHANGEABLE` may change. Raises
    SpecError: the run may not, or cannot, have another number.
    """
    fields: dict[str, Any] = spec.model_dump(mode="json")
    fields["workers"] |= changes
    if "count" in changes:
        fields["training"]["batch_per_worker"] = None
    try:
        other = RunSpec.model_validate(fields)
    except ValidationError as error:
        problems = [f"{asked}: {problem}" for _, problem in explain(error.errors())]
        raise SpecError(COMMAND_LINE, *problems) from None
    reason = why_no_other_number(other.sync, other.compressor, other.workers)
    if reason and other.workers.count != spec.workers.count:
        raise SpecError(COMMAND_LINE, f"{asked}: {reason}")
    return other


def with_present(spec: RunSpec, present: int) -> RunSpec:
    """The spec of a run with `workers.min_count`, for those of its workers that there are.

    Raises SpecError: so few cannot train it.
    """
    if present == spec.processes:
        return spec
    workers = spec.workers.model_copy(update={"min_count": None})
    asked = f"workers.min_count = {spec.workers.min_count}: with {present} of {spec.workers.count} workers"
    return with_workers(spec.model_copy(update={"workers": workers}), asked, {"count": str(present)})


def check_present(spec: RunSpec, source: str) -> None:
    """Refuses a run that could not go on with one of the numbers of workers that it may have: SpecError."""
    for present in range(spec.workers.min_count or spec.workers.count, spec.workers.count):
        try:
            with_present(spec, present)
        except SpecError as error:
            raise SpecError(source, *error.problems) from None
