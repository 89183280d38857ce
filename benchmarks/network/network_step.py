"""What a worker of network/network_exchange.py does: steps of DDP with next to no computing.

Methods are compressors' lines, or fp16 and powersgd, torch's own hooks, or bare, which exchanges nothing.
"""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook

TENSORS = 12
WARM_UP = 6
"""Steps in which DDP forms its buckets anew, connections speed up and tau is found."""
DRAWN = 3
"""Gradients that take turns."""
_RANK = 4
"""PowerSGD's."""


class Given(nn.Module):
    """Has the gradients that it is told to have: its loss is their product with its parameters."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        side = max(2, round((elements / TENSORS) ** 0.5))
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(side, side)) for _ in range(TENSORS)])

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The sum of all products."""
        return torch.stack([(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]).sum()


def drawn_gradients(weights: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """This worker's: heavy tails, and layers of different scale, as gradients have them."""
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    return [
        [
            torch.randn(w.shape, generator=generator).pow_(3).mul_(10.0 ** (-layer / 4))
            for layer, w in enumerate(weights)
        ]
        for _ in range(DRAWN)
    ]


def power_sgd(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Torch's hook, one bucket after the other.

    Its callbacks start collectives of their own. With several buckets and gloo they do so in another order on
    each worker, and then all wait for ever: seen on links with a delay.
    """
    mean = powerSGD_hook.powerSGD_hook(state, bucket)
    mean.wait()
    return mean


def nothing(_: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Leaves a bucket as it is."""
    done: Future[torch.Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


def timed(prepare: Callable[[int], Callable[[], object]], steps: int) -> list[float]:
    """Seconds of each step of the slowest worker; `prepare` does what is not timed, and returns what is."""
    seconds = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        work = prepare(step)
        dist.barrier()
        started = perf_counter()
        work()
        seconds[step] = perf_counter() - started
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    times: list[float] = seconds.tolist()
    return times


def measure(method: str, elements: int, steps: int) -> dict[str, Any]:
    """Seconds of each backward pass, of the slowest worker, and worker 0's parts of them."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Given(elements))
    state = None
    if method == "bare":
        ddp.register_comm_hook(None, nothing)
    elif method == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "powersgd":
        peer = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=_RANK, start_powerSGD_iter=2)
        ddp.register_comm_hook(peer, power_sgd)
    elif method != "none":
        state = CompressionState(ddp, method)
        ddp.register_comm_hook(state, compression_hook)
    drawn = drawn_gradients(ddp.module.weights)
    parts: list[dict[str, float]] = []

    def prepare(step: int) -> Callable[[], object]:
        ddp.zero_grad()
        loss = ddp(drawn[step % DRAWN])

        def backward() -> None:
            loss.backward()
            if state is not None:
                last = state.last_step
                parts.append(
                    {
                        "compress": last.compress_s,
                        "decompress": last.decompress_s,
                        "exchange": last.exchange_s,
                        "bytes": last.wire_bytes,
                    }
                )

        return backward

    timed(prepare, WARM_UP)
    parts.clear()
    return {"seconds": timed(prepare, steps), "parts": parts}
