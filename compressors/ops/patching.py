"""The passes that weight patches are made of, on one kind of device: comparison, digest, application.

`cpu.patching.CpuPatching` and `cuda.patching.CudaPatching` implement them, and find the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some elements of a tensor, as bits."""

    tensor: Tensor
    """[n], contiguous: uint8, int16, int32 or int64."""
    first: int
    """The number of the first one in its tensor."""
    floats: bool
    """Whether they are bits of floats, whose order is not that of their bits."""


class Steps(NamedTuple):
    """How some elements of a piece change."""

    words: Words
    """uint32 [k], position << 1; the lowest bit means nothing. Ascending."""
    steps: NDArray[Any]
    """uint32 or uint64 [k]: differences of bits in order, modulo 2^bits, in zigzag."""


class Changes(NamedTuple):
    """How a piece differs from another."""

    changed: int
    """Elements that differ."""
    words: Words
    """See `Steps`; empty where more than half of the elements differ."""
    steps: NDArray[Any]
    """At least 1."""
    digest: int
    """Of the first piece; 0 if it was not asked for."""
    change: int
    """What has to be added to it, modulo 2^64, to have the digest of the second."""


class Taken(NamedTuple):
    """What elements of a piece become."""

    words: Words
    """See `Steps`."""
    bits: Tensor
    """[k], of the piece's type and on its device."""
    change: int
    """What that adds to the digest."""


class PatchOps(ABC):
    """See the module's text."""

    @abstractmethod
    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        """The digest of each piece, see cpu/patching.py."""

    @abstractmethod
    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Changes]:
        """How pieces differ; with the digests of `before`, if they are wanted."""

    @abstractmethod
    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[Taken]:
        """What elements become; nothing is written to the pieces."""

    @abstractmethod
    def scatter(self, pieces: Sequence[Piece], taken: Sequence[Taken]) -> None:
        """Writes what `take_steps` returned to the pieces."""
