"""`compress_replicas` on two islands of two workers: FSDP2, beside native HSDP; see ddp.py."""

import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ddp import DEVICE, everyone, new_group, refusal, scenario, through_a_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, compress_replicas
from taugrad.compressors.exchange.addresses import timeout_of

EVERYTHING = "wgt(2e-38) | packed32"
METHODS = ((EVERYTHING,), (EVERYTHING, "none"))
SPARSE = "strom(density(0.05), exempt={'smaller_than': 20}) | golomb_rice"
WIDTH = 13
"""Odd, so that shards are padded."""
PARAMETERS = 2 * (WIDTH * WIDTH + 3 * WIDTH) + 3 * WIDTH + 3


@cache
def islands() -> DeviceMesh:
    return DeviceMesh(DEVICE.type, torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))


def network(kind: str = "") -> nn.Sequential:
    torch.manual_seed(5)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(2)]
    twice = blocks[1:] if kind == "a module used twice" else []
    outputs = 1 if kind == "an empty shard" else 3
    model = nn.Sequential(*blocks, *twice, nn.Linear(WIDTH, outputs)).to(DEVICE)
    if kind == "unused parameters":
        model[1].spare = nn.Parameter(torch.ones(2, 5, device=DEVICE))
    return model


def sharded(mesh: DeviceMesh, model: nn.Sequential | None = None, **options: Any) -> nn.Sequential:
    model = network() if model is None else model
    for module in (model[0], model[1], model):
        fully_shard(module, mesh=mesh, **options)
    return model


def passed(model: nn.Module, seed: int, scale: float = 1.0) -> float:
    """A forward and a backward pass of a batch of this worker's own."""
    inputs = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(100 * seed + dist.get_rank()))
    inputs = inputs.to(DEVICE)
    loss = model(inputs).float().square().mean() * scale
    loss.backward()
    return float(loss)


def train(
    model: Any, backward: Callable[[int], float], steps: Sequence[int] = range(3), to_none: bool = True
) -> list[float]:
    """The losses of some steps, by AdamW and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for step in steps:
        losses.append(backward(step))
        nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
    return losses


def plainly(model: Any) -> list[float]:
    return train(model, partial(passed, model))


def cleared_to_zeros(model: Any) -> list[float]:
    return train(model, partial(passed, model), to_none=False)


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
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(7.0)
    return plainly(model)


def stepped_in_backward(model: Any) -> list[float]:
    for weight in model.parameters():
        optimizer = torch.optim.SGD([weight], lr=0.05)

        def step(parameter: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        weight.register_post_accumulate_grad_hook(step)
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
    "an empty shard": (cleared_to_zeros, {}),
    "bf16 parameters": (plainly, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}),
    "bf16 reduced": (plainly, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16)}),
    "fp16 reduced": (plainly, {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}),
    "optimizer in backward": (stepped_in_backward, {}),
    "not resharded": (plainly, {"reshard_after_forward": False}),
    "a module used twice": (plainly, {}),
    "frozen and thawed": (frozen_and_thawed, {}),
}
if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):  # torch 2.13
    CELLS["unused parameters"] = (partly_unused, {})


def weights(model: nn.Module) -> Tensor:
    """This worker's shards, one after the other."""
    return torch.cat([local(parameter).flatten().cpu() for parameter in model.parameters()])


def local(tensor: Any) -> Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


@scenario(4, values=CELLS)
def a_method_that_sends_everything_trains_as_hsdp(cell: str) -> None:
    (trained, options), mesh, rank = CELLS[cell], islands(), dist.get_rank()
    native = sharded(mesh, network(cell), **options)
    before = weights(native)
    expected = torch.tensor(trained(native))
    if cell == "an empty shard":
        assert (native[2].bias.to_local().numel() == 0) == bool(rank % 2)
    counted = cell in ("plain", "several exchanges")
    for method in METHODS[counted]:
        model = sharded(mesh["shard"], network(cell), **options)
        state = compress_replicas(model, mesh["replicate"], method)
        losses, actual = torch.tensor(trained(model)), weights(model)
        assert (losses - expected).abs().max() < 1e-6
        assert (actual - weights(native)).abs().max() < 1e-6
        assert (actual - before).norm() > 0.03
        assert everyone(actual)[rank % 2].equal(actual)
        if not counted:
            continue
        assert state.totals.steps == 3
        elements = everyone(state.totals.elements)
        # Without padding. Replicas have the same shards.
        assert elements[0] + elements[1] == (3 if cell == "plain" else 6) * PARAMETERS
        assert elements[0] == elements[2] > elements[1]


def unsharded(tensor: Any) -> Tensor:
    """All of a tensor, on the CPU; torch's `full_tensor` ends the process on a GPU over gloo."""
    return torch.cat(everyone(local(tensor).cpu(), tensor.device_mesh.get_group()))


