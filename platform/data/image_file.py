"""Decodes an image to the pixels of an example. Needs Pillow but no torch, because Ray's tasks do it."""

import builtins
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..spec.data import ImageFolder, Parquet
from .batches import Draw
from .errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


Encoded = bytes
"""What a file of an image holds."""
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
_TRIES = 10
_NARROWEST, _WIDEST = 3 / 4, 4 / 3
"""Width over height of a random part, as torchvision and most ImageNet recipes have it."""
_EIGHT_BITS = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"}
"""Pillow's modes whose values it converts as they are."""
_BITS_PER_SAMPLE, _WHITE_IS, _SAMPLE_FORMAT = 258, 262, 339
"""Tags of TIFF 6.0."""


@dataclass(frozen=True)
class Framing:
    """What is cut out of an image."""

    size: int
    resize: int
    channels: int
    smallest_part: float

    @classmethod
    def of(cls, config: ImageFolder | Parquet) -> "Framing":
        """What a config asks for."""
        return cls(config.size, config.resize or config.size, config.channels, config.smallest_part)

    @property
    def bytes(self) -> int:
        """Number of bytes of an example's pixels."""
        return self.size * self.size * self.channels

    def pixels(
        self, source: Path | Encoded, name: str, generator: np.random.Generator | None
    ) -> NDArray[np.uint8]:
        """Decodes an image and cuts an example out of it: uint8 [size, size, channels].

        `name` is what messages call it. The generator draws the part and the mirroring; without one it is the
        middle, as it is. Raises DataError: it cannot be read, is not a complete image, holds several, or its
        values have no known white.
        """
        from PIL import Image  # noqa: PLC0415 - an extra

        try:
            with Image.open(io.BytesIO(source) if isinstance(source, builtins.bytes) else source) as image:
                whole = _in_eight_bits(image, name).convert("RGB" if self.channels == 3 else "L")
        except FileNotFoundError as error:
            raise DataError(f"{name}: is not there any more") from error
        except DataError:
            raise
        except Exception as error:  # Pillow's readers raise what they like
            problem = " ".join(str(error).split())
            raise DataError(f"{name}: is not a complete image ({problem or type(error).__name__})") from error
        box = self._middle(whole) if generator is None else self._random(whole, generator)
        cut = whole.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(cut, np.uint8).reshape(self.size, self.size, self.channels)
        return pixels[:, ::-1] if generator is not None and generator.random() < 0.5 else pixels

    def _middle(self, image: "Image") -> Box:
        """The square that has `size` of `resize` parts of the shorter side."""
        width, height = image.size
        side = min(width, height) * self.size / self.resize
        left, top = (width - side) / 2, (height - side) / 2
        return left, top, left + side, top + side

    def _random(self, image: "Image", generator: np.random.Generator) -> Box:
        """A part of random area and shape; the middle, if ten do not fit."""
        whole_width, whole_height = image.size
        for _ in range(_TRIES):
            area = whole_width * whole_height * generator.uniform(self.smallest_part, 1)
            shape = math.exp(generator.uniform(math.log(_NARROWEST), math.log(_WIDEST)))
            width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < width <= whole_width and 0 < height <= whole_height:
                left = int(generator.integers(whole_width - width + 1))
                top = int(generator.integers(whole_height - height + 1))
                return left, top, left + width, top + height
        shape = min(max(whole_width / whole_height, _NARROWEST), _WIDEST)
        across, down = min(whole_width, whole_height * shape), min(whole_height, whole_width / shape)
        left_over, top_over = (whole_width - across) / 2, (whole_height - down) / 2
        return left_over, top_over, left_over + across, top_over + down


def _in_eight_bits(image: "Image", name: str) -> "Image":
    """An image that Pillow converts right: its `convert` clips values of more than eight bits at 255.

    Raises DataError: it is one of several, or nothing says which value is white.
    """
    # The first image of an MPO, which is what many cameras call JPEG, is the photograph.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise DataError(f"{name}: holds several images (frames or pages); expected a file for each")
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    bits, signs = tags.get(_BITS_PER_SAMPLE, (16,)), tags.get(_SAMPLE_FORMAT, (1,))
    if set(signs) == {1}:  # unsigned
        if image.mode in _EIGHT_BITS:
            return image.convert("LA") if image.mode == "La" else image
        if image.mode.startswith("I;16") and image.format in {"PNG", "TIFF"}:
            return _scaled(image, (1 << bits[0]) - 1, inverted=tags.get(_WHITE_IS) == 0)
        if image.mode == "I" and image.format in {"PNG", "PPM"}:  # Pillow has scaled a PGM to 16 bits
            return _scaled(image, (1 << 16) - 1, inverted=False)
    raise DataError(
        f"{name}: is a {image.format} image of mode {image.mode}"
        f"{' with signed values' if 2 in signs else ''}, of which it is not known what is black and what is "
        "white; save it with 8 bits a channel, or in grey with 16 unsigned bits (PNG, TIFF, PGM)"
    )


def _scaled(image: "Image", white: int, *, inverted: bool) -> "Image":
    """A grey image of 0..white as one of 0..255, each value to the nearest."""
    from PIL import Image  # noqa: PLC0415 - an extra

    values = np.asarray(image).astype(np.uint32)
    eight = (255 * values + white // 2) // white
    return Image.fromarray((255 - eight if inverted else eight).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Reads images of a tree; see `ray_stream.Reader`."""

    root: Path
    names: Sequence[str]
    """The path of each image, below the root."""
    labels: NDArray[np.int64]
    """[images]"""
    framing: Framing

    def __len__(self) -> int:
        return len(self.names)

    @property
    def bytes_each(self) -> int:
        """See `ray_stream.Reader.bytes_each`."""
        return self.framing.bytes

    def of(self, rows: NDArray[np.int64]) -> "ImageFiles":
        """See `ray_stream.Reader.of`."""
        return replace(self, names=[self.names[i] for i in rows.tolist()], labels=self.labels[rows])

    def __call__(self, numbers: NDArray[np.int64], draw: Draw | None) -> dict[str, NDArray[Any]]:
        """Decodes the images; see `ray_stream.Reader`."""
        paths = [self.root / name for name in self.names]
        generators = [draw.of(number) if draw else None for number in numbers.tolist()]
        read = zip(paths, generators, strict=True)
        pixels = [self.framing.pixels(path, str(path), generator) for path, generator in read]
        return {"pixels": np.stack(pixels), "label": self.labels}
