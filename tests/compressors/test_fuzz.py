"""Damaged messages of every format: each is refused, or means something valid, by the page's decoder, too.

Real messages are damaged, given a valid checksum (most of them, or else it would be all that is tested) and
read from memory that ends where an unreadable page begins: a read beyond the message ends the process.
"""

import ctypes
import mmap
import os
import random
import struct
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import workbench
from formats import sealed
from numpy.typing import NDArray
from updates import check_by_the_page, check_rewritten, read

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.summing import add_update
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.wire import message
from taugrad.compressors.wire.forms import FORM_OF_CODE, FORMS, GRADIENT_FORMS
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite
from taugrad.compressors.wire.positions import BUILTIN, DENSE, codec_by_code
from taugrad.compressors.wire.update import Update

MESSAGES, SEED = (
    int(os.environ.get(f"TAUGRAD_FUZZ_{name}", n)) for name, n in (("MESSAGES", 30_000), ("SEED", 20))
)
"""How many; `make fuzz` asks for a million."""
MEMORY, SECONDS = 2**22, 10.0
"""What reading a message takes at most, beyond 16 times its own bytes."""
LONG, LARGEST_N = 400, 20_000
"""Bytes and elements of damaged messages about which the page's decoder, which is slow, is not asked."""
POSITIONS = ("packed32", "bitmap", "golomb_rice")
QUANTIZERS = ("linear(3)", "linear(11, block=7)", "quantile(2)", "quantile(4, block=20)", "fp8(block=9)")
CHUNKS = "chunked_topk(3, chunk=16, quantize=None)"
EXEMPT = "exempt={'names': ['p1']}"


def method_lines() -> list[str]:
    """Methods that between them write every format."""
    lines = [f"{CHUNKS} | {codec}" for codec in (*POSITIONS, "chunked")]
    lines += [f"{rule}(0.7) | {codec}" for rule in ("wgt", "bgt", "strom") for codec in (*POSITIONS, "raw")]
    lines += [f"qgt(0.1) | {codec} | {symbols}" for codec in POSITIONS for symbols in ("raw", "huffman")]
    lines += ["qgt(0.1) | raw", "random_k(0.2) | drawn"]
    for quantizer in (*QUANTIZERS, "fp16", "bf16"):
        choices = [""] if quantizer in ("fp16", "bf16") else [" | raw", " | huffman"]
        for symbols in choices:
            lines += [f"wgt(0.7) | {quantizer} | {codec}{symbols}" for codec in POSITIONS]
            lines += [f"{CHUNKS.replace(', quantize=None', '')} | {quantizer} | chunked{symbols}"]
            lines += [f"{quantizer}{symbols}"]
            lines += [f"random_k(0.3) | {quantizer} | drawn{symbols}"]
    lines += [f"linear(3, {EXEMPT})", f"wgt(0.7, {EXEMPT})", "bgt(layers(0.7, patterns={'p1': 0.9}))"]
    return lines


@dataclass(frozen=True)
class Original:
    """A payload as a worker writes it."""

    compressor: Compressor
    payload: bytes
    messages: list[tuple[bytes, tuple[int, ...]]]
    """Those that it is made of, each with the sizes of the parameters that it is about."""


def original(line: str, sizes: list[int], seed: int) -> Original:
    """What a method sends for a bucket of random gradients."""
    rng, worker = np.random.default_rng(seed), workbench.Worker(line, sizes)
    gradients = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    if rng.random() < 0.1:
        gradients[-1][-1] = np.nan
    (payload,) = worker.step(gradients).payloads
    layout, messages, rest = worker.compressor.layout, [], np.frombuffer(payload, np.uint8)
    if message.is_refusal(rest):
        messages.append((payload, tuple(sizes)))
    else:
        for segments in (columns for columns in (layout.sent, layout.whole) if len(columns)):
            size = message.length_of(rest)
            messages.append((rest[:size].tobytes(), tuple(segments.sizes.tolist())))
            rest = rest[size:]
    return Original(worker.compressor, payload, messages)


def originals(seed: int) -> list[Original]:
    """Short payloads of every method, and a few with several blocks, streams and bytes of length."""
    rng = random.Random(seed)
    results = []
    for line in method_lines():
        for _ in range(4):
            sizes = [rng.randint(1, 40) for _ in range(rng.randint(1, 3))]
            results.append(original(line, sizes, rng.getrandbits(32)))
        if rng.random() < 0.3:
            results.append(original(line, [rng.randint(4000, 9000), 5], rng.getrandbits(32)))
    return results


