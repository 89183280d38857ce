"""Workers that do not wait beside workers that do: accuracy, staleness, and speed where one of them is slow.

    python -m benchmarks.platform.asynchronous [--quick] [--write]

Real workers are processes on the loopback interface that sleep where they would compute; simulated ones share
a process, and their course of time is made up. Bytes are equal by a fixed density.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from time import perf_counter, sleep
from typing import Any, Literal

import torch.distributed as dist

from taugrad.platform.replica.replica import Replica
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.asynchronous.mode import AsynchronousTraining
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.tracking import names
from taugrad.platform.training.trainer import Trainer

from ..harness.in_process import Following, fit
from ..harness.report import Options, Report, Table, number, run_benchmark, say
from ..harness.workers import run_workers

Slow = Literal["nobody", "one", "now and then"]
"""Who takes longer: nobody, worker 0 in each step, or in each step another worker, drawn alike by all."""


@dataclass(frozen=True)
class Pace:
    """How long real workers sleep in a step."""

    step_s: float
    slow: Slow
    times: float
    """As long a slow worker takes."""

    def of(self, rank: int, workers: int, number: int) -> float:
        """Seconds of one worker's step."""
        slow_one = {"nobody": None, "one": 0, "now and then": random.Random(number).randrange(workers)}
        return self.step_s * (self.times if rank == slow_one[self.slow] else 1)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    accuracy: float
    wire_bytes: int
    seconds_a_step: float
    """From the first iteration to the end, evaluations included, over the iterations."""
    staleness: float
    """Mean of all messages applied."""
    most: float


class Watching(Following):
    """A listener that knows when the first iteration began; real workers have a pace."""

    def __init__(self, pace: Pace | None) -> None:
        super().__init__()
        self.pace, self.began = pace, 0.0

    def stage(self, name: str) -> None:
        """All begin together, once the workers are as slow as they shall be."""
        if name == "first iteration":
            if self.pace is not None:
                _slow_down(_replica(self.trainer), self.pace, dist.get_rank(), dist.get_world_size())
            dist.barrier()
            self.began = perf_counter()


def _trained(specs: Sequence[RunSpec], paces: Sequence[Pace | None], processes: int) -> list[Outcome]:
    asked = [
        {"text": spec.model_dump_json(), "pace": asdict(pace) if pace else None}
        for spec, pace in zip(specs, paces, strict=True)
    ]
    return [Outcome(**values) for values in run_workers(_train, asked, processes)]


def _train(text: str, pace: Mapping[str, Any] | None) -> dict[str, float]:
    listener = Watching(Pace(**pace) if pace else None)
    totals = fit(text, listener).sync.totals
    seconds, ages = perf_counter() - listener.began, listener.series(names.COMM_STALENESS)
    return asdict(
        Outcome(
            accuracy=listener.last[names.EVAL_ACCURACY],
            wire_bytes=totals.wire_bytes,
            seconds_a_step=seconds / totals.steps,
            staleness=sum(ages) / len(ages) if ages else 0.0,
            most=max(listener.series(names.COMM_STALENESS_MOST), default=0.0),
        )
    )


def _replica(trainer: Trainer) -> Replica:
    """This process's worker's."""
    if isinstance(trainer.sync, AsynchronousTraining):
        return trainer.sync.replica
    assert isinstance(trainer.sync, HookedGradients)
    return trainer.sync.replica


def _slow_down(replica: Replica, pace: Pace, rank: int, workers: int) -> None:
    backward: Callable[..., float] = replica.backward
    steps = count()

    def slowly(*arguments: Any) -> float:
        sleep(pace.of(rank, workers, next(steps)))
        return backward(*arguments)

    replica.backward = slowly  # type: ignore[method-assign]


