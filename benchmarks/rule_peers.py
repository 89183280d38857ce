"""The rules as plain but careful programs in torch and NumPy would write them.

Each adds the gradient to the residual, takes out what is sent and keeps the rest; dense buffers are
reused. Unlike the passes they neither sum the residual's squares nor look for values that are not finite.
"""

from typing import Literal

import numpy as np
import torch
from arena import Arena
from numpy.typing import NDArray
from torch import Tensor

ThresholdRule = Literal["wgt", "bgt", "qgt", "strom"]
_FP8_LARGEST = 448.0


class RulePeers:
    """Rules at work on an arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.residual, self.gradient = arena.residual, arena.gradient
        self._magnitude = torch.empty_like(arena.residual)
        self._reached = torch.empty(arena.elements, dtype=torch.bool)

    def _magnitudes(self) -> Tensor:
        self.residual.add_(self.gradient)
        return torch.abs(self.residual, out=self._magnitude)

    def threshold(self, rule: ThresholdRule, tau: float) -> object:
        """wgt, bgt, qgt or strom."""
        compare = torch.gt if rule == "strom" else torch.ge
        compare(self._magnitudes(), tau, out=self._reached)
        positions_K = self._reached.nonzero().squeeze(1)
        taken_K = self.residual.index_select(0, positions_K)
        words_K = _words(positions_K, taken_K)
        if rule == "wgt":
            self.residual.index_fill_(0, positions_K, 0.0)
            return words_K, taken_K
        magnitude_K = taken_K.abs()
        if rule == "qgt":
            levels_K = (magnitude_K / tau).floor_().clamp_(max=255)
            values_K, left_K = levels_K.to(torch.uint8), magnitude_K - levels_K * tau
        else:
            values_K, left_K = torch.empty(0, dtype=torch.uint8), magnitude_K - tau
        # What is left of a is sign(a) * (|a| - what was sent).
        self.residual.index_copy_(0, positions_K, left_K * taken_K.sign())
        return words_K, values_K

    def topk(self, density: float) -> object:
        """The largest magnitudes, in no order."""
        positions_K = torch.topk(self._magnitudes(), self._arena.count(density), sorted=False).indices
        taken_K = self.residual.index_select(0, positions_K)
        self.residual.index_fill_(0, positions_K, 0.0)
        return _words(positions_K, taken_K), taken_K

    def chunked_topk(self, chunk: int, keep: int) -> object:
        """The largest of every chunk, in no order."""
        magnitude, even = self._magnitudes(), self.residual.numel() // chunk * chunk
        rows = magnitude[:even].view(-1, chunk).topk(keep, sorted=False).indices
        starts = torch.arange(0, even, chunk).unsqueeze(1)
        tail = magnitude[even:].topk(min(keep, magnitude.numel() - even), sorted=False).indices
        positions_K = torch.cat(((rows + starts).flatten(), tail + even))
        taken_K = self.residual.index_select(0, positions_K)
        self.residual.index_fill_(0, positions_K, 0.0)
        return _words(positions_K, taken_K), taken_K

    def linear(self, bits: int, block: int) -> object:
        """Bins of equal width in blocks of `block` (0: one)."""
        self.residual.add_(self.gradient)
        return [_linear(rows, bits) for rows in _rows(self.residual, block)]

    def half(self, dtype: torch.dtype) -> object:
        """16-bit floats."""
        self.residual.add_(self.gradient)
        short = self.residual.to(dtype)
        self.residual.sub_(short)
        return short

    def float8(self, block: int) -> object:
        """8-bit floats, scaled by a power of two for each block."""
        self.residual.add_(self.gradient)
        return [_float8(rows) for rows in _rows(self.residual, block)]

    def quantile(self, bits: int, block: int) -> object:
        """Bins of equal population, found by sorting, each standing for its mean (Rae, section 2.3.1)."""
        np.add(self._arena.residual_N, self._arena.gradient_N, out=self._arena.residual_N)
        return [_quantile(rows.numpy(), bits) for rows in _rows(self.residual, block)]


def _words(positions: Tensor, taken: Tensor) -> Tensor:
    return (positions << 1) | (taken < 0)


def _rows(values: Tensor, block: int) -> list[Tensor]:
    """Whole blocks as rows, and the shorter one behind them."""
    even = values.numel() // block * block if block else 0
    parts = (values[:even].view(-1, block), values[even:].view(1, -1)) if even else (values.view(1, -1),)
    return [part for part in parts if part.numel()]


def _linear(rows: Tensor, bits: int) -> object:
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    step = (high - low) / 2**bits
    symbols = rows.sub(low).div_(step).clamp_(max=2**bits - 1).to(torch.uint8)
    rows.sub_(symbols.float().add_(0.5).mul_(step).add_(low))
    return symbols, low, step


def _float8(rows: Tensor) -> object:
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(torch.maximum(-low, high) / _FP8_LARGEST)))
    short = (rows / scale).to(torch.float8_e4m3fn)
    rows.sub_(short.float().mul_(scale))
    return short, scale


def _quantile(rows: NDArray[np.float32], bits: int) -> object:
    length = rows.shape[1]
    order = np.argsort(rows, axis=1)
    starts = np.arange(1 << bits) * length >> bits
    counts = np.diff(starts, append=length)
    if not counts.all():
        raise ValueError(f"a block of {length} elements leaves some of 2^{bits} bins empty")
    means = np.add.reduceat(np.take_along_axis(rows, order, 1), starts, axis=1, dtype=np.float64) / counts
    by_rank = np.broadcast_to(np.repeat(np.arange(1 << bits, dtype=np.uint8), counts), rows.shape)
    symbols = np.empty(rows.shape, np.uint8)
    np.put_along_axis(symbols, order, by_rank, 1)
    rows -= np.take_along_axis(means.astype(np.float16).astype(np.float32), symbols.astype(np.intp), 1)
    return symbols, means
