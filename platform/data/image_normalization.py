"""From pixels to what a network is given."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .config import ImageFolder, Parquet

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_GREY = (0.449,), (0.226,)
"""The same, averaged over the colours."""


@dataclass(frozen=True, eq=False)
class ImageNormalization:
    """Takes the mean from pixels of 0 to 1 and divides by the standard deviation."""

    table: NDArray[np.float32]
    """[channels, 256], by the value of a pixel."""

    @classmethod
    def of(cls, config: ImageFolder | Parquet) -> "ImageNormalization":
        """What a config asks for."""
        usual = _IMAGENET if config.channels == 3 else _IMAGENET_GREY
        mean, deviation = (
            np.array(given or default)[:, np.newaxis]
            for given, default in zip((config.mean, config.std), usual, strict=True)
        )
        return cls(((np.arange(256) / 255 - mean) / deviation).astype(np.float32))

    def __call__(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Of pixels uint8 [n, height, width, channels]: float32 [n, channels, height, width]."""
        count, height, width, channels = pixels.shape
        inputs = np.empty((count, channels, height, width), np.float32)
        for channel in range(channels):
            np.take(self.table[channel], pixels[..., channel], out=inputs[:, channel])
        return torch.from_numpy(inputs)
