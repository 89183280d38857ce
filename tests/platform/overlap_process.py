"""One worker whose exchange begins in the backward pass: `python overlap_process.py RANK WORKERS FOLDER`.

What each case came to is in FOLDER/overlap_RANK.pt. `learn` and the models serve simulated workers, too.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from taugrad.compressors.spans import RECORDER
from taugrad.platform.data.feeding import Batch
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import Moment, Synchronization
from taugrad.platform.synchronization.building import build_synchronization
from taugrad.platform.synchronization.gradients import GradientsInRounds
from taugrad.platform.tasks.classification import ClassificationTask
from taugrad.platform.training.batch_plan import Position

WORKERS, STEPS, MIDDLE, INPUTS, CLASSES = 3, 6, 3, 20, 10
DEADLINE_S = 60
TRAINING: dict[str, Any] = {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0}}
STROM = "strom(density(0.1)) | golomb_rice"
SHARDS = {"mode": "sharded"}
SERVER = {"mode": "parameter_server"}


def spec(line: str, sync: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {
        "compressor": line,
        "sync": sync,
        "training": TRAINING | training,
        "workers": {"count": WORKERS},
    }


FEW_ELEMENTS = "shards, some of them empty"
EQUAL = {
    "shards": spec(STROM, SHARDS),
    "shards, uncompressed": spec("none", SHARDS | {"buckets": 2}),
    "shards, by parameter": spec("topk(0.2) | quantile(4, block=32)", SHARDS | {"buckets": 3}),
    "shards, a budget for all layers": spec("wgt(allocate(0.1, every=2))", SHARDS | {"buckets": 2}),
    "shards, a law": spec("bgt(law(constant=1))", SHARDS),
    "shards, other way back": spec(STROM, SHARDS | {"buckets": 3, "back": "linear(8)"}),
    FEW_ELEMENTS: spec("wgt(0.01)", SHARDS | {"buckets": 80}),
    "shards, in parts": spec("strom(density(0.2), momentum=0.9)", SHARDS | {"buckets": 3}, accumulate=2),
    "shards, unused": spec(STROM, SHARDS | {"buckets": 3}, find_unused_parameters=True),
    "shards, clipped mean": spec(
        "linear(5, exempt=exempt(names=['*.bias']))", SHARDS | {"buckets": 2}, clip={"norm": 0.1}
    ),
    "server": spec(STROM, SERVER),
    "server, in buckets": spec("linear(5, exempt=exempt(names=['*.bias']))", SERVER | {"buckets": 4}),
}
LATER = {
    "shards, fp16": spec(STROM, SHARDS | {"buckets": 2}, precision="fp16"),
    "shards, may leave steps out": spec("wgt(0.01, nonfinite='skip')", SHARDS | {"buckets": 2}),
    "shards, clipped": spec(STROM, SHARDS | {"buckets": 2}, clip={"norm": 0.1, "of": "worker"}),
    "shards, told not to": spec(STROM, SHARDS | {"buckets": 3, "overlap": False}),
}
"""What begins after the backward pass."""
CASES = EQUAL | LATER
OVERFLOWS = ("shards, fp16", "shards, may leave steps out")
"""In the second step worker 1's gradients do."""


class Gate(torch.autograd.Function):
    """Does nothing, and calls something in the backward pass."""

    @staticmethod
    def forward(context: Any, values: Tensor, passing: Callable[[], None]) -> Tensor:
        context.passing = passing
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.passing()
        return gradient, None


class Net(nn.Module):
    """Some layers, one of which is used for some batches alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(INPUTS, 60), nn.Linear(60, 60)
        self.spare, self.head = nn.Linear(60, 60), nn.Linear(60, CLASSES)
        self.passing: Callable[[], None] = lambda: None
        """Called when only the first layer's gradients are missing."""
        self.uses_all = False

    def forward(self, inputs: Tensor) -> Tensor:
        values = Gate.apply(torch.tanh(self.first(inputs)), self.passing)
        values = torch.tanh(self.hidden(values))
        if self.uses_all or inputs[0, 0] > 0:
            values = torch.tanh(self.spare(values))
        found: Tensor = self.head(values)
        return found


