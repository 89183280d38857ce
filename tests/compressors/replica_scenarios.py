"""What four workers, two islands of two, find about `compress_replicas`: FSDP2 over gloo, beside native HSDP.

    python replica_scenarios.py RANK FOLDER

saves what every scenario returned, as plain data, in FOLDER/RANK.json; test_replicas.py judges. Worker 3 ends
in the last one, and the others say what they notice.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, compress_replicas

EVERYTHING = "wgt(2e-38) | packed32"
METHODS = ((EVERYTHING,), (EVERYTHING, "none"))
SPARSE = "strom(density(0.05), exempt={'smaller_than': 20}) | golomb_rice"
WIDTH = 13
"""Odd, so that shards are padded."""


def network(kind: str = "") -> nn.Sequential:
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(2)]
    twice = blocks[1:] if kind == "a module used twice" else []
    model = nn.Sequential(*blocks, *twice, nn.Linear(WIDTH, 3))
    if kind == "unused parameters":
        model[1].spare = nn.Parameter(torch.ones(2, 5))
    return model


def sharded(mesh: DeviceMesh, model: nn.Sequential | None = None, **options: Any) -> nn.Sequential:
    model = network() if model is None else model
    for each in (model[0], model[1], model):
        fully_shard(each, mesh=mesh, **options)
    return model


def passed(model: nn.Module, seed: int, scale: float = 1.0) -> float:
    """A forward and a backward pass of a batch of this worker's own."""
    inputs = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(100 * seed + dist.get_rank()))
    loss = model(inputs).float().square().mean() * scale
    loss.backward()
    return float(loss)


def train(model: Any, backward: Callable[[int], float], steps: Sequence[int] = range(3)) -> list[float]:
    """The losses of some steps, by AdamW and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for step in steps:
        losses.append(backward(step))
        nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def plainly(model: Any) -> list[float]:
    return train(model, partial(passed, model))


def accumulating(model: Any, set_synced: Callable[[bool], None]) -> list[float]:
    def twice(step: int) -> float:
        set_synced(False)
        first = passed(model, 10 * step)
        set_synced(True)
        return first + passed(model, 10 * step + 1)

    return train(model, twice)


def several_exchanges(model: Any) -> list[float]:
    return train(model, lambda step: passed(model, 10 * step) + passed(model, 10 * step + 1))


def divided(model: Any) -> list[float]:
    for each in model.modules():
        if isinstance(each, FSDPModule):
            each.set_force_sum_reduction_for_comms(True)
            each.set_gradient_divide_factor(7.0)
    return plainly(model)


def stepped_in_backward(model: Any) -> list[float]:
    for each in model.parameters():
        optimizer = torch.optim.SGD([each], lr=0.05)

        def step(parameter: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        each.register_post_accumulate_grad_hook(step)
    return [passed(model, step) for step in range(3)]


def partly_unused(model: Any) -> list[float]:
    model.set_reduce_scatter_unused_params(True)
    return plainly(model)


def frozen_and_thawed(model: Any) -> list[float]:
    model[1][0].weight.requires_grad_(False)
    losses = plainly(model)
    model[1][0].weight.requires_grad_(True)
    return losses + plainly(model)


CELLS: dict[str, tuple[Callable[[Any], list[float]], dict[str, Any]]] = {
    "plain": (plainly, {}),
    "set_requires_gradient_sync": (lambda m: accumulating(m, m.set_requires_gradient_sync), {}),
    "set_requires_all_reduce": (lambda m: accumulating(m, m.set_requires_all_reduce), {}),
    "several exchanges": (several_exchanges, {}),
    "divide factor": (divided, {}),
    "bf16 parameters": (plainly, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}),
    "bf16 reduced": (plainly, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16)}),
    "fp16 reduced": (plainly, {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}),
    "optimizer in backward": (stepped_in_backward, {}),
    "not resharded": (plainly, {"reshard_after_forward": False}),
    "unused parameters": (partly_unused, {}),
    "a module used twice": (plainly, {}),
    "frozen and thawed": (frozen_and_thawed, {}),
}


def weights(model: nn.Module) -> Tensor:
    """This worker's shards, one after the other."""
    return torch.cat([local(each).flatten() for each in model.parameters()])


def local(tensor: Any) -> Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def beside_hsdp(mesh: DeviceMesh) -> dict[str, Any]:
    """By cell and method, how far from native HSDP losses and weights are, and how far these moved."""
    found = {}
    for name, (trained, options) in CELLS.items():
        native = sharded(mesh, network(name), **options)
        before = weights(native)
        expected = trained(native)
        for method in METHODS[name in ("plain", "several exchanges")]:
            ours = sharded(mesh["shard"], network(name), **options)
            state = compress_replicas(ours, mesh["replicate"], method)
            losses = trained(ours)
            found[f"{name}: {method}"] = {
                "off": max(map(abs, (weights(ours) - weights(native)).tolist())),
                "losses off": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
                "moved": float((weights(ours) - before).norm()),
                "weights": weights(ours).tolist(),
                "steps": state.totals.steps,
                "elements": state.totals.elements,
            }
    return found


