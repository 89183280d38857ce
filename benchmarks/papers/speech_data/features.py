"""Log mel energies of frames, as Strom's acoustic model sees them (2015, section 3.2)."""

import numpy as np
from numpy.typing import NDArray

FEATURES = 20
FRAME_MS, WINDOW_MS = 10, 25
LOWEST_HZ, HIGHEST_HZ = 64.0, 8000.0
_FLOOR = 1e-3
"""The least energy; that of a sample of 1 in 32,768 is about 1."""


def window_length(rate: int) -> int:
    """Samples of a window of 25 ms, rounded down."""
    return WINDOW_MS * rate // 1000


def frame_starts(samples: int, rate: int) -> NDArray[np.int64]:
    """Where frames begin, int64 [frames]: every 10 ms, rounded down, as long as a whole window fits."""
    starts = np.arange(samples * 1000 // (FRAME_MS * rate) + 1) * (FRAME_MS * rate) // 1000
    return starts[starts + window_length(rate) <= samples]


def log_mel(samples: NDArray[np.float64], rate: int) -> NDArray[np.float32]:
    """Logarithms of the energies in 20 bands.

    A window of 25 ms is weighted by Hamming's 0.54 - 0.46 cos(2 pi n / (length - 1)) and, with zeros behind
    it up to a power of two N, transformed. A band's energy is the sum over frequencies of |X_k|^2 / N times
    the band's triangle. Triangles stand side by side on HTK's mel scale, 2595 log10(1 + f / 700), at equal
    distances between 64 and 8,000 Hz, each rising from its left neighbour's middle to its own and falling
    to its right neighbour's. The logarithm is natural, of at least 1e-3.

    Args:
        samples: float64 [n], in units of 16-bit samples; a window's at least.
        rate: samples a second, at least 16,000.

    Returns:
        float32 [frames, 20]; see `frame_starts`.
    """
    length, starts = window_length(rate), frame_starts(len(samples), rate)
    windows = np.lib.stride_tricks.sliding_window_view(samples, length)[starts] * np.hamming(length)
    size = 1 << (length - 1).bit_length()
    spectrum = np.fft.rfft(windows, size)
    power = (np.square(spectrum.real) + np.square(spectrum.imag)) / size
    mel = _mel(np.arange(size // 2 + 1) * (rate / size))
    corners = np.linspace(_mel(LOWEST_HZ), _mel(HIGHEST_HZ), FEATURES + 2)
    left, middle, right = (corners[i : i + FEATURES, np.newaxis] for i in range(3))
    rising, falling = (mel - left) / (middle - left), (right - mel) / (right - middle)
    triangles = np.maximum(np.minimum(rising, falling), 0)
    # Not BLAS, whose order of additions may depend on the number of threads.
    energies = np.einsum("fk,bk->fb", power, triangles)
    logarithms: NDArray[np.float32] = np.log(np.maximum(energies, _FLOOR)).astype(np.float32)
    return logarithms


def _mel(frequency: NDArray[np.floating] | float) -> NDArray[np.float64]:
    return 2595 * np.log10(1 + np.asarray(frequency, dtype=np.float64) / 700)