LINE = "strom(density(0.01), momentum=0.9) | golomb_rice"
RATE = 0.01
BEHIND = 8
DELAY = (0.0, 1.0)
NEVER = 10**6
"""A checkpoint would be a drain more."""
INTRODUCTION = (
    f"LeNet on digits, batches of 64 that the workers share, SGD with learning rate {RATE} and `{LINE}`, so "
    f"both modes send 1% of the elements. `most_behind` is {BEHIND}. One seed. Each epoch ends with an "
    "evaluation, before which `async` drains. Staleness is the number of updates that were applied before a "
    "message, but were unknown when its gradient was computed: the mean over the messages, and the maximum."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    real: int
    """Workers that are processes."""
    simulated: tuple[int, ...]
    slowness: tuple[float, ...]
    epochs: int
    step_s: float
    data: dict[str, Any]
    """Fields of the spec; none: the digits."""


FULL = Sizes(real=4, simulated=(2, 4, 8), slowness=(1, 2, 4, 10), epochs=5, step_s=0.05, data={})
QUICK = Sizes(
    real=2,
    simulated=(2,),
    slowness=(1, 4),
    epochs=2,
    step_s=0.02,
    data={
        "data": {"kind": "synthetic", "train_examples": 640, "test_examples": 64, "height": 28, "width": 28}
    },
)


def make_spec(sizes: Sizes, sync: dict[str, Any], workers: int) -> RunSpec:
    optimizer = {"kind": "sgd", "lr": RATE, "momentum": 0}
    fields = {"sync": sync, "compressor": LINE, "workers": {"count": workers}}
    fields |= {"training": {"epochs": sizes.epochs, "batch_size": 64, "optimizer": optimizer}}
    return RunSpec.model_validate({**sizes.data, **fields, "checkpoint": {"interval": NEVER}})


def measure_speed(sizes: Sizes) -> Table:
    """Real workers, one slow: always, or another one in each step."""
    cases: list[tuple[Slow, float]] = [("nobody", 1)]
    slow: tuple[Slow, ...] = ("one", "now and then")
    cases += [(who, times) for who in slow for times in sizes.slowness if times > 1]
    modes = ({"mode": "gradients"}, {"mode": "async", "most_behind": BEHIND})
    specs = [make_spec(sizes, mode, sizes.real) for _ in cases for mode in modes]
    paces = [Pace(sizes.step_s, who, times) for who, times in cases for _ in modes]
    say(f"{sizes.real} real workers")
    outcomes = _trained(specs, paces, sizes.real)
    rows = []
    for (who, times), there, here in zip(cases, outcomes[::2], outcomes[1::2], strict=True):
        seconds = there.seconds_a_step, here.seconds_a_step
        figures = (times, *(1e3 * value for value in seconds), seconds[0] / seconds[1])
        rows.append((who, *map(number, figures), *_both(there, here)))
    columns = (
        *("slow", "times", "allgather, ms a step", "async, ms a step", "speed-up"),
        *("bytes, async / allgather", "allgather, accuracy %", "async, accuracy %", "staleness", "most"),
    )
    notes = (
        f"{sizes.real} processes on this machine; each sleeps {1e3 * sizes.step_s:g} ms in a step beside its "
        "computing, so that sleepers share the cores, and a slow one as many times that. Now and then: in "
        "each step one worker is slow, drawn anew.",
        "All workers make equally many steps: where one is always slow the others wait for it at the end of "
        "each epoch.",
    )
    return Table("Speed with slow workers, measured", columns, rows, notes)


def measure_accuracy(sizes: Sizes) -> Table:
    """Simulated workers, one of them always slow."""
    cases = [(workers, times) for workers in sizes.simulated for times in sizes.slowness]
    specs = []
    for workers in sizes.simulated:
        specs.append(make_spec(sizes, {"mode": "simulated", "of": {"mode": "gradients"}}, workers))
        for times in sizes.slowness:
            course = {"step_times": [times, *[1] * (workers - 1)], "delay": DELAY, "most_behind": BEHIND}
            specs.append(make_spec(sizes, {"mode": "simulated", "of": {"mode": "async"} | course}, workers))
    say("simulated workers")
    outcomes = iter(_trained(specs, [None] * len(specs), 1))
    rows, there = [], None
    for workers, times in cases:
        if times == sizes.slowness[0]:
            there = next(outcomes)
        assert there is not None
        rows.append((str(workers), number(times), *_both(there, next(outcomes))))
    columns = (
        *("N", "one worker's steps take", "bytes, async / allgather"),
        *("allgather, accuracy %", "async, accuracy %", "staleness", "most"),
    )
    notes = (f"By a schedule (`step_times`), in which messages take {DELAY[0]:g} to {DELAY[1]:g} of a step.",)
    return Table("Accuracy and staleness at equal bytes, simulated", columns, rows, notes)


def _both(there: Outcome, here: Outcome) -> tuple[str, ...]:
    return (
        f"{here.wire_bytes / there.wire_bytes:.3f}",
        f"{100 * there.accuracy:.1f}",
        f"{100 * here.accuracy:.1f}",
        f"{here.staleness:.2f}",
        f"{here.most:.0f}",
    )


def main(options: Options) -> Report:
    sizes = QUICK if options.quick else FULL
    return INTRODUCTION, [measure_speed(sizes), measure_accuracy(sizes)]


if __name__ == "__main__":
    run_benchmark(main)
