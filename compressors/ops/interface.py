"""The passes over gradients and residuals that methods are made of, and arrays, on one kind of device.

`cpu.passes.CpuOps` and `cuda.ops.CudaOps` implement them. For the same input they write the same bits. Only
fetches of `Readback` wait for a device, and the methods that say so. If a result is needed on the host, it is
requested first, and is there after the fetch. On the CPU, it is there at once.

Legend: n elements of a parameter, k of them sent, whose words are position << 1 | sign, uint32 [k], positions
ascending. Tensors are gradients and what is kept of them; arrays are what an update consists of.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..method.base import Form, ThresholdRule
from .array import Array
from .cpu.looking import scaled_squares, stratified_positions
from .readback import Pending, Readback
from .segments import Offsets

FP8_EXPONENTS = (-126, 119)
"""The smallest and the largest exponent of a block of 8-bit floats."""
QUANTILE_EXPONENTS = (-128, 113)
"""The same of a block in bins of equal population."""
LARGEST_MEAN = np.int32(0x77FF)
"""The float16 bits of 32752, the largest mean of a bin: times 2^113 it is finite."""


class Target(NamedTuple):
    """Where sparse passes write: what one parameter sends stands behind what the one before has sent."""

    words: Array
    """uint32, position << 1 | sign."""
    values: Array
    """What stands beside a word: float32 (wgt), uint8 levels (qgt), nothing for the others."""


class Batch(NamedTuple):
    """Parameters that sparse passes go over, one after the other."""

    residuals: Sequence[Tensor]
    """float32, contiguous; changed in place."""
    gradients: Sequence[Tensor]
    """Any float."""
    bases: Sequence[int]
    """Each one's first position in its update."""
    target: Target
    """What is sent goes there, each parameter's ascending."""


class Quantizing(NamedTuple):
    """What a quantizing pass over some parameters works on."""

    residuals: Sequence[Tensor | None]
    """float32 [n], become what symbols leave out; None for zeros that nobody keeps."""
    gradients: Sequence[Tensor]
    """[n], any float, contiguous; added to the residuals."""
    symbols: Array
    """Receives the symbols, each parameter's where `offsets` says: uint8 for up to 8 bits, uint16 above."""
    bits: int
    """Of a symbol, 1 to 16."""
    block: int = 0
    """Elements that share tables, a parameter's last ones may be fewer; 0 for one block a parameter."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """n of each parameter."""
        return tuple([each.numel() for each in self.gradients])

    @property
    def offsets(self) -> Offsets:
        """Where symbols and tables stand."""
        return Offsets.of(np.array(self.sizes, np.int64), self.block)


@dataclass(frozen=True)
class Selected:
    """What sparse passes over some parameters came to, by parameter."""

    ends: list[int]
    """Words in the output after each one."""
    residual_squares: list[float]
    """Sums of squares of what was kept. The order of summation is free: a metric, no more."""
    nonfinite: list[bool]
    """Whether a sum of residual and gradient was infinite or no number."""
    taus: list[float]
    """What was sent by, each a float32's value; the smallest tau for chunks, which have none."""


@dataclass(slots=True)
class QuantizedPass:
    """What one quantizing pass over one parameter came to."""

    residual_squares: float
    """Sum of squares of the residual that was kept; 0.0 without one."""
    nonfinite: bool
    """Whether residual + gradient held a NaN or Inf. Then, to rounding, the residual has gained the gradient
    but for elements whose sum is not finite, which kept what they had. Symbols and tables mean nothing."""


class Ranges(Protocol):
    """The range of a parameter; made by `extremes`, for the pass behind it; there when it was fetched."""

    @property
    def low(self) -> np.float32:
        """The smallest element; 0.0 for -0.0."""

    @property
    def high(self) -> np.float32:
        """The largest element, likewise."""

    @property
    def nonfinite(self) -> bool:
        """Whether a NaN or Inf was met; then the range means nothing."""


@lru_cache(256)  # samples are taken of the same parameters again and again
def sampled_places(n: int, m: int, device: torch.device) -> Tensor:
    """`ops.cpu.looking.stratified_positions` on a device."""
    return torch.from_numpy(stratified_positions(n, m)).to(device)


