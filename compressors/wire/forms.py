"""The forms of values on the wire: the meaning of a message's `form`, whichever rule chose the values."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Form = Literal["wgt", "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile"]


@dataclass(frozen=True)
class FormTraits:
    """How one form is encoded in a message."""

    code: int
    dtype: np.dtype[Any]
    """Type of an element of `Update.values`, of a symbol where values are quantized."""
    has_tau: bool = False
    """Whether tau is part of what a value means or may be."""
    sign_apart: bool = False
    """Whether the sign needs a bit of its own (a float carries it)."""
    symbols: bool = False
    """Whether values are symbols, which a Huffman code may shorten."""
    quantized: bool = False
    """Whether values are symbols with ranges or tables of blocks (`Quantized`)."""
    paper_bits: int = 0
    """Value bits of an element sent, as Anoosheh counts them (section 2.1); quantized forms know theirs."""
    dense_dtype: np.dtype[Any] | None = None
    """Type of one element when all n are written out, zeros for those not sent; None: never."""


_U8, _U16, _F32 = np.dtype("u1"), np.dtype("<u2"), np.dtype("<f4")

FORMS: dict[Form, FormTraits] = {
    "wgt": FormTraits(1, _F32, has_tau=True, paper_bits=32, dense_dtype=_F32),
    "bgt": FormTraits(2, _U8, has_tau=True, sign_apart=True, paper_bits=1, dense_dtype=np.dtype("i1")),
    "qgt": FormTraits(
        3, _U8, has_tau=True, sign_apart=True, symbols=True, paper_bits=8, dense_dtype=np.dtype("<i2")
    ),
    "strom": FormTraits(4, _U8, has_tau=True, sign_apart=True, paper_bits=1, dense_dtype=np.dtype("i1")),
    "f32": FormTraits(5, _F32, paper_bits=32),
    "fp16": FormTraits(6, _U16, paper_bits=16),
    "bf16": FormTraits(7, _U16, paper_bits=16),
    "fp8": FormTraits(8, _U8, symbols=True, quantized=True),
    "linear": FormTraits(9, _U16, symbols=True, quantized=True),
    "quantile": FormTraits(10, _U16, symbols=True, quantized=True),
}
FORM_OF_CODE: dict[int, Form] = {traits.code: form for form, traits in FORMS.items()}
