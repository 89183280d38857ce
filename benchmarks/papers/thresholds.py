"""The open question: a relation between the best tau and the gradients, over 4 models x 3 data sets.

    python -m benchmarks.papers automatic           measures, into records/automatic.jsonl
    python -m benchmarks.papers.thresholds --write  judges

Said before it was measured: a pair's best tau is the one at which the mean accuracy of the seeds, interpolated
over ln(tau) and made to fall, is 2 points below no compression. The relation, fitted to the other pairs, holds
if it misses this tau by a factor of 1.5 or less (root mean square of logarithms), and by less than one tau for
all pairs does and less than a multiple of a percentile of |g| does, both outside the 95% interval over pairs.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import avg_pool2d

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.config import Frames, Mnist5k
from taugrad.platform.data.examples import evenly_spaced
from taugrad.platform.data.frames import load_frames
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric

from ..harness.in_process import Following, fit
from ..harness.paired import interval
from ..harness.report import Table, number, publish, read_options
from ..harness.trainings import BUILD
from .claims import records
from .speech_data.__main__ import main as make_speech

MODELS: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"kind": "mlp", "widths": [64]},
    "tanh": {"kind": "mlp", "widths": [392, 50], "activation": "tanh"},
    "lenet": {"kind": "lenet"},
    "resnet": {"kind": "resnet", "depth": 8},
}
DATA: Mapping[str, Mapping[str, Any]] = {
    "digits": {"kind": "digits"},
    "mnist": {"kind": "custom", "factory": "benchmarks.papers.thresholds:small_mnist"},
    "speech": {"kind": "custom", "factory": "benchmarks.papers.thresholds:speech"},
}
EPOCHS = {"digits": 10, "mnist": 4, "speech": 4}
RATES = {
    "mlp": {"digits": 0.05, "mnist": 0.02, "speech": 0.05},
    "tanh": {"digits": 0.05, "mnist": 0.02, "speech": 0.05},
    "lenet": {"digits": 0.01, "mnist": 0.01, "speech": 0.03},
    "resnet": {"digits": 0.05, "mnist": 0.05, "speech": 0.1},
}
"""At which a model learns well without compression."""
UNCOMPRESSED = "none"
TAUS = ("0.3", "1", "3", "9", "27")
DENSITIES = tuple(f"allocate({density})" for density in ("0.001", "0.003", "0.01", "0.03"))
"""The policy of densities that `taugrad auto` tries."""
BATCH, WORKERS, MOMENTUM = 64, 2, 0.9
MINUTES, FRAMES, TEST_FRAMES = 2, 4000, 1000
"""Of the speech."""


def small_mnist() -> DataSet:
    """The 5,000 MNIST digits in 14 x 14: means of 2 x 2 pixels."""
    whole = load_data(Mnist5k())
    assert isinstance(whole, DataSet)
    train, test = (avg_pool2d(inputs, 2) for inputs in (whole.train_inputs, whole.test_inputs))
    return replace(whole, train_inputs=train, test_inputs=test)


def speech() -> DataSet:
    """Windows of 17 frames x 20 features of speech as images, and the phoneme in the middle."""
    folder = BUILD / f"speech-{MINUTES}"
    make_speech(["--minutes", f"{MINUTES}", "--out", str(folder)])
    parts = load_frames(Frames(path=folder, evaluate_on="test"))
    train, test = (
        part.batch(evenly_spaced(len(part), count), None)
        for part, count in ((parts.train, FRAMES), (parts.test, TEST_FRAMES))
    )
    images = [inputs.reshape(-1, 1, 17, 20) for inputs, _ in (train, test)]
    return DataSet(images[0], train[1], images[1], test[1], parts.shape.outputs)


class FirstGradients(Following):
    """Keeps statistics of every layer's gradient in the first iteration: elements, rms, p99, p999."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[tuple[float, ...]] = []

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Notes them."""
        wanted = ("elements", "grad_rms", "grad_p99", "grad_p999")
        if not self.layers:
            for name, parameter in self.trainer.model.named_parameters():
                layer = (metrics.get(layer_metric(name, what), 0.0) for what in wanted[1:])
                self.layers.append((parameter.numel(), *layer))


def spec_of(model: str, data: str, tau: str, seed: int) -> RunSpec:
    """A run with a tau, a policy or no compression; momentum comes before the threshold, as in `taugrad auto`."""
    bare = tau == UNCOMPRESSED
    momentum = MOMENTUM if bare else 0.0
    return RunSpec.model_validate(
        {
            "model": MODELS[model],
            "data": DATA[data],
            "training": {
                "epochs": EPOCHS[data],
                "batch_size": BATCH,
                "schedule": {"kind": "cosine"},
                "optimizer": {"kind": "sgd", "lr": RATES[model][data], "momentum": momentum},
            },
            "sync": {"mode": "simulated"},
            "workers": {"count": WORKERS},
            "compressor": tau
            if bare
            else f"strom({tau}, momentum={MOMENTUM}, nonfinite='skip') | golomb_rice",
            "seed": seed,
        }
    )


def train(model: str, data: str, tau: str, seed: int) -> dict[str, float]:
    """What a training came to, and the features of its first gradients: means of logarithms over elements."""
    first = FirstGradients()
    trainer = fit(spec_of(model, data, tau, seed).model_dump_json(), first)
    elements, rms, p99, p999 = np.array([layer for layer in first.layers if layer[1] > 0]).T
    share = elements / elements.sum()
    return {
        "accuracy": 100 * first.last[names.EVAL_ACCURACY],
        "MB": trainer.sync.totals.wire_bytes / 1e6,
        "rms": 0.5 * math.log(share @ rms**2),
        "p99": float(share @ np.log(np.maximum(p99 / rms, 1e-3))),
        "p999": float(share @ np.log(np.maximum(p999 / rms, 1e-3))),
        "layer": float(share @ np.log(elements)),
    }
