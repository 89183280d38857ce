"""Where a model's own loader puts the tensors of a checkpoint: it runs once over tensors without values."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from ..patches.engine import Gather, on_all
from ..patches.format import PATTERNS, Row
from ..patches.parts import EnginePart, EngineRefused, EngineTensor
from ..patches.reload import Load, Reloader
from ..patches.store import Store, log
from ..patches.stream import complete
from ..patches.weights import BITS, digest_of, entries_of
from ..torch_internals import TorchDispatchMode, storage_id

Checkpoint = Callable[[], Iterable[tuple[str, Tensor]]]
"""Yields all tensors of a checkpoint, each time anew."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which views of checkpoint tensors are copied where; writes to no memory."""

    def __init__(self, whole: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {storage_id(tensor): name for name, tensor in whole.items()}
        self.parts: dict[str, list[EnginePart]] = {name: [] for name in whole}
        self._made = dict[int, Tensor]()
        """By storage: what the loader makes on its way."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handles an operation; see `TorchDispatchMode`."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].is_meta:
            if kwargs.get("dtype") in (None, args[0].dtype):  # to a device
                return args[0]
            kwargs = kwargs | {"device": "meta"}
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            target, source = args[:2]
            if (name := self._names.get(storage_id(source))) is None or storage_id(target) in self._made:
                raise EngineRefused("the model's loader computes what it copies")
            if source.numel():  # a rank may have none of a padded tensor
                self.parts[name].append(EnginePart.of(target, source))
            return target
        if args and func._schema.is_mutable and isinstance(args[0], Tensor) and not args[0].is_meta:
            if any(_overlap(part, args[0]) for parts in self.parts.values() for part in parts):
                raise EngineRefused("the model's loader changes what it has copied")
            return args[0]  # padding is filled
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and not result.is_meta:
            given = {storage_id(value) for value in args if isinstance(value, Tensor)}
            if (key := storage_id(result)) not in given:
                self._made[key] = result
        return result


def _overlap(part: EnginePart, view: Tensor) -> bool:
    """Whether a view of the engine's memory has elements of a part."""
    memory = part.memory
    if storage_id(memory) != storage_id(view) or not view.numel():
        return False
    if view.element_size() != memory.element_size():
        return True
    count = memory.untyped_storage().nbytes() // memory.element_size()
    has = torch.zeros(count, dtype=torch.bool, device="cpu")
    sizes, steps = [axis.size for axis in part.axes], [axis.target for axis in part.axes]
    has.as_strided(sizes, steps, memory.storage_offset()).fill_(True)
    return bool(has.as_strided(view.shape, view.stride(), view.storage_offset()).any())


def _recorded(load: Load, whole: dict[str, Tensor]) -> dict[str, list[EnginePart]]:
    """The parts of tensors, but of those that the loader computes with, or does not take as they are."""
    recorder = _Recorder(whole)
    with torch.no_grad(), recorder, suppress(Exception):
        load(iter(whole.items()))
        return recorder.parts
    names, half = list(whole), len(whole) // 2
    halves = [names[:half], names[half:]] if half else []
    return {n: p for some in halves for n, p in _recorded(load, {n: whole[n] for n in some}).items()}


def map_checkpoint(
    load: Load,
    checkpoint: Checkpoint,
    gather: Gather | None = None,
    reorder: Callable[[EnginePart], EnginePart | None] = lambda part: None,
    reloader: Reloader | None = None,
) -> dict[str, EngineTensor]:
    """Finds where the elements of a checkpoint lie in an engine that was loaded from it.

    All ranks call it together.

    Args:
        load: the model's own loader; it is called with tensors on the meta device.
        checkpoint: what the engine was loaded from.
        gather: returns what each rank has given it, on all of them; by default there is one rank.
        reorder: the same part in the order that a kernel has made of its memory, if one has.
        reloader: loads what has no such place, as of a loader that computes, and quantized tensors. It does
            so a few times here, to see that memory has the bits that it leaves.

    Raises:
        EngineRefused: some tensors have no place, and there is no reloader, or what it leaves are other bits;
            on every rank.
    """
    whole, parts = dict[str, Tensor](), dict[str, list[EnginePart]]()

    def record() -> tuple[set[str], set[str]]:
        whole.update(_without_values(checkpoint))
        parts.update(_recorded(load, whole))
        return {name for name, some in parts.items() if not some}, whole.keys() - parts.keys()

    recorded = on_all(gather, record)
    lost = set.union(*(names for _, names in recorded))
    unused = {name: _kind(whole[name]) for name in set.intersection(*(names for names, _ in recorded)) - lost}
    tensors = dict[str, EngineTensor]()
    lost.update(*on_all(gather, partial(_compared, tensors, parts, unused, checkpoint, reorder)))
    if lost:
        if reloader is None:
            raise EngineRefused(f"{_few(lost)} have other bits in the engine, or its loader computes them")
        free = {name for name in unused if not tensors[name].tied_to}
        _to_reload(tensors, lost, free, checkpoint, gather, reloader)
    copies = [t.copy for t in tensors.values() if t.copy is not None and not t.tied_to]
    if copies:
        why = "reloaded, of another dtype in the engine, or not used there"
        size = sum(copy.nbytes for copy in copies)
        log.warning("the host's memory has a copy of %d tensors, %s: %d bytes", len(copies), why, size)
    return tensors


def map_one_of(
    load: Load,
    checkpoint: Checkpoint,
    place: str,
    gather: Gather | None,
    reorder: Callable[[EnginePart], EnginePart | None],
    reloader: Reloader,
) -> dict[str, EngineTensor]:
    """Calls `map_checkpoint` with the engine's checkpoint, or one of a stream's three newest snapshots.

    Since the engine was loaded, the checkpoint in a stream's folder may have become a newer one.

    Raises:
        EngineRefused: memory has the bits of none; on every rank.
    """
    store, problems = Store(place), list[EngineRefused]()

    def listed() -> list[str]:
        snapshots = complete(store.files()).snapshots.values()
        return sorted((names[0] for names in snapshots if len(names) == 1), reverse=True)[:3]

    def snapshot(name: str) -> Iterable[tuple[str, Tensor]]:
        return sorted(load_tensors(store.read(name)).items())  # on all ranks alike

    checkpoints: list[Checkpoint] = [
        checkpoint,
        *(partial(snapshot, name) for name in on_all(gather, listed)[0]),
    ]
    for own_way, source in product((None, reloader), checkpoints):
        try:
            tensors = map_checkpoint(load, source, gather, reorder, own_way)
        except EngineRefused as problem:
            problems.append(problem)
            continue
        mapped = {storage_id(part.memory) for tensor in tensors.values() for part in tensor.parts}
        if others := set(reloader.others(mapped)):
            log.warning("%s of the engine are not in the checkpoint, and stay as they are", _few(others))
        return tensors
    raise problems[len(checkpoints)]


def _to_reload(
    tensors: dict[str, EngineTensor],
    lost: set[str],
    unused: set[str],
    checkpoint: Checkpoint,
    gather: Gather | None,
    reloader: Reloader,
) -> None:
    """Gives tensors to the reloader, with those that have to be loaded together with them.

    They are in one order on all ranks: loading may be collective, as for a scale that ranks have in common.
    `unused`: names of those that the loader may take where it is not only recorded.
    """
    names, whole = lost | unused, dict[str, Tensor]()

    def differing() -> set[str]:
        """Loads what memory has already; names of tensors, or "", of which there are other bits then."""
        reloader.load((name, tensor.clone()) for name, tensor in whole.items())
        if storages := set(reloader.differing()):
            reloader.undo()
        mapped = {name: t for name, t in tensors.items() if name not in names}
        found = ((n, storage_id(part.memory)) for n, t in mapped.items() for part in t.parts)
        return {n for n, storage in found if storage in storages} | ({""} if storages else set())

    while True:
        more = {name: t.detach().clone() for name, t in checkpoint() if name in names - whole.keys()}
        whole = dict(sorted((whole | more).items()))
        if not (others := set.union(*on_all(gather, differing))):
            break
        if others == {""}:
            raise EngineRefused(f"{_few(lost)} have other bits in the engine than its loader leaves there")
        names |= others - {""}
    reloader.keep()
    unheard = set.intersection(*on_all(gather, lambda: reloader.unheard(whole)))
    if unheard - unused:
        raise EngineRefused(f"{_few(unheard - unused)} change nothing when the engine's loader takes them")
    for name, tensor in tensors.items():
        if name in names - unheard:
            flat = whole[name].contiguous().view(-1)
            tensors[name] = replace(tensor, parts=(), copy=flat, reloaded=True)
    for name, tensor in tensors.items():
        if (owner := tensor.tied_to) in names:
            tensors[name] = replace(tensors[owner], row=tensor.row, tied_to=owner)
    log.warning("%s are reloaded whole by the engine's own loader at each update", _few(names - unheard))


def _few(names: set[str]) -> str:
    return f"{len(names)} tensors ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"


def _without_values(checkpoint: Checkpoint) -> dict[str, Tensor]:
    whole = dict[str, Tensor]()
    for name, tensor in checkpoint():
        if _dtype(tensor) not in PATTERNS or tensor.is_complex():
            raise EngineRefused(f"{name} is of {tensor.dtype}")
        whole[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return whole


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _kind(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.shape


def _is_constant(flat: Tensor) -> bool:
    """Whether all elements have the same bits."""
    bits = flat.view(BITS[flat.element_size()])
    return bool((bits == bits[:1]).all())


def _compared(
    tensors: dict[str, EngineTensor],
    parts: dict[str, list[EnginePart]],
    unused: Mapping[str, Any],
    checkpoint: Checkpoint,
    reorder: Callable[[EnginePart], EnginePart | None],
) -> set[str]:
    """Compares memory with the checkpoint, and fills in tensors; returns the names of those with other bits.

    `unused`: dtypes and shapes of those that no rank's loader has put anywhere.
    """
    bad, owners, contents = set[str](), dict[Any, str](), dict[str, Any]()
    kinds = set(unused.values())
    for name, tensor in checkpoint():
        row = Row((name,), _dtype(tensor), tuple(tensor.shape), 0, tensor.numel())
        flat, mine = tensor.detach().contiguous().view(-1), parts.get(name, [])
        for number, part in enumerate(mine):
            if not part.equals(flat):
                mine[number] = reorder(part) or part
                if not mine[number].equals(flat):
                    bad.add(name)
        converted = any(part.memory.dtype != tensor.dtype for part in mine)
        tensors[name] = EngineTensor(row, tuple(mine), flat.clone() if converted or name in unused else None)
        if _kind(tensor) in kinds and not _is_constant(flat):  # such as fresh norms, which are not tied
            contents[name] = _kind(tensor), digest_of(entries_of({"": tensor}), 1)
            if name not in unused:
                owners.setdefault(contents[name], name)
    for name in unused:
        if owner := owners.get(contents.get(name)):  # tied: the loader leaves the second name out
            tensors[name] = replace(tensors[owner], row=tensors[name].row, tied_to=owner)
    return bad
