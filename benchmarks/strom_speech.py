"""Strom's table 3 and table 4 on speech that `taugrad data speech` makes: thresholds, and sizes of the net.

    python benchmarks/strom_speech.py [--quick] [--write]

Goes on where it was stopped: the speech and finished trainings are in build/.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from in_process import fit
from paired import interval
from report import Table, load, number, publish, read_options
from sync_runs import Silent
from trainings import BUILD, Trainings, kept_in

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

WORKERS, LOCAL_BATCH, EPOCHS, SEEDS = 8, 64, 4, 3
TAUS = (0.5, 1.0, 2.0, 4.0, 6.0, 9.0)
"""Against sums over a worker's frames, as Strom's."""
TAU = 2.0
"""With which nets of several sizes are compared."""
UNCOMPRESSED = "none"


@dataclass(frozen=True)
class Net:
    """Hidden layers and how wide they are."""

    depth: int
    width: int


SMALL = Net(5, 256)
NETS = (SMALL, Net(5, 128), Net(8, 256), Net(5, 512))

INTRODUCTION = (
    "{minutes:g} minutes of speech by espeak-ng (docs/speech.md), windows of 17 frames of 20 features, 49 "
    "phoneme classes; stacks of sigmoid layers by SGD without momentum, the rate halved after each of "
    "{epochs} epochs (section 3.3). {workers} simulated workers with {batch} frames each; the loss is their "
    "sum, as a threshold of the paper meets it, and updates are added up. {seeds} seeds. `strom(tau) | "
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
    nets: tuple[Net, ...]

    @property
    def folder(self) -> Path:
        """Where the speech is."""
        return BUILD / f"speech-{self.minutes:g}"


FULL = Size(30, EPOCHS, SEEDS, TAUS, NETS)
QUICK = Size(1, 1, 2, (TAU, 6.0), (Net(2, 16), Net(2, 32)))


def main(arguments: Sequence[str]) -> int:
    """Speaks and trains what is not there yet, and publishes."""
    options = read_options("strom_speech.py", __doc__.partition("\n")[0], arguments)
    before, size = load(), QUICK if options.quick else FULL
    speak(size)
    trainings = Trainings(kept_in("strom_speech", quick=options.quick), train, _work)
    trainings.train(all_specs(size), print)
    introduction = INTRODUCTION.format(
        minutes=size.minutes, epochs=size.epochs, workers=WORKERS, batch=LOCAL_BATCH, seeds=size.seeds
    )
    publish(
        "strom_speech",
        options,
        introduction,
        [taus_table(size, trainings), nets_table(size, trainings)],
        before,
    )
    return 0


def speak(size: Size) -> None:
    """Makes the speech; does nothing where it is there."""
    command = [sys.executable, "-m", "taugrad", "data", "speech"]
    command += ["--minutes", f"{size.minutes:g}", "--out", str(size.folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def all_specs(size: Size) -> list[RunSpec]:
    """Every training of both tables."""
    small = size.nets[0]
    lines = [UNCOMPRESSED, *(line(tau) for tau in size.taus)]
    seeds = range(1, size.seeds + 1)
    by_tau = [spec_of(size, small, each, seed) for each in lines for seed in seeds]
    by_net = [
        spec_of(size, net, each, seed)
        for net in size.nets[1:]
        for each in (UNCOMPRESSED, line(TAU))
        for seed in seeds
    ]
    return by_tau + by_net


def line(tau: float) -> str:
    """Strom's method."""
    return f"strom({tau:g}, reduction='sum') | golomb_rice"


def spec_of(size: Size, net: Net, compressor: str, seed: int) -> RunSpec:
    """A run."""
    return RunSpec.model_validate(
        {
            "model": {"kind": "sigmoid_stack", "depth": net.depth, "width": net.width},
            "data": {"kind": "frames", "path": str(size.folder)},
            "training": {
                "epochs": size.epochs,
                "batch_per_worker": LOCAL_BATCH,
                "loss_reduction": "sum",
                "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0},
                "schedule": {"kind": "halving", "epochs": 1},
            },
            "sync": {"mode": "simulated"},
            "workers": {"count": WORKERS},
            "compressor": "none(reduction='sum')" if compressor == UNCOMPRESSED else compressor,
            "seed": seed,
        }
    )


