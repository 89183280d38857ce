"""The forms of values on the wire, whichever rule chose the values, and the tables of blocks beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CorruptMessage
from ..lazy import np
from ..ops.array import Floats32, NDArray, Numbers
from ..ops.interface import FP8_EXPONENTS, LARGEST_MEAN, QUANTILE_EXPONENTS, SMALLEST_TAU, Form


@dataclass(frozen=True)
class FormTraits:
    """How one form is encoded in a message."""

    code: int
    has_tau: bool = False
    """Whether an element is +-tau, or a multiple of it: then its sign stands with its position."""
    type_name: str = ""
    """NumPy's name of the type of a value that is no symbol."""
    symbols: bool = False
    """Whether values are symbols, which a Huffman code may shorten."""
    quantized: bool = False
    """Whether symbols have ranges or tables of blocks."""
    paper_bits: int = 0
    """Value bits of an element sent, as Anoosheh counts them (section 2.1); quantized: a symbol's."""
    dense_name: str = ""
    """Likewise of one element when all n are written out, zeros for those not sent; empty: never."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type of a value."""
        return np.dtype(self.type_name) if self.type_name else None

    @property
    def dense_dtype(self) -> np.dtype[Any] | None:
        """The type of an element that is written out."""
        return np.dtype(self.dense_name) if self.dense_name else None


_U2, _F4 = "<u2", "<f4"

FORMS: dict[Form, FormTraits] = {
    "bgt": FormTraits(2, has_tau=True, paper_bits=1, dense_name="i1"),
    "qgt": FormTraits(3, has_tau=True, symbols=True, paper_bits=8, dense_name="<i2"),
    "strom": FormTraits(4, has_tau=True, paper_bits=1, dense_name="i1"),
    "f32": FormTraits(5, type_name=_F4, paper_bits=32, dense_name=_F4),
    "fp16": FormTraits(6, type_name=_U2, paper_bits=16),
    "bf16": FormTraits(7, type_name=_U2, paper_bits=16),
    "fp8": FormTraits(8, symbols=True, quantized=True),
    "linear": FormTraits(9, symbols=True, quantized=True),
    "quantile": FormTraits(10, symbols=True, quantized=True),
    "steps": FormTraits(11, symbols=True),
    "bits": FormTraits(12, type_name="u1"),
    "patch": FormTraits(13, type_name="u1"),
}
GRADIENT_FORMS = tuple(form for form in FORMS if form not in ("steps", "bits", "patch"))
"""The others are of weight patches alone."""
FORM_OF_CODE: dict[int, Form] = {traits.code: form for form, traits in FORMS.items()}


def table_layout(form: Form, bits: int) -> list[tuple[np.dtype[Any], int]]:
    """Type of a form's tables, and elements of each for a block of symbols of so many bits.

    `linear`: lows, steps. `quantile`: exponents, the bins' means as the bits of float16. `fp8`: exponents.
    """
    exponents = np.dtype("i1"), 1
    if form == "linear":
        return [(np.dtype(_F4), 1), (np.dtype(_F4), 1)]
    if form == "quantile":
        return [exponents, (np.dtype(_U2), 1 << bits)]
    return [exponents] if form == "fp8" else []


def require_written(form: Form, bits: Numbers, tables: Sequence[NDArray[Any]]) -> None:
    """CorruptMessage for tables that no quantizer writes; bits are int64 [blocks], of the symbols of each."""
    if form == "linear" and not _ranges_written(bits, *tables):
        raise CorruptMessage("a block's range is not finite, or its width is none that is written")
    if form == "quantile":
        exponents, means = tables
        largest = int((means & np.uint16(0x7FFF)).max(initial=0))
        if largest > LARGEST_MEAN or exponents.max(initial=0) > QUANTILE_EXPONENTS[1]:
            raise CorruptMessage("a bin's value is not finite, or scaled as none is written")
    least, most = FP8_EXPONENTS
    if form == "fp8" and not least <= int(tables[0].min()) <= int(tables[0].max()) <= most:
        raise CorruptMessage("a block of 8-bit floats is scaled as none is written")


def _ranges_written(bits: Numbers, lows: Floats32, steps: Floats32) -> bool:
    half = np.float32(0.5)
    with np.errstate(all="ignore"):
        highest = lows * half + (steps * half) * ((1 << bits) - 0.5).astype(np.float32)
        finite = np.isfinite(lows) & np.isfinite(highest + highest)
    steps_fit = (steps.view(np.uint32) == 0) | (steps >= np.float32(SMALLEST_TAU))
    return bool((finite & steps_fit & (lows.view(np.uint32) != 0x80000000)).all())
