"""One style for every figure: sizes, titles, margins, ticks.

Figures are built with matplotlib's objects, never with pyplot: no global state, no display.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from . import ticks
from .palette import GREY

DPI = 150
TITLE_SIZE = 12
LABEL_SIZE = 10
TICK_SIZE = 9
SMALL_SIZE = 8


class Key(NamedTuple):
    """An entry of the legend, a word in a colour, in a row under the title."""

    word: str
    color: str
    """The color of the letters."""
    patch: str | None = None
    """The background of the letters."""


@dataclass(frozen=True)
class Page:
    """The size of a figure; lengths in inches."""

    width: float
    height: float
    """The height of a figure of one panel."""
    columns: int
    """Panels beside each other."""
    panel_height: float
    """The height of each panel in a figure of several."""
    left: float
    """From the figure's edge to the axes, for ticks and their label."""

    @property
    def is_narrow(self) -> bool:
        """Whether panels have the width of the figure."""
        return self.width < 6


WIDE = Page(8.0, 5.0, 3, 1.75, 0.92)
"""A screen, a printed page."""
NARROW = Page(4.2, 4.2, 1, 1.75, 0.8)
"""A phone held upright."""

_RIGHT, _BOTTOM, _TOP = 0.32, 0.62, 0.17  # inches to the figure's edges
_SMALLEST_TITLE = 0.85
_TITLE_LINE, _NOTE_LINE, _HEADER_GAP, _HEADING = 0.21, 0.165, 0.2, 0.14  # inches
_KEY_LINE = 0.22


def new_figure(
    title: str, note: str, xlabel: str, ylabel: str, page: Page = WIDE, *, key: Sequence[Key] = ()
) -> tuple[Figure, Axes]:
    """Creates an empty figure in this style, and its axes.

    Args:
        title: The title, a sentence.
        note: How to read it, in smaller letters under the title; may be empty.
        xlabel: The horizontal axis, with its unit.
        ylabel: The vertical axis, with its unit.
        page: The figure's size.
        key: The legend.
    """
    figure = _blank(page.width, page.height)
    header = _header(figure, title, note, page, key)
    axes = figure.add_subplot()
    figure.subplots_adjust(
        left=page.left / page.width,
        right=1 - _RIGHT / page.width,
        top=1 - header / page.height,
        bottom=_BOTTOM / page.height,
    )
    axes.set_xlabel(xlabel, fontsize=LABEL_SIZE)
    axes.set_ylabel(ylabel, fontsize=LABEL_SIZE)
    _shrink(axes.xaxis.label, (page.width - 0.2) * figure.dpi)
    _dress(axes)
    return figure, axes


