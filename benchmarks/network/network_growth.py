"""Growth with the number of workers: bytes and seconds of a step, measured to 8, planned to 1,000.

    python -m benchmarks.network.network_growth [--quick] [--write]

Measured workers are network namespaces (benchmarks/network), which needs root; bytes are also those of
simulated workers, to 64. Can be stopped and continued: build/ has what is known.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taugrad.compressors.method import read_config
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import RealSync, real
from taugrad.search.plan.calibrated import HALF, Calibration
from taugrad.search.plan.calibration import calibrate
from taugrad.search.plan.candidate import Candidate
from taugrad.search.plan.link import Link
from taugrad.search.plan.planning import Prediction, predict

from ..harness.in_process import fit
from ..harness.report import RESULTS, Place, Spread, Table, load, number, publish, read_options
from ..harness.sync_runs import Silent
from ..harness.trainings import Cells, Trainings, kept_in
from . import why_not
from .network_cells import Asked, over

LINK, QUICK_LINK = "200mbit,5ms", "100mbit,5ms"
MEASURED, QUICK_MEASURED = (2, 4, 8), (2,)
SIMULATED, QUICK_SIMULATED = (2, 4, 8, 16, 32, 64), (2, 4)
PLANNED = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
STEPS, QUICK_STEPS = 100, 10
SKIPPED, QUICK_SKIPPED = 20, 10
"""Steps at first that are not counted."""
SIMULATED_STEPS = 30
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network/network_growth.py writes from here -->",
    "<!-- to here: growth -->",
)
INTRODUCTION = (
    "LeNet (431,080 parameters) on digits, 8 examples per worker and step. Measured: the platform's trainer "
    "over gloo at {link}. Every worker is a network namespace with one thread; all share this machine's "
    "{cores} cores, so computing takes longer the more workers there are; {steps} steps after {skipped}. "
    "Planned: the model of `taugrad plan` at the same link, for workers with a core each. The second table "
    "also has the plan for this number of workers on one machine, beside the measurements."
)


@dataclass(frozen=True)
class Way:
    """One way to train."""

    name: str
    line: str
    """The compressor."""
    sync: Mapping[str, Any]
    half: str = ""
    """fp16: all-reduces go in 16 bits, by torch's hook."""

    def spec(self, workers: int, iterations: int, *, simulated: bool) -> RunSpec:
        """So many steps, with one evaluation, after them."""
        sync = {"mode": "simulated", "of": dict(self.sync)} if simulated else dict(self.sync)
        return RunSpec.model_validate(
            {
                "model": {"kind": "lenet"},
                "data": {"kind": "mnist5k"},
                "training": {
                    "iterations": iterations,
                    "evaluate_every": iterations,
                    "batch_per_worker": 8,
                    "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0},  # sparse rules bear none
                },
                "compressor": self.line,
                "sync": sync,
                "workers": {"count": workers},
                "checkpoint": {"interval": 10**6},
            }
        )

    @property
    def share(self) -> float:
        """Of the bytes that the platform counts, which takes all-reduces for 32 bits wide."""
        return 0.5 if self.half else 1.0

    @property
    def candidate(self) -> Candidate:
        """As the plan knows it."""
        sync: RealSync = real(self.spec(2, 1, simulated=False).sync)
        return Candidate(HALF if self.half else str(read_config(self.line)), sync)


_SPARSE = "strom(density(0.01)) | golomb_rice"
WAYS = (
    Way("all-reduce, float32", "none", {"mode": "allgather"}),
    Way("all-reduce, fp16", "none", {"mode": "allgather"}, half="fp16"),
    Way("1% to all", _SPARSE, {"mode": "allgather"}),
    Way("1%, sharded", _SPARSE, {"mode": "sharded"}),
    Way("1% to all, every 10 steps", _SPARSE, {"mode": "weights", "every": 10}),
)


def train(text: str) -> dict[str, float]:
    """Bytes that a simulated worker receives in a step."""
    totals = fit(text, Silent()).sync.totals
    return {
        "received": totals.received_bytes / totals.steps / RunSpec.model_validate_json(text).workers.count
    }


def step_seconds(found: Mapping[str, Any], skipped: int, every: int) -> Spread:
    """Of rounds of so many steps: the mean, and from the 10th to the 90th percentile of them."""
    done = np.array(found["done"])[skipped - 1 :: every]
    rounds = np.diff(done) / every
    return Spread.of(rounds.tolist(), float(rounds.mean()))


