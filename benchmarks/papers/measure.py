"""Measures what docs/papers.md still lacks, case by case and seed by seed, into benchmarks/papers/records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from taugrad.compressors.methods import read_config
from taugrad.compressors.methods.entropy import fixed_entropy, sample_size
from taugrad.compressors.pattern_names import PatternName
from taugrad.platform.models.convnets import alexnet, vgg16
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.models import AlexNet, Vgg16
from taugrad.platform.spec.synchronization import GradientsSync, RealSync
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric
from taugrad.search.plan.calibrated import HALF, Bucket, BucketWork, Calibration, MethodWork
from taugrad.search.plan.candidate import Candidate
from taugrad.search.plan.link import Link
from taugrad.search.plan.method_work import Gradient, Stopwatch, half_work, work_of
from taugrad.search.plan.planning import predict

from ..harness.in_process import trained
from ..harness.report import environment
from ..harness.trainings import Kept, begin
from ..platform.hybrid import FLOAT_BYTES, TARGET_BYTES, Net
from . import anoosheh, counted, oland_raj, strom_speech, thresholds
from .claims import RECORDS
from .counted import Values, digits

SEEDS, MANY = (1, 2, 3), range(1, 11)
RULES = {
    "wgt": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2),
    "bgt": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2),
    "qgt": (0.0001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2, 0.5, 2),
}
"""Up to where accuracy falls."""
PARAMETERS = {"ResNet-50": 25_583_592, "VGG16": 138_357_544, "Inception v4": 42_608_450}
"""Rae, section 2.6."""
LINKS = ("10mbit", "100mbit", "1gbit", "10gbit")
METHODS: Mapping[str, RealSync] = {
    "none": GradientsSync(),
    HALF: GradientsSync(),
    "linear(bits=8)": GradientsSync(pattern="sharded"),
    "quantile(bits=8)": GradientsSync(pattern="sharded"),
    "wgt(density(0.2))": GradientsSync(),
    "wgt(density(0.01))": GradientsSync(),
    "wgt(density(0.01)) | linear(bits=8)": GradientsSync(),
    "strom(density(0.01)) | golomb_rice": GradientsSync(),
}
"""With how messages travel: 8 bits of everything in shards, as in a ring."""
PATTERNS: tuple[PatternName, ...] = ("allgather", "ring", "parameter_server")
SAMPLE, BUCKET_BYTES = 1 << 22, 25 << 20
"""Elements of the gradient that methods are timed with, and DDP's buckets."""
SGD, LAMB = {"kind": "sgd", "lr": 0.01, "weight_decay": 0}, {"kind": "lamb", "lr": 0.01}
GROWTHS: Mapping[str, Mapping[str, Any]] = {
    "constant": {"kind": "constant"},
    "formula": {"kind": "adabatch", "form": "formula"},
    "text": {"kind": "adabatch", "form": "text"},
}
ACTIVATIONS = ("fp32", "bf16", "linear(8)", "entropy(floor=5) | huffman", "linear(4)", "quantile(4)")
GOAL = 0.93
"""The accuracy to which bytes are counted."""


@dataclass(frozen=True)
class Part:
    """Cases that are measured alike, each with every seed; `seeds` is (None,) where chance has no part."""

    cases: Mapping[str, Callable[[Any], Values]]
    seeds: Sequence[int | None] = SEEDS


def nin(seed: int) -> RunSpec:
    """The network of Anoosheh's paper, as its benchmark trains it, without compression."""
    return anoosheh.spec_of("none", seed, anoosheh.EPOCHS, anoosheh.WIDTH)


