"""The figure of platform/hybrid.py: what workers compute in a step, and what is on its way meanwhile."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .hybrid_runs import Bar, longest

COLORS = {
    "conv forward": "#0072B2",
    "conv backward": "#56B4E9",
    "fc forward": "#D55E00",
    "loss backward": "#000000",
    "fc backward": "#E69F00",
    "optimizer": "#F0E442",
    "fc optimizer": "#F0E442",
    "compress": "#5E3C99",
    "decode": "#8F3F00",
    "features": "#009E73",
    "features' gradients": "#CC79A7",
    "round": "#882255",
    "neurons": "#8C8C8C",
    "neurons' gradients": "#BBBBBB",
    "counts": "#DDDDDD",
    "targets": "#DDDDDD",
    "buffers": "#DDDDDD",
}
"""By label; Okabe and Ito's. A round is one of the convolutions' gradients."""
_HEIGHT = 0.36


def draw(path: Path | IO[bytes], steps: Mapping[str, Sequence[Bar]], title: str) -> None:
    """Draws a panel for each scheme, on one scale of time.

    Args:
        path: the file, .svg, or an open one.
        steps: by scheme, the bars of all workers in one step.
        title: what was measured.
    """
    figure = Figure(figsize=(9, 1.2 + 1.6 * len(steps)), layout="constrained")
    panels = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (scheme, bars) in zip(panels, steps.items(), strict=True):
        workers = sorted({bar.worker for bar in bars})
        for bar in bars:
            lane = workers.index(bar.worker) + (_HEIGHT if bar.lane == "wire" else 0.0)
            span = [(1000 * bar.began, 1000 * (bar.ended - bar.began))]
            alpha = 0.55 if bar.lane == "wire" else 1.0
            axes.broken_barh(span, (lane, _HEIGHT), facecolors=COLORS[bar.label], alpha=alpha)
        axes.set_yticks([i + _HEIGHT for i in range(len(workers))], [f"worker {each}" for each in workers])
        axes.invert_yaxis()
        axes.set_title(f"scheme {scheme}: {1000 * longest(bars):.0f} ms", loc="left", fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[-1].set_xlabel("milliseconds; upper lane of a worker: computing, lower lane: on its way")
    shown = [each for each in COLORS if each not in ("counts", "targets", "buffers", "fc optimizer")]
    handles = [Patch(color=COLORS[each], label=each) for each in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, format="svg")
