"""Damaged messages of every format: each is refused, or means something valid.

    python tests/compressors/fuzzing.py --messages 1000000 --seed 1

Real messages are damaged, given a valid checksum (most of them, or else it would be all that is tested) and
read from memory that ends where an unreadable page begins: a read beyond the message ends the process.
"""

import argparse
import ctypes
import mmap
import random
import struct
import sys
import time
import tracemalloc
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.bucket.adding import add_update
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Layout, Part
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.method import read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORM_OF_CODE
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite
from taugrad.compressors.wire.positions import EVERY, codec_by_code
from taugrad.compressors.wire.update import Chunks, Update

POSITIONS = ("packed32", "bitmap", "golomb_rice")
QUANTIZERS = ("linear(3)", "linear(11, block=7)", "quantile(2)", "quantile(4, block=20)", "fp8(block=9)")
CHUNKS = "chunked_topk(3, chunk=16, quantize=None)"
EXEMPT = "exempt={'names': ['b']}"


def method_lines() -> list[str]:
    """Methods that between them write every format."""
    lines = [f"{CHUNKS} | {codec}" for codec in (*POSITIONS, "chunked")]
    lines += [f"{rule}(0.7) | {codec}" for rule in ("wgt", "bgt", "strom") for codec in (*POSITIONS, "raw")]
    lines += [f"qgt(0.1) | {codec} | {symbols}" for codec in POSITIONS for symbols in ("raw", "huffman")]
    lines += ["qgt(0.1) | raw"]
    for quantizer in (*QUANTIZERS, "fp16", "bf16"):
        choices = [""] if quantizer in ("fp16", "bf16") else [" | raw", " | huffman"]
        for symbols in choices:
            lines += [f"wgt(0.7) | {quantizer} | {codec}{symbols}" for codec in POSITIONS]
            lines += [f"{CHUNKS.replace(', quantize=None', '')} | {quantizer} | chunked{symbols}"]
            lines += [f"{quantizer}{symbols}"]
    lines += [f"linear(3, {EXEMPT})", f"wgt(0.7, {EXEMPT})", "bgt(layers(0.7, patterns={'b': 0.9}))"]
    return lines


@dataclass(frozen=True)
class Original:
    """A payload as a worker writes it."""

    compressor: Compressor
    layout: Layout
    payload: bytes
    messages: list[tuple[bytes, tuple[int, ...]]]
    """Those that it is made of, each with the sizes of the parameters that it is about."""


def original(line: str, sizes: list[int], seed: int) -> Original:
    """What a method sends for a bucket of random gradients."""
    rng = np.random.default_rng(seed)
    compressor = Compressor(read_config(line))  # type: ignore[arg-type]
    names = ["a", "b", "c"][: len(sizes)]
    layout = compressor.layout(names, sizes)
    gradients = [torch.from_numpy(rng.standard_normal(size).astype(np.float32)) for size in sizes]
    if rng.random() < 0.1:
        gradients[-1][-1] = torch.nan
    parts = [
        Part(name, gradient, torch.zeros(gradient.numel()))
        for name, gradient in zip(names, gradients, strict=True)
    ]
    written = compressor.compress(parts, layout, Context()).payload
    if message.is_refusal(written):
        return Original(compressor, layout, written.tobytes(), [(written.tobytes(), tuple(sizes))])
    messages, rest = [], written
    for segments in (each for each in (layout.sent, layout.whole) if len(each)):
        size = message.length_of(rest)
        messages.append((rest[:size].tobytes(), tuple(segments.sizes.tolist())))
        rest = rest[size:]
    return Original(compressor, layout, written.tobytes(), messages)


def read(data: NDArray[np.uint8], sizes: tuple[int, ...]) -> Update | NonFinite:
    """What a message says about parameters that fill a bucket."""
    if message.is_refusal(data):
        return message.read_nonfinite(data, sum(sizes))
    return message.read(data, Segments.side_by_side(sizes))


def originals(seed: int) -> list[Original]:
    """Short payloads of every method, and a few with several blocks, streams and bytes of length."""
    rng = random.Random(seed)
    found = []
    for line in method_lines():
        for _ in range(4):
            sizes = [rng.randint(1, 40) for _ in range(rng.randint(1, 3))]
            found.append(original(line, sizes, rng.getrandbits(32)))
        if rng.random() < 0.3:
            found.append(original(line, [rng.randint(4000, 9000), 5], rng.getrandbits(32)))
    return found


