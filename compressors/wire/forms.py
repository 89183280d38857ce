"""The forms of values on the wire: the meaning of a message's `form`, whichever rule chose the values."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Form = Literal["bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile"]


@dataclass(frozen=True)
class FormTraits:
    """How one form is encoded in a message."""

    code: int
    has_tau: bool = False
    """Whether an element is +-tau, or a multiple of it: then its sign stands with its position."""
    dtype: np.dtype[Any] | None = None
    """Type of a value that is no symbol."""
    symbols: bool = False
    """Whether values are symbols, which a Huffman code may shorten."""
    quantized: bool = False
    """Whether symbols have ranges or tables of blocks."""
    paper_bits: int = 0
    """Value bits of an element sent, as Anoosheh counts them (section 2.1); quantized: a symbol's."""
    dense_dtype: np.dtype[Any] | None = None
    """Type of one element when all n are written out, zeros for those not sent; None: never."""


_U2, _F4 = np.dtype("<u2"), np.dtype("<f4")

FORMS: dict[Form, FormTraits] = {
    "bgt": FormTraits(2, has_tau=True, paper_bits=1, dense_dtype=np.dtype("i1")),
    "qgt": FormTraits(3, has_tau=True, symbols=True, paper_bits=8, dense_dtype=np.dtype("<i2")),
    "strom": FormTraits(4, has_tau=True, paper_bits=1, dense_dtype=np.dtype("i1")),
    "f32": FormTraits(5, dtype=_F4, paper_bits=32, dense_dtype=_F4),
    "fp16": FormTraits(6, dtype=_U2, paper_bits=16),
    "bf16": FormTraits(7, dtype=_U2, paper_bits=16),
    "fp8": FormTraits(8, symbols=True, quantized=True),
    "linear": FormTraits(9, symbols=True, quantized=True),
    "quantile": FormTraits(10, symbols=True, quantized=True),
}
FORM_OF_CODE: dict[int, Form] = {traits.code: form for form, traits in FORMS.items()}
