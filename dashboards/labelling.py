"""Places labels beside lines and points without overlaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from .style import TICK_SIZE, extent, make_room

_GAP = 8.0  # points between a line's end, or a marker, and its label
_PADDING = 2.0  # pixels that labels keep from each other
_MARKER = 5.0  # points that a marker reaches from its middle
_STRIDE = 3.0  # pixels between the samples of a line that labels keep clear of

LONGEST_NAME = 34
"""Characters of a name in a label."""

_Corners: TypeAlias = tuple[float, float, float, float]
"""A box: left, lower, right, upper, in pixels."""

_Position: TypeAlias = tuple[tuple[float, float], Literal["left", "center", "right"]]
"""A label's offset from its point, in points, and the side that it is aligned by."""


_AROUND: tuple[_Position, ...] = (
    ((1, 0), "left"),
    ((-1, 0), "right"),
    ((0, 1.3), "center"),
    ((0, -1.3), "center"),
    ((1, 1), "left"),
    ((1, -1), "left"),
    ((-1, 1), "right"),
    ((-1, -1), "right"),
)


@dataclass(frozen=True)
class Label:
    """A label of a point in data coordinates."""

    x: float
    y: float
    text: str
    color: str


def label_ends(axes: Axes, labels: Sequence[Label]) -> list[Annotation]:
    """Labels lines at their right ends, in a column beside the axes.

    Labels move up or down so that they do not overlap, with a thin line to their point; the axes become
    narrower until the widest label fits, and the figure higher until all do. The axes must have their final
    limits and scales. Returns the annotations, in the order of `labels`.
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
    boxes = [extent(note) for note in notes]
    make_room(figure, sum(box.height + _PADDING for box in boxes))
    gap = 2 * _GAP * figure.dpi / 72
    width = figure.bbox.width
    widest = max(box.width for box in boxes)
    right = min(figure.subplotpars.right, 1 - (widest + gap + 2 * _PADDING) / width)
    figure.subplots_adjust(right=max(figure.subplotpars.left + 0.2, right))
    ends = [float(axes.transData.transform((label.x, label.y))[1]) for label in labels]
    # The column stays beside the axes: the title is above, the ticks' labels are below.
    frame = axes.get_window_extent()
    centers = spread(ends, [box.height + _PADDING for box in boxes], frame.y0, frame.y1)
    for note, center in zip(notes, centers, strict=True):
        note.set_position(((frame.width + gap) / frame.width, (center - frame.y0) / frame.height))
    return notes


def label_points(axes: Axes, labels: Sequence[Label], *, size: float = TICK_SIZE) -> list[Annotation]:
    """Labels points beside them, in letters of `size` points.

    A label takes the first position around its point where it lies in the axes and covers no marker, line or
    other label; among many it moves further out, with a thin line to its point. The axes must be complete.
    Returns the annotations, in the order of `labels`.
    """
    frame = axes.get_window_extent()
    occupied = [*_boxes(axes, frame), *(_corners(extent(text)) for text in axes.texts)]
    half = _MARKER * axes.figure.dpi / 72
    for label in labels:
        x, y = axes.transData.transform((label.x, label.y))
        occupied.append((x - half, y - half, x + half, y + half))
    notes = []
    for label in labels:
        best: tuple[float, _Position] | None = None
        boxes = np.array(occupied)
        for position in _positions():
            trial = _beside(axes, label, position, size, leader=False)
            box = extent(trial).padded(_PADDING)
            trial.remove()
            cost = _overlaps(box, boxes) + 10 * _outside(box, frame)
            if best is None or cost < best[0]:
                best = (cost, position)
            if cost == 0:
                break
        if best is not None:
            far = max(map(abs, best[1][0])) > 1.5 * _GAP
            notes.append(_beside(axes, label, best[1], size, leader=far))
            occupied.append(_corners(extent(notes[-1]).padded(_PADDING)))
    return notes


def spread(centers: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Moves intervals as little as possible until none overlaps another; returns their centers.

    Args:
        centers: The intervals' preferred centers.
        sizes: Their lengths.
        low: The lower limit.
        high: The upper limit, which is exceeded if there is no room.
    """
    order = sorted(range(len(centers)), key=lambda i: centers[i])
    # Groups of touching intervals: members, total length, begin.
    groups: list[tuple[list[int], float, float]] = []
    for i in order:
        members, length, begin = [i], sizes[i], _clamped(centers[i] - sizes[i] / 2, low, high - sizes[i])
        while groups and groups[-1][2] + groups[-1][1] > begin:
            earlier, earlier_length, _ = groups.pop()
            members, length = earlier + members, earlier_length + length
            begin = _clamped(_best_begin(members, centers, sizes), low, high - length)
        groups.append((members, length, begin))
    moved = [0.0] * len(centers)
    for members, _, begin in groups:
        edge = begin
        for i in members:
            moved[i] = edge + sizes[i] / 2
            edge += sizes[i]
    return moved


