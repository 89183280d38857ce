"""Speed against the number of workers that do not wait: measured to 8, modelled to 80 (Strom 2015, table 2).

    python -m benchmarks.papers.async_growth [--quick] [--write]

Measured workers are processes of this machine that sleep as long as their computing takes on one of their
own. The model has nothing but what is measured here for one worker: computing, compressing, the bytes of a
message, and how long adding one takes.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from taugrad.platform.data import load as load_data
from taugrad.platform.data.feeding import first_batch
from taugrad.platform.models import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.asynchronous.worker import Staleness, Worker
from taugrad.platform.tasks import build_task
from taugrad.platform.training.batch_plan import Position
from taugrad.platform.training.replica import Replica

from ..harness.report import Table, load, number, publish, read_options
from ..platform.async_runs import Pace, train

LINE = "strom(density(0.002)) | golomb_rice"
SHARE = 32
"""Examples of a worker's batch."""
MEASURED, QUICK_MEASURED = (1, 2, 4, 8), (1, 2)
MODELLED = (1, 5, 10, 20, 40, 80)
PAPER = {1: 1.0, 5: 4.3, 10: 8.7, 20: 17.0, 40: 33.0, 80: 54.0}
"""Relative speed in Strom's table 2."""
SLEEP_S, QUICK_SLEEP_S = 0.25, 0.05
LENGTHS, QUICK_LENGTHS = (20, 60), (3, 6)
"""Iterations of two runs. What begins and ends a run takes as long in both, and is left out so."""
LINKS = {"100 Mbit": 1e8, "1 Gbit": 1e9, "10 Gbit": 1e10}
ROUNDS = 30
INTRODUCTION = (
    "`sync.mode: async`, a sigmoid stack of 5 x 512 ({parameters:,} parameters) on digits, {share} examples "
    "per worker and step, `{line}`. Speed is examples per second, relative to one worker."
)


@dataclass(frozen=True)
class Costs:
    """Of one worker with one thread, in seconds; and of its message, in bytes."""

    compute_s: float
    compress_s: float
    """With adding its own message."""
    add_s: float
    """Reading and adding one message of another worker."""
    message_bytes: float
    parameters: int

    def step_s(self, workers: int, rate: float, compute_s: float) -> float:
        """How long a step takes at least: by the processor, and by the link into the worker."""
        others = workers - 1
        by_processor = compute_s + self.compress_s + others * self.add_s
        return max(by_processor, 8 * others * self.message_bytes / rate)


def make_spec(workers: int, iterations: int) -> RunSpec:
    """A run without evaluations on its way."""
    return RunSpec.model_validate(
        {
            "sync": {"mode": "async", "most_behind": 8},
            "compressor": LINE,
            "model": {"kind": "sigmoid_stack", "depth": 5, "width": 512},
            "workers": {"count": workers},
            "training": {
                "iterations": iterations,
                "evaluate_every": 10**6,
                "batch_per_worker": SHARE,
                "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0, "weight_decay": 0},
            },
            "checkpoint": {"interval": 10**6},
        }
    )


def costs(rounds: int) -> Costs:
    """Measures one worker, and what it takes to add another one's messages."""
    torch.set_num_threads(1)
    spec = make_spec(2, 100)
    data, device = load_data(spec.data), torch.device("cpu")
    task = build_task(spec.task, data.shape)
    workers = []
    for rank in range(2):
        torch.manual_seed(0)
        replica = Replica(build(spec.model, data.shape), task, spec.training, 2)
        workers.append(Worker(replica, spec.compressor, spec.training, rank, 2, hold_back_zeros=False))
    batch = first_batch(data.train, SHARE, device)
    computing, compressing, adding, nbytes = [], [], [], []
    for step in range(rounds):
        position = Position(0, step, rounds, step, 2 * SHARE, rounds)
        began = perf_counter()
        stepped = workers[0].step(batch, position, observe=False)
        whole = perf_counter() - began
        compressing.append(stepped.compress_s + stepped.decompress_s)
        computing.append(whole - compressing[-1])
        began = perf_counter()
        workers[1].apply([stepped.message], Staleness())
        adding.append(perf_counter() - began)
        nbytes.append(float(stepped.message.payload.size))
    parameters = sum(each.numel() for each in workers[0].replica.parameters)
    later = rounds // 3  # tau is found, and kernels are compiled
    return Costs(*(median(each[later:]) for each in (computing, compressing, adding, nbytes)), parameters)


def measured(workers: int, sleep_s: float, lengths: tuple[int, int]) -> float:
    """Seconds of a step."""
    took = []
    for iterations in lengths:
        (outcome,) = train([make_spec(workers, iterations)], [Pace(sleep_s, "nobody", 1)])
        took.append(outcome.seconds_a_step * iterations)
    return (took[1] - took[0]) / (lengths[1] - lengths[0])


def main(arguments: Sequence[str]) -> None:
    options = read_options("papers.async_growth", "Speed against the number of workers.", arguments)
    load_before = load()
    found = costs(9 if options.quick else ROUNDS)
    sleep_s, lengths, crews = (
        (QUICK_SLEEP_S, QUICK_LENGTHS, QUICK_MEASURED) if options.quick else (SLEEP_S, LENGTHS, MEASURED)
    )
    cores = len(os.sched_getaffinity(0))
    rows: list[tuple[str, ...]] = []
    alone = 0.0
    for workers in crews:
        step_s = measured(workers, sleep_s, lengths)
        alone = alone or step_s
        own = found.step_s(workers, float("inf"), found.compute_s)
        modelled = max(sleep_s + own, workers * own / cores)
        one = sleep_s + found.step_s(1, float("inf"), found.compute_s)
        rows.append(
            (
                str(workers),
                number(1000 * step_s),
                number(1000 * modelled),
                number(workers * alone / step_s),
                number(workers * one / modelled),
            )
        )
    table = Table(
        "Measured on this machine",
        ("workers", "ms a step", "modelled", "relative speed", "modelled speed"),
        rows,
        (
            f"Each worker sleeps {1000 * sleep_s:g} ms in a step beside its computing; {cores} cores do the "
            "computing, compressing and adding of all, which the modelled figures take into account.",
        ),
    )
    growth = [
        (
            str(workers),
            *(
                number(
                    workers
                    * found.step_s(1, rate, sleep_s + found.compute_s)
                    / found.step_s(workers, rate, sleep_s + found.compute_s)
                )
                for rate in LINKS.values()
            ),
            number(PAPER[workers]),
        )
        for workers in MODELLED
    ]
    notes = (
        f"Modelled, not measured: every worker with a core and a link of its own. A step takes "
        f"{1000 * (sleep_s + found.compute_s):.0f} ms of computing, {1000 * found.compress_s:.2f} ms of "
        f"compressing and, for each other worker, {1000 * found.add_s:.2f} ms of adding and "
        f"{found.message_bytes / 1000:.2f} KB; or as long as its link needs for what arrives.",
        "The last column is Strom's: 14.6 million parameters, batches of 1,024, GPUs.",
    )
    modelled_table = Table(
        "Modelled relative speed", ("workers", *LINKS, "Strom's table 2, measured"), growth, notes
    )
    introduction = INTRODUCTION.format(parameters=found.parameters, share=SHARE, line=LINE)
    publish("async_growth", options, introduction, [table, modelled_table], load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
