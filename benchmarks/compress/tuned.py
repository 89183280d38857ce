"""Loss against bytes of a small GPT and a LeNet, each method at the best of equally many learning rates.

    python -m benchmarks.compress.tuned [--quick] [--write]

Every setting is trained once with each learning rate, and with the best of them from further seeds. Can be
stopped and continued: finished trainings are in build/tuned.jsonl. --write also draws the front.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from taugrad.compressors.errors import Diverged
from taugrad.dashboards.figures import save
from taugrad.dashboards.labelling import Label, label_points
from taugrad.dashboards.palette import GREY
from taugrad.dashboards.style import SMALL_SIZE, WIDE, log_axis, new_panels
from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.models import LeNet

from ..harness.pages import RESULTS
from ..harness.report import Options, Report, Table, number, run_benchmark
from ..harness.trainings import Trainings, kept_in
from ..papers import language_runs
from ..papers.language import OUTER
from ..papers.language_runs import Setting

SHAPE = Shape.image(1, 28, 28, 10)
FLOAT32 = Setting("float32", "wgt(tau=1e-30)")
"""Sends every element that is not zero, whole."""
GRADIENTS = (
    FLOAT32,
    *(
        Setting(f"`{line}`", line)
        for line in (
            "linear(bits=4)",
            "linear(bits=2)",
            "qsgd(bits=4)",
            "terngrad",
            "natural",
            "sign",
            "topk(density=0.01)",
            "random_k(density=0.1)",
            "strom(tau=density(target=0.1)) | golomb_rice",
            "strom(tau=density(target=0.01)) | golomb_rice",
            "chunked_topk(keep=64) | quantile(bits=2)",
        )
    ),
)
EVERY = 10
_LOCAL = {"mode": "weights", "every": EVERY}
PULSELOCO = Setting("PULSELoCo, `visible`", "visible", {**_LOCAL, "outer": OUTER})
LOCAL = (
    Setting("mean of weights", "none", _LOCAL),
    Setting("DiLoCo", "none", {**_LOCAL, "outer": OUTER}),
    PULSELOCO,
    Setting("SparseLoCo", "chunked_topk(keep=64, decay=0.95) | quantile(bits=2)", _LOCAL),
    *(
        Setting(f"`{line}`", line, _LOCAL)
        for line in (
            "linear(bits=4)",
            "sign",
            "strom(tau=density(target=0.1, every=1)) | golomb_rice",
            "strom(tau=density(target=0.01, every=1)) | golomb_rice",
            "visible | quantile(bits=2)",
            "visible_strom(tau=density(target=0.1, every=1)) | golomb_rice",
        )
    ),
    *(
        Setting(f"`{line}`, unsent 1/n", line, {**_LOCAL, "unsent": "1/n"})
        for line in (
            "strom(tau=density(target=0.1, every=1)) | golomb_rice",
            "strom(tau=density(target=0.01, every=1)) | golomb_rice",
        )
    ),
)
SMALL_RATES = (1e-6, 1e-5, 1e-4, 1e-3)
INTRODUCTION = (
    "Every method was trained with each of four learning rates from one seed, and with that of the lowest "
    "loss from three seeds in all. The loss is that on held-out data, mean and standard deviation over "
    "seeds; rates were chosen on the same data. Bits are those of a worker's messages, for each element and "
    "iteration. On the front is what no other row of the table beats in both means. Where the rate is the "
    "smallest or largest tried (edge), another may be better; where losses differ much between seeds, the "
    "rate that was best with one seed is not with all.\n\n"
    "GPT: 2 layers x 64, context 64, {gpt_iterations} iterations of 2 simulated workers "
    "with 4 examples each, AdamW with the recipe of `papers.language`, the source of Python's standard "
    "library as bytes (without learning 5.5 nats; the frequencies of bytes alone, about 3.3). Rows with "
    "*every {every}* are local steps: pseudo-gradients are exchanged in every {every}th iteration; only the "
    "workers' rate was chosen, DiLoCo's outer optimizer has rate 0.7 and Nesterov momentum 0.9.\n\n"
    "LeNet ({lenet:,} parameters): 5,000 MNIST digits, {lenet_iterations} iterations of 2 simulated workers "
    "with 32 examples together, SGD with momentum 0.9 in the optimizer.\n\n"
    "Learning rates: GPT {gpt_rates}; LeNet {lenet_rates}. What bfloat16 sees of a step depends on the rate: "
    "the last table has the bits of PULSELoCo with small ones, as for fine-tuning, of the same GPT from its "
    "first iteration on.\n\n![Loss against bytes](../images/tuned.png)"
)


@dataclass(frozen=True)
class Workload:
    """A model that every method trains."""

    name: str
    settings: Sequence[Setting]
    rates: tuple[float, ...]
    iterations: int
    make: Callable[[Setting, float, int, int], RunSpec]
    """A training with a setting, a learning rate and a seed, for so many iterations."""
    seeds: int = 3

    def spec(self, setting: Setting, rate: float, seed: int = 0) -> RunSpec:
        return self.make(setting, rate, seed, self.iterations)


def gpt_spec(setting: Setting, rate: float, seed: int, iterations: int) -> RunSpec:
    """A training as those of `papers.language`."""
    size = language_runs.Size(2, iterations, batch=4, layers=2, width=64)
    return replace(setting, optimizer={"lr": rate}).spec(size, seed)


def lenet_spec(setting: Setting, rate: float, seed: int, iterations: int) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"kind": "lenet"},
            "data": {"kind": "mnist5k"},
            "training": {
                "iterations": iterations,
                "evaluate_every": iterations,
                "batch_size": 32,
                "optimizer": {"kind": "sgd", "lr": rate},
            },
            "compressor": setting.line,
            "sync": {"mode": "simulated", "of": dict(setting.sync)},
            "workers": {"count": 2},
            "seed": seed,
        }
    )


def train(text: str) -> dict[str, float]:
    """The loss on held-out data, infinite where it diverged, and bits of an element an iteration."""
    try:
        result = language_runs.train(text)
    except (Diverged, FloatingPointError):
        return {"loss": math.inf, "bits": 0.0}
    loss = math.inf if math.isnan(result["loss"]) else result["loss"]
    return {"loss": loss, "bits": 32 / result["smaller"]}


FULL = (
    Workload("GPT", (*GRADIENTS, *LOCAL), (1e-3, 3e-3, 1e-2, 3e-2), 600, gpt_spec),
    Workload("LeNet", GRADIENTS, (0.0025, 0.005, 0.01, 0.02), 200, lenet_spec),
)
QUICK = tuple(
    replace(workload, settings=workload.settings[:7:6], rates=workload.rates[1:3], iterations=3, seeds=2)
    for workload in FULL
)


@dataclass(frozen=True)
class Row:
    """A method at its best learning rate."""

    name: str
    rate: float
    losses: list[float]
    bits: float

    @property
    def loss(self) -> float:
        return mean(self.losses)


def measure(workload: Workload, trainings: Trainings) -> list[Row]:
    """Each method at its best rate; rows begin with the most bits."""
    trainings.train(
        [workload.spec(setting, rate) for setting in workload.settings for rate in workload.rates]
    )
    rows = []
    for setting in workload.settings:
        tried = {rate: trainings.of(workload.spec(setting, rate))["loss"] for rate in workload.rates}
        rate = min(tried, key=tried.__getitem__)
        specs = [workload.spec(setting, rate, seed) for seed in range(workload.seeds)]
        trainings.train(specs)
        runs = [trainings.of(spec) for spec in specs]
        every = f"every {EVERY}: " if setting.sync["mode"] == "weights" else ""
        losses, bits = [run["loss"] for run in runs], mean(run["bits"] for run in runs)
        rows.append(Row(every + setting.name, rate, losses, bits))
    return sorted(rows, key=lambda row: -row.bits)


def on_front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other beats in both means."""
    return [
        row
        for row in rows
        if not any(
            one.loss <= row.loss and one.bits <= row.bits and (one.loss, one.bits) != (row.loss, row.bits)
            for one in rows
        )
    ]


