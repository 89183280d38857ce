"""Local steps in each of two processes: what scenarios come to, for `test_local_steps.py`."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, Outer, PeerLost

SPARSE = "strom(density(0.05, every=1)) | golomb_rice"
STEPS = 13
ADAM, SGD = "AdamW", "SGD"
NESTEROV = Outer(lr=0.7, momentum=0.9, nesterov=True)
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "every step": (SGD, {"every": 1}),
    "every third": (ADAM, {"every": 3}),
    "outer": (ADAM, {"every": 3, "outer": NESTEROV}),
    "weights": (SGD, {"every": 3, "exchange": "weights"}),
    "sharded": (SGD, {"every": 3, "pattern": "sharded"}),
    "ring": (SGD, {"every": 3, "pattern": "ring"}),
    "fragments": (ADAM, {"every": 4, "fragments": 2}),
    "by name": (ADAM, {"every": 4, "fragments": [["0", "2"], ["3"]], "outer": NESTEROV}),
    "late": (ADAM, {"every": 4, "delay": 2, "outer": NESTEROV}),
    "late, half own": (ADAM, {"every": 4, "delay": 2, "outer": NESTEROV, "blend": 0.5}),
    "late fragments": (ADAM, {"every": 4, "fragments": 2, "delay": 3, "blend": 0.25}),
    "examples": (SGD, {"every": 3}),
    "examples late": (SGD, {"every": 3, "delay": 1}),
    "by examples": (SGD, {"every_examples": 20}),
}
"""By name, the optimizer, and the arguments; every message holds everything."""
CONSERVED = ((0.0, 1, 0), (0.0, 3, 0), ("1/n", 1, 0), ("1/n", 3, 0), (0.0, 1, 1), ("1/n", 2, 1))
"""What is unsent in own weights, fragments and delay."""
BATCHES = (12, 4)
"""Examples a step, by rank, where examples count."""


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 5))


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    lr = 1e-2 if kind == ADAM else 0.1
    found: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    return found


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, size: int) -> None:
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(1000 * rank + step))
    (model(x) - x[:, :5].sin()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_of(name: str, rank: int) -> int:
    """By examples, the workers come to four exchanges in unequal steps."""
    return (8, 20)[rank] if name == "by examples" else STEPS


def flat(tensors: Any) -> list[float]:
    found: list[float] = torch.cat([each.detach().reshape(-1) for each in tensors]).tolist()
    return found


def dense(name: str) -> dict[str, Any]:
    kind, arguments = DENSE[name]
    rank = dist.get_rank()
    model = network()
    if rank:  # all begin with rank 0's
        nn.init.zeros_(model[0].weight)
    optimizer = optimizer_of(kind, model)
    local = LocalSteps(model, optimizer, **arguments)
    counts = "examples" in name
    for step in range(steps_of(name, rank)):
        size = BATCHES[rank] if counts else 8
        train_step(model, optimizer, rank, step, size)
        local.step(**({"examples": size} if counts else {}))
    own = flat(model.parameters())
    with local.agreed():
        agreed = flat(model.parameters())
    assert flat(model.parameters()) == own
    if name == "by examples" and not rank:  # one step more than the other, before its next exchange
        train_step(model, optimizer, rank, 8, BATCHES[rank])
        local.step(examples=BATCHES[rank])
    local.finish()
    return {
        "own": own,
        "agreed": agreed,
        "finished": flat(model.parameters()),
        "buffers": flat(each.float() for each in model.buffers()),
        "sent": local.totals.sent,
        "wire": local.totals.wire_bytes,
        "elements": local.totals.elements,
    }


def conserved(unsent: float | str, fragments: int, delay: int) -> dict[str, Any]:
    """What a worker handed in, and what it has left, with the agreed weights before and after."""
    rank, model = dist.get_rank(), network()
    optimizer = optimizer_of(ADAM, model)
    parts: dict[str, Any] = {"unsent": unsent, "fragments": fragments, "delay": delay}
    local = LocalSteps(model, optimizer, every=2, compressor=SPARSE, **parts)
    begin = {name: each.clone() for name, each in local.state_dict()["agreed"].items()}
    learned = torch.zeros(sum(each.numel() for each in begin.values()), dtype=torch.float64)
    for step in range(STEPS):
        before = flat(dict(model.named_parameters())[name] for name in begin)
        train_step(model, optimizer, rank, step, 8)
        after = flat(dict(model.named_parameters())[name] for name in begin)
        learned += torch.tensor(before, dtype=torch.float64) - torch.tensor(after, dtype=torch.float64)
        local.step()
    local.finish()
    state = local.state_dict()
    residuals: dict[str, Tensor] = {}
    for each in state["rounds"]["fragments"]:
        residuals |= each["unsent"]["ranks"][str(rank)]["0"]["residuals"]
    return {
        "begin": flat(begin.values()),
        "agreed": flat(state["agreed"].values()),
        "own": flat(state["own"].values()),
        "learned": learned.tolist(),
        "residual": flat(residuals[name] for name in state["agreed"]),
        "fraction": local.totals.fraction,
    }


def resumed(folder: Path) -> dict[str, Any]:
    """A run that is saved while a fragment is on its way, and one that goes on from there."""
    rank = dist.get_rank()
    arguments: dict[str, Any] = {
        "every": 4,
        "compressor": SPARSE,
        "fragments": 2,
        "delay": 2,
        "unsent": "1/n",
        "outer": NESTEROV,
    }

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
        model = network()
        optimizer = optimizer_of(ADAM, model)
        return model, optimizer, LocalSteps(model, optimizer, **arguments)

    def go(
        model: nn.Module, optimizer: torch.optim.Optimizer, local: LocalSteps, first: int, last: int
    ) -> None:
        for step in range(first, last):
            train_step(model, optimizer, rank, step, 8 + rank)
            local.step(examples=8 + rank)

    whole = begin()
    go(*whole, 0, 5)
    path = folder / f"local-{rank}.pt"
    torch.save({"local": whole[2].state_dict(), "optimizer": whole[1].state_dict()}, path)
    go(*whole, 5, STEPS)
    again = begin()
    saved = torch.load(path, weights_only=True)
    going = [each["on_its_way"] is not None for each in saved["local"]["rounds"]["fragments"]]
    again[1].load_state_dict(saved["optimizer"])
    again[2].load_state_dict(saved["local"])
    go(*again, 5, STEPS)
    other = {**saved["local"], "rank": 1 - rank}
    return {
        "going": going,
        "whole": flat(whole[0].parameters()) + flat(each.float() for each in whole[0].buffers()),
        "again": flat(again[0].parameters()) + flat(each.float() for each in again[0].buffers()),
        "totals": [each[2].totals.state_dict() for each in (whole, again)],
        "refused": [
            refused(lambda: again[2].load_state_dict(other)),
            refused(lambda: again[2].load_state_dict({**saved["local"], "version": 0})),
        ],
    }


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refusals() -> dict[str, str]:
    model = network()
    optimizer = optimizer_of(SGD, model)

    def local(model: nn.Module = model, optimizer: Any = optimizer, **arguments: Any) -> str:
        return refused(lambda: LocalSteps(model, optimizer, **{"every": 4, **arguments}))

    frozen = network().requires_grad_(False)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    counted = LocalSteps(model, optimizer, every=4)
    counted.step(examples=3)
    return {
        "every": local(every=0),
        "neither": local(every=None),
        "frozen": local(frozen),
        "other optimizer": local(optimizer=optimizer_of(SGD, network())),
        "no optimizer": local(optimizer=[3]),
        "alone": local(group=alone),
        "ddp": local(DistributedDataParallel(network())),
        "fragment": local(fragments=[["0", "5"], ["2", "3"]]),
        "left": local(fragments=[["0"]]),
        "twice": local(fragments=[["0", "2", "3"], ["0"]]),
        "many": local(fragments=7),
        "delay": local(delay=4),
        "blend": local(blend=0.5),
        "unsent": local(unsent="1/2"),
        "exchange": local(exchange="gradients"),
        "sparse weights": local(exchange="weights", compressor=SPARSE),
        "powersgd": local(compressor="powersgd(2)"),
        "skip": local(compressor={"kind": "wgt", "tau": 0.1, "nonfinite": "skip"}),
        "outer": local(outer=Outer(nesterov=True)),
        "ring": local(pattern="ring", unsent=0.5, compressor=SPARSE),
        "pattern": local(pattern="star"),
        "exempt": local(compressor={"kind": "wgt", "tau": 0.1, "exempt": {"names": ["head.*"]}}),
        "disagree": local(every=3 + dist.get_rank()),
        "examples": refused(counted.step),
        "negative": refused(lambda: counted.step(examples=-1)),
    }


def left_alone() -> str:
    """Rank 1 goes away; rank 0 says so."""
    model = network()
    optimizer = optimizer_of(SGD, model)
    local = LocalSteps(model, optimizer, every=1, compressor=SPARSE)
    if dist.get_rank():
        os._exit(0)
    try:
        local.step()
    except PeerLost as lost:
        return str(lost)
    return ""


def main(folder: str) -> None:
    no_group = refused(lambda: LocalSteps(network(), optimizer_of(SGD, network()), every=1))
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"no group": no_group, **{name: dense(name) for name in DENSE}}
    for setting in CONSERVED:
        found[f"conserved {setting}"] = conserved(*setting)
    found["resumed"] = resumed(Path(folder))
    found["refused"] = refusals()
    path = Path(folder, f"{os.environ['RANK']}.json")
    path.write_text(json.dumps(found))
    dist.barrier()
    found["alone"] = left_alone()
    path.write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
