"""A model and what trains it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.batches import Share
from .batch_plan import Position
from .config import TrainingConfig
from .optimizer import build_optimizer
from .rates import Rates


@dataclass(frozen=True)
class Examples:
    """What a worker learns from, on its device."""

    inputs: Tensor
    """float32 [examples, channels, height, width]."""
    labels: Tensor
    """int64 [examples]."""


class Replica:
    """One worker's model with its optimizer."""

    def __init__(self, model: nn.Module, training: TrainingConfig, workers: int) -> None:
        self.model = model
        self.optimizer = build_optimizer(training.optimizer, model.parameters())
        self._rates = Rates(self.optimizer, training, workers)
        parameters = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        # The last one first, as gradients come out of a backward pass and as the DDP hook has them.
        self.names = [name for name, _ in reversed(parameters)]
        self.parameters = [each for _, each in reversed(parameters)]

    def backward(
        self, examples: Examples, share: Share, forward: Callable[[Tensor], Tensor] | None = None
    ) -> float:
        """Leaves the gradients of a share's weighted mean loss in the parameters.

        Args:
            examples: the training part.
            share: of the batch.
            forward: computes scores in place of the model, such as DDP around it.

        Returns:
            That loss: cross entropy in nats, times the share's weight.
        """
        self.optimizer.zero_grad()
        indices = torch.from_numpy(share.indices).to(examples.labels.device)
        scores = (forward or self.model)(examples.inputs[indices])
        loss = share.weight * nn.functional.cross_entropy(scores, examples.labels[indices])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def step(self, position: Position) -> None:
        """Has the optimizer apply the gradients, at the rate of this position in the run."""
        self._rates.set(position)
        self.optimizer.step()

    def take_gradients(self) -> list[Tensor]:
        """The gradients, flat [numel], in the order of `names`; the parameters have none afterwards."""
        taken = []
        for parameter in self.parameters:
            gradient = parameter.grad
            taken.append(torch.zeros_like(parameter).view(-1) if gradient is None else gradient.flatten())
            parameter.grad = None
        return taken

    def put_gradients(self, flat: Tensor) -> None:
        """Gives every parameter its part of float32 [all elements] as gradient; the memory is shared."""
        shares = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        for parameter, share in zip(self.parameters, shares, strict=True):
            parameter.grad = share.view_as(parameter).to(parameter.dtype)

    def weights(self) -> list[Tensor]:
        """The parameters, flat [numel], in the order of `names`; views."""
        return [parameter.detach().reshape(-1) for parameter in self.parameters]
