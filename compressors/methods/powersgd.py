"""The fields of powersgd; `peers.powersgd` exchanges its factors."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Method


class PowerSGD(Method):
    """torch's own PowerSGD hook (Vogels et al. 2019): low-rank factors instead of matrices."""

    first_field: ClassVar[str] = "rank"

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(default=1, ge=1)
    """Rank of the factors."""
    start: int = Field(default=10, ge=2)
    """Iterations of plain all-reduce before the first compressed one."""
    min_rate: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """A matrix is compressed only if this makes it smaller by at least this factor."""
    warm_start: bool = True
    """Start each approximation from the previous one."""
    feedback: bool = True
    """Error feedback: add what an approximation missed to the next iteration's gradient."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the first random factors."""
    reduction: Literal["mean", "sum"] = "mean"
    """How the workers' updates become one gradient: their mean (as DDP does) or their sum."""
    nonfinite: Literal["refuse"] = "refuse"
    """A NaN or Inf in a gradient raises an error: it would stay in the hook's memory for ever."""
