"""Loss against bytes of a LeNet, each method at the best of the same number of learning rates.

    python -m benchmarks.compress.tuned [--quick] [--write]

Every setting is trained once with each learning rate, and with the best of them from further seeds. Can be
stopped and continued: finished trainings are in build/tuned.jsonl.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev

import torch
from torch import nn

from taugrad.compressors.methods import read_config

from ..harness.report import Table, number, publish, read_options, say
from ..harness.trainings import Kept, kept_in
from .gradients import Learner

FLOAT32 = "wgt(tau=1e-30)"
"""Sends every element that is not zero, whole."""
LINES = (
    FLOAT32,
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
INTRODUCTION = (
    "LeNet ({elements:,} parameters) on 5,000 MNIST digits, {iterations} iterations of {workers} simulated "
    "workers with {batch} examples together, SGD with momentum 0.9 in the optimizer. Every method was "
    "trained with the learning rates {rates} from one seed, and with that of the lowest loss on the 1,000 "
    "test digits from {seeds} seeds in all. The loss is that on the test digits, mean and standard deviation "
    "over seeds; rates were chosen on the same digits. Bytes are those of a worker's messages. On the front "
    "is what no other row beats in both means. Where the rate is the smallest or largest tried (edge), "
    "another may be better."
)


@dataclass(frozen=True)
class Sizes:
    """How much to train."""

    iterations: int
    rates: tuple[float, ...]
    seeds: int
    lines: Sequence[str] = LINES
    workers: int = 2
    batch: int = 32


FULL = Sizes(200, (0.0025, 0.005, 0.01, 0.02), 3)
QUICK = Sizes(3, (0.01, 0.02), 2, (FLOAT32, "sign"))


@dataclass(frozen=True)
class Trained:
    """What one training came to."""

    loss: float
    accuracy: float
    bits: float
    """Bits of an element in a worker's messages."""


def train(line: str, rate: float, seed: int, sizes: Sizes) -> Trained:
    """Trains with one method; a loss that is infinite where it diverged."""
    learner, sent = Learner(read_config(line), sizes.workers, rate, seed), 0  # type: ignore[arg-type]
    try:
        for _ in range(sizes.iterations):
            sent += learner.step(sizes.batch)[0]
    except FloatingPointError:
        return Trained(float("inf"), 0.0, 0.0)
    with torch.no_grad():
        scores, labels = learner.model(learner.data.test_inputs), learner.data.test_labels
        loss = float(nn.functional.cross_entropy(scores, labels))
        accuracy = float((scores.argmax(1) == labels).double().mean())
    bits = 8 * sent / (learner.elements * sizes.iterations)
    return Trained(float("inf") if math.isnan(loss) else loss, accuracy, bits)


def main(arguments: Sequence[str]) -> None:
    options = read_options("compress.tuned", __doc__.partition("\n")[0], arguments)
    sizes = QUICK if options.quick else FULL
    torch.set_num_threads(1)
    kept = Kept(kept_in("tuned", quick=options.quick))

    def trained(line: str, rate: float, seed: int) -> Trained:
        key = {"line": line, "rate": rate, "seed": seed, "iterations": sizes.iterations}
        for entry in kept.entries:
            if entry["key"] == key:
                return Trained(**entry["trained"])
        result = train(line, rate, seed, sizes)
        say(f"{line}, rate {rate:g}, seed {seed}: loss {result.loss:.4f}")
        kept.add({"key": key, "trained": asdict(result)})
        return result

    results: list[tuple[str, float, list[Trained]]] = []
    for line in sizes.lines:
        tried = {rate: trained(line, rate, 0) for rate in sizes.rates}
        rate = min(tried, key=lambda one: tried[one].loss)
        runs = [tried[rate], *(trained(line, rate, seed) for seed in range(1, sizes.seeds))]
        results.append((line, rate, runs))
    ends = [(mean(run.loss for run in runs), mean(run.bits for run in runs)) for *_, runs in results]
    rows = []
    for (line, rate, runs), (loss, bits) in sorted(
        zip(results, ends, strict=True), key=lambda row: -row[1][1]
    ):
        beaten = any(one <= loss and other <= bits and (one, other) != (loss, bits) for one, other in ends)
        edge = " (edge)" if rate in (min(sizes.rates), max(sizes.rates)) else ""
        spread = f"{loss:.3f} ± {stdev(run.loss for run in runs):.3f}"
        accuracy = f"{100 * mean(run.accuracy for run in runs):.1f}"
        name = "float32" if line == FLOAT32 else f"`{line}`"
        rows.append((name, f"{rate:g}{edge}", spread, accuracy, number(bits), "" if beaten else "yes"))
    introduction = INTRODUCTION.format(
        elements=Learner(read_config("fp16")).elements,  # type: ignore[arg-type]
        iterations=sizes.iterations,
        workers=sizes.workers,
        batch=sizes.batch,
        rates=", ".join(f"{rate:g}" for rate in sizes.rates),
        seeds=sizes.seeds,
    )
    columns = ("method", "learning rate", "loss", "accuracy, %", "bits an element", "on the front")
    publish("tuned", options, introduction, [Table("Loss against bytes", columns, rows)])


if __name__ == "__main__":
    main(sys.argv[1:])
