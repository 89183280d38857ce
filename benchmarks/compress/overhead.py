"""What Python costs a bucket: the processor's time around passes whose launches do nothing.

    python -m benchmarks.compress.overhead [--quick] [--write]

Parameters are so small that memory costs nothing either. On a GPU's path no kernel runs, and what is fetched
are zeros: nothing was selected. On the CPU's path kernels run. The time is that of the calling thread.
"""

import sys
from collections.abc import Sequence
from time import thread_time
from typing import Any

import torch

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part, Parts
from taugrad.compressors.method import read_config
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.ops.cuda.ops import CudaOps
from taugrad.compressors.ops.interface import Ops
from taugrad.compressors.rules.base import Context

from ..harness.report import Spread, Table, number, publish, read_options

METHODS = (
    "strom(0.025) | golomb_rice",
    "wgt(density(0.01)) | golomb_rice",
    "topk(0.01) | golomb_rice",
    "chunked_topk(64)",
    "linear(8) | raw",
    "fp8 | raw",
    "fp16",
)
PARAMETERS, ELEMENTS = (1, 10, 161), 40


class Idle(CudaOps):
    """A GPU whose launches do nothing, in the CPU's memory."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._zeros: dict[Any, torch.Tensor] = {}

    def zeros(self, size: int, dtype: Any) -> torch.Tensor:
        """Always the same, as nothing writes to them: a GPU clears memory, not Python."""
        if (size, dtype) not in self._zeros:
            self._zeros[size, dtype] = super().zeros(size, dtype)
        return self._zeros[size, dtype]

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Nothing."""


def milliseconds(line: str, parameters: int, ops: Ops, rounds: int) -> str:
    """To compress a bucket."""
    config: Any = read_config(line)
    compressor, sizes = Compressor(config, ops), [ELEMENTS] * parameters
    names = [f"p{number}" for number in range(parameters)]
    layout, context = compressor.layout(names, sizes), Context(iteration=3)
    shares = torch.split(torch.randn(sum(sizes)) * 0.01, sizes)
    kept = [torch.zeros(ELEMENTS) if compressor.keeps_residuals else None for _ in names]
    parts = Parts(Part(*columns) for columns in zip(names, shares, kept, strict=True))
    times = []
    for _ in range(rounds):
        began = thread_time()
        compressor.compress(parts, layout, context)
        times.append(thread_time() - began)
    return number(1e3 * Spread.of(times[rounds // 4 :]).middle)


def main(arguments: Sequence[str]) -> None:
    options = read_options("compress.overhead", "What Python costs a bucket.", arguments)
    rounds = 40 if options.quick else 400
    torch.set_num_threads(1)
    devices = {"GPU": Idle(), "CPU": CpuOps(1)}
    rows = [
        (line, *[milliseconds(line, count, ops, rounds) for ops in devices.values() for count in PARAMETERS])
        for line in METHODS
    ]
    header = "", *[f"{name}, {count}" for name in devices for count in PARAMETERS]
    table = Table("Milliseconds to compress a bucket, by its parameters", header, rows)
    publish("overhead", options, "Launches that do nothing; parameters of 40 elements.", [table])


if __name__ == "__main__":
    main(sys.argv[1:])
