"""What the operations of `Ops` do to one parameter, in NumPy, by their definitions."""

import math
from bisect import bisect
from fractions import Fraction
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import page_decoder
import torch
from numpy.typing import NDArray

F32 = np.float32
MAX = np.finfo(F32).max
SMALLEST_TAU, LARGEST_TAU = F32(2.0**-126), F32(2.0**119)
Floats = NDArray[np.float32]


class Sent(NamedTuple):
    """What a sparse pass makes of residual + gradient."""

    residual: Floats
    positions: NDArray[np.int64]
    values: NDArray[np.generic]
    """Floats (wgt, topk, chunked), levels (qgt), or nothing."""
    minus: NDArray[np.bool_]
    nonfinite: bool
    tau: float

    @property
    def amounts(self) -> Floats:
        """What each element sent stands for."""
        if self.values.dtype == F32:
            return self.values.astype(F32)
        magnitudes = F32(self.tau) * (self.values.astype(F32) if self.values.size else F32(1))
        return np.where(self.minus, -magnitudes, magnitudes).astype(F32)

    @property
    def dense(self) -> Floats:
        """What was sent at each position, and zero elsewhere."""
        result = np.zeros(self.residual.size, F32)
        result[self.positions] = self.amounts
        return result


def _sums(residual: Floats, gradient: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    with np.errstate(all="ignore"):
        sums = residual + gradient
    return sums, np.isfinite(sums)


def threshold(rule: str, residual: Floats, gradient: Floats, tau: float) -> Sent:
    """Anoosheh, section 2.1 (wgt, bgt, qgt); Strom, section 2.6."""
    a, finite = _sums(residual, gradient)
    magnitude, by = np.abs(a), F32(tau)
    hit = finite & ((magnitude > by) if rule == "strom" else (magnitude >= by))
    with np.errstate(all="ignore"):
        levels = np.minimum(np.floor(magnitude / by), F32(255))
        quantum = {"wgt": magnitude, "qgt": levels * by}.get(rule, np.full_like(a, by))
        rest = np.where(hit, np.where(a < 0, a + quantum, a - quantum), a)
    values = {"wgt": a[hit], "qgt": levels[hit].astype(np.uint8)}.get(rule, np.empty(0, np.uint8))
    kept = np.where(finite, rest, residual).astype(F32)
    return Sent(kept, np.flatnonzero(hit), values, a[hit] < 0, not finite.all(), float(by))


def bfloat16(values: Floats) -> NDArray[np.uint32]:
    """The bits of the nearest bfloat16, of two the even one; of finite values."""
    bits = values.view(np.uint32)
    return (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> np.uint32(16)


def visible(residual: Floats, gradient: Floats, weights: Floats, tau: float | None) -> Sent:
    """PULSELoCo's choice: an element is sent where it changes the bfloat16 of the agreed weight less it.

    It is sent whole, or as +tau or -tau if it also exceeds tau. What is not sent stays (error feedback).
    """
    a, finite = _sums(residual, gradient)
    with np.errstate(all="ignore"):
        seen = ~finite | (bfloat16(weights - a) != bfloat16(weights))
    zero, rule = F32(0), "wgt" if tau is None else "strom"
    shown = np.where(seen, residual, zero), np.where(seen, gradient, zero)
    sent = threshold(rule, *shown, float(SMALLEST_TAU) if tau is None else tau)
    return sent._replace(residual=np.where(seen, sent.residual, a))


def largest(residual: Floats, gradient: Floats, k: int) -> Sent:
    """The k largest magnitudes from the smallest tau on, the first of equal ones; none beside a NaN."""
    a, finite = _sums(residual, gradient)
    keys = np.where(finite & (np.abs(a) >= SMALLEST_TAU), np.abs(a), F32(-1))
    order = np.argsort(-keys, kind="stable")[: k if finite.all() else 0]
    hit = np.sort(order[keys[order] >= 0])
    kept = np.where(finite, a, residual)
    kept[hit] = 0
    tau = min(np.abs(a[hit]).min(), LARGEST_TAU) if hit.size else SMALLEST_TAU
    return Sent(kept, hit, a[hit], a[hit] < 0, not finite.all(), float(tau))


def largest_of_chunks(residual: Floats, gradient: Floats, chunk: int, keep: int) -> Sent:
    """The `keep` largest finite magnitudes of each chunk, zeros too, of equal ones the first."""
    a, finite = _sums(residual, gradient)
    hits = [np.empty(0, np.int64)]
    for low in range(0, a.size, chunk):
        at = slice(low, low + chunk)
        keys = np.where(finite[at], np.abs(a[at]), F32(-1))
        order = np.argsort(-keys, kind="stable")[:keep]
        hits.append(low + np.sort(order[keys[order] >= 0]))
    hit = np.concatenate(hits)
    kept = np.where(finite, a, residual)
    kept[hit] = 0
    return Sent(kept, hit, a[hit] + F32(0), a[hit] < 0, not finite.all(), float(SMALLEST_TAU))


def hashed(counter: int, low: int, high: int) -> int:
    """As `ops.uniform.bits_of` says it, in integers: MurmurHash3's finalizer, half of the key xored in."""
    h = (counter * 0x9E3779B9 + low) % 2**32
    h = ((h ^ h >> 16) * 0x85EBCA6B % 2**32) ^ high
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def key_of(seed: int, iteration: int, stream: int, name: str) -> tuple[int, int]:
    """As `ops.uniform.keys_of` says it."""
    head = b"".join(number.to_bytes(8, "little") for number in (seed, iteration, stream))
    digest = blake2b(head + name.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def drawn(residual: Floats, gradient: Floats, k: int, key: int) -> Sent:
    """One element at random in each of k equal strata."""
    a, finite = _sums(residual, gradient)
    hit = []
    for i in range(k):
        low, high = i * a.size // k, (i + 1) * a.size // k
        hit.append(low + hashed(i, key, 0) % (high - low))
    kept, at = np.where(finite, a, residual), np.array(hit)
    kept[at] = 0
    return Sent(kept, at, a[at], a[at] < 0, not finite.all(), float(SMALLEST_TAU))


class Quantized(NamedTuple):
    """What a quantizing pass makes of one block."""

    symbols: NDArray[np.int64]
    tables: tuple[NDArray[np.generic], ...]
    values: Floats


def linear(a: Floats, bits: int) -> Quantized:
    """Oland and Raj, section 3.1; tables are the smallest element and the width of a bin."""
    low, high = a.min() + F32(0), a.max() + F32(0)
    step = high * F32(2.0**-bits) - low * F32(2.0**-bits)
    step = step if step >= F32(2.0**-126) else F32(0)
    half_low, half_step = low * F32(0.5), step * F32(0.5)
    places = (a * F32(0.5) - half_low) * (F32(2) / step if step else F32(0))
    symbols = np.minimum(places.astype(np.int64), 2**bits - 1)
    halves = half_low + half_step * (symbols.astype(F32) + F32(0.5))
    return Quantized(symbols, (np.array([low]), np.array([step])), halves + halves)


def quantile(a: Floats, bits: int) -> Quantized:
    """Rae, section 2.3.1; tables are the exponent and the float16 bits of the bins' means."""
    a, bins = a + F32(0), 2**bits
    ordered = np.sort(a)
    cuts = ordered[np.arange(1, bins) * a.size // bins]
    symbols = np.searchsorted(cuts, a, side="right")
    most = float(np.abs(a).max())
    exponent = max(math.frexp(most)[1] - 1 - 14, -128) if most else 0
    fraction = 47 - math.ceil(math.log2(a.size))
    scaled = np.array([int(Fraction(float(x)) * Fraction(2) ** (fraction - exponent)) for x in a], object)
    means = np.zeros(bins, np.float16)
    for j in np.unique(symbols):
        inside = scaled[symbols == j]
        mean = F32(np.float64(sum(inside)) / np.float64(inside.size) * 2.0**-fraction)
        means[j] = np.clip(mean, F32(-32752), F32(32752))
    values = np.array([math.ldexp(float(mean), exponent) for mean in means], F32)[symbols]
    return Quantized(symbols, (np.array([exponent], np.int8), means.view(np.uint16)), values)


_E4M3 = [Fraction(page_decoder.e4m3(short)) for short in range(0x7F)]
"""The finite magnitudes, in order of their bits."""


def fp8(a: Floats, _: int = 8) -> Quantized:
    """Scaled float8 e4m3fn, in fractions; the table is the exponent."""
    most, exponent = Fraction(float(np.abs(a).max())), 0
    if most:
        exponent = min(max(math.frexp(float(most / 448))[1] - 2, -126), 119)
        while most > 448 * Fraction(2) ** exponent and exponent < 119:
            exponent += 1
    symbols, values = [], []
    for x in a:
        scaled = abs(Fraction(float(x))) / Fraction(2) ** exponent
        above = min(bisect(_E4M3, scaled), 0x7E)
        short = min((abs(scaled - _E4M3[s]), s % 2, s) for s in (max(above - 1, 0), above))[2]
        symbols.append(short | 0x80 * bool(np.signbit(x)))
        values.append(math.copysign(float(_E4M3[short] * Fraction(2) ** exponent), x))
    return Quantized(np.array(symbols), (np.array([exponent], np.int8),), np.array(values, F32))


def rounded_up(width: float, bits: int) -> F32:
    """The next float32 from a width on whose last `bits` + 1 bits are 0."""
    spare = (1 << (bits + 1)) - 1
    up: F32 = np.array([(int(F32(width).view(np.uint32)) + spare) & ~spare], np.uint32).view(F32)[0]
    return up


def sign(a: Floats, _: int = 1) -> Quantized:
    """EF-SignSGD, Algorithm 1: the mean magnitude with each element's sign."""
    width = rounded_up(2 * np.abs(a, dtype=np.float64).mean(), 1) if a.any() else F32(0)
    values = np.copysign(width / 2, a)
    return Quantized((~np.signbit(a)).astype(np.int64), (np.array([-width]), np.array([width])), values)


def half(a: Floats, kind: str) -> Quantized:
    """torch's rounding; what is too large becomes the largest finite number."""
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    most = torch.finfo(dtype).max
    short = torch.from_numpy(a).clamp(-most, most).to(dtype)
    return Quantized(short.view(torch.uint16).numpy().astype(np.int64), (), short.float().numpy())


def exact_sum_of_squares(values: Floats) -> float:
    """As `Ops.exact_sum_of_squares` says it, number by number."""
    squares = [float(value) * float(value) for value in values]
    up = 62 - len(squares).bit_length() - math.frexp(max(squares))[1]
    return math.ldexp(sum(int(math.ldexp(square, up)) for square in squares), -up)
