"""The figure of a plan: the time of a step for each method, link and number of workers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from . import style
from .palette import GREY

_SHADES = ("#B2ABD2", "#8073AC", "#5E3C99", "#2D004B")
_LETTERS = dict(zip(_SHADES, ("black", "white", "white", "white"), strict=True))
_ROW = 0.24  # inches from method to method
_LONGEST_NAME = 54


@dataclass(frozen=True)
class PlannedStep:
    """A prediction."""

    link: str
    workers: int
    method: str
    """With its mode, unless that is the usual one."""
    seconds: float
    """The time of a step."""
    compute_s: float
    """The part that the model takes."""


def planned_steps(steps: Sequence[PlannedStep], page: style.Page = style.WIDE) -> Figure:
    """Seconds of a step, a row for each method, a panel for each link, a shade for each number of workers.

    At most four numbers of workers are drawn. Raises ValueError if there is no step.
    """
    if not steps:
        raise ValueError("a plan without steps has no figure")
    links = list(dict.fromkeys(step.link for step in steps))
    workers = _some(sorted({step.workers for step in steps}))
    shades = dict(zip(workers, _SHADES[-len(workers) :], strict=True))
    # The order of the slowest case drawn, which tells most.
    most = [step for step in steps if step.link == links[0] and step.workers == workers[-1]]
    methods = [step.method for step in sorted(most, key=lambda step: -step.seconds)]
    rows = {method: row for row, method in enumerate(methods)}
    figure, axes = style.new_panels(
        "What a step is predicted to take",
        "dashed: computing only, the lower bound; methods also differ in what a step learns",
        "seconds of a step (logarithmic)",
        "",
        [(link, GREY) for link in links],
        replace(page, panel_height=_ROW * len(methods) + 0.1, columns=1, left=3.1),
        sharey=False,
        key=[
            style.Key(f"{count} worker{'s' * (count != 1)}", _LETTERS[shade], shade)
            for count, shade in shades.items()
        ],
    )
    times = [step.seconds for step in steps if step.workers in shades]
    for link, panel in zip(links, axes, strict=True):
        drawn = [step for step in steps if step.link == link and step.workers in shades]
        panel.axvline(drawn[0].compute_s, color=GREY, linewidth=1, linestyle="--", zorder=1)
        for step in drawn:
            panel.plot(
                [step.seconds], [rows[step.method]], "o", color=shades[step.workers], markersize=6, zorder=3
            )
        panel.set_yticks(list(rows.values()), [_short(method) for method in rows], fontsize=7)
        panel.set_ylim(-0.6, len(rows) - 0.4)
        style.log_axis(panel.xaxis, min(*times, drawn[0].compute_s) / 1.3, max(times) * 1.3, " s")
    return figure


def _some(workers: Sequence[int]) -> list[int]:
    """At most four of them, evenly spaced, the ends included."""
    if len(workers) <= len(_SHADES):
        return list(workers)
    last = len(workers) - 1
    return [workers[round(i * last / (len(_SHADES) - 1))] for i in range(len(_SHADES))]


def _short(method: str) -> str:
    """Cut in the method, not in its mode: several rows may have the same method."""
    plain = method.replace("tau=density(target=", "density(").replace("(weights every", "(every")
    if len(plain) <= _LONGEST_NAME:
        return plain
    line, bracket, mode = plain.rpartition(" (") if plain.endswith(")") else (plain, "", "")
    return f"{line[: _LONGEST_NAME - len(bracket + mode) - 1]}…{bracket}{mode}"
