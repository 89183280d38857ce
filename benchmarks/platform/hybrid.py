"""Hybrid parallelism's schemes a, b, c beside data parallelism: bytes, messages, memory, and where it wins.

    python -m benchmarks.platform.hybrid [--quick] [--write]

Workers are processes on the loopback interface, or simulated in one. Bytes and messages are exact and do not
depend on how busy the machine is, memory hardly.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec

from ..harness.report import RESULTS, Place, Table, number, publish, read_options, say
from . import hybrid_formulas as formulas
from .hybrid_formulas import Net
from .hybrid_runs import Case, measure

PLACE = Place(
    RESULTS.parent / "synchronization.md",
    "<!-- benchmarks/platform/hybrid.py writes from here -->",
    "<!-- to here: hybrid -->",
)
VALUE_BYTES = {"fp32": 4, "bf16": 2}
INTRODUCTION = (
    "AlexNet and VGG16 with {sizes} million parameters, SGD with momentum, random images of {image} and "
    '{classes:,} classes; bytes do not depend on what is learned. "Received" is what arrives at a worker in '
    "a step, as the mean of the workers, including headers and the numbers told before rounds. The formulas "
    "are those of the section on hybrid, and do not include headers."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    models: dict[str, dict[str, Any]]
    shape: Shape
    examples: dict[str, int]
    """Of a worker, by model."""
    simulated: tuple[int, ...]
    """Numbers of workers besides 2 real ones."""
    batches: tuple[int, ...]
    """Of a worker, for which crossings are computed."""
    workers: tuple[int, ...]
    """Likewise."""


FULL = Sizes(
    models={
        "alexnet": {"kind": "alexnet", "form": "imagenet"},
        "vgg16": {"kind": "vgg16", "form": "imagenet"},
    },
    shape=Shape.image(3, 224, 224, 1000),
    examples={"alexnet": 8, "vgg16": 4},
    simulated=(4,),
    batches=(32, 128),
    workers=(2, 4, 8),
)
QUICK = Sizes(
    models={
        "alexnet": {"kind": "alexnet", "width_multiplier": 0.25},
        "vgg16": {"kind": "vgg16", "form": "imagenet", "width_multiplier": 0.0625},
    },
    shape=Shape.image(3, 32, 32, 10),
    examples={"alexnet": 4, "vgg16": 4},
    simulated=(4,),
    batches=(32,),
    workers=(2, 4),
)
ROWS = (
    ("data parallel, sharded", {"mode": "sharded"}),
    ("hybrid a, fp32", {"mode": "hybrid", "scheme": "a"}),
    ("hybrid b, fp32", {"mode": "hybrid", "scheme": "b"}),
    ("hybrid c, fp32", {"mode": "hybrid", "scheme": "c"}),
    ("hybrid b, bf16", {"mode": "hybrid", "scheme": "b", "activations": "bf16"}),
)


def case(sizes: Sizes, model: str, sync: dict[str, str], workers: int, *, real: bool = True) -> Case:
    """A few steps of one mode."""
    spec = RunSpec.model_validate(
        {
            "model": sizes.models[model],
            "sync": sync if real else {"mode": "simulated", "of": sync},
            "workers": {"count": workers},
            "training": {"optimizer": {"kind": "sgd", "lr": 1e-4}},
        }
    )
    return Case(spec, sizes.shape, sizes.examples[model], 2)


def expected(net: Net, sync: dict[str, str], workers: int, examples: int) -> tuple[float, int, float]:
    """Received bytes, messages, and bytes kept, by the formulas."""
    if sync["mode"] == "sharded":
        whole = formulas.synchronized(formulas.FLOAT_BYTES * (net.conv + net.fc), workers)
        return whole, 2 * workers * (workers - 1), formulas.kept_bytes(net, workers, hybrid=False)
    value = VALUE_BYTES[sync.get("activations", "fp32")]
    payload = formulas.FLOAT_BYTES * net.conv
    kept = formulas.kept_bytes(net, workers, hybrid=True)
    kept += formulas.turn_bytes(net, workers, examples, sync["scheme"])
    arriving = formulas.received(net, workers, workers * examples, value, payload)
    return arriving, formulas.messages(net, workers, sync["scheme"]), kept


def measure_bytes(sizes: Sizes, nets: dict[str, Net]) -> Table:
    """Every scheme with both models."""
    rows: list[tuple[str, ...]] = []
    for model, net in nets.items():
        examples = sizes.examples[model]
        counts = [(2, True)] + [(count, False) for count in sizes.simulated if model == next(iter(nets))]
        for workers, real in counts:
            say(f"{model}, {workers} workers")
            steps = measure([case(sizes, model, sync, workers, real=real) for _, sync in ROWS])
            for (name, sync), measured in zip(ROWS, steps, strict=True):
                arriving, messages, kept = expected(net, sync, workers, examples)
                rows.append(
                    (
                        *(model, f"{workers} {'real' if real else 'simulated'}", str(examples), name),
                        *(_mb(measured.received), _mb(arriving)),
                        *(number(measured.messages), str(messages)),
                        *((_mb(measured.peak) if real else ""), _mb(kept)),
                    )
                )
    columns = (
        *("model", "K", "B", "mode", "received, MB", "formula", "messages", "formula"),
        *("peak memory, MB", "kept, formula"),
    )
    notes = (
        'B: examples per worker. "Peak memory" is that of the process with the highest peak, in the second '
        'step, above its memory before the model was built; only for real workers. "Kept, formula": '
        "weights, gradients and momentum (12 bytes per parameter), and the features of the turns. The rest "
        "are the convolutions' activations, and buffers and messages of the exchange.",
    )
    return Table("A step of each scheme beside data parallelism", columns, rows, notes)


def crossings(sizes: Sizes, nets: dict[str, Net]) -> Table:
    """By formula, how strongly data parallelism must compress."""
    rows = []
    for model, net in nets.items():
        for batch in sizes.batches:
            for workers in sizes.workers:
                n = workers * batch
                ratios = [
                    crossing(net, workers, n, value)
                    for crossing in (formulas.crossing_ratio, formulas.crossing_ratio_to_all)
                    for value in VALUE_BYTES.values()
                ]
                rows.append((model, str(batch), str(workers), *(f"{ratio:.1f}" for ratio in ratios)))
    columns = ("model", "B", "K", "sharded, fp32", "sharded, bf16", "all-gather, fp32", "all-gather, bf16")
    notes = (
        "By formula: how many times smaller than float32 the messages of data parallelism must be, so that "
        "a worker receives as little as with hybrid, with the convolutions' gradients compressed alike. "
        "With less compression, hybrid has fewer bytes; with more, data parallelism has. fp32, bf16: "
        "hybrid's activations.",
    )
    return Table("The crossing: by what ratio data parallelism has to be compressed", columns, rows, notes)


def _mb(size: float) -> str:
    return number(size / 1e6)


def main(arguments: Sequence[str]) -> None:
    options = read_options("platform.hybrid", "Hybrid parallelism beside data parallelism.", arguments)
    sizes = QUICK if options.quick else FULL

    nets = {}
    for name in sizes.models:
        nets[name] = Net.of(build(case(sizes, name, {"mode": "sharded"}, 2).spec.model, sizes.shape))
    tables = [measure_bytes(sizes, nets), crossings(sizes, nets)]
    weights = " and ".join(f"{(net.conv + net.fc) / 1e6:.1f}" for net in nets.values())
    introduction = INTRODUCTION.format(
        sizes=weights, image=" x ".join(map(str, sizes.shape.inputs)), classes=sizes.shape.outputs
    )
    publish("hybrid", options, introduction, tables, PLACE)


if __name__ == "__main__":
    main(sys.argv[1:])
