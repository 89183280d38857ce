"""The figure of network/network_target.py: minutes to the target, by link, of each kind of exchange."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf, isfinite
from pathlib import Path

from taugrad.dashboards.figures import save
from taugrad.dashboards.style import WIDE, Key, log_axis, new_panels

from ..harness.report import Options, environment, number
from .target_times import Row

Minutes = Mapping[str, Mapping[str, float]]
"""By link and kind of exchange."""


@dataclass(frozen=True)
class Measured:
    """A workload's times, and where they come from."""

    target: str
    """What is to be reached."""
    minutes: Minutes
    command: str
    date: str
    machine: str

    def __str__(self) -> str:
        return f"`{self.command}`, {self.date}, {self.machine}."

    @classmethod
    def now(cls, target: str, minutes: Minutes, options: Options) -> "Measured":
        """What this command has measured on this machine today."""
        date = datetime.now().astimezone().date().isoformat()
        return cls(target, minutes, options.command, date, environment())


COLORS = {
    "DDP, float32": "#BBBBBB",
    "DDP, 16 bits": "#777777",
    "PowerSGD": "#E69F00",
    "DiLoCo": "#0072B2",
    "SparseLoCo": "#56B4E9",
    "SparseLoCo, coded": "#56B4E9",
    "Streaming DiLoCo": "#0072B2",
    "MuLoCo": "#009E73",
    "DeMo": "#F0E442",
    "linear (ours)": "#CC79A7",
    "strom (ours)": "#D55E00",
    "strom, Muon (ours)": "#D55E00",
    "strom, outer momentum (ours)": "#D55E00",
    "strom, residual's weight (ours)": "#D55E00",
    "wgt, 2 bits (ours)": "#CC79A7",
    "auto --link (ours)": "#000000",
}
"""By contender, Okabe and Ito's."""
_LEAST_MINUTES = 20
"""If every time is shorter, the axis has seconds."""
_MARKERS = dict(
    zip(COLORS, ("o", "s", "^", "D", "v", "^", "s", "*", "h", "P", "o", "s", "D", "v", "s", "x"), strict=True)
)


def best_of_kinds(rows: Iterable[Row], kinds: Mapping[str, str]) -> dict[str, float]:
    """The least minutes of each contender's settings; who did not come to the target is left out."""
    minutes: dict[str, float] = {}
    for row in rows:
        kind = kinds[row.setting.name]
        if isfinite(row.seconds):
            minutes[kind] = min(row.seconds / 60, minutes.get(kind, inf))
    return minutes


def draw(path: Path, minutes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draws a panel for each workload, by link and kind, into a .png or .svg."""
    everything = [by_kind for by_link in minutes.values() for by_kind in by_link.values()]
    kinds = {kind for by_kind in everything for kind in by_kind}
    longest = max(value for by_kind in everything for value in by_kind.values())
    unit, factor = ("minutes", 1) if longest >= _LEAST_MINUTES else ("seconds", 60)
    figure, panels = new_panels(
        f"{unit.capitalize()} to the same loss or accuracy, four hosts",
        "each line: a contender at its best on each link, steps x measured seconds per step; "
        "below: the link's rate per second and its delay one way",
        "",
        f"{unit} (logarithmic)",
        [(workload, "black") for workload in minutes],
        WIDE,
        sharey=False,
        key=[Key(kind, color) for kind, color in COLORS.items() if kind in kinds],
    )
    for axes, by_link in zip(panels, minutes.values(), strict=True):
        links = list(by_link)
        drawn = [factor * value for by_kind in by_link.values() for value in by_kind.values()]
        for kind, color in COLORS.items():
            places = [place for place, link in enumerate(links) if kind in by_link[link]]
            values = [factor * by_link[links[place]][kind] for place in places]
            axes.plot(
                *(places, values, f"{_MARKERS[kind]}-"), color=color, markersize=5, linewidth=1, zorder=3
            )
        log_axis(axes.yaxis, min(drawn) / 1.5, max(drawn) * 1.5, "", most=4)
        short = [_label(link).replace("/s", "") for link in links]
        axes.set_xticks(range(len(links)), short, fontsize=7)
        axes.set_xlim(-0.4, len(links) - 0.6)
    save(figure, path)


def _label(link: str) -> str:
    rate, _, delay = link.partition(",")
    return f"{rate.replace('mbit', ' Mbit/s').replace('gbit', ' Gbit/s')}\n{delay.replace('ms', ' ms')}"


def times_table(measured: Mapping[str, Measured]) -> str:
    """Seconds to the target over each link, the fastest over the first one first."""
    tables = []
    for workload, load in measured.items():
        links = list(load.minutes)
        first = load.minutes[links[0]]
        kinds = sorted(first, key=first.__getitem__)
        names = [_label(link).replace("\n", ", ") for link in links]
        lines = [[f"{workload}, to {load.target}", *names], ["---", *("---:" for _ in links)]]
        times = [[load.minutes[link].get(kind) for link in links] for kind in kinds]
        lines += [
            [kind, *("" if minutes is None else f"{number(60 * minutes)} s" for minutes in row)]
            for kind, row in zip(kinds, times, strict=True)
        ]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(tables)
