"""A density that starts high and falls (Deep Gradient Compression, section 3.3)."""

from pydantic import Field

from ..method.base import Group, Share


class Warmup(Group):
    """A density that starts high and falls exponentially (Deep Gradient Compression, section 3.3)."""

    first_field = "iterations"

    iterations: int = Field(gt=0)
    """Length of the warm-up in iterations."""
    start: Share = 0.25
    """The density of the first stage."""
    stages: int = Field(default=4, ge=1, le=1000)
    """Number of stages. Deep Gradient Compression has four, of one epoch each."""


def check_falling(density: float, warmup: Warmup | None) -> None:
    """Refuses (ValueError) a warm-up that would begin below the density it leads to."""
    if warmup is not None and warmup.start < density:
        raise ValueError(
            f"a warm-up starts high: its start {warmup.start:g} is below the density {density:g}"
        )


def density_at(target: float, warmup: Warmup | None, iteration: int) -> float:
    """The density in one iteration: during the warm-up it falls in stages, exponentially, down to the target.

    Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.56%, 0.4%, then 0.1%.
    """
    if warmup is None or iteration >= warmup.iterations:
        return target
    stage = iteration * warmup.stages // warmup.iterations
    ratio = float(target / warmup.start)
    return warmup.start * float(ratio ** (stage / warmup.stages))