def table(workload: Workload, rows: Sequence[Row]) -> Table:
    """Loss, bytes, and who is on the front."""
    front, edges = on_front(rows), (min(workload.rates), max(workload.rates))
    cells = []
    for row in rows:
        edge = " (edge)" if row.rate in edges else ""
        spread = f"{row.loss:.3f} ± {stdev(row.losses):.3f}"
        cells.append(
            (row.name, f"{row.rate:g}{edge}", spread, number(row.bits), "yes" if row in front else "")
        )
    columns = ("method", "learning rate", "loss", "bits an element", "on the front")
    return Table(workload.name, columns, cells)


def visible_by_rate(gpt: Workload, trainings: Trainings) -> Table:
    """How many bits PULSELoCo sends, by learning rate."""
    specs, rows = [gpt.spec(PULSELOCO, rate) for rate in SMALL_RATES], []
    trainings.train(specs)
    for rate, spec in zip(SMALL_RATES, specs, strict=True):
        bits = trainings.of(spec)["bits"]
        rows.append((f"{rate:g}", number(bits), f"{number(32 / EVERY / bits)}x"))
    columns = ("learning rate", "bits an element", "fewer than DiLoCo")
    return Table("PULSELoCo with small learning rates", columns, rows)


def draw(path: Path, measured: Mapping[str, Sequence[Row]]) -> None:
    """Draws a panel for each workload: bits, loss, and the front as a line."""
    figure, panels = new_panels(
        "Loss against bytes, each method at the best of equally many learning rates",
        "mean of three seeds; line: the front; E: sent in every 10th iteration (local steps)",
        "bits an element and iteration",
        "loss",
        [(name, "black") for name in measured],
        replace(WIDE, width=9.6, columns=1, panel_height=3.6),
        sharex=False,
        sharey=False,
    )
    for axes, rows in zip(panels, measured.values(), strict=True):
        front = on_front(rows)
        bits, losses = [row.bits for row in rows], [row.loss for row in rows]
        log_axis(axes.xaxis, min(bits) / 1.6, max(bits) * 1.6, "")
        margin = 0.12 * (max(losses) - min(losses) or 1.0)
        axes.set_ylim(min(losses) - margin, max(losses) + margin)
        axes.plot([row.bits for row in front], [row.loss for row in front], color="#D55E00", linewidth=1.2)
        labels = []
        for row in rows:
            color = "#D55E00" if row in front else GREY
            axes.plot([row.bits], [row.loss], "o", color=color, markersize=4)
            labels.append(Label(row.bits, row.loss, _short(row.name), color))
        label_points(axes, labels, size=SMALL_SIZE)
    save(figure, path)


