"""One style for every figure: colours, sizes, ticks, and labels that stay legible.

Figures are built with matplotlib's objects, never with pyplot: no global state, no display.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

FIGURE_SIZE = (8.0, 5.0)
"""Inches."""
DPI = 150
TITLE_SIZE = 12
LABEL_SIZE = 10
TICK_SIZE = 9
GREY = "#6B6B6B"
"""For what frames the data: axes, notes, reference lines."""

_GAP = 8.0  # points between a line's end, or a marker, and its label
_PADDING = 2.0  # pixels that labels keep from each other
_MARGINS = {"left": 0.115, "right": 0.96, "top": 0.85, "bottom": 0.125}


_Place: TypeAlias = tuple[tuple[float, float], Literal["left", "center", "right"]]
"""A label's offset from its point, in points, and the side that it is aligned by."""


_AROUND: tuple[_Place, ...] = (
    ((1, 0), "left"),
    ((-1, 0), "right"),
    ((0, 1.3), "center"),
    ((0, -1.3), "center"),
    ((1, 1), "left"),
    ((1, -1), "left"),
    ((-1, 1), "right"),
    ((-1, -1), "right"),
)


class RuleStyle(NamedTuple):
    """How a rule looks in every figure; the marker tells apart what a colour alone may not."""

    color: str
    marker: str


# Okabe and Ito's colours for the rules that are compared most, darker shades of them for the rest.
RULES: dict[str, RuleStyle] = {
    "none": RuleStyle("#000000", "o"),
    "wgt": RuleStyle("#0072B2", "o"),
    "bgt": RuleStyle("#D55E00", "s"),
    "qgt": RuleStyle("#009E73", "^"),
    "strom": RuleStyle("#CC79A7", "D"),
    "topk": RuleStyle("#E69F00", "v"),
    "chunked_topk": RuleStyle("#8C6100", "<"),
    "linear": RuleStyle("#56B4E9", "P"),
    "quantile": RuleStyle("#004B76", "X"),
    "powersgd": RuleStyle("#7A3E62", "p"),
    "entropy": RuleStyle("#8F3F00", "h"),
    "fp16": RuleStyle("#595959", "d"),
    "bf16": RuleStyle("#8C8C8C", "H"),
    "fp8": RuleStyle("#A89A00", ">"),
}
UNKNOWN_RULE = RuleStyle("#B0006D", "*")


def rule_style(rule: str) -> RuleStyle:
    """The colour and marker of a rule.

    Args:
        rule: The compressor's kind.

    Returns:
        Its style; one for all rules that this table does not know.
    """
    return RULES.get(rule, UNKNOWN_RULE)


@dataclass(frozen=True)
class Label:
    """A label of a point in data coordinates."""

    x: float
    y: float
    text: str
    color: str


