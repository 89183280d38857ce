"""The headers of many messages at once."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.offsets import Numbers
from ..forms import FORMS, Form
from ..message import HEADER, HEADER_BYTES, MAGIC, SYMBOLS, VERSION

HUFFMAN = SYMBOLS.index("huffman")
"""How a header says that symbols are Huffman coded."""
_BY_BODY = ("codec", "symbols", "length", "crc")
"""The fields that are only known when bodies are."""


def headers(form: Form, n: Numbers, counts: Numbers, taus: NDArray[np.float32] | None) -> NDArray[Any]:
    """HEADER [m], with zeros for what is only known when bodies are: codec, symbols, length and checksum.

    Args:
        form: of all.
        n: int64 [m], elements of each gradient.
        counts: int64 [m], elements sent of each.
        taus: float32 [m], None for forms without tau.
    """
    made = _of(form, n.tobytes()).copy()
    if counts is not n:
        made["k"] = counts
    if taus is not None:
        made["tau"] = taus
    return made


@lru_cache(64)  # every step asks for the same
def _of(form: Form, n: bytes) -> NDArray[Any]:
    """Headers of gradients that are sent whole."""
    sizes = np.frombuffer(n, np.int64)
    made = np.zeros(sizes.size, HEADER)
    made["magic"], made["version"], made["form"] = MAGIC, VERSION, FORMS[form].code
    made["n"] = made["k"] = sizes
    return made


def _mask() -> NDArray[np.uint8]:
    """uint8 [HEADER_BYTES], 0 where a field is only known when bodies are."""
    mask = np.full(HEADER_BYTES, 255, np.uint8)
    for name in _BY_BODY:
        mask.view(HEADER)[name] = 0
    return mask


_MASK = _mask()


def fit(said: NDArray[Any], due: NDArray[Any]) -> bool:
    """Whether HEADER [m] from the wire are what `headers` makes, but for what is only known by bodies."""
    masked = said.view(np.uint8).reshape(-1, HEADER_BYTES) & _MASK
    return masked.tobytes() == due.tobytes()
