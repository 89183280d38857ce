"""Small trainings: what specs of them have in common, and the same in as few lines as torch needs."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from taugrad.platform.data import load
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec


def small(examples: int, tests: int = 60, size: int = 4, **training: Any) -> dict[str, Any]:
    """A spec's fields: a small net on so many images of size x size."""
    sizes = {"train_examples": examples, "test_examples": tests, "height": size, "width": size}
    return {
        "data": {"kind": "synthetic"} | sizes,
        "model": {"kind": "mlp", "widths": [12], "activation": "tanh"},
        "training": training,
    }


def sgd(lr: float, momentum: float = 0, decay: float = 0) -> dict[str, Any]:
    """An optimizer's fields."""
    return {"kind": "sgd", "lr": lr, "momentum": momentum, "weight_decay": decay}


class Parts(nn.Module):
    """A net of parts, each of which is used in some steps, or on some workers, or never."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(channels * height * width, classes) for _ in range(4)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        first, some, rare, _ = self.parts
        total = first(flat)
        if flat.sum() > 0:
            total = total + some(flat)
        if flat[0, 0] > 1:
            total = total + rare(flat)
        return total


def plain_loop(
    spec: RunSpec,
    batches: Callable[[nn.Module, Any], Iterable[tuple[np.ndarray, dict[str, float]]]],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    forward: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda model, inputs: model(inputs),
    before_step: Callable[[nn.Module, int], object] = lambda model, examples: None,
) -> tuple[nn.Module, list[float]]:
    """One process that trains on whole batches.

    Args:
        spec: its data, its model and its seed.
        batches: by model and data, the examples of each batch and what the optimizer is set to for it.
        optimizer: of the model's parameters.
        forward: from inputs to outputs.
        before_step: called with the model, which has its gradients, and the number of examples.

    Returns:
        The model, and each batch's mean loss.
    """
    data = load(spec.data)
    torch.manual_seed(spec.seed)
    model, losses = build(spec.model, data.shape), []
    stepping = optimizer(model.parameters())
    for examples, settings in batches(model, data):
        chosen = torch.from_numpy(examples)
        stepping.param_groups[0].update(settings)
        stepping.zero_grad()
        loss = nn.functional.cross_entropy(
            forward(model, data.train_inputs[chosen]), data.train_labels[chosen]
        )
        losses.append(loss.item())
        loss.backward()
        before_step(model, len(chosen))
        stepping.step()
    return model, losses
