"""A way to train: what it is, what a plan predicts of it, and what a probe found."""

import math
from dataclasses import dataclass

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import RealSync

from .calibrated import HALF
from .step_model import StepTime

MOST_WORTH, MOST_WORTH_WITH_MOMENTUM = 1.1, 2.0
"""The highest worth of a compressed step, in steps of the uncompressed training at its better learning rate;
without and with an outer momentum."""


@dataclass(frozen=True)
class Candidate:
    """A way to train: a method, and a mode of synchronization.

    Attributes:
        method: the compressor's line, or `HALF`.
        sync: the mode.
        worth: steps of the uncompressed training that one step replaces: as measured with other models
            (`advice.Recipe.worth`) until a probe has measured it; 0 for what is never advised.
        family: of candidates that differ in degree only; empty for the spec's own and for given methods.
        degree: see `advice.Recipe`.
        usual: whether it is the default advice.
        spec: the run by real workers; None if it is only predicted.
        predicted: its step over a link; None before `planning.predict`.
        memory: bytes of a worker, without activations; predicted.
        probed: steps of the probe that measured the worth; 0 without one.
        given_up: whether it was too far behind after half of the probe.
        rejected: why it was not tried, a few words; empty if it was.
    """

    method: str
    sync: RealSync
    worth: float = 1.0
    family: str = ""
    degree: tuple[float, ...] = ()
    usual: bool = False
    spec: RunSpec | None = None
    predicted: StepTime | None = None
    memory: float = 0.0
    probed: int = 0
    given_up: bool = False
    rejected: str = ""

    @property
    def run(self) -> RunSpec:
        """The run by real workers; ValueError if the candidate is only predicted."""
        if self.spec is None:
            raise ValueError(f"{self}: is not a run")
        return self.spec

    @property
    def step(self) -> StepTime:
        """The predicted step; ValueError before `planning.predict`."""
        if self.predicted is None:
            raise ValueError(f"{self}: is not predicted")
        return self.predicted

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.step.seconds

    @property
    def to_target(self) -> float:
        """Seconds for what an uncompressed step learns; infinite if nothing is learned."""
        return self.seconds / self.worth if self.worth > 0 else math.inf

    @property
    def most_worth(self) -> float:
        """The highest possible worth of a step."""
        if self.is_exact:
            return 1.0
        return MOST_WORTH_WITH_MOMENTUM if self.has_outer_momentum else MOST_WORTH

    @property
    def least_to_target(self) -> float:
        """Seconds for what an uncompressed step learns, with the highest possible worth."""
        return self.seconds / self.most_worth

    @property
    def is_exact(self) -> bool:
        """Whether its steps are those of an uncompressed training."""
        return self.family == "exact"

    @property
    def has_outer_momentum(self) -> bool:
        """Whether exchanges have a momentum."""
        return self.sync.outer_momentum > 0

    @property
    def every(self) -> int:
        """Steps from one exchange to the next; 0: an epoch."""
        return self.sync.local_steps

    def loses_less_than(self, other: "Candidate") -> bool:
        """Whether it is of the same family and of lower degree."""
        return (
            self.family == other.family
            and self.degree != other.degree
            and all(one <= two for one, two in zip(self.degree, other.degree, strict=True))
        )

    def learns_like(self, other: "Candidate") -> bool:
        """Whether only patterns differ."""
        return self.family == other.family and self.degree == other.degree

    def is_run_of(self, other: "Candidate") -> bool:
        """Whether both train the same run, whatever is known of them."""
        return self.run.fingerprint() == other.run.fingerprint()

    @property
    def key(self) -> tuple[str, str]:
        """Equal for candidates with the same method and mode."""
        return self.method, self.sync.model_dump_json()

    @property
    def compresses(self) -> bool:
        """Whether it is anything but an all-reduce of each step's gradients."""
        return not (self.each_step and self.method in ("none", HALF))

    @property
    def twins(self) -> tuple[str, str]:
        """Equal for candidates that learn alike, whose messages travel differently: the fastest is shown."""
        alike = self.family and self.method not in ("none", HALF)
        return (self.method, f"{self.family} {self.degree}") if alike else self.key

    @property
    def each_step(self) -> bool:
        """Whether workers exchange in each step, like DDP. Otherwise they take local steps in between."""
        return not self.sync.is_local

    @property
    def mode(self) -> str:
        """The mode in words."""
        sync = self.sync
        if sync.is_local:
            when = f"{sync.local_steps} steps" if sync.local_steps else "epoch"
            return f"weights every {when}, {sync.pattern_name}"
        if sync.pattern_name == "hierarchical":
            return sync.pattern_name
        if (island := getattr(sync, "island", None)) is not None:
            return f"islands by {island}" if island == "host" else f"islands of {island}"
        return (
            "all-reduce"
            if self.method in ("none", HALF) and sync.pattern_name == "allgather"
            else sync.pattern_name
        )

    def __str__(self) -> str:
        return self.method if self.mode in ("allgather", "all-reduce") else f"{self.method} ({self.mode})"
