"""Golomb-Rice coded positions on a device; the bytes are those of `ops.cpu.golomb_rice`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CorruptMessage
from ..faults import Faults, raise_for
from ..returns import Returns
from .runtime import Runtime

_THREADS, _TABLE_THREADS, _WARP = 256, 1024, 32
_TABLE_ENTRY = 6
_LEAST_LOG2, _MOST_LOG2 = 4, 14


@dataclass(frozen=True, eq=False)
class RicePlan:
    """What is known of a section before it is written.

    Attributes:
        words: uint32 [k] on the device.
        signed: whether signs are written.
        block_log2: log2 of a block's words.
        starts: int64 [blocks + 1] on the device, where blocks begin, and the section ends.
        size: bytes of the section, exactly.
    """

    words: Any
    signed: bool
    block_log2: int
    starts: Any
    size: int


def _blocks(k: int, block_log2: int) -> int:
    return -(-k >> block_log2)


def _threads(block_log2: int) -> int:
    """Of a block of threads: as many as have eight words each."""
    return min(max(1 << block_log2 >> 3, _WARP), _THREADS)


class Measured:
    """The sizes that a section has with blocks of each length, on their way to the host."""

    def __init__(
        self, runtime: Runtime, words: Any, signed: bool, block_log2s: Sequence[int], returns: Returns
    ) -> None:
        """Starts to measure. Does not wait; for arguments and errors see `plan`.

        Args:
            runtime: the device.
            words: k of them.
            signed: whether signs are written.
            block_log2s: what to try.
            returns: to be fetched before `plan` is called.
        """
        if not all(_LEAST_LOG2 <= log2 <= _MOST_LOG2 for log2 in block_log2s):
            raise ValueError(
                f"blocks of 2^{list(block_log2s)} words; {_LEAST_LOG2} to {_MOST_LOG2} are possible"
            )
        self._words, self._signed, self._log2s = words, signed, tuple(block_log2s)
        self._report = returns.take(1 + len(block_log2s), np.int64)  # faults, then sizes
        self._starts = []
        report = self._report.array
        for number, log2 in enumerate(block_log2s, 1):
            blocks = _blocks(int(words.size), log2)
            sizes, starts = runtime.empty(blocks, np.uint32), runtime.empty(blocks + 1, np.int64)
            _measure(runtime, words, signed, log2, sizes, report)
            total = report[number : number + 1]
            if blocks:
                runtime.launch("golomb_rice", "find_starts", 1, _TABLE_THREADS, sizes, blocks, starts, total)
            self._starts.append(starts)

    @property
    def fetched(self) -> bool:
        """Whether `plan` may be called."""
        return self._report.host is not None

    def plan(self) -> RicePlan:
        """The block length that makes the shortest section; raises ValueError if positions do not ascend."""
        faults, *totals = (int(each) for each in self._report.values)
        raise_for(faults)
        size, negative_log2, number = min(
            (total, -log2, i) for i, (total, log2) in enumerate(zip(totals, self._log2s, strict=True))
        )
        return RicePlan(self._words, self._signed, -negative_log2, self._starts[number], size)


def plan(runtime: Runtime, words: Any, signed: bool, block_log2s: Sequence[int]) -> RicePlan:
    """Finds the block length that makes the shortest section, the longest of equals. Waits once.

    Args:
        runtime: the device.
        words: uint32 [k] on it, position << 1 | sign; positions ascend and are below 2^31 - 1.
        signed: whether signs are written.
        block_log2s: log2 of the lengths to try, each 4 to 14.

    Raises:
        ValueError: positions do not ascend, or a length is out of range.
    """
    returns = Returns(runtime)
    measured = Measured(runtime, words, signed, block_log2s, returns)
    returns.fetch()
    return measured.plan()


def _measure(runtime: Runtime, words: Any, signed: bool, log2: int, sizes: Any, faults: Any) -> None:
    arguments = (words, int(words.size), int(signed), log2, sizes, faults)
    runtime.launch("golomb_rice", "measure", int(sizes.size), _threads(log2), *arguments)


def encode(runtime: Runtime, plan: RicePlan, out: Any) -> None:
    """Writes the section. Does not wait.

    Args:
        runtime: the device.
        plan: of the words, which are still the same.
        out: uint8 of exactly `plan.size` bytes, whatever they are, at any address.

    Raises:
        ValueError: out is of another length.
    """
    if out.size != plan.size:
        raise ValueError(f"{out.size} bytes are given, the section takes {plan.size}")
    k = int(plan.words.size)
    arguments = (plan.words, k, int(plan.signed), plan.block_log2, plan.starts, out)
    blocks = _blocks(k, plan.block_log2)
    runtime.launch("golomb_rice", "write_section", blocks, _threads(plan.block_log2), *arguments)


class Section:
    """The section that a body begins with, its table on the way to the host."""

    def __init__(self, runtime: Runtime, body: Any, n: int, k: int, signed: bool, returns: Returns) -> None:
        """Starts to look at the table. Does not wait; for arguments and errors see `decode`.

        Args:
            runtime: the device.
            body: may go on behind the section.
            n: positions are below it.
            k: how many words there are.
            signed: whether signs were written.
            returns: to be fetched before `used` and `read` are asked for.
        """
        self._runtime, self._body, self._k, self._signed = runtime, body, k, signed
        self._report = returns.take(3, np.int64)  # faults, where the section ends, log2 of a block's words
        if k == 0:
            return
        most_blocks = min(_blocks(k, _LEAST_LOG2), max(int(body.size) - 1, 0) // _TABLE_ENTRY)
        if most_blocks == 0:
            raise CorruptMessage(f"{body.size} bytes cannot hold a Golomb-Rice block")
        self._starts = runtime.empty(most_blocks + 1, np.int64)
        arguments = (body, int(body.size), n, k, int(signed), self._starts, self._report.array)
        runtime.launch("golomb_rice", "read_table", 1, _TABLE_THREADS, *arguments)

    @property
    def end(self) -> Any:
        """int64 [1] on the device: where the section ends; without meaning if the table is not valid."""
        return self._report.array[1:2]

    @property
    def used(self) -> int:
        """How many bytes of the body the section takes; raises CorruptMessage for what the table says."""
        raise_for(int(self._report.values[0]))
        return int(self._report.values[1])

    def read(self, faults: Faults) -> Any:
        """The words, uint32 [k] on the device, once `used` has been asked for. Does not wait."""
        words = self._runtime.empty(self._k, np.uint32)
        if self._k:
            log2 = int(self._report.values[2])
            read = (self._body, self._k, int(self._signed), log2, self._starts, words, faults.array)
            blocks = _blocks(self._k, log2)
            self._runtime.launch("golomb_rice", "read_section", blocks, _threads(log2), *read)
        return words


def decode(runtime: Runtime, body: Any, n: int, k: int, signed: bool, faults: Faults) -> tuple[Any, int]:
    """Reads the section that a body begins with. Waits once, for the section's table.

    Args:
        runtime: the device.
        body: uint8, at any address; may go on behind the section.
        n: positions are below it; at most 2^31 - 1.
        k: how many words there are.
        signed: whether signs were written.
        faults: learns of a block that is not valid.

    Returns:
        uint32 [k] on the device, position << 1 | sign, sign 0 where none was written; and how many bytes
        of the body the section takes.

    Raises:
        CorruptMessage: the table is not one that `encode` writes for k words with positions below n.
    """
    returns = Returns(runtime)
    section = Section(runtime, body, n, k, signed, returns)
    returns.fetch()
    used = section.used
    return section.read(faults), used
