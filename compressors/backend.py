"""Where a method works: in the CPU's memory, or on the GPU that the gradients are on."""

import torch

from .bucket.compressor import Compressor
from .config.methods import CompressedMethod
from .ops.cpu.ops import CpuOps


def compressor_for(config: CompressedMethod, device: torch.device, threads: int = 1) -> Compressor:
    """A method at work where gradients lie.

    Args:
        config: the method.
        device: of the gradients.
        threads: how many may share a pass on the CPU. No result depends on it.

    Raises:
        ImportError: they lie on a GPU, and CuPy is not installed.
        ValueError: no method works on such a device.
    """
    if device.type == "cpu":
        return Compressor(config, CpuOps(threads))
    if device.type == "cuda":
        from .ops.cuda.cupy_runtime import CuPyRuntime  # noqa: PLC0415 (CPU machines have no CuPy)

        return Compressor(config, CuPyRuntime(device))
    raise ValueError(f"gradients lie on {device}; methods work on cpu and cuda")
