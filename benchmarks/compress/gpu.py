"""What passes, whole buckets and steps cost on a GPU, or on the CPU where there is none, next to a copy.

    python -m benchmarks.compress.gpu [--quick] [--write]

Needs only torch, numba, NumPy, pydantic, pyzmq, isal and psutil, and CuPy for a GPU. Events time the copy on
a GPU, the host times whole buckets and steps between two waits for the device. Every contender is timed
right after the floor, in the same round.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.feedback import Feedback
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import read_config
from taugrad.compressors.methods.quantizers import QuantizerInput
from taugrad.compressors.ops import ops_for
from taugrad.compressors.ops.interface import Batch, Form, Quantizing, Readback

from ..harness.report import RESULTS, Options, Place, Spread, Table, number, publish, run_benchmark, say

Work = Callable[[], object]
WHOLE = (
    "wgt(density(0.01)) | golomb_rice",
    "qgt(0.005) | golomb_rice",
    "strom(0.025) | golomb_rice",
    "topk(0.01) | golomb_rice",
    "chunked_topk(64)",
    "linear(8) | raw",
    "fp16",
)
PLACE = Place(
    RESULTS.parent / "how-to" / "gpus.md",
    "<!-- benchmarks/compress/gpu.py writes from here -->",
    "<!-- to here -->",
)
INTRODUCTION = (
    "{device}. Gradients are normal values. The floor is a copy of {n:,} float32 within the device's memory, "
    "timed again right before each contender. "
    "Times are medians of {rounds} rounds, with the 10th to the 90th percentile in brackets."
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    elements: int
    rounds: int
    layers: int
    width: int


WORKERS = 8
FULL, QUICK = Sizes(25_600_000, 30, 6, 2048), Sizes(100_000, 3, 2, 64)


@dataclass(frozen=True)
class Case:
    """A contender."""

    name: str
    work: Work
    items: int
    """Elements of the gradient."""
    reset: Work = lambda: None
    """Before each run, not timed."""


class Arena:
    """The device, and the floor."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device, self.sizes = device, sizes
        self._start = torch.randn(sizes.elements, device=device)
        self._copy = torch.empty_like(self._start)

    def floor(self) -> None:
        """What a contender is compared with."""
        self._copy.copy_(self._start)

    def floor_seconds(self) -> float:
        """The time of the floor; on a GPU, between two events around it."""
        if self.device.type == "cpu":
            return self.whole_seconds(self.floor)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.floor()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def whole_seconds(self, work: Work) -> float:
        """The host's time until the device is done."""
        self._wait()
        started = perf_counter()
        work()
        self._wait()
        return perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def row(case: Case, arena: Arena) -> tuple[str, ...]:
    ratios, times = [], []
    for count in range(arena.sizes.rounds + 1):
        floor = arena.floor_seconds()
        case.reset()
        seconds = arena.whole_seconds(case.work)
        if count:  # the first compiles
            ratios.append(seconds / floor)
            times.append(seconds)
    middle = Spread.of(times).middle
    return case.name, str(Spread.of(ratios)), number(1e3 * middle), number(case.items / middle / 1e6)


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


