"""What workers agree on, as bytes: weights, buffers, and the outer optimizer's momentum."""

import torch
from torch import Tensor, nn

from taugrad.compressors.exchange.carrier import Payload
from taugrad.compressors.exchange.tensors import copy_bytes, to_bytes

_MOMENTUM = "momentum_buffer"


class AgreedState:
    """The agreed model of this process, its outer optimizer, and their bytes."""

    def __init__(self, model: nn.Module, outer: torch.optim.SGD) -> None:
        self._outer = outer
        (group,) = outer.param_groups
        self._trained: list[Tensor] = group["params"]
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._moves = bool(group["momentum"])
        self.buffer_bytes = sum(buffer.nbytes for buffer in self._buffers)
        trained = sum(parameter.nbytes for parameter in self._trained)
        self.nbytes = trained * (2 if self._moves else 1) + self.buffer_bytes
        """Number of bytes of everything, after the first round."""

    def to_bytes(self) -> Payload:
        """Weights, buffers and momentum as bytes; call it after the first round."""
        return to_bytes([*self._trained, *self._buffers, *self._momenta()])

    @torch.no_grad()
    def take(self, data: Payload) -> None:
        """Takes over what `to_bytes` returned on another worker; raises CorruptMessage if it does not fit."""
        if self._moves:
            for parameter in self._trained:
                self._outer.state[parameter].setdefault(_MOMENTUM, torch.zeros_like(parameter))
        copy_bytes(data, [*self._trained, *self._buffers, *self._momenta()])

    def take_buffers(self, data: Payload) -> None:
        """Takes over the buffers only; raises CorruptMessage if they do not fit."""
        copy_bytes(data, self._buffers)

    def _momenta(self) -> list[Tensor]:
        return [self._outer.state[parameter][_MOMENTUM] for parameter in self._trained] if self._moves else []
