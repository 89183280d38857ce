"""The operations of each kind of device, by their address: a machine imports only what it has."""

from importlib import import_module

import torch

from .interface import Ops

_ADDRESSES = {
    "cpu": "taugrad.compressors.ops.cpu.passes:CpuOps",
    "cuda": "taugrad.compressors.ops.cuda.cupy_runtime:CuPyRuntime",
}


def ops_for(device: torch.device, threads: int = 1) -> Ops:
    """The operations on a device's tensors.

    Args:
        device: of gradients, residuals and totals.
        threads: how many may share the CPU's work. No result depends on it.

    Raises:
        ImportError: it is a GPU, and CuPy is not installed.
        ValueError: no method supports this device.
    """
    if device.type not in _ADDRESSES:
        raise ValueError(f"gradients lie on {device}; methods work on {' and '.join(_ADDRESSES)}")
    module, _, name = _ADDRESSES[device.type].partition(":")
    made: Ops = getattr(import_module(module), name)(threads if device.type == "cpu" else device)
    return made
