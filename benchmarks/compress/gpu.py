"""What passes, copies to the host and whole buckets cost on a GPU, next to a copy within its memory.

    python -m benchmarks.compress.gpu [--quick] [--write]

Needs an NVIDIA GPU, and only torch, CuPy, numba, NumPy and pydantic. Kernels are timed by CUDA events,
whole buckets and steps by the host's clock between two waits for the device. Every contender is timed
right after the floor, in the same round.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.bucket.compressor import compressor_for
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import read_config
from taugrad.compressors.ops.cpu.threshold import VALUE_DTYPE, ThresholdRule
from taugrad.compressors.ops.cuda.chunked import chunked_pass
from taugrad.compressors.ops.cuda.linear import linear_pass
from taugrad.compressors.ops.cuda.minifloat import fp8_pass, half_pass
from taugrad.compressors.ops.cuda.quantile import quantile_pass
from taugrad.compressors.ops.cuda.reports import Reports
from taugrad.compressors.ops.cuda.sparse_add import add_values
from taugrad.compressors.ops.cuda.threshold import threshold_pass
from taugrad.compressors.ops.cuda.topk import topk_pass
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import NonFinite

from ..harness.report import Options, Spread, Table, load, number, publish, read_options

Work = Callable[[], object]
DENSITY = 0.01
RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")
WHOLE = (
    "wgt(density(0.01)) | golomb_rice",
    "qgt(0.005) | golomb_rice",
    "strom(0.025) | golomb_rice",
    "topk(0.01) | golomb_rice",
    "chunked_topk(64)",
    "linear(8) | raw",
    "fp16",
)
COLUMNS = ("times the copy", "ms", "GB/s", "M items/s")
INTRODUCTION = (
    "{gpu}. Residual and gradient are float32 with normal values, {n:,} of them; {density:.0%} are sent. The "
    "floor is a copy of as many float32 within the GPU's memory, timed again right before each contender. "
    "Times are medians of {rounds} rounds, with the 10th to the 90th percentile in brackets."
)
NOTES = (
    "GB/s: bytes that must be read and written at the least, by the median time. Items are elements of the "
    "gradient, positions, or symbols. Residuals are set back before each run. What is called torch's does "
    "the same in torch's operations, or (topk) a part of it.",
    "BUCKETS: {parameters} parameters as large as those of ResNet-50, from gradients to a payload (compress) "
    "and from a payload to a sum (read and add), with all waits of the host.",
    "STEPS: backward of {layers} layers of {width} x {width}, under DDP in a process group of one worker "
    "(NCCL): what compression costs where the network costs nothing. It gains nothing there.",
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    elements: int
    rounds: int
    layers: int
    width: int


FULL, QUICK = Sizes(25_600_000, 30, 6, 2048), Sizes(100_000, 3, 2, 64)


@dataclass(frozen=True)
class Case:
    """A contender."""

    name: str
    work: Work
    moved: int
    """Bytes that it must read and write."""
    items: int
    reset: Work = lambda: None
    """Before each run, not timed."""


class Arena:
    """A gradient and a residual on the GPU."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes, self.n = device, sizes, sizes.elements
        generator = torch.Generator().manual_seed(0)
        self.gradient = torch.randn(self.n, generator=generator).to(device)
        self.start = (torch.randn(self.n, generator=generator) * 0.5).to(device)
        self.residual, self.copy = self.start.clone(), torch.empty_like(self.start)
        self.k = max(1, int(DENSITY * self.n))
        magnitude = (self.start + self.gradient).abs()
        self.tau = float(magnitude.kthvalue(self.n - self.k + 1).values)
        self.runtime: Any = compressor_for(_method("fp16"), device).ops

    def reset(self) -> None:
        """Sets the residual back."""
        self.residual.copy_(self.start)

    def floor(self) -> None:
        """What a pass is compared with."""
        self.copy.copy_(self.start)


def _method(line: str) -> Any:
    return read_config(line)


def kernel_seconds(work: Work) -> float:
    """The time between two events around the kernels that a work starts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def whole_seconds(work: Work) -> float:
    """The host's time until the device is done."""
    torch.cuda.synchronize()
    started = perf_counter()
    work()
    torch.cuda.synchronize()
    return perf_counter() - started


