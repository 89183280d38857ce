"""Images kept as bytes; only a batch of them is float32, normalised by channel."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..spec.data import ImageFolder, Parquet
from .errors import DataError
from .examples import Draw, Examples, Pair

_FRAME = 4
"""Pixels around an image that a random cut may take in."""

_CHUNK = 1000
"""Images whose pixels are added together."""


_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_GREY = (0.449,), (0.226,)
"""The same, averaged over the colours."""


@dataclass(frozen=True, eq=False)
class Normalization:
    """Takes a mean from each channel's pixels, and divides them by a standard deviation."""

    table: NDArray[np.float32]
    """[channels, 256], by the value of a pixel."""

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], name: str) -> "Normalization":
        """That of a training part, uint8 [N, channels, height, width], by channel.

        From exact integer sums: the same bits on every machine. Raises DataError, which calls them `name`: a
        channel is the same everywhere.
        """
        count = pixels.size // pixels.shape[1]
        sums, squares = np.zeros((2, pixels.shape[1]), np.int64)
        for start in range(0, len(pixels), _CHUNK):
            chunk = pixels[start : start + _CHUNK]
            sums += chunk.sum((0, 2, 3), dtype=np.int64)
            squares += np.square(chunk, dtype=np.uint16).sum((0, 2, 3), dtype=np.int64)
        deviations = []
        for channel, (whole, square) in enumerate(zip(sums.tolist(), squares.tolist(), strict=True)):
            spread = count * square - whole * whole
            if spread == 0:
                raise DataError(
                    f"{name}: channel {channel} is {whole // count} everywhere; "
                    "its pixels must not all be equal"
                )
            deviations.append(spread**0.5 / count)
        mean, deviation = ((sums / count).astype(np.float32), np.array(deviations, np.float32))
        return cls((np.arange(256, dtype=np.float32) - mean[:, None]) / deviation[:, None])

    @classmethod
    def asked(cls, config: ImageFolder | Parquet) -> "Normalization":
        """That of a config, which gives mean and deviation of pixels of 0 to 1."""
        usual = _IMAGENET if config.channels == 3 else _IMAGENET_GREY
        mean, deviation = (
            np.array(given or default)[:, np.newaxis]
            for given, default in zip((config.mean, config.std), usual, strict=True)
        )
        return cls(((np.arange(256) / 255 - mean) / deviation).astype(np.float32))

    def __call__(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Converts pixels, uint8 [n, channels, height, width], to float32 of that shape."""
        inputs = np.empty(pixels.shape, np.float32)
        for channel, values in enumerate(self.table):
            np.take(values, pixels[:, channel], out=inputs[:, channel])
        return torch.from_numpy(inputs)


class Pixels(Examples):
    """Images and their classes."""

    def __init__(
        self, pixels: NDArray[np.uint8], labels: NDArray[np.uint8], normalize: Normalization, *, augment: bool
    ) -> None:
        """Takes pixels uint8 [N, channels, height, width], labels uint8 [N], and what is done to a batch."""
        self.pixels, self.labels = pixels, labels
        self._normalize, self._augment = normalize, augment
        self.in_memory = not augment

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`: float32 [n, channels, height, width] and int64 [n]."""
        pixels = self.pixels[indices]
        if self._augment and draw is not None:
            pixels = cut_and_mirrored(pixels, [draw.of(int(index)) for index in indices])
        return self._normalize(pixels), torch.from_numpy(self.labels[indices].astype(np.int64))


def cut_and_mirrored(pixels: NDArray[np.uint8], generators: list[np.random.Generator]) -> NDArray[np.uint8]:
    """Moves each image by up to 4 pixels in each direction, black behind it, and mirrors half of them.

    Pixels are uint8 [n, channels, height, width], before and after; each image has a generator.
    """
    count, channels, height, width = pixels.shape
    framed = np.pad(pixels, ((0, 0), (0, 0), (_FRAME, _FRAME), (_FRAME, _FRAME)))
    moves = [generator.integers(2 * _FRAME + 1, size=2) for generator in generators]
    tops, lefts = np.array(moves).reshape(-1, 2).T
    mirrored = np.array([generator.random() < 0.5 for generator in generators])
    across = np.where(mirrored[:, np.newaxis], np.arange(width)[::-1], np.arange(width))
    rows = (tops[:, np.newaxis] + np.arange(height))[:, np.newaxis, :, np.newaxis]
    columns = (lefts[:, np.newaxis] + across)[:, np.newaxis, np.newaxis, :]
    which = np.arange(count).reshape(-1, 1, 1, 1)
    windows: NDArray[np.uint8] = framed[which, np.arange(channels).reshape(-1, 1, 1), rows, columns]
    return windows
