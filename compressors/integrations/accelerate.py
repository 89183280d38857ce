"""Accelerate: a model that `prepare` returned is compressed, and saved and loaded with all the rest.

`DistributedDataParallelKwargs` of Accelerate takes no hook but the five that it lists.
"""

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from torch import nn

from ..hook import compress_gradients
from ..method import Method
from ..state import CompressionState
from .rank_files import load_rank, save_rank


def compress_prepared(
    accelerator: Accelerator, model: nn.Module, method: Method | Mapping[str, Any] | str, **options: Any
) -> CompressionState:
    """Compresses what a prepared model synchronizes; residuals go with `save_state` and `load_state`.

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

    def name(models: list[nn.Module]) -> str:
        mine = accelerator.unwrap_model(model)
        place = next(place for place, each in enumerate(models) if accelerator.unwrap_model(each) is mine)
        return f"taugrad{place or ''}"

    accelerator.register_save_state_pre_hook(
        lambda models, _, folder: save_rank(state, folder, name=name(models))
    )
    accelerator.register_load_state_pre_hook(
        lambda models, folder: load_rank(state, folder, name=name(models))
    )
    return state