def poisoned(
    state: Any, by_step: dict[int, float], seen: dict[str, Tensor] | None = None
) -> Callable[[int], None]:
    """Notes, and spoils in some steps, what FSDP2 hands to the hooks."""
    now = [0]
    for unit in state._units:

        def hook(flat: Tensor, unit: Any = unit, then: Any = unit.group._all_reduce_hook) -> None:
            if now[0] in by_step and unit is state._units[0]:
                flat[0] = by_step[now[0]]
            elif seen is not None:
                for parameter, shard in zip(*unit.shards(flat), strict=True):
                    seen[unit.names[parameter]] = seen.get(unit.names[parameter], 0) + shard.double()
            then(flat)

        unit.group._all_reduce_hook = hook
    return lambda step: now.__setitem__(0, step)


def conserved(mesh: DeviceMesh) -> dict[str, float]:
    """What is missing where what was sent and is kept is set against the sum of gradients."""
    model = sharded(mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], SPARSE)
    seen: dict[str, Tensor] = {}
    poisoned(state, {}, seen)
    applied: dict[str, Tensor] = {}
    for step in range(6):
        passed(model, step)
        for name, each in model.named_parameters():
            applied[name] = applied.get(name, 0) + local(each.grad).flatten().double()
        model.zero_grad()
    group, missing = mesh["replicate"].get_group(), {}
    for name, gradients in seen.items():
        kept = state.feedback.residuals.get(name, torch.zeros(gradients.numel())).double()
        left = gradients - kept
        dist.all_reduce(left, group=group)
        missing[name] = float((left - 2 * applied[name]).abs().max() / left.abs().max())
    return {
        "missing": max(missing.values()),
        "parameters": len(missing),
        "kept": float(sum(each.norm() for each in state.feedback.residuals.values())),
        "exempt": sorted({each.name for each in state.last_step.layers if each.sent == each.elements}),
        "fraction": state.totals.fraction,
        "ratio": state.totals.compression_ratio,
    }


class Run:
    """A training that can be saved."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.model = sharded(mesh["shard"])
        self.state = compress_replicas(
            self.model, mesh["replicate"], "strom(density(0.05), momentum=0.5) | golomb_rice"
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self, steps: Sequence[int]) -> "Run":
        for step in steps:
            passed(self.model, step)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


def going_on(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    """A run that was saved and loaded, beside one that was not; and another shard's state."""
    whole = Run(mesh).steps(range(6))
    stopped, path = Run(mesh).steps(range(3)), folder / f"state{dist.get_rank()}.pt"
    torch.save(stopped.state.state_dict(), path)
    resumed = Run(mesh)
    resumed.model.load_state_dict(stopped.model.state_dict())
    resumed.state.load_state_dict(torch.load(path, weights_only=True))
    resumed.steps(range(3, 6))
    dist.barrier()
    return {
        "same": bool(torch.equal(weights(whole.model), weights(resumed.model))),
        "totals": whole.state.totals == resumed.state.totals,
        "another": refusal(
            lambda: resumed.state.load_state_dict(torch.load(folder / f"state{dist.get_rank() ^ 1}.pt"))
        ),
    }


def resharded(mesh: DeviceMesh, folder: Path) -> dict[str, Any] | None:
    """Residuals of two shards, loaded by one, as far as they differ; of both replicas."""
    run = Run(mesh).steps(range(3))
    saved = run.state.residuals()
    dcp.save({"compression": saved}, checkpoint_id=folder / "dcp")
    ((_, kinds),) = saved.items()
    full = {kind: {name: each.full_tensor() for name, each in of.items()} for kind, of in kinds.items()}
    pair = DeviceMesh("cpu", torch.tensor([[0], [2]]), mesh_dim_names=("replicate", "shard"))
    group = dist.new_group([0, 2])
    if pair.get_coordinate() is None:
        return None
    alone = Run(pair)
    dcp.load({"compression": alone.state.residuals()}, checkpoint_id=folder / "dcp", process_group=group)
    kept = alone.state.feedback
    pairs = [(full["residuals"], kept.residuals), (full["velocities"], kept.velocities)]
    return {
        "off": max(
            float((was[name].flatten() - now[name]).abs().max()) for was, now in pairs for name in was
        ),
        "kept": float(sum(each.norm() for each in kept.residuals.values())),
        "parameters": len(kept.residuals),
    }


