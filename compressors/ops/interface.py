"""The passes over gradients and residuals that methods are made of, and arrays, on one kind of device.

`cpu.ops.CpuOps` and `cuda.ops.CudaOps` implement them. For the same input they write the same bits. Only
fetches of `Returns` wait for a device, and the methods that say so. If a result is needed on the host, it is
requested first, and is there after the fetch. On the CPU, it is there at once.

Legend: n elements of a parameter, k of them sent, whose words are position << 1 | sign, uint32 [k], positions
ascending. Tensors are gradients and what is kept of them; arrays are what an update consists of.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .results import Batch, HalfFormat, QuantizedPass, Quantizing, Taken, Target, ThresholdRule
from .returns import Pending, Returns


class Ranges(Protocol):
    """The range of every block of a parameter; made by `extremes`, for the pass behind it."""

    @property
    def nonfinite(self) -> bool:
        """Whether any is not finite, once `looks` was fetched."""


class Addends(NamedTuple):
    """A parameter whose gradient is to be added to its residual."""

    residual: Tensor | None
    """Contiguous float32 [n]; gains the gradient, but for elements whose sum is not finite. None for zeros
    that nobody keeps."""
    gradient: Tensor
    """Contiguous float32 [n]."""


class Sample(NamedTuple):
    """Some of a parameter's values, in equal strata (`ops.cpu.sampling`)."""

    values: Tensor
    """Contiguous float32 [n]."""
    size: int
    """How many of them, at most n."""


