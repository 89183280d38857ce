"""Reading the images of a folder, wherever that is done: in this process, or in Ray Data's tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .draw import Draw
from .image_file import Framing


@dataclass(frozen=True)
class LoadImages:
    """From `name` (bytes, below the root) and `index` to `pixels`, uint8 [rows, size, size, channels]."""

    root: str
    framing: Framing
    draw: Draw | None
    """None: nothing is augmented."""

    def __call__(self, tickets: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Decodes the images.

        Raises:
            DataError: one of them is damaged.
        """
        pixels = []
        for name, index in zip(tickets["name"].tolist(), tickets["index"].tolist(), strict=True):
            path = Path(self.root, name)
            generator = self.draw.of(index) if self.draw else None
            pixels.append(self.framing.pixels(path, str(path), generator))
        return {"pixels": np.stack(pixels)}
