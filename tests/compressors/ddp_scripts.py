"""Training as people write it: DDP alone, and with one line for a method that sends everything; see ddp.py.

Each cell of the matrix in docs/how-to/own-script.md trains a model, and calls `compress` on what the script
has; several passes a step, static graphs, unused and frozen parameters are in ddp_passes.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from ddp import assert_alike, scenario
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from taugrad.compressors import compress_gradients

EVERYTHING = "wgt(2e-38) | packed32"
Compress = Callable[..., Any]
OPTIONS: dict[str, Any] = {"bucket_cap_mb": 0.0005}


def network(*, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 11), nn.Tanh(), nn.Linear(11, 5)).to(
        dtype
    )


def inputs(count: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(count):
        yield torch.randn(4, 6, generator=generator).to(dtype)


def loss_of(model: Any, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().square().mean()
    return loss


def train(model: nn.Module, steps: int = 6, dtype: torch.dtype = torch.float32, lr: float = 0.1) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for x in inputs(steps, dtype):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    return model


def cell(
    model: Callable[[], nn.Module] = network,
    wrap: Callable[[nn.Module], nn.Module] = lambda ddp: ddp,
    kind: type[DistributedDataParallel] = DistributedDataParallel,
    options: dict[str, Any] = OPTIONS,
    **training: Any,
) -> Callable[[Compress], nn.Module]:
    """A cell that trains a model in the usual loop: what the model is, and what holds its DDP model."""

    def run(compress: Compress) -> nn.Module:
        held = wrap(kind(model(), **options))
        compress(held)
        return train(held, **training)

    return run


def scaled(
    before: float, after: float, steps: int, overflow: int, *, clips: bool
) -> Callable[[Compress], nn.Module]:
    """A scale that is halved where a step overflows on one worker, and doubled after three good ones."""

    def run(compress: Compress) -> nn.Module:
        ddp = DistributedDataParallel(network(), **OPTIONS)
        scaler = torch.amp.GradScaler("cpu", init_scale=before, growth_interval=3)
        compress(ddp, scaler=scaler)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for step, x in enumerate(inputs(steps)):
            optimizer.zero_grad()
            scaler.scale(
                loss_of(ddp, x * torch.inf if step == overflow and dist.get_rank() else x)
            ).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == after
        return ddp

    return run


def autocast(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    with torch.autocast("cpu", torch.bfloat16):
        return train(ddp)


class Mixed(nn.Module):
    """bfloat16 and float32 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(dtype=torch.bfloat16), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.body(x.bfloat16()).float())
        return head


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Linear(6, 17), nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        inside = checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False)
        second: Tensor = self.second(inside)
        return second


class Derived(DistributedDataParallel):
    """A subclass."""


class Wrapper(nn.Module):
    """As Fabric's: the DDP model is a module of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return inner


def tied() -> nn.Module:
    """Two layers share a matrix."""
    model: Any = network()
    model.append(nn.Tanh())
    model.append(nn.Linear(5, 11))
    model[6].weight = nn.Parameter(model[4].weight.detach().T.contiguous())
    model.append(nn.Linear(11, 5))
    model[7].weight = model[4].weight
    return model  # type: ignore[no-any-return]


def two_models(compress: Compress) -> nn.Module:
    first, second = (DistributedDataParallel(network(), **OPTIONS) for _ in range(2))
    compress(first), compress(second)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for x in inputs(6):
        optimizer.zero_grad()
        (loss_of(first, x) + loss_of(second, 2 * x)).backward()
        optimizer.step()
    return nn.ModuleList([first, second])


def uneven_inputs(compress: Compress) -> nn.Module:
    """One worker has two batches more."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    with Join([ddp]):
        return train(ddp, 4 + 2 * dist.get_rank())


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def alone(compress: Compress) -> nn.Module:
    """Each process in a group of its own: nothing is sent."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    return cell(options={**OPTIONS, "process_group": groups[dist.get_rank()]})(compress)


CELLS: dict[str, Callable[[Compress], nn.Module]] = {
    "plainly": cell(),
    "scaler and clipping": scaled(2.0**10, 2.0**11, 10, overflow=4, clips=True),
    "scaler at one": scaled(1.0, 0.5, 4, overflow=1, clips=False),
    "autocast": autocast,
    "bf16 parameters": cell(partial(network, dtype=torch.bfloat16), dtype=torch.bfloat16, lr=0.01),
    "mixed types": cell(Mixed, lr=0.01),
    "activation checkpointing": cell(Checkpointed),
    "compiled inside": cell(lambda: compiled(network()), options={}),
    "compiled outside": cell(wrap=compiled, options={}),
    "wrapped subclass": cell(wrap=Wrapper, kind=Derived),
    "tied weights": cell(tied),
    "two models": two_models,
    "subgroup": alone,
    "uneven inputs": uneven_inputs,
}


@scenario(2, each=CELLS)
def a_method_that_sends_everything_trains_as_ddp_alone(cell: str) -> None:
    ends = []
    for compress in (
        lambda *_, **__: None,
        lambda held, **more: compress_gradients(held, EVERYTHING, **more),
    ):
        model = CELLS[cell](compress)
        ends.append(torch.cat([each.detach().float().flatten() for each in model.parameters()]))
    assert float(ends[0].abs().sum()) > 1
    assert float((ends[0] - ends[1]).abs().max()) < 1e-7
    if cell != "subgroup":  # each trains for itself
        assert_alike(ends[1].tolist())