def _short(name: str) -> str:
    """A row's name as a label."""
    short = {"`": "", f"every {EVERY}:": "E", " | golomb_rice": "", "tau=density(target=": "density("}
    for long, label in {**short, ", every=1)": ")"}.items():
        name = name.replace(long, label)
    return name


def main(options: Options) -> Report:
    trainings = Trainings(kept_in("tuned", quick=options.quick), train, lambda _: 1)
    workloads = QUICK if options.quick else FULL
    measured = {workload.name: measure(workload, trainings) for workload in workloads}
    if options.folder is not None:
        beside = options.folder.with_suffix(".png")
        draw(RESULTS.parent / "images/tuned.png" if options.folder == RESULTS else beside, measured)
    gpt, lenet = workloads
    introduction = INTRODUCTION.format(
        gpt_iterations=gpt.iterations,
        gpt_rates=", ".join(f"{rate:g}" for rate in gpt.rates),
        lenet=sum(parameter.numel() for parameter in build(LeNet(), SHAPE).parameters()),
        lenet_iterations=lenet.iterations,
        lenet_rates=", ".join(f"{rate:g}" for rate in lenet.rates),
        every=EVERY,
    )
    tables = [table(workload, measured[workload.name]) for workload in workloads]
    return introduction, [*tables, visible_by_rate(gpt, trainings)]


if __name__ == "__main__":
    run_benchmark(main)
