"""Who is in a round is decided by one authority: it keeps the first proposal, and tells it to all who ask.

The authority outlives the workers: an actor of the driver where Ray runs them (`launching/run_status.py`),
else the store of torch's process group. A decision is one write, so that two workers never learn of two.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch.distributed as dist

Decide = Callable[[str, str], str]
"""Writes a value under a key where there is none yet; returns the value that is there."""


def by_store(store: Any = None) -> Decide:
    """Decides in a store of torch; by default that of the process group."""
    kept = dist.distributed_c10d._get_default_store() if store is None else store

    def decide(key: str, value: str) -> str:
        there: bytes = kept.compare_set(key, "", value)
        return there.decode()

    return decide


def close_round(decide: Decide, attempt: int, number: int, members: Collection[int]) -> frozenset[int]:
    """Closes a round, unless another worker has: the members that were decided.

    `attempt` is the same on every worker, and another one each time that rounds are counted anew: what is
    repeated from a checkpoint is decided again.
    """
    proposed = ",".join(map(str, sorted(members)))
    return frozenset(map(int, decide(f"taugrad/rounds/{attempt}/{number}", proposed).split(",")))
