"""What workers owe, by what their patterns keep."""

from typing import Any

import torch

from taugrad.compressors.exchange.patterns.base import BACK


def owed_by(pattern: Any, what: str = "residuals") -> torch.Tensor:
    """float64 [all elements], what a worker owes to the sum of all gradients, in the order of its setting.

    Args:
        pattern: the worker's. A second compression, of a mean on its way back, counts for all workers.
        what: "velocities" for its momentum of gradients.
    """
    names, workers = pattern.setting.names, pattern.setting.workers
    total = [torch.zeros(size).double() for size in pattern.setting.sizes]
    for key, (shard, compressor) in pattern.parts().items():
        for piece, into in zip(shard.pieces, shard.of(total), strict=True):
            kept = getattr(compressor.feedback, what).get(names[piece.ordinal])
            if kept is not None:
                into.add_(kept.double() * (workers if key == BACK else 1))
    return torch.cat(total)
