"""Accelerate: compresses a model that `prepare` returned, and saves and loads its residuals with the rest.

Accelerate's `DistributedDataParallelKwargs` takes only the five hooks that it lists.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..hook import CompressionState, compress_gradients
from ..methods import Method
from .rank_files import load_rank, save_rank


def compress_prepared(
    accelerator: Accelerator, model: nn.Module, method: Method | Mapping[str, Any] | str, **options: Any
) -> CompressionState:
    """Compresses what a prepared model synchronizes; residuals go with `save_state` and `load_state`.

    After `accelerator.free_memory()`, call it again for the model that `prepare` then returns.

    Args:
        accelerator: the one that prepared it; its scaler, if it has one, is given to `compress_gradients`.
        model: what `accelerator.prepare` returned for the model.
        method: see `compress_gradients`.
        options: more arguments of `compress_gradients`.

    Returns:
        The state.

    Raises:
        TypeError: the model is not in DDP, as before `prepare`, or with one process.
    """
    state = compress_gradients(model, method, scaler=accelerator.scaler, **options)
    # Weak: hooks outlive the model, which `free_memory` is to free.
    state_ref, net_ref = ref(state), ref(_unwrapped(model))

    def apply(action: Callable[..., None], models: list[nn.Module], folder: str) -> None:
        state, net = state_ref(), net_ref()
        for place, prepared in enumerate(models):
            if state is not None and _unwrapped(prepared) is net:
                action(state, folder, name=f"taugrad{place or ''}")

    accelerator.register_save_state_pre_hook(lambda models, _, folder: apply(save_rank, models, folder))
    accelerator.register_load_state_pre_hook(lambda models, folder: apply(load_rank, models, folder))
    return state


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model in DDP and `torch.compile`, which Accelerate has listed with or without them.

    Accelerate's `unwrap_model` takes DDP out of a compiled model for good.
    """
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module) or (
        isinstance(model, DistributedDataParallel) and isinstance(inner := model.module, nn.Module)
    ):
        model = inner
    return model
