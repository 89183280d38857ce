"""Whole tensors that a model's own loader puts in memory: quantized ones, and those that it computes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_internals import TorchDispatchMode, storage_id
from .weights import digest_of, entries_of

Load = Callable[[Iterable[tuple[str, Tensor]]], Any]
"""Puts tensors of a checkpoint in a running model, and processes them as when the model was loaded."""


class _Changes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what a model had: bits before they are written to, and the attributes of modules."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        tensors = [*model.parameters(), *model.buffers()]
        self._known = {storage_id(tensor) for tensor in tensors if not tensor.is_meta}
        self._memory = [(tensor, tensor.data) for tensor in tensors]
        self._of_tensors = [(tensor.__dict__, dict(tensor.__dict__)) for tensor in tensors]
        self._of_modules = [(part, dict(part)) for module in model.modules() for part in _attributes(module)]
        self.bits = dict[int, tuple[Tensor, Tensor]]()
        """By storage: its bytes, and a copy of what they were, in the host's memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handles an operation; see `TorchDispatchMode`."""
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[index] if index < len(args) else kwargs.get(argument.name)
                for tensor in given if isinstance(given, list | tuple) else [given]:
                    if isinstance(tensor, Tensor) and not tensor.is_meta:
                        self._keep(tensor)
        return func(*args, **kwargs)

    def _keep(self, tensor: Tensor) -> None:
        if (key := storage_id(tensor)) in self._known and key not in self.bits:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self.bits[key] = memory, memory.to("cpu", copy=True)

    def restore_tensors_attributes(self) -> None:
        for now, before in self._of_tensors:
            now.clear()
            now.update(before)

    def undo(self) -> None:
        for memory, before in self.bits.values():
            memory.copy_(before)
        for tensor, data in self._memory:
            tensor.data = data
        for now, attributes in self._of_modules:
            now.clear()
            now.update(attributes)
        self.restore_tensors_attributes()


def _attributes(module: nn.Module) -> Iterator[dict[str, Any]]:
    yield from (module.__dict__, module._parameters, module._buffers)
    if (method := getattr(module, "quant_method", None)) is not None:
        yield method.__dict__


class Reloader:
    """Reloads tensors by the model's own loader, all of them or none."""

    def __init__(self, model: nn.Module, load: Load) -> None:
        """Names a model, and what loads into it."""
        self._model, self._load = model, load
        self._changes: _Changes | None = None
        self._written = dict[int, tuple[Tensor, int]]()
        """By storage: its bytes, and their digest."""

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Loads tensors; where that fails, the model is as before."""
        self._changes = changes = _Changes(self._model)
        try:
            with torch.no_grad(), changes:
                self._load(weights)
        except BaseException:
            self.undo()
            raise
        changes.restore_tensors_attributes()  # a parameter's loader may be wrapped still

    def undo(self) -> None:
        """Puts back what was before the last `load`, unless that is kept."""
        if self._changes is not None:
            self._changes.undo()
        self._changes = None

    def keep(self) -> None:
        """Forgets what was before the last `load`, and notes the digests of what it has written."""
        if self._changes is not None:
            self._written |= {
                key: (memory, _digest(memory)) for key, (memory, _) in self._changes.bits.items()
            }
        self._changes = None

    def check(self) -> None:
        """Raises ValueError if what was loaded has changed since."""
        if changed := [key for key, (memory, due) in self._written.items() if _digest(memory) != due]:
            raise ValueError(f"{self._named(changed)}: memory is not what the model's loader has left there")

    def differing(self) -> list[int]:
        """The storages that the last `load` has left with other bits."""
        bits = self._changes.bits if self._changes is not None else {}
        return [key for key, (memory, before) in bits.items() if not memory.cpu().equal(before)]

    def unheard(self, weights: Mapping[str, Tensor]) -> set[str]:
        """Names of tensors, of which others with the same name but for digits change nothing in memory."""
        kinds = {name: "".join(char for char in name if not char.isdigit()) for name in weights}
        silent = set[str]()
        for kind in dict.fromkeys(kinds.values()):
            self.load((name, _other(t) if kinds[name] == kind else t) for name, t in weights.items())
            if not self.differing():
                silent.update(name for name in weights if kinds[name] == kind)
            self.undo()
        return silent

    def others(self, known: set[int]) -> list[str]:
        """Names of parameters that have none of some storages, and that the loader has not written."""
        known = known | self._written.keys()
        return [name for name, tensor in self._model.named_parameters() if storage_id(tensor) not in known]

    def _named(self, storages: Iterable[int]) -> str:
        tensors = [*self._model.named_parameters(), *self._model.named_buffers()]
        chosen = set(storages)
        return ", ".join([name for name, tensor in tensors if storage_id(tensor) in chosen][:3])


def _digest(memory: Tensor) -> int:
    return digest_of(entries_of({"": memory.cpu()}), 1)


def _other(tensor: Tensor) -> Tensor:
    other = 1 - tensor.float() if tensor.is_floating_point() else tensor + 1
    return other.to(tensor.dtype)
