"""What optimizers do with a state's parameters: where steps end, and a warning where a method does not fit.

A step ends when an optimizer steps one of the parameters, or when a gradient that was exchanged is cleared,
to None or to zeros. Passes that are exchanged without either in between belong to one step. That a gradient
is left over says nothing: of two optimizers in turn, each leaves the other's.

Adam, and its kin, divide by the root mean square of an element's past gradients. An element that is held back
arrives rarely and is large, so that its steps become far too short (docs/adamw.md). An optimizer's momentum
beside a method's applies it twice (docs/how-to/momentum.md).
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet, finalize, ref

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .bucket.ledger import Step
from .method import Method
from .method.sparse import SparseMethod

_KIN = ("adam", "lamb")
"""What the names of such optimizers, or of their base classes, hold."""


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


class Watched(Protocol):
    """What is looked at of a `CompressionState`."""

    config: Method
    last_step: Step


class SparseUnderAdam(UserWarning):
    """The category of the warning, for `warnings.filterwarnings`."""


class MomentumTwice(UserWarning):
    """The category of the other warning."""


class OptimizerWatch:
    """Looks at the optimizers that step a state's parameters, until all of them are known.

    Attributes:
        done: whether there is nothing more to look at. The hook is not removed by itself, because torch
            iterates over its hooks then.
        remove: removes the hook; it costs nothing from then on.
    """

    warned = False
    """Whether this process has had its warning."""

    def __init__(self, state: Watched, parameters: Iterable[Tensor]) -> None:
        self.done = False
        self._state = ref(state)
        self._parameters = set(map(id, parameters))
        self._known: WeakSet[Optimizer] = WeakSet()
        handle = register_optimizer_step_pre_hook(self._about_to_step)
        self.remove = finalize(state, handle.remove)
        self.remove.atexit = False

    def _about_to_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = self._state()
        if self.done or state is None or not state.last_step.residual_squares:  # nothing was held back
            return
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if self._parameters.isdisjoint(stepped):
            return  # another model's, such as the discriminator's
        classes = [base.__name__.lower() for base in type(optimizer).__mro__]
        adam = any(kin in name for kin in _KIN for name in classes)
        # One that comes for the second time: all that take turns, or wrap one another, have come.
        twice = bool(state.config.momentum_correction) and any(
            group.get("momentum") for group in optimizer.param_groups
        )
        self.done = adam or twice or optimizer in self._known
        self._known.add(optimizer)
        if (adam or twice) and not OptimizerWatch.warned:
            OptimizerWatch.warned = True
            name, method = type(optimizer).__name__, str(state.config)
            text = (
                f"{name} steps with gradients that {method} exchanged, and trains far worse on them than on "
                "whole ones. Use linear(8) or linear(4), which send every element; or SGD, with momentum=0.9 "
                "in the compressor; or LocalSteps(model, optimizer, every=4, ...). See "
                "docs/how-to/own-script.md"
                if adam
                else f"{name} has momentum, and {method} has, too: it is applied twice. Set the optimizer's "
                "to 0. See docs/how-to/momentum.md"
            )
            warnings.warn(text, SparseUnderAdam if adam else MomentumTwice, stacklevel=3)


def watched(
    state: Watched, watch: OptimizerWatch | None, parameters: Iterable[Tensor]
) -> OptimizerWatch | None:
    """The watch for a state that begins a backward pass, from that of the pass before.

    None once there is nothing to look at.
    """
    if watch is None:
        if state.last_step.steps or OptimizerWatch.warned or not isinstance(state.config, SparseMethod):
            return None  # not the first pass, or nothing to warn of
        return OptimizerWatch(state, parameters)
    if watch.done or OptimizerWatch.warned:
        watch.remove()
        return None
    return watch
