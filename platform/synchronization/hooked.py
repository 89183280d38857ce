"""Gradients through a DDP hook, exchanged while the backward pass goes on: the mode `allgather`."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, Step, Totals, compressed_allgather
from taugrad.compressors.observe import GradientStatistics

from ..data.batches import Share
from ..spec import RunSpec
from ..training.replica import Examples, Replica
from .base import Moment, Synchronization
from .config import AllGatherSync


class HookedGradients(Synchronization):
    """This process's worker under DDP.

    Attributes:
        replica: the worker's model and optimizer.
        ddp: DDP around the model.
        state: of the hook.
    """

    def __init__(self, spec: RunSpec, replica: Replica, examples: Examples) -> None:
        self.ranks, self.workers = [dist.get_rank()], dist.get_world_size()
        self.replica, self._examples = replica, examples
        self.model = replica.model
        device = examples.labels.device
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=spec.training.find_unused_parameters,
        )
        assert isinstance(spec.sync, AllGatherSync)
        self.state = CompressionState(self.ddp, spec.compressor, exchange=spec.sync.exchange)
        self.ddp.register_comm_hook(self.state, compressed_allgather)

    def iterate(self, shares: Sequence[Share], moment: Moment) -> float:
        """See `Synchronization.iterate`."""
        if moment.observe:
            self.state.observe_next_step()
        try:
            loss = self.replica.backward(self._examples, shares[0], self.ddp)
        except RuntimeError:
            if self.state.failure is not None:
                raise self.state.failure from None  # DDP's own error only quotes it
            raise
        if not self.state.last_step.skipped:
            self.replica.step(moment.position)
        return loss

    @property
    def last_step(self) -> Step:
        """See `Synchronization.last_step`."""
        return self.state.last_step

    @property
    def totals(self) -> Totals:
        """See `Synchronization.totals`."""
        return self.state.totals

    @property
    def statistics(self) -> dict[str, GradientStatistics]:
        """See `Synchronization.statistics`."""
        return self.state.statistics

    def shared_state(self) -> dict[str, Any]:
        """See `Synchronization.shared_state`."""
        return {"model": self.model.state_dict(), "optimizer": self.replica.optimizer.state_dict()}

    def own_state(self) -> dict[str, Any]:
        """See `Synchronization.own_state`."""
        return self.state.state_dict()

    def load(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """See `Synchronization.load`."""
        self.model.load_state_dict(shared["model"])
        self.replica.optimizer.load_state_dict(shared["optimizer"])
        self.state.load_state_dict(own)
