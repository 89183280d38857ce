"""Training as people write it: DDP alone, and with one line for a method that sends everything; see ddp.py.

Each cell of the matrix in docs/how-to/own-script.md trains a model, and calls `compress` on what the script
has; several passes a step, static graphs, unused and frozen parameters are in ddp_passes.py.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from ddp import Network, assert_alike, loss_of, make_model, scenario
from ddp_models import compiled
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from taugrad.compressors import compress_gradients

EVERYTHING = {"allgather": "wgt(2e-38) | packed32", "collective": "fp16(exempt={'smaller_than': 2147483647})"}
"""By pattern, a method that sends everything."""
Compress = Callable[..., Any]
OPTIONS: dict[str, Any] = {"bucket_cap_mb": 0.0005}


def train(model: nn.Module, steps: int = 6, lr: float = 0.1) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    return model


def cell(
    model: Callable[[], nn.Module] = make_model,
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
        ddp = DistributedDataParallel(make_model(), **OPTIONS)
        scaler = torch.amp.GradScaler("cpu", init_scale=before, growth_interval=3)
        compress(ddp, scaler=scaler)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(ddp, dist.get_rank(), step)
            scaler.scale(loss * torch.inf if step == overflow and dist.get_rank() else loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == after
        return ddp

    return run


def autocast(compress: Compress) -> nn.Module:
    with torch.autocast("cpu", torch.bfloat16):
        return cell()(compress)


def bfloat16() -> nn.Module:
    return make_model().bfloat16()


class Mixed(nn.Module):
    """bfloat16 and float32 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = bfloat16(), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.body(x).float())
        return head


class Checkpointed(Network):
    """The same weights on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(make_model().state_dict())

    def forward(self, inputs: Tensor) -> Tensor:
        inside = checkpoint(
            lambda x: torch.tanh(self.middle(torch.tanh(self.first(x)))), inputs, use_reentrant=False
        )
        head: Tensor = self.head(inside)
        return head


class Derived(DistributedDataParallel):
    """A subclass."""


def tied() -> nn.Module:
    """Two layers share a matrix."""
    model: Any = nn.Sequential(make_model(), nn.Tanh(), nn.Linear(5, 11), nn.Linear(11, 5))
    model[3].weight = model[0].head.weight
    return model  # type: ignore[no-any-return]


def two_models(compress: Compress) -> nn.Module:
    first, second = (DistributedDataParallel(make_model(), **OPTIONS) for _ in range(2))
    compress(first), compress(second)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        sum(
            loss_of(model, dist.get_rank(), 6 * i + step) for i, model in enumerate((first, second))
        ).backward()
        optimizer.step()
    return nn.ModuleList([first, second])


def uneven_inputs(compress: Compress) -> nn.Module:
    """One worker has two batches more."""
    ddp = DistributedDataParallel(make_model(), **OPTIONS)
    compress(ddp)
    with Join([ddp]):
        return train(ddp, 4 + 2 * dist.get_rank())


def alone(compress: Compress) -> nn.Module:
    """Each process in a group of its own: nothing is sent."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    return cell(options={**OPTIONS, "process_group": groups[dist.get_rank()]})(compress)


CELLS: dict[str, Callable[[Compress], nn.Module]] = {
    "plainly": cell(),
    "scaler and clipping": scaled(2.0**10, 2.0**11, 10, overflow=4, clips=True),
    "scaler at one": scaled(1.0, 0.5, 4, overflow=1, clips=False),
    "autocast": autocast,
    "bf16 parameters": cell(bfloat16, lr=0.01),
    "mixed types": cell(Mixed, lr=0.01),
    "activation checkpointing": cell(Checkpointed),
    "compiled inside": cell(lambda: compiled(make_model()), options={}),
    "compiled outside": cell(wrap=compiled, options={}),
    "wrapped subclass": cell(wrap=nn.Sequential, kind=Derived),
    "tied weights": cell(tied),
    "two models": two_models,
    "subgroup": alone,
    "uneven inputs": uneven_inputs,
}


@scenario(2, values=product(EVERYTHING, CELLS))
def a_method_that_sends_everything_trains_as_ddp_alone(case: tuple[Any, str]) -> None:
    (pattern, cell), ends = case, []
    for compress in (
        lambda *_, **__: None,
        lambda held, **more: compress_gradients(held, EVERYTHING[pattern], pattern=pattern, **more),
    ):
        model = CELLS[cell](compress)
        ends.append(torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()]))
    assert float(ends[0].abs().sum()) > 1
    assert float((ends[0] - ends[1]).abs().max()) < 1e-7
    if cell != "subgroup":  # each trains for itself
        assert_alike(ends[1].tolist())
