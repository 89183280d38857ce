"""The passes over gradients and residuals that methods are made of, and arrays, on one kind of device.

`cpu.passes.CpuOps` and `cuda.ops.CudaOps` implement them. For the same input they write the same bits. Only
fetches of `Readback` wait for a device, and the methods that say so.

Legend: m parameters, n elements of a parameter, k of them sent, whose words are position << 1 | sign, uint32
[k], positions ascending. Tensors are gradients and what is kept of them; arrays are what updates consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from ..lazy import np, torch
from .array import Array, Flags, Floats32, Floats64, NDArray, Numbers, Tensor

SMALLEST_TAU = 2.0**-126
"""The smallest normal float32: kernels and messages hold tau in that type."""
LARGEST_TAU = 2.0**119
"""255 times this is a finite float32, with room for a sum."""
LARGEST_CHUNK = 1 << 16
"""Elements of a chunk, at most."""

Form = Literal[
    "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile", "steps", "bits", "patch"
]
"""The encoding of an update's values, a message's `form`, whichever method chose the values."""
ThresholdRule = Literal["wgt", "bgt", "qgt", "strom"]
"""How an element that reaches the threshold is sent (Anoosheh, section 2.1; Strom, section 2.6)."""
FP8_EXPONENTS, QUANTILE_EXPONENTS = (-126, 119), (-128, 113)
"""The smallest and the largest exponent of a block: of 8-bit floats, and of bins of equal population."""
LARGEST_MEAN = 0x77FF
"""The float16 bits of 32752, the largest mean of a bin: times 2^113 it is finite."""
T = TypeVar("T")
Pending = Callable[[], T]
"""A result of a pass: on the CPU it is there at once, from a device after a fetch."""


def check_chunks(chunk: int, keep: int) -> None:
    """Raises ValueError for a chunk or a number to keep that is out of its range."""
    if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, 2 to {LARGEST_CHUNK}, not {chunk}")
    if not 0 <= keep <= chunk:
        raise ValueError(f"keep must be 0 to chunk = {chunk}, not {keep}")


@dataclass(frozen=True, eq=False)
class Offsets:
    """Where symbols and tables of several parameters stand in arrays that they share; int64 [m]."""

    begins: Numbers
    """The first symbol of each."""
    sizes: Numbers
    """How many symbols."""
    firsts: Numbers
    """Its first block."""
    blocks: Numbers
    """How many blocks."""

    @classmethod
    def of(cls, sizes: Numbers, block: int) -> Offsets:
        """Places `sizes` symbols per parameter in blocks of `block`; 0: one block per parameter.

        A parameter's last block may be shorter.
        """
        blocks = -(-sizes // block) if block else np.minimum(sizes, 1)
        return cls(np.cumsum(sizes) - sizes, sizes, np.cumsum(blocks) - blocks, blocks)

    @cached_property
    def symbols(self) -> tuple[slice, ...]:
        """The symbols of each."""
        return tuple(map(slice, self.begins.tolist(), (self.begins + self.sizes).tolist()))

    @cached_property
    def table(self) -> Numbers:
        """The four side by side, int64 [m, 4]."""
        return np.stack((self.begins, self.sizes, self.firsts, self.blocks), axis=1)

    @property
    def all_blocks(self) -> int:
        """How many there are."""
        return int(self.blocks.sum())


@dataclass
class Slot:
    """One result."""

    array: Any
    """For kernels: on the device, zeros at first."""
    host: NDArray[Any] | None = None
    """What it was when it was fetched."""

    @property
    def values(self) -> NDArray[Any]:
        """What was fetched."""
        assert self.host is not None, "nothing was fetched yet"
        return self.host


class Readback:
    """Room for results that are fetched together."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._slots: list[Slot] = []

    def take(self, size: int, dtype: Any) -> Slot:
        """Room for an array, which begins as zeros."""
        slot = Slot(self._ops.zeros(size, dtype))
        self._slots.append(slot)
        return slot

    def forget(self) -> None:
        """Drops what nobody will ask for."""
        self._slots = []

    def fetch(self) -> None:
        """Fills in `host` of every slot taken so far; waits once, if there are any."""
        if self._slots:
            self.fetch_with(())

    def fetch_with(self, others: Sequence[Any]) -> list[NDArray[Any]]:
        """The same, and copies of other arrays, which this returns; waits once."""
        slots, self._slots = self._slots, []
        copies = self._ops.fetch_all([*(slot.array for slot in slots), *others])
        for slot, copy in zip(slots, copies, strict=False):
            slot.host = copy
        return copies[len(slots) :]


class Target(NamedTuple):
    """Where sparse passes write: what one parameter sends stands behind what the one before has sent."""

    words: Array
    """uint32, position << 1 | sign."""
    values: Array
    """What stands beside a word: float32 (wgt), uint8 levels (qgt), nothing for the others."""
    readback: Readback


