"""The section `search` of a spec: what to search, how, and at what cost."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from taugrad.platform.config import Config
from taugrad.platform.data.config import ImportPath

Budget = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SearchConfig(Config):
    """How to search."""

    name: str = Field(default="", max_length=100, pattern=r"^[\w.-]*$")
    """The search's name, by which it can be continued; empty: the spec file's name."""
    objective: Literal["front", "accuracy_per_wire_gb", "constraint"] = "front"
    """front: the task's metric against wire bytes, as a Pareto front. accuracy_per_wire_gb: accuracy over
    wire bytes (%/GB). constraint: the fewest wire bytes with a metric within `tolerance` of the run without
    compression."""
    tolerance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What a constraint, and the proposed point of a front, may lose: percentage points of accuracy, or nats
    of a loss. By default 0.5 points, 0.02 nats, and for other metrics 1% of the value without compression."""
    trials: int = Field(default=30, ge=1)
    """Number of points to try, including those that are stopped early or fail."""
    seeds: int = Field(default=1, ge=1, le=100)
    """Trainings per point: seed, seed + 1, ... With several, points are compared by mean minus standard
    error."""
    minutes: Budget | None = None
    """Time budget of the whole search, including its earlier starts. Running trials are then stopped."""
    wire_gb: Budget | None = None
    """Byte budget: GB (1e9 bytes) that all trainings together may send, simulated or not."""
    pruning: Literal["none", "asha", "median"] = "none"
    """Early stopping of trials that others dominate at the same evaluation (the same epoch, unless runs are
    evaluated by iterations), in the metric and in bytes so far. asha: successive halving at evaluations
    grace, grace x reduction, ...; median: at any evaluation, if half of the others are better."""
    grace: int = Field(default=1, ge=1)
    """Number of evaluations for which every trial may run."""
    reduction: int = Field(default=3, ge=2)
    """Successive halving keeps the best 1/reduction at each of its evaluations."""
    concurrency: int | None = Field(default=None, ge=1)
    """Number of trials at a time; by default, as many as the cluster's CPUs allow."""
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """Optuna's tree-structured Parzen estimator, its genetic algorithm, or random points."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the sampler. The seed of trainings is the spec's."""
    retry_failed: bool = False
    """Try points again that failed in earlier starts of the search."""
    baseline: bool = True
    """First train once (per seed) without compression, to compare points with."""
    evaluate: ImportPath | None = None
    """Your own training instead of taugrad's: package.module:function, a generator that takes the spec and
    yields the value of the task's metric (an accuracy from 0 to 1) and the wire bytes so far, after each
    epoch or, with iterations, at each evaluation."""

    @field_validator("objective", mode="before")
    @classmethod
    def _named_by_its_bytes(cls, value: object) -> object:
        if value == "ratio":
            raise ValueError(
                "ratio is now called accuracy_per_wire_gb: the papers' ratio is over paper "
                "bytes, but a search uses wire bytes"
            )
        return value

    @model_validator(mode="after")
    def _constraint_has_a_baseline(self) -> "SearchConfig":
        if self.objective == "constraint" and not self.baseline:
            raise ValueError("objective = constraint needs the baseline: leave baseline = true")
        return self
