"""Hybrid parallelism's schemes a, b, c beside data parallelism: bytes, messages, memory, and where it wins.

    python -m benchmarks.platform.hybrid [--quick] [--write]

Workers are processes on the loopback interface, or simulated in one. Bytes and messages are exact and do not
depend on how busy the machine is, memory hardly.
"""

import gc
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taugrad.platform.data.batch_plan import Position
from taugrad.platform.data.feeding import Batch
from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.synchronization.hybrid.layers import share_of, two_parts
from taugrad.platform.synchronization.synchronization import StepContext
from taugrad.platform.tasks.builtin import ClassificationTask

from ..harness.report import Options, Report, Table, number, run_benchmark, say
from ..harness.workers import run_workers

TARGET_BYTES = NUMBER_BYTES = 8
FLOAT_BYTES = 4
COPIES = 3
"""Copies of the parameters: weights, gradients, momentum."""


@dataclass(frozen=True)
class Net:
    """What the formulas ask of a model."""

    conv: int
    fc: int
    features: int
    hidden: int
    classes: int
    layers: int
    """Fully connected ones."""

    @classmethod
    def of(cls, model: nn.Module) -> "Net":
        """That of a model that names its two parts."""
        parts = two_parts(model)
        layers = [module for _, module in parts.fully_connected if isinstance(module, nn.Linear)]
        assert len(share_of(parts.fully_connected, 0, 1)) == len(layers)
        return cls(
            conv=sum(parameter.numel() for parameter in parts.convolutional.parameters()),
            fc=sum(parameter.numel() for layer in layers for parameter in layer.parameters()),
            features=layers[0].in_features,
            hidden=sum(layer.out_features for layer in layers[:-1]),
            classes=layers[-1].out_features,
            layers=len(layers),
        )

    def example_bytes(self, value: int) -> int:
        """What an example costs: v = s (2 F + 2 H + C) + 8."""
        return value * (2 * self.features + 2 * self.hidden + self.classes) + TARGET_BYTES


def synchronized(payload: float, workers: int) -> float:
    """Bytes that a worker receives where owners add up their 1/K and send it to all, there and back."""
    return 2 * (workers - 1) / workers * payload


def crossing_ratio(net: Net, workers: int, examples: int, value: int) -> float:
    """How many times data parallelism in 1/K shards must be compressed to receive as little as hybrid.

    Convolutions' gradients are compressed alike on both sides, and so leave no trace:
    2 (K - 1)/K 4 P_fc / r = (K - 1)/K n v.
    """
    return 2 * FLOAT_BYTES * net.fc / (examples * net.example_bytes(value))


def crossing_ratio_to_all(net: Net, workers: int, examples: int, value: int) -> float:
    """The same where data parallelism sends each message to all: (K - 1) 4 P / r on its side.

    With r the ratio of both sides' gradients, (K - 1) 4 P / r = (K - 1)/K (n v + 8 P_conv / r).
    """
    whole = FLOAT_BYTES * (workers * (net.conv + net.fc) - 2 * net.conv)
    return whole / (examples * net.example_bytes(value))


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
STEPS = 2
"""The second one is measured."""


@dataclass(frozen=True)
class Measured:
    """A step."""

    received: float
    """Bytes of all workers."""
    messages: float
    """Messages of all workers."""
    peak: float
    """Bytes of memory above what the largest process had before the model."""


def _steps(text: str, image: list[int], examples: int) -> dict[str, float]:
    """The fields of `Measured`, by a spec, the sizes of its images and classes, and examples per worker."""
    spec, shape, device = RunSpec.model_validate_json(text), Shape.image(*image), torch.device("cpu")
    gc.collect()
    before = _memory("VmRSS")
    torch.manual_seed(spec.seed)
    model = build(spec.model, shape)
    sync, _ = build_synchronization(spec, model, ClassificationTask(), device)
    del model
    batch_size = examples * sync.workers
    batches = [_batch(shape, examples, worker) for worker in sync.ranks]
    for step in range(STEPS):
        _RESET.write_text("5", encoding="ascii")
        position = Position(0, step, STEPS, step, batch_size, STEPS)
        iteration = sync.iterate(batches, StepContext(position, last=False, observe=False))
        peak = torch.tensor(_memory("VmHWM") - before)
        sync.flush()  # adds up what all workers counted
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    counted = iteration.step
    return {"received": counted.received_bytes, "messages": counted.messages, "peak": int(peak)}


def _batch(shape: Shape, examples: int, worker: int) -> Batch:
    generator = torch.Generator().manual_seed(worker)
    inputs = torch.randn(examples, *shape.inputs, generator=generator)
    return Batch(inputs, torch.randint(shape.outputs, (examples,), generator=generator), 1.0)


def _memory(name: str) -> int:
    """Bytes in this process's status: VmRSS, what it has, or VmHWM, the most since a reset."""
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match, f"{_STATUS} has no {name}"
    return 1024 * int(match[1])