def new_panels(
    title: str,
    note: str,
    xlabel: str,
    ylabel: str,
    panels: Sequence[tuple[str, str]],
    page: Page = WIDE,
    *,
    sharex: bool = True,
    sharey: bool = True,
    key: Sequence[Key] = (),
) -> tuple[Figure, list[Axes]]:
    """Creates an empty figure of small panels, and their axes.

    Args:
        title: The title, a sentence.
        note: How to read it; may be empty.
        xlabel: The horizontal axis of all, with its unit.
        ylabel: The vertical axis of all, with its unit; may be empty.
        panels: Each panel's heading and the heading's colour.
        page: The figure's size.
        sharex: Whether panels share the horizontal axis.
        sharey: Whether panels share the vertical axis.
        key: The legend.
    """
    across = min(page.columns, len(panels))
    down = math.ceil(len(panels) / across)
    gap, height = 0.5 if sharex else 0.75, page.panel_height if down > 1 or across > 1 else page.height - 1.5
    figure = _blank(page.width, 1.0)
    header = _header(figure, title, note, page, key) + _HEADING
    total = header + down * height + (down - 1) * gap + _BOTTOM
    _set_height(figure, total)
    between = 0.25 if sharey else page.left
    width = (page.width - page.left - _RIGHT - (across - 1) * between) / across
    drawn: list[Axes] = []
    for i, (heading, color) in enumerate(panels):
        row, column = divmod(i, across)
        left = page.left + column * (width + between)
        bottom = total - header - height - row * (height + gap)
        share = drawn[0] if drawn else None
        axes = figure.add_axes(
            (left / page.width, bottom / total, width / page.width, height / total),
            sharex=share if sharex else None,
            sharey=share if sharey else None,
        )
        axes.set_title(heading, loc="left", fontsize=LABEL_SIZE, fontweight="bold", color=color, pad=4)
        _shorten(axes._left_title, (width + between - 0.08) * figure.dpi)  # type: ignore[attr-defined]
        _dress(axes)
        axes.tick_params(
            labelleft=column == 0 or not sharey, labelbottom=i + across >= len(panels) or not sharex
        )
        for axis in (axes.xaxis, axes.yaxis):  # for its absent label, matplotlib would measure all ticks
            axis.set_label_coords(0.5, 0.0)
        drawn.append(axes)
    below = figure.text(
        (page.left + page.width - _RIGHT) / 2 / page.width, 0.12 / total, xlabel, ha="center", va="bottom",
        fontsize=LABEL_SIZE,
    )  # fmt: skip
    _shrink(below, (page.width - 0.2) * figure.dpi)
    middle = (_BOTTOM + total - header) / 2 / total
    beside = figure.text(
        0.1 / page.width, middle, ylabel, ha="left", va="center", rotation="vertical", fontsize=LABEL_SIZE
    )
    _shrink(beside, 2 * min(middle, 1 - middle) * figure.bbox.height - 4)
    return figure, drawn


def log_axis(axis: Axis, low: float, high: float, unit: str, *, most: int | None = None) -> None:
    """Makes an axis logarithmic from low to high, with decimal ticks such as "1 MB, 10 MB", `most` at most.

    Raises:
        ValueError: the limits are not 0 < low < high.
    """
    if not 0 < low < high:
        raise ValueError(f"a logarithmic axis from {low} to {high}")
    axes = axis.axes
    if axis is axes.xaxis:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    axis.set_major_locator(ticks.logarithmic(low, high, TICK_SIZE, most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: decimal(value) + unit))


def iterations(axes: Axes, steps: Sequence[NDArray[np.int64]]) -> None:
    """Makes the horizontal axis one of iterations, from the first to the last of several lines' steps."""
    first, last = min(int(line[0]) for line in steps), max(int(line[-1]) for line in steps)
    axes.set_xlim(first, max(last, first + 1))
    axes.xaxis.set_major_locator(ticks.linear(5, TICK_SIZE, whole=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(value)))


