"""A GPT on the source of Python's standard library: settings, seeds, their table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import real
from taugrad.platform.tracking import names
from taugrad.search import auto_specs

from ..harness.in_process import trained
from ..harness.report import Options, Report, Table, interval, number
from ..harness.trainings import Trainings, kept_in
from ..harness.workers import train_by

SIXTEEN = 2
"""How many times fewer bytes a 16-bit exchange sends than float32."""


@dataclass(frozen=True)
class Setting:
    """One way to train.

    Attributes:
        name: for the table.
        line: the compressor.
        sync: the mode.
        optimizer: fields that differ from the others'.
        real: by a process for each worker, where the method cannot be simulated.
    """

    name: str
    line: str
    sync: Mapping[str, Any] = field(default_factory=lambda: {"mode": "gradients"})
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    real: bool = False

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
                    "batch_per_worker": size.batch,
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
                "sync": dict(self.sync) if self.real else {"mode": "simulated", "of": dict(self.sync)},
                "workers": {"count": size.workers},
                "seed": seed,
            }
        )


@dataclass(frozen=True)
class Size:
    """How much to train."""

    workers: int
    iterations: int = 600
    batch: int = 12
    """Examples of a worker."""
    layers: int = 4
    width: int = 128


QUICK = Size(2, iterations=12, layers=1, width=16)


Group = tuple[str, Sequence[Setting], int]
"""A table: its title, its settings, and with how many seeds each is trained."""


def report(
    name: str,
    options: Options,
    introduction: str,
    size: Size,
    groups: Sequence[Group],
    bases: Mapping[str, Setting],
) -> Report:
    """Trains what is not in the benchmark's file yet.

    Args:
        name: the benchmark's.
        options: its command line; a quick run has one seed, and the first and the last setting of each group.
        introduction: with places for a size's fields and for `seeds`, the most that a group has.
        size: how much to train; a quick run has a small one.
        groups: one table each.
        bases: by name, what all are compared with: settings of the groups.
    """
    if options.quick:
        groups = [(title, [settings[0], settings[-1]], 1) for title, settings, _ in groups]
    trainings = Trainings(kept_in(name, quick=options.quick), train, lambda _: 1)
    wanted = [
        (setting, seed) for _, settings, seeds in groups for seed in range(seeds) for setting in settings
    ]
    trainings.train([setting.spec(size, seed) for setting, seed in wanted], every=1)
    tables = [
        table(title, size, settings, range(seeds), trainings, bases) for title, settings, seeds in groups
    ]
    return introduction.format(**asdict(size), seeds=max(seeds for *_, seeds in groups)), tables


def train(text: str) -> dict[str, float]:
    """A run's last validation loss, and how many times fewer bytes than float32 it sent."""
    return train_by(_trained, text)


def _trained(text: str) -> dict[str, float]:
    listener = trained(text)
    ratio = listener.trainer.sync.totals.compression_ratio
    return {"loss": listener.last[names.EVAL_LOSS], "smaller": ratio}


def tried_by_auto(setting: Setting, size: Size) -> list[Setting]:
    """What `taugrad auto` tries with a run, by the function that it uses."""
    bare = setting.spec(size, 1)
    tables = []
    for every, density in auto_specs.STEPS:
        spec = auto_specs.local_steps(bare, every, density)
        sync = real(spec.sync).model_dump(mode="json")
        name = f"auto: every {every}, {100 * density:g}%, rate {spec.training.optimizer.lr:g}"
        tables.append(Setting(name, str(spec.compressor), sync, {"lr": spec.training.optimizer.lr}))
    return tables


def table(
    title: str,
    size: Size,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    trainings: Trainings,
    bases: Mapping[str, Setting],
) -> Table:
    """Every setting's loss and bytes; a column of differences for each base, seed by seed."""
    rows = []
    for setting in settings:
        results = [trainings.of(setting.spec(size, seed)) for seed in seeds]
        smaller = fmean(result["smaller"] for result in results)
        rows.append(
            (
                setting.name,
                f"{fmean(result['loss'] for result in results):.3f}",
                *(_more(results, base, size, seeds, trainings) for base in bases.values()),
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
    return Table(title, columns, rows)


def _more(
    results: Sequence[Mapping[str, float]],
    base: Setting,
    size: Size,
    seeds: Sequence[int],
    trainings: Trainings,
) -> str:
    others = [trainings.of(base.spec(size, seed)) for seed in seeds]
    return interval([result["loss"] - other["loss"] for result, other in zip(results, others, strict=True)])
