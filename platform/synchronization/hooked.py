"""Gradients through a DDP hook, exchanged while the backward pass goes on: the mode `allgather`."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, NonFiniteGradient, Step, Totals, compressed_allgather
from taugrad.compressors.config import Method
from taugrad.compressors.observe import GradientStatistics

from ..data.feeding import Batch
from ..spec import RunSpec
from ..training.replica import Replica
from .base import Moment, Synchronization
from .config import AllGatherSync


class HookedGradients(Synchronization):
    """This process's worker under DDP.

    Attributes:
        replica: the worker's model and optimizer.
        ddp: DDP around the model.
        state: of the hook.
    """

    def __init__(self, spec: RunSpec, method: Method, replica: Replica, device: torch.device) -> None:
        self.ranks, self.workers = [dist.get_rank()], dist.get_world_size()
        self.replica = replica
        self.model = replica.model
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=spec.training.find_unused_parameters,
        )
        assert isinstance(spec.sync, AllGatherSync)
        self.state = CompressionState(self.ddp, method, exchange=spec.sync.exchange)
        self._refuses = spec.compressor.nonfinite == "refuse"
        self.ddp.register_comm_hook(self.state, compressed_allgather)

    def iterate(self, batches: Sequence[Batch], moment: Moment) -> float:
        """See `Synchronization.iterate`."""
        if moment.observe:
            self.state.observe_next_step()
        self.state.gradient_scale = 1 / self.replica.scale.factor
        try:
            loss = self.replica.backward(batches[0], self.ddp, self.ddp.no_sync)
        except RuntimeError:
            if self.state.failure is not None:
                raise self.state.failure from None  # DDP's own error only quotes it
            raise
        if not self.state.last_step.skipped:
            self.replica.step(moment.position)
        elif not self.replica.scale.overflowed() and self._refuses:
            raise NonFiniteGradient(*self.state.last_step.nonfinite[0])
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
        return {"model": self.model.state_dict(), "replica": self.replica.state_dict()}

    def own_state(self) -> dict[str, Any]:
        """See `Synchronization.own_state`."""
        return self.state.state_dict()

    def load(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """See `Synchronization.load`."""
        self.model.load_state_dict(shared["model"])
        self.replica.load_state_dict(shared["replica"])
        self.state.load_state_dict(own)