@dataclass(frozen=True, eq=False)
class Batch:
    """Parameters that a pass goes over, one after the other; m of them."""

    rows: Numbers
    """int64 [m, 4]: the addresses of residual (0: zeros that nobody keeps) and gradient, elements, and the
    first one's position in the update."""
    residuals: Sequence[Tensor | None]
    """float32, contiguous, of each parameter; changed in place. It may be one for several, as `rows` say."""
    gradients: Sequence[Tensor]
    """Contiguous tensors of any floating dtype, one per parameter."""
    laid_out: dict[Any, Any] = field(default_factory=dict)
    """What a device made of this batch for its kernels: it holds as long as the batch does."""

    @classmethod
    def of(
        cls,
        residuals: Sequence[Tensor | None],
        gradients: Sequence[Tensor],
        sizes: Numbers | None = None,
        bases: Numbers | None = None,
    ) -> Batch:
        """Creates a batch of a tensor for each parameter, whose sizes and positions may be known already."""
        if sizes is None:
            sizes = np.array([gradient.numel() for gradient in gradients], np.int64)
        rows = np.empty((len(gradients), 4), np.int64)
        rows[:, 0] = [0 if residual is None else residual.data_ptr() for residual in residuals]
        rows[:, 1] = [gradient.data_ptr() for gradient in gradients]
        rows[:, 2], rows[:, 3] = sizes, np.cumsum(sizes) - sizes if bases is None else bases
        return cls(rows, residuals, gradients)

    @classmethod
    def flat(cls, residual: Tensor | None, gradient: Tensor, sizes: Numbers) -> Batch:
        """Creates a batch of parameters side by side in float32 tensors."""
        bases = np.cumsum(sizes) - sizes
        rows = np.stack((bases, bases, sizes, bases), axis=1)
        rows[:, 0] = 0 if residual is None else residual.data_ptr() + 4 * bases
        rows[:, 1] = gradient.data_ptr() + 4 * bases
        return cls(rows, [residual] * len(rows), [gradient] * len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> Numbers:
        """int64 [m], n of each parameter."""
        return self.rows[:, 2]

    @cached_property
    def dtypes(self) -> set[torch.dtype]:
        """Dtypes of the gradients."""
        return {gradient.dtype for gradient in self.gradients}

    def offsets(self, block: int) -> Offsets:
        """Where symbols and tables stand, of blocks of so many elements; 0 for one a parameter."""
        offsets: Offsets | None = self.laid_out.get(block)
        if offsets is None:
            offsets = self.laid_out[block] = Offsets.of(self.sizes, block)
        return offsets

    def select(self, numbers: Numbers) -> Batch:
        """Some of the parameters, by number; itself if these are all."""
        if numbers.size == len(self):
            return self
        residuals = [self.residuals[number] for number in numbers]
        return Batch(self.rows[numbers], residuals, [self.gradients[number] for number in numbers])

    def without_residuals(self, dropped: Flags) -> Batch:
        """The same where some have no residuals; itself if these are none."""
        if not dropped.any():
            return self
        rows, pairs = self.rows.copy(), zip(self.residuals, dropped, strict=True)
        rows[dropped, 0] = 0
        return Batch(rows, [None if drop else residual for residual, drop in pairs], self.gradients)

    def with_gradients(self, flat: Tensor) -> Batch:
        """The same with other gradients, float32, side by side."""
        rows, sizes = self.rows.copy(), self.sizes
        rows[:, 1] = flat.data_ptr() + 4 * (np.cumsum(sizes) - sizes)
        return Batch(rows, self.residuals, [flat] * len(rows))

    def replaced(self, numbers: Numbers, others: Batch) -> Batch:
        """The same with gradients of some parameters in place of those of numbers."""
        if numbers.size == len(self):
            return others
        rows, gradients = self.rows.copy(), list(self.gradients)
        rows[numbers] = others.rows
        for number, gradient in zip(numbers, others.gradients, strict=True):
            gradients[number] = gradient
        return Batch(rows, self.residuals, gradients)

    def pairs(self) -> list[tuple[Tensor | None, Tensor]]:
        """Residual and gradient of each parameter, [n]."""

        def part(tensor: Tensor, address: int, n: int) -> Tensor:
            first = (address - tensor.data_ptr()) // tensor.element_size() if n else 0
            return tensor[first : first + n]

        columns = zip(self.residuals, self.gradients, self.rows.tolist(), strict=True)
        return [
            (None if residual is None else part(residual, kept, n), part(gradient, added, n))
            for residual, gradient, (kept, added, n, _) in columns
        ]

    def wide(self) -> Batch:
        """The same with float32 gradients; itself where they are."""
        if self.dtypes <= {torch.float32}:
            return self
        rows, gradients = self.rows.copy(), list(self.gradients)
        for number, gradient in enumerate(gradients):
            if gradient.dtype != torch.float32:
                gradients[number] = gradient.float()
                rows[number, 1] = gradients[number].data_ptr()
        return Batch(rows, self.residuals, gradients)


class Quantizing(NamedTuple):
    """What a quantizing pass over some parameters works on."""

    batch: Batch
    """Gradients are added to residuals, which become what symbols leave out."""
    readback: Readback
    symbols: Array
    """Receives the symbols: uint8 for up to 8 bits, uint16 above."""
    bits: int
    """Bits of a symbol, 1 to 16."""
    block: int = 0
    """Elements that share tables, a parameter's last ones may be fewer; 0 for one block a parameter."""
    tables: Sequence[Array] = ()
    """Receives the tables of all blocks, in a message's order. `linear`: float32 [blocks], the smallest
    element, and the width of a bin. `quantile`: int8 [blocks], an exponent e, and uint16 [blocks * 2^bits],
    the float16 bits of the bins' means times 2^-e. `fp8`: int8 [blocks], the scale's exponent."""

    @property
    def offsets(self) -> Offsets:
        """Where symbols and tables stand."""
        return self.batch.offsets(self.block)


class Selected(NamedTuple):
    """Results of sparse passes, by parameter."""

    ends: Numbers
    """int64 [m], words in the output after each parameter."""
    residual_squares: Floats64
    """float64 [m], sums of squares of what was kept; a metric, whose last bits depend on the device."""
    nonfinite: Flags
    """bool [m], whether a sum of residual and gradient was infinite or no number."""
    taus: Floats32
    """float32 [m], thresholds; the smallest tau for chunks, which have none."""


class Kept(NamedTuple):
    """Results of quantizing passes, by parameter."""

    residual_squares: Floats64
    """float64 [m], as in `Selected`; 0 without a residual."""
    nonfinite: Flags
    """bool [m], as in `Selected`. Then, to rounding, the residual has gained the finite sums, and symbols and
    tables mean nothing."""


class Extremes(NamedTuple):
    """The ranges of parameters."""

    low: Floats32
    high: Floats32
    """float32 [m], the smallest and the largest elements; 0.0 for -0.0."""
    nonfinite: Flags
    """bool [m], whether a NaN or Inf was met; then the range means nothing."""


Sources: TypeAlias = Sequence[tuple[Any, Sequence[Any]]]
"""By worker: symbols of all rows, and tables of all blocks in the order of a message's."""


class Ops(Protocol):
    """See the module's text. No pass takes more calls of kernels for more parameters."""

    device: torch.device
    on_host: ClassVar[bool]
    """Whether tensors lie in the CPU's memory, where anybody can look at them."""
    threads: int
    """How many share the CPU's work: passes, and messages."""

    # Memory

    def empty(self, size: int, dtype: Any) -> Any:
        """A one-dimensional array, its contents undefined."""

    def zeros(self, size: int, dtype: Any) -> Any:
        """The same, of zeros."""

    def array(self, tensor: Tensor) -> Any:
        """A contiguous tensor of this device as an array in the same memory; 16-bit floats as their bits."""

    def tensor(self, array: Any) -> Tensor:
        """An array of this device as a tensor in the same memory."""

    def fetch_all(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """Arrays in the CPU's memory; waits once, for what was started before."""

    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """NumPy arrays on this device. Does not wait."""

    def target(self, elements: int, rule: ThresholdRule, readback: Readback) -> Target:
        """Room for the sparse passes of a bucket over so many elements; holds until the next call."""

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> Flags:
        """Whether an element of each gradient is not zero (NaN is not), bool [m]. Waits once."""

    def gather(self, gradients: Sequence[Tensor], readback: Readback) -> tuple[Any, Pending[Flags]]:
        """Gradients as float32 one behind the other, and whether each has an element that is not finite."""

    def squares(self, tensors: Sequence[Tensor | None], readback: Readback) -> Pending[Floats64]:
        """Sums of squares of float32 tensors as they are now, float64 [m]; 0 for None."""

    def exact_squares(self, batch: Batch, readback: Readback) -> Pending[Floats64]:
        """Sums of squares of gradients, n at least 1, to the same bits on every device.

        Each square, in float64, becomes a whole number of a power of two (`scales_of`): integers come to the
        same in any order. It means nothing where a square is not finite. May wait once.
        """

    def samples(self, batch: Batch, counts: Sequence[int], readback: Readback) -> Pending[list[Floats32]]:
        """Some values of residual + gradient of each parameter, one in each of equal strata.

        `counts` says how many of each, at most its elements; `ops.uniform.positions_of`, which.
        """

    def ranked_samples(
        self, batch: Batch, counts: Sequence[int], ranks: Sequence[int]
    ) -> tuple[Floats32, Flags]:
        """Returns, for as many samples, the magnitude of a rank, and whether one is not finite. Waits once.

        Ranks are from 1, the largest magnitude. A magnitude means nothing where a sample is not finite.
        """

    def clamp(self, tensors: Sequence[Tensor], limits: Sequence[float]) -> None:
        """Brings the elements of each float32 tensor between the negative of its limit and the limit."""
        if tensors:  # torch's own operations serve every device
            torch._foreach_clamp_max_(list(tensors), limits)
            torch._foreach_clamp_min_(list(tensors), [-limit for limit in limits])

    # Sparse passes

    def apply_momentum(self, batch: Batch, velocities: Sequence[Tensor], momentum: float) -> Batch:
        """velocity = momentum * velocity + gradient, float32: the gradients of the batch that is returned.

        The velocities themselves, float32 [n], change only where that is finite. What is returned holds until
        the next call for another bucket.
        """

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, target: Target, taus: Sequence[float]
    ) -> Pending[Selected]:
        """Adds gradients to residuals, moves what reaches tau (strom: exceeds it) out, keeps the rest.

        A tau is a float32's value greater than 0; each parameter's positions ascend.
        """

    def take_largest(self, batch: Batch, target: Target, counts: Sequence[int]) -> Pending[Selected]:
        """The same for the largest magnitudes of each parameter, at most `counts` of them.

        Of equal magnitudes the lower positions are sent; fewer where fewer reach the smallest tau, and none
        where a sum is not finite.

        Raises:
            ValueError: a count is negative.
        """

    def take_largest_of_chunks(
        self, batch: Batch, target: Target, chunk: int, keep: int
    ) -> Pending[Selected]:
        """The same for the `keep` largest magnitudes of every `chunk` elements, a power of two.

        Every chunk sends exactly min(keep, its length) elements, zeros too where it must; fewer where sums
        are not finite.

        Raises:
            ValueError: chunk or keep is out of its range.
        """

    # Quantizing passes

    def extremes(self, batch: Batch, readback: Readback) -> tuple[Any, Pending[Extremes]]:
        """Adds gradients to residuals, and finds the range of each parameter, none of them empty.

        Also returns what `linear_between` takes.
        """

    def quantize(self, form: Form, work: Quantizing) -> Pending[Kept]:
        """Quantizes residual + gradient of each parameter, in its blocks.

        Forms are `linear`, `fp8`, `fp16` and `bf16` (`ops.cpu.by_range` defines them), and `quantile`
        (`ops.cpu.quantile`).
        """

    def linear_between(self, work: Quantizing, bits: Sequence[int], ranges: Any) -> Pending[Kept]:
        """The same uniformly, of parameters that are one block each and have bits of their own.

        Residuals hold the gradients already: `ranges` is from `extremes`. Bits do not matter where a range is
        not finite.
        """

    # What is sent, in float32 arrays

    def add_values(
        self, form: str, sources: Sources, block: int, rows: Numbers, out: Any, starts: Numbers, divisor: int
    ) -> None:
        """Adds what values of some parameters, or pieces of them, stand for.

        Args:
            form: of the values: `f32`, `fp16`, `bf16`, `fp8`, `linear` or `quantile`.
            sources: of each worker, whose values are added in this order.
            block: elements that share tables (0: a block for each row).
            rows: int64 [r, 4], where each row's symbols begin, how many; the first of its blocks, how many.
            out: float32.
            starts: int64 [r], where each one's values begin there.
            divisor: 0 adds to what `out` holds; otherwise the sum replaces that, divided by this.
        """

    def add_words(self, words: Any, ends: Numbers, rows: Numbers, taus: Floats32 | None, values: Any) -> None:
        """Adds what words stand for to float32 memory.

        Args:
            words: uint32 [k], position << 1 | sign, positions distinct.
            ends: int64 [m], where the words of each parameter end.
            rows: int64 [m, 4], as of a `Batch`; what stands for residuals receives the values.
            taus: float32 [m]: +-tau is added, by the words' signs, or levels times tau; None for values.
            values: float32 [k], uint8 [k] levels, or nothing beside taus alone; None sets elements to zero.
        """


def scales_of(largest: Floats32, sizes: Numbers) -> Floats64:
    """Powers of two for `Ops.exact_squares`, by the largest magnitudes among so many elements each."""
    _, exponents = np.frexp(np.square(largest.astype(np.float64)))
    lengths = np.array([size.bit_length() for size in sizes.tolist()], np.int64)
    return ((62 - lengths - exponents + 1023) << 52).view(np.float64)