def poisoned(
    state: Any, by_step: dict[int, float], seen: dict[str, Tensor] | None = None
) -> Callable[[int], None]:
    """Notes, and spoils in some steps, what FSDP2 hands to the hooks."""
    now = [0]
    for unit in state._units:

        def hook(flat: Tensor, unit: Any = unit, then: Any = unit.named.group._all_reduce_hook) -> None:
            if now[0] in by_step and unit is state._units[0]:
                flat[0] = by_step[now[0]]
            elif seen is not None:
                for parameter, shard in zip(*unit.shards(flat), strict=True):
                    seen[unit.named.names[parameter]] = (
                        seen.get(unit.named.names[parameter], 0) + shard.double()
                    )
            then(flat)

        unit.named.group._all_reduce_hook = hook
    return lambda step: now.__setitem__(0, step)


@scenario(4)
def what_was_sent_and_what_is_kept_are_the_gradients_of_shards() -> None:
    mesh = islands()
    model = sharded(mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], SPARSE)
    seen: dict[str, Tensor] = {}
    poisoned(state, {}, seen)
    applied: dict[str, Any] = {}
    for step in range(6):
        passed(model, step)
        for name, tensor in model.named_parameters():
            applied[name] = applied.get(name, 0) + local(tensor.grad).flatten().double()
        model.zero_grad()
    kept = state.feedback.residuals
    assert len(seen) == 10
    for name, gradients in seen.items():
        left = gradients - kept.get(name, torch.zeros_like(gradients)).double()
        dist.all_reduce(left, group=mesh["replicate"].get_group())
        assert (left - 2 * applied[name]).abs().max() < 1e-6 * left.abs().max()
    assert sum(tensor.norm() for tensor in kept.values()) > 0.01
    # By the size of the parameter, not of the shard.
    exempt = sorted({layer.name for layer in state.last_step.layers if layer.sent == layer.elements})
    small = ["0.0.bias", "0.1.bias", "0.1.weight", "1.0.bias", "1.1.bias", "1.1.weight", "2.bias"]
    assert exempt == small
    assert 0 < state.totals.fraction < 0.3


