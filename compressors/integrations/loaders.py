"""Where a model's own loader puts the tensors of a checkpoint: it runs once over tensors without values."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..patches.engine import Gather, on_all
from ..patches.format import PATTERNS, Row
from ..patches.parts import EnginePart, EngineRefused, EngineTensor
from ..patches.store import log
from ..patches.weights import digest_of, entries_of
from ..torch_internals import TorchDispatchMode, storage_id

Checkpoint = Callable[[], Iterable[tuple[str, Tensor]]]
"""Yields all tensors of a checkpoint, each time anew."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which views of checkpoint tensors are copied where, and copies nothing."""

    def __init__(self, whole: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {storage_id(tensor): name for name, tensor in whole.items()}
        self.parts: dict[str, list[EnginePart]] = {name: [] for name in whole}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handles an operation; see `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].is_meta:
            if kwargs.get("dtype") in (None, args[0].dtype):  # to a device
                return args[0]
            kwargs = kwargs | {"device": "meta"}
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            target, source = args[:2]
            if (name := self._names.get(storage_id(source))) is None:
                raise EngineRefused("the model's loader computes what it copies")
            if source.numel():  # a rank may have none of a padded tensor
                self.parts[name].append(EnginePart.of(target, source))
            return target
        return func(*args, **kwargs)


def map_checkpoint(
    load: Callable[[Iterable[tuple[str, Tensor]]], Any],
    checkpoint: Checkpoint,
    gather: Gather | None = None,
    reorder: Callable[[EnginePart], EnginePart | None] = lambda part: None,
) -> dict[str, EngineTensor]:
    """Finds where the elements of a checkpoint lie in an engine that was loaded from it.

    All ranks call it together.

    Args:
        load: the model's own loader; it is called once, with tensors on the meta device.
        checkpoint: what the engine was loaded from.
        gather: returns what each rank has given it, on all of them; by default there is one rank.
        reorder: the same part in the order that a kernel has made of its memory, if one has.

    Raises:
        EngineRefused: the loader does more than copy views, or the engine's memory does not have the
            checkpoint's bits where it should, as after quantizing; on every rank.
    """
    whole, parts = dict[str, Tensor](), dict[str, list[EnginePart]]()

    def record() -> set[str]:
        whole.update(_without_values(checkpoint))
        with torch.no_grad(), _Recorder(whole) as recorder:
            load(iter(whole.items()))
        parts.update(recorder.parts)
        return {name for name in whole if not parts[name]}

    unused = set.intersection(*on_all(gather, record))
    kinds = {_kind(whole[name]) for name in unused}
    tensors = dict[str, EngineTensor]()
    on_all(gather, lambda: tensors.update(_compared(parts, unused, kinds, checkpoint, reorder)))
    return tensors


def _without_values(checkpoint: Checkpoint) -> dict[str, Tensor]:
    whole = dict[str, Tensor]()
    for name, tensor in checkpoint():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in PATTERNS or tensor.is_complex():
            raise EngineRefused(f"{name} is of {tensor.dtype}")
        whole[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return whole


def _kind(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.shape


def _compared(
    parts: dict[str, list[EnginePart]],
    unused: set[str],
    kinds: set[Any],
    checkpoint: Checkpoint,
    reorder: Callable[[EnginePart], EnginePart | None],
) -> dict[str, EngineTensor]:
    """The tensors, whose bits are compared with memory.

    `unused`: names of those that no rank's loader has put anywhere; `kinds`: their dtypes and shapes.
    """
    tensors, bad = dict[str, EngineTensor](), list[str]()
    owners, contents = dict[Any, str](), dict[str, Any]()
    for name, tensor in checkpoint():
        row = Row((name,), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), 0, tensor.numel())
        flat, mine = tensor.detach().contiguous().view(-1), parts[name]
        for number, part in enumerate(mine):
            if not part.equals(flat):
                mine[number] = reorder(part) or part
                bad += [name] * (not mine[number].equals(flat))
        converted = any(part.memory.dtype != tensor.dtype for part in mine)
        tensors[name] = EngineTensor(row, tuple(mine), flat.clone() if converted or name in unused else None)
        if _kind(tensor) in kinds:
            contents[name] = _kind(tensor), digest_of(entries_of({"": tensor}), 1)
            if name not in unused:
                owners.setdefault(contents[name], name)
    if bad:
        why = "kernels have them in an order of their own, or they were quantized when they were loaded"
        raise EngineRefused(f"{len(bad)} tensors have other bits in the engine: {', '.join(bad[:3])}; {why}")
    for name in unused:
        if owner := owners.get(contents[name]):  # tied: the loader leaves the second name out
            tensors[name] = replace(tensors[owner], row=tensors[name].row, tied_to=owner)
    copies = [t.copy for t in tensors.values() if t.copy is not None and not t.tied_to]
    if copies:
        why = "of which the engine has another dtype, or that it does not use"
        size = sum(copy.nbytes for copy in copies)
        log.warning("the host's memory has a copy of %d tensors, %s: %d bytes", len(copies), why, size)
    return tensors