def training(workers: int, batch: int, optimizer: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The fields of a training at a constant rate."""
    return {
        "training": {"epochs": 6, "batch_size": batch, "optimizer": optimizer, **more},
        "workers": {"count": workers},
    }


def accuracy(spec: RunSpec) -> Values:
    """Accuracy in percent, bytes and shares of a training."""
    values = anoosheh.train(spec)
    return values | {"accuracy": 100 * values["accuracy"], "fraction": 100 * values["fraction"]}


def rising(spec: RunSpec) -> Values:
    """In how many of the layers the gradient's 99th percentile is higher at the end than at the start."""
    often = spec.model_copy(update={"tracking": spec.tracking.model_copy(update={"layer_interval": 5})})
    seen = trained(often)
    layers = [name for name, _ in seen.trainer.model.named_parameters() if "weight" in name]
    percentiles = (seen.series(layer_metric(name, "grad_p99")) for name in layers)
    ratios = [float(np.mean(values[-8:]) / np.mean(values[:8])) for values in percentiles]
    return {"rising": sum(ratio > 1 for ratio in ratios), "layers": len(ratios), "last": ratios[-1]}


def best_threshold(images: int, seed: int) -> Values:
    """BGT's threshold with the lowest test loss after as many steps, in the paper's sums over images.

    Thresholds are a factor of 1.41 apart; they go on until the best one has three on both sides.
    """
    losses: dict[int, float] = {}
    best = -round(2 * math.log2(10 * (images / 2) ** 0.5))  # where an earlier search found it
    while unknown := [power for power in range(best - 3, best + 4) if power not in losses]:
        for power in unknown:
            fields = training(anoosheh.NODES, anoosheh.NODES * images, SGD, epochs=images)
            spec = digits(seed, f"bgt({2 ** (power / 2)})", **fields)
            losses[power] = trained(spec).last[names.EVAL_LOSS]
        best = min(losses, key=losses.__getitem__)
    return {"log2": math.log2(images) + best / 2}


def bytes_to_goal(optimizer: Mapping[str, Any], growth: Mapping[str, Any], seed: int) -> Values:
    """MB of gradients until GOAL, looked at every 3 steps; a training that does not get there is refused."""
    goal = {"evaluate_every": 3, "until": {"accuracy": GOAL}}
    fields = training(4, 32, optimizer, batch_growth=growth, **goal)
    fields["training"] |= {"epochs": 12}
    listener = trained(digits(seed, **fields))
    if listener.last[names.EVAL_ACCURACY] < GOAL:
        raise ValueError(f"{optimizer}, {growth}, seed {seed}: did not reach {GOAL:.0%} in 12 epochs")
    return {"MB": listener.trainer.sync.totals.wire_bytes / 1e6}


def step_on(model: str, method: str, link: str, _: None, sync: RealSync | None = None) -> Values:
    """Seconds that a step of 8 workers takes beside computing, and what arrives at one; planned."""
    count = PARAMETERS[model]
    pieces = -(-4 * count // BUCKET_BYTES)
    work = _sample_work(method)
    scale = count / pieces / SAMPLE
    scaled = {name: scale * value for name, value in work.buckets[0].model_dump().items()}
    calibration = Calibration(
        batch=32, steps_an_epoch=1, compute_s=0, optimizer_s=0,
        optimizer_bytes=0, reduce_s=0, reduce_half_s=0,
        buckets=(Bucket(elements=count // pieces, ready_s=0),) * pieces,
        methods={method: work.model_copy(update={"buckets": (BucketWork(**scaled),) * pieces})},
    )  # fmt: skip
    step = predict(calibration, Candidate(method, sync or METHODS[method]), Link.parse(link), 8).step
    return {"seconds": step.seconds, "MB": step.received / 1e6, "message MB": pieces * scaled["nbytes"] / 1e6}


_KNOWN: dict[str, MethodWork] = {}


def _sample_work(method: str) -> MethodWork:
    """A method's work on normal values of one bucket, by one thread; the least of three times."""
    if method not in _KNOWN:
        steps = [[torch.randn(SAMPLE, generator=torch.Generator().manual_seed(step))] for step in range(3)]
        gradients, watch = [Gradient(["weight"], steps)], Stopwatch(torch.distributed.group.WORLD)
        times = [
            half_work(gradients, watch) if method == HALF else work_of(read_config(method), gradients, watch)
            for _ in range(3)
        ]
        fields = BucketWork.model_fields
        least = {name: min(getattr(work.buckets[0], name) for work in times) for name in fields}
        _KNOWN[method] = times[0].model_copy(update={"buckets": (BucketWork(**least),)})
    return _KNOWN[method]


def shares(model: nn.Sequential, _: None) -> Values:
    """What of a network's parameters and multiplications is in its convolutions."""
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 224, 224))
    flops = {str(name): total for name, total in counter.get_flop_counts()["Global"].items()}
    conv = sum(total for name, total in flops.items() if "conv" in name)
    net = Net.of(model)
    return {"parameters": 100 * net.conv / (net.conv + net.fc), "computing": 100 * conv / sum(flops.values())}


def with_rate(times: int, rate: float, seed: int) -> Values:
    """A batch so many times 8, at so many times the rate."""
    optimizer = {"kind": "sgd", "lr": 0.005 * rate, "momentum": 0.9, "weight_decay": 5e-4}
    return accuracy(digits(seed, **training(1, 8 * times, optimizer)))


def speech(compressor: str, workers: int, net: tuple[int, int], epochs: int, seed: int) -> Values:
    """Strom's training, with epochs of 15 minutes; bytes as coded, and packed in 4 bytes an update."""
    size = replace(strom_speech.FULL, minutes=15, epochs=epochs)
    strom_speech.speak(size)
    spec = strom_speech.spec_of(size, net, compressor, seed)
    spec = spec.model_copy(update={"workers": spec.workers.model_copy(update={"count": workers})})
    values = strom_speech.train(spec.model_dump_json())
    updates = 8 * values["bytes"] / values["bits"]
    return values | {
        "accuracy": 100 * values["accuracy"],
        "updates": updates,
        "density": 100 * updates / values["weights"],
        "packed": values["weights"] / updates,
    }


def activations(form: str, seed: int) -> Values:
    """LeNet by hybrid parallelism, scheme b, its activations in a form.

    Returns:
        Accuracy in percent; MB that all workers received; MB of activations and their gradients alone, were
        they in float32.
    """
    spec = RunSpec.model_validate(
        {
            "model": {"kind": "lenet"},
            "training": {"epochs": 2, "optimizer": {"kind": "sgd", "lr": 0.01}},
            "sync": {"mode": "simulated", "of": {"mode": "hybrid", "activations": form}},
            "workers": {"count": 4},
            "compressor": "none",
            "seed": seed,
        }
    )
    listener = trained(spec)
    trainer = listener.trainer
    examples = spec.training.epochs * len(trainer.data.train)
    nbytes = examples * (Net.of(trainer.model).example_bytes(FLOAT_BYTES) - TARGET_BYTES)
    return {
        "accuracy": 100 * listener.last[names.EVAL_ACCURACY],
        "MB": trainer.sync.totals.received_bytes / 1e6,
        "float32 MB": (spec.workers.count - 1) * nbytes / 1e6,
    }


def sampled(seed: int) -> Values:
    """By how many bits the entropy of a sample misses that of all of a layer's weights, after 2 epochs.

    Bins lie between the layer's extremes, as in the paper's algorithm 1; the sample need not have them.
    `entropy` takes 3% of a layer, or 256 of its weights where that is more: the values `trained`.
    """
    model = trained(oland_raj.spec_of("none", seed, 2, oland_raj.PENALTY)).trainer.model
    rng, missed = np.random.default_rng(seed), {}
    weights = [layer.detach().flatten() for layer in model.parameters() if layer.ndim > 1]
    for i, layer in enumerate(weights, start=1):
        for name, count in (("layer", round(0.03 * len(layer))), ("trained", sample_size(len(layer), 0.03))):
            chosen = layer[rng.choice(len(layer), count, replace=False)]
            counts = torch.histc(chosen, 2**oland_raj.SAMPLE_BITS, float(layer.min()), float(layer.max()))
            entropy = fixed_entropy(counts.long().numpy()) / 2**32
            missed[f"{name} {i}"] = abs(entropy - oland_raj.entropy(layer))
    return missed


def _nin(line: str, seed: int) -> Values:
    return accuracy(anoosheh.spec_of(line, seed, 20, anoosheh.WIDTH))


def _anoosheh(line: str, data: str, epochs: int, seed: int) -> Values:
    return accuracy(digits(seed, line, epochs, data={"kind": data}))


LINES = ["none", *(f"{rule}({tau:g})" for rule, taus in RULES.items() for tau in taus)]
NIN = ("none", "wgt(0.01)", "wgt(0.05)", "qgt(0.005)", "bgt(0.1)", "bgt(0.5)")
_TAUS = (thresholds.UNCOMPRESSED, *thresholds.TAUS)
PAPERS: Mapping[str, Mapping[str, Part]] = {
    "anoosheh": {
        "layers": Part({"LeNet": lambda seed: rising(digits(seed)), "NiN": lambda seed: rising(nin(seed))}),
        "thresholds": Part({line: partial(_anoosheh, line, "digits", 4) for line in LINES}, range(1, 7)),
        "mnist5k": Part({line: partial(_anoosheh, line, "mnist5k", 2) for line in LINES}, MANY),
        "images": Part({f"{images}": partial(best_threshold, images) for images in (2, 4, 8, 16)}, MANY),
        "nin": Part({line: partial(_nin, line) for line in NIN}, range(1, 7)),
        "nodes": Part({"LeNet": counted.nodes_are_a_batch}),
        "costs": Part({"NiN": counted.time_of_thresholds}),
        "memory": Part({"NiN": counted.memory_of_thresholds}, (None,)),
    },
    "strom": {
        "gaps": Part({"normal values": counted.bits_at}, (None,)),
        "merged": Part({"LeNet": counted.merged}, MANY),
        "taus": Part(
            {
                "one": partial(speech, "none", 1, strom_speech.SMALL, 10),
                **{
                    f"{tau:g}": partial(speech, strom_speech.line(tau), 8, strom_speech.SMALL, 10)
                    for tau in (0.06, 0.25, 1, 4, 2)
                },
                "whole": partial(speech, "wgt(0.25, reduction='sum')", 8, strom_speech.SMALL, 10),
                "eight": partial(speech, "none", 8, strom_speech.SMALL, 10),
            },
            range(1, 7),
        ),
        "nets": Part(
            {
                f"{depth} x {width}": partial(speech, strom_speech.line(0.25), 8, (depth, width), 2)
                for depth, width in ((5, 128), (5, 256), (8, 256), (5, 512))
            }
        ),
    },
    "oland_raj": {
        "weights": Part({"l1": counted.weights}),
        "trainings": Part(
            {f"{l1:g}, {line}": partial(oland_raj.train, line, l1) for l1, line in oland_raj.CELLS}, MANY
        ),
        "sample": Part({"3%": sampled}),
        "activations": Part({form: partial(activations, form) for form in ACTIVATIONS}),
    },
    "rae": {
        "links": Part(
            {
                f"{model}, {method}, {link}": partial(step_on, model, method, link)
                for model in PARAMETERS
                for method in METHODS
                for link in LINKS
            },
            (None,),
        ),
        "patterns": Part(
            {
                f"{pattern}, {link}": partial(
                    step_on, "ResNet-50", "wgt(density(0.01))", link, sync=GradientsSync(pattern=pattern)
                )
                for pattern in PATTERNS
                for link in LINKS[1:3]
            },
            (None,),
        ),
        "epoch": Part(
            {
                method: partial(step_on, "VGG16", method, "800mbit")
                for method in ("none", "linear(bits=8)", "wgt(density(0.01)) | linear(bits=8)")
            },
            (None,),
        ),
        "populations": Part({"LeNet": counted.populations}, MANY),
        "table": Part({"quantile(bits=8)": counted.table}, (None,)),
        "outlier": Part({"7 in N(0.1, 0.55)": counted.outlier}, MANY),
        "growth": Part({"AdaBatch": counted.batch_growth}, (None,)),
        "zeros": Part({"wgt(1e-05)": lambda seed: accuracy(digits(seed, "wgt(1e-05)", epochs=1))}),
        "batches": Part(
            {
                f"{optimizer['kind']}, {name}": partial(bytes_to_goal, optimizer, growth)
                for optimizer in (SGD, LAMB)
                for name, growth in GROWTHS.items()
            },
            MANY,
        ),
    },
    "krizhevsky": {
        "shares": Part(
            {
                "AlexNet": lambda _: shares(alexnet(AlexNet(form="imagenet"), 3, 224, 224, 1000), _),
                "VGG16": lambda _: shares(vgg16(Vgg16(form="imagenet"), 3, 224, 224, 1000), _),
            },
            (None,),
        ),
        "schemes": Part({"LeNet": counted.schemes_are_sgd}),
        "variable batch": Part({"LeNet": counted.variable_batch}, MANY),
        "decay": Part({"SGD": counted.decay}, (None,)),
        "rates": Part(
            {
                "k = 1": partial(with_rate, 1, 1),
                "rate 1": partial(with_rate, 8, 1),
                "rate sqrt(k)": partial(with_rate, 8, 8**0.5),
                "rate k": partial(with_rate, 8, 8),
            }
        ),
    },
    "automatic": {
        part: Part(
            {
                f"{model}, {data}, {tau}": partial(thresholds.train, model, data, tau)
                for tau in taus
                for model in thresholds.MODELS
                for data in thresholds.DATA
                if tau != thresholds.TAUS[-1] or f"{model}, {data}" in thresholds.LARGEST
            },
            (1, 2),
        )
        for part, taus in (("taus", _TAUS), ("densities", thresholds.DENSITIES))
    },
}
"""By paper, and by part."""


def measure(paper: str) -> None:
    """Measures the cases of a paper that have no record, and appends one for each."""
    cells = Kept(RECORDS / f"{paper}.jsonl")
    begin()
    for name, part in PAPERS[paper].items():
        for seed in part.seeds:
            for case, measured in part.cases.items():
                cells.of({"part": name, "case": case, "seed": seed}, partial(_record, measured, seed))


def _record(measured: Callable[[Any], Values], seed: int | None) -> dict[str, Any]:
    values = {name: float(f"{value:.6g}") for name, value in measured(seed).items()}
    return values | {"date": datetime.now().astimezone().date().isoformat(), "machine": environment()}
