"""What gradients hold of an earlier backward pass, which was exchanged already.

If gradients are not cleared, a backward pass adds to what an earlier one has left in them. Only what is new
may be scaled, compressed and kept. A hook of every parameter, which runs before its gradient changes, tells
when a pass begins; all gradients are then looked at. Nothing else tells: scripts clear gradients before the
forward pass, after it, or not at all, and make them None or zeros.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from weakref import ReferenceType, finalize, ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..errors import CompressionError


class Earlier:
    """Copies of what gradients held when a pass began, by parameter; only what was exchanged before it."""

    def __init__(
        self, parameters: Mapping[str, Tensor], fail: Callable[[CompressionError], CompressionError]
    ) -> None:
        """Starts to watch what is synchronized, by name; it ends when this object is no longer used.

        `fail` is called with the error that a gradient's layout causes.
        """
        self._parameters, self._fail = dict(parameters), fail
        self._kept: dict[str, Tensor] = {}
        self._exchanged = False
        """Whether a pass was exchanged, and no other has begun since."""
        self._task = -1
        for name, each in parameters.items():
            handle = _watch(each, partial(_accumulates, ref(self), name))
            finalize(self, handle.remove).atexit = False

    def __bool__(self) -> bool:
        """Whether this pass adds to one that was exchanged."""
        return bool(self._kept)

    def of(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Of some parameters, those that held anything: its copy, in the parameter's shape."""
        return {name: self._kept[name] for name in names if name in self._kept}

    def begin(self) -> None:
        """The first bucket is exchanged; perhaps no gradient of it has changed."""
        if self._exchanged:
            self._look()

    def end(self) -> None:
        """The last bucket is exchanged."""
        self._kept, self._exchanged = {}, True

    def accumulates(self, name: str, gradient: Tensor) -> None:
        """A gradient is going to be added to that of a parameter; raises CompressionError if it is sparse."""
        if gradient.layout != torch.strided:
            problem = CompressionError(f"the gradient of {name!r} is sparse: the hook takes only dense ones")
            raise self._fail(problem)
        task = torch._C._current_graph_task_id()
        if task != self._task:  # each call of backward() has its own
            self._task = task
            self._look()

    def _look(self) -> None:
        if self._exchanged:
            self._exchanged = False
            self._kept = {name: each.clone() for name, each in self._filled(self._parameters).items()}
        elif self._kept:  # passes without an exchange came between; perhaps gradients were cleared
            filled = self._filled(self._kept)
            self._kept = {name: each for name, each in self._kept.items() if name in filled}

    def _filled(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Gradients that are neither None nor zero everywhere."""
        found = {name: self._parameters[name].grad for name in names}
        gradients = {name: each for name, each in found.items() if each is not None and each.numel()}
        filled_in = nonzero(list(gradients.values()))
        return {
            name: each for (name, each), filled in zip(gradients.items(), filled_in, strict=True) if filled
        }


def _watch(parameter: Tensor, hook: "partial[None]") -> RemovableHandle:
    frozen = not parameter.requires_grad  # since DDP was made; it may be thawed
    parameter.requires_grad_(True)
    handle: RemovableHandle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(not frozen)
    return handle


def _accumulates(earlier: "ReferenceType[Earlier]", name: str, gradient: Tensor) -> None:
    found = earlier()
    if found is not None:
        found.accumulates(name, gradient)


def nonzero(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether each is not zero everywhere; NaN is not zero. A GPU is asked once."""
    if not tensors:
        return []
    reals = [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
    ends = [end.ne(0) for each in reals for end in torch.aminmax(each.detach())]
    found: list[bool] = torch.stack(ends).view(-1, 2).any(dim=1).tolist()
    return found
