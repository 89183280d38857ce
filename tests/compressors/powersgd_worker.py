"""What the workers of PowerSGD's tests run: one process a worker, real DDP over gloo.

    python powersgd_worker.py GROUP RANK WORKERS FOLDER

runs every scenario of a group and saves what each returned, as plain data, in FOLDER/GROUP-RANK.pt. The
tests read those files and judge; nothing is asserted here.
"""

import hashlib
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors.method import PowerSGD as Fields
from taugrad.compressors.peers.powersgd import PowerSGD

Result = dict[str, Any]

STEPS, STOP = 12, 6
SEVERAL = {"bucket_cap_mb": 0.0006}
"""Options of DDP that give a bucket to every two or three parameters."""

VARIANTS: dict[str, tuple[Result, Result]] = {
    "rank 1": ({"start": 2}, {}),
    "rank 2": ({"rank": 2, "start": 2}, {}),
    "rank 3": ({"rank": 3, "start": 2}, {}),
    "several buckets": ({"start": 2}, SEVERAL),
    "several buckets, rank 3": ({"rank": 3, "start": 3}, SEVERAL),
    "cold start": ({"rank": 2, "start": 2, "warm_start": False}, SEVERAL),
    "no feedback": ({"start": 2, "feedback": False}, SEVERAL),
    "neither": ({"start": 2, "feedback": False, "warm_start": False}, {}),
    "stopped at start": ({"start": STOP}, SEVERAL),
    "stopped before start": ({"start": STOP + 1}, SEVERAL),
    "bucket view": ({"start": 2}, {**SEVERAL, "gradient_as_bucket_view": True}),
    "other rate": ({"start": 2, "min_rate": 3.5, "seed": 5}, {}),
}
"""By name, the options of PowerSGD and those of DDP."""


