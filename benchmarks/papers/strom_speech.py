"""Strom's thresholds on speech that `speech_data` makes, without waiting (`measure` has his tables 3 and 4).

    python -m benchmarks.papers.strom_speech [--quick] [--write]

Can be stopped and continued: the speech and finished trainings are in build/.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import trained
from ..harness.report import Options, Report, Table, interval, run_benchmark
from ..harness.trainings import BUILD, Trainings, kept_in
from .speech_data.__main__ import main as make_speech

WORKERS, LOCAL_BATCH, EPOCHS, SEEDS = 8, 64, 4, 3
UNCOMPRESSED = "none"
BEHIND, DELAY = 8, (0.0, 1.0)
"""For workers that do not wait: how many steps one may be ahead; how much of a step a message takes."""


SMALL = (5, 256)
"""Hidden layers, and how wide they are."""

INTRODUCTION = (
    "{minutes:g} minutes of speech by espeak-ng (docs/speech.md), windows of 17 frames of 20 features, 49 "
    "phoneme classes; stacks of sigmoid layers by SGD without momentum, the learning rate halved after each "
    "of {epochs} epochs (section 3.3). {workers} simulated workers with {batch} frames each. The loss is "
    "their sum, as the paper's threshold expects, and updates are added up. {seeds} seeds. `strom(tau) | "
    "golomb_rice`. The paper: 40 machines with 1,024 frames each, 1,000 hours of speech, 14.6 million "
    "weights, word errors."
)


@dataclass(frozen=True)
class Size:
    """How much to train."""

    minutes: float
    epochs: int
    seeds: int
    taus: tuple[float, ...]
    """Against sums over a worker's frames, as Strom's."""

    @property
    def folder(self) -> Path:
        """Where the speech is."""
        return BUILD / f"speech-{self.minutes:g}"


FULL = Size(30, EPOCHS, SEEDS, (1.0, 2.0, 4.0, 6.0))
QUICK = Size(1, 1, 2, (6.0,))


def main(options: Options) -> Report:
    """Speaks and trains what is not there yet."""
    size = QUICK if options.quick else FULL
    speak(size)
    trainings = Trainings(kept_in("strom_speech", quick=options.quick), train, lambda _: 1)
    trainings.train(all_specs(size))
    introduction = INTRODUCTION.format(
        minutes=size.minutes, epochs=size.epochs, workers=WORKERS, batch=LOCAL_BATCH, seeds=size.seeds
    )
    return introduction, [unwaited_table(size, trainings)]


def speak(size: Size) -> None:
    """Makes the speech; does nothing where it is there."""
    if make_speech(["--minutes", f"{size.minutes:g}", "--out", str(size.folder)]):
        sys.exit(2)


def all_specs(size: Size) -> list[RunSpec]:
    """Every training, with waiting and without."""
    return [
        spec_of(size, SMALL, line(tau), seed, mode, growth)
        for tau in size.taus
        for seed in range(1, size.seeds + 1)
        for mode, growth in ((ALLGATHER, AT_ONCE), (ASYNC, AT_ONCE), (ASYNC, STAGED))
    ]


def line(tau: float) -> str:
    """Strom's method."""
    return f"strom({tau:g}, reduction='sum') | golomb_rice"


ALLGATHER: Mapping[str, Any] = {"mode": "gradients"}
ASYNC: Mapping[str, Any] = {"mode": "async", "most_behind": BEHIND, "delay": DELAY}
AT_ONCE: Mapping[str, Any] = {"kind": "constant"}
STAGED: Mapping[str, Any] = {
    "kind": "staged",
    "stages": [
        {"until": 1 / 6, "workers": WORKERS // 4, "batch_size": WORKERS // 4 * LOCAL_BATCH // 2},
        {"until": 1, "workers": WORKERS // 2, "batch_size": WORKERS // 2 * LOCAL_BATCH},
    ],
}
"""Table 1's start: fewer workers in the first epoch; still fewer, with smaller batches, in its first part."""


def spec_of(
    size: Size,
    net: tuple[int, int],
    compressor: str,
    seed: int,
    mode: Mapping[str, Any] = ALLGATHER,
    growth: Mapping[str, Any] = AT_ONCE,
) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"kind": "sigmoid_stack", "depth": net[0], "width": net[1]},
            "data": {"kind": "frames", "path": str(size.folder)},
            "training": {
                "epochs": size.epochs,
                "batch_per_worker": LOCAL_BATCH,
                "batch_growth": growth,
                "loss_reduction": "sum",
                "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0},
                "schedule": {"kind": "halving", "epochs": 1},
            },
            "sync": {"mode": "simulated", "of": mode},
            "workers": {"count": WORKERS},
            "compressor": "none(reduction='sum')" if compressor == UNCOMPRESSED else compressor,
            "seed": seed,
        }
    )


RATE = 4e-3
"""For sums over all workers' frames."""


def train(text: str) -> dict[str, float]:
    listener = trained(text)
    trainer = listener.trainer
    totals = trainer.sync.totals
    return {
        "accuracy": listener.last[names.EVAL_ACCURACY],
        "weights": float(sum(parameter.numel() for parameter in trainer.model.parameters())),
        "bytes": totals.wire_bytes / totals.steps / trainer.sync.workers,
        "smaller": totals.compression_ratio,
        "bits": 8 * totals.wire_bytes / max(1, totals.sent),
        "staleness": fmean(listener.series(names.COMM_STALENESS) or (0.0,)),
    }


def unwaited_table(size: Size, trainings: Trainings) -> Table:
    """Table 3 with asynchronous updates, as the paper has them, beside workers that wait."""
    seeds, rows = range(1, size.seeds + 1), []
    for tau in size.taus:
        waited = [trainings.of(spec_of(size, SMALL, line(tau), seed)) for seed in seeds]
        for start, growth in (("at once", AT_ONCE), ("in stages", STAGED)):
            runs = [trainings.of(spec_of(size, SMALL, line(tau), seed, ASYNC, growth)) for seed in seeds]
            ratio = fmean(run["bytes"] / other["bytes"] for run, other in zip(runs, waited, strict=True))
            rows.append(
                (
                    f"{tau:g}",
                    start,
                    f"{_percent(waited):.2f}",
                    f"{_percent(runs):.2f}",
                    _points(runs, waited),
                    f"{fmean(run['staleness'] for run in runs):.2f}",
                    f"{ratio:.3f}",
                )
            )
    columns = (
        "tau",
        "all workers begin",
        "frame accuracy %, allgather",
        "async",
        "points more than allgather (95%)",
        "staleness",
        "bytes a step, async / allgather",
    )
    notes = (
        f"Simulated: a message takes {DELAY[0]:g} to {DELAY[1]:g} of a step, and nobody is more than "
        f"{BEHIND} steps ahead. Staleness: updates that a message's gradient did not know of.",
        f"In stages, as table 1 has it: {WORKERS // 4} workers with half the batch in the first sixth of the "
        f"first epoch, then {WORKERS // 2}, and all from the second epoch on. `allgather` begins at once.",
    )
    return Table(f"Without waiting (async): {SMALL[0]} hidden layers of {SMALL[1]}", columns, rows, notes)


def _percent(runs: Sequence[Mapping[str, float]]) -> float:
    return 100 * fmean(run["accuracy"] for run in runs)


def _points(runs: Sequence[Mapping[str, float]], bare: Sequence[Mapping[str, float]]) -> str:
    pairs = zip(runs, bare, strict=True)
    return interval([100 * (run["accuracy"] - other["accuracy"]) for run, other in pairs], 2)


if __name__ == "__main__":
    run_benchmark(main)
