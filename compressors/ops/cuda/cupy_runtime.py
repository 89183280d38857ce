"""The CUDA sources on a GPU: compiled by CuPy (NVRTC), started on torch's current stream."""

import hashlib
from functools import cache
from typing import Any

import numpy as np
import torch

from .device import OPTIONS, SOURCES, DeviceArray
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
def _headers() -> str:
    """Tells headers apart: CuPy knows what it compiled by the source's text, and looks into no header."""
    texts = [path.read_bytes() for path in sorted(SOURCES.glob("*.cuh"))]
    return hashlib.sha256(b"".join(texts)).hexdigest()


@cache
def _kernel(source: str, kernel: str, device: int) -> Any:
    """A kernel, compiled at its first launch on a device."""
    return _module(source, device).get_function(kernel)


@cache
def _module(source: str, device: int) -> Any:
    text = (SOURCES / f"{source}.cu").read_text(encoding="utf-8")
    options = (*OPTIONS, f"--include-path={SOURCES}")
    return _cupy().RawModule(code=f"// {_headers()}\n{text}", options=options, backend="nvrtc")


class CuPyRuntime(CudaOps):
    """A `Device` that is a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Prepares a GPU; sources are compiled when they are first needed.

        Args:
            device: one of CUDA's; without a number the current one.

        Raises:
            ImportError: CuPy is not installed; it says what to install.
        """
        self._cuda = _cupy().cuda
        self._number = torch.cuda.current_device() if device.index is None else device.index
        super().__init__(torch.device("cuda", self._number))

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        if not blocks:
            return
        words = tuple(np.int64(each.pointer if isinstance(each, DeviceArray) else each) for each in arguments)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        with self._cuda.Device(self._number), self._cuda.ExternalStream(stream, self._number):
            _kernel(source, kernel, self._number)((blocks,), (threads,), words)
