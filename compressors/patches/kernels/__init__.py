"""The passes over bit patterns that weight patches are made of, on one kind of device.

`cpu.CpuPatching` and `cuda.CudaPatching` implement them with the same results.

A bit pattern is an unsigned number of 1, 2, 4 or 8 bytes. Its order is itself for integers; for floats, sign
and magnitude become one number that ascends with them, so that neighbouring floats differ by one. A step is
the difference of two orders modulo 2^bits in zigzag: 0, -1, 1, -2, ... are 0, 1, 2, 3, ....

The digest of a tensor is the sum over its bit patterns of key(i) * pattern modulo 2^64, where
key(i) = odd(i mod 1024) * odd(1024 + i // 1024). It is linear: digests of shards add up, and what a patch
adds follows from what changes. A single change always changes it. It detects damage, not forgery.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

KEY_BLOCK = 1024
"""Bit patterns whose keys have a factor in common."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A run of a tensor's bit patterns."""

    bits: Tensor
    """[n], contiguous: uint8, int16, int32 or int64."""
    first: int
    """The index of the first one in its tensor."""
    floats: bool


class Steps(NamedTuple):
    """How some patterns of a piece change."""

    positions: NDArray[np.uint32]
    """[k], ascending."""
    steps: NDArray[Any]
    """Unsigned integers [k]."""


class Comparison(NamedTuple):
    """How a piece differs from another one."""

    steps: Steps
    """All at least 1."""
    digest: int
    """Of the first piece; 0 if not computed."""
    change: int
    """The second one's digest less that, modulo 2^64."""


class PatchOps(ABC):
    """The passes; pieces of one call have fewer than 2^31 patterns."""

    @abstractmethod
    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        """Computes the digest of each piece."""

    @abstractmethod
    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Comparison]:
        """Compares pieces in pairs; computes digests of `before` if `digested`."""

    @abstractmethod
    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[tuple[Tensor, int]]:
        """Computes what patterns become, [k], and what that adds to digests; writes nothing to the pieces."""

    @abstractmethod
    def scatter(self, pieces: Sequence[Piece], steps: Sequence[Steps], bits: Sequence[Tensor]) -> list[None]:
        """Writes what `take_steps` computed to the pieces."""
