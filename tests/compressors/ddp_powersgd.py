"""PowerSGD against torch's hook alone, beside what holds of every method (ddp_methods.py); see ddp.py."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ddp import Run, assert_alike, batch_of, everyone, scenario
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from taugrad.compressors.methods import read_config

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


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    inputs, labels = batch_of(rank, step, 2, 4)
    return nn.functional.cross_entropy(model(inputs), labels)


class Alone:
    """torch's hook, which begins with our Qs: by seed, iteration and the parameter's name."""

    def __init__(self, config: Any, model: nn.Module) -> None:
        self.config, self.names = config, {id(p): name for name, p in model.named_parameters()}
        options = {"use_error_feedback": config.feedback, "min_compression_rate": config.min_rate}
        self.state = PowerSGDState(None, config.rank, config.start, **options)

    def hook(self, _: None, bucket: dist.GradBucket) -> Future[Tensor]:
        state, index = self.state, bucket.index()
        if state.iter >= self.config.start and not (self.config.warm_start and index in state.q_memory_dict):
            qs: dict[torch.Size, list[Tensor]] = {}  # torch's order: those of one shape side by side
            rows = 0
            for parameter in bucket.parameters():
                matrix = parameter.view(len(parameter), -1)
                rank = min(*matrix.shape, self.config.rank)
                if sum(matrix.shape) * rank * self.config.min_rate < matrix.numel():
                    seed = [self.config.seed, state.iter, *self.names[id(parameter)].encode()]
                    shape = matrix.shape[1], rank
                    q = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
                    qs.setdefault(matrix.shape, []).append(torch.from_numpy(q).to(parameter).flatten())
                    rows += len(matrix) * rank
            nothing = torch.empty(0, device=bucket.buffer().device)
            state.q_memory_dict[index] = torch.cat([nothing, *(q for alike in qs.values() for q in alike)])
            state.p_memory_dict[index] = nothing.new_empty(rows)
        future: Future[Tensor] = powerSGD_hook(state, bucket)
        future.wait()  # gloo starts several buckets' all-reduces in any order
        return future


@scenario(2, values=VARIANTS)
def weights_are_those_of_torchs_hook_alone(variant: str) -> None:
    line, options = VARIANTS[variant]
    config: Any = read_config(line)
    ours, theirs = (Run(made, model=Network(), loss=loss_of, **options) for made in (line, None))
    alone = Alone(config, theirs.model)
    theirs.ddp.register_comm_hook(None, alone.hook)
    assert ours.steps(STEPS).digests == theirs.steps(STEPS).digests
    memory: Any = ours.state.state_dict()["powersgd"]
    counts = alone.state.total_numel_before_compression, alone.state.total_numel_after_compression
    assert (memory["elements_before"], memory["elements_after"]) == counts
    assert counts[1] < 0.75 * counts[0]
    qs = {name: q.tolist() for name, q in memory["qs"].items()}
    assert_alike({**memory, "errors": None, "qs": qs})
    assert bool(memory["errors"]) == config.feedback
    assert bool(qs) == config.warm_start
    for name, errors in memory["errors"].items():
        first, second = everyone(errors)
        assert not torch.equal(first, second), name
