"""PowerSGD, torch's hook under our state, beside what holds of every method (ddp_methods.py); see ddp.py."""

from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from ddp import Run, assert_alike, batch_of, everyone, scenario
from ddp_methods import handed_to_all_reduces
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.methods import PowerSGD, read_config

STEPS = 8
SEVERAL = {"bucket_cap_mb": 0.0006}
"""Options of DDP that give a bucket to every two or three parameters."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rank 1": ("powersgd(start=2)", {}),
    "rank 2": ("powersgd(2, start=2)", {}),
    "several buckets": ("powersgd(3, start=3)", SEVERAL),
    "cold start": ("powersgd(2, start=2, warm_start=False)", {**SEVERAL, "gradient_as_bucket_view": True}),
    "no feedback": ("powersgd(start=2, feedback=False)", SEVERAL),
    "other rate": ("powersgd(start=2, min_rate=3.5, seed=5, feedback=False, warm_start=False)", {}),
}
"""By name, the line and options of DDP."""


class Network(nn.Module):
    """Layers registered in another order than they are used in; two of one shape, not side by side."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(12, 5)
        self.wide = nn.Linear(16, 12)
        self.square = nn.Linear(12, 12)
        self.narrow = nn.Linear(12, 16)
        self.other = nn.Linear(12, 12)
        self.first = nn.Conv1d(2, 6, 3)

    def forward(self, inputs_N2L: Tensor) -> Tensor:
        values = torch.tanh(self.first(inputs_N2L)).flatten(1)
        for layer in (self.square, self.narrow, self.wide, self.other):
            values = torch.tanh(layer(values))
        outputs: Tensor = self.head(values)
        return outputs


SHAPES = {name: tensor.shape for name, tensor in Network().named_parameters()}


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    inputs, labels = batch_of(rank, step, 2, 4)
    return nn.functional.cross_entropy(model(inputs), labels)


class Counted(Run):
    """A run that notes, by step, the parameters of each bucket and all elements of started all-reduces."""

    def __init__(self, line: str, **options: Any) -> None:
        self.buckets: list[list[list[str]]] = []
        self.reduced: list[list[int]] = []

        def hook(state: CompressionState, bucket: dist.GradBucket) -> Future[Tensor]:
            self.buckets[-1].append([state._names[id(parameter)] for parameter in bucket.parameters()])
            return compression_hook(state, bucket)

        options = {"model": Network(), "loss": loss_of, "process_group": None, **options}
        super().__init__(line, hook=hook, **options)

    def backward(self) -> None:
        self.buckets.append([])
        self.reduced.append([])
        all_reduce = dist.all_reduce

        def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            self.reduced[-1].append(tensor.numel())
            return all_reduce(tensor, *arguments, **options)

        dist.all_reduce = counted
        try:
            super().backward()
        finally:
            dist.all_reduce = all_reduce

    @property
    def memory(self) -> dict[str, Any]:
        memory: dict[str, Any] = self.state.state_dict()["powersgd"]
        return memory


def made(variant: str) -> tuple[PowerSGD, Counted]:
    line, options = VARIANTS[variant]
    config: Any = read_config(line)
    return config, Counted(line, **options)


@scenario(2, values=VARIANTS)
def what_it_remembers_is_alike_but_for_each_workers_errors(variant: str) -> None:
    config, run = made(variant)
    check_counts(config, run.steps(STEPS))
    memory = run.memory
    assert_alike(
        {**memory, "errors": None, "qs": {name: tensor.tolist() for name, tensor in memory["qs"].items()}}
    )
    assert bool(memory["errors"]) == config.feedback
    assert bool(memory["qs"]) == config.warm_start
    for name, errors in memory["errors"].items():
        first, second = everyone(errors)
        assert not torch.equal(first, second), name


def check_counts(config: PowerSGD, run: Counted) -> None:
    """Elements by the paper, (n + m) x rank for a compressed matrix, are what reached `all_reduce`."""
    before = after = 0
    for step, (buckets, reduced) in enumerate(zip(run.buckets, run.reduced, strict=True)):
        assert sorted(name for names in buckets for name in names) == sorted(SHAPES)
        due = handed_to_all_reduces(config, step, SHAPES.values())
        assert sum(reduced) == due
        if step >= config.start:
            before += sum(shape.numel() for shape in SHAPES.values())
            after += due
    assert after < 0.75 * before
    assert (run.memory["elements_before"], run.memory["elements_after"]) == (before, after)


@scenario(2, values=["rank 1", "rank 2", "several buckets", "no feedback"])
def weights_are_those_of_torchs_hook_alone(variant: str) -> None:
    """From the same first Qs."""
    config, run = made(variant)
    _, other = made(variant)
    twin: Any = other.state._reducer
    alone = PowerSGDState(None, config.rank, config.start, use_error_feedback=config.feedback)

    def hook(bucket: dist.GradBucket) -> Future[Tensor]:
        index = bucket.index()
        if alone.iter >= config.start and index not in alone.q_memory_dict:
            twin._torchs.iter = alone.iter
            twin._fit(bucket)
            for memory in ("p_memory_dict", "q_memory_dict"):
                getattr(alone, memory)[index] = getattr(twin._torchs, memory)[index].clone()
        future = powerSGD_hook(alone, bucket)
        future.wait()
        return future

    twin._start = lambda bucket: (hook(bucket), {}, perf_counter())
    assert run.steps(STEPS).digests == other.steps(STEPS).digests
