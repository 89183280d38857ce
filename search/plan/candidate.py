"""A way to train, as a plan knows it."""

from dataclasses import dataclass

from taugrad.platform.synchronization.config import RealSync

from .calibrated import HALF


@dataclass(frozen=True)
class Candidate:
    """A way to train: a method, and a mode of synchronization.

    Attributes:
        method: the compressor's line, or `HALF`.
        sync: the mode.
        value: steps of the uncompressed training that one step is worth, as far as is known without a probe;
            0 for what is never advised (`advice.Setting.value`).
        family: of ways by the advice that learn alike, and differ in how messages travel; empty for others.
        usual: whether it is what is advised where nothing else is known.
    """

    method: str
    sync: RealSync
    value: float = 1.0
    family: str = ""
    usual: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Equal for two that are the same way."""
        return self.method, self.sync.model_dump_json()

    @property
    def compresses(self) -> bool:
        """Whether it is anything but an all-reduce of each step's gradients."""
        return not (self.each_step and self.method in ("none", HALF))

    @property
    def twins(self) -> tuple[str, str]:
        """Equal for ways that learn alike, whose messages travel differently: the fastest is shown."""
        alike = self.family and self.method not in ("none", HALF)
        return (self.method, self.family) if alike else self.key

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