def in_local_steps(mesh: DeviceMesh) -> dict[str, Any]:
    """Islands that take steps of their own, beside two whole models that average their weights."""
    model = sharded(mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    local_steps = LocalSteps(model, optimizer, every=2, group=mesh["replicate"].get_group())
    whole = [network() for _ in range(2)]
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.02) for each in whole]
    for step in range(5):
        passed(model, step)
        optimizer.step()
        optimizer.zero_grad()
        local_steps.step()
        for island, (alone, its) in enumerate(zip(whole, optimizers, strict=True)):
            for rank in (2 * island, 2 * island + 1):
                inputs = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
                (alone(inputs).square().mean() / 2).backward()
            its.step()
            its.zero_grad()
        if step % 2:
            with torch.no_grad():
                for pair in zip(*(each.parameters() for each in whole), strict=True):
                    mean = (pair[0] + pair[1]) / 2
                    for each in pair:
                        each.copy_(mean)
    expected = weights(whole[dist.get_rank() // 2])
    own = torch.cat([each.full_tensor().detach().flatten() for each in model.parameters()])  # type: ignore
    return {
        "off": float((own - expected).abs().max()),
        "apart": float((weights(whole[0]) - weights(whole[1])).abs().max()),
        "elements": local_steps.totals.sent,
    }


def skipping(mesh: DeviceMesh) -> dict[str, Any]:
    """One shard of one replica overflows in a step."""
    model = sharded(mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], "wgt(0.01, nonfinite='skip')")
    at = poisoned(state, {1: torch.nan} if dist.get_rank() == 3 else {})
    skipped = []
    for step in range(3):
        at(step)
        passed(model, step)
        skipped.append(state.last_step.skipped)
        model.zero_grad()
    return {"skipped": skipped, "total": state.totals.skipped_steps}


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "nothing was refused"


def refused(mesh: DeviceMesh) -> dict[str, str]:
    """What was said, by what was wrong."""
    replicate, shard, island = mesh["replicate"], mesh["shard"], dist.get_rank() // 2
    hooked = sharded(shard)
    compress_replicas(hooked, replicate, "none")
    last = network()
    typing_error = "wgt(0.1, exempt={'names': ['x*']})"
    alone = [dist.new_group([rank]) for rank in range(4)][dist.get_rank()]

    def first_step(method: str, model: nn.Module, scale: float = 1.0) -> str:
        compress_replicas(model, replicate, method)
        return refusal(lambda: passed(model, 0, scale))

    other = sharded(shard)
    with torch.no_grad():
        local(other[0][0].weight).add_(island)
    return {
        "DDP": refusal(lambda: compress_replicas(DistributedDataParallel(last), replicate, "none")),
        "HSDP": refusal(lambda: compress_replicas(sharded(mesh), replicate, "none")),
        "alone": refusal(lambda: compress_replicas(sharded(shard), alone, "none")),
        "island": refusal(lambda: compress_replicas(sharded(shard), shard, "none")),
        "no group": refusal(lambda: compress_replicas(sharded(shard), None, "none")),  # type: ignore[arg-type]
        "powersgd": refusal(lambda: compress_replicas(sharded(shard), replicate, "powersgd")),
        "twice": refusal(lambda: compress_replicas(hooked, replicate, "none")),
        "pattern": refusal(lambda: compress_replicas(sharded(shard), replicate, typing_error)),
        "methods": first_step(f"wgt(0.0{1 + island})", sharded(shard)),
        "weights": first_step("wgt(0.01)", other),
        "unused": first_step("wgt(0.01)", sharded(shard, network("unused parameters"))),
        "nan": first_step("wgt(0.01)", sharded(shard), torch.nan),
    }


def lost(mesh: DeviceMesh, told: Callable[[str], None]) -> None:
    """Worker 3 ends between two steps."""
    model = sharded(mesh["shard"])
    compress_replicas(model, mesh["replicate"], "wgt(0.01)")
    passed(model, 0)
    if dist.get_rank() == 3:
        os._exit(0)
    told(refusal(lambda: [passed(model, step) for step in range(1, 100)]))


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    without = refusal(lambda: compress_replicas(network(), None, "none"))  # type: ignore[arg-type]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))
    found: dict[str, Any] = {
        "beside_hsdp": beside_hsdp(mesh),
        "conserved": conserved(mesh),
        "going_on": going_on(mesh, folder),
        "resharded": resharded(mesh, folder),
        "in_local_steps": in_local_steps(mesh),
        "skipping": skipping(mesh),
        "refused": {"without": without, **refused(mesh)},
    }

    def write(what: str | None = None) -> None:
        (folder / f"{rank}.json").write_text(json.dumps({**found, "lost": what}))

    write()
    dist.barrier()
    lost(mesh, write)
    os._exit(0)  # there is nobody left to say goodbye to


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
