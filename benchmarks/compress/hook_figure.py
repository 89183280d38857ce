"""The figure of compress/hook.py: where the time of a backward pass of two workers goes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from taugrad.dashboards.figures import save
from taugrad.dashboards.step_time import PHASES
from taugrad.dashboards.style import SMALL_SIZE, WIDE, Key, decimal, new_panels
from taugrad.platform.tracking import names

PARTS = (
    (names.TIME_COMPRESS, "compress"),
    (names.TIME_WAIT, "blocked"),
    (names.TIME_DECOMPRESS, "decompress"),
)
"""Each with the metric of the same colour in the report."""
REST, REST_COLOR = "the pass itself", "#D9D9D9"
_BAR, _HEIGHT = 0.3, 0.62

Backward = Mapping[str, float]
"""Milliseconds by part; `step` is the whole pass."""


def draw(path: Path, passes: Mapping[str, Mapping[str, Backward]]) -> None:
    """Draws a panel for each model, a bar for each hook.

    Args:
        path: the file, .png or .svg.
        passes: by model, by hook.
    """
    looks = {metric: (color, ink) for metric, _, color, ink in PHASES}
    parts = [(word, *looks[metric]) for metric, word in PARTS]
    hooks: Sequence[str] = list(dict.fromkeys(hook for found in passes.values() for hook in found))
    figure, panels = new_panels(
        "Where the time of a backward pass goes",
        "two workers on loopback, medians of worker 0; the parts add up to the pass",
        "milliseconds",
        "",
        [(model, "black") for model in passes],
        replace(WIDE, panel_height=0.5 + _BAR * len(hooks), left=2.35),
        sharex=False,
        sharey=True,
        key=[*(Key(word, ink, color) for word, color, ink in parts), Key(REST, "black", REST_COLOR)],
    )
    for axes, found in zip(panels, passes.values(), strict=True):
        longest = max(each["step"] for each in found.values())
        for row, hook in enumerate(hooks):
            left, split = 0.0, found[hook]
            rest = max(0.0, split["step"] - sum(split[word] for word, *_ in parts))
            for color, ink, part in (
                *((color, ink, split[word]) for word, color, ink in parts),
                (REST_COLOR, "black", rest),
            ):
                axes.barh(row, part, left=left, color=color, height=_HEIGHT, linewidth=0)
                if part > 0.15 * longest:
                    text = decimal(float(f"{part:.2g}"))
                    axes.text(
                        left + part / 2, row, text, ha="center", va="center", fontsize=SMALL_SIZE, color=ink
                    )
                left += part
        axes.set_xlim(0, 1.04 * longest)
        axes.set_ylim(len(hooks) - 0.4, -0.6)
        axes.set_yticks(range(len(hooks)), [hook.replace("`", "") for hook in hooks])
        axes.grid(False, axis="y")
    save(figure, path)