class Guarded:
    """Memory that ends where a page begins that can be neither read nor written."""

    def __init__(self, room: int) -> None:
        page = mmap.PAGESIZE
        self._room = -(-room // page) * page
        self._map = mmap.mmap(-1, self._room + page)
        self._bytes = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(self._bytes.ctypes.data + self._room)
        assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0, os.strerror(ctypes.get_errno())

    def last(self, size: int) -> NDArray[np.uint8]:
        """The bytes before the page."""
        return self._bytes[self._room - size : self._room]


FIELDS = ((3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 4), (12, 4), (16, 8), (28, 4), (32, 4), (36, 4))
"""Offset and size of the header's fields, and of what is behind it."""


def damaged(data: bytes, other: bytes, rng: random.Random) -> bytearray:
    """One to three damages of the kinds that storage, networks and hands do."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        kind, at, count = rng.randrange(10), rng.randrange(len(changed) + 1), rng.randint(1, 8)
        if kind <= 2 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3 and at < len(changed):
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 4:
            changed[at:at] = rng.randbytes(count)
        elif kind == 5:
            del changed[at : at + count]
        elif kind == 6:
            del changed[at:]
        elif kind == 7:
            changed[at:] = other[rng.randrange(len(other) + 1) :]
        elif len(changed) >= 44:
            at, size = (
                rng.choice(FIELDS) if kind == 8 else (rng.randrange(len(changed) - 7), rng.choice((2, 4)))
            )
            top = 1 << 8 * size
            value = rng.choice((rng.randrange(16), rng.randrange(16), rng.randrange(256), top - 1, top // 2))
            changed[at : at + size] = min(value, top - 1).to_bytes(size, "little")
    return changed


def resealed(content: bytearray, rng: random.Random) -> bytearray:
    """With a fitting checksum, mostly; and with a fitting length, often."""
    if len(content) < HEADER_BYTES or rng.random() >= 0.95:
        return content
    if rng.random() < 0.95:
        struct.pack_into("<Q", content, 16, len(content) - HEADER_BYTES)
    if rng.random() < 0.95:
        content[:3] = b"tg\x02"
    return bytearray(sealed(bytes(content)))


def check_update(update: Update, n: int, room: Guarded) -> None:
    """Fails unless an update is valid and applies to n floats alone."""
    assert 0 <= update.k <= n
    floats = update.amounts(CPU)
    assert (floats.dtype, floats.size) == (np.float32, update.k)
    assert np.isfinite(floats).all()
    expected, last = np.zeros(n, np.float32), -1
    for where, part in update.places():
        elements = np.arange(n)[where]
        assert (np.diff(elements, prepend=last) > 0).all(), "positions do not ascend, or pass n"
        expected[elements] += floats[part]
        last = max(last, int(elements.max(initial=-1)))
    around = room.last(4 * n + 64)
    around[:64], around[64:] = 0xA5, 0
    add_update(update, torch.from_numpy(around[64:].view(np.float32)), CPU)
    assert around[64:].tobytes() == expected.tobytes(), "it is not added as what it stands for"
    assert (around[:64] == 0xA5).all(), "something before the array was written"


def format_name(data: bytes) -> str:
    """form, codec and symbols of a message, from its header."""
    if data[5] & 128:
        return f"{FORM_OF_CODE[data[3]]} refusal"
    codec = "every" if data[4] == DENSE else codec_by_code(data[4]).name
    return f"{FORM_OF_CODE[data[3]]} {codec}{' huffman' if data[5] & 1 else ''}"


class Fuzzer:
    """Damages messages and judges what reading them comes to; counts those tried and accepted, by format."""

    def __init__(self, seed: int) -> None:
        self.tried, self.accepted = Counter[str](), Counter[str]()
        self._rng, self._originals = random.Random(seed), originals(seed)
        self._inputs, self._dense = Guarded(2**22), Guarded(2**20)
        self.current = b""
        """What is being read, for whoever looks into a failure."""

    def one_message(self) -> None:
        """Damages a message and reads it."""
        rng = self._rng
        data, sizes = rng.choice(rng.choice(self._originals).messages)
        other, _ = rng.choice(rng.choice(self._originals).messages)
        changed = resealed(damaged(data, other, rng), rng)
        if len(changed) >= HEADER_BYTES and rng.random() < 0.5:
            due = struct.unpack_from("<I", changed, 8)[0]
            if 0 < due - sum(sizes) + sizes[-1] < 100_000:
                sizes = (*sizes[:-1], due - sum(sizes) + sizes[-1])
        name = format_name(data)
        update = self._timed(name, changed, lambda given: read(given, sizes))
        if self.tried.total() % 3 == 0 and len(changed) < LONG and sum(sizes) < LARGEST_N:
            check_by_the_page(bytes(changed), sizes, update)
        if isinstance(update, NonFinite):
            assert message.write_nonfinite(update).tobytes() == changed, "a refusal is written otherwise"
        elif update is not None:
            check_update(update, sum(sizes), self._dense)
            check_rewritten(update, changed)

    def one_payload(self) -> None:
        """Damages one of the messages of a payload, or their order, and reads them all."""
        rng = self._rng
        source, other = rng.choice(self._originals), rng.choice(self._originals)
        pieces = [bytearray(data) for data, _ in source.messages]
        at = rng.randrange(len(pieces))
        kind = rng.randrange(8)
        if kind <= 4:
            pieces[at] = resealed(damaged(pieces[at], rng.choice(other.messages)[0], rng), rng)
        elif kind == 5:
            del pieces[at]
        else:
            pieces.insert(at, bytearray(rng.choice((source, other)).messages[0][0]))
        whole = bytearray().join(pieces)
        if rng.random() < 0.2:
            whole = damaged(whole, other.payload, rng)
        incoming = self._timed("payloads", whole, source.compressor.read)
        if incoming is None or isinstance(incoming, NonFinite):
            return
        for update in incoming:
            check_update(update, source.compressor.shard.elements, self._dense)
        total = self._dense.last(4 * source.compressor.shard.elements)
        total[:] = 0
        source.compressor.total([incoming], 1, torch.from_numpy(total.view(np.float32)))

    def _timed(self, name: str, data: bytearray, reading: Callable[[NDArray[np.uint8]], Any]) -> Any:
        """What reading came to; None if it was refused."""
        self.tried[name] += 1
        self.current = bytes(data)
        given = self._inputs.last(len(data))
        given[:] = np.frombuffer(data, np.uint8)
        sample, began = self._rng.random() < 0.002, time.perf_counter()
        if sample:
            tracemalloc.start()
        try:
            came_to = reading(given)
        except CorruptMessage:
            return None
        finally:
            assert time.perf_counter() - began < SECONDS
            if sample:
                peak = tracemalloc.get_traced_memory()[1] - 16 * len(data)
                tracemalloc.stop()
                assert peak < MEMORY
        self.accepted[name] += 1
        return came_to

    def run(self, messages: int) -> None:
        """Reads so many damaged messages, and now and then a payload; notes on an error give the bytes."""
        for done in range(messages):
            try:
                self.one_payload() if self._rng.random() < 0.12 else self.one_message()
            except Exception as error:
                error.add_note(f"message {done} of seed {SEED}: {self.current.hex()}")
                raise


def test_what_methods_write_is_read_by_the_page() -> None:
    messages = [message for payload in originals(8) for message in payload.messages]
    messages.sort(key=lambda message: sum(message[1]))
    short = [message for message in messages if sum(message[1]) < 300]
    for data, sizes in short + messages[len(short) :: 4]:
        check_by_the_page(data, sizes, read(np.frombuffer(data, np.uint8), sizes))


def test_damaged_messages_of_every_format_are_refused_or_valid() -> None:
    fuzzer = Fuzzer(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuzzer.run(MESSAGES)
    assert fuzzer.tried.total() == MESSAGES
    sparse = [(form, codec) for form in GRADIENT_FORMS for codec in POSITIONS]
    sparse += [(form, "raw") for form in GRADIENT_FORMS if FORMS[form].dense_dtype]
    whole = [
        (form, codec)
        for form in GRADIENT_FORMS
        if not FORMS[form].has_tau
        for codec in ("every", "chunked", "drawn")
    ]
    assert {codec for _, codec in sparse + whole} == {"every", *(codec.name for codec in BUILTIN)}
    expected = {f"{form} {codec}" for form, codec in sparse + whole}
    expected |= {
        f"{form} {codec} huffman" for form, codec in sparse + whole if FORMS[form].symbols and codec != "raw"
    }
    # Damage that leaves a valid message is what tests that accepted updates are valid.
    assert expected <= {name for name, count in fuzzer.accepted.items() if count}
    assert fuzzer.accepted["payloads"]
