"""Means of optimizers' moments, each at a rhythm of its own (DES-LOC, arXiv:2505.22549)."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ..bucket.compressor import Worker
from ..bucket.ledger import Step, Traffic
from ..errors import NonFiniteWeight
from ..methods import NoCompression
from .agreement import require_agreement
from .averaging import Averaging
from .carrier import Carrier
from .lockstep import Coroutine
from .patterns.allgather import AllGather
from .tensors import copy_into, local_tensor


class MomentMeans:
    """Replaces what workers' optimizers keep of parameters, such as `exp_avg`, by the workers' mean.

    It is sent whole, in float32. Nothing is kept from one mean to the next.
    """

    def __init__(
        self,
        every: Mapping[str, int],
        optimizers: Sequence[Optimizer],
        parameters: Mapping[str, Tensor],
        worker: Worker,
        carrier: Carrier,
        group: dist.ProcessGroup,
    ) -> None:
        """Prepares means of fields of optimizers' states, each after its number of steps."""
        self._every, self._optimizers, self._parameters = dict(every), optimizers, parameters
        self._worker, self._carrier, self._group = worker, carrier, group
        self._averagings: dict[str, Averaging] = {}

    def advance(self, steps: int, step: Step, traffic: Traffic) -> Coroutine[None]:
        """Called after each step; averages what is due after so many, and counts what was sent.

        Raises ValueError if no optimizer keeps a field, WorkersDisagree if workers keep it of other
        parameters, and what rounds raise.
        """
        for field, every in self._every.items():
            if steps % every:
                continue
            moments = self._moments(field)
            averaging = self._averagings.get(field) or self._begin(field, moments)
            device = self._worker.ops.device
            exchange = averaging.begin(
                [moment.reshape(-1).to(device, torch.float32) for moment in moments.values()]
            )
            result = yield from averaging.complete(exchange)
            mean = averaging.finish(result, exchange.record, step, traffic)
            assert mean is not None, "what is not finite is refused"
            sizes = [moment.numel() for moment in moments.values()]
            copy_into(moments.values(), torch.split(mean, sizes))

    def _moments(self, field: str) -> dict[str, Tensor]:
        """What this worker's optimizers keep, by parameter; of a sharded one, this process's shard."""
        states = [
            (name, optimizer.state[parameter])
            for name, parameter in self._parameters.items()
            for optimizer in self._optimizers
            if parameter in optimizer.state
        ]
        moments = {name: local_tensor(state[field]) for name, state in states if field in state}
        if not moments:
            kept = ", ".join(sorted({kept for _, state in states for kept in state})) or "nothing"
            raise ValueError(f"moments_every: {field!r}: optimizers keep {kept}")
        return moments

    def _begin(self, field: str, moments: Mapping[str, Tensor]) -> Averaging:
        sizes = {f"{field} of {name}": moment.numel() for name, moment in moments.items()}
        require_agreement({name: str(size) for name, size in sizes.items()}, self._group)
        pattern = AllGather(NoCompression(), self._worker, sizes)
        averaging = Averaging(self._carrier, pattern, pattern.names, f"moments {field}", NonFiniteWeight)
        self._averagings[field] = averaging
        return averaging