RATE = 4e-3
"""For sums over all workers' frames."""


def train(text: str) -> dict[str, float]:
    """What a training came to."""
    listener = Silent()
    trainer = fit(text, listener)
    totals = trainer.sync.totals
    return {
        "accuracy": listener.last[names.EVAL_ACCURACY],
        "weights": float(sum(each.numel() for each in trainer.model.parameters())),
        "bytes": totals.wire_bytes / totals.steps / trainer.sync.workers,
        "smaller": totals.compression_ratio,
        "bits": 8 * totals.wire_bytes / max(1, totals.sent),
    }


def _work(spec: RunSpec) -> float:
    width, depth = getattr(spec.model, "width", 1), getattr(spec.model, "depth", 1)
    return float(width * (340 + depth * width))


def taus_table(size: Size, trainings: Trainings) -> Table:
    """Table 3."""
    small, seeds = size.nets[0], range(1, size.seeds + 1)
    bare = [trainings.of(spec_of(size, small, UNCOMPRESSED, seed)) for seed in seeds]
    rows = [("none", f"{_percent(bare):.2f}", "", "", "1.00x", "0.500x", "")]
    for tau in size.taus:
        runs = [trainings.of(spec_of(size, small, line(tau), seed)) for seed in seeds]
        smaller = fmean(run["smaller"] for run in runs)
        rows.append(
            (
                f"{tau:g}",
                f"{_percent(runs):.2f}",
                _points(runs, bare),
                number(fmean(run["bytes"] for run in runs) / 1000),
                f"{number(smaller)}x",
                f"{number(smaller / 2)}x",
                f"{fmean(run['bits'] for run in runs):.2f}",
            )
        )
    columns = (
        "tau",
        "frame accuracy %",
        "points more than none (95%)",
        "kB a worker and mini-batch",
        "than float32",
        "than 16 bits",
        "bits an update",
    )
    notes = ("The paper: 278x at tau = 2, 846x at 4, 1,770x at 6, 3,893x at 9; words are lost from 12 on.",)
    return Table(f"Thresholds (table 3): {small.depth} hidden layers of {small.width}", columns, rows, notes)


def nets_table(size: Size, trainings: Trainings) -> Table:
    """Table 4."""
    seeds, rows = range(1, size.seeds + 1), []
    for net in size.nets:
        bare = [trainings.of(spec_of(size, net, UNCOMPRESSED, seed)) for seed in seeds]
        runs = [trainings.of(spec_of(size, net, line(TAU), seed)) for seed in seeds]
        smaller = fmean(run["smaller"] for run in runs)
        rows.append(
            (
                f"{net.depth} layers of {net.width}",
                f"{bare[0]['weights']:,.0f}",
                f"{_percent(bare):.2f}",
                f"{_percent(runs):.2f}",
                _points(runs, bare),
                number(fmean(run["bytes"] for run in runs) / 1000),
                f"{number(smaller)}x",
                f"{fmean(run['bits'] for run in runs):.2f}",
            )
        )
    columns = (
        "hidden",
        "weights",
        "frame accuracy %, none",
        "with tau",
        "points more than none (95%)",
        "kB a worker and mini-batch",
        "than float32",
        "bits an update",
    )
    notes = (
        "The paper: 846x with 14.6 million weights, 998x with 8 layers, 1,436x and 2,871x with wider ones.",
    )
    return Table(f"Sizes of the net (table 4), tau = {TAU:g}", columns, rows, notes)


def _percent(runs: Sequence[Mapping[str, float]]) -> float:
    return 100 * fmean(run["accuracy"] for run in runs)


def _points(runs: Sequence[Mapping[str, float]], bare: Sequence[Mapping[str, float]]) -> str:
    pairs = zip(runs, bare, strict=True)
    return interval([100 * (run["accuracy"] - other["accuracy"]) for run, other in pairs], 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