def row(case: Case, arena: Arena, seconds: Callable[[Work], float]) -> tuple[str, ...]:
    """A case's figures."""
    ratios, times = [], []
    for count in range(arena.sizes.rounds + 1):
        floor = kernel_seconds(arena.floor)
        case.reset()
        own = seconds(case.work)
        if count:  # the first compiles
            ratios.append(own / floor)
            times.append(own)
    middle = Spread.of(times).middle
    rate = number(case.moved / middle / 1e9) if case.moved else ""
    return (
        case.name,
        str(Spread.of(ratios)),
        number(1e3 * middle),
        rate,
        number(case.items / middle / 1e6) if case.items else "",
    )


def rule_cases(arena: Arena) -> Iterator[Case]:
    """Passes over the whole gradient."""
    runtime, n, tau = arena.runtime, arena.n, arena.tau
    residual, gradient = runtime.array(arena.residual), runtime.array(arena.gradient)
    words = runtime.empty(n, np.uint32)
    moved, reset = 12 * n, arena.reset
    yield Case("copy", arena.floor, 8 * n, n)
    yield Case("torch: residual += gradient", lambda: arena.residual.add_(arena.gradient), moved, n, reset)
    for rule in RULES:
        values = runtime.empty(n if rule in ("wgt", "qgt") else 0, VALUE_DTYPE[rule])

        def send(rule: ThresholdRule = rule, values: Any = values) -> None:
            threshold_pass(runtime, rule, residual, gradient, tau, words, values, Reports(runtime, 1))

        yield Case(rule, send, moved, n, reset)
    yield Case("torch operations for wgt", lambda: torch_wgt(arena), moved, n, reset)
    floats = runtime.empty(n, np.float32)
    yield Case(
        "topk",
        lambda: topk_pass(runtime, residual, gradient, arena.k, words, floats, Reports(runtime, 1)),
        moved,
        n,
        reset,
    )
    yield Case("torch.topk of the magnitudes alone", lambda: arena.start.abs().topk(arena.k), 4 * n, n)
    yield Case(
        "chunked_topk, 64 of 4096",
        lambda: chunked_pass(runtime, residual, gradient, 4096, 64, words, floats, Reports(runtime, 1)),
        moved,
        n,
        reset,
    )
    yield from quantizer_cases(arena, residual, gradient)


