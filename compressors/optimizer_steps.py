"""What optimizers do with a state's parameters: where steps end, and a warning where a method does not fit.

A step ends when an optimizer steps one of the parameters, or when a gradient that was exchanged is cleared,
to None or to zeros. Passes that are exchanged without either in between belong to one step. That a gradient
is left over says nothing: of two optimizers in turn, each leaves the other's.

Adam, and its kin, divide by the root mean square of an element's past gradients. An element that is held back
arrives rarely and is large, so that its steps become far too short (docs/adamw.md). An optimizer's momentum
beside a method's applies it twice (docs/methods.md).
"""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet, ref

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .bucket.ledger import Step
from .methods import Method
from .methods.sparse import SparseMethod

_ADAPTIVE = ("adam", "lamb")
"""Parts of the names of such optimizers, or of their base classes. torch's Muon is not one: it takes matrices
only; what steps the other parameters, mostly AdamW, is seen by itself."""


class SparseUnderAdam(UserWarning):
    """The category of the warning, for `warnings.filterwarnings`."""


class MomentumTwice(UserWarning):
    """The category of the other warning."""


class Tracked(Protocol):
    """The attributes of a `WorkerState` that decide about a warning."""

    last_step: Step

    @property
    def method(self) -> Method:
        """The method."""


class StepTracker:
    """Follows optimizers and gradients of a state's parameters."""

    warned = False
    """Whether this process has had its warning."""

    def __init__(self, state: Tracked, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        """Starts to follow.

        Args:
            state: whose method may not fit an optimizer.
            parameters: returns, by name, the parameters as optimizers have them.
        """
        self._state, self._parameters = ref(state), parameters
        self._uncleared: set[str] = set()
        """Whose gradients held what was exchanged when the latest pass began."""
        self._stepped: set[int] = set()
        """Ids of what optimizers have stepped since then."""
        self._checks = isinstance(state.method, SparseMethod)
        """Whether an optimizer that does not fit may still come."""
        self._known: WeakSet[Optimizer] = WeakSet()
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

    def on_step(self, optimizer: Optimizer, stepped: set[int]) -> None:
        """Called after a step of any optimizer, with the ids of its parameters; may warn."""
        state = self._state()
        # A fused optimizer is called in a step that a scaler leaves out, too; its kernel looks at this.
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is not None and state is not None and state.last_step.skipped and found_inf.item():
            return
        self._stepped |= stepped
        if not self._checks or StepTracker.warned or state is None or not state.last_step.residual_squares:
            return  # with no residuals, nothing was held back
        if stepped.isdisjoint(map(id, self._parameters().values())):
            return  # another model's, such as the discriminator's
        classes = [base.__name__.lower() for base in type(optimizer).__mro__]
        adam = any(part in name for part in _ADAPTIVE for name in classes)
        twice = bool(state.method.momentum_correction) and any(
            group.get("momentum") for group in optimizer.param_groups
        )
        # One that comes for the second time: all that take turns, or wrap one another, have come.
        self._checks = not (adam or twice or optimizer in self._known)
        self._known.add(optimizer)
        if adam or twice:
            StepTracker.warned = True
            name, method = type(optimizer).__name__, str(state.method)
            text = (
                f"{name} steps with gradients that {method} exchanged, and trains far worse on them than on "
                "whole ones. Use linear(8) or linear(4), which send every element; or SGD, with momentum=0.9 "
                "in the compressor; or LocalSteps(model, optimizer, every=4, ...). See "
                "docs/how-to/own-script.md"
                if adam
                else f"{name} has momentum, and {method} has, too: it is applied twice. Set the optimizer's "
                "to 0. See docs/methods.md"
            )
            warnings.warn(text, SparseUnderAdam if adam else MomentumTwice, stacklevel=4)


_TRACKERS: WeakSet[StepTracker] = WeakSet()


@cache
def _register_hook() -> None:
    register_optimizer_step_post_hook(_on_step)  # one for all: torch iterates over hooks when it calls them


def _on_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for tracker in list(_TRACKERS):
        tracker.on_step(optimizer, stepped)
