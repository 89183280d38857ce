"""The figure of benchmarks/network_target.py: minutes to the target, by link, of each kind of exchange."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from taugrad.dashboards.figures import save
from taugrad.dashboards.style import WIDE, Key, log_axis, new_panels

COLORS = {
    "DDP, float32": "#BBBBBB",
    "DDP, 16 bits": "#777777",
    "PowerSGD": "#E69F00",
    "DiLoCo": "#0072B2",
    "SparseLoCo": "#56B4E9",
    "taugrad": "#D55E00",
    "taugrad auto --link": "#000000",
}
"""By kind, Okabe and Ito's."""
_LEAST_MINUTES = 5
"""If every time is shorter, the axis has seconds."""
_MARKERS = dict(zip(COLORS, ("o", "s", "^", "D", "v", "o", "x"), strict=True))


def kind_of(name: str, *, ours: bool) -> str:
    """Which of the kinds a setting is of."""
    if ours:
        return "taugrad"
    if name.endswith("hook"):
        return "DDP, 16 bits"
    return name.partition(",")[0] if not name.startswith("DDP") else name


def best_of_kinds(minutes: Mapping[str, float], ours: Sequence[str], auto: str = "") -> dict[str, float]:
    """The least of each kind's settings; kinds that did not come to the target are left out.

    Args:
        minutes: by setting.
        ours: of these, those that others do not have.
        auto: of these, what `taugrad auto --link` chose.
    """
    found: dict[str, float] = {}
    for name, value in minutes.items():
        kind = "taugrad auto --link" if name == auto else kind_of(name, ours=name in ours)
        if isfinite(value):
            found[kind] = min(value, found.get(kind, value))
    return found


def draw(path: Path, minutes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Draws a panel for each workload.

    Args:
        path: the file, .png or .svg.
        minutes: by workload, link and kind.
    """
    everything = [found for by_link in minutes.values() for found in by_link.values()]
    kinds = {kind for found in everything for kind in found}
    longest = max(value for found in everything for value in found.values())
    unit, factor = ("minutes", 1) if longest >= _LEAST_MINUTES else ("seconds", 60)
    figure, panels = new_panels(
        f"{unit.capitalize()} to the same loss or accuracy, four hosts",
        "each line: the best setting of its kind on each link, steps x measured seconds per step; "
        "below: the link's rate and its delay one way",
        "",
        f"{unit} (logarithmic)",
        [(workload, "black") for workload in minutes],
        WIDE,
        sharey=False,
        key=[Key(kind, color) for kind, color in COLORS.items() if kind in kinds],
    )
    for axes, by_link in zip(panels, minutes.values(), strict=True):
        links = list(by_link)
        drawn = [factor * value for found in by_link.values() for value in found.values()]
        for kind, color in COLORS.items():
            places = [place for place, link in enumerate(links) if kind in by_link[link]]
            values = [factor * by_link[links[place]][kind] for place in places]
            axes.plot(
                *(places, values, f"{_MARKERS[kind]}-"),
                color=color,
                markersize=5,
                linewidth=2 if kind == "taugrad" else 1,
                zorder=4 if kind == "taugrad" else 3,
            )
        log_axis(axes.yaxis, min(drawn) / 1.5, max(drawn) * 1.5, "", most=4)
        axes.set_xticks(range(len(links)), [_label(link) for link in links], fontsize=7)
        axes.set_xlim(-0.4, len(links) - 0.6)
    save(figure, path)


def _label(link: str) -> str:
    rate, _, delay = link.partition(",")
    return f"{rate.replace('mbit', ' Mbit/s').replace('gbit', ' Gbit/s')}\n{delay.replace('ms', ' ms')}"


def caption(minutes: Mapping[str, Mapping[str, Mapping[str, float]]], targets: Mapping[str, str]) -> str:
    """What the first workload's lines say, in words.

    Args:
        minutes: as above.
        targets: by workload, what is to be reached.
    """
    workload, by_link = next(iter(minutes.items()))
    said = []
    for link in (next(iter(by_link)), next(reversed(by_link))):
        seconds = {kind: f"{60 * value:.3g} s" for kind, value in by_link[link].items()}
        peers = [kind for kind in seconds if not kind.startswith(("taugrad", "DDP"))]
        peer = min(peers, key=by_link[link].__getitem__)
        said.append(
            f"At {_label(link).replace(chr(10), ' and ')}, what `taugrad auto --link` chose takes "
            f"{seconds['taugrad auto --link']} (without its probe), the best setting of ours that was chosen "
            f"by hand {seconds['taugrad']}, {peer} {seconds[peer]}, and DDP with 16 bits "
            f"{seconds['DDP, 16 bits']}."
        )
    return f"{workload}, to {targets[workload]}, on four hosts. {' '.join(said)}"
