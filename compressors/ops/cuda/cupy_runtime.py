"""The CUDA sources on a GPU: compiled by CuPy (NVRTC), started on torch's current stream."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from .device import OPTIONS, SOURCES
from .ops import CudaOps

_MISSING = (
    "compressing on a GPU needs CuPy: install taugrad[cuda12] or taugrad[cuda13], whichever CUDA the "
    "driver and torch have (`python -c 'import torch; print(torch.version.cuda)'` tells torch's)"
)


def _cupy() -> Any:
    try:
        import cupy  # noqa: PLC0415 (machines without a GPU have none)
    except ImportError as missing:
        raise ImportError(_MISSING) from missing
    return cupy


@cache
def _kernel(source: str, kernel: str, device: int) -> Any:
    """A kernel, compiled at its first launch on a device, which is the current one."""
    return _module(source, device).get_function(kernel)


@cache
def _module(source: str, device: int) -> Any:
    """Not by `RawModule`, which always has -ftz=true: no CPU takes the smallest numbers for zeros."""
    cuda = _cupy().cuda
    text, options = (SOURCES / f"{source}.cu").read_text("utf-8"), (*OPTIONS, f"--include-path={SOURCES}")
    binary, _ = cuda.compiler.compile_using_nvrtc(text, options, filename=f"{source}.cu")
    module = cuda.function.Module()
    module.load(binary)
    return module


class _TorchStream(NamedTuple):
    """A stream of torch's, for others that know the protocol."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _stream(pointer: int, device: int) -> Any:
    cuda = _cupy().cuda
    if hasattr(cuda.Stream, "from_external"):  # CuPy 14
        return cuda.Stream.from_external(_TorchStream(pointer))
    return cuda.ExternalStream(pointer, device)


class CuPyRuntime(CudaOps):
    """A `Device` that is a GPU."""

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        """On one of CUDA's devices, by default the current one; ImportError says what to install for CuPy."""
        self._cuda = _cupy().cuda
        self._number = torch.cuda.current_device() if device.index is None else device.index
        super().__init__(torch.device("cuda", self._number), threads)

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        if not blocks:
            return
        words = tuple(
            np.int64(value.data_ptr() if isinstance(value, torch.Tensor) else value) for value in arguments
        )
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with self._cuda.Device(self._number):
            run = _kernel(source, kernel, self._number)
            run((blocks,), (threads,), words, stream=_stream(stream, self._number))
