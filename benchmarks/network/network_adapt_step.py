"""What a host of network/network_adapt.py does: a training that follows its link.

Host 0 prints a line of JSON for each step: how many there were, the share of elements that is aimed at (null
where nothing follows the link), seconds since the one before, and the training loss. All print a hash of the
weights at the end.
"""

import hashlib
import json
from time import perf_counter
from typing import Any

import torch.distributed as dist

from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.synchronization.ledger import Iteration

from ..harness.in_process import Following, fit


class Telling(Following):
    """Prints a line for each step."""

    def stage(self, name: str) -> None:
        """Begins when the first step does."""
        if name != "first iteration":
            return
        trainer = self.trainer
        sync = trainer.sync
        iterate = sync.iterate
        adapter = sync.adapter if isinstance(sync, HookedGradients) else None
        last = perf_counter()

        def told(*arguments: Any) -> Iteration:
            nonlocal last
            iteration = iterate(*arguments)
            now = perf_counter()
            results = {
                "step": trainer.done + 1,
                "density": None if adapter is None else adapter.choice.density,
                "seconds": now - last,
                "loss": iteration.loss,
            }
            print(json.dumps(results), flush=True)
            last = now
            return iteration

        sync.iterate = told  # type: ignore[method-assign]


def trained(spec: str) -> None:
    """Trains a spec, which is JSON."""
    trainer = fit(spec, Telling() if dist.get_rank() == 0 else Following())
    digest = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print(digest.hexdigest(), flush=True)
