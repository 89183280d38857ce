"""Adding the elements sent to a dense array on a device; the bits of `ops.cpu.sparse`. Nothing here waits."""

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


def add_taus(runtime: Runtime, words: Any, tau: float, dense: Any) -> None:
    """Adds +tau or -tau.

    Args:
        runtime: the device, where all arrays lie.
        words: uint32 [k], position << 1 | sign (1 is minus), positions distinct.
        tau: a float32.
        dense: float32 [n], changed in place.
    """
    k, n = int(words.size), int(dense.size)
    _launch(runtime, "add_taus", words, k, float_bits(tau), dense, n)


def add_levels(runtime: Runtime, words: Any, levels: Any, tau: float, dense: Any) -> None:
    """Adds level * tau, signed.

    Args:
        runtime: the device.
        words: as for `add_taus`.
        levels: uint8 [k].
        tau: a float32.
        dense: float32 [n], changed in place.

    Raises:
        ValueError: levels of another type or length.
    """
    _check(words, levels, np.uint8)
    k, n = int(words.size), int(dense.size)
    _launch(runtime, "add_levels", words, levels, k, float_bits(tau), dense, n)


def add_values(runtime: Runtime, words: Any, values: Any, dense: Any) -> None:
    """Adds values, which have their signs.

    Args:
        runtime: the device.
        words: as for `add_taus`; their signs are not looked at.
        values: float32 [k].
        dense: float32 [n], changed in place.

    Raises:
        ValueError: values of another type or length.
    """
    _check(words, values, np.float32)
    _launch(runtime, "add_values", words, values, int(words.size), dense, int(dense.size))
