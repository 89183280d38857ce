"""Imported by the server that forks the tests' processes: what each of them would take seconds for."""

import numba  # noqa: F401
import torch._dynamo
import torch.distributed  # noqa: F401
from numba.core.registry import cpu_target

import taugrad.platform.training.trainer  # noqa: F401

# Numba does this when the first kernel is called: it takes longer than to load all kernels.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
