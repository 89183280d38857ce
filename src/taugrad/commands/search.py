"""`taugrad search`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .shared import FieldsHelp, add_spec_command, train_specs

if TYPE_CHECKING:
    from taugrad.platform.spec.fields import FieldHelp
    from taugrad.search.progress import Point, SearchProgress

    from .shared import Commands


def add_search(commands: "Commands") -> None:
    """Adds the command."""
    parser = add_spec_command(
        commands,
        "search",
        run_search,
        "try values of the fields for which a spec gives ranges; run it again to continue a search",
        "SPEC [--pick POINT] [--FIELD VALUE ...] [--FIELD '{log: [LOW, HIGH]}' ...]",
        _SearchFieldsHelp,
    )
    parser.add_argument("spec", type=Path, metavar="SPEC", help="a spec with ranges and a search section")
    parser.add_argument("--pick", type=int, metavar="POINT", help="train this point of the search's front")


class _SearchFieldsHelp(FieldsHelp):
    """Lists the fields of a search before those of a spec."""

    def fields(self) -> "list[FieldHelp]":
        """See `FieldsHelp.fields`."""
        from taugrad.search.config import search_fields  # noqa: PLC0415

        return [*search_fields(), *super().fields()]


def run_search(options: argparse.Namespace, overrides: list[str]) -> int:
    """Runs or continues a search, or trains a point of its front."""
    if options.pick is not None:
        from taugrad.search.outputs import picked  # noqa: PLC0415

        return train_specs([picked(options.spec, options.pick, overrides)])
    from taugrad.search.reading import read_search  # noqa: PLC0415

    search = read_search(options.spec, overrides)
    from taugrad.search.run_search import run_search as run  # noqa: PLC0415

    return run(search, draw_front)


def draw_front(progress: "SearchProgress", path: Path) -> None:
    """Draws a search's front into a file."""
    from taugrad.dashboards.figures import save  # noqa: PLC0415
    from taugrad.dashboards.search_figures import FrontPoint, search_front  # noqa: PLC0415
    from taugrad.dashboards.style import as_written  # noqa: PLC0415

    places = {point.number: place for place, point in enumerate(progress.front, start=1)}
    best = progress.objective.best(progress.points)
    metric = progress.metric

    def front_point(point: "Point") -> FrontPoint:
        return FrontPoint(
            rule=point.method.partition("(")[0].partition(" ")[0],
            value=metric.scale * point.mean,
            interval=(metric.scale * point.interval[0], metric.scale * point.interval[1])
            if point.interval
            else None,
            wire_mb=point.wire_bytes / 1e6,
            place=places.get(point.number),
            best=best is not None and point.number == best.number,
        )

    baseline = front_point(progress.baseline) if progress.baseline else None
    stopped = [
        FrontPoint("", metric.scale * last.value, None, last.wire_bytes / 1e6)
        for trial in progress.record.ended
        if trial.ending == "pruned" and (last := trial.course.get(trial.evaluation)) is not None
    ]
    points = [front_point(point) for point in progress.points]
    with as_written():
        save(search_front(progress.search.name, points, baseline, metric, stopped), path)
