"""The `search:` section of a spec: what is looked for, how, and at what cost."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from taugrad.platform.config import Config
from taugrad.platform.data.config import ImportPath

Budget = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SearchConfig(Config):
    """How to search."""

    name: str = Field(default="", max_length=100, pattern=r"^[\w.-]*$")
    """The search's name, under which it goes on; empty: the spec file's name."""
    objective: Literal["front", "accuracy_per_wire_gb", "constraint"] = "front"
    """The task's metric against wire bytes as a Pareto front; accuracy over wire bytes (%/GB); or the fewest
    wire bytes with a metric within `tolerance` of the run without compression."""
    tolerance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What a constraint, and the point that is proposed of a front, may lose: percentage points of accuracy,
    nats of a loss. Without it 0.5 points, 0.02 nats, of other metrics 1% of the value without compression."""
    trials: int = Field(default=30, ge=1)
    """Points to try, those stopped early and those that failed included."""
    seeds: int = Field(default=1, ge=1, le=100)
    """Trainings a point: seed, seed + 1, ... Points are then compared by mean minus standard error."""
    minutes: Budget | None = None
    """Time budget of the whole search, earlier starts of it included; what runs then is stopped."""
    wire_gb: Budget | None = None
    """Byte budget: GB (1e9 bytes) that all trainings may send together; simulated ones count alike."""
    pruning: Literal["none", "asha", "median"] = "none"
    """Stops trials that others dominate at the same evaluation (the same epoch, unless runs are evaluated by
    iterations), in the metric and in bytes so far: by successive halving at evaluations grace,
    grace x reduction, ..., or when half of the others are better at any evaluation."""
    grace: int = Field(default=1, ge=1)
    """Evaluations up to which every trial may run."""
    reduction: int = Field(default=3, ge=2)
    """At each of its evaluations successive halving keeps the best 1/reduction."""
    concurrency: int | None = Field(default=None, ge=1)
    """Trials at a time; without it, as many as the cluster's CPUs allow."""
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """Optuna's tree-structured Parzen estimator, its genetic algorithm, or chance."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the sampler; the trainings' seed is the spec's."""
    retry_failed: bool = False
    """Try points again that failed in earlier starts of the search."""
    baseline: bool = True
    """Train once (each seed) without compression first: what points are compared with."""
    evaluate: ImportPath | None = None
    """Your own training in place of taugrad's: package.module:function, a generator that takes the spec and
    yields the value of the task's metric (an accuracy from 0 to 1) and the wire bytes so far after each
    epoch, or where runs go by iterations, at each evaluation."""

    @field_validator("objective", mode="before")
    @classmethod
    def _named_by_its_bytes(cls, value: object) -> object:
        if value == "ratio":
            raise ValueError(
                "the papers' ratio is over paper bytes, and a search goes by wire bytes: "
                "accuracy_per_wire_gb is what ratio was"
            )
        return value

    @model_validator(mode="after")
    def _constraint_has_a_baseline(self) -> "SearchConfig":
        if self.objective == "constraint" and not self.baseline:
            raise ValueError("objective = constraint needs the baseline: leave baseline at true")
        return self
