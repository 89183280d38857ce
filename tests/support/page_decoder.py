"""A decoder of messages, written from docs/reference/messages.md alone: it imports nothing of ours.

Slow on purpose: one number at a time. Its sections are the page's.
"""

import json
import struct
import zlib
from bisect import bisect_right
from hashlib import blake2b
from itertools import accumulate
from math import isqrt
from typing import Any

import numpy as np

FORMS = ["", "wgt", "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile"]
CODECS = ["raw", "packed32", "bitmap", "golomb_rice", "every", "chunked", "drawn"]
WITH_TAU = ("bgt", "qgt", "strom")
QUANTIZED = ("linear", "quantile", "fp8")
F32 = np.float32


class Invalid(Exception):
    """No message."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Invalid(what)


class Body:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        require(size <= len(self.data), "too few bytes")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def unpack(self, kind: str, count: int = 1) -> list[int]:
        """So many numbers of a type of `struct`."""
        return list(struct.unpack(f"<{count}{kind}", self.take(struct.calcsize(kind) * count)))


class Bits:
    """A run of bits, read from the lowest of each byte on."""

    def __init__(self, data: bytes) -> None:
        self.whole, self.bits, self.at = int.from_bytes(data, "little"), 8 * len(data), 0

    def one(self) -> int:
        return self.number(1)

    def number(self, bits: int) -> int:
        """An integer, its lowest bit first."""
        require(self.at + bits <= self.bits, "too few bits")
        self.at += bits
        return self.whole >> self.at - bits & (1 << bits) - 1

    def gamma(self) -> int:
        zeros = 0
        while not self.one():
            zeros += 1
            require(zeros <= 16, "no gamma code of this alphabet")
        value = 1
        for _ in range(zeros):
            value = value << 1 | self.one()
        return value

    def end(self) -> None:
        """The run ends in this byte, and spare bits are zeros."""
        require(self.at > self.bits - 8, "bytes behind the bits")
        require(not self.whole >> self.at, "a spare bit is set")


def decode(message: bytes, sizes: list[int]) -> tuple[list[int], list[np.float32]] | int:
    """The positions and amounts of an update of parameters of such sizes, or which one was not finite.

    Raises:
        Invalid: it is none.
    """
    n = sum(sizes)
    require(len(message) >= 28, "no header")
    magic, version, form_code, codec_code, flags, b, zero = struct.unpack_from("<2sBBBBBB", message)
    n_said, k, length, crc = struct.unpack_from("<IIQI", message, 8)
    require((magic, version) == (b"tg", 2) and length == len(message) - 28, "magic, version or length")
    require(crc == zlib.crc32(message[:24] + bytes(4) + message[28:]), "CRC-32")
    require(2 <= form_code <= 10 and not zero, "form or reserved")
    require(n_said == n, "n")
    form, body = FORMS[form_code], Body(message[28:])
    if flags == 128:
        require(not (length or codec_code or b), "a refusal with a body")
        return k
    require(flags < 8 and codec_code < len(CODECS) and k <= n, "flags, codec or k")
    coded, own_codes, own_taus = (bool(flags >> i & 1) for i in range(3))
    taus = read_taus(body, form, sizes, own_taus=own_taus)
    codec = CODECS[codec_code]
    if codec == "raw":
        require(not (coded or own_codes or b), "symbols of raw")
        return raw(body, form, sizes, k, taus)
    positions, signs = READERS[codec](body, form, sizes, k)
    require(len(positions) == k and positions == sorted(set(positions)), "positions")
    require(all(position < n for position in positions), "positions")
    edges = [0, *accumulate(sizes)]
    owners = [bisect_right(edges, position) - 1 for position in positions]
    counts = [owners.count(i) for i in range(len(sizes))]
    decoded = values(body, form, counts, b, coded=coded, own_codes=own_codes)
    require(not body.data, "bytes behind the values")
    if form in WITH_TAU:
        decoded = [taus[owner] * value for owner, value in zip(owners, decoded, strict=True)]
        decoded = [-value if sign else value for value, sign in zip(decoded, signs, strict=True)]
    return positions, decoded


# Weight patches

WIDTHS = {"bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1}
WIDTHS |= {"float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}
WIDTHS |= {f"{kind}{8 * n}": n for kind in ("int", "uint", "float") for n in (1, 2, 4, 8)}
WIDTHS |= {f"complex{16 * n}": n for n in (2, 4, 8)}
ALL = 2**64 - 1


def odd(x: int) -> int:
    x = x + 0x9E3779B97F4A7C15 & ALL
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & ALL
    x = (x ^ x >> 27) * 0x94D049BB133111EB & ALL
    return x ^ x >> 31 | 1


def key(i: int) -> int:
    return odd(i % 1024) * odd(1024 + i // 1024) & ALL


def factor(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") | 1


def digest(weights: dict[str, list[int]]) -> int:
    """Of the bit patterns of whole tensors."""
    return sum(factor(name) * sum(key(i) * p for i, p in enumerate(ps)) for name, ps in weights.items()) & ALL


def order(p: int, w: int, *, floats: bool) -> int:
    """Of a pattern; it is its own reverse for integers."""
    return p if not floats else p + 2 ** (w - 1) if p < 2 ** (w - 1) else 2**w - 1 - p


def pattern(o: int, w: int, *, floats: bool) -> int:
    return o if not floats else o - 2 ** (w - 1) if o >= 2 ** (w - 1) else 2**w - 1 - o


def apply_patch(patch: bytes, weights: dict[str, list[int]]) -> dict[str, list[int]]:
    """The bit patterns of whole tensors after a patch that is for them.

    Raises:
        Invalid: it is none, or not for them.
    """
    messages, digests, streams = [], [0, 0], set()
    while patch:
        require(len(patch) >= 28, "no header")
        size = 28 + struct.unpack_from("<Q", patch, 16)[0]
        require(size <= len(patch), "length")
        message, patch = patch[:size], patch[size:]
        require(
            zlib.crc32(message[:24] + bytes(4) + message[28:]) == struct.unpack_from("<I", message, 24)[0],
            "CRC",
        )
        messages.append(message)
    new = {name: list(patterns) for name, patterns in weights.items()}
    while messages:
        require(messages[0][:8] == b"tg\x02\x0d\x04\0\0\0", "no table")
        table = json.loads(zlib.decompress(messages.pop(0)[28:]))
        require(table["version"] == 2, "version")
        streams.add(int(table["stream"], 16))
        digests = [digests[i] + int(table["digests"][i], 16) for i in (0, 1)]
        apply_section(table["rows"], messages, new)
    require(len(streams) <= 1, "several streams")
    require(digest(weights) == digests[0] & ALL, "the digest before")
    require(digest(new) == digests[1] & ALL, "the digest after")
    return new


def apply_section(rows: list[Any], messages: list[bytes], new: dict[str, list[int]]) -> None:
    rows = [row for row in rows if row[4]]
    some = [[row for row in rows if row[5] == mode] for mode in (0, 1, 2)]
    changes: list[tuple[Any, int, int]] = []
    symbols: list[tuple[Any, int, int, int]] = []
    if some[0]:
        sizes = [row[4] for row in some[0]]
        require(messages[0][3] == 4, "form")
        positions, amounts = decode(messages[0], sizes)  # type: ignore[misc]
        at = places(some[0], positions)
        changes += [(*place, 2 if amount > 0 else 1) for place, amount in zip(at, amounts, strict=True)]
        symbols += [(*place, symbol, 3) for place, symbol in read_steps(messages[1], some[0])]
        del messages[:2]
    if some[1]:
        symbols += [(*place, symbol, 0) for place, symbol in read_steps(messages.pop(0), some[1])]
    widths = [WIDTHS[row[1]] for row in some[2]]
    due = sum(symbol >> 8 for *_, symbol, _ in symbols)
    due += sum(row[4] * width for row, width in zip(some[2], widths, strict=True))
    body = Body(b"")
    if due:
        require(messages[0][3:7] == bytes([12, 4, 0, 0]), "form")
        require(struct.unpack_from("<II", messages[0], 8) == (due, due), "n")
        body = Body(messages.pop(0)[28:])
    for row, i, symbol, more in symbols:
        left = symbol >> 8
        low = int.from_bytes(body.take(left), "little")
        changes.append((row, i, ((symbol & 255) << 8 * left) + low + more))
    for row, width in zip(some[2], widths, strict=True):
        changes += [(row, i, int.from_bytes(body.take(width), "little")) for i in range(row[4])]
    require(not body.data, "bytes behind the steps")
    for (names, dtype, _, first, *_), i, step in changes:
        w, d = 8 * WIDTHS[dtype], step // 2 if step % 2 == 0 else -(step + 1) // 2
        floats = dtype.startswith(("float", "bfloat", "complex")) and dtype != "float8_e8m0fnu"
        for name in names:
            old = order(new[name][first + i], w, floats=floats)
            new[name][first + i] = pattern((old + d) % 2**w, w, floats=floats)


def places(rows: list[Any], positions: list[int]) -> list[tuple[Any, int]]:
    """Row and index in it of positions over all rows."""
    starts = list(accumulate((row[4] for row in rows), initial=0))
    owners = [bisect_right(starts, position) - 1 for position in positions]
    return [(rows[owner], at - starts[owner]) for owner, at in zip(owners, positions, strict=True)]


def read_steps(message: bytes, rows: list[Any]) -> list[tuple[tuple[Any, int], int]]:
    """Row, index and symbol."""
    form, codec, flags, b = message[3:7]
    n, k = struct.unpack_from("<II", message, 8)
    sizes = [row[4] for row in rows]
    require(n == sum(sizes) and form == 11, "n or form")
    body = Body(message[28:])
    positions, _ = READERS[CODECS[codec]](body, "steps", sizes, k)
    at = places(rows, positions)
    counts = [sum(place[0] is row for place in at) for row in rows]
    said = body.unpack("B", len(counts)) if flags & 2 else [b + 128 * (flags & 1)]
    runs = counts if flags & 2 else [k]
    symbols = [
        symbol
        for coding, count in zip(said, runs, strict=True)
        if count
        for symbol in symbols_of(body, 11, count, huffman=coding >= 128)
    ]
    require(not body.data, "bytes behind the symbols")
    return list(zip(at, symbols, strict=True))


def read_taus(body: Body, form: str, sizes: list[int], *, own_taus: bool) -> list[np.float32]:
    if form not in WITH_TAU:
        require(not own_taus, "taus of this form")
        return []
    taus = list(np.frombuffer(body.take(4 * len(sizes) if own_taus else 4), "<f4"))
    require(all(F32(2.0**-126) <= tau <= F32(2.0**119) for tau in taus), "tau")
    require(not own_taus or len(set(taus)) > 1, "one tau would do")
    return taus if own_taus else taus * len(sizes)


def read_mask(body: Body, sizes: list[int]) -> list[bool]:
    bits = Bits(body.take(-(-len(sizes) // 8)))
    sent = [bool(bits.one()) for _ in sizes]
    bits.end()
    return sent


# Positions


def packed32(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    words = body.unpack("I", k)
    if form not in WITH_TAU:
        require(not any(word & 1 for word in words), "a sign where none belongs")
    return [word >> 1 for word in words], [word & 1 for word in words]


def bitmap(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    n = sum(sizes)
    bits = Bits(body.take(-(-n // 8)))
    positions = [i for i in range(n) if bits.one()]
    bits.end()
    require(len(positions) == k, "k")
    if form not in WITH_TAU:
        return positions, [0] * k
    bits = Bits(body.take(-(-k // 8)))
    signs = [bits.one() for _ in range(k)]
    bits.end()
    return positions, signs


def parameter(span: int, c: int) -> int:
    root = (isqrt(5 << 256) - (1 << 128)) >> 1
    b = 0
    while b < 30 and span << 16 > c * ((1 << 144) // ((1 << 128) - root)):
        root, b = isqrt(root << 128), b + 1
    return b


def golomb_rice(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    if k == 0:
        return [], []
    (s,) = body.unpack("B")
    require(4 <= s <= 14, "s")
    m = -(-k // 2**s)
    lasts, lengths = body.unpack("I", m), body.unpack("H", m)
    positions, signs = list[int](), list[int]()
    signed, before = int(form in WITH_TAU), -1
    for i, (last, size) in enumerate(zip(lasts, lengths, strict=True)):
        c = min(2**s, k - i * 2**s)
        require(last < sum(sizes) and last - before >= c, "the table")
        b = parameter(last - before, c)
        block = Body(body.take(size))
        fields = Bits(block.take(-(-c * (b + signed) // 8)))
        quotients = Bits(block.data)
        for _ in range(c):
            signs.append(fields.one() if signed else 0)
            gap = fields.number(b)
            while not quotients.one():
                gap += 2**b
            before += gap + 1
            positions.append(before)
        fields.end()
        quotients.end()
        require(before == last, "the block's last position")
    return positions, signs


def chunked(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    require(form not in WITH_TAU, "chunked of this form")
    chunk, keep = body.unpack("I", 2)
    bits = chunk.bit_length() - 1
    require(2 <= chunk <= 65536 and chunk == 2**bits and 1 <= keep <= chunk, "chunk or keep")
    sent, positions, first = read_mask(body, sizes), list[int](), 0
    indices = Bits(body.take(-(-k * bits // 8)))
    for size, is_sent in zip(sizes, sent, strict=True):
        for low in range(0, size if is_sent else 0, chunk):
            here = [indices.number(bits) for _ in range(min(keep, size - low, chunk))]
            require(here == sorted(set(here)) and here[-1] < size - low, "indices of a chunk")
            positions += [first + low + index for index in here]
        first += size
    require(len(positions) == k, "k")
    indices.end()
    return positions, [0] * k


def every(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    require(form not in WITH_TAU, "not every element")
    sent = [True] * len(sizes) if k == sum(sizes) else read_mask(body, sizes)
    edges = [0, *accumulate(sizes)]
    positions = [i for i in range(edges[-1]) if sent[bisect_right(edges, i) - 1]]
    require(len(positions) == k, "k")
    return positions, [0] * k


def drawn(body: Body, form: str, sizes: list[int], k: int) -> tuple[list[int], list[int]]:
    require(form not in WITH_TAU, "drawn of this form")
    counts, keys = body.unpack("I", len(sizes)), body.unpack("I", len(sizes))
    positions, first = list[int](), 0
    for size, count, key in zip(sizes, counts, keys, strict=True):
        require(count <= size, "more than all elements")
        for i in range(count):
            low, high = i * size // count, (i + 1) * size // count
            h = (i * 0x9E3779B9 + key) % 2**32
            h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
            h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
            positions.append(first + low + (h ^ h >> 16) % (high - low))
        first += size
    require(len(positions) == k, "k")
    return positions, [0] * k


READERS = {
    "packed32": packed32,
    "bitmap": bitmap,
    "golomb_rice": golomb_rice,
    "chunked": chunked,
    "every": every,
    "drawn": drawn,
}


def raw(
    body: Body, form: str, sizes: list[int], k: int, taus: list[np.float32]
) -> tuple[list[int], list[np.float32]]:
    require(form in (*WITH_TAU, "f32"), "raw of this form")
    dtype, n = {"f32": "<f4", "qgt": "<i2"}.get(form, "i1"), sum(sizes)
    dense = np.frombuffer(body.take(n * np.dtype(dtype).itemsize), dtype)
    require(not body.data, "bytes behind the elements")
    positions = [i for i in range(n) if dense[i].tobytes() != bytes(dense.itemsize)]
    require(len(positions) == k, "k")
    if form == "f32":
        check_floats(dense)
        require(dense[positions].all(), "-0")
        return positions, list(dense[positions])
    require(np.abs(dense.astype(int)).max(initial=0) <= (255 if form == "qgt" else 1), "a level")
    edges = [0, *accumulate(sizes)]
    return positions, [F32(dense[i]) * taus[bisect_right(edges, i) - 1] for i in positions]


# Values


def check_floats(numbers: np.ndarray) -> None:
    require(np.isfinite(numbers).all(), "a float that is not finite")


def values(
    body: Body, form: str, counts: list[int], b: int, *, coded: bool, own_codes: bool
) -> list[np.float32]:
    """One for each element sent; multiples of tau where there is one."""
    k = sum(counts)
    if form not in ("qgt", *QUANTIZED) or not k:
        require(not (coded or own_codes or b), "no symbols to decode")
        if form in WITH_TAU:
            return [F32(1)] * k
        dtype = {"fp16": "<f2", "bf16": "<u2"}.get(form, "<f4") if k else "u1"
        array = np.frombuffer(body.take(k * np.dtype(dtype).itemsize), dtype)
        floats = (array.astype("<u4") << 16).view(F32) if form == "bf16" else array.astype(F32)
        check_floats(floats)
        return list(floats)
    bits = [b if count else 0 for count in counts]
    are_coded = [coded] * len(counts)
    if own_codes:
        require(not (b or coded), "the header speaks for all")
        said = body.unpack("B", len(counts))
        bits, are_coded = [text & 127 for text in said], [text >= 128 for text in said]
        require(all(count or not text for count, text in zip(counts, said, strict=True)), "bits of nothing")
    sent = [bit for bit, count in zip(bits, counts, strict=True) if count]
    require(all(1 <= width <= 16 for width in sent), "bits")
    require(form not in ("qgt", "fp8") or set(sent) == {8}, "8 bits")
    require(form == "linear" or len(set(sent)) == 1, "bits that differ")
    block, tables = (0, []) if form == "qgt" else read_tables(body, form, counts, bits)
    if own_codes:
        symbols = [
            symbol
            for count, width, is_coded in zip(counts, bits, are_coded, strict=True)
            if count
            for symbol in symbols_of(body, width, count, huffman=is_coded)
        ]
    else:
        symbols = symbols_of(body, max(bits), k, huffman=coded)
    if form == "qgt":
        require(all(symbols), "level 0")
        return [F32(symbol) for symbol in symbols]
    require(form != "fp8" or all(q & 0x7F != 0x7F for q in symbols), "a NaN")
    numbers, before = list[int](), 0
    for count in counts:
        numbers += [before + i // (block or count) for i in range(count)]
        before += blocks_of(count, block)
    return [amount(form, q, [table[j] for table in tables]) for q, j in zip(symbols, numbers, strict=True)]


def blocks_of(count: int, block: int) -> int:
    return -(-count // block) if block else min(count, 1)


def read_tables(body: Body, form: str, counts: list[int], bits: list[int]) -> tuple[int, list[np.ndarray]]:
    (block,) = body.unpack("I")
    require(block == 0 or block < max(counts), "block")
    m = sum(blocks_of(count, block) for count in counts)
    if form == "linear":
        lows, steps = (np.frombuffer(body.take(4 * m), "<f4") for _ in range(2))
        require(all(low.tobytes() != b"\0\0\0\x80" for low in lows), "low -0")
        require(all(s.tobytes() == bytes(4) or s >= F32(2.0**-126) for s in steps), "a step")
        tops = [
            2**b - 1 for b, count in zip(bits, counts, strict=True) for _ in range(blocks_of(count, block))
        ]
        with np.errstate(over="ignore", invalid="ignore"):
            largest = [linear(*bounds) for bounds in zip(lows, steps, tops, strict=True)]
        check_floats(np.concatenate([lows, np.array(largest, F32)]))
        return block, [lows, steps]
    exponents = np.array(body.unpack("b", m))
    least, most = (-126, 119) if form == "fp8" else (-128, 113)
    require(all(least <= e <= most for e in exponents), "an exponent")
    if form == "fp8":
        return block, [exponents]
    means = np.frombuffer(body.take(2 * m * 2 ** max(bits)), "<f2").reshape(m, -1)
    require((np.abs(means) <= np.float16(32752)).all(), "a mean")
    return block, [exponents, means]


def amount(form: str, q: int, tables: list[Any]) -> np.float32:
    if form == "linear":
        return linear(tables[0], tables[1], q)
    if form == "fp8":
        return F32(np.ldexp(e4m3(q), tables[0]))
    return F32(np.ldexp(np.float64(tables[1][q]), tables[0]))


def linear(low: np.float32, step: np.float32, q: int) -> np.float32:
    h = low / F32(2) + (step / F32(2)) * (F32(q) + F32(0.5))
    return h + h


def e4m3(q: int) -> float:
    exponent, fraction = q >> 3 & 15, q & 7
    magnitude = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9
    return -magnitude if q >> 7 else magnitude


# Symbols


def symbols_of(body: Body, b: int, k: int, *, huffman: bool) -> list[int]:
    if huffman:
        return huffman_coded(body, b, k)
    bits = Bits(body.take(-(-k * b // 8)))
    numbers = [bits.number(b) for _ in range(k)]
    bits.end()
    return numbers


def huffman_coded(body: Body, b: int, k: int) -> list[int]:
    limit = min(max(14, b + 3), 18)
    book = Bits(body.data)
    lengths = codebook(book, 2**b, limit)
    taken = Bits(body.take(-(-book.at // 8)))
    taken.number(book.at)
    taken.end()
    used = [length for length in lengths if length]
    if used == [1]:
        return [lengths.index(1)] * k
    require(sum(2 ** (limit - length) for length in used) == 2**limit, "no complete prefix code")
    codes = canonical(lengths)
    sizes = body.unpack("H", -(-k // 4096))
    symbols: list[int] = []
    for number, size in enumerate(sizes):
        stream = Bits(body.take(size))
        for _ in range(min(4096, k - 4096 * number)):
            code = ""
            while code not in codes:
                code += str(stream.one())
            symbols.append(codes[code])
        stream.end()
    return symbols


def codebook(bits: Bits, symbols: int, limit: int) -> list[int]:
    lengths, last, after_gap = list[int](), limit, False
    while len(lengths) < symbols:
        if not bits.one():
            step = 0
        elif not bits.one():
            step = -1 if bits.one() else 1
        elif not bits.one():
            gap = bits.gamma()
            require(not after_gap and gap <= symbols - len(lengths), "a gap")
            lengths += [0] * gap
            after_gap = True
            continue
        else:
            sign = -1 if bits.one() else 1
            step = sign * (bits.gamma() + 1)
        last += step
        require(1 <= last <= limit, "a length")
        lengths.append(last)
        after_gap = False
    return lengths


def canonical(lengths: list[int]) -> dict[str, int]:
    """By code, its bits in the order in which they are read, the symbol."""
    ordered = sorted((length, symbol) for symbol, length in enumerate(lengths) if length)
    codes, code, before = dict[str, int](), 0, ordered[0][0]
    for length, symbol in ordered:
        code <<= length - before
        codes[f"{code:0{length}b}"] = symbol
        code, before = code + 1, length
    return codes