SMALL = {"kind": "lenet"}
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
    image: tuple[int, int, int, int]
    """Channels, height, width, classes."""
    examples: dict[str, int]
    """Examples per worker, by model."""
    simulated: tuple[int, ...]
    """Numbers of workers besides 2 real ones."""
    batches: tuple[int, ...]
    """Batch sizes per worker for which crossings are computed."""
    workers: tuple[int, ...]
    """Likewise."""


FULL = Sizes(
    models={
        "alexnet": {"kind": "alexnet", "form": "imagenet"},
        "vgg16": {"kind": "vgg16", "form": "imagenet"},
    },
    image=(3, 224, 224, 1000),
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
    image=(3, 32, 32, 10),
    examples={"alexnet": 4, "vgg16": 4},
    simulated=(4,),
    batches=(32,),
    workers=(2, 4),
)
ROWS = (
    ("data parallel, sharded", {"mode": "gradients", "pattern": "sharded"}),
    ("hybrid a, fp32", {"mode": "hybrid", "scheme": "a"}),
    ("hybrid b, fp32", {"mode": "hybrid", "scheme": "b"}),
    ("hybrid c, fp32", {"mode": "hybrid", "scheme": "c"}),
    ("hybrid b, bf16", {"mode": "hybrid", "scheme": "b", "activations": "bf16"}),
)


def case(model: dict[str, Any], sync: dict[str, str], workers: int, *, real: bool) -> str:
    """The spec of a few steps of one mode, as JSON."""
    spec = RunSpec.model_validate(
        {
            "model": model,
            "sync": sync if real else {"mode": "simulated", "of": sync},
            "workers": {"count": workers},
            "training": {"optimizer": {"kind": "sgd", "lr": 1e-4}},
        }
    )
    return spec.model_dump_json()


def expected(net: Net, sync: dict[str, str], workers: int, examples: int) -> tuple[float, int, float]:
    """By the formulas, without headers: received bytes, messages, and bytes of memory that a worker needs.

    Bytes are the mean of the workers; messages those of all, if every turn has examples of all that it can
    have. Memory is for weights, gradients, momentum and, in float32, features for the turns: all of them, or
    one's and the next one's.
    """
    kept, others, links = COPIES * FLOAT_BYTES, workers - 1, workers * (workers - 1)
    if sync["mode"] == "gradients":
        parameters = net.conv + net.fc
        return synchronized(FLOAT_BYTES * parameters, workers), 2 * links, kept * parameters
    scheme, value = sync["scheme"], VALUE_BYTES[sync.get("activations", "fp32")]
    activations = others * (examples * net.example_bytes(value) + NUMBER_BYTES)
    turns, features = 1 if scheme == "a" else workers, workers * links if scheme == "c" else links
    messages = 2 * links + 2 * features + turns * (2 * net.layers - 1) * links + 2 * links
    waiting = workers if scheme == "a" else min(2, workers)
    memory = kept * (net.conv + net.fc / workers) + FLOAT_BYTES * waiting * examples * net.features
    return activations + synchronized(FLOAT_BYTES * net.conv, workers), messages, memory


def measure_bytes(sizes: Sizes, nets: dict[str, Net]) -> Table:
    """Every scheme with both models."""
    rows: list[tuple[str, ...]] = []
    for model, net in nets.items():
        examples = sizes.examples[model]
        counts = [(2, True)] + [(count, False) for count in sizes.simulated if model == next(iter(nets))]
        for workers, real in counts:
            say(f"{model}, {workers} workers")
            cases = [
                {
                    "text": case(sizes.models[model], sync, workers, real=real),
                    "image": sizes.image,
                    "examples": examples,
                }
                for _, sync in ROWS
            ]
            # First a small net: what libraries set up once belongs to no case.
            small = [
                {"text": case(SMALL, sync, workers, real=real), "image": (1, 28, 28, 10), "examples": 4}
                for _, sync in ROWS[:2]
            ]
            steps = run_workers(_steps, [*small, *cases], workers if real else 1)[len(small) :]
            for (name, sync), step in zip(ROWS, steps, strict=True):
                measured = Measured(**step)
                arriving, messages, kept = expected(net, sync, workers, examples)
                rows.append(
                    (
                        *(model, f"{workers} {'real' if real else 'simulated'}", str(examples), name),
                        *(_mb(measured.received / workers), _mb(arriving)),
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
        "are the convolutions' activations, and buffers and messages of the exchange. Real data parallelism "
        "sends messages for each of DDP's buckets; its formula counts those of one.",
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
                    for crossing in (crossing_ratio, crossing_ratio_to_all)
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


def main(options: Options) -> Report:
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # of the workers
    sizes = QUICK if options.quick else FULL

    shape = Shape.image(*sizes.image)
    nets = {
        name: Net.of(build(RunSpec.model_validate({"model": model}).model, shape))
        for name, model in sizes.models.items()
    }
    tables = [measure_bytes(sizes, nets), crossings(sizes, nets)]
    weights = " and ".join(f"{(net.conv + net.fc) / 1e6:.1f}" for net in nets.values())
    introduction = INTRODUCTION.format(
        sizes=weights, image=" x ".join(map(str, shape.inputs)), classes=shape.outputs
    )
    return introduction, tables


if __name__ == "__main__":
    run_benchmark(main)
