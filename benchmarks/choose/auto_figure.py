"""The figure of choose/auto_threshold.py: what everybody's settings came to on each pair."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.ticker import FuncFormatter

from taugrad.dashboards.figures import save
from taugrad.dashboards.palette import GREY
from taugrad.dashboards.style import Key, log_axis, new_panels

from .auto_trainings import Point

_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "x")
_DASHES = ("-", ":")
_DEPTH = 20.0
"""Points of accuracy below no compression that are drawn."""
_FEWEST, _MOST = 5.0, 50_000.0
"""Times fewer bytes that are drawn."""


def draw(
    path: Path,
    fronts: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]],
    found: Mapping[str, Mapping[str, Sequence[Sequence[Point]]]],
    bare: Mapping[str, Sequence[Point]],
) -> None:
    """Draws a panel for each pair.

    Args:
        path: the file, .png or .svg.
        fronts: by search, the reference first, pair, seed and setting.
        found: by pair, entrant, seed and setting.
        bare: without compression, by pair and seed.
    """
    entrants = list(next(iter(found.values())))
    figure, panels = new_panels(
        "Thresholds that find themselves next to a search of 60 trials",
        "each mark: one setting, mean of three seeds; grey: the search's front, trained again; dotted: with "
        "momentum in the compressor",
        "times fewer wire bytes than without compression (logarithmic)",
        "points of accuracy against no compression",
        [(pair, "black") for pair in bare],
        key=[Key(name, color) for name, color in zip(entrants, _COLORS, strict=False)],
    )
    for axes, pair in zip(panels, bare, strict=True):
        accuracy = fmean(point.accuracy for point in bare[pair])
        whole = fmean(point.wire_bytes for point in bare[pair])

        def placed(
            by_seed: Sequence[Sequence[Point]], accuracy: float = accuracy, whole: float = whole
        ) -> tuple[list[float], list[float]]:
            settings = list(zip(*by_seed, strict=True))
            across = [whole / fmean(point.wire_bytes for point in points) for points in settings]
            up = [100 * (fmean(point.accuracy for point in points) - accuracy) for points in settings]
            return across, up

        axes.axhline(0, color=GREY, linewidth=1, linestyle="--", alpha=0.6)
        for front, dashes in zip(fronts.values(), _DASHES, strict=True):
            axes.plot(*placed(front[pair]), ".", color=GREY, markersize=5, zorder=1)
            axes.plot(*_unbeaten(*placed(front[pair])), color=GREY, linestyle=dashes, linewidth=1.2, zorder=1)
        for name, color, marker in zip(entrants, _COLORS, _MARKERS, strict=False):
            across, up = placed(found[pair][name])
            axes.plot(across, up, marker, color=color, markersize=5, zorder=3, clip_on=True)
        axes.set_ylim(-_DEPTH, 3)
        log_axis(axes.xaxis, _FEWEST, _MOST, "x", most=4)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    save(figure, path)


def _unbeaten(across: Sequence[float], up: Sequence[float]) -> tuple[list[float], list[float]]:
    """Points that no other beats in both, from the left to the right."""
    kept: list[tuple[float, float]] = []
    for x, y in sorted(zip(across, up, strict=True), reverse=True):
        if not kept or y > kept[-1][1]:
            kept.append((x, y))
    return [x for x, _ in kept[::-1]], [y for _, y in kept[::-1]]