def parameter_sizes(arena: Arena) -> list[int]:
    """Those of the bucket."""
    sizes = resnet50_sizes()
    return sizes if arena.sizes is FULL else [max(1, size // 1000) for size in sizes]


def pass_cases(arena: Arena) -> Iterator[Case]:
    """What methods that send every element do on the device: quantize, and add up what workers sent."""
    sizes = parameter_sizes(arena)
    n, ops = sum(sizes), ops_for(arena.device)
    gradient, residual = torch.randn(n, device=arena.device) * 0.01, torch.zeros(n, device=arena.device)
    batch, out = Batch.flat(residual, gradient, np.array(sizes)), ops.array(torch.empty_like(gradient))
    forms: tuple[tuple[str, Form, int, int], ...] = (
        ("linear(8)", "linear", 8, 0), ("linear(8, block=4096)", "linear", 8, 4096), ("fp8", "fp8", 8, 0),
        ("fp16", "fp16", 16, 0), ("quantile(4)", "quantile", 4, 0),
        ("quantile(4, block=4096)", "quantile", 4, 4096),
    )  # fmt: skip
    for name, form, bits, block in forms:
        work = QuantizerInput(batch, ops, Readback(ops)).room(form, bits, block)

        def quantize(form: Form = form, work: Quantizing = work) -> None:
            ops.quantize(form, work._replace(readback=Readback(ops)))

        quantize()
        rows, sources = work.offsets.table, [(work.symbols, work.tables)] * WORKERS

        def add(form: Form = form, block: int = block, rows: Any = rows, sources: Any = sources) -> None:
            ops.add_values(form, sources, block, rows, out, rows[:, 0], WORKERS)

        yield Case(f"{name}, quantize", quantize, n, residual.zero_)
        yield Case(f"{name}, sum", add, n)


def bucket_cases(arena: Arena) -> Iterator[Case]:
    """Parameters as large as ResNet-50's in one bucket, from gradients to a payload and back to a sum."""
    sizes = parameter_sizes(arena)
    n, names = sum(sizes), [f"p{i}" for i in range(len(sizes))]
    gradient = torch.randn(n, device=arena.device) * 0.01
    for line in WHOLE:
        shard = Shard.whole(dict(zip(names, sizes, strict=True)))
        compressor = Compressor(read_config(line), Worker(ops_for(arena.device)), shard)  # type: ignore[arg-type]
        shares, at = torch.split(gradient, sizes), [0]

        def clear(feedback: Feedback = compressor.feedback) -> None:
            for residual in feedback.residuals.values():
                residual.zero_()

        def reset(feedback: Feedback = compressor.feedback) -> None:
            clear(feedback)
            feedback.memories.clear()

        def compress(c: Any = compressor, shares: Any = shares, at: list[int] = at) -> Any:
            return c.compress(shares, at[0]).payload

        payload, total = compress(), torch.zeros(n, device=arena.device)

        def read(c: Any = compressor, p: Any = payload, t: Tensor = total) -> None:
            c.total([c.read(p)], 1, t)

        bits = number(8 * int(payload.size) / n)
        yield Case(f"{line}, compress ({bits} bits)", compress, n, reset)
        if "density" in line:
            at[0] = 3
            yield Case(f"{line}, compress without a sample", compress, n, clear)
        yield Case(f"{line}, read and add", read, n)


def step_cases(arena: Arena) -> Iterator[Case]:
    """A backward pass under DDP, with and without compression."""
    width, layers = arena.sizes.width, arena.sizes.layers
    data = torch.randn(64, width, device=arena.device)
    for line in (None, "none", "powersgd(4, start=2)", *WHOLE):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).to(arena.device)
        ddp = DistributedDataParallel(model)
        if line is not None:
            state = CompressionState(ddp, line)
            ddp.register_comm_hook(state, compression_hook)

        def step(ddp: DistributedDataParallel = ddp) -> None:
            ddp.zero_grad()
            ddp(data).square().mean().backward()

        n = sum(parameter.numel() for parameter in model.parameters())
        yield Case(line or "DDP alone", step, n)


PARTS: tuple[tuple[str, Callable[[Arena], Iterator[Case]], str], ...] = (
    (
        "Passes",
        pass_cases,
        "All parameters in one call, nothing fetched; a sum is of the values of {workers} workers.",
    ),
    (
        "Buckets",
        bucket_cases,
        "{parameters} parameters as large as those of ResNet-50, from gradients to a payload (compress) and "
        "from a payload to a sum (read and add), with all waits of the host; torch's threads code. A density "
        "is compressed with a sample of every parameter, and as in most iterations without one.",
    ),
    (
        "Steps",
        step_cases,
        "Backward of {layers} layers of {width} x {width}, under DDP in a process group of one worker "
        "({backend}): what compression costs where the network costs nothing. It gains nothing there.",
    ),
)


def measure(arena: Arena) -> Iterator[Table]:
    """A table for each part."""
    counts = {"parameters": len(resnet50_sizes()), "workers": WORKERS, "backend": dist.get_backend()}
    for title, cases, note in PARTS:
        rows = []
        for case in cases(arena):
            say(case.name)
            rows.append(row(case, arena))
        columns = ("contender", "times the copy", "ms", "M elements/s")
        yield Table(title, columns, rows, (note.format(**asdict(arena.sizes), **counts),))


def main(options: Options) -> None:
    sizes, gpu = QUICK if options.quick else FULL, torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo", store=HashStore(), rank=0, world_size=1)
    try:
        tables = list(measure(Arena(device, sizes)))
    finally:
        dist.destroy_process_group()
    name = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}" if gpu else "The CPU"
    introduction = INTRODUCTION.format(device=name, n=sizes.elements, rounds=sizes.rounds)
    publish("gpu" if gpu else "cpu", options, introduction, tables, PLACE if gpu else None)


if __name__ == "__main__":
    run_benchmark(main)
