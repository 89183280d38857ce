"""The small parts of payloads that the host reads or writes itself, many with one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..faults import WRONG_LENGTHS
from ..results import Found
from .runtime import Runtime

_THREADS = 32
_FIELDS = 7
"""64-bit words that are told of a message, as in payloads.cu."""
_HEADER, _BEHIND = 32, 8
_WRONG = {-1: WRONG_LENGTHS["header"], -2: WRONG_LENGTHS["body"], -3: WRONG_LENGTHS["most"]}


def find_messages(
    runtime: Runtime, payloads: Any, stride: int, sizes: Sequence[int], most: int
) -> list[list[Found] | str]:
    """Cuts payloads into messages by the lengths in their headers. Waits once.

    Args:
        runtime: the device.
        payloads: uint8 on it, one payload every `stride` bytes.
        stride: at least as long as each payload.
        sizes: bytes of the payloads.
        most: how many messages each may have.

    Returns:
        For each payload its messages, or what is wrong with their lengths.
    """
    rows = len(sizes)
    told = runtime.zeros(rows * (1 + most * _FIELDS), np.int64)
    placed = runtime.place(np.array(sizes, np.int64))
    arguments = (payloads, stride, placed, rows, most, told[:rows], told[rows:])
    runtime.launch("payloads", "find_messages", -(-rows // _THREADS), _THREADS, *arguments)
    fetched: NDArray[np.int64] = runtime.fetch(told)
    fields = fetched[rows:].reshape(rows, most, _FIELDS)
    return [
        _WRONG[int(count)] if count < 0 else [_found(each) for each in fields[row, :count]]
        for row, count in enumerate(fetched[:rows])
    ]


def _found(fields: NDArray[np.int64]) -> Found:
    taken = np.ascontiguousarray(fields[2:]).view(np.uint8)
    return Found(int(fields[0]), int(fields[1]), taken[:_HEADER], taken[_HEADER : _HEADER + _BEHIND])


def peek(runtime: Runtime, body: Any, begin: Any, out: Any) -> None:
    """Copies bytes of a body from a place that the device knows, zeros behind its end. Does not wait.

    Args:
        runtime: the device.
        body: uint8.
        begin: int64 [1], whatever it is.
        out: uint8.
    """
    size, most = int(body.size), int(out.size)
    runtime.launch("payloads", "peek", -(-most // _THREADS), _THREADS, body, size, begin, most, out)


class Pieces:
    """Bytes that the host has made, on their way to their places in a device array."""

    def __init__(self) -> None:
        """None so far."""
        self._bytes: list[NDArray[np.uint8]] = []
        self._places: list[tuple[int, int, int]] = []
        self._size = 0

    def add(self, data: NDArray[np.uint8], at: int) -> None:
        """Wants uint8 bytes at a place."""
        self._places.append((self._size, at, data.size))
        self._bytes.append(data)
        self._size += data.size

    def write_to(self, runtime: Runtime, out: Any) -> None:
        """Writes all of them to `out`, uint8, with one copy of the bytes. Does not wait."""
        if not self._places:
            return
        data = runtime.place(np.concatenate(self._bytes))
        places = runtime.place(np.array(self._places, np.int64).reshape(-1))
        runtime.launch("payloads", "scatter", len(self._places), _THREADS, data, places, out)
