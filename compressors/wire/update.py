"""What a worker sends for one synchronization, before it is written down as bytes.

Legend: n elements, k of them sent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.cpu import minifloat
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

    def count(self, n: int) -> int:
        """Elements sent of n."""
        whole, rest = divmod(n, self.chunk)
        return whole * self.keep + min(self.keep, rest)


@dataclass(slots=True)
class Update:
    """k of n elements, each with a position, a sign and, by form, a value.

    Not frozen, as a frozen one takes three times as long to make, and a step has one for each threshold of
    each worker; nobody changes one.

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
    words: NDArray[np.uint32] | None
    values: NDArray[Any] | Quantized
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
    def empty(cls, form: Form, n: int, tau: np.float32 = NO_TAU) -> "Update":
        """An update in which nothing is sent."""
        return cls(form, n, tau, np.empty(0, np.uint32), np.empty(0, FORMS[form].dtype))

    def floats(self) -> NDArray[np.float32]:
        """float32 [k], the signed amount that is sent for each element."""
        if isinstance(self.values, Quantized):
            return self.values.floats()
        if self.form in ("wgt", "f32"):
            return self.values
        if self.form in ("fp16", "bf16"):
            out = np.empty(self.k, np.float32)
            minifloat.half_values(self.form, self.values, out, add=False)
            return out
        assert self.words is not None
        amounts = np.full(self.k, self.tau, np.float32)
        if self.form == "qgt":
            amounts *= self.values.astype(np.float32)
        return np.where(self.words & 1, -amounts, amounts)
