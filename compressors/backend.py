"""Where a method works: in the CPU's memory, or on the GPU that the gradients are on."""

import torch

from .bucket.compressor import Compressor
from .config.methods import CompressedMethod


def compressor_for(config: CompressedMethod, device: torch.device) -> Compressor:
    """A method at work where gradients lie.

    Args:
        config: the method.
        device: of the gradients.

    Raises:
        ImportError: they lie on a GPU, and CuPy is not installed.
        ValueError: no method works on such a device.
    """
    if device.type == "cpu":
        return Compressor(config)
    if device.type == "cuda":
        from .on_device import DeviceCompressor  # noqa: PLC0415
        from .ops.cuda.cupy_runtime import CuPyRuntime  # noqa: PLC0415 (CPU machines have no CuPy)

        return DeviceCompressor(config, CuPyRuntime(device))
    raise ValueError(f"gradients lie on {device}; methods work on cpu and cuda")
