"""Passes over arrays on each kind of device: `interface.py` defines them; `cpu` and `cuda` implement them."""

from __future__ import annotations

from ..lazy import torch
from .interface import Ops


def ops_for(device: torch.device, threads: int | None = None) -> Ops:
    """The operations on a device's tensors, with so many CPU threads; by default as many as torch uses.

    No result depends on the threads.

    Raises:
        ImportError: it is a GPU, and CuPy is not installed.
        ValueError: no method supports this device.
    """
    threads = torch.get_num_threads() if threads is None else threads
    if device.type == "cpu":
        from .cpu.passes import CpuOps  # noqa: PLC0415 - compiles

        return CpuOps(threads)
    if device.type == "cuda":
        from .cuda.cupy_runtime import CuPyRuntime  # noqa: PLC0415 - a machine imports only what it has

        return CuPyRuntime(device, threads)
    raise ValueError(f"gradients lie on {device}; methods work on cpu and cuda")
