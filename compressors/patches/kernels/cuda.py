"""The passes of weight patches on a device, one launch for all pieces."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...ops.cuda.device import Device
from . import Comparison, PatchOps, Piece, Steps

_THREADS = 256
_TILE = 4096
"""Patterns that a block of threads compares, as in patching.cu."""
_SPARSE = 8
"""At first there is memory for one change in so many patterns; where more differ, the pass runs once more."""


class CudaPatching(PatchOps):
    """See `PatchOps`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        digests: list[int] = self._compare(pieces, pieces, 0, digested=True)[0][:, 1].tolist()
        return digests

    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Comparison]:
        bases = list(accumulate((piece.bits.numel() for piece in before), initial=0))
        capacity = bases[-1] // _SPARSE + _TILE
        sums, positions, steps = self._compare(before, after, capacity, digested=digested)
        total, comparisons, begin = int(sums[:, 0].sum()), list[Comparison](), 0
        if total > capacity:
            _, positions, steps = self._compare(before, after, total, digested=False)
        at, step = self._device.fetch_all([positions[:total], steps[:total]])
        for base, (count, digest, change) in zip(bases, sums.tolist(), strict=False):
            end = begin + count
            some = Steps(at[begin:end] - np.uint32(base), step[begin:end])
            comparisons.append(Comparison(some, digest, change))
            begin = end
        return comparisons

    def _compare(
        self, before: Sequence[Piece], after: Sequence[Piece], capacity: int, *, digested: bool
    ) -> tuple[NDArray[np.uint64], Tensor, Tensor]:
        """Count, digest and change of each piece, uint64 [pieces, 3]; positions over all pieces; steps."""
        tiles = [-(-piece.bits.numel() // _TILE) for piece in before]
        positions, steps = self._device.empty(capacity, np.uint32), self._device.empty(capacity, np.uint64)
        sums = self._device.zeros(3 * len(before), np.uint64)
        if blocks := sum(tiles):
            states = self._device.zeros(blocks + 1, np.uint64)
            parts = self._parts(before, [piece.bits for piece in after], tiles)
            given = positions, steps, capacity, states, sums, int(digested)
            self._device.launch("patching", "compare", blocks, _THREADS, *parts, *given)
        return self._device.fetch_all([sums])[0].reshape(-1, 3), positions, steps

    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[tuple[Tensor, int]]:
        bits = [
            torch.empty(positions.size, dtype=piece.bits.dtype, device=piece.bits.device)
            for piece, (positions, _) in zip(pieces, steps, strict=True)
        ]
        sums = self._device.zeros(len(pieces), np.uint64)
        values = np.concatenate([np.empty(0, np.uint64), *(some.steps.astype(np.uint64) for some in steps)])
        self._over_positions("take_steps", pieces, steps, bits, [values], sums)
        return list(zip(bits, self._device.fetch_all([sums])[0].tolist(), strict=True))

    def scatter(self, pieces: Sequence[Piece], steps: Sequence[Steps], bits: Sequence[Tensor]) -> list[None]:
        self._over_positions("scatter", pieces, steps, bits, [])
        return [None] * len(pieces)

    def _over_positions(
        self,
        kernel: str,
        pieces: Sequence[Piece],
        steps: Sequence[Steps],
        bits: Sequence[Tensor],
        beside: Sequence[NDArray[Any]],
        *last: Any,
    ) -> None:
        """Launches a thread for each position of all pieces."""
        positions = np.concatenate([np.empty(0, np.uint32), *(some.positions for some in steps)])
        if positions.size:
            parts = self._parts(pieces, bits, [some.positions.size for some in steps])
            given = positions.size, *self._device.place_all([positions, *beside]), *last
            self._device.launch("patching", kernel, -(-positions.size // _THREADS), _THREADS, *parts, *given)

    def _parts(
        self, pieces: Sequence[Piece], others: Sequence[Tensor], counts: Sequence[int]
    ) -> tuple[Tensor, int]:
        """Pieces as patching.cu's `Part`, and how many; counts are their tiles, or their positions."""
        rows, base, begin = list[tuple[int, ...]](), 0, 0
        for piece, other, count in zip(pieces, others, counts, strict=True):
            bits = piece.bits
            row = bits.data_ptr(), bits.numel(), bits.element_size(), int(piece.floats), piece.first
            rows.append((*row, other.data_ptr(), base, begin))
            base, begin = base + bits.numel(), begin + count
        # The last one that begins at a place has it; those behind the last place have none.
        while rows and rows[-1][-1] == begin:
            rows.pop()
        return self._device.place_all([np.array(rows, np.int64).reshape(-1)])[0], len(rows)
