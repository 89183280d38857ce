"""The sparse passes on a device: they write the bits of those of ops/cpu. Nothing here waits.

Every pass adds a gradient, float32 [n], to a residual, moves some elements into the output, and keeps the
rest. How many words there are then is in its report, and the next pass appends behind them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...method.base import ThresholdRule, check_chunks
from .device import Device, float_bits
from .quantizing import lay_out
from .reports import Reports

_THREADS = 256
_TILE = 4096
"""Elements that a block of threads looks at together, as in threshold.cu and topk.cu."""
_MOST_COUNTING = 1024
"""Blocks of threads that count: all that an H100 or H200 runs at once."""
_LEVELS = 3
_BINS = 2048


def _tiles(n: int) -> int:
    return (n + 3 + _TILE - 1) // _TILE  # a tile may begin up to three elements before the first


def threshold_pass(
    device: Device, rule: ThresholdRule, residual: Any, gradient: Any, tau: float, base: int, words: Any,
    values: Any, reports: Reports,
) -> None:  # fmt: skip
    """What reaches tau (strom: exceeds it); see `ops.cpu.threshold`."""
    n = int(residual.size)
    states = device.zeros(_tiles(n) + 1, np.uint64)
    device.launch(
        "threshold", rule, _tiles(n), _THREADS,
        residual, gradient, n, float_bits(tau), base, words, values, states, reports.begin(),
    )  # fmt: skip


def topk_pass(
    device: Device, residual: Any, gradient: Any, k: int, base: int, words: Any, values: Any, reports: Reports
) -> None:
    """The k largest magnitudes; see `ops.cpu.topk`.

    Raises:
        ValueError: k is negative, or n is too large.
    """
    n = int(residual.size)
    if k < 0 or n >= 2**31:
        raise ValueError(f"k must be 0 or more and n less than 2^31, not {k} and {n}")
    report, tiles = reports.begin(), _tiles(n)
    counting = min(tiles, _MOST_COUNTING)
    histograms, search = device.zeros(_LEVELS * _BINS, np.uint32), device.zeros(2, np.uint32)
    for level in range(_LEVELS):
        histogram = histograms[level * _BINS : (level + 1) * _BINS]
        if level == 0:
            arguments = (residual, gradient, n, tiles, histogram, report)
            device.launch("topk", "take_up", counting, _THREADS, *arguments)
        else:
            device.launch("topk", "count", counting, _THREADS, residual, n, tiles, level, search, histogram)
        device.launch("topk", "narrow_down", 1, _THREADS, histogram, level, k, search, report)
    states = device.zeros(tiles + 1, np.uint64)
    device.launch(
        "topk", "send_top", tiles, _THREADS, residual, n, base, search, words, values, states, report
    )


def chunked_pass(
    device: Device, residual: Any, gradient: Any, chunk: int, keep: int, base: int, words: Any, values: Any,
    reports: Reports,
) -> None:  # fmt: skip
    """The `keep` largest magnitudes of every chunk; see `ops.cpu.chunked`.

    A block of threads works on a chunk: chunks of less than 512 elements leave most of a GPU idle.

    Raises:
        ValueError: chunk or keep is out of its range.
    """
    check_chunks(chunk, keep)
    n = int(residual.size)
    chunks = max(1, -(-n // chunk))  # one without elements hands on how many words there are
    states = device.zeros(chunks + 1, np.uint64)
    device.launch(
        "chunked", "chunked", chunks, lay_out(chunk, chunk).threads,
        residual, gradient, n, chunk, keep, base, words, values, states, reports.begin(),
    )  # fmt: skip


def _signed(words: Any) -> Tensor:
    """Words as int64 [k]."""
    signed: Tensor = words.memory.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    return signed


def clear(words: Any, base: int, dense: Tensor) -> None:
    """Sets to zero the elements of `dense` (float32 [n]) that words name; dense[0] has position `base`."""
    dense.index_fill_(0, (_signed(words) >> 1) - base, 0)


def add_words(words: Any, amounts: Tensor, shift: int, dense: Tensor) -> None:
    """Adds amounts, float32 [k], to the elements that words name, `shift` behind their positions."""
    dense.index_add_(0, (_signed(words) >> 1) + shift, amounts)


def amounts_of(device: Device, words: Any, beside: Any, tau: float | None) -> Tensor:
    """What words of one parameter stand for, float32 [k]; see `Ops.add_words`."""
    if tau is None:
        return device.tensor(beside)
    by = torch.full((), tau, dtype=torch.float32, device=device.device)
    magnitudes = device.tensor(beside).float() * by if beside.size else by
    return torch.where((_signed(words) & 1).bool(), -magnitudes, magnitudes)
