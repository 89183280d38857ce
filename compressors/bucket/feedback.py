"""What one worker keeps between synchronizations (error feedback): residuals, velocities, thresholds."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..methods import CompressedMethod, Method
from ..methods.base import Context
from ..ops.array import Array
from ..ops.interface import Ops
from ..ops.parts import Part
from ..ops.readback import Readback
from ..thresholds.base import ALL, PolicyMemory
from .compressor import Compressor, Incoming, Outgoing, compressor_for
from .layout import Layout, MemoryOrder, ParameterSlice

_NO_GRADIENT = torch.empty(0)
_PARTS = ("residuals", "velocities", "memories")


class Feedback:
    """A worker's memory, by parameter name.

    Attributes:
        residuals: float32 [numel], what has not been sent yet; created at first use.
        velocities: float32 [numel], the momentum of gradients, if the method corrects it.
        memories: what the threshold policy remembers.
        shard_memories: likewise, by shard, where a method is applied to shards of parameters one by one.
        method: the method that the memory belongs to.
        slices: where what is kept of each parameter lies in it, if it is not of whole parameters.
        lock: is held while a bucket is compressed: patterns compress sums in another thread.
        orders: how gradients lie whose parameters have a shape; residuals and velocities lie likewise. Others
            are saved as they are, [numel].
    """

    def __init__(self, config: Method) -> None:
        """Starts the memory of a method, empty."""
        self.method = config
        self.residuals: dict[str, Tensor] = {}
        self.velocities: dict[str, Tensor] = {}
        self.memories: dict[str, PolicyMemory] = {}
        self.shard_memories: dict[int, dict[str, PolicyMemory]] = {}
        self.slices: dict[str, ParameterSlice] = {}
        self.orders: dict[str, MemoryOrder] = {}
        self.lock = Lock()

    def reorder(self, orders: Mapping[str, MemoryOrder]) -> None:
        """Moves the elements of residuals and velocities to where those of gradients are from now on."""
        for kept in (self.residuals, self.velocities):
            for name, tensor in kept.items():
                before, now = self.orders.get(name), orders.get(name)
                if before is not None and now is not None and before != now:
                    kept[name] = now.flat(before.shaped(tensor))
        self.orders = dict(orders)

    def parts(
        self,
        gradients: Sequence[tuple[str, Tensor]],
        layout: Layout,
        compressor: Compressor,
        slices: Sequence[ParameterSlice] | None = None,
    ) -> list[Part]:
        """Gradients by name, contiguous [numel], together with their memory of the compressor's method.

        `slices` says which elements of the parameters they are, by default all.
        """
        whole = set(layout.whole.ordinals)
        parts = []
        for ordinal, (name, gradient) in enumerate(gradients):
            part_of = None if slices is None or self.slices else slices[ordinal]
            part = Part(name, gradient)
            if compressor.keeps_residuals and ordinal not in whole:
                part.residual = _slice_of(self.residuals, name, gradient, part_of)
            if compressor.corrects_momentum and ordinal not in whole:
                part.velocity = _slice_of(self.velocities, name, gradient, part_of)
            parts.append(part)
        return parts

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors, of the parameters' shapes; most tensors are live ones, not copies."""
        return {
            "residuals": self._shaped(self.residuals),
            "velocities": self._shaped(self.velocities),
            "memories": {name: memory.plain() for name, memory in self.memories.items()},
            **({"starts": {name: part.start for name, part in self.slices.items()}} if self.slices else {}),
            **({"shard_memories": shards} if (shards := self._plain_shards()) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Restores copies of what `state_dict` returned; the state may hold more than that.

        `like` has a tensor of every parameter, of its shape and on its device.

        Raises:
            ValueError: a part is missing, a tensor's parameter does not exist here or has another shape, a
                memory is not of this method. Nothing is restored then.
        """
        missing = [part for part in _PARTS if part not in state]
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        if self.slices:
            like = {
                name: like[name].new_empty(()).expand(part.stop - part.start)
                for name, part in self.slices.items()
            }
        residuals, velocities = (
            {
                name: self.orders[name].flat(tensor) if name in self.orders else tensor
                for name, tensor in fitting(state[part], like, what, torch.float32).items()
            }
            for part, what in (("residuals", "residual"), ("velocities", "velocity"))
        )
        memories = self._restored(state["memories"], like)
        shard_memories = {
            int(shard): self._restored(saved, like)
            for shard, saved in state.get("shard_memories", {}).items()
        }
        self.residuals, self.velocities = residuals, velocities
        self.memories, self.shard_memories = memories, shard_memories

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
        orders = self.orders
        return {name: orders[name].shaped(flat) if name in orders else flat for name, flat in tensors.items()}


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
        whole: Sequence[int] = (),
        feedback: Feedback | None = None,
        slices: Sequence[ParameterSlice] | None = None,
        shard: int | None = None,
        readback: Readback | None = None,
    ) -> None:
        """Prepares for tensors as in `like`, contiguous [numel] and on one device; names are of parameters.

        `slices` has the elements of its parameter that each has, by default all; `shard` is the number under
        which thresholds are remembered, where parameters are cut into shards. The other arguments are those
        of `exchange.patterns.base.Setting`.
        """
        device = like[0].device if like else torch.device("cpu")
        self.compressor = compressor_for(config, device, threads)
        self.feedback = Feedback(config) if feedback is None else feedback
        self._names, self._like = list(names), dict(zip(names, like, strict=True))
        self._slices, self._shard = slices, shard
        sizes, fixed = [tensor.numel() for tensor in like], readback is not None
        self.layout = self.compressor.layout(self._names, sizes, whole, fixed=fixed)
        self._context = Context(hold_back_zeros=hold_back_zeros, readback=readback)
        self._taken: list[tuple[Outgoing, list[Part], list[list[Tensor]] | None]] = []
        """What was taken out of residuals since the last `commit`; with copies of what they were before."""

    def compress(
        self,
        gradients: Sequence[Tensor],
        iteration: int,
        rms: Mapping[str, float] | None = None,
        *,
        copies: bool = False,
        terms: Sequence[Tensor] | None = None,
    ) -> Outgoing:
        """What the worker sends of gradients [numel], in the order of the names; see `Compressor.compress`.

        Args:
            gradients: no longer needed when this returns.
            iteration: synchronizations before this one.
            rms: by name, root mean squares of the loss's gradients where `gradients` are something else.
            copies: whether `put_back` restores copies of residuals and velocities: a step that overflows has
                gradients that are far off.
            terms: the worker's part of gradients that are sums; it is added to what `put_back` restores.
        """
        self._context.iteration = iteration
        feedback, shard = self.feedback, self._shard
        self._context.memories = (
            feedback.memories if shard is None else feedback.shard_memories.setdefault(shard, {})
        )
        named = list(zip(self._names, gradients, strict=True))
        parts = feedback.parts(named, self.layout, self.compressor, self._slices)
        if rms is not None:
            parts = [replace(part, rms=rms[part.name]) for part in parts]
        copies = copies or terms is not None
        before = [[memory.clone() for memory in _memory_of(part)] for part in parts] if copies else None
        for kept, gradient in zip(before or (), terms or (), strict=False):
            for residual in kept[:1]:
                _gain(residual, gradient)
        with feedback.lock:
            outgoing = self.compressor.compress(parts, self.layout, self._context)
        if self.compressor.config.nonfinite == "skip":
            # Gradients are large, and one process may simulate many workers, so none is kept.
            parts = [Part(part.name, _NO_GRADIENT, part.residual, part.velocity) for part in parts]
            self._taken.append((outgoing, parts, before))
        return outgoing

    def keep(self, gradients: Sequence[Tensor]) -> None:
        """Adds gradients of which nothing is sent to the residuals."""
        named = list(zip(self._names, gradients, strict=True))
        for part in self.feedback.parts(named, self.layout, self.compressor, self._slices):
            if part.residual is not None:
                _gain(part.residual, part.gradient)

    def put_back(self, stepped: Set[str] = frozenset()) -> None:
        """Undoes what `compress` took out of the residuals since the last `commit`.

        This is only known with `nonfinite: skip`. What was sent of the parameters in `stepped` stays sent.
        """
        for outgoing, parts, before in reversed(self._taken):
            if before is None:
                unstepped = [replace(part, residual=None) if part.name in stepped else part for part in parts]
                self.compressor.put_back(outgoing, unstepped)
                continue
            for part, copies in zip(parts, before, strict=True):
                if part.name not in stepped:
                    for memory, copy in zip(_memory_of(part), copies, strict=True):
                        memory.copy_(copy)
        self._taken = []

    def commit(self) -> None:
        """Confirms that what was taken out has arrived, so there is nothing to put back."""
        self._taken = []

    @property
    def nbytes(self) -> int:
        """Bytes of a message of fixed size; 0 where messages have others."""
        return 0 if self.layout.fixed is None else self.layout.fixed.nbytes

    def read(self, payload: Array) -> Incoming:
        """What another worker sent for the same parameters; raises CorruptMessage."""
        return self.compressor.read(payload, self.layout)

    def state_dict(self) -> dict[str, Any]:
        """The memory; see `Feedback.state_dict`."""
        return self.feedback.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises ValueError as `Feedback.load_state_dict` does."""
        self.feedback.load_state_dict(state, self._like)


def _gain(residual: Tensor, gradient: Tensor) -> None:
    """Adds a gradient, except where the sum is not finite."""
    total = residual + gradient
    torch.where(torch.isfinite(total), total, residual, out=residual)


def residual_squares(feedbacks: Sequence[Feedback], ops: Ops) -> float:
    """Sum of squares of all residuals."""
    readback = Readback(ops)
    residuals = [residual for feedback in feedbacks for residual in feedback.residuals.values()]
    squares = ops.squares(residuals, readback)
    readback.fetch()
    return float(sum(squares().tolist()))


def _memory_of(part: Part) -> list[Tensor]:
    """Its residual and velocity, if it has them."""
    return [memory for memory in (part.residual, part.velocity) if memory is not None]


def _slice_of(tensors: dict[str, Tensor], name: str, gradient: Tensor, part: ParameterSlice | None) -> Tensor:
    """What is kept for a gradient [numel] of a whole parameter, or of a slice of it; a view."""
    if part is None:
        return zeros_once(tensors, name, gradient)
    if name not in tensors:
        zeros_once(tensors, name, gradient.new_empty(()).expand(part.whole))
    return tensors[name][part.start : part.stop]


def fitting(
    tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Copies of saved tensors, of the shape, dtype and device of those in `like`; raises ValueError."""
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        expected = like.get(name)
        if expected is None:
            raise ValueError(f"a {what} for {name!r}, of which this model keeps none")
        needed = dtype or expected.dtype
        if tensor.shape != expected.shape or tensor.dtype != needed:
            raise ValueError(
                f"the {what} of {name!r} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"this model needs {needed} {tuple(expected.shape)}"
            )
        copies[name] = tensor.to(expected.device, copy=True)
    return copies


def zeros_once(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """The tensor of a name, float32 [numel]; zeros where there is none yet."""
    if name not in tensors:
        tensors[name] = torch.zeros(like.numel(), dtype=torch.float32, device=like.device)
    return tensors[name]


def first_memories(saved: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Memories of a parameter's first slice, by name, from those of all slices in order."""
    return {name: memory for memories in reversed(list(saved)) for name, memory in memories.items()}


def only_of(memories: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The memories of some parameters, and that which all have between them."""
    return {name: memory for name, memory in memories.items() if name in names or name == ALL}


def memories_of(state: Mapping[str, Any], shards: Sequence[Collection[str]]) -> dict[str, Any]:
    """The memories of a state for other shards of its parameters, by the names in each of these."""
    saved = first_memories([state["memories"], *state.get("shard_memories", {}).values()])
    if len(shards) == 1:
        return {"memories": saved, "shard_memories": {}}
    cut = {str(number): only_of(saved, names) for number, names in enumerate(shards)}
    return {"memories": {}, "shard_memories": cut}


def recut(states: Sequence[Mapping[str, Any]], slices: Mapping[str, ParameterSlice]) -> dict[str, Any]:
    """The state of other slices of the same parameters, from those of all slices in order."""
    state: dict[str, Any] = {
        "memories": only_of(first_memories(former["memories"] for former in states), slices)
    }
    for kind in ("residuals", "velocities"):
        wholes: dict[str, Tensor] = {}
        for former in states:
            for name, kept in former[kind].items():
                if name in slices:
                    whole = wholes.setdefault(name, torch.zeros(slices[name].whole))
                    start = former["starts"][name]
                    whole[start : start + kept.numel()] = kept
        state[kind] = {name: whole[slices[name].start : slices[name].stop] for name, whole in wholes.items()}
    return state
