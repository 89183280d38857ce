"""Workers that do not wait beside workers that do: accuracy, staleness, and speed where one of them is slow.

    python -m benchmarks.platform.asynchronous [--quick] [--write]

Real workers are processes on the loopback interface that sleep where they would compute; simulated ones share
a process, and their course of time is made up. Bytes are equal by a fixed density.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taugrad.platform.spec import RunSpec

from ..harness.report import Options, Table, number, publish, read_options, say
from .async_runs import Outcome, Pace, Slow, train

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
    """A run of all epochs."""
    return RunSpec.model_validate(
        {
            **sizes.data,
            "sync": sync,
            "compressor": LINE,
            "workers": {"count": workers},
            "training": {
                "epochs": sizes.epochs,
                "batch_size": 64,
                "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0},
            },
            "checkpoint": {"interval": NEVER},
        }
    )


def measure_speed(sizes: Sizes) -> Table:
    """Real workers, one slow: always, or another one in each step."""
    cases: list[tuple[Slow, float]] = [("nobody", 1)]
    slow: tuple[Slow, ...] = ("one", "now and then")
    cases += [(who, times) for who in slow for times in sizes.slowness if times > 1]
    modes = ({"mode": "allgather"}, {"mode": "async", "most_behind": BEHIND})
    specs = [make_spec(sizes, mode, sizes.real) for _ in cases for mode in modes]
    paces = [Pace(sizes.step_s, who, times) for who, times in cases for _ in modes]
    say(f"{sizes.real} real workers")
    outcomes = train(specs, paces)
    rows = []
    for (who, times), there, here in zip(cases, outcomes[::2], outcomes[1::2], strict=True):
        rows.append(
            (
                who,
                number(times),
                number(1e3 * there.seconds_a_step),
                number(1e3 * here.seconds_a_step),
                number(there.seconds_a_step / here.seconds_a_step),
                *_both(there, here),
            )
        )
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
        specs.append(make_spec(sizes, {"mode": "simulated", "of": {"mode": "allgather"}}, workers))
        for times in sizes.slowness:
            course = {"step_times": [times, *[1] * (workers - 1)], "delay": DELAY, "most_behind": BEHIND}
            specs.append(make_spec(sizes, {"mode": "simulated", "of": {"mode": "async"} | course}, workers))
    say("simulated workers")
    outcomes = iter(train(specs, [None] * len(specs)))
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


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("platform.asynchronous", "Workers that do not wait.", arguments)
    sizes = QUICK if options.quick else FULL
    tables = [measure_speed(sizes), measure_accuracy(sizes)]
    publish("asynchronous", options, INTRODUCTION, tables)


if __name__ == "__main__":
    main(sys.argv[1:])