class Twice(Net):
    """Has one layer in two passes within the backward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        values = torch.tanh(self.first(inputs))
        for _ in range(2):
            values = checkpoint(self.hidden, values, use_reentrant=True)
        found: Tensor = self.head(values)
        return found


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(INPUTS, CLASSES) if name == FEW_ELEMENTS else Net()


def build(given: dict[str, Any], model: nn.Module) -> Synchronization:
    sync, _ = build_synchronization(
        RunSpec.model_validate(given), model, ClassificationTask(), torch.device("cpu")
    )
    return sync


def batch(rank: int, step: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn((6, INPUTS), generator=generator)
    return Batch(inputs, torch.randint(CLASSES, (6,), generator=generator), 1.0)


def moment(step: int) -> Moment:
    return Moment(Position(0, step, STEPS, step, 18, STEPS), step + 1 == STEPS, observe=step == 1)


def learn(name: str, sync: Synchronization, steps: Sequence[int]) -> list[float]:
    losses = []
    for step in steps:
        batches = [batch(rank, step) for rank in sync.ranks]
        if name in OVERFLOWS and step == 1:
            huge = 1e6 if "fp16" in name else float("inf")
            batches = [
                replace(each, inputs=each.inputs * huge) if rank == 1 else each
                for rank, each in zip(sync.ranks, batches, strict=True)
            ]
        losses.append(sync.iterate(batches, moment(step)))
    return losses


def found_of(sync: Synchronization) -> dict[str, Any]:
    links = sync.links()
    assert links is not None
    return {
        "weights": {key: each.clone() for key, each in sync.model.state_dict().items()},
        "totals": sync.totals.state_dict(),
        "links": torch.from_numpy(links.nbytes.copy()),
        "kept": {rank: plain(state) for rank, state in sync.own_state()["patterns"]["ranks"].items()},
        "layers": [fields_of(each) for each in sync.last_step.layers],
        "statistics": {
            key: vars(each) if hasattr(each, "__dict__") else repr(each)
            for key, each in sync.statistics.items()
        },
    }


def fields_of(tally: Any) -> dict[str, Any]:
    fields = ("name", "elements", "sent", "residual_squares", "tau", "paper_bits")
    return {field: getattr(tally, field) for field in fields}


def plain(state: Any) -> Any:
    """A copy."""
    if isinstance(state, dict):
        return {key: plain(each) for key, each in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def equal_case(name: str) -> dict[str, Any]:
    sync = build(CASES[name], model_of(name))
    losses = learn(name, sync, range(MIDDLE))
    shared, own = plain(sync.shared_state()), plain(sync.own_state())
    losses += learn(name, sync, range(MIDDLE, STEPS))
    again = build(CASES[name], model_of(name))
    again.load(shared, own)
    learn(name, again, range(MIDDLE, STEPS))
    assert isinstance(sync, GradientsInRounds)
    return found_of(sync) | {
        "losses": losses,
        "overlaps": sync._overlap is not None,
        "resumed": found_of(again),
    }


def until(sync: Synchronization, ready: Callable[[Any], bool]) -> Callable[[], None]:
    """Waits in the backward pass for something that others do in theirs."""
    assert isinstance(sync, GradientsInRounds)
    ahead = sync._crew.ahead  # type: ignore[attr-defined]

    def wait() -> None:
        end = monotonic() + DEADLINE_S
        while not ready(ahead):
            assert monotonic() < end, "nothing arrived while gradients are computed"
            sleep(1e-3)

    return wait


def in_order(rank: int) -> list[tuple[str, float, float]]:
    """Spans of a step in whose backward pass nobody goes on before the others' last layers are there."""
    model = Net()
    sync = build(spec("wgt(0.001)", SHARDS | {"buckets": 3}), model)
    learn("", sync, [0])
    model.passing, model.uses_all = until(sync, lambda ahead: ahead.arrived(rank) is not None), True
    RECORDER.start()
    learn("", sync, [1])
    return [(span.name, span.began, span.ended) for span in RECORDER.stop()]


def broken(rank: int, case: str) -> tuple[str, str]:
    """The error of a run that cannot go on."""
    model = Twice() if case == "twice" else Net()
    sync = build(spec("wgt(0.001)", SHARDS | {"buckets": 1 if "one" in case else 3}), model)
    if case != "twice":
        learn("", sync, [0])
    model.uses_all = True
    if "not finite" in case and rank == 1:
        layer = model.head if "last layer" in case else model.first
        layer.bias.register_hook(lambda gradient: gradient * torch.nan)
    if case == "damaged":
        pattern, outlet = sync._patterns[0], sync._crew.ahead  # type: ignore[attr-defined]
        if rank == 1:
            pattern.outlet = _Damaging(outlet)
        elif rank == 0:
            # Range 0 has the last layer and a part of the one before.
            model.passing = until(sync, lambda ahead: ahead.arrived(0) is not None)
    try:
        learn("", sync, [2])
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


class _Damaging:
    """An outlet that changes the last byte of what goes to worker 0."""

    def __init__(self, outlet: Any) -> None:
        self._outlet = outlet

    def out(self, number: int, part: Any) -> None:
        part = part.copy()
        part[-1] ^= number == 0
        self._outlet.out(number, part)

    def back(self, number: int, part: Any) -> None:
        self._outlet.back(number, part)


BROKEN = (
    *("first layer not finite", "last layer not finite", "last layer not finite, one bucket"),
    *("twice", "damaged"),
)
"""The last one ends worker 0 alone: the others learn of it when its process has ended."""
_GROUPS = count()


def grouped(rank: int, folder: Path, work: Callable[[], Any]) -> Any:
    """What a work comes to in a process group of its own."""
    store = dist.FileStore(str(folder / f"store_{next(_GROUPS)}"), WORKERS)
    timeout = timedelta(seconds=DEADLINE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS, timeout=timeout)
    try:
        return work()
    finally:
        dist.destroy_process_group()


def main(rank: int, workers: int, folder: Path) -> None:
    assert workers == WORKERS
    torch.set_num_threads(1)
    results: dict[str, Any] = grouped(
        rank,
        folder,
        lambda: {name: equal_case(name) for name in CASES} | {"order": in_order(rank)},
    )
    results["broken"] = {case: grouped(rank, folder, lambda case=case: broken(rank, case)) for case in BROKEN}
    torch.save(results, folder / f"overlap_{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