class Network(nn.Module):
    """Layers registered in another order than they are used in; two of one shape, not side by side."""

    def __init__(self) -> None:
        super().__init__()
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
    """The loss of a worker's batch; the same numbers in every process."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 2, 4, generator=generator)
    labels = torch.randint(0, 5, (8,), generator=generator)
    return nn.functional.cross_entropy(model(inputs), labels)


class Run:
    """One worker's training.

    Attributes:
        local, applied: by parameter, the sums of this worker's and of the synchronized gradients, float64.
        latest: by parameter, this worker's gradient of the latest step.
        buckets: by step, the parameters of each bucket and what was handed over for it.
        reduced: by step, the elements of every all-reduce that was started, counted there.
        digests: of the weights after each step.
    """

    def __init__(
        self, options: Result, ddp_options: Result | None = None, model: nn.Module | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = model or Network()
        self.ddp = DistributedDataParallel(self.model, **ddp_options or {})
        self.named = dict(self.model.named_parameters())
        self.power = PowerSGD(None, self.named, {}, Fields(**options))
        self.ddp.register_comm_hook(self, Run.synchronize)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.local = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self.named.items()}
        self.applied = {name: torch.zeros_like(total) for name, total in self.local.items()}
        self.latest: dict[str, Tensor] = {}
        self.buckets: list[list[tuple[list[str], int]]] = []
        self.reduced: list[list[int]] = []
        self.digests: list[str] = []
        self.at = 0
        for name, parameter in self.named.items():
            parameter.register_hook(lambda gradient, name=name: self._note(name, gradient))

    def _note(self, name: str, gradient: Tensor) -> None:
        self.local[name] += gradient.double()
        self.latest[name] = gradient.detach().clone()

    def synchronize(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The hook."""
        future = self.power.synchronize(bucket)
        names = [name for p in bucket.parameters() for name, each in self.named.items() if each is p]
        self.buckets[-1].append((names, self.power.handed_over))
        return future

    def step(self, loss: Tensor | None = None) -> None:
        """One whole step; with no loss given that of the default batch."""
        self.buckets.append([])
        self.reduced.append([])
        self.optimizer.zero_grad()
        all_reduce = dist.all_reduce

        def counted(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
            self.reduced[-1].append(tensor.numel())
            return all_reduce(tensor, *arguments, **options)

        dist.all_reduce = counted
        try:
            (loss_of(self.ddp, dist.get_rank(), self.at) if loss is None else loss).backward()
        finally:
            dist.all_reduce = all_reduce
        for name, parameter in self.named.items():
            self.applied[name] += parameter.grad.double()
        self.optimizer.step()
        weights = (p.detach().numpy().tobytes() for p in self.model.parameters())
        self.digests.append(hashlib.sha256(b"".join(weights)).hexdigest())
        self.at += 1

    def steps(self, count: int) -> "Run":
        for _ in range(count):
            self.step()
        return self

    def result(self) -> Result:
        """What the tests compare."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self.named.items()}
        kept = ("local", "applied", "buckets", "reduced", "digests")
        return {"state": self.power.state_dict(), "shapes": shapes} | {k: getattr(self, k) for k in kept}


def checkpoint(folder: Path, variant: str) -> Path:
    return folder / f"{variant}-{dist.get_rank()}.pt"


def straight(folder: Path) -> Result:
    return {name: Run(*options).steps(STEPS).result() for name, options in VARIANTS.items()}


def stopped(folder: Path) -> Result:
    result = {}
    for name, options in VARIANTS.items():
        run = Run(*options).steps(STOP)
        state = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "power": run.power.state_dict(),
        }
        torch.save(state, checkpoint(folder, name))
        result[name] = run.result()
    return result


def resumed(folder: Path) -> Result:
    result = {}
    for name, options in VARIANTS.items():
        state = torch.load(checkpoint(folder, name), weights_only=True)
        run = Run(*options)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.power.load_state_dict(state["power"])
        untouched = run.power.state_dict()
        run.at = STOP
        result[name] = {**run.steps(STEPS - STOP).result(), "loaded": untouched}
    return result


def torch_alone(folder: Path) -> Result:
    """Torch's hook without anything around it, from the same first Qs."""
    result = {}
    for name in ("rank 1", "rank 2", "rank 3", "several buckets", "no feedback"):
        options, ddp_options = VARIANTS[name]
        run = Run(options, ddp_options)
        alone = PowerSGDState(
            None,
            options.get("rank", 1),
            options["start"],
            use_error_feedback=options.get("feedback", True),
        )

        def hook(bucket: dist.GradBucket, run: Run = run, alone: PowerSGDState = alone) -> Future[Tensor]:
            index, twin = bucket.index(), run.power._torchs
            if alone.iter >= alone.start_powerSGD_iter and index not in alone.q_memory_dict:
                twin.iter = alone.iter
                run.power._fit(bucket)
                for memory in ("p_memory_dict", "q_memory_dict"):
                    getattr(alone, memory)[index] = getattr(twin, memory)[index].clone()
            future = powerSGD_hook(alone, bucket)
            future.wait()
            return future

        run.power.synchronize = hook  # type: ignore[method-assign]
        result[name] = run.steps(STEPS).digests
    return result


def a_gradient_of_low_rank(folder: Path) -> Result:
    """Two examples a worker give a gradient of rank 2, and all workers' mean one of rank 4."""
    run = Run({"rank": 4, "start": 2}, model=nn.Linear(40, 30, bias=False))
    local, mean = [], []
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        run.step(run.ddp(torch.randn(2, 40, generator=generator)).square().mean())
        local.append(run.latest["weight"])
        mean.append(run.named["weight"].grad.clone())
    return {"local": local, "mean": mean, "reduced": run.reduced}


def gradients_of_zeros(folder: Path) -> Result:
    """Three steps of zeros once compression has begun, then ordinary ones."""
    result = {}
    for variant in ("rank 1", "rank 2", "rank 3", "cold start"):
        run = Run(*VARIANTS[variant])
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
        run.power.load_state_dict({**run.power.state_dict(), "iteration": 2})
        for _ in range(3):
            run.step(0 * loss_of(run.ddp, dist.get_rank(), run.at))
        before = {name: parameter.detach().clone() for name, parameter in run.named.items()}
        run.steps(2)
        moved = {name: not torch.equal(before[name], parameter) for name, parameter in run.named.items()}
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in run.named.values())
        result[variant] = {"digests": run.digests, "moved": moved, "finite": finite}
    return result


class Log(logging.Handler):
    """Keeps the names of the loggers that said something."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.names.append(record.name)


GROUPS: dict[str, list[Callable[[Path], Result]]] = {
    "first-2": [straight, stopped, torch_alone, a_gradient_of_low_rank, gradients_of_zeros],
    "second-2": [resumed],
    "first-3": [straight],
}


def main(group: str, rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    log = Log()
    logging.basicConfig(level=logging.INFO, handlers=[log])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{group}",
        rank=rank,
        world_size=workers,
        timeout=timedelta(seconds=60),
    )
    results = {scenario.__name__: scenario(folder) for scenario in GROUPS[group]}
    torch.save(results | {"log": log.names}, folder / f"{group}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
