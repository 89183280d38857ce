"""A GPT on the source of Python's standard library: settings, seeds, their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from in_process import fit
from paired import interval
from report import Options, Table, number
from sync_runs import Silent
from trainings import Trainings

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

FOLDER = Path(__file__).resolve().parent.parent / "build"
SIXTEEN = 2
"""How many times fewer bytes a 16-bit exchange sends than float32."""


@dataclass(frozen=True)
class Setting:
    """One way to train.

    Attributes:
        name: for the table.
        line: the compressor.
        sync: the mode that is simulated.
        optimizer: fields that differ from the others'.
    """

    name: str
    line: str
    sync: Mapping[str, Any] = field(default_factory=lambda: {"mode": "allgather"})
    optimizer: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, size: "Size", seed: int) -> RunSpec:
        """The run with a seed."""
        return RunSpec.model_validate(
            {
                "task": {"kind": "language_model"},
                "model": {"kind": "gpt", "layers": size.layers, "heads": 4, "width": size.width},
                "data": {"kind": "text", "context": 64},
                "training": {
                    "iterations": size.iterations,
                    "evaluate_every": size.iterations,
                    "batch_per_worker": 12,
                    "optimizer": {
                        "kind": "adamw",
                        "lr": 2e-3,
                        "betas": [0.9, 0.99],
                        "weight_decay": 0.1,
                        **self.optimizer,
                    },
                    "schedule": {"kind": "cosine"},
                    "warmup": {"iterations": size.iterations // 12},
                    "clip": {"norm": 1.0},
                },
                "compressor": self.line,
                "sync": {"mode": "simulated", "of": dict(self.sync)},
                "workers": {"count": size.workers},
                "seed": seed,
            }
        )


@dataclass(frozen=True)
class Size:
    """How much to train."""

    workers: int
    iterations: int = 600
    layers: int = 4
    width: int = 128


QUICK = Size(2, iterations=12, layers=1, width=16)


def measured(name: str, size: Size, settings: Sequence[Setting], seeds: Sequence[int]) -> Trainings:
    """Trains what is not in the benchmark's file yet; a benchmark that was stopped goes on from there."""
    trainings = Trainings(FOLDER / f"{name}.jsonl", train, lambda spec: spec.training.iterations or 0)
    specs = [setting.spec(size, seed) for seed in seeds for setting in settings]
    trainings.train(specs, print, every=1)
    return trainings


def train(text: str) -> dict[str, float]:
    """A run's last validation loss, and how many times fewer bytes than float32 it sent."""
    listener = Silent()
    trainer = fit(text, listener)
    return {"loss": listener.last[names.EVAL_LOSS], "smaller": trainer.sync.totals.compression_ratio}


def table(
    title: str,
    size: Size,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    trainings: Trainings,
    bases: Mapping[str, Setting],
    notes: tuple[str, ...] = (),
) -> Table:
    """Every setting's loss and bytes; a column of differences for each base, seed by seed."""
    rows = []
    for setting in settings:
        found = [trainings.of(setting.spec(size, seed)) for seed in seeds]
        smaller = fmean(each["smaller"] for each in found)
        rows.append(
            (
                setting.name,
                f"{fmean(each['loss'] for each in found):.3f}",
                *(_more(found, base, size, seeds, trainings) for base in bases.values()),
                f"{number(smaller)}x",
                f"{number(smaller / SIXTEEN)}x",
            )
        )
    columns = (
        "setting",
        "validation loss, nats",
        *(f"more than {name} (95%)" for name in bases),
        "than float32",
        "than 16 bits",
    )
    return Table(title, columns, rows, notes)


def _more(
    found: Sequence[Mapping[str, float]],
    base: Setting,
    size: Size,
    seeds: Sequence[int],
    trainings: Trainings,
) -> str:
    others = [trainings.of(base.spec(size, seed)) for seed in seeds]
    return interval([each["loss"] - other["loss"] for each, other in zip(found, others, strict=True)])


def seeds_of(options: Options, most: int) -> list[int]:
    """One in a quick run."""
    return list(range(1 if options.quick else most))
