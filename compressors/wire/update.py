"""What a worker sends for one synchronization, before it is encoded.

Legend: n elements, k of them sent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.array import Array, host
from ..ops.cpu.chunked import index_count
from ..ops.cpu.ops import CPU
from ..ops.interface import Ops
from .forms import FORMS, Form
from .quantized import Quantized

NO_TAU = np.float32(0)
"""The tau of forms that have none."""


@dataclass(frozen=True)
class Chunks:
    """From every `chunk` consecutive elements (the last may be fewer) `keep` are sent, or all."""

    chunk: int
    """A power of two."""
    keep: int

    def count(self, n: Any) -> Any:
        """Elements sent of n (a number, or an array of them)."""
        return index_count(n, self.chunk, self.keep)


@dataclass(slots=True)
class Update:
    """k of n elements, each with a position, a sign and, depending on the form, a value.

    Not frozen: a frozen one takes three times as long to create, and a step has one for each threshold of
    each worker. Nobody changes one.

    Attributes:
        form: what the values are.
        n: elements of the gradient, at most 2^31 - 1.
        tau: the threshold they were chosen with; part of the value for bgt, qgt and strom; 0 for forms that
            have none.
        words: uint32 [k], position << 1 | sign, ascending; None where all n elements are sent.
        values: float32 [k] signed values (wgt, f32), uint8 [k] levels 1 to 255 (qgt), uint8 [0] (bgt, strom),
            uint16 [k] the bits of 16-bit floats (fp16, bf16), or symbols and their tables.
        chunks: what the positions are regular in, if they are.
    """

    form: Form
    n: int
    tau: np.float32
    words: Array | None
    values: Array | Quantized
    chunks: Chunks | None = None

    @property
    def k(self) -> int:
        """Elements sent."""
        return self.n if self.words is None else int(self.words.size)

    @property
    def value_bits(self) -> int:
        """Value bits of an element sent, as Anoosheh counts them."""
        return self.values.bits if isinstance(self.values, Quantized) else FORMS[self.form].paper_bits

    @property
    def paper_bits(self) -> int:
        """Value bits of the whole update."""
        return self.k * self.value_bits

    @classmethod
    def empty(cls, form: Form, n: int, tau: np.float32 = NO_TAU, ops: Ops = CPU) -> "Update":
        """An update in which nothing is sent."""
        return cls(form, n, tau, ops.empty(0, np.uint32), ops.empty(0, FORMS[form].dtype))

    def signed_floats(self, ops: Ops = CPU) -> Any:
        """float32 [k], what is sent for each element, of forms whose values carry their sign."""
        if not self.k:
            return ops.empty(0, np.float32)
        if isinstance(self.values, Quantized):
            return self.values.floats(ops)
        if self.form == "fp16" or self.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            out = ops.empty(self.k, np.float32)
            ops.half_values(self.form, self.values, out, False)
            return out
        return self.values

    def floats(self) -> NDArray[np.float32]:
        """float32 [k], the signed amount that is sent for each element; in the CPU's memory."""
        if self.words is None or not FORMS[self.form].sign_apart:
            amounts: NDArray[np.float32] = self.signed_floats()
            return amounts
        amounts = np.full(self.k, self.tau, np.float32)
        if self.form == "qgt":
            assert not isinstance(self.values, Quantized)
            amounts *= host(self.values).astype(np.float32)
        return np.where(host(self.words) & 1, -amounts, amounts)
