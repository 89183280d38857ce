"""What workers agree on, as bytes: weights, buffers, and the outer optimizer's momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Payload

_MOMENTUM = "momentum_buffer"


class AgreedModel:
    """The agreed model of this process, its outer optimizer, and their bytes."""

    def __init__(self, model: nn.Module, outer: torch.optim.SGD) -> None:
        self._model, self._outer = model, outer
        (group,) = outer.param_groups
        self._trained: list[Tensor] = group["params"]
        self._buffers = [each for each in model.buffers() if each.numel()]
        self._moves = bool(group["momentum"])
        self.buffer_bytes = sum(each.nbytes for each in self._buffers)
        trained = sum(each.nbytes for each in self._trained)
        self.nbytes = trained * (2 if self._moves else 1) + self.buffer_bytes
        """Number of bytes of everything, after the first round."""

    def to_bytes(self) -> bytes:
        """Weights, buffers and momentum as bytes; call it after the first round."""
        return to_bytes([*self._trained, *self._buffers, *self._momenta()])

    @torch.no_grad()
    def take(self, data: Payload) -> None:
        """Takes over what `to_bytes` returned on another worker; raises CorruptMessage if it does not fit."""
        if self._moves:
            for parameter in self._trained:
                self._outer.state[parameter].setdefault(_MOMENTUM, torch.zeros_like(parameter))
        from_bytes(data, [*self._trained, *self._buffers, *self._momenta()])

    def take_buffers(self, data: Payload) -> None:
        """Takes over the buffers only; raises CorruptMessage if they do not fit."""
        from_bytes(data, self._buffers)

    def _momenta(self) -> list[Tensor]:
        return [self._outer.state[each][_MOMENTUM] for each in self._trained] if self._moves else []


def to_bytes(tensors: Sequence[Tensor]) -> bytes:
    """The values of the tensors, one tensor after the other."""
    flat = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in tensors]
    return torch.cat(flat).numpy().tobytes() if flat else b""


@torch.no_grad()
def from_bytes(data: Payload, tensors: Sequence[Tensor]) -> None:
    """Copies such bytes into the tensors; raises CorruptMessage if their number is wrong."""
    if data.size != sum(each.nbytes for each in tensors):
        raise CorruptMessage(f"{data.size} bytes of agreed values, this model has others")
    start = 0
    for tensor in tensors:
        part = torch.from_numpy(data[start : start + tensor.nbytes].copy())
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
        start += tensor.nbytes