def quantizer_cases(arena: Arena, residual: Any, gradient: Any) -> Iterator[Case]:
    """Passes that send every element."""
    runtime, n = arena.runtime, arena.n
    blocks = -(-n // 2048)
    symbols, halves = runtime.empty(n, np.uint8), runtime.empty(n, np.uint16)
    lows, steps = (runtime.empty(blocks, np.float32) for _ in range(2))
    means, exponents = runtime.empty(blocks << 8, np.uint16), runtime.empty(blocks, np.int8)

    def reports() -> Reports:
        return Reports(runtime, 1)

    passes: dict[str, Work] = {
        "linear, 8 bits, blocks of 2048": lambda: linear_pass(
            runtime, residual, gradient, 8, 2048, symbols, lows, steps, reports()
        ),
        "quantile, 8 bits, blocks of 2048": lambda: quantile_pass(
            runtime, residual, gradient, 8, 2048, symbols, means, exponents, reports()
        ),
        "fp8, blocks of 2048": lambda: fp8_pass(
            runtime, residual, gradient, 2048, symbols, exponents, reports()
        ),
        "fp16": lambda: half_pass(runtime, "fp16", residual, gradient, halves, reports()),
    }
    for name, work in passes.items():
        yield Case(name, work, (14 if name == "fp16" else 13) * n, n, arena.reset)


def torch_wgt(arena: Arena) -> None:
    """The same as the fused wgt pass, in torch's operations."""
    arena.residual.add_(arena.gradient)
    at = (arena.residual.abs() >= arena.tau).nonzero().flatten()
    taken = arena.residual[at]
    arena.residual[at] = 0
    torch.stack([at << 1 | (taken < 0), taken.view(torch.int32)])
    arena.residual.square().sum(dtype=torch.float64)


def crossing_cases(arena: Arena) -> Iterator[Case]:
    """What was selected, on its way to the host and back, and added."""
    runtime = arena.runtime
    reached = ((arena.start + arena.gradient).abs() >= arena.tau).nonzero().flatten().cpu().numpy()
    on_host, k = (reached << 1).astype(np.uint32), reached.size
    words, values = runtime.place_all([on_host, np.zeros(k, np.float32)])
    dense = runtime.array(arena.residual)
    yield Case("words and values to the host", lambda: runtime.fetch_all([words, values]), 8 * k, k)
    yield Case("words to the GPU", lambda: runtime.place_all([on_host]), 4 * k, k)
    yield Case("adding values at positions", lambda: add_values(runtime, words, values, 0, dense), 16 * k, k)


def resnet50_sizes() -> list[int]:
    """Elements of ResNet-50's parameters (He et al. 2015, table 1), in their order."""
    sizes = [3 * 64 * 49, 64, 64]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [inside * width, width, width, 9 * width * width, width, width]
            sizes += [4 * width * width, 4 * width, 4 * width]
            if block == 0:
                sizes += [4 * inside * width, 4 * width, 4 * width]
            inside = 4 * width
    return [*sizes, 2048 * 1000, 1000]


def bucket_cases(arena: Arena) -> Iterator[Case]:
    """Parameters as large as ResNet-50's in one bucket, from gradients to a payload and back to a sum."""
    sizes = resnet50_sizes()
    if arena.sizes is QUICK:
        sizes = [max(1, size // 1000) for size in sizes]
    n, names = sum(sizes), [f"p{i}" for i in range(len(sizes))]
    gradient = torch.randn(n, device=arena.device) * 0.01
    for line in WHOLE:
        compressor = compressor_for(_method(line), arena.device)
        layout, context = compressor.layout(names, sizes), Context()
        residuals = [torch.zeros(size, device=arena.device) for size in sizes]
        parts = [Part(*each) for each in zip(names, torch.split(gradient, sizes), residuals, strict=True)]

        def reset(residuals: list[Tensor] = residuals, context: Context = context) -> None:
            for residual in residuals:
                residual.zero_()
            context.memories.clear()

        def compress(c: Any = compressor, p: Any = parts, a: Any = layout, x: Any = context) -> Any:
            return c.compress(p, a, x).payload

        payload, total = compress(), torch.zeros(n, device=arena.device)

        def read(c: Any = compressor, p: Any = payload, a: Any = layout, t: Tensor = total) -> None:
            incoming = c.read(p, a)
            assert not isinstance(incoming, NonFinite)
            c.add(incoming, t)

        bits = 8 * int(payload.size) / n
        yield Case(f"{line}, compress ({number(bits)} bits)", compress, 0, n, reset)
        yield Case(f"{line}, read and add", read, 0, n)


def step_cases(arena: Arena) -> Iterator[Case]:
    """A backward pass under DDP, with and without compression."""
    width, layers = arena.sizes.width, arena.sizes.layers
    data = torch.randn(64, width, device=arena.device)
    for line in (None, "none", *WHOLE):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(arena.device)
        ddp = DistributedDataParallel(model)
        if line is not None:
            state = CompressionState(ddp, line)
            ddp.register_comm_hook(state, compressed_allgather)

        def step(ddp: DistributedDataParallel = ddp) -> None:
            ddp.zero_grad()
            ddp(data).square().mean().backward()

        n = sum(parameter.numel() for parameter in model.parameters())
        yield Case(line or "DDP alone", step, 0, n)


def measure(device: torch.device, sizes: Sizes) -> Table:
    """All figures."""
    arena, started = Arena(device, sizes), perf_counter()
    groups = (
        ("PASSES", rule_cases, kernel_seconds),
        ("TO THE HOST AND BACK", crossing_cases, kernel_seconds),
        ("BUCKETS", bucket_cases, whole_seconds),
        ("STEPS", step_cases, whole_seconds),
    )
    rows: list[tuple[str, ...]] = []
    for title, cases, seconds in groups:
        rows.append((title, "", "", "", ""))
        for case in cases(arena):
            print(f"{perf_counter() - started:4.0f} s: {case.name}", file=sys.stderr)
            rows.append(row(case, arena, seconds))
    notes = [
        note.format(parameters=len(resnet50_sizes()), layers=sizes.layers, width=sizes.width)
        for note in NOTES
    ]
    return Table("Passes, copies, buckets and steps on a GPU", ("", *COLUMNS), rows, tuple(notes))


def main(arguments: Sequence[str]) -> None:
    options: Options = read_options("compress.gpu", "What passes and buckets cost on a GPU.", arguments)
    if not torch.cuda.is_available():
        sys.exit("compress/gpu.py needs an NVIDIA GPU, and torch finds none here")
    sizes, load_before = QUICK if options.quick else FULL, load()
    device = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{os.path.join(folder, 'rendezvous')}"
        dist.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
        try:
            table = measure(device, sizes)
        finally:
            dist.destroy_process_group()
    introduction = INTRODUCTION.format(
        gpu=f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}",
        n=sizes.elements,
        density=DENSITY,
        rounds=sizes.rounds,
    )
    publish("gpu", options, introduction, [table], load_before)


if __name__ == "__main__":
    main(sys.argv[1:])
