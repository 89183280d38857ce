"""What threshold policies cost: the time of their decisions beside that of the compression they decide for.

    python -m benchmarks.compress.policy_cost [--quick] [--write]

Two workers take turns on the same gradients. One has the policy, the other is told the same tau and decides
nothing. A policy's time is what its calls take in place, between the passes, less what those calls take of
the other worker; it is set beside the other's whole compression: pass, codec, checksum. One thread,
and the time is its processor time: other work on the machine makes it wait, which counts for neither.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import thread_time_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import read_config
from taugrad.compressors.rules.base import Context
from taugrad.compressors.tau.base import Memory, ThresholdPolicy
from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build
from taugrad.platform.models.config import LeNet

from ..harness.report import Options, Spread, Table, load, number, publish, read_options

POLICIES = (
    "density(0.01)",
    "density(0.01, every=50)",
    "allocate(0.01)",
    "allocate(0.01, every=200)",
    "sidco(0.01)",
    "sidco(0.01, every=100)",
    "dl4j(5e-3, target=0.01)",
    "density(0.01, every=1)",
    "sidco(0.01, every=1)",
)
"""The last two decide anew in every iteration."""
RULE = "strom({}) | golomb_rice"
GOAL = 2.0
"""Percent of the compression time."""
_BUCKET = 25 * 2**20
"""Bytes, as DDP's."""
INTRODUCTION = (
    "`strom | golomb_rice`, one thread, random gradients with a different scale in each layer; processor "
    "time. The policy's time is what its calls take, less what those of a given tau take. Beside it is the "
    "time to compress for a worker that is given the same tau. Median of {periods} periods of `every` "
    "iterations (of {fewest} iterations if it is less), and the range of the middle four fifths of them."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    periods: int
    fewest: int
    """Iterations of a period, at least."""
    most: int | None = None
    """And at most; None: as many as `every` says."""


FULL = Sizes(periods=2, fewest=25)
QUICK = Sizes(periods=1, fewest=4, most=8)


@dataclass(frozen=True)
class Model:
    """Parameters, by name, and how DDP would put them into buckets."""

    title: str
    elements: Mapping[str, int]

    def buckets(self) -> list[list[str]]:
        """Names, from the last layer to the first, filled up to a bucket's bytes."""
        found: list[list[str]] = [[]]
        filled = 0
        for name in reversed(list(self.elements)):
            if filled + 4 * self.elements[name] > _BUCKET and found[-1]:
                found.append([])
                filled = 0
            found[-1].append(name)
            filled += 4 * self.elements[name]
        return found


def resnet50() -> Model:
    """ResNet-50's parameters (He et al. 2015, table 1): convolutions, batch norms, one linear layer."""
    elements: dict[str, int] = {}

    def convolution(name: str, inputs: int, outputs: int, kernel: int) -> None:
        elements[name] = inputs * outputs * kernel**2
        elements[f"{name}.norm.weight"] = elements[f"{name}.norm.bias"] = outputs

    convolution("stem", 3, 64, 7)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            name = f"{stage}.{block}"
            convolution(f"{name}.1", inputs, width, 1)
            convolution(f"{name}.2", width, width, 3)
            convolution(f"{name}.3", width, 4 * width, 1)
            if block == 0:
                convolution(f"{name}.down", inputs, 4 * width, 1)
            inputs = 4 * width
    elements |= {"linear.weight": 1000 * inputs, "linear.bias": 1000}
    return Model("ResNet-50", elements)


def lenet() -> Model:
    """The quickstart's."""
    built = build(LeNet(), Shape.image(1, 28, 28, 10))
    return Model("LeNet", {name: parameter.numel() for name, parameter in built.named_parameters()})


@dataclass(frozen=True)
class Given(ThresholdPolicy[Memory]):
    """Each parameter's tau as it was told."""

    told: dict[str, float] = field(default_factory=dict)

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [self.told[part.name] for part in parts]


class Clocked(ThresholdPolicy[Any]):
    """A policy, with the time that its calls take."""

    def __init__(self, policy: ThresholdPolicy[Any]) -> None:
        self._policy = policy
        self.spent_ns = 0
        self.told: dict[str, float] = {}

    def memory_of(self, name: str) -> type[Memory]:
        """See `ThresholdPolicy.memory_of`."""
        return self._policy.memory_of(name)

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        began = thread_time_ns()
        taus = self._policy.taus(parts, iteration, memories)
        self.spent_ns += thread_time_ns() - began
        self.told.update(zip((part.name for part in parts), taus, strict=True))
        return taus

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Memory]
    ) -> None:
        """See `ThresholdPolicy.note`."""
        began = thread_time_ns()
        self._policy.note(parts, sent, iteration, memories)
        self.spent_ns += thread_time_ns() - began

    def settle(self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`."""
        began = thread_time_ns()
        self._policy.settle(turn, iteration, memories)
        self.spent_ns += thread_time_ns() - began


class Worker:
    """Residuals, and a policy that is clocked."""

    def __init__(self, model: Model, tau: str, policy: ThresholdPolicy[Any] | None = None) -> None:
        self.compressor = Compressor(read_config(RULE.format(tau)))  # type: ignore[arg-type]
        selection = self.compressor.rule.selection  # type: ignore[attr-defined]
        self.clock = selection.policy = Clocked(policy or selection.policy)
        self.context = Context()
        self.buckets = model.buckets()
        self.layouts = [
            self.compressor.layout(names, [model.elements[name] for name in names]) for names in self.buckets
        ]
        self.residuals = {name: torch.zeros(elements) for name, elements in model.elements.items()}
        self.sent = 0

    def step(self, gradients: Mapping[str, Tensor]) -> tuple[int, int]:
        """Compresses every bucket; returns the nanoseconds of all and those of the policy."""
        self.clock.spent_ns = spent = self.sent = 0
        for names, layout in zip(self.buckets, self.layouts, strict=True):
            parts = [Part(name, gradients[name], self.residuals[name]) for name in names]
            began = thread_time_ns()
            outgoing = self.compressor.compress(parts, layout, self.context)
            spent += thread_time_ns() - began
            self.sent += sum(tally.sent for tally in outgoing.tallies)
        self.context.iteration += 1
        return spent, self.clock.spent_ns


class Gradients:
    """Noise of heavy tails, and a scale for each layer; other noise in every iteration."""

    def __init__(self, model: Model) -> None:
        self._rng = np.random.default_rng(0)
        self._room = 2**16
        n = sum(model.elements.values()) + self._room
        noise = self._rng.standard_normal(n, np.float32)
        noise *= self._rng.standard_exponential(n, np.float32)
        self._noise = torch.from_numpy(noise)
        self._scales = {name: float(10 ** self._rng.uniform(-4, -2)) for name in model.elements}
        self._kept = {name: torch.empty(elements) for name, elements in model.elements.items()}

    def next(self) -> Mapping[str, Tensor]:
        """Of one iteration; the last ones are no longer valid."""
        at = int(self._rng.integers(self._room))
        for name, gradient in self._kept.items():
            torch.mul(self._noise[at : at + gradient.numel()], self._scales[name], out=gradient)
            at += gradient.numel()
        return self._kept


@dataclass(frozen=True)
class Cost:
    """What a policy came to."""

    percent: Spread
    policy_us: float
    """An iteration."""
    compression_us: float
    density: float


def cost_of(model: Model, gradients: Gradients, tau: str, sizes: Sizes) -> Cost:
    """Runs a policy beside a worker that is given its taus."""
    given = Given()
    deciding, told = Worker(model, tau), Worker(model, "1", given)
    every = getattr(read_config(RULE.format(tau)).tau, "every", 1)  # type: ignore[union-attr]
    period = max(min(every, sizes.most or every), sizes.fewest)
    sent, rows = [], []
    for _ in range((sizes.periods + 1) * period):
        now = gradients.next()
        _, decided = deciding.step(now)
        given.told.update(deciding.clock.told)
        whole, none = told.step(now)
        rows.append((decided - none, whole))
        sent.append(deciding.sent)
    # Residuals are still growing, and memories are still filling, in the first period.
    periods = np.array(rows[period:]).reshape(sizes.periods, period, 2).mean(axis=1)
    percents = [float(100 * policy / whole) for policy, whole in periods]
    return Cost(
        Spread.of(percents),
        median(policy for policy, _ in periods) / 1e3,
        median(whole for _, whole in periods) / 1e3,
        float(np.mean(sent[period:])) / sum(model.elements.values()),
    )


def measure(model: Model, sizes: Sizes) -> Table:
    """One row a policy."""
    gradients, rows = Gradients(model), list[tuple[str, ...]]()
    for tau in POLICIES:
        print(f"{model.title}: {len(rows) + 1} of {len(POLICIES)}: {tau}", file=sys.stderr)
        cost = cost_of(model, gradients, tau, sizes)
        rows.append(
            (
                f"`{tau}`",
                number(100 * cost.density),
                number(cost.policy_us),
                number(cost.compression_us),
                str(cost.percent),
                "met" if cost.percent.middle <= GOAL else "missed",
            )
        )
    elements = sum(model.elements.values())
    return Table(
        f"{model.title}: {elements:,} parameters in {len(model.elements)} tensors",
        ("policy", "sent %", "policy us", "compression us", "cost %", f"at most {GOAL:g}%"),
        rows,
    )


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("compress.policy_cost", "What threshold policies cost.", arguments)
    sizes = QUICK if options.quick else FULL
    torch.set_num_threads(1)
    load_before = load()
    tables = [measure(model, sizes) for model in (resnet50(), lenet())]
    introduction = INTRODUCTION.format(periods=sizes.periods, fewest=sizes.fewest)
    publish("policy_cost", options, introduction, tables, load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