class Ops(ABC):
    """See the module's text."""

    device: torch.device
    on_host: ClassVar[bool]
    """Whether tensors lie in the CPU's memory, where anybody can look at them."""
    threads: int = 1
    """How many share the CPU's work."""

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
    def fetch_all(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """Arrays in the CPU's memory; waits once, for what was started before."""

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
    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        """Whether all elements of each float32 gradient are finite."""

    @abstractmethod
    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        """The sum of squares of a float32 tensor as it is now, in any order; 0 without one."""

    def exact_sum_of_squares(self, gradient: Tensor, returned: Readback) -> Pending[float]:
        """The sum of squares of a float32 tensor, n at least 1, to the same bits on every device.

        Each square, in float64, becomes a whole number of the smallest power of two with which no sum of n
        leaves 63 bits: integers come to the same in any order. It means nothing where a square is not finite.
        """
        slot, largest = returned.take(1, np.float64), torch.stack(torch.aminmax(gradient)).abs().amax()
        _, exponent = torch.frexp(largest.double().square())
        up = 62 - gradient.numel().bit_length() - exponent.long()
        scale = ((up + 1023) << 52).view(torch.float64)  # 2^up, which no library rounds
        if self.on_host:
            whole = torch.tensor(scaled_squares(self.array(gradient), scale.item()))
        else:
            whole = (gradient.double().square() * scale).long().sum()
        total = whole.double() / scale
        self.tensor(slot.array.view(np.uint8)).view(torch.float64).copy_(total)
        return lambda: float(slot.values[0])

    def samples(
        self, tensors: Sequence[tuple[Tensor | None, Tensor]], sizes: Sequence[int], readback: Readback
    ) -> Pending[list[NDArray[np.float32]]]:
        """Some values of each parameter, one in each of equal strata (`ops.cpu.looking`).

        Args:
            tensors: residual and gradient of each, whose sum is looked at; None for zeros.
            sizes: how many values of each, at most its elements.
            readback: receives the values.
        """
        slots = []
        for (residual, gradient), size in zip(tensors, sizes, strict=True):
            places, slot = (
                sampled_places(gradient.numel(), size, self.device),
                readback.take(size, np.float32),
            )
            sample = gradient.index_select(0, places).float()
            if residual is not None:
                sample = residual.index_select(0, places) + sample
            self.tensor(slot.array).copy_(sample)
            slots.append(slot)
        return lambda: [slot.values for slot in slots]

    # Sparse passes

    @abstractmethod
    def apply_momentum(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """velocity = momentum * velocity + gradient, float32.

        The velocities themselves, float32 [n], change only where that is finite; what is not stays in what is
        returned, so that the pass over it finds it. The tensors hold until the next call for another bucket.
        """

    @abstractmethod
    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returned: Readback
    ) -> Pending[Selected]:
        """Adds gradients to residuals, moves what reaches tau (strom: exceeds it) out, keeps the rest.

        Args:
            rule: what stands for an element.
            batch: the parameters.
            taus: theirs, each a float32's value greater than 0.
            returned: receives what the passes come to.
        """

    @abstractmethod
    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """The same for the largest magnitudes of each parameter, at most `counts` of them.

        Of equal magnitudes the lower positions are sent; fewer where fewer reach the smallest tau, and none
        where a sum is not finite.
        """

    @abstractmethod
    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """The same for the `keep` largest magnitudes of every `chunk` elements, a power of two."""

    @abstractmethod
    def clear(self, words: Any, base: int, dense: Tensor) -> None:
        """Sets to zero the elements of float32 [n] that words name; dense[0] has position `base`."""

    # Quantizing passes: residuals become what symbols leave out; None for zeros that nobody keeps

    @abstractmethod
    def extremes(
        self, given: Sequence[tuple[Tensor | None, Tensor]], readback: Readback, returned: Readback
    ) -> list[Ranges]:
        """Adds gradients to residuals, and finds the smallest and the largest element of each parameter.

        Args:
            given: residual and gradient of each parameter, float32, with at least one element.
            readback: to be fetched before the ranges are looked at.
            returned: receives the reports of the passes that go by them.
        """

    @abstractmethod
    def quantize(
        self, form: Form, work: Quantizing, tables: Sequence[Any], returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """Quantizes residual + gradient of each parameter, in its blocks.

        Args:
            form: `linear`, uniformly (`ops.cpu.by_range` defines it); `quantile`, to bins of equal population
                (`ops.cpu.quantile`); `fp8`, to float8 e4m3fn scaled by a power of two a block; `fp16` or
                `bf16`, whose bits are the symbols.
            work: what is quantized, and to what.
            tables: of all blocks, in the order of a message's; they are written. `linear`: float32 [blocks],
                the smallest element, and the width of a bin. `quantile`: int8 [blocks], an exponent e, and
                uint16 [blocks * 2^bits], the float16 bits of the bins' means times 2^-e. `fp8`: int8
                [blocks], the scale's exponent.
            returned: receives what the passes come to.
        """

    @abstractmethod
    def linear_between(
        self, work: Quantizing, bits: Sequence[int], ranges: Sequence[Ranges], lows: Any, steps: Any
    ) -> Pending[list[QuantizedPass]]:
        """The same uniformly, of parameters that are one block each and have bits of their own.

        Args:
            work: what is quantized; residuals hold the gradients already.
            bits: of the symbols of each parameter; of those whose range is not finite, it does not matter.
            ranges: what `extremes` found of the parameters. What the passes come to goes where that went.
            lows: float32 [parameters]; receives the smallest element of each.
            steps: float32 [parameters]; receives the width of a bin.
        """

    # What is sent, in float32 arrays

    @abstractmethod
    def add_values(
        self,
        form: str,
        symbols: Any,
        block: int,
        tables: tuple[Any, ...],
        rows: NDArray[np.int64],
        out: Any,
        starts: NDArray[np.int64],
    ) -> None:
        """Adds what values of some parameters, or pieces of them, stand for.

        Args:
            form: of the values: `f32`, `fp16`, `bf16`, `fp8`, `linear` or `quantile`.
            symbols: of all.
            block: elements that share tables (0: a block for each row).
            tables: of all blocks, in the order of a message's.
            rows: int64 [r, 4], where each row's symbols begin, how many; the first of its blocks, how many.
            out: float32.
            starts: int64 [r], where each one's values begin there.
        """

    @abstractmethod
    def add_words(
        self,
        words: Any,
        ends: NDArray[np.int64],
        shifts: NDArray[np.int64],
        taus: NDArray[np.float32] | None,
        values: Any,
        total: Any,
    ) -> None:
        """Adds what words stand for to float32 [n].

        Args:
            words: uint32 [k], position << 1 | sign, positions distinct.
            ends: int64 [m], where the words of each parameter end.
            shifts: int64 [m], what has to be added to their positions to have elements of `total`.
            taus: float32 [m]: +-tau is added, by the words' signs, or levels times tau; None for values.
            values: float32 [k], uint8 [k] levels, or nothing beside taus alone.
            total: receives it.
        """


_ADDRESSES = {
    "cpu": "taugrad.compressors.ops.cpu.passes:CpuOps",
    "cuda": "taugrad.compressors.ops.cuda.cupy_runtime:CuPyRuntime",
}


def ops_for(device: torch.device, threads: int = 1) -> Ops:
    """The operations on a device's tensors.

    Args:
        device: of gradients, residuals and totals.
        threads: how many may share the CPU's work. No result depends on it.

    Raises:
        ImportError: it is a GPU, and CuPy is not installed.
        ValueError: no method supports this device.
    """
    if device.type not in _ADDRESSES:
        raise ValueError(f"gradients lie on {device}; methods work on {' and '.join(_ADDRESSES)}")
    module, _, name = _ADDRESSES[device.type].partition(":")  # a machine imports only what it has
    made: Ops = getattr(import_module(module), name)(threads if device.type == "cpu" else device)
    return made
