"""Ticks whose labels do not touch, which is measured when the figure is drawn."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import cast

import numpy as np
from matplotlib.axis import Axis, XAxis
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FixedLocator, Locator, MaxNLocator

_GAP = 0.07  # inches between two labels
_MEASURE = TextToPath()  # in points, whatever the figure is written to
_ROUND = (1, 2, 2.5, 5, 10)
_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""Digits of a logarithmic axis' ticks, from coarse to fine."""


class Fitting(Locator):
    """The first of several locators whose labels do not touch."""

    def __init__(self, choices: Sequence[Locator], size: float) -> None:
        """Takes the locators, finest first, and the size of the labels' letters in points."""
        self._choices, self._size = choices, size
        self._cached: tuple[object, Sequence[float]] | None = None

    def __call__(self) -> Sequence[float]:
        """The ticks; if no locator fits, those of the last."""
        axis = cast("Axis", self.axis)
        # matplotlib asks several times while it draws, and again for each file that a figure is written to.
        frames = (axes.get_window_extent().bounds for axes in axis.axes.figure.axes)
        inches = tuple(round(length / axis.axes.figure.dpi, 3) for frame in frames for length in frame)
        key = (tuple(axis.get_view_interval()), axis.get_scale(), axis.get_major_formatter(), inches)
        if self._cached is None or self._cached[0] != key:
            self._cached = key, self._fitting(axis)
        return self._cached[1]

    def _fitting(self, axis: Axis) -> Sequence[float]:
        ticks: Sequence[float] = ()
        for choice in self._choices:
            choice.set_axis(axis)
            ticks = choice()
            if _fit(axis, ticks, self._size):
                break
        return ticks

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """The finest ticks of an interval, whether they fit or not."""
        return self._choices[0].tick_values(vmin, vmax)


def linear(most: int, size: float, *, whole: bool = False) -> Fitting:
    """Round numbers, or integers, at equal distances, with at most so many intervals."""
    choices = [MaxNLocator(count, integer=whole, steps=_ROUND, min_n_ticks=1) for count in range(most, 0, -1)]
    return Fitting(choices, size)


def fixed(ticks: Sequence[float], size: float) -> Fitting:
    """These ticks, or every second, third and so on of them, down to the first and the last."""
    thinner = [ticks[::step] for step in range(1, max(2, len(ticks) - 1))]
    return Fitting([FixedLocator(subset) for subset in [*thinner, [ticks[0], ticks[-1]], ticks[:1]]], size)


def logarithmic(low: float, high: float, size: float, most: int | None = None) -> Fitting:
    """At most so many powers of ten from low to high; if they are few, with round numbers between them."""
    sets = [_steps(low, high, digits) for digits in _STEPS]
    enough = [ticks for ticks, least in zip(sets, (4, 4, 4, 3), strict=True) if len(ticks) >= least]
    finest = enough[0] if enough else [float(f"{tick:.3g}") for tick in np.geomspace(low, high, 4)]
    while most is not None and len(finest) > most:
        finest = finest[::-2][::-1]
    coarser = [ticks for ticks in sets[::-1] if 2 <= len(ticks) < len(finest)]
    powers = [sets[0][::step] for step in range(2, len(sets[0]))]
    choices = [finest, *coarser, *powers, [finest[0], finest[-1]], finest[:1]]
    return Fitting([FixedLocator(subset) for subset in choices], size)


def _steps(low: float, high: float, digits: Sequence[float]) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for e in exponents for d in digits if low <= (tick := float(f"{d}e{e}")) <= high]


def _fit(axis: Axis, ticks: Sequence[float], size: float) -> bool:
    """Whether the labels of these ticks touch neither one another nor the neighbouring axes."""
    begin, end = sorted(axis.get_view_interval())
    shown = sorted(float(tick) for tick in ticks if begin <= tick <= end)
    if not shown:
        return True
    figure, axes = axis.axes.figure, axis.axes
    across = isinstance(axis, XAxis)
    frame = axes.get_window_extent()
    spans = []
    for tick, label in zip(shown, axis.get_major_formatter().format_ticks(shown), strict=True):
        at = axes.transData.transform((tick, 0) if across else (0, tick))[0 if across else 1]
        lines = [_measured(line, size) for line in label.split("\n")]
        length = max(width for width, _ in lines) if across else 1.2 * sum(high for _, high in lines)
        half = length * figure.dpi / 72 / 2
        spans.append((at - half, at + half))
    spans.sort()
    gap = _GAP * figure.dpi * (1.0 if across else 0.3)
    room = _room_beside(axis) if across else math.inf
    inside = frame.x0 - spans[0][0] <= room and spans[-1][1] - frame.x1 <= room
    return inside and all(after[0] - before[1] >= gap for before, after in pairwise(spans))


@cache
def _measured(line: str, size: float) -> tuple[float, float]:
    """Width and height of a line in points."""
    width, height, _ = _MEASURE.get_text_width_height_descent(line, FontProperties(size=size), ismath=False)
    return width, height


def _room_beside(axis: Axis) -> float:
    """Pixels by which a label may extend beyond its axes: half of the gap to the next axes in the row."""
    frames = [axes.get_window_extent() for axes in axis.axes.figure.axes]
    gaps = [
        right.x0 - left.x1
        for left in frames
        for right in frames
        if right.x0 > left.x1 and right.y0 < left.y1 and left.y0 < right.y1
    ]
    return (min(gaps) - _GAP * axis.axes.figure.dpi) / 2 if gaps else math.inf
