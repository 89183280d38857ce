"""What is drawn in a figure; and in place of rendering a report's pictures twice, most of its time:

patch.setattr(gallery.Picture, "_png", drawn)
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from taugrad.dashboards import gallery, style

_RENDERED = gallery.Picture._png
EMPTY = b"\x89PNG"


def drawn(picture: gallery.Picture, page: style.Page) -> bytes:
    """Nothing is rendered; it is drawn once, to see whether it can be."""
    if page is style.WIDE:
        picture.draw(page)
    return EMPTY


def once(picture: gallery.Picture, page: style.Page) -> bytes:
    """It is rendered for one page: the other has the same names."""
    return _RENDERED(picture, page) if page is style.WIDE else EMPTY


def has_line(axes: Axes, x: Any, y: Any, color: str | None = None) -> bool:
    """Whether a line goes through these points."""
    for line in axes.lines:
        got_x, got_y = (np.asarray(data, dtype=float) for data in (line.get_xdata(), line.get_ydata()))
        if got_x.shape == np.shape(x) and np.allclose(got_x, x) and np.allclose(got_y, y, equal_nan=True):
            return color is None or line.get_color() == color
    return False