def planned(
    ways: Sequence[Way], calibration: Calibration, link: str, workers: Sequence[int]
) -> dict[str, list[Prediction]]:
    """Of each way, for each number of workers."""
    over = Link.parse(link)
    return {way.name: [predict(calibration, way.candidate, over, each) for each in workers] for way in ways}


def bytes_table(
    ways: Sequence[Way],
    received: Mapping[tuple[str, int], float],
    trainings: Trainings,
    simulated: Sequence[int],
    predictions: Mapping[str, Sequence[Prediction]],
) -> Table:
    """KB that a worker receives in a step."""
    rows = []
    for way in ways:
        for place, workers in enumerate(PLANNED):
            here = received.get((way.name, workers))
            there = None
            if workers in simulated:
                spec = way.spec(workers, SIMULATED_STEPS, simulated=True)
                there = way.share * trainings.of(spec)["received"]
            rows.append(
                (
                    *(way.name, f"{workers:,}"),
                    *("" if each is None else number(each / 1000) for each in (here, there)),
                    number(predictions[way.name][place].step.received / 1000),
                )
            )
    columns = ("way", "workers", "measured KB", "simulated KB", "planned KB")
    return Table("What a worker receives in a step", columns, rows)


def times_table(
    ways: Sequence[Way],
    seconds: Mapping[tuple[str, int], Spread],
    shared: Mapping[int, Mapping[str, Sequence[Prediction]]],
    predictions: Mapping[str, Sequence[Prediction]],
) -> Table:
    """Milliseconds of a step."""
    rows = []
    for way in ways:
        for place, workers in enumerate(PLANNED):
            found = seconds.get((way.name, workers))
            here = "" if workers not in shared else number(1000 * shared[workers][way.name][0].seconds)
            measured = "" if found is None else str(Spread(*(1000 * each for each in vars(found).values())))
            own = number(1000 * predictions[way.name][place].seconds)
            rows.append((way.name, f"{workers:,}", measured, here, own))
    columns = ("way", "workers", "measured ms", "planned ms, this machine", "planned ms, a core each")
    return Table("Seconds of a step", columns, rows)


def main(arguments: Sequence[str]) -> int:
    options = read_options("network.network_growth", __doc__.partition("\n")[0], arguments)
    if reason := why_not():
        print(f"no network can be made here: {reason}", file=sys.stderr)
        return 2
    before = load()
    quick = options.quick
    link = QUICK_LINK if quick else LINK
    ways = WAYS[2::2] if quick else WAYS
    measured = QUICK_MEASURED if quick else MEASURED
    simulated = QUICK_SIMULATED if quick else SIMULATED
    skipped, steps = (QUICK_SKIPPED, QUICK_STEPS) if quick else (SKIPPED, STEPS)
    trainings = Trainings(kept_in("network_growth", quick=quick), train, lambda spec: spec.workers.count)
    specs = [way.spec(each, SIMULATED_STEPS, simulated=True) for way in ways for each in simulated]
    trainings.train(specs, print, every=5)
    cells = Cells("network_growth_cells", quick=quick)
    lines = sorted({way.candidate.method for way in ways} - {HALF})
    calibration = calibrate(ways[0].spec(2, 1, simulated=False), lines)
    predictions = planned(ways, calibration, link, PLANNED)
    seconds: dict[tuple[str, int], Spread] = {}
    received: dict[tuple[str, int], float] = {}
    shared: dict[int, dict[str, list[Prediction]]] = {}
    for workers in measured:
        asked = [Asked(way.spec(workers, skipped + steps, simulated=False), way.half) for way in ways]
        shared[workers] = planned(ways, calibrate(asked[0].spec, lines, sharing=workers), link, [workers])
        for way, found in zip(ways, over(link, asked, cells), strict=True):
            seconds[way.name, workers] = step_seconds(found, skipped, int(way.sync.get("every", 1)))
            received[way.name, workers] = way.share * found["received"] / found["steps"] / workers
    tables = [
        bytes_table(ways, received, trainings, simulated, predictions),
        times_table(ways, seconds, shared, predictions),
    ]
    introduction = INTRODUCTION.format(
        link=link, cores=len(os.sched_getaffinity(0)), steps=steps, skipped=skipped
    )
    publish("network_growth", options, introduction, tables, before, PLACE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
