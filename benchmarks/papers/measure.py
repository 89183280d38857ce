"""Measures what docs/papers.md still lacks, case by case and seed by seed, into benchmarks/papers/records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from taugrad.compressors.methods import read_config
from taugrad.platform.models.convnets import alexnet
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.models import AlexNet
from taugrad.platform.spec.synchronization import GradientsSync, RealSync
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric
from taugrad.search.plan.calibrated import HALF, Bucket, BucketWork, Calibration, MethodWork
from taugrad.search.plan.candidate import Candidate
from taugrad.search.plan.link import Link
from taugrad.search.plan.method_work import Gradient, Stopwatch, half_work, work_of
from taugrad.search.plan.planning import predict

from ..harness.in_process import Following, fit
from ..harness.report import environment
from ..harness.trainings import Cells, begin
from ..platform.hybrid import Net
from . import anoosheh, oland_raj, strom_speech, thresholds
from .claims import RECORDS

Values = Mapping[str, float]
SEEDS = (1, 2, 3)
RULES = {
    "wgt": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    "bgt": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    "qgt": (0.0001, 0.002, 0.005, 0.01, 0.02, 0.05),
}
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
SAMPLE, BUCKET_BYTES = 1 << 22, 25 << 20
"""Elements of the gradient that methods are timed with, and DDP's buckets."""
SGD, LAMB = {"kind": "sgd", "lr": 0.01, "weight_decay": 0}, {"kind": "lamb", "lr": 0.01}
GOAL = 0.93
"""The accuracy to which bytes are counted."""


@dataclass(frozen=True)
class Part:
    """Cases that are measured alike, each with every seed; `seeds` is (None,) where chance has no part."""

    cases: Mapping[str, Callable[[Any], Values]]
    seeds: Sequence[int | None] = SEEDS


class Seen(Following):
    """Keeps every evaluation with the bytes up to it, and a percentile of every layer's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluations: list[tuple[float, int]] = []
        self.layers: dict[str, list[float]] = {}

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Notes an evaluation."""
        super().evaluated(iteration, metrics)
        self.evaluations.append((metrics[names.EVAL_ACCURACY], self.trainer.sync.totals.wire_bytes))

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Notes the 99th percentiles."""
        for name, _ in self.trainer.model.named_parameters():
            if (value := metrics.get(layer_metric(name, "grad_p99"))) is not None:
                self.layers.setdefault(name, []).append(value)


def digits(seed: int, compressor: str = "none", epochs: int = 4, **changed: Any) -> RunSpec:
    """Caffe's LeNet on the small digits, otherwise as the benchmark of Anoosheh's paper trains."""
    spec = anoosheh.spec_of(compressor, seed, epochs, 1).model_dump(mode="json")
    return RunSpec.model_validate(spec | {"model": {"kind": "lenet"}, "data": {"kind": "digits"}} | changed)


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
    values = anoosheh.train(spec.model_dump_json())
    return values | {"accuracy": 100 * values["accuracy"], "fraction": 100 * values["fraction"]}


def rising(spec: RunSpec) -> Values:
    """In how many of the layers the gradient's 99th percentile is higher at the end than at the start."""
    seen = Seen()
    often = spec.model_copy(update={"tracking": spec.tracking.model_copy(update={"layer_interval": 5})})
    fit(often.model_dump_json(), seen)
    ratios = [
        float(np.mean(values[-8:]) / np.mean(values[:8]))
        for name, values in seen.layers.items()
        if "weight" in name
    ]
    return {"rising": sum(ratio > 1 for ratio in ratios), "layers": len(ratios), "last": ratios[-1]}


def best_threshold(images: int, seed: int) -> Values:
    """BGT's threshold with the lowest test loss after as many steps, in the paper's sums over images."""
    losses = {}
    for tau in (0.025, 0.05, 0.1, 0.2, 0.4):
        seen = Seen()
        fields = training(anoosheh.NODES, anoosheh.NODES * images, SGD, epochs=images)
        fit(digits(seed, f"bgt({tau})", **fields).model_dump_json(), seen)
        losses[tau] = seen.last[names.EVAL_LOSS]
    return {"best": images * min(losses, key=losses.__getitem__)}


def bytes_to_goal(optimizer: Mapping[str, Any], growth: str, seed: int) -> Values:
    """MB of gradients until GOAL; all of them where it is not reached."""
    seen = Seen()
    fields = training(4, 32, optimizer, batch_growth={"kind": growth})
    fit(digits(seed, **fields).model_dump_json(), seen)
    reached = [nbytes for value, nbytes in seen.evaluations if value >= GOAL]
    return {"MB": (reached or [seen.evaluations[-1][1]])[0] / 1e6, "reached": float(bool(reached))}


def step_on(model: str, method: str, link: str, _: None) -> Values:
    """Seconds that a step of 8 workers takes beside computing, and what arrives at one."""
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
    step = predict(calibration, Candidate(method, METHODS[method]), Link.parse(link), 8).step
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


