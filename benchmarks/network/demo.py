"""DeMo (Peng, Quesnelle and Kingma, arXiv 2411.19870) as a model, for network/network_target.py.

DeMo sends, of each 64 x 64 block of a worker's momentum, the largest coefficients of its cosine transform;
all step along the signs of their mean. The transform is orthonormal and linear: so gradients are transformed
as they arrive, `chunked_topk` keeps the momentum and sends its largest coefficients, and the optimizer, SGD
without momentum, transforms back what was agreed on, and takes the signs.
"""

import math
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

LARGEST = 64
"""Rows and columns of a block, at most."""
_TRANSFORMED: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""By id, the parameters whose gradients are coefficients."""


def gpt(positions: int, vocabulary: int, **fields: Any) -> nn.Module:
    """The platform's GPT, trained by DeMo; `fields` are those of its config."""
    model = GptNetwork(Gpt(**fields), positions, vocabulary)
    for parameter in model.parameters():
        _TRANSFORMED[id(parameter)] = parameter
        parameter.register_hook(coefficients)
    return model


def coefficients(gradient: Tensor) -> Tensor:
    """The cosine transform of each block, [rows, columns] or [numel], one block after the other."""
    rows, columns = _block(gradient)
    blocks = gradient.reshape(-1, rows.shape[0], gradient.shape[-1] // columns.shape[0], columns.shape[0])
    return torch.einsum("ai,yixj,bj->yxab", rows, blocks, columns).reshape(gradient.shape)


def gradient_of(transformed: Tensor) -> Tensor:
    """What has these coefficients."""
    rows, columns = _block(transformed)
    height, width = rows.shape[0], columns.shape[0]
    blocks = transformed.reshape(-1, transformed.shape[-1] // width, height, width)
    return torch.einsum("ai,yxab,bj->yixj", rows, blocks, columns).reshape(transformed.shape)


def _block(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The transforms of a block's rows and columns; vectors are cut into rows."""
    height = tensor.shape[0] if tensor.ndim > 1 else 1
    return _transform(_divisor(height), tensor.dtype), _transform(_divisor(tensor.shape[-1]), tensor.dtype)


def _divisor(length: int) -> int:
    return max(size for size in range(1, min(length, LARGEST) + 1) if length % size == 0)


@cache
def _transform(size: int, dtype: torch.dtype) -> Tensor:
    """DCT-II, orthonormal: coefficient by place."""
    places = torch.arange(size, dtype=torch.float64)
    cosines = torch.cos(math.pi / size * (places + 0.5) * places[:, None]) * math.sqrt(2 / size)
    cosines[0] /= math.sqrt(2)
    return cosines.to(dtype)


def _take_signs(optimizer: Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and _TRANSFORMED.get(id(parameter)) is parameter:
                parameter.grad.copy_(gradient_of(parameter.grad).sign_())


register_optimizer_step_pre_hook(_take_signs)
