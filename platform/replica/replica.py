"""A model with its optimizer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taugrad.compressors.observe import GradientStatistics, gradient_statistics
from taugrad.compressors.spans import RECORDER

from ..data.batch_plan import Position
from ..data.feeding import Batch
from ..spec.training import TrainingConfig
from ..tasks.task import Task
from .optimizer import add_l1, build_optimizer, hidden_matrices
from .precision import LossScale, autocast
from .rates import rate_at, set_rate


class Replica:
    """One worker's model with its optimizer.

    Attributes:
        model: the model.
        scale: of the loss; gradients are multiplied by it until they are unscaled.
        names: of the parameters that are trained, the last one first.
        parameters: those.
        finds_unused: whether some may have no gradient on any worker.
    """

    def __init__(self, model: nn.Module, task: Task, training: TrainingConfig, workers: int) -> None:
        self.model = model
        self.optimizer = build_optimizer(training.optimizer, model.parameters(), hidden_matrices(model))
        add_l1(self.optimizer, model.named_parameters(), training)
        self.scale = LossScale(training.precision)
        self._task, self._training, self._workers = task, training, workers
        self.finds_unused = training.find_unused_parameters
        parameters = [
            (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        ]
        # The last one first, as gradients come out of a backward pass and as the DDP hook has them.
        self.names = [name for name, _ in reversed(parameters)]
        self.parameters = [parameter for _, parameter in reversed(parameters)]
        if training.compile:
            model.compile()

    def with_own_buffers(self) -> "Replica":
        """A simulated worker's, which shares parameters, optimizer and scale."""
        own = copy(self)
        own.model = deepcopy(self.model, {id(parameter): parameter for parameter in self.model.parameters()})
        if self._training.compile:
            own.model.compile()
        return own

    def backward(
        self,
        batch: Batch,
        forward: Callable[[Tensor], Any] | None = None,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
        parts: int | None = None,
    ) -> float:
        """Computes the gradients of a batch's weighted loss, times `scale`, into the parameters.

        This worker's part of a batch goes through the model in `parts`, by default `training.accumulate`.
        `forward` computes outputs instead of the model, such as DDP around it; `alone` is entered for all
        parts but the last, such as DDP's `no_sync`. Returns the mean loss times the batch's weight, whatever
        `loss_reduction` is.
        """
        self.optimizer.zero_grad()
        total = 0.0
        cut = list(_cut(batch, parts or self._training.accumulate))
        for part, share in cut:
            with alone() if part is not cut[-1][0] else nullcontext():
                with (
                    RECORDER.computing("forward"),
                    autocast(self._training.precision, batch.inputs.device),
                ):
                    outputs = (forward or self.model)(part.inputs)
                    mean = self._task.loss(outputs, part.targets)
                loss = self._factor(part, share) * mean
                scaled = loss * self.scale.factor if self.scale.factor != 1 else loss
                with RECORDER.computing("backward"):
                    scaled.backward()  # type: ignore[no-untyped-call]
                total += share * batch.weight * mean.item()
        return total

    def _factor(self, part: Batch, share: float) -> float:
        """What a part's mean loss is multiplied by, so that its gradients add up to the worker's."""
        if self._training.loss_reduction == "mean":
            return share * part.weight
        return float(self._task.terms(part.targets)) if part.weight else 0.0

    def step(self, position: Position) -> None:
        """Makes the optimizer apply the gradients, at the learning rate of this position in the run."""
        with RECORDER.computing("optimizer"):
            if self._training.clip.norm and self._training.clip.of == "mean":
                nn.utils.clip_grad_norm_(self.parameters, self._training.clip.norm)
            set_rate(self.optimizer, rate_at(self._training, position, self._workers))
            self.optimizer.step()
            self.scale.stepped()

    def prepare_own(self) -> None:
        """Unscales this worker's own gradients, and clips them where each worker's own are to be."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if self.scale.factor != 1:
            torch._foreach_mul_(gradients, 1 / self.scale.factor)
        if self._training.clip.norm and self._training.clip.of == "worker":
            nn.utils.clip_grad_norm_(self.parameters, self._training.clip.norm / self._workers**0.5)

    def take_gradients(self) -> list[Tensor]:
        """The gradients, flat [numel], in the order of `names`; the parameters have none afterwards."""
        taken = []
        for parameter in self.parameters:
            gradient = parameter.grad
            taken.append(torch.zeros_like(parameter).view(-1) if gradient is None else gradient.flatten())
            parameter.grad = None
        return taken

    def used(self) -> NDArray[np.float64]:
        """Which parameters have a gradient: 1 or 0, in the order of `names`."""
        return np.array([parameter.grad is not None for parameter in self.parameters], np.float64)

    def put_gradients(self, flat: Tensor, used: NDArray[np.bool_] | None = None) -> None:
        """Gives parameters their parts of float32 [all elements] as gradients; the memory is shared.

        What is not `used` gets none, as under DDP where no worker used it: its optimizer leaves it alone.
        """
        shares = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        for number, (parameter, share) in enumerate(zip(self.parameters, shares, strict=True)):
            if used is None or used[number]:
                parameter.grad = share.view_as(parameter).to(parameter.dtype)

    def weights(self) -> list[Tensor]:
        """The parameters, flat [numel], in the order of `names`; views."""
        return [parameter.detach().reshape(-1) for parameter in self.parameters]

    def nonfinite(self) -> str | None:
        """The name of the first parameter whose gradient holds NaN or Inf, if there is one."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None and not is_finite(parameter.grad):
                return name
        return None

    def statistics(self) -> dict[str, GradientStatistics]:
        """Statistics of the gradients, by parameter; one that is missing counts as zeros."""
        gradients = (
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self.parameters
        )
        return dict(zip(self.names, map(gradient_statistics, gradients), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Of the optimizer and the loss's scale; the model has its own."""
        return {"optimizer": self.optimizer.state_dict(), "scale": self.scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scale.load_state_dict(state["scale"])


def is_finite(values: Tensor) -> bool:
    """Whether there is no NaN or Inf; one pass that writes nothing, a thirtieth of `isfinite`'s time."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


def _cut(batch: Batch, parts: int) -> Iterator[tuple[Batch, float]]:
    """The batch in nearly equal parts, none of them empty, with each one's share of the examples."""
    if parts == 1:
        yield batch, 1.0
        return
    inputs, targets = batch.inputs.tensor_split(parts), batch.targets.tensor_split(parts)
    for some, wanted in zip(inputs, targets, strict=True):
        if len(wanted):
            yield Batch(some, wanted, batch.weight), len(wanted) / len(batch)
