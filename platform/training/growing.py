"""The section `training.batch_growth` of a spec: how batches grow over a run."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ..config import Config


class ConstantBatch(Config):
    """The batch is constant."""

    kind: Literal["constant"] = "constant"


class AdaBatch(Config):
    """The batch grows as the test error falls (Rae, section 2.5.1)."""

    kind: Literal["adabatch"] = "adabatch"
    most: int = Field(default=1024, ge=1)
    """The largest whole batch; `batch_size` is the first one."""
    measure: Literal["error", "loss"] = "error"
    """What is compared with that of the untrained model: the share of wrong test examples, or the test
    loss."""
    form: Literal["formula", "text"] = "formula"
    """With q the untrained model's error over the current error: formula doubles the batch floor(q) - 1
    times; text, the paper's text, doubles it each time the error has halved, floor(log2(q)) times."""


class Stage(Config):
    """A first part of the run."""

    until: float = Field(gt=0, allow_inf_nan=False)
    """Epochs from the start of the run; the stage has the steps that begin before."""
    batch_size: int = Field(ge=1)
    """The whole batch of one step."""
    workers: int | None = Field(default=None, ge=1)
    """How many workers share it, the first ones; the others wait. Without it, all of them."""


class Stages(Config):
    """Smaller batches and fewer workers at first (Strom 2015, table 1); then `batch_size` and all workers."""

    kind: Literal["staged"] = "staged"
    stages: tuple[Stage, ...]
    """A list of stages, each with `until` (epochs from the start of the run), `batch_size` and, if some
    workers wait, `workers`."""

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        if not stages:
            raise ValueError("needs at least one stage; without stages, use kind: constant")
        for number, (before, after) in enumerate(pairwise(stages), start=1):
            if after.until <= before.until:
                raise ValueError(
                    f"stage {number}: until = {after.until:g}; must be above {before.until:g}, "
                    f"which is that of stage {number - 1}"
                )
        return stages


BatchGrowthConfig = Annotated[ConstantBatch | AdaBatch | Stages, Field(discriminator="kind")]