def new_figure(title: str, note: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty figure in this style.

    Args:
        title: What is seen, in one sentence.
        note: How to read it, in smaller letters under the title; may be empty.
        xlabel: The horizontal axis, with its unit.
        ylabel: The vertical axis, with its unit.

    Returns:
        The figure and its axes.
    """
    figure = Figure(figsize=FIGURE_SIZE, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    figure.subplots_adjust(**_MARGINS)
    heading = figure.suptitle(
        title, x=_MARGINS["left"], y=0.965, ha="left", va="top", fontsize=TITLE_SIZE, fontweight="bold"
    )
    room = (0.985 - _MARGINS["left"]) * figure.bbox.width
    # A long title is set smaller, not cut.
    heading.set_fontsize(TITLE_SIZE * min(1.0, room / _extent(heading).width))
    figure.text(_MARGINS["left"], 0.91, note, ha="left", va="top", fontsize=TICK_SIZE, color=GREY)
    axes.set_xlabel(xlabel, fontsize=LABEL_SIZE)
    axes.set_ylabel(ylabel, fontsize=LABEL_SIZE)
    axes.tick_params(labelsize=TICK_SIZE, color=GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.grid(True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def log_axis(axis: Axis, low: float, high: float, unit: str) -> None:
    """Makes an axis logarithmic, with decimal ticks such as "1 MB, 10 MB".

    Args:
        axis: The axis.
        low: The lower limit, above 0.
        high: The upper limit.
        unit: What follows every number, such as "%" or " MB".

    Raises:
        ValueError: The limits are not 0 < low < high.
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
    axis.set_major_locator(FixedLocator(_decimal_ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: decimal(value) + unit))


def decimal(value: float) -> str:
    """A number without exponent and without needless zeros.

    Args:
        value: The number.

    Returns:
        At most three significant digits after a leading zero, or all digits before the point.
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # The exponent after rounding: 9.999 is written as 10.
    decimals = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def label_ends(axes: Axes, labels: Sequence[Label]) -> list[Annotation]:
    """Labels lines at their right ends, in a column beside the axes.

    Labels move up or down where they would overlap, with a thin line back to their point; the axes become
    narrower until the widest label fits, and the figure higher until all do. Call it last: it needs the
    final limits.

    Args:
        axes: The axes, with their final limits and scales.
        labels: One a line, at its last point.

    Returns:
        The annotations, in the order of `labels`.
    """
    figure = cast("Figure", axes.figure)
    notes = [
        axes.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=(1.0, 0.0),
            textcoords="axes fraction",
            ha="left",
            va="center",
            fontsize=TICK_SIZE,
            color=label.color,
            annotation_clip=False,
            arrowprops={**_leader(label.color), "relpos": (0.0, 0.5)},
        )
        for label in labels
    ]
    if not notes:
        return notes
    boxes = [_extent(note) for note in notes]
    _make_room(figure, sum(box.height + _PADDING for box in boxes))
    gap = 2 * _GAP * figure.dpi / 72
    width = figure.bbox.width
    widest = max(box.width for box in boxes)
    right = min(_MARGINS["right"], 1 - (widest + gap + 2 * _PADDING) / width)
    figure.subplots_adjust(right=max(_MARGINS["left"] + 0.2, right))
    wanted = [float(axes.transData.transform((label.x, label.y))[1]) for label in labels]
    # The column stays beside the axes: the title is above, the ticks' labels are below.
    frame = axes.get_window_extent()
    centers = spread(wanted, [box.height + _PADDING for box in boxes], frame.y0, frame.y1)
    for note, center in zip(notes, centers, strict=True):
        note.set_position(((frame.width + gap) / frame.width, (center - frame.y0) / frame.height))
    return notes


def label_points(
    axes: Axes,
    labels: Sequence[Label],
    *,
    markers: Sequence[tuple[float, float]] = (),
    levels: Sequence[float] = (),
) -> list[Annotation]:
    """Labels points beside them, where there is room.

    Each label takes the first place around its point where it lies in the axes and covers no marker, no
    line and no other label; in a crowd it moves further out, with a thin line back to its point.

    Args:
        axes: The axes, with their final limits and scales.
        labels: The labels and their points.
        markers: Further points, in data coordinates, that no label may cover.
        levels: Horizontal lines, in data coordinates, that no label may cover.

    Returns:
        The annotations, in the order of `labels`.
    """
    figure = cast("Figure", axes.figure)
    half = 5 * figure.dpi / 72  # a marker and its edge
    frame = axes.get_window_extent()
    centers = [
        axes.transData.transform(point) for point in [*((label.x, label.y) for label in labels), *markers]
    ]
    occupied = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in centers]
    for level in levels:
        y = axes.transData.transform((labels[0].x, level))[1]
        occupied.append(Bbox.from_bounds(frame.x0, y - 1, frame.width, 2))
    notes = []
    for label in labels:
        best: tuple[float, _Place] | None = None
        for place in _places():
            trial = _beside(axes, label, place, leader=False)
            box = _extent(trial).padded(_PADDING)
            trial.remove()
            cost = sum(_overlap(box, other) for other in occupied) + 10 * _outside(box, frame)
            if best is None or cost < best[0]:
                best = (cost, place)
            if cost == 0:
                break
        if best is not None:
            far = max(map(abs, best[1][0])) > 1.5 * _GAP
            notes.append(_beside(axes, label, best[1], leader=far))
            occupied.append(_extent(notes[-1]).padded(_PADDING))
    return notes


def spread(wanted: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Moves intervals as little as possible until none overlaps another.

    Args:
        wanted: The intervals' wanted centers.
        sizes: Their lengths.
        low: None may begin below this.
        high: None may end above this, unless there is no room at all.

    Returns:
        The centers, in the order of `wanted`.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Groups of touching intervals: members, total length, begin.
    groups: list[tuple[list[int], float, float]] = []
    for i in order:
        members, length, begin = [i], sizes[i], _clamped(wanted[i] - sizes[i] / 2, low, high - sizes[i])
        while groups and groups[-1][2] + groups[-1][1] > begin:
            earlier, earlier_length, _ = groups.pop()
            members, length = earlier + members, earlier_length + length
            begin = _clamped(_best_begin(members, wanted, sizes), low, high - length)
        groups.append((members, length, begin))
    centers = [0.0] * len(wanted)
    for members, _, begin in groups:
        edge = begin
        for i in members:
            centers[i] = edge + sizes[i] / 2
            edge += sizes[i]
    return centers


def _make_room(figure: Figure, pixels: float) -> None:
    """Makes the axes at least this high; everything above and below them keeps its size."""
    before = figure.get_figheight()
    grown = pixels / figure.dpi - (_MARGINS["top"] - _MARGINS["bottom"]) * before
    if grown <= 0:
        return
    after = before + grown
    figure.set_figheight(after)
    figure.subplots_adjust(
        top=1 - (1 - _MARGINS["top"]) * before / after, bottom=_MARGINS["bottom"] * before / after
    )
    for text in figure.texts:  # the title is one of them
        text.set_y(1 - (1 - text.get_position()[1]) * before / after)


def _best_begin(members: Sequence[int], wanted: Sequence[float], sizes: Sequence[float]) -> float:
    """Where a row of touching intervals should begin, so that they move least (in squares)."""
    offset = 0.0
    begins = []
    for i in members:
        begins.append(wanted[i] - sizes[i] / 2 - offset)
        offset += sizes[i]
    return float(np.mean(begins))


def _clamped(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def _places() -> list[_Place]:
    places: list[_Place] = []
    for distance in (_GAP, 2 * _GAP, 3.5 * _GAP, 5 * _GAP, 7 * _GAP):
        # Right, left, above, below, then the corners.
        for offset, side in _AROUND:
            x, y = offset
            places.append(((x * distance, y * distance), side))
    return places


def _extent(text: Text) -> Bbox:
    """A text's box in pixels; of an annotation without the line to its point."""
    canvas = cast("FigureCanvasAgg", cast("Figure", text.figure).canvas)
    renderer: RendererBase = canvas.get_renderer()  # type: ignore[no-untyped-call]
    if isinstance(text, Annotation):
        text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


def _leader(color: str) -> dict[str, Any]:
    """A thin line from a label to its point."""
    return {"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 2, "shrinkB": 0}


def _beside(axes: Axes, label: Label, place: _Place, *, leader: bool) -> Annotation:
    """A label at a place around its point; a leader starts at the side that faces the point."""
    (dx, dy), side = place
    facing = {"left": (0.0, 0.5), "right": (1.0, 0.5), "center": (0.5, 0.0 if dy > 0 else 1.0)}[side]
    return axes.annotate(
        label.text,
        xy=(label.x, label.y),
        xytext=(dx, dy),
        textcoords="offset points",
        fontsize=TICK_SIZE,
        color=label.color,
        ha=side,
        va="center",
        annotation_clip=False,
        arrowprops={**_leader(label.color), "relpos": facing} if leader else None,
    )


def _overlap(a: Bbox, b: Bbox) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(max(0.0, width) * max(0.0, height))


def _outside(box: Bbox, frame: Bbox) -> float:
    """The area of a box that lies outside a frame."""
    return float(box.width * box.height) - _overlap(box, frame)


def _decimal_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; with round numbers between them, or even steps, where those would be too few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits, enough in (((1,), 4), ((1, 3), 4), ((1, 2, 5), 4), ((1, 1.5, 2, 3, 5, 7), 3)):
        ticks = [tick for e in exponents for d in digits if low <= (tick := float(f"{d}e{e}")) <= high]
        if len(ticks) >= enough:
            return ticks
    return [float(f"{tick:.3g}") for tick in np.geomspace(low, high, 4)]
