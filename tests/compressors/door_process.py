"""Training as people write it, in each of two processes: DDP alone, and with a method that sends everything.

Each cell of the matrix in docs/how-to/own-script.md is a function: it trains a model, calls `compress`
on what the script has, and returns the model's parameters.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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


def plainly(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    return train(ddp)


def scaler_and_clipping(compress: Compress) -> nn.Module:
    """An overflow on one worker in the fifth step."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    compress(ddp, scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step, x in enumerate(inputs(10)):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, x * torch.inf if step == 4 and dist.get_rank() else x)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**11  # twice doubled, once halved
    return ddp


def scaler_at_one(compress: Compress) -> nn.Module:
    """The scale is 1, and is halved."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    compress(ddp, scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step, x in enumerate(inputs(4)):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, x * torch.inf if step == 1 and dist.get_rank() else x)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0.5
    return ddp


def scaler_and_two_passes(compress: Compress) -> nn.Module:
    """Two exchanges before gradients are cleared."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    compress(ddp, scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    batches = list(inputs(8))
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, first)).backward()
        scaler.scale(loss_of(ddp, second)).backward()
        scaler.step(optimizer)
        scaler.update()
    return ddp


def autocast(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    with torch.autocast("cpu", torch.bfloat16):
        return train(ddp)


def bf16_parameters(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(dtype=torch.bfloat16), **OPTIONS)
    compress(ddp)
    return train(ddp, dtype=torch.bfloat16, lr=0.01)


class Mixed(nn.Module):
    """bfloat16 and float32 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = network(dtype=torch.bfloat16), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.body(x.bfloat16()).float())
        return head


def mixed_types(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(Mixed(), **OPTIONS)
    compress(ddp)
    return train(ddp, lr=0.01)


def accumulation(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    optimizer, batches = torch.optim.SGD(ddp.parameters(), lr=0.1), list(inputs(8))
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        optimizer.zero_grad()
        with ddp.no_sync():
            loss_of(ddp, first).backward()
        loss_of(ddp, second).backward()
        optimizer.step()
    return ddp


def second_backward(compress: Compress) -> nn.Module:
    """As `accumulation`, but each pass is exchanged."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    optimizer, batches = torch.optim.SGD(ddp.parameters(), lr=0.1), list(inputs(8))
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        optimizer.zero_grad()
        loss_of(ddp, first).backward()
        loss_of(ddp, second).backward()
        optimizer.step()
    return ddp


def static_graph(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(network(), static_graph=True, **OPTIONS)
    compress(ddp)
    return train(ddp)


class Forked(nn.Module):
    """One of two branches by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.branches, self.turn = nn.ModuleList([network(), network()]), 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        branch: Tensor = self.branches[self.turn % 2](x)
        return branch


def unused_parameters(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(Forked(), find_unused_parameters=True, **OPTIONS)
    compress(ddp)
    return train(ddp)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 17), nn.Linear(17, 5)

    def forward(self, x: Tensor) -> Tensor:
        inside = checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False)
        second: Tensor = self.second(inside)
        return second


def activation_checkpointing(compress: Compress) -> nn.Module:
    torch.manual_seed(5)
    ddp = DistributedDataParallel(Checkpointed(), **OPTIONS)
    compress(ddp)
    return train(ddp)


def compiled_inside(compress: Compress) -> nn.Module:
    ddp = DistributedDataParallel(torch.compile(network(), backend="eager"))
    compress(ddp)
    return train(ddp)


def compiled_outside(compress: Compress) -> nn.Module:
    compiled: Any = torch.compile(DistributedDataParallel(network()), backend="eager")
    compress(compiled)
    return train(compiled)


class Wrapper(nn.Module):
    """As Fabric's: the DDP model is a module of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return inner


class Derived(DistributedDataParallel):
    """A subclass."""


def wrapped_subclass(compress: Compress) -> nn.Module:
    wrapped = Wrapper(Derived(network(), **OPTIONS))
    compress(wrapped)
    return train(wrapped)


def tied_weights(compress: Compress) -> nn.Module:
    model = network()
    model.append(nn.Tanh())
    model.append(nn.Linear(5, 11))
    model[6].weight = nn.Parameter(model[4].weight.detach().T.contiguous())
    model.append(nn.Linear(11, 5))
    model[7].weight = model[4].weight
    ddp = DistributedDataParallel(model, **OPTIONS)
    compress(ddp)
    return train(ddp)


def frozen_parameters(compress: Compress) -> nn.Module:
    """Two layers are frozen before the model is wrapped, and trained from the fourth step on by a new DDP."""
    model = network()
    for each in model[0].parameters():
        each.requires_grad_(False)
    ddp = DistributedDataParallel(model, **OPTIONS)
    compress(ddp)
    train(ddp, 3)
    for each in model.parameters():
        each.requires_grad_(True)
    thawed = DistributedDataParallel(model, **OPTIONS)
    compress(thawed)
    return train(thawed, 3)


def two_models(compress: Compress) -> nn.Module:
    first, second = (DistributedDataParallel(network(), **OPTIONS) for _ in range(2))
    compress(first), compress(second)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for x in inputs(6):
        optimizer.zero_grad()
        (loss_of(first, x) + loss_of(second, 2 * x)).backward()
        optimizer.step()
    return nn.ModuleList([first, second])


def subgroup(compress: Compress) -> nn.Module:
    """Each process in a group of its own: nothing is sent."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    ddp = DistributedDataParallel(network(), process_group=groups[dist.get_rank()], **OPTIONS)
    compress(ddp)
    return train(ddp)


def uneven_inputs(compress: Compress) -> nn.Module:
    """One worker has two batches more."""
    ddp = DistributedDataParallel(network(), **OPTIONS)
    compress(ddp)
    with Join([ddp]):
        return train(ddp, 4 + 2 * dist.get_rank())


CELLS = (
    *(plainly, scaler_and_clipping, scaler_at_one, scaler_and_two_passes, autocast, bf16_parameters),
    *(mixed_types, accumulation, second_backward, static_graph, unused_parameters, activation_checkpointing),
    *(compiled_inside, compiled_outside, wrapped_subclass, tied_weights, frozen_parameters, two_models),
    *(subgroup, uneven_inputs),
)


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def main(folder: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for cell in CELLS:
        ends = []
        for compress in (
            lambda *_, **__: None,
            lambda held, **more: compress_gradients(held, EVERYTHING, **more),
        ):
            model = cell(compress)
            ends.append(torch.cat([each.detach().float().flatten() for each in model.parameters()]))
        found[cell.__name__] = {
            "off": float((ends[0] - ends[1]).abs().max()),
            "moved": float(ends[0].abs().sum()),
            "end": ends[1].double().sum().item(),
        }
    both = nn.ModuleList([DistributedDataParallel(network()), DistributedDataParallel(network())])
    found["refused"] = {
        "none": refused(lambda: compress_gradients(network(), EVERYTHING)),
        "no module": refused(lambda: compress_gradients(3, EVERYTHING)),
        "two": refused(lambda: compress_gradients(both, EVERYTHING)),
        "scaler": refused(
            lambda: compress_gradients(both[0], "powersgd(2)", scaler=torch.amp.GradScaler("cpu"))
        ),
    }
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
