"""Adding the elements sent to a dense array on a device; the bits of `ops.cpu.sparse`. Nothing here waits.

Arguments are those of `Ops.add_words`, but of one parameter; `runtime` is the device, where all arrays lie.
"""

from typing import Any

import numpy as np

from .runtime import Runtime, float_bits

_THREADS = 256


def _launch(runtime: Runtime, kernel: str, words: Any, *arguments: Any) -> None:
    blocks = -(-int(words.size) // _THREADS)
    runtime.launch("sparse_add", kernel, blocks, _THREADS, words, *arguments)


def _check(words: Any, values: Any, dtype: Any) -> None:
    if values.size != words.size or values.dtype != dtype:
        raise ValueError(
            f"{values.size} {values.dtype} values for {words.size} words; {np.dtype(dtype)} needed"
        )


def add_taus(runtime: Runtime, words: Any, tau: float, shift: int, dense: Any) -> None:
    """Adds +tau or -tau."""
    k, n = int(words.size), int(dense.size)
    _launch(runtime, "add_taus", words, k, float_bits(tau), shift, dense, n)


def add_levels(runtime: Runtime, words: Any, levels: Any, tau: float, shift: int, dense: Any) -> None:
    """Adds level * tau, signed.

    Raises:
        ValueError: levels of another type or length.
    """
    _check(words, levels, np.uint8)
    k, n = int(words.size), int(dense.size)
    _launch(runtime, "add_levels", words, levels, k, float_bits(tau), shift, dense, n)


def add_values(runtime: Runtime, words: Any, values: Any, shift: int, dense: Any) -> None:
    """Adds values, which have their signs.

    Raises:
        ValueError: values of another type or length.
    """
    _check(words, values, np.float32)
    _launch(runtime, "add_values", words, values, int(words.size), shift, dense, int(dense.size))
