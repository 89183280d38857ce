"""In place of rendering a report's pictures twice, which takes most of its time.

patch.setattr(gallery.Picture, "_png", drawn)
"""

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
