"""A small model whose weights change a little, for tests of streams of patches."""

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def model(seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "embed": torch.randn(300, 16, generator=generator).bfloat16(),
        "layer.weight": torch.randn(64, 32, generator=generator),
        "layer.steps": torch.tensor(7),
        "mask": torch.rand(30, generator=generator) < 0.5,
        "fp8": torch.randn(50, generator=generator).to(torch.float8_e4m3fnuz),
        "empty": torch.empty(0, 3),
    }
    return weights | {"head": weights["embed"]}


def step(weights: Weights, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in (weights["embed"], weights["layer.weight"]):
        chosen = torch.rand(tensor.shape, generator=generator) < 0.02
        tensor.copy_(torch.where(chosen, tensor * 1.01, tensor))
    weights["layer.steps"] += 1
