"""Passes over many parameters that only look, and momentum. Tables of rows are those of `bits.py`."""

import numpy as np
from numba import njit

from .bits import floats

_LARGEST, _ZERO = np.float32(np.finfo(np.float32).max), np.float32(0)


@njit(nogil=True, cache=True)
def nonzero(rows, results):  # type: ignore[no-untyped-def]
    """Whether an element of each gradient is not zero; NaN is not."""
    for i in range(rows.shape[0]):
        results[i] = False
        for value in floats(rows[i, 1], rows[i, 2]):
            if value != _ZERO:
                results[i] = True
                break


@njit(nogil=True, cache=True)
def gather(rows, out, broken):  # type: ignore[no-untyped-def]
    """Copies gradients to where their bases say, and tells which have elements that are not finite."""
    for i in range(rows.shape[0]):
        gradient, into, odd = floats(rows[i, 1], rows[i, 2]), out[rows[i, 3] : rows[i, 3] + rows[i, 2]], 0
        for j in range(gradient.size):
            into[j] = gradient[j]
            odd += not abs(gradient[j]) <= _LARGEST
        broken[i] = odd > 0


@njit(nogil=True, cache=True)
def squares(rows, sums):  # type: ignore[no-untyped-def]
    """The sums of squares of what stands for gradients, float64 [m]."""
    for i in range(rows.shape[0]):
        total = 0.0
        for value in floats(rows[i, 1], rows[i, 2]):
            total += np.float64(value) * np.float64(value)
        sums[i] = total


@njit(nogil=True, cache=True)
def largest(rows, results):  # type: ignore[no-untyped-def]
    """The largest magnitude of each gradient, float32 [m]; it means nothing where one is not finite."""
    for i in range(rows.shape[0]):
        most = _ZERO
        for value in floats(rows[i, 1], rows[i, 2]):
            most = max(most, abs(value))
        results[i] = most


@njit(nogil=True, cache=True)
def scaled_squares(rows, scales, totals):  # type: ignore[no-untyped-def]
    """The sums of squares of gradients times a power of two, each square as a whole number; int64 [m]."""
    for i in range(rows.shape[0]):
        total = np.int64(0)
        for value in floats(rows[i, 1], rows[i, 2]):
            total += np.int64(np.float64(value) * np.float64(value) * scales[i])
        totals[i] = total


@njit(nogil=True, cache=True)
def take(rows, counts, places, values):  # type: ignore[no-untyped-def]
    """residual + gradient at places, `counts` of each parameter."""
    at = 0
    for i in range(rows.shape[0]):
        gradient, end = floats(rows[i, 1], rows[i, 2]), at + counts[i]
        if rows[i, 0]:
            residual = floats(rows[i, 0], rows[i, 2])
            for j in range(at, end):
                values[j] = residual[places[j]] + gradient[places[j]]
        else:
            for j in range(at, end):
                values[j] = gradient[places[j]]
        at = end


@njit(nogil=True, cache=True)
def apply_momentum(rows, momentum, out):  # type: ignore[no-untyped-def]
    """velocity (a row's residual) = momentum * velocity + gradient where that is finite; out gains all."""
    for i in range(rows.shape[0]):
        velocity, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        into = out[rows[i, 3] : rows[i, 3] + rows[i, 2]]
        for j in range(velocity.size):
            total = velocity[j] * momentum + gradient[j]
            into[j] = total
            velocity[j] = total if abs(total) <= _LARGEST else velocity[j]


@njit(nogil=True, cache=True)
def clear(words, ends, rows):  # type: ignore[no-untyped-def]
    """Sets to zero what words name; `ends` says where those of each row end."""
    at = 0
    for i in range(rows.shape[0]):
        residual = floats(rows[i, 0], rows[i, 2])
        for j in range(at, ends[i]):
            residual[np.int64(words[j] >> np.uint32(1)) - rows[i, 3]] = _ZERO
        at = ends[i]