def _best_begin(members: Sequence[int], centers: Sequence[float], sizes: Sequence[float]) -> float:
    """The beginning of a row of touching intervals that minimizes the squares of their moves."""
    offset = 0.0
    begins = []
    for i in members:
        begins.append(centers[i] - sizes[i] / 2 - offset)
        offset += sizes[i]
    return float(np.mean(begins))


def _clamped(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def _positions() -> list[_Position]:
    positions: list[_Position] = []
    for distance in (_GAP, 2 * _GAP, 3.5 * _GAP, 5 * _GAP, 7 * _GAP):
        # Right, left, above, below, then the corners.
        for offset, side in _AROUND:
            x, y = offset
            positions.append(((x * distance, y * distance), side))
    return positions


def _leader(color: str) -> dict[str, Any]:
    """A thin line from a label to its point."""
    return {"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 2, "shrinkB": 0}


def _beside(axes: Axes, label: Label, position: _Position, size: float, *, leader: bool) -> Annotation:
    """A label at a position around its point; a leader starts at the side that faces the point."""
    (dx, dy), side = position
    facing = {"left": (0.0, 0.5), "right": (1.0, 0.5), "center": (0.5, 0.0 if dy > 0 else 1.0)}[side]
    return axes.annotate(
        label.text,
        xy=(label.x, label.y),
        xytext=(dx, dy),
        textcoords="offset points",
        fontsize=size,
        color=label.color,
        ha=side,
        va="center",
        annotation_clip=False,
        arrowprops={**_leader(label.color), "relpos": facing} if leader else None,
    )


def _boxes(axes: Axes, frame: Bbox) -> list[_Corners]:
    """Small boxes, in pixels, along all lines and error bars and around all markers of the axes."""
    boxes: list[_Corners] = []
    for line in axes.lines:
        points_N2 = np.asarray(line.get_transform().transform(line.get_xydata()), dtype=np.float64)
        points_N2 = points_N2[np.isfinite(points_N2).all(axis=1)]
        if line.get_marker() not in (None, "None", "none", ""):
            half = _MARKER * axes.figure.dpi / 72
            boxes += [(x - half, y - half, x + half, y + half) for x, y in points_N2.tolist()]
        if line.get_linestyle() in ("None", "none", "") or len(points_N2) < 2:
            continue
        boxes += _along(points_N2, frame)
    for bars in axes.collections:
        if isinstance(bars, LineCollection):  # error bars: matplotlib keeps them apart from lines
            for segment in bars.get_segments():
                boxes += _along(np.asarray(bars.get_transform().transform(segment), dtype=np.float64), frame)
    return boxes


def _along(line: NDArray[np.float64], frame: Bbox) -> list[_Corners]:
    """Small boxes in the frame along a line through points [N, 2], in pixels."""
    lengths = np.hypot(*np.diff(line, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    samples = np.linspace(0, along[-1], int(along[-1] // _STRIDE) + 2)
    x, y = (np.interp(samples, along, line[:, i]) for i in (0, 1))
    inside = (x >= frame.x0) & (x <= frame.x1) & (y >= frame.y0) & (y <= frame.y1)
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in zip(x[inside], y[inside], strict=True)]


def _corners(box: Bbox) -> _Corners:
    return (box.x0, box.y0, box.x1, box.y1)


def _overlaps(box: Bbox, boxes: NDArray[np.float64]) -> float:
    """The summed area that a box shares with others, [B, 4]."""
    width = np.minimum(box.x1, boxes[:, 2]) - np.maximum(box.x0, boxes[:, 0])
    height = np.minimum(box.y1, boxes[:, 3]) - np.maximum(box.y0, boxes[:, 1])
    return float((np.maximum(width, 0) * np.maximum(height, 0)).sum())


def _outside(box: Bbox, frame: Bbox) -> float:
    """The area of a box that lies outside a frame."""
    return float(box.width * box.height) - _overlaps(box, np.array([_corners(frame)]))


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits in a label; its end stays, because that is where names differ."""
    if len(name) <= longest:
        return name
    half = longest // 2
    return f"{name[: half - 1]}…{name[-half:]}"
