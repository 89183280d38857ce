"""What one worker keeps between synchronizations (error feedback): residuals, velocities, thresholds."""

from collections.abc import Callable, Collection, Mapping
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..methods import CompressedMethod, Method
from ..names import fitting
from ..ops.interface import Ops, Readback
from ..thresholds.base import ALL, PolicyMemory
from .layout import MemoryOrder, ParameterSlice

_PARTS = ("residuals", "velocities", "memories")


class Feedback:
    """A worker's memory, by parameter name.

    Attributes:
        residuals: float32 [numel], what has not been sent yet; created at first use.
        velocities: float32 [numel], the momentum of gradients, if the method corrects it.
        memories: what the threshold policy remembers.
        shard_memories: likewise, by shard, where a method is applied to shards of parameters one by one.
        method: the method that the memory belongs to.
        sums: what it has not sent yet of the sums that it reduces for all; None where it reduces none.
        passes: exchanges of the same step before this one, each of which rounds by random numbers of its own.
        slices: where what is kept of each parameter lies in it, if it is not of whole parameters.
        lock: is held while a bucket is compressed: patterns compress sums in another thread.
        orders: how gradients lie whose parameters have a shape; residuals and velocities lie likewise. Others
            are saved as they are, [numel].
    """

    def __init__(self, method: Method) -> None:
        """Starts the memory of a method, empty."""
        self.method = method
        self.residuals: dict[str, Tensor] = {}
        self.velocities: dict[str, Tensor] = {}
        self.memories: dict[str, PolicyMemory] = {}
        self.shard_memories: dict[int, dict[str, PolicyMemory]] = {}
        self.sums: Feedback | None = None
        self.passes = 0
        self.slices: dict[str, ParameterSlice] = {}
        self.orders: dict[str, MemoryOrder] = {}
        self.lock = Lock()

    def reorder(self, orders: Mapping[str, MemoryOrder]) -> None:
        """Moves the elements of residuals and velocities to where those of gradients are from now on.

        What is kept of sums must be of parameters that lie as before.
        """
        for kept in (self.residuals, self.velocities):
            for name, tensor in kept.items():
                before, now = self.orders.get(name), orders.get(name)
                if before is not None and now is not None and before != now:
                    kept[name] = now.flat(before.shaped(tensor))
        self.orders = dict(orders)
        if self.sums is not None:
            self.sums.orders = self.orders

    def slice_of(self, tensors: dict[str, Tensor], piece: ParameterSlice, like: Tensor) -> Tensor:
        """What `tensors` keep for a slice of a parameter, float32 [elements]; a view, zeros at first."""
        if self.slices or piece.elements == piece.whole:
            return zeros_once(tensors, piece.name, like)
        zeros_once(tensors, piece.name, like.new_empty(()).expand(piece.whole))
        return tensors[piece.name][piece.start : piece.stop]

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors, of the parameters' shapes; most tensors are live ones, not copies."""
        return {
            "residuals": self._shaped(self.residuals),
            "velocities": self._shaped(self.velocities),
            "memories": {name: memory.plain() for name, memory in self.memories.items()},
            **(self._places() if self.slices else {}),
            **({"shard_memories": shards} if (shards := self._plain_shards()) else {}),
            **({} if self.sums is None else {"downlink": self.sums.state_dict()}),
        }

    def _places(self) -> dict[str, Any]:
        """Where slices were cut out of their parameters, and how these lay in memory."""
        strides = {name: list(self.orders[name].strides) for name in self.slices if name in self.orders}
        starts = {name: part.start for name, part in self.slices.items()}
        return {"starts": starts, **({"strides": strides} if strides else {})}

    def load_state_dict(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Restores copies of what `state_dict` returned; for arguments and errors see `restoring`."""
        self.restoring(state, like)()

    def restoring(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> Callable[[], None]:
        """Reads what `state_dict` returned, and perhaps more; what is returned restores copies of it.

        `like` has a tensor of every parameter, of its shape and on its device.

        Raises:
            ValueError: a part is missing, a tensor's parameter does not exist here or has another shape, or
                for slices, another memory format; a memory is not of this method; or the state is of another
                exchange pattern.
        """
        if (self.sums is None) == ("downlink" in state):
            raise ValueError("the state is of another exchange pattern")
        restore_sums = None if self.sums is None else self.sums.restoring(state["downlink"], like)
        missing = [part for part in _PARTS if part not in state]
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        if self.slices:
            self.require_strides(state)
            self._require_same_slices(state)
            like = {
                name: like[name].new_empty(()).expand(part.elements) for name, part in self.slices.items()
            }
        residuals, velocities = (
            {
                name: self.orders[name].flat(tensor) if name in self._shaped_names else tensor
                for name, tensor in fitting(state[part], like, what, torch.float32).items()
            }
            for part, what in (("residuals", "residual"), ("velocities", "velocity"))
        )
        memories = self._restored(state["memories"], like)
        shard_memories = {
            int(shard): self._restored(saved, like)
            for shard, saved in state.get("shard_memories", {}).items()
        }

        def restore() -> None:
            self.residuals, self.velocities = residuals, velocities
            self.memories, self.shard_memories = memories, shard_memories
            if restore_sums is not None:
                restore_sums()

        return restore

    def require_strides(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if a state is of slices of parameters that lay otherwise in memory."""
        for name, strides in state.get("strides", {}).items():
            if name in self.orders and list(self.orders[name].strides) != strides:
                raise ValueError(
                    f"the memory format of {name!r} is not that of the state, which has a part of what "
                    "was not sent of it: change the model's before it is loaded"
                )

    def _require_same_slices(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if a state is of other slices, as before parameters were frozen or thawed."""
        starts = state.get("starts", {})
        for name, tensor in state["residuals"].items():
            part = self.slices.get(name)
            if part is None or (starts.get(name, part.start), tensor.numel()) != (part.start, part.elements):
                raise ValueError(
                    f"the state has sums of another part of {name!r}, as where other parameters are trained: "
                    "load the states of all workers with reshard=True"
                )

    def residual_squares(self, ops: Ops) -> float:
        """Sum of squares of all that has not been sent."""
        readback = Readback(ops)
        residuals = [residual for kept in self._kept for residual in kept.residuals.values()]
        squares = ops.squares(residuals, readback)
        readback.fetch()
        return float(sum(squares().tolist()))

    def begin_pass(self, *, begins_step: bool) -> None:
        """Begins an exchange, perhaps a further one of the same step."""
        for kept in self._kept:
            kept.passes = 0 if begins_step else kept.passes + 1

    @property
    def keeps_residuals(self) -> bool:
        """Whether anything is kept for later."""
        return any(kept.residuals for kept in self._kept)

    @property
    def _kept(self) -> "list[Feedback]":
        return [self] if self.sums is None else [self, self.sums]

    def _plain_shards(self) -> dict[str, Any]:
        shards = self.shard_memories.items()
        return {
            str(n): {name: m.plain() for name, m in memories.items()} for n, memories in shards if memories
        }

    def _restored(
        self, saved: Mapping[str, Mapping[str, Any]], like: Mapping[str, Tensor]
    ) -> dict[str, PolicyMemory]:
        """Memories by parameter, from their plain numbers; raises ValueError where they do not fit."""
        memories: dict[str, PolicyMemory] = {}
        method = self.method if isinstance(self.method, CompressedMethod) else None
        for name, memory in saved.items():
            if name not in like and name != ALL:
                raise ValueError(f"a memory of {name!r}, which is not a parameter of this model")
            try:
                kind = PolicyMemory if method is None else method.memory_of(name)
                memories[name] = kind.from_plain(memory)
            except ValueError as problem:
                raise ValueError(
                    f"a memory of {name!r} {problem}: it belongs to another method or version"
                ) from None
        return memories

    def _shaped(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self.orders[name].shaped(flat) if name in self._shaped_names else flat
            for name, flat in tensors.items()
        }

    @property
    def _shaped_names(self) -> Collection[str]:
        """The parameters whose residuals are saved in their shape; slices have none."""
        return () if self.slices else self.orders.keys()


def zeros_once(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """The tensor of a name, float32 [numel]; zeros where there is none yet."""
    if name not in tensors:
        tensors[name] = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    return tensors[name]
