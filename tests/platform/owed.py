"""What workers owe, by what their patterns keep."""

from typing import Any

import torch

from taugrad.compressors.exchange.patterns import Ring
from taugrad.compressors.exchange.pieces import cut


def owed_by(pattern: Any, what: str = "residuals") -> torch.Tensor:
    """float64 [all elements], what a worker owes to the sum of all gradients, in the order of its setting.

    Args:
        pattern: the worker's. A second compression, of a mean on its way back, counts for all workers.
        what: "velocities" for its momentum of gradients.
    """
    setting = pattern.setting
    ranges = getattr(pattern, "ranges", [])
    shards = cut(setting.sizes, len(ranges) or (setting.workers if isinstance(pattern, Ring) else 1))
    backs = shards[setting.rank : setting.rank + 1] if ranges else []
    places = [*((shard, 1) for shard in shards), *((shard, setting.workers) for shard in backs)]
    total = [torch.zeros(size).double() for size in setting.sizes]
    for (shard, times), compressor in zip(places, pattern.compressors(), strict=True):
        for piece in shard.pieces:
            kept = getattr(compressor.feedback, what).get(setting.names[piece.ordinal])
            if kept is not None:
                total[piece.ordinal][piece.start : piece.stop] += kept.double() * times
    return torch.cat(total)