def shares(_: None) -> Values:
    """What of AlexNet's parameters and multiplications is in its convolutions."""
    model = alexnet(AlexNet(form="imagenet"), 3, 224, 224, 1000)
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


def one_worker(seed: int) -> Values:
    """Strom's baseline: one worker with a worker's batch and the same rates."""
    size = strom_speech.FULL
    strom_speech.speak(size)
    spec = strom_speech.spec_of(size, strom_speech.SMALL, strom_speech.UNCOMPRESSED, seed)
    return _speech(spec.model_copy(update={"workers": spec.workers.model_copy(update={"count": 1})}))


def eight_workers(compressor: str, seed: int) -> Values:
    """Eight of them."""
    strom_speech.speak(strom_speech.FULL)
    return _speech(strom_speech.spec_of(strom_speech.FULL, strom_speech.SMALL, compressor, seed))


def _speech(spec: RunSpec) -> Values:
    values = strom_speech.train(spec.model_dump_json())
    return values | {"accuracy": 100 * values["accuracy"]}


def bits(compressor: str, seed: int, epochs: int = oland_raj.EPOCHS) -> Values:
    """Oland and Raj's accuracy, and bits a weight: means of all epochs and of the last one."""
    values = oland_raj.train(oland_raj.spec_of(compressor, seed, epochs).model_dump_json())
    means = {what: oland_raj.mean_by_epoch([values], what, range(1, epochs + 1)) for what in ("raw", "sent")}
    return means | {"last": values[f"sent/{epochs}"], "accuracy": 100 * values[f"accuracy/{epochs}"]}


def sampled(seed: int) -> Values:
    """By how many bits the entropy of 3% of a layer's weights misses that of all, at most, after 2 epochs."""
    listener = Following()
    fit(oland_raj.spec_of("none", seed, 2).model_dump_json(), listener)
    rng, missed = np.random.default_rng(seed), []
    for layer in [
        parameter.detach().flatten()
        for parameter in listener.trainer.model.parameters()
        if parameter.ndim > 1
    ]:
        chosen = layer[rng.choice(layer.numel(), max(1, round(0.03 * layer.numel())), replace=False)]
        within = torch.cat([chosen, layer.min().view(1), layer.max().view(1)])
        missed.append(abs(oland_raj.entropy(within) - oland_raj.entropy(layer)))
    return {f"layer {i}": value for i, value in enumerate(missed, start=1)}


def _anoosheh(line: str, seed: int) -> Values:
    return accuracy(digits(seed, line))


LINES = ["none", *(f"{rule}({tau:g})" for rule, taus in RULES.items() for tau in taus)]
_TAUS = (thresholds.UNCOMPRESSED, *thresholds.TAUS)
PAPERS: Mapping[str, Mapping[str, Part]] = {
    "anoosheh": {
        "layers": Part({"LeNet": lambda seed: rising(digits(seed)), "NiN": lambda seed: rising(nin(seed))}),
        "thresholds": Part({line: partial(_anoosheh, line) for line in LINES}),
        "images": Part({f"{images}": partial(best_threshold, images) for images in (2, 8)}),
    },
    "strom": {
        "workers": Part(
            {
                "one": one_worker,
                "eight": partial(eight_workers, "none"),
                "eight, tau 1": partial(eight_workers, strom_speech.line(1)),
            }
        )
    },
    "oland_raj": {
        "sample": Part({"3%": sampled}),
        "grid": Part(
            {
                f"M = {m}, c = {10 - m}": partial(bits, f"entropy(floor={10 - m}, sample_bits={m}) | huffman")
                for m in (4, 5, 3, 6, 2)
            }
        ),
        "long": Part({"c = 5": partial(bits, "entropy(floor=5) | huffman", epochs=100)}, (1, 2)),
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
        "zeros": Part({"wgt(1e-05)": lambda seed: accuracy(digits(seed, "wgt(1e-05)", epochs=1))}),
        "batches": Part(
            {
                f"{optimizer['kind']}, {growth}": partial(bytes_to_goal, optimizer, growth)
                for optimizer in (SGD, LAMB)
                for growth in ("constant", "adabatch")
            },
            range(1, 7),
        ),
    },
    "krizhevsky": {
        "shares": Part({"AlexNet": shares}, (None,)),
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
    cells = Cells(RECORDS / f"{paper}.jsonl")
    begin()
    for name, part in PAPERS[paper].items():
        for seed in part.seeds:
            for case, measured in part.cases.items():
                cells.of({"part": name, "case": case, "seed": seed}, partial(_record, measured, seed))


def _record(measured: Callable[[Any], Values], seed: int | None) -> dict[str, Any]:
    values = {name: float(f"{value:.6g}") for name, value in measured(seed).items()}
    return values | {"date": datetime.now().astimezone().date().isoformat(), "machine": environment()}
