"""The headers of many messages at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.cpu.byte_rows import Numbers
from ..forms import FORMS, Form
from ..message import HEADER, MAGIC, SYMBOLS, VERSION

HUFFMAN = SYMBOLS.index("huffman")
"""How a header says that symbols are Huffman coded."""
LENGTH_AT = 20
"""Where in a header the length of the body stands."""


def headers(form: Form, n: Numbers, counts: Numbers, taus: NDArray[np.float32] | None) -> NDArray[Any]:
    """HEADER [m], without what is only known when bodies are: codec, symbols, length and checksum.

    Args:
        form: of all.
        n: int64 [m], elements of each gradient.
        counts: int64 [m], elements sent of each.
        taus: float32 [m], None for forms without tau.
    """
    made = np.zeros(n.size, HEADER)
    made["magic"], made["version"], made["form"] = MAGIC, VERSION, FORMS[form].code
    made["n"], made["k"] = n, counts
    if taus is not None:
        made["tau"] = taus
    return made
