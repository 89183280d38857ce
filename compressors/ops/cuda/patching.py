"""The passes of weight patches on a device: a launch for all pieces, of fewer than 2^31 elements together."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..patching import Changes, PatchOps, Piece, Steps, Taken
from .device import Device, DeviceArray

_THREADS = 256
_TILE = 4096
"""Elements that a block of threads compares, as in patching.cu."""
_SPARSE = 8
"""There is room for one element in so many at first; where more differ, the pass runs once more."""
_LARGEST = 2**31 - 1


class CudaPatching(PatchOps):
    """See `PatchOps`."""

    def __init__(self, device: Device) -> None:
        """Works where a device's kernels do."""
        self._device = device

    def digest(self, pieces: Sequence[Piece]) -> list[int]:
        sums = [self._compare(some, some, 0, digested=True)[0][:, 1] for some in _batches(pieces)]
        return [int(each) for each in np.concatenate(sums)] if sums else []

    def compare(self, before: Sequence[Piece], after: Sequence[Piece], *, digested: bool) -> list[Changes]:
        found, rest = list[Changes](), list(after)
        for olds in _batches(before):
            news, rest = rest[: len(olds)], rest[len(olds) :]
            room = sum(piece.tensor.numel() for piece in olds) // _SPARSE + _TILE
            sums, words, steps = self._compare(olds, news, room, digested=digested)
            total = int(sums[:, 0].sum())
            if total > room:
                _, words, steps = self._compare(olds, news, total, digested=False)
            hosts = self._device.fetch_all([words[:total], steps[:total]])
            found += _split(olds, sums, *hosts)
        return found

    def _compare(
        self, before: Sequence[Piece], after: Sequence[Piece], room: int, *, digested: bool
    ) -> tuple[NDArray[np.uint64], DeviceArray, DeviceArray]:
        sizes = [piece.tensor.numel() for piece in before]
        tiles = np.cumsum([0, *(-(-size // _TILE) for size in sizes)])
        bases = np.cumsum([0, *sizes])
        rows = [
            (*_row(old), new.tensor.data_ptr(), base, begin)
            for old, new, base, begin in zip(before, after, bases.tolist(), tiles.tolist(), strict=False)
        ]
        words, steps = self._device.empty(room, np.uint32), self._device.empty(room, np.uint64)
        sums, states = (
            self._device.zeros(3 * len(rows), np.uint64),
            self._device.zeros(int(tiles[-1]) + 1, np.uint64),
        )
        last = words, steps, room, states, sums, int(digested)
        self._device.launch(
            "patching", "compare", int(tiles[-1]), _THREADS, self._parts(rows), len(rows), *last
        )
        return self._device.fetch_all([sums])[0].reshape(-1, 3), words, steps

    def _parts(self, rows: Sequence[tuple[int, ...]]) -> DeviceArray:
        """Rows as patching.cu's `Part`: bits, n, width, floats, first, other, base, begin in its order."""
        table = np.array(rows, np.int64).reshape(-1, 8)[:, [0, 5, 1, 6, 2, 3, 4, 7]]
        (placed,) = self._device.place_all([table.reshape(-1)])
        return placed

    def take_steps(self, pieces: Sequence[Piece], steps: Sequence[Steps]) -> list[Taken]:
        outs = [
            torch.empty(each.words.size, dtype=piece.tensor.dtype, device=piece.tensor.device)
            for piece, each in zip(pieces, steps, strict=True)
        ]
        sums = self._device.zeros(len(pieces), np.uint64)
        words, values = (np.concatenate([np.empty(0, np.uint32), *each]) for each in zip(*steps, strict=True))
        if words.size:
            placed = self._device.place_all([words.astype(np.uint32), values.astype(np.uint64)])
            self._over_words("take_steps", pieces, outs, [each.words.size for each in steps], *placed, sums)
        changes = self._device.fetch_all([sums])[0].tolist()
        return [
            Taken(each.words, out, change) for each, out, change in zip(steps, outs, changes, strict=True)
        ]

    def scatter(self, pieces: Sequence[Piece], taken: Sequence[Taken]) -> None:
        words = np.concatenate([np.empty(0, np.uint32), *(each.words for each in taken)])
        if words.size:
            counts, outs = [each.words.size for each in taken], [each.bits for each in taken]
            self._over_words("scatter", pieces, outs, counts, *self._device.place_all([words]))

    def _over_words(
        self,
        kernel: str,
        pieces: Sequence[Piece],
        outs: Sequence[torch.Tensor],
        counts: Sequence[int],
        *last: Any,
    ) -> None:
        """A launch with a thread for each word of all pieces."""
        begins, total = np.cumsum([0, *counts]).tolist(), sum(counts)
        # The last of those that begin at a word has it: pieces without words stand before, or at the end.
        some = range(max((i + 1 for i, count in enumerate(counts) if count), default=0))
        rows = [(*_row(pieces[i]), outs[i].data_ptr(), 0, begins[i]) for i in some]
        given = self._parts(rows), len(rows), total, *last
        self._device.launch("patching", kernel, -(-total // _THREADS), _THREADS, *given)


def _row(piece: Piece) -> tuple[int, ...]:
    tensor = piece.tensor
    return tensor.data_ptr(), tensor.numel(), tensor.element_size(), int(piece.floats), piece.first


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Neighbouring pieces of so few elements that positions fit words."""
    batch, size = list[Piece](), 0
    for piece in pieces:
        if size + piece.tensor.numel() > _LARGEST:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.tensor.numel()
    if batch:
        yield batch


def _split(
    pieces: Sequence[Piece], sums: NDArray[np.uint64], words: NDArray[np.uint32], steps: NDArray[np.uint64]
) -> Iterator[Changes]:
    begin = base = 0
    for piece, (count, digest, change) in zip(pieces, sums.tolist(), strict=True):
        own = slice(begin, begin + (0 if count > piece.tensor.numel() // 2 else count))
        yield Changes(count, words[own] - np.uint32(base << 1), steps[own], digest, change)
        begin += count
        base += piece.tensor.numel()
