"""What workers owe, by what their patterns keep."""

from typing import Any

import torch


def unsent_by(pattern: Any, what: str = "residuals") -> torch.Tensor:
    """float64 [all elements], what a worker owes to the sum of all gradients, in the order of its parameters.

    Args:
        pattern: the worker's. A second compression, of a mean on its way back, counts for all workers.
        what: "velocities" for its momentum of gradients.
    """
    total = {name: torch.zeros(size).double() for name, size in pattern.sizes.items()}
    sums = pattern.feedback.sums
    for name, kept in getattr(pattern.feedback, what).items():
        total[name] += kept.double()
    for name, kept in ({} if sums is None else getattr(sums, what)).items():
        part = sums.slices[name]
        total[name][part.start : part.stop] += kept.double() * pattern.worker.workers
    return torch.cat(list(total.values()))
