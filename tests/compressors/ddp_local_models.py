"""Local steps with models of all kinds: their parameters and buffers, and changes of these; see ddp.py."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ddp import DEVICE, assert_alike, scenario
from torch import Tensor, nn

from taugrad.compressors import LocalSteps

Change = Callable[[nn.Sequential], Any]
CHANNELS_LAST: Any = {"memory_format": torch.channels_last}
LAYOUTS: dict[str, Change] = {
    "slices": lambda net: setattr(net[2], "weight", nn.Parameter(torch.randn(2, 32)[:, ::2])),
    "transposed": lambda net: setattr(net[2], "weight", nn.Parameter(torch.randn(16, 2).t())),
    "channels last": lambda net: net.to(**CHANNELS_LAST),
    "channels last on rank 1": lambda net: dist.get_rank() and net.to(**CHANNELS_LAST),
    "strided buffer": lambda net: net.register_buffer("table", torch.randn(4, 6)[:, ::2]),
}
"""By name, what makes tensors lie otherwise in memory."""
DTYPES = ("int16", "uint16", "float8_e4m3fn", "bool", "complex64", "int64", "float64")


def convolution(change: Change) -> nn.Sequential:
    """Other weights on each rank."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    change(net)
    return net.to(DEVICE)


def values_of(model: nn.Module) -> list[Any]:
    """All parameters and buffers as lists, in the order of their indices."""
    tensors = [*model.parameters(), *model.buffers()]
    return [each.detach().to_dense().to(torch.complex128).tolist() for each in tensors]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, local: LocalSteps, inputs: Tensor) -> None:
    model(inputs.to(DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    local.step()


@scenario(2, each=LAYOUTS)
def tensors_begin_as_rank_0s_and_end_alike_however_they_lie_in_memory(layout: str) -> None:
    net = convolution(LAYOUTS[layout])
    before = values_of(net)
    optimizer = sgd(net)
    local = LocalSteps(net, optimizer, every=2)
    begun = values_of(net)
    assert_alike(begun)
    assert (begun == before) == (dist.get_rank() == 0)
    for _ in range(3):
        train(net, optimizer, local, torch.randn(5, 3, 4, 4))
    local.finish()
    assert_alike(values_of(net))
    assert values_of(net) != begun


@scenario(2, each=DTYPES)
def buffers_of_any_dtype_become_rank_0s(name: str) -> None:
    """At the beginning, and in an exchange."""
    dtype, net, rank = getattr(torch, name), nn.Linear(4, 2), dist.get_rank()

    def fill(seed: int) -> Tensor:
        drawn = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed))
        return (100 * drawn).to(dtype).to(DEVICE)

    net.to(DEVICE).register_buffer("table", fill(rank))
    optimizer = sgd(net)
    local = LocalSteps(net, optimizer, every=1)
    assert net.table.float().equal(fill(0).float())
    net.table.copy_(fill(10 + rank))
    train(net, optimizer, local, torch.randn(3, 4))
    assert net.table.dtype == dtype
    assert net.table.float().equal(fill(10).float())


@scenario(2)
def a_sparse_buffer_becomes_rank_0s() -> None:
    """Ranks have different numbers of values in it."""
    net, rank = nn.Linear(4, 2), dist.get_rank()
    net.register_buffer("graph", (torch.ones(4, 4) if rank else torch.eye(4)).to_sparse())
    net.to(DEVICE)
    optimizer = sgd(net)
    local = LocalSteps(net, optimizer, every=1)
    assert net.graph.to_dense().equal(torch.eye(4, device=DEVICE))
    net.graph.mul_(rank + 3)
    train(net, optimizer, local, torch.randn(3, 4))
    assert net.graph.to_dense().equal(3 * torch.eye(4, device=DEVICE))
