"""Gradients of earlier backward passes that are still in `.grad`.

If gradients are not cleared, a backward pass adds to what an earlier one has left in them. Only what is new
may be scaled, compressed and kept. A hook of every parameter, which runs before its gradient changes, tells
when a pass begins; all gradients are then looked at. Nothing else tells: scripts clear gradients before the
forward pass, after it, or not at all, and make them None or zeros.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from weakref import ReferenceType, finalize, ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..errors import CompressionError
from ..torch_internals import backward_id


class AccumulatedGradients:
    """Copies of the gradients that earlier passes have exchanged, taken when a pass begins."""

    def __init__(
        self, parameters: Mapping[str, Tensor], fail: Callable[[CompressionError], CompressionError]
    ) -> None:
        """Registers a hook on each parameter; hooks are removed when this object is no longer used.

        Args:
            parameters: what is synchronized, by name.
            fail: called with the error that a gradient's layout causes.
        """
        self._parameters, self._fail = dict(parameters), fail
        self._copies: dict[str, Tensor] = {}
        self._exchanged = False
        """Whether a pass was exchanged, and no other has begun since."""
        self._graph_task = -1
        for name, parameter in parameters.items():
            handle = _register_hook(parameter, partial(_on_gradient, ref(self), name))
            finalize(self, handle.remove).atexit = False

    @property
    def names(self) -> set[str]:
        """The parameters whose gradients hold what was exchanged before this pass."""
        return set(self._copies)

    def copies(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Copies what was exchanged before this pass, in the parameter's shape."""
        return {name: self._copies[name] for name in names if name in self._copies}

    def begin(self) -> None:
        """Begins an exchanged pass, whether or not a gradient has changed in it."""
        if self._exchanged:
            self._copy()

    def end(self) -> None:
        """Ends an exchanged pass."""
        self._copies, self._exchanged = {}, True

    def on_gradient(self, name: str, gradient: Tensor) -> None:
        """Runs before a gradient is accumulated; raises CompressionError if it is sparse."""
        if gradient.layout != torch.strided:
            problem = CompressionError(f"the gradient of {name!r} is sparse: the hook takes only dense ones")
            raise self._fail(problem)
        graph_task = backward_id()
        if graph_task != self._graph_task:  # each call of backward() has its own
            self._graph_task = graph_task
            self._copy()

    def _copy(self) -> None:
        if self._exchanged:
            self._exchanged = False
            self._copies = {name: tensor.clone() for name, tensor in self._nonzero(self._parameters).items()}
        elif self._copies:  # passes without an exchange came between; perhaps gradients were cleared
            nonzero = self._nonzero(self._copies)
            self._copies = {name: copy for name, copy in self._copies.items() if name in nonzero}

    def _nonzero(self, names: Iterable[str]) -> dict[str, Tensor]:
        return nonzero_gradients({name: self._parameters[name].grad for name in names})


def nonzero_gradients(gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Those that are neither None nor zero everywhere. NaN is not zero. A GPU is asked once."""
    given = {name: tensor for name, tensor in gradients.items() if tensor is not None and tensor.numel()}
    if not given:
        return {}
    reals = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in given.values()]
    ends = [end.ne(0) for real in reals for end in torch.aminmax(real.detach())]
    nonzero: list[bool] = torch.stack(ends).view(-1, 2).any(dim=1).tolist()
    return {name: tensor for (name, tensor), keeps in zip(given.items(), nonzero, strict=True) if keeps}


def _register_hook(parameter: Tensor, hook: "partial[None]") -> RemovableHandle:
    frozen = not parameter.requires_grad  # since DDP was made; it may be thawed
    parameter.requires_grad_(True)
    handle: RemovableHandle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(not frozen)
    return handle


def _on_gradient(accumulated: "ReferenceType[AccumulatedGradients]", name: str, gradient: Tensor) -> None:
    gradients = accumulated()
    if gradients is not None:
        gradients.on_gradient(name, gradient)
