"""Chooses where a method runs: on the CPU, or on the GPU of the gradients."""

import torch

from .bucket.compressor import Compressor
from .method.methods import CompressedMethod


def compressor_for(config: CompressedMethod, device: torch.device, threads: int = 1) -> Compressor:
    """A method that runs on the device of the gradients.

    Args:
        config: the method.
        device: of the gradients.
        threads: how many may share the CPU's work. No result depends on it.

    Raises:
        ImportError: they are on a GPU, and CuPy is not installed.
        ValueError: no method supports this device.
    """
    if device.type == "cpu":
        return Compressor(config, threads=threads)
    if device.type == "cuda":
        from .ops.cuda.cupy_runtime import CuPyRuntime  # noqa: PLC0415 (CPU machines have no CuPy)

        return Compressor(config, CuPyRuntime(device), threads)
    raise ValueError(f"gradients lie on {device}; methods work on cpu and cuda")
