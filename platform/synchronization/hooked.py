"""The mode `gradients`: a DDP hook exchanges gradients during the backward pass."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, NonFiniteGradient, compression_hook
from taugrad.compressors.exchange.addresses import transport_of
from taugrad.compressors.exchange.tensors import broadcast
from taugrad.compressors.exchange.worker_group import gather_rows
from taugrad.compressors.methods import Method
from taugrad.compressors.optimizer_steps import SparseUnderAdam

from ..data.feeding import Batch
from ..replica.replica import Replica
from ..spec import RunSpec
from ..spec.synchronization import GradientsSync
from .ledger import Iteration, Links
from .synchronization import OneWorker, StepContext


class HookedGradients(OneWorker):
    """This process's worker under DDP.

    Attributes:
        replica: the worker's model and optimizer.
        ddp: DDP around the model.
        state: of the hook.
    """

    def __init__(
        self,
        spec: RunSpec,
        method: Method,
        replica: Replica,
        device: torch.device,
        key: bytes | None = None,
    ) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._transport = transport_of(None, device)
        self.replica = replica
        self.model = replica.model
        self.ddp = DistributedDataParallel(
            self.model,
            device_ids=[device] if device.type == "cuda" else None,
            find_unused_parameters=spec.training.find_unused_parameters,
        )
        assert isinstance(spec.sync, GradientsSync)
        warnings.filterwarnings("ignore", category=SparseUnderAdam)  # the command has said it
        pattern, sites, downlink = spec.sync.pattern, spec.sync.sites, spec.sync.downlink
        self.state = CompressionState(
            self.ddp, method, pattern=pattern, sites=sites, downlink=downlink, key=key
        )
        self._refuses = spec.compressor.nonfinite == "refuse"
        self.ddp.register_comm_hook(self.state, compression_hook)

    def iterate(self, batches: Sequence[Batch], context: StepContext) -> Iteration:
        if context.observe:
            self.state.observe_next_step()
        self.state.gradient_scale = 1 / self.replica.scale.factor
        try:
            loss = self.replica.backward(batches[0], self.ddp, self.ddp.no_sync)
        except RuntimeError:
            if self.state.failure is not None:
                raise self.state.failure from None  # DDP's own error only quotes it
            raise
        if not self.state.last_step.skipped:
            self.replica.step(context.position)
        elif not self.replica.scale.overflowed() and self._refuses:
            raise NonFiniteGradient(*self.state.last_step.nonfinite[0])
        step = self.state.last_step
        statistics = self.state.statistics if context.observe else {}
        iteration = self.ledger.begin(replace(step))
        iteration.loss, iteration.statistics = loss, statistics
        return iteration

    def sync_model(self) -> None:
        """See `Synchronization.sync_model`. DDP makes buffers worker 0's before the next pass only."""
        broadcast(self.model.buffers(), None, self._transport)

    def links(self) -> Links | None:
        return Links.of(gather_rows(Links.row(self.state.traffic), self._transport))

    def flush(self) -> None:
        if self.ledger.begun:
            self.ledger.complete(gather_rows(self.ledger.row(), self._transport))

    def shared_state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "replica": self.replica.state_dict(),
            "totals": self.totals.state_dict(),
        }

    def worker_state(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        self._load_agreed(shared)
        self.state.load_state_dict(local_state)

    def reshard(self, shared: dict[str, Any], workers: Sequence[Mapping[str, Any]]) -> None:
        """See `Synchronization.reshard`. Links are counted anew."""
        self._load_agreed(shared)
        self.state.load_state_dict(workers, reshard=True)

    def _load_agreed(self, shared: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        self.replica.load_state_dict(shared["replica"])
        self.ledger.load(shared["totals"])