def decimal(value: float, digits: int | None = None) -> str:
    """A number without exponent: three significant digits without trailing zeros, or all before the point.

    With `digits`, that many are significant, and zeros follow.
    """
    if digits is not None:
        value = float(f"{value:.{digits}g}")
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # The exponent after rounding: 9.999 is written as 10.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _blank(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticks.linear(7, TICK_SIZE))
    axes.set_title("", y=1.0)  # without a position, matplotlib would measure all ticks
    axes.tick_params(labelsize=TICK_SIZE, color=GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.grid(True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)


def _header(figure: Figure, title: str, note: str, page: Page, key: Sequence[Key]) -> float:
    """Writes title, note and key, in lines that fit; returns their height in inches."""
    height = figure.get_figheight()
    x, y = _margin(page) / page.width, 1 - _TOP / height
    heading = figure.suptitle(title, x=x, y=y, ha="left", va="top", fontsize=TITLE_SIZE, fontweight="bold")
    room = (page.width - _margin(page) - 0.15) * figure.dpi
    factor = room / extent(heading).width
    if 1 > factor >= _SMALLEST_TITLE:  # a little smaller reads better than a last word on a second line
        heading.set_fontsize(TITLE_SIZE * factor * 0.995)
    below = _TOP + _break(heading, room) * _TITLE_LINE + 0.05
    if note:
        remark = figure.text(x, 1 - below / height, note, ha="left", va="top", fontsize=TICK_SIZE, color=GREY)
        below += _break(remark, room) * _NOTE_LINE
    begins, room_ends = x, 1 - 0.1 / page.width
    for word, color, patch in key:
        background = {"facecolor": patch, "edgecolor": "none", "pad": 1.5} if patch else None
        text = figure.text(
            x, 1 - (below + 0.08) / height, word, ha="left", va="top", fontsize=SMALL_SIZE, color=color,
            fontweight="normal" if patch else "bold", bbox=background,
        )  # fmt: skip
        if x > begins and x + extent(text).width / figure.bbox.width > room_ends:
            x, below = begins, below + _KEY_LINE
            text.set_position((x, 1 - (below + 0.08) / height))
        x += extent(text).width / figure.bbox.width + 0.13 / page.width
    return below + (_NOTE_LINE + 0.1 if key else 0.0) + _HEADER_GAP


def _shrink(text: Text, room: float) -> None:
    """Reduces the size of an axis' label that is longer than so many pixels."""
    box = extent(text)
    length = max(box.width, box.height)
    if length > room:
        text.set_fontsize(LABEL_SIZE * room / length)


def _shorten(text: Text, room: float) -> None:
    """Reduces the size of a heading to at most so many pixels, then cuts its middle."""
    heading = text.get_text()
    if extent(text).width > room:
        text.set_fontsize(max(SMALL_SIZE, LABEL_SIZE * room / extent(text).width))
    for length in range(len(heading) - 1, 1, -1):
        if extent(text).width <= room:
            return
        text.set_text(f"{heading[: length // 3]}…{heading[-(length - length // 3) :]}")


def _margin(page: Page) -> float:
    """The header's left margin in inches: that of the axes, or a narrow page's."""
    return 0.15 if page.is_narrow else page.left


def _break(text: Text, room: float) -> int:
    """Breaks a text into lines of at most so many pixels; returns their number."""
    words, lines = text.get_text().split(" "), list[str]()

    def width(count: int) -> float:
        text.set_text(" ".join(words[:count]))
        return extent(text).width

    while words:
        count = max(1, bisect_right(range(1, len(words) + 1), room, key=width))
        lines.append(" ".join(words[:count]))
        words = words[count:]
    text.set_text("\n".join(lines))
    return len(lines)


def power(value: float) -> str:
    """A number as a power of ten, such as 10⁻³ or 5·10⁻³."""
    exponent = math.floor(math.log10(value) + 1e-9)
    digit = decimal(value / 10**exponent)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digit == "1" else f"{digit}·10{raised}"


def make_room(figure: Figure, pixels: float) -> None:
    """Makes the axes at least so many pixels high; the margins keep their size."""
    before, margins = figure.get_figheight(), figure.subplotpars
    grown = pixels / figure.dpi - (margins.top - margins.bottom) * before
    if grown <= 0:
        return
    after = before + grown
    top, bottom = 1 - (1 - margins.top) * before / after, margins.bottom * before / after
    _set_height(figure, after)
    figure.subplots_adjust(top=top, bottom=bottom)


def _set_height(figure: Figure, after: float) -> None:
    """Changes a figure's height; its texts keep their distance from the top."""
    before = figure.get_figheight()
    figure.set_figheight(after)
    for text in figure.texts:  # the title is one of them
        text.set_y(1 - (1 - text.get_position()[1]) * before / after)


def extent(text: Text) -> Bbox:
    """A text's bounding box in pixels; of an annotation without the line to its point."""
    renderer = _measuring(cast("Figure", text.figure).dpi, rcParams["text.hinting"])
    if isinstance(text, Annotation):
        text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


@cache
def _measuring(dpi: float, hinting: str) -> RendererAgg:
    """The renderer that measures texts of all figures, as matplotlib caches their sizes by renderer."""
    # Sizes depend on `hinting`, which the renderer looks up by itself.
    return RendererAgg(1, 1, dpi)  # type: ignore[no-untyped-call]


def as_written() -> AbstractContextManager[None]:
    """Context in which figures draw texts literally; else matplotlib reads `$x$` as a formula.

    Without hinting, which takes longer than everything else about letters.
    """
    return rc_context({"text.parse_math": False, "text.hinting": "no_hinting"})
