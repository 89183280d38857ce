"""A decoder of messages, written from docs/reference/messages.md alone: it imports nothing of ours.

Slow on purpose: one bit at a time. Its sections are the page's.
"""

import struct
import zlib
from math import isqrt

import numpy as np

FORMS = ["", "wgt", "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile"]
CODECS = ["raw", "packed32", "bitmap", "golomb_rice", "every", "chunked"]
WITH_TAU = ("wgt", "bgt", "qgt", "strom")
SIGNS_APART = ("bgt", "qgt", "strom")
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
        self.data, self.at = data, 0

    def one(self) -> int:
        require(self.at < 8 * len(self.data), "too few bits")
        bit = self.data[self.at // 8] >> self.at % 8 & 1
        self.at += 1
        return bit

    def number(self, bits: int) -> int:
        """An integer, its lowest bit first."""
        return sum(self.one() << i for i in range(bits))

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
        require(self.at > 8 * (len(self.data) - 1), "bytes behind the bits")
        while self.at < 8 * len(self.data):
            require(not self.one(), "a spare bit is set")


def decode(message: bytes, n: int) -> tuple[list[int], list[np.float32]] | int:
    """The positions and amounts of an update of n elements, or which parameter was not finite.

    Raises:
        Invalid: it is none.
    """
    require(len(message) >= 32, "no header")
    magic, version, form_code, codec_code, state, symbols, zero = struct.unpack_from("<2sBBBBBB", message)
    n_said, k, tau, length, crc = struct.unpack_from("<IIfQI", message, 8)
    require((magic, version) == (b"tg", 1) and length == len(message) - 32, "magic, version or length")
    require(crc == zlib.crc32(message[:28] + bytes(4) + message[32:]), "CRC-32")
    require(1 <= form_code <= 10 and not zero and symbols <= 1, "form, symbols or reserved")
    require(n_said == n, "n")
    form, tau = FORMS[form_code], F32(tau)
    if form in WITH_TAU:
        require(F32(2.0**-126) <= tau <= F32(2.0**119), "tau")
    else:
        require(message[16:20] == bytes(4), "tau")
    if state == 1:
        require(not (length or codec_code or symbols), "a refusal with a body")
        return k
    require(state == 0 and codec_code < len(CODECS) and k <= n, "state, codec or k")
    codec, body = CODECS[codec_code], Body(message[32:])
    if codec == "raw":
        require(form in WITH_TAU and not symbols, "raw of this form")
        return raw(body, form, n, k, tau)
    positions, signs = READERS[codec](body, form, n, k)
    require(positions == sorted(set(positions)) and all(each < n for each in positions), "positions")
    amounts = values(body, form, k, tau, signs, huffman=bool(symbols))
    if form == "wgt" and codec == "packed32":
        require([a < 0 for a in amounts] == [s == 1 for s in signs], "signs")
    return positions, amounts


# Positions


def packed32(body: Body, form: str, n: int, k: int) -> tuple[list[int], list[int]]:
    words = body.unpack("I", k)
    if form not in (*SIGNS_APART, "wgt"):
        require(not any(word & 1 for word in words), "a sign where none belongs")
    return [word >> 1 for word in words], [word & 1 for word in words]


def bitmap(body: Body, form: str, n: int, k: int) -> tuple[list[int], list[int]]:
    bits = Bits(body.take(-(-n // 8)))
    positions = [i for i in range(n) if bits.one()]
    bits.end()
    require(len(positions) == k, "k")
    if form not in SIGNS_APART:
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


def golomb_rice(body: Body, form: str, n: int, k: int) -> tuple[list[int], list[int]]:
    if k == 0:
        return [], []
    (s,) = body.unpack("B")
    require(4 <= s <= 14, "s")
    m = -(-k // 2**s)
    lasts, sizes = body.unpack("I", m), body.unpack("H", m)
    positions, signs = list[int](), list[int]()
    signed, before = int(form in SIGNS_APART), -1
    for i, (last, size) in enumerate(zip(lasts, sizes, strict=True)):
        c = min(2**s, k - i * 2**s)
        require(last < n and last - before >= c, "the table")
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


def chunked(body: Body, form: str, n: int, k: int) -> tuple[list[int], list[int]]:
    require(form not in SIGNS_APART, "chunked of this form")
    chunk, keep = body.unpack("I", 2)
    bits = chunk.bit_length() - 1
    require(2 <= chunk <= 65536 and chunk == 2**bits and 1 <= keep <= chunk, "chunk or keep")
    counts = [min(keep, n - low, chunk) for low in range(0, n, chunk)]
    require(sum(counts) == k, "k")
    indices = Bits(body.take(-(-k * bits // 8)))
    positions = []
    for number, count in enumerate(counts):
        here = [indices.number(bits) for _ in range(count)]
        require(here == sorted(set(here)), "indices of a chunk")
        positions += [number * chunk + index for index in here]
    indices.end()
    return positions, [0] * k


def every(body: Body, form: str, n: int, k: int) -> tuple[list[int], list[int]]:
    require(k == n > 0 and form not in WITH_TAU, "not every element")
    return list(range(n)), [0] * k


READERS = {
    "packed32": packed32,
    "bitmap": bitmap,
    "golomb_rice": golomb_rice,
    "chunked": chunked,
    "every": every,
}


def raw(body: Body, form: str, n: int, k: int, tau: np.float32) -> tuple[list[int], list[np.float32]]:
    dtype = {"wgt": "<f4", "qgt": "<i2"}.get(form, "i1")
    dense = np.frombuffer(body.take(n * np.dtype(dtype).itemsize), dtype)
    require(not body.data, "bytes behind the elements")
    positions = [i for i in range(n) if dense[i].tobytes() != bytes(dense.itemsize)]
    require(len(positions) == k, "k")
    if form == "wgt":
        check_floats(dense[positions], tau)
        return positions, list(dense[positions])
    require(np.abs(dense.astype(int)).max(initial=0) <= (255 if form == "qgt" else 1), "a level")
    return positions, [F32(each) * tau for each in dense[positions]]


# Values


def check_floats(found: np.ndarray, tau: np.float32 | None = None) -> None:
    require(np.isfinite(found).all(), "a float that is not finite")
    require(tau is None or (np.abs(found) >= tau).all(), "a magnitude below tau")


def values(
    body: Body, form: str, k: int, tau: np.float32, signs: list[int], *, huffman: bool
) -> list[np.float32]:
    require(not huffman or (k and form in ("qgt", *QUANTIZED)), "no symbols to decode")
    found: list[np.float32] = []
    if form in ("bgt", "strom"):
        found = [tau] * k
    elif form == "qgt" and k:
        levels = symbols_of(body, 8, k, huffman=huffman)
        require(all(levels), "level 0")
        found = [F32(level) * tau for level in levels]
    elif form in QUANTIZED and k:
        found = quantized(body, form, k, huffman=huffman)
    elif form in ("wgt", "f32"):
        floats = np.frombuffer(body.take(4 * k), "<f4")
        check_floats(floats, tau if form == "wgt" else None)
        found = list(floats)
    elif form == "fp16":
        found = list(np.frombuffer(body.take(2 * k), "<f2").astype(F32))
    elif form == "bf16":
        found = list((np.frombuffer(body.take(2 * k), "<u2").astype("<u4") << 16).view(F32))
    require(not body.data, "bytes behind the values")
    check_floats(np.array(found, F32))
    if form in SIGNS_APART:
        found = [-each if sign else each for each, sign in zip(found, signs, strict=True)]
    return found


def quantized(body: Body, form: str, k: int, *, huffman: bool) -> list[np.float32]:
    b, *zeros = body.unpack("B", 4)
    (block,) = body.unpack("I")
    require(1 <= b <= 16 and not any(zeros) and block < k and (form != "fp8" or b == 8), "bits or block")
    m, length = -(-k // block) if block else 1, block or k
    if form == "linear":
        lows, steps = (np.frombuffer(body.take(4 * m), "<f4") for _ in range(2))
        require(all(low.tobytes() != b"\0\0\0\x80" for low in lows), "low -0")
        require(all(s.tobytes() == bytes(4) or s >= F32(2.0**-126) for s in steps), "a step")
        with np.errstate(over="ignore", invalid="ignore"):
            largest = [linear(low, step, 2**b - 1) for low, step in zip(lows, steps, strict=True)]
        check_floats(np.concatenate([lows, np.array(largest, F32)]))
        symbols = symbols_of(body, b, k, huffman=huffman)
        return [linear(lows[i // length], steps[i // length], q) for i, q in enumerate(symbols)]
    exponents = body.unpack("b", m)
    least, most = (-126, 119) if form == "fp8" else (-128, 113)
    require(all(least <= e <= most for e in exponents), "an exponent")
    if form == "fp8":
        symbols = symbols_of(body, 8, k, huffman=huffman)
        require(all(q & 0x7F != 0x7F for q in symbols), "a NaN")
        return [F32(np.ldexp(e4m3(q), exponents[i // length])) for i, q in enumerate(symbols)]
    means = np.frombuffer(body.take(2 * m * 2**b), "<f2").reshape(m, 2**b)
    require((np.abs(means) <= np.float16(32752)).all(), "a mean")
    symbols = symbols_of(body, b, k, huffman=huffman)
    return [
        F32(np.ldexp(np.float64(means[i // length, q]), exponents[i // length]))
        for i, q in enumerate(symbols)
    ]


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
    found = [bits.number(b) for _ in range(k)]
    bits.end()
    return found


def huffman_coded(body: Body, b: int, k: int) -> list[int]:
    limit = min(max(14, b + 3), 18)
    book = Bits(body.data)
    lengths = codebook(book, 2**b, limit)
    book.data = body.take(-(-book.at // 8))
    book.end()
    used = [length for length in lengths if length]
    if used == [1]:
        return [lengths.index(1)] * k
    require(sum(2 ** (limit - length) for length in used) == 2**limit, "no complete prefix code")
    codes = canonical(lengths)
    sizes = body.unpack("H", -(-k // 4096))
    found: list[int] = []
    for number, size in enumerate(sizes):
        stream = Bits(body.take(size))
        for _ in range(min(4096, k - 4096 * number)):
            code = ""
            while code not in codes:
                code += str(stream.one())
            found.append(codes[code])
        stream.end()
    return found


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