class Training:
    """A training that can be saved."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.model = sharded(mesh["shard"])
        self.state = compress_replicas(
            self.model, mesh["replicate"], "strom(density(0.05), momentum=0.5) | golomb_rice"
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def steps(self, steps: Sequence[int]) -> "Training":
        for step in steps:
            passed(self.model, step)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self


@scenario(4)
def a_run_of_shards_that_goes_on_ends_the_same() -> None:
    mesh, rank = islands(), dist.get_rank()
    whole, resumed = Training(mesh).steps(range(3)), Training(mesh)
    saved = through_a_file(whole.state.state_dict())
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.state.load_state_dict(saved)
    for training in (whole, resumed):
        training.steps(range(3, 6))
    assert weights(resumed.model).equal(weights(whole.model))
    assert resumed.state.totals == whole.state.totals
    others = everyone(saved)[rank ^ 1]
    shards = [f"replica {rank // 2} of 2, shard {shard} of 2" for shard in (1 - rank % 2, rank % 2)]
    assert refusal(lambda: resumed.state.load_state_dict(others)).startswith(
        f"ValueError: the state of {shards[0]}, this is {shards[1]}: for another number of shards"
    )


@scenario(4)
def residuals_of_two_shards_are_loaded_by_one() -> None:
    state = Training(islands()).steps(range(3)).state
    assert everyone(state.is_first_worker) == [True, False, False, False]
    saved = state.residuals()
    ((_, kinds),) = saved.items()
    full = {kind: {name: unsharded(tensor) for name, tensor in of.items()} for kind, of in kinds.items()}
    pair = DeviceMesh(DEVICE.type, torch.tensor([[0], [2]]), mesh_dim_names=("replicate", "shard"))
    group = new_group([0, 2])
    with tempfile.TemporaryDirectory() as temporary:
        folder = everyone(temporary)[0]
        dcp.save({"compression": saved}, checkpoint_id=folder)
        if pair.get_coordinate() is None:
            return
        alone = Training(pair)
        dcp.load({"compression": alone.state.residuals()}, checkpoint_id=folder, process_group=group)
        for kind in ("residuals", "velocities"):
            kept = getattr(alone.state.feedback, kind)
            assert kept.keys() == full[kind].keys()
            assert all(kept[name].cpu().equal(tensor.flatten()) for name, tensor in full[kind].items())
        assert len(full["residuals"]) == 10
        first, second = everyone(float(sum(tensor.norm() for tensor in full["residuals"].values())), group)
        assert first > 0.01 < second != first  # each replica its own


@scenario(4)
def islands_take_local_steps_as_whole_models_would() -> None:
    """Beside two whole models that average their weights."""
    mesh, rank = islands(), dist.get_rank()
    model = sharded(mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    local_steps = LocalSteps(model, optimizer, every=2, group=mesh["replicate"].get_group())
    whole = [network() for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.02) for model in whole]
    for step in range(5):
        passed(model, step)
        optimizer.step()
        optimizer.zero_grad()
        local_steps.step()
        for island, (alone, its) in enumerate(zip(whole, optimizers, strict=True)):
            for worker in (2 * island, 2 * island + 1):
                inputs = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(100 * step + worker))
                (alone(inputs.to(DEVICE)).square().mean() / 2).backward()
            its.step()
            its.zero_grad()
        if step % 2:
            with torch.no_grad():
                for pair in zip(*(model.parameters() for model in whole), strict=True):
                    mean = (pair[0] + pair[1]) / 2
                    for weight in pair:
                        weight.copy_(mean)
    expected = weights(whole[rank // 2])
    local_weights = torch.cat([unsharded(parameter).flatten() for parameter in model.parameters()])
    assert (local_weights - expected).abs().max() < 1e-5
    assert (weights(whole[0]) - weights(whole[1])).abs().max() > 0.01  # the last step was alone
    elements = everyone(local_steps.totals.sent)
    assert elements[0] + elements[1] == 2 * PARAMETERS  # two exchanges


@scenario(4)
def the_timeout_of_a_mesh_is_at_most_that_of_the_default_group() -> None:
    torchs, default = islands()["replicate"].get_group(), timedelta(seconds=240)
    assert torchs._get_backend(torch.device("cpu")).options._timeout > default
    assert timeout_of(torchs) == timeout_of(dist.group.WORLD) == default  # type: ignore[arg-type]
    assert timeout_of(new_group(timeout_s=70)) == timedelta(seconds=70)


@scenario(4)
def a_step_that_one_shard_leaves_out_is_left_out_by_all() -> None:
    mesh = islands()
    model = sharded(mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], "wgt(0.01, nonfinite='skip')")
    at = poisoned(state, {1: torch.nan} if dist.get_rank() == 3 else {})
    skipped = []
    for step in range(3):
        at(step)
        passed(model, step)
        skipped.append(state.last_step.skipped)
        model.zero_grad()
    assert skipped == [False, True, False]
    assert state.totals.skipped_steps == 1


@scenario(4)
def what_replicas_cannot_be_is_refused() -> None:
    mesh = islands()
    replicate, shard, island = mesh["replicate"], mesh["shard"], dist.get_rank() // 2
    hooked, other = sharded(shard), sharded(shard)
    compress_replicas(hooked, replicate, "none")
    alone = [new_group([rank]) for rank in range(4)][dist.get_rank()]
    with torch.no_grad():
        local(other[0][0].weight).add_(island)

    def made(model: Any = None, group: Any = replicate, method: str = "none") -> str:
        model = sharded(shard) if model is None else model
        return refusal(lambda: compress_replicas(model, group, method))

    def first_step(method: str, model: nn.Module, scale: float = 1.0) -> str:
        compress_replicas(model, replicate, method)
        return refusal(lambda: passed(model, 0, scale))

    hook = FSDPModule.set_all_reduce_hook
    del FSDPModule.set_all_reduce_hook
    old = made()
    FSDPModule.set_all_reduce_hook = hook  # type: ignore[method-assign]
    for said, words in (
        (old, "RuntimeError: compress_replicas needs torch 2.8 or newer; this is 2."),
        (made(DistributedDataParallel(network())), "TypeError: model is of DistributedDataParallel: it must"),
        (made(sharded(mesh)), "ValueError: the model's mesh has a dimension for replicas, over which FSDP2"),
        (made(group=alone), "ValueError: a group of one: this worker's shard has no replica to exchange"),
        (made(group=shard), "ValueError: the group holds rank 1 of this worker's own island: it must be"),
        (made(group=None), "TypeError: group is of NoneType: it must be a process group that this worker"),
        (made(method="powersgd"), "ValueError: powersgd with FSDP2: torch's hook keeps its memory by DDP's"),
        (made(hooked), "RuntimeError: the model has an all-reduce hook already: call compress_replicas once"),
        (
            made(method="wgt(0.1, exempt={'names': ['x*']})"),
            "ValueError: exempt.names: 'x*' matches no parameter of the model, which has ",
        ),
        (
            first_step(f"wgt(0.0{1 + island})", sharded(shard)),
            "WorkersDisagree: the workers do not agree: rank 0: tau",
        ),
        (
            first_step("wgt(0.01)", other),
            "WorkersDisagree: the workers do not agree: rank 0: weights of 0.0.weight = ",
        ),
        (
            first_step("wgt(0.01)", sharded(shard, network("unused parameters"))),
            "CompressionError: a gradient of ",
        ),
        (first_step("wgt(0.01)", sharded(shard), torch.nan), "NonFiniteGradient: the gradient of '"),
    ):
        if dist.get_rank() == 0:
            assert said.startswith(words), said
            assert "\n" not in said
