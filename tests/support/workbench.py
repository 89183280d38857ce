"""One worker with its residuals and no network: what the tests of methods run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.bucket import compressor
from taugrad.compressors.bucket.compressor import Compressor, Incoming, is_exempt
from taugrad.compressors.bucket.feedback import Feedback
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU, CpuOps
from taugrad.compressors.ops.interface import Batch, Ops
from taugrad.compressors.ops.parts import Part, PartTally
from taugrad.compressors.thresholds.base import PolicyMemory
from taugrad.compressors.thresholds.samples import with_samples
from taugrad.compressors.wire.message import NonFinite

Floats = NDArray[np.float32]
SIZES = (300, 41, 1, 128)


def random_gradients(seed: int, sizes: Sequence[int] = SIZES, scale: float = 0.4) -> list[Floats]:
    """Heavier-tailed than normal, and on another scale in every parameter."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(size) * rng.exponential(scale, size) * 2.0 ** (i % 3)).astype(np.float32)
        for i, size in enumerate(sizes)
    ]


def with_fields(line: str, fields: str) -> str:
    """The line of a method with more fields in its head."""
    head, *links = line.split(" | ")
    head = f"{head[:-1]}, {fields})" if head.endswith(")") else f"{head}({fields})"
    return " | ".join([head, *links])


@contextmanager
def other_defaults(dtype: torch.dtype) -> Iterator[None]:
    """Gives torch other defaults, as a script may."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):  # a tensor of this device has no values
            yield
    finally:
        torch.set_default_dtype(before)


METHOD: Any = read_config("bgt(1)")
"""A method whose thresholds policies decide."""


def policy_of(text: str) -> Any:
    """The policy of a method that reads it."""
    method: Any = read_config({"kind": "bgt", "tau": text})
    return method.policy


def part_of(values: torch.Tensor, residual: torch.Tensor | None = None, name: str = "p") -> Part:
    """A parameter with a sample of its magnitudes."""
    return with_samples([Part(name, values, residual)], [True], Batch.of([residual], [values]), CPU)[0]


@dataclass
class Step:
    """What one step of one worker came to."""

    decoded: list[Floats] = field(default_factory=list)
    """By parameter, what a reader adds for it; zeros where the bucket was refused."""
    payloads: list[bytes] = field(default_factory=list)
    tallies: list[PartTally] = field(default_factory=list)
    incoming: list[Incoming] = field(default_factory=list)

    @property
    def refused(self) -> list[int]:
        """Ordinals that refusals name, of the buckets that were refused."""
        return [message.ordinal for message in self.incoming if isinstance(message, NonFinite)]


class Worker:
    """Holds the state that belongs to parameters and runs a method over buckets of them."""

    def __init__(
        self,
        line: str,
        sizes: Sequence[int] = SIZES,
        *,
        buckets: Sequence[Sequence[int]] | None = None,
        ops: Ops | None = None,
        names: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config: Any = read_config(line)
        self.worker = compressor.Worker(ops or CpuOps(1))
        self.device = self.worker.ops.device
        self.sizes, self.dtype, self.iteration = list(sizes), dtype, 0
        self.names = list(names or [f"p{i}" for i in range(len(sizes))])
        self.buckets = [list(bucket) for bucket in buckets or [range(len(sizes))]]
        method = self.config.model_copy(update={"nonfinite": "skip"})  # so that every step can be put back
        self.feedback = Feedback(method)
        self.compressors = [
            Compressor(
                method, self.worker, Shard.whole({self.names[i]: sizes[i] for i in bucket}), self.feedback
            )
            for bucket in self.buckets
        ]
        rng = np.random.default_rng(7)
        self.weights = {
            name: torch.from_numpy((100 * rng.standard_normal(size)).astype(np.float32)).to(self.device)
            for name, size in zip(self.names, sizes, strict=True)
        }
        for name, weights in self.weights.items():
            if not is_exempt(method.exempt, name, weights.numel()):
                if method.keeps_residuals:
                    self.feedback.residuals[name] = torch.zeros_like(weights)
                if method.momentum_correction:
                    self.feedback.velocities[name] = torch.zeros_like(weights)

    @property
    def compressor(self) -> Compressor:
        """That of the first bucket."""
        return self.compressors[0]

    @property
    def residuals(self) -> list[Any]:
        return [self.feedback.residuals.get(name) for name in self.names]

    @property
    def velocities(self) -> list[Any]:
        return [self.feedback.velocities.get(name) for name in self.names]

    @property
    def memories(self) -> dict[str, PolicyMemory]:
        return self.feedback.memories

    def residual(self, i: int) -> Floats:
        """A copy; zeros where nothing is kept."""
        kept = self.residuals[i]
        return np.zeros(self.sizes[i], np.float32) if kept is None else kept.cpu().numpy().copy()

    @property
    def state(self) -> tuple[list[bytes | None], dict[str, PolicyMemory]]:
        """Residuals and velocities as bytes, and what policies remember."""
        kept = [*self.residuals, *self.velocities]
        return [None if tensor is None else tensor.cpu().numpy().tobytes() for tensor in kept], self.memories

    def step(self, gradients: Sequence[Floats], *, hold_back_zeros: bool = False) -> Step:
        """Compresses and reads every bucket, and counts the iteration."""
        step = Step(decoded=[np.zeros(size, np.float32) for size in self.sizes])
        tallies: dict[int, PartTally] = {}
        for bucket, one in zip(self.buckets, self.compressors, strict=True):
            one.commit()
            one.worker = replace(self.worker, hold_back_zeros=hold_back_zeros)
            sizes = [self.sizes[i] for i in bucket]
            buffer = torch.cat([torch.from_numpy(gradients[i]) for i in bucket]).to(self.device, self.dtype)
            outgoing = one.compress(torch.split(buffer, sizes), self.iteration, weights=self.weights)
            incoming = one.read(outgoing.payload)
            total = torch.empty(sum(sizes), dtype=torch.float32, device=self.device)
            one.total([incoming], 1, total)
            for i, amounts in zip(bucket, torch.split(total, sizes), strict=True):
                step.decoded[i] = amounts.cpu().numpy().copy()
            step.payloads.append(outgoing.payload.tobytes())
            step.incoming.append(incoming)
            tallies |= dict(zip(bucket, outgoing.tallies, strict=True))
        step.tallies = [tallies[i] for i in range(len(self.sizes))]
        self.iteration += 1
        return step

    def commit(self) -> None:
        """Confirms the latest step."""
        for one in self.compressors:
            one.commit()

    def put_back(self) -> None:
        """Leaves the latest step out after it was compressed."""
        for one in self.compressors:
            one.put_back()
