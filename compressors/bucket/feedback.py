"""What one worker keeps between synchronizations (error feedback): residuals, velocities, thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..method.methods import CompressedMethod, Method
from ..ops.array import Bytes
from ..ops.readback import Readback
from ..rules.base import Context, rule_of
from ..tau.base import ALL, Memory
from .compressor import Compressor, Incoming, Outgoing, compressor_for
from .layout import Layout, MemoryOrder, Part

_NO_GRADIENT = torch.empty(0)
_PARTS = ("residuals", "velocities", "memories")


class Feedback:
    """A worker's memory, by parameter name.

    Attributes:
        residuals: float32 [numel], what has not been sent yet; created at first use.
        velocities: float32 [numel], the momentum of gradients, if the method corrects it.
        memories: what the threshold policy remembers.
        method: the method that the memory belongs to; `aim_at` changes it.
        orders: how gradients lie whose parameters have a shape; residuals and velocities lie likewise. Others
            are saved as they are, [numel].
    """

    def __init__(self, config: Method) -> None:
        """Starts the memory of a method, empty."""
        self._given = self.method = config
        self.residuals: dict[str, Tensor] = {}
        self.velocities: dict[str, Tensor] = {}
        self.memories: dict[str, Memory] = {}
        self.orders: dict[str, MemoryOrder] = {}

    def reorder(self, orders: Mapping[str, MemoryOrder]) -> None:
        """Moves the elements of residuals and velocities to where those of gradients are from now on."""
        for kept in (self.residuals, self.velocities):
            for name, tensor in kept.items():
                before, now = self.orders.get(name), orders.get(name)
                if before is not None and now is not None and before != now:
                    kept[name] = now.flat(before.shaped(tensor))
        self.orders = dict(orders)

    def parts(
        self, gradients: Sequence[tuple[str, Tensor]], layout: Layout, compressor: Compressor
    ) -> list[Part]:
        """Gradients by name, contiguous [numel], together with their memory of the compressor's method."""
        whole = set(layout.whole.ordinals)
        parts = []
        for ordinal, (name, gradient) in enumerate(gradients):
            part = Part(name, gradient)
            if compressor.keeps_residuals and ordinal not in whole:
                part.residual = zeros_once(self.residuals, name, gradient)
            if compressor.corrects_momentum and ordinal not in whole:
                part.velocity = zeros_once(self.velocities, name, gradient)
            parts.append(part)
        return parts

    def aim_at(self, share: float) -> float:
        """Changes the method's density, and returns the one that is used now; see `WorkerState.aim_at`."""
        if not 0 < share <= 1:
            raise ValueError(f"share = {share}: must be above 0 and at most 1")
        before, method = self.method.aim, self.method.aimed_at(share)
        assert before is not None
        assert method.aim is not None
        if method != self.method:
            assert isinstance(method, CompressedMethod)  # others have no aim
            rule_of(method).turn(before, self.memories)
            self.method = method
        return method.aim

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors, of the parameters' shapes; most tensors are live ones, not copies."""
        return {
            "residuals": self._shaped(self.residuals),
            "velocities": self._shaped(self.velocities),
            "memories": {name: memory.plain() for name, memory in self.memories.items()},
            **({} if self.method is self._given else {"aim": self.method.aim}),
        }

    def load_state_dict(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Restores copies of what `state_dict` returned; the state may hold more than that.

        `like` has a tensor of every parameter, of its shape and on its device.

        Raises:
            ValueError: a part is missing, a tensor's parameter does not exist here or has another shape, a
                memory is not of this method, or the method has no target density. Nothing is restored then.
        """
        aim = state.get("aim")
        method = self._given if aim is None else self._given.aimed_at(float(aim))
        missing = [part for part in _PARTS if part not in state]
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        residuals = self._fitting(state["residuals"], like, "residual")
        velocities = self._fitting(state["velocities"], like, "velocity")
        memories: dict[str, Memory] = {}
        rule = rule_of(self._given) if isinstance(self._given, CompressedMethod) else None
        for name, memory in state["memories"].items():
            if name not in like and name != ALL:
                raise ValueError(f"a memory of {name!r}, which is not a parameter of this model")
            try:
                kind = Memory if rule is None else rule.memory_of(name)
                memories[name] = kind.from_plain(memory)
            except ValueError as problem:
                raise ValueError(
                    f"a memory of {name!r} {problem}: it belongs to another method or version"
                ) from None
        self.residuals, self.velocities, self.memories = residuals, velocities, memories
        self.method = method

    def _shaped(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        orders = self.orders
        return {name: orders[name].shaped(each) if name in orders else each for name, each in tensors.items()}

    def _fitting(
        self, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str
    ) -> dict[str, Tensor]:
        """Copies of one tensor per parameter, each on its parameter's device and in its gradient's order."""
        fitting: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            parameter = like.get(name)
            if parameter is None:
                raise ValueError(f"a {what} for {name!r}, which is not a parameter of this model")
            if tensor.shape != parameter.shape or tensor.dtype != torch.float32:
                raise ValueError(
                    f"the {what} of {name!r} is {tensor.dtype} {tuple(tensor.shape)}; "
                    f"this model needs float32 {tuple(parameter.shape)}"
                )
            order = self.orders.get(name)
            there = tensor.to(parameter.device, copy=True)
            fitting[name] = there if order is None else order.flat(there)
        return fitting


class FeedbackCompressor:
    """Applies a method repeatedly to the same parameters, or pieces of them, of one worker."""

    def __init__(
        self,
        config: CompressedMethod,
        names: Sequence[str],
        like: Sequence[Tensor],
        *,
        threads: int,
        hold_back_zeros: bool = False,
    ) -> None:
        """Prepares for a fixed list of tensors.

        Args:
            config: the method.
            names: of the parameters; a name occurs once.
            like: a contiguous tensor [numel] for each, of those to come; all on one device.
            threads: for a pass; no result depends on their number.
            hold_back_zeros: send nothing for a tensor that is zero everywhere.
        """
        device = like[0].device if like else torch.device("cpu")
        self.compressor = compressor_for(config, device, threads)
        self.feedback = Feedback(config)
        self._names, self._like = list(names), dict(zip(names, like, strict=True))
        self.layout = self.compressor.layout(self._names, [each.numel() for each in like])
        self._context = Context(hold_back_zeros=hold_back_zeros)
        self._kept: list[Part] = []
        self._taken: Outgoing | None = None

    def compress(
        self, gradients: Sequence[Tensor], iteration: int, rms: Mapping[str, float] | None = None
    ) -> Outgoing:
        """What the worker sends of gradients [numel], in the order of the names; see `Compressor.compress`.

        Args:
            gradients: no longer needed when this returns.
            iteration: synchronizations before this one.
            rms: by name, root mean squares of the loss's gradients where `gradients` are something else.
        """
        self._context.iteration = iteration
        self._context.memories = self.feedback.memories
        self.compressor = self.compressor.of(self.feedback.method)
        named = list(zip(self._names, gradients, strict=True))
        parts = self.feedback.parts(named, self.layout, self.compressor)
        if rms is not None:
            parts = [replace(part, rms=rms[part.name]) for part in parts]
        outgoing = self.compressor.compress(parts, self.layout, self._context)
        # Gradients are large, and one process may simulate many workers, so none is kept.
        self._kept = [Part(part.name, _NO_GRADIENT, part.residual, part.velocity) for part in parts]
        self._taken = outgoing if self.compressor.config.nonfinite == "skip" else None
        return outgoing

    def put_back(self) -> None:
        """Undoes what `compress` took out of the residuals since the last `commit`, if it ran.

        This is only known with `nonfinite: skip`.
        """
        if self._taken is not None:
            self.compressor.put_back(self._taken, self._kept)
        self._taken = None

    def commit(self) -> None:
        """Confirms that what the last `compress` took out has arrived, so there is nothing to put back."""
        self._taken = None

    def residual_squares(self) -> float:
        """Sum of squares of all residuals."""
        ops = self.compressor.ops
        readback = Readback(ops)
        found = [ops.squares(residual, readback) for residual in self.feedback.residuals.values()]
        readback.fetch()
        return sum(each() for each in found)

    def read(self, payload: Bytes) -> Incoming:
        """What another worker sent for the same parameters; raises CorruptMessage."""
        return self.compressor.read(payload, self.layout)

    def state_dict(self) -> dict[str, Any]:
        """The memory; see `Feedback.state_dict`."""
        return self.feedback.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises ValueError as `Feedback.load_state_dict` does."""
        self.feedback.load_state_dict(state, self._like)


def zeros_once(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """The tensor of a name, float32 [numel]; zeros where there is none yet."""
    found = tensors.get(name)
    if found is None:
        found = tensors[name] = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    return found
