"""Every element written out, on a device; the bytes are those of the codec `raw`. Nothing here waits.

Arguments are those of `Wire`; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from ..faults import Faults
from ..results import ThresholdRule
from .runtime import Runtime

_THREADS = 256
_TILE = 2048
"""Elements that a block of threads reads, as in raw.cu."""
_KERNEL: dict[ThresholdRule, str] = {"wgt": "wgt", "bgt": "signs", "strom": "signs", "qgt": "levels"}


def write_raw(runtime: Runtime, form: ThresholdRule, words: Any, values: Any, out: Any) -> None:
    """Writes the elements sent."""
    k = int(words.size)
    arguments = (words, k, out) if _KERNEL[form] == "signs" else (words, values, k, out)
    runtime.launch("raw", f"write_{_KERNEL[form]}", -(-k // _THREADS), _THREADS, *arguments)


def read_raw(
    runtime: Runtime, form: ThresholdRule, body: Any, n: int, k: int, faults: Faults
) -> tuple[Any, Any]:
    """Reads what `write_raw` wrote.

    Returns:
        uint32 [k] words; and float32 [k] values (wgt), uint8 [k] levels (qgt), uint8 [0] for the others.
        Whether wgt's values are such as reach tau is not looked at.
    """
    words, tiles = runtime.empty(k, np.uint32), -(-n // _TILE)
    states = runtime.zeros(tiles + 1, np.uint64)
    values = runtime.empty(0 if _KERNEL[form] == "signs" else k, np.float32 if form == "wgt" else np.uint8)
    outputs = (words,) if _KERNEL[form] == "signs" else (words, values)
    arguments = (body, n, k, *outputs, states, faults.array)
    runtime.launch("raw", f"read_{_KERNEL[form]}", tiles, _THREADS, *arguments)
    return words, values