class Guarded:
    """Memory that ends where a page begins that can be neither read nor written."""

    def __init__(self, room: int) -> None:
        page = mmap.PAGESIZE
        self._room = -(-room // page) * page
        self._map = mmap.mmap(-1, self._room + page)
        self._bytes = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(self._bytes.ctypes.data + self._room)
        if libc.mprotect(address, ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def last(self, size: int) -> NDArray[np.uint8]:
        """The bytes before the page."""
        return self._bytes[self._room - size : self._room]

    def before(self, size: int, count: int) -> NDArray[np.uint8]:
        """The bytes before those."""
        return self._bytes[self._room - size - count : self._room - size]


FIELDS = (
    (3, 1),
    (4, 1),
    (5, 1),
    (6, 1),
    (7, 1),
    (8, 4),
    (12, 4),
    (16, 8),
    (28, 4),
    (32, 4),
    (36, 4),
)
"""Offset and size of the header's fields, and of what is behind it."""


def damaged(data: bytes, other: bytes, rng: random.Random) -> bytearray:
    """One to three damages of the kinds that storage, networks and hands do."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        kind, at, count = rng.randrange(10), rng.randrange(len(found) + 1), rng.randint(1, 8)
        if kind <= 2 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 3 and at < len(found):
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 4:
            found[at:at] = rng.randbytes(count)
        elif kind == 5:
            del found[at : at + count]
        elif kind == 6:
            del found[at:]
        elif kind == 7:
            found[at:] = other[rng.randrange(len(other) + 1) :]
        elif len(found) >= 44:
            at, size = (
                rng.choice(FIELDS) if kind == 8 else (rng.randrange(len(found) - 7), rng.choice((2, 4)))
            )
            top = 1 << 8 * size
            value = rng.choice((rng.randrange(16), rng.randrange(16), rng.randrange(256), top - 1, top // 2))
            found[at : at + size] = min(value, top - 1).to_bytes(size, "little")
    return found


def sealed(found: bytearray, rng: random.Random) -> bytearray:
    """With a fitting checksum, mostly; and with a fitting length and k, often."""
    if len(found) >= HEADER_BYTES and rng.random() < 0.95:
        if rng.random() < 0.95:
            struct.pack_into("<Q", found, 16, len(found) - HEADER_BYTES)
        if rng.random() < 0.95:
            found[:3] = b"tg\x02"
        struct.pack_into("<I", found, 24, 0)
        struct.pack_into("<I", found, 24, zlib.crc32(found))
    return found


def require(holds: bool, what: str) -> None:
    """An error that no reader of messages raises."""
    if not holds:
        raise AssertionError(what)


def check_update(update: Update, n: int, room: Guarded) -> None:
    """Fails unless an update is valid and applies to n floats alone."""
    require(0 <= update.k <= n, "k or n")
    floats = update.amounts(CPU)
    require(floats.dtype == np.float32 and floats.size == update.k, "its floats")
    require(bool(np.isfinite(floats).all()), "a value is not finite")
    expected = np.zeros(n, np.float32)
    last = -1
    for where, own in update.places():
        elements = np.arange(n)[where]
        require(bool((np.diff(elements, prepend=last) > 0).all()), "positions do not ascend, or pass n")
        expected[elements] += floats[own]
        last = max(last, int(elements.max(initial=-1)))
    room.before(4 * n, 64)[:] = 0xA5
    dense = room.last(4 * n)
    dense[:] = 0
    add_update(update, torch.from_numpy(dense.view(np.float32)), CPU)
    require(dense.tobytes() == expected.tobytes(), "it is not added as what it stands for")
    require(bool((room.before(4 * n, 64) == 0xA5).all()), "something before the array was written")


def check_rewritten(update: Update, data: bytes | bytearray) -> None:
    """Fails unless the update, written by the same codec, is read as the same update."""
    codec = "auto" if data[4] == EVERY else codec_by_code(data[4]).name
    chunked = codec == "chunked"
    if chunked:
        at = HEADER_BYTES
        update.chunks = Chunks(*struct.unpack_from("<II", data, at))
    again = message.read(message.write_all([(update, codec)], "auto"), update.segments)
    require(again.form == update.form, "form")
    require(np.array_equal(again.counts, update.counts), "rewritten, it has other counts")
    require(again.words is None or np.array_equal(again.words, update.words), "it has other positions")
    require(again.amounts(CPU).tobytes() == update.amounts(CPU).tobytes(), "it has other values")


@dataclass
class Summary:
    """What was tried and what came of it."""

    tried: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    largest_peak: int = 0
    """Bytes that a message took to read, beyond 16 times its own and its n floats' (of a sample)."""

    def lines(self) -> list[str]:
        """A table by format."""
        rows = [f"{'format':<36}{'messages':>10}{'accepted':>10}"]
        for name in sorted(self.tried):
            rows.append(f"{name:<36}{self.tried[name]:>10}{self.accepted[name]:>10}")
        rows.append(f"{'all':<36}{self.tried.total():>10}{self.accepted.total():>10}")
        rows.append(
            f"slowest {1000 * self.slowest_s:.1f} ms, most memory beyond its size {self.largest_peak}"
        )
        return rows


def format_name(data: bytes) -> str:
    """form, codec and symbols of a message, from its header."""
    if data[5] & 128:
        return f"{FORM_OF_CODE[data[3]]} refusal"
    codec = "every" if data[4] == EVERY else codec_by_code(data[4]).name
    return f"{FORM_OF_CODE[data[3]]} {codec}{' huffman' if data[5] & 1 else ''}"


Compare = Callable[[bytes, tuple[int, ...], Update | NonFinite | None], None]
"""Is given every third message, the parameters' sizes, and what was read, or None where it was refused."""


class Fuzzer:
    """Damages messages and judges what reading them comes to."""

    MEMORY, SECONDS = 2**22, 10.0

    def __init__(self, seed: int, compare: Compare | None = None) -> None:
        self.summary = Summary()
        self._compare = compare
        self._rng = random.Random(seed)
        self._originals = originals(seed)
        self._inputs, self._dense = Guarded(2**22), Guarded(2**20)
        self.current = b""
        """What is being read, for whoever looks into a failure."""

    def one_message(self) -> None:
        """Damages a message and reads it."""
        rng = self._rng
        data, sizes = rng.choice(rng.choice(self._originals).messages)
        other, _ = rng.choice(rng.choice(self._originals).messages)
        found = sealed(damaged(data, other, rng), rng)
        if len(found) >= HEADER_BYTES and rng.random() < 0.5:
            due = struct.unpack_from("<I", found, 8)[0]
            if 0 < due - sum(sizes) + sizes[-1] < 100_000:
                sizes = (*sizes[:-1], due - sum(sizes) + sizes[-1])
        name = format_name(data)
        self.summary.tried[name] += 1
        update = self._timed(found, lambda given: read(given, sizes))
        if self._compare is not None and self.summary.tried.total() % 3 == 0:
            self._compare(bytes(found), sizes, update)
        if update is None:
            return
        self.summary.accepted[name] += 1
        if isinstance(update, NonFinite):
            require(message.write_nonfinite(update).tobytes() == found, "a refusal is written otherwise")
            return
        check_update(update, sum(sizes), self._dense)
        check_rewritten(update, found)

    def one_payload(self) -> None:
        """Damages one of the messages of a payload, or their order, and reads them all."""
        rng = self._rng
        source, other = rng.choice(self._originals), rng.choice(self._originals)
        pieces = [bytearray(data) for data, _ in source.messages]
        at = rng.randrange(len(pieces))
        kind = rng.randrange(8)
        if kind <= 4:
            pieces[at] = sealed(damaged(pieces[at], rng.choice(other.messages)[0], rng), rng)
        elif kind == 5:
            del pieces[at]
        else:
            pieces.insert(at, bytearray(rng.choice((source, other)).messages[0][0]))
        found = bytearray().join(pieces)
        if rng.random() < 0.2:
            found = damaged(found, other.payload, rng)
        self.summary.tried["payloads"] += 1
        incoming = self._timed(found, lambda given: source.compressor.read(given, source.layout))
        if incoming is None:
            return
        self.summary.accepted["payloads"] += 1
        if isinstance(incoming, NonFinite):
            return
        for update in incoming:
            check_update(update, source.layout.bucket_elements, self._dense)
        total = self._dense.last(4 * source.layout.bucket_elements)
        total[:] = 0
        source.compressor.add(incoming, torch.from_numpy(total.view(np.float32)))

    def _timed(self, found: bytearray, read: Any) -> Any:
        """What reading came to; None if it was refused."""
        self.current = bytes(found)
        given = self._inputs.last(len(found))
        given[:] = np.frombuffer(found, np.uint8)
        sample = self._rng.random() < 0.002
        if sample:
            tracemalloc.start()
        began = time.perf_counter()
        try:
            return read(given)
        except CorruptMessage:
            return None
        finally:
            took = time.perf_counter() - began
            if sample:
                peak = tracemalloc.get_traced_memory()[1] - 16 * len(found)
                tracemalloc.stop()
                self.summary.largest_peak = max(self.summary.largest_peak, peak)
                require(peak < self.MEMORY, f"{peak} bytes of memory")
            self.summary.slowest_s = max(self.summary.slowest_s, took)
            require(took < self.SECONDS, f"{took:.1f} s")

    def step(self) -> None:
        """One message, or now and then a payload."""
        if self._rng.random() < 0.12:
            self.one_payload()
        else:
            self.one_message()


def fuzz(messages: int, seed: int, *, show: bool = False, compare: Compare | None = None) -> Summary:
    """Reads so many damaged messages; `compare` may find fault with what was read.

    Raises:
        Exception: a defect; notes on it give the message's bytes.
    """
    began = shown = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuzzer = Fuzzer(seed, compare)
        for done in range(messages):
            try:
                fuzzer.step()
            except Exception as error:
                error.add_note(f"message {done} of seed {seed}: {fuzzer.current.hex()}")
                raise
            if show and done % 256 == 0 and (now := time.monotonic()) - shown > 5:
                shown = now
                accepted = fuzzer.summary.accepted.total()
                print(f"{done} messages, {accepted} accepted, {done / (now - began):.0f}/s", flush=True)
    return fuzzer.summary


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    summary = fuzz(given.messages, given.seed, show=True)
    print("\n".join(summary.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