class Ops(ABC):
    """See the module's text."""

    device: torch.device
    on_host: ClassVar[bool]
    """Whether tensors lie in the CPU's memory, where anybody can look at them."""

    # Memory

    @abstractmethod
    def empty(self, size: int, dtype: Any) -> Any:
        """A one-dimensional array, its contents undefined."""

    @abstractmethod
    def zeros(self, size: int, dtype: Any) -> Any:
        """The same, of zeros."""

    @abstractmethod
    def array(self, tensor: Tensor) -> Any:
        """A contiguous tensor of this device as an array in the same memory; 16-bit floats as their bits."""

    @abstractmethod
    def tensor(self, array: Any) -> Tensor:
        """An array of this device, float32 or uint8, as a tensor in the same memory."""

    @abstractmethod
    def fetch(self, array: Any) -> NDArray[Any]:
        """An array in the CPU's memory; waits for what was started before."""

    @abstractmethod
    def fetch_all(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """The same of several; waits once."""

    @abstractmethod
    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """NumPy arrays on this device. Does not wait."""

    @abstractmethod
    def target(self, elements: int, rule: ThresholdRule) -> Target:
        """Room for the sparse passes of a bucket over so many elements; holds until the next call."""

    # Looking

    @abstractmethod
    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        """Whether an element of each gradient is not zero (NaN is not). Waits once."""

    @abstractmethod
    def finite(self, gradients: Sequence[Tensor], returns: Returns) -> Pending[list[bool]]:
        """Whether all elements of each float32 gradient are finite."""

    @abstractmethod
    def squares(self, residual: Tensor | None, returns: Returns) -> Pending[float]:
        """The sum of squares of a float32 tensor as it is now, in any order; 0 without one."""

    @abstractmethod
    def ordered_sum_of_squares(self, gradient: Tensor, returns: Returns) -> Pending[float]:
        """The sum of squares of a float32 tensor in one order on every device: `ops.cpu.ordered_sum`."""

    @abstractmethod
    def samples(
        self, residuals: Sequence[Tensor | None], gradients: Sequence[Tensor], most: int
    ) -> list[Tensor]:
        """|residual + gradient| at `most` places of each parameter, on the host. Waits once."""

    # Sparse passes

    @abstractmethod
    def advance(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """velocity = momentum * velocity + gradient, float32.

        The velocities themselves, float32 [n], change only where that is finite; what is not stays in what is
        returned, so that the pass over it finds it. The tensors hold until the next call for another bucket.
        """

    @abstractmethod
    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returns: Returns
    ) -> Pending[Taken]:
        """Adds gradients to residuals, moves what reaches tau (strom: exceeds it) out, keeps the rest.

        Args:
            rule: what stands for an element.
            batch: the parameters.
            taus: theirs, each a float32's value greater than 0.
            returns: receives what the passes come to.
        """

    @abstractmethod
    def take_largest(self, batch: Batch, counts: Sequence[int], returns: Returns) -> Pending[Taken]:
        """The same for the largest magnitudes of each parameter, at most `counts` of them.

        Of equal magnitudes the lower positions are sent; fewer where fewer reach the smallest tau, and none
        where a sum is not finite.
        """

    @abstractmethod
    def take_largest_of_chunks(self, batch: Batch, chunk: int, keep: int, returns: Returns) -> Pending[Taken]:
        """The same for the `keep` largest magnitudes of every `chunk` elements, a power of two."""

    @abstractmethod
    def clear(self, words: Any, base: int, dense: Tensor) -> None:
        """Sets to zero the elements of float32 [n] that words name; dense[0] has position `base`."""

    @abstractmethod
    def drop_signs(self, words: Any) -> None:
        """Takes the signs from words, uint32 [k]."""

    # Quantizing passes: residuals become what symbols leave out; None for zeros that nobody keeps

    @abstractmethod
    def extremes(self, given: Sequence[Addends], looks: Returns, returns: Returns) -> list[Ranges]:
        """Adds gradients to residuals, and finds the smallest and the largest element of each parameter.

        Args:
            given: the parameters, each with at least one element.
            looks: to be fetched before the ranges are looked at.
            returns: receives the reports of the passes that go by them.
        """

    @abstractmethod
    def count_samples(
        self, samples: Sequence[Sample], bits: int, ranges: Sequence[Ranges], looks: Returns
    ) -> Pending[list[NDArray[np.int64]]]:
        """How often each symbol occurs in stratified samples that are quantized uniformly between ranges.

        Args:
            samples: of each parameter, all of whose values are in its ranges.
            bits: of a symbol.
            ranges: of the parameters. Where they are not finite, counts mean nothing.
            looks: receives the counts, int64 [2^bits] each.
        """

    @abstractmethod
    def linear_pass(
        self, work: Quantizing, lows: Any, steps: Any, returns: Returns, ranges: Sequence[Ranges] = ()
    ) -> Pending[list[QuantizedPass]]:
        """Quantizes residual + gradient uniformly; `ops.cpu.linear` defines it.

        Args:
            work: what is quantized, and to what.
            lows: float32 [offsets.blocks]; receives the smallest element of each.
            steps: float32 [offsets.blocks]; receives the width of a bin.
            returns: receives what the passes come to, unless `ranges` has it.
            ranges: what `extremes` found of the parameters, each one block, all finite; their residuals hold
                the gradients then, which are not added again.
        """

    @abstractmethod
    def quantile_pass(
        self, work: Quantizing, means: Any, exponents: Any, returns: Returns
    ) -> Pending[list[QuantizedPass]]:
        """Quantizes to bins of equal population; `ops.cpu.quantile` defines it.

        Arguments as for `linear_pass`, but `means` uint16 [offsets.blocks * 2^bits], the float16 bits of the
        bins' means times 2^-e, and `exponents` int8 [offsets.blocks], e.
        """

    @abstractmethod
    def fp8_pass(self, work: Quantizing, exponents: Any, returns: Returns) -> Pending[list[QuantizedPass]]:
        """Rounds to float8 e4m3fn scaled by a power of two a block, in `exponents`, int8 [offsets.blocks]."""

    @abstractmethod
    def half_pass(self, kind: HalfFormat, work: Quantizing, returns: Returns) -> Pending[list[QuantizedPass]]:
        """Rounds to a 16-bit float, whose bits are the symbols."""

    # What symbols stand for: written to float32 [k], or added

    @abstractmethod
    def linear_values(
        self, symbols: Any, block: int, bits: int, lows: Any, steps: Any, out: Any, add: bool
    ) -> None:
        """Of `linear_pass`."""

    @abstractmethod
    def quantile_values(
        self, symbols: Any, block: int, bits: int, tables: Any, exponents: Any, out: Any, add: bool
    ) -> None:
        """Of `quantile_pass`."""

    @abstractmethod
    def fp8_values(self, symbols: Any, block: int, exponents: Any, out: Any, add: bool) -> None:
        """Of `fp8_pass`."""

    @abstractmethod
    def half_values(self, kind: HalfFormat, symbols: Any, out: Any, add: bool) -> None:
        """Of `half_pass`."""

    # Adding what is sent to float32 [n]; words are uint32 [k], positions distinct

    @abstractmethod
    def add_taus(self, words: Any, tau: Any, dense: Any) -> None:
        """Adds +tau or -tau, by the words' signs."""

    @abstractmethod
    def add_levels(self, words: Any, levels: Any, tau: Any, dense: Any) -> None:
        """Adds uint8 levels times tau, signed."""

    @abstractmethod
    def add_to_each(self, words: Any, counts: Sequence[int], values: Any, dense: Sequence[Tensor]) -> None:
        """Adds float32 values to several float32 [n] tensors: to each at as many words as `counts` says."""

    @abstractmethod
    def add_values(self, words: Any, values: Any, dense: Any) -> None:
        """Adds float32 values, whatever the words' signs."""
