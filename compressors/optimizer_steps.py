"""Which exchanged backward pass begins a step.

A step ends when an optimizer steps one of the parameters, or when a gradient that was exchanged is cleared,
to None or to zeros. Passes that are exchanged without either in between belong to one step. That a gradient
is left over says nothing: of two optimizers in turn, each leaves the other's.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class StepTracker:
    """Follows optimizers and gradients of a state's parameters."""

    def __init__(self, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        """Starts to follow.

        Args:
            parameters: returns, by name, the parameters as optimizers have them.
        """
        self._parameters = parameters
        self._uncleared: set[str] = set()
        """Whose gradients held what was exchanged when the latest pass began."""
        self._stepped: set[int] = set()
        """Ids of what optimizers have stepped since then."""
        _register_hook()
        _TRACKERS.add(self)

    @property
    def stepped(self) -> set[str]:
        """The parameters that an optimizer has stepped since the step began."""
        return {name for name, parameter in self._parameters().items() if id(parameter) in self._stepped}

    def begin_pass(self, uncleared: set[str]) -> bool:
        """Begins a backward pass that is exchanged; returns whether it begins a step.

        Args:
            uncleared: the parameters whose gradients hold what was exchanged before.
        """
        is_new = not uncleared or bool(self.stepped) or not self._uncleared <= uncleared
        self._uncleared = uncleared
        return is_new

    def begin_step(self) -> None:
        """Begins a step: what optimizers did before no longer counts."""
        self._stepped.clear()


_TRACKERS: WeakSet[StepTracker] = WeakSet()


@cache
def _register_hook() -> None:
    register_optimizer_step_post_hook(_on_step)  # one for all: torch iterates over hooks when it calls them


def _on_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for tracker in list(_TRACKERS):
        tracker._stepped |= stepped
