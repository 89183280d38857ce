"""What a launch over all parameters of a batch goes by, and what it reports (parts.cuh)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..array import Flags, Floats64
from ..interface import Batch
from ..readback import Readback
from ..segments import Numbers

TILE, THREADS = 4096, 256
"""Elements that a block of threads works on together, and how many threads it has."""
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_REPORT = 3
"""int64 of a report: words after the parameter, how many sums are not finite, the bits of tau."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Tiles of all parameters, one after the other, each for a block of threads."""

    parts: Any
    """int64 [m, 8] on the device."""
    owners: Any
    """uint32 [tiles] on the device, whose they are."""
    owners_here: Numbers
    """The same on the host."""
    parameters: int
    threads: int

    @property
    def tiles(self) -> int:
        """How many there are."""
        return self.owners_here.size

    @property
    def pair(self) -> tuple[Any, Any]:
        """A kernel's first arguments."""
        return self.parts, self.owners


def part_table(batch: Batch, tiles: Numbers, block: Any = 0, first_block: Any = 0) -> Numbers:
    """The parameters as kernels take them, int64 [m, 8]; TypeError unless gradients have 32 or 16 bits."""
    table = np.zeros((len(batch), 8), np.int64)
    table[:, :4] = batch.rows
    table[:, 4] = np.cumsum(tiles) - tiles
    if others := batch.dtypes - {torch.float32}:
        if unknown := others - set(_KINDS):
            raise TypeError(f"gradients of {unknown.pop()}: methods take float32, float16 and bfloat16")
        kinds = [_KINDS[gradient.dtype] for gradient in batch.gradients]
        table[:, 5] = kinds if len(kinds) == len(batch) else kinds[0]
    table[:, 6], table[:, 7] = block, first_block
    return table


class Reports:
    """The results of a pass over a grid, among others that are fetched together."""

    def __init__(self, grid: Grid, readback: Readback) -> None:
        """Makes room on the device."""
        self._grid = grid
        self._rows = readback.take(_REPORT * grid.parameters, np.int64)
        self._squares = readback.take(grid.tiles, np.float64)

    @property
    def arrays(self) -> tuple[Any, Any]:
        """A kernel's last arguments."""
        return self._rows.array, self._squares.array

    @property
    def fetched(self) -> Numbers:
        """int64 [m, 3]."""
        return self._rows.values.reshape(-1, _REPORT)

    @property
    def nonfinite(self) -> Flags:
        """bool [m]."""
        return np.asarray(self.fetched[:, 1] > 0)

    @property
    def taus(self) -> NDArray[np.float32]:
        """float32 [m]."""
        return np.ascontiguousarray(self.fetched[:, 2]).astype(np.uint32).view(np.float32)

    @property
    def squares(self) -> Floats64:
        """float64 [m]."""
        return sums_by_owner(self._grid, self._squares.values)


def sums_by_owner(grid: Grid, values: NDArray[np.float64]) -> Floats64:
    """Sums of what stands for tiles, float64 [tiles], by parameter, in order."""
    return np.bincount(grid.owners_here, values, grid.parameters).astype(np.float64, copy=False)
