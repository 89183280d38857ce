"""The files of a search: the front as CSV, every trial as CSV, a spec for each point of the front."""

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taugrad.platform.places import RUNS, home
from taugrad.platform.spec import RunSpec, refusal
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.tasks.metric import ACCURACY, Metric

from .auto_specs import as_file
from .objective import accuracy_per_wire_gb
from .progress import Point, SearchProgress, times_smaller
from .reading import name_search
from .space import dimensions

FRONT, TRIALS, SPECS = "front.csv", "trials.csv", "front"


def folder_of(name: str, experiment: str) -> Path:
    """The folder of a search's journal and results."""
    slug = "".join(c if c.isalnum() or c in "_-" else "-" for c in experiment)
    return home() / RUNS / "searches" / slug / name


def write_outputs(progress: SearchProgress, folder: Path) -> list[Path]:
    """Writes the tables and the front's specs, and returns the files; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FRONT).write_text(front_csv(progress), encoding="utf-8")
    (folder / TRIALS).write_text(trials_csv(progress), encoding="utf-8")
    specs = folder / SPECS
    specs.mkdir(exist_ok=True)
    for place in _places(specs):
        (specs / f"{place}.yaml").unlink()
    paths = [folder / FRONT, folder / TRIALS]
    for place, point in enumerate(progress.front, start=1):
        path = specs / f"{place}.yaml"
        path.write_text(_spec_text(progress, place, point), encoding="utf-8")
        paths.append(path)
    return paths


def picked(path: Path, place: int, overrides: Sequence[str]) -> tuple[str, RunSpec]:
    """The file and the spec of a point of a search's front, by its place from 1 (the fewest bytes).

    `path` is the search's spec; `overrides` set its name, its experiment and the run's fields. Raises
    SpecError if the point does not exist.
    """
    name, experiment, others = name_search(path, overrides)
    specs = folder_of(name, experiment) / SPECS
    point = specs / f"{place}.yaml"
    if not point.exists():
        points = _places(specs)
        problem = f"the front of search {name} has points 1 to {max(points)}" if points else (
            f"search {name} has no front yet; run taugrad search {shlex.quote(str(path))} first"
        )  # fmt: skip
        raise refusal(f"--pick {place}: {problem}")
    return str(point), read_spec(point, others)


def _places(specs: Path) -> list[int]:
    """The points that have a spec; other files in the folder are the user's."""
    return [int(path.stem) for path in specs.glob("*.yaml") if path.stem.isdecimal()]


def front_csv(progress: SearchProgress) -> str:
    """The front, from few bytes to many, and the baseline as point 0."""
    names = [dimension.name for dimension in dimensions(progress.search.tree)]
    baseline, best = progress.baseline, progress.objective.best(progress.points)
    lines = [
        [
            place,
            point.number,
            int(best is not None and point.number == best.number),
            *_figures(progress, point),
            *_values(point.params, names),
            " ".join(point.run_ids),
        ]
        for place, point in enumerate(progress.front, start=1)
    ]
    if baseline is not None:
        run_ids = " ".join(baseline.run_ids)
        lines.insert(0, [0, "baseline", 0, *_figures(progress, baseline), *_values({}, names), run_ids])
    return _csv(["point", "trial", "best", *_shared(progress.metric), *names, "run_ids"], lines)


def trials_csv(progress: SearchProgress) -> str:
    """Every trial that has ended, in order."""
    names, metric = [dimension.name for dimension in dimensions(progress.search.tree)], progress.metric
    header, lines = _shared(metric), []
    for trial in progress.record.ended:
        last = trial.course.get(trial.evaluation)
        figures = [""] * len(header)
        if trial.ending == "full":
            figures = _figures(progress, Point.of(trial, metric))
        elif last is not None:
            figures[0] = _number(metric.scale * last.value)
            figures[header.index("wire_mb")] = _number(last.wire_bytes / 1e6)
        behind = [trial.number, trial.ending, trial.evaluation]
        lines.append([*behind, *figures, *_values(trial.params, names), trial.reason])
    return _csv(["trial", "ending", f"{progress.search.evaluated_by}s", *header, *names, "reason"], lines)


def _shared(metric: Metric) -> list[str]:
    """The columns that both tables have."""
    unit = metric.column.removeprefix(metric.name)
    figures = [f"{metric.name}{what}{unit}" for what in ("", "_spread", "_low", "_high")]
    figures += ["wire_mb", "times_smaller", "times_smaller_than_16_bits"]
    return [*figures, "accuracy_percent_per_wire_gb"] if metric == ACCURACY else figures


def _figures(progress: SearchProgress, point: Point) -> list[str]:
    metric, baseline = progress.metric, progress.baseline
    smaller = None if baseline is None else times_smaller(point, baseline)
    low, high = point.interval or (None, None)
    scaled = [
        None if number is None else metric.scale * number for number in (point.mean, point.spread, low, high)
    ]
    numbers = [*scaled, point.wire_bytes / 1e6, smaller, None if smaller is None else smaller / 2]
    if metric == ACCURACY:
        numbers.append(accuracy_per_wire_gb(replace(point, value=point.mean)))
    return [_number(number) for number in numbers]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def _values(params: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [params.get(name, "") for name in names]


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue()


def _spec_text(progress: SearchProgress, place: int, point: Point) -> str:
    search = progress.search
    spec = search.spec(point.params)
    named = spec.model_copy(update={"name": f"{search.name} {place}: {spec.compressor}"[:200]})
    metric = progress.metric
    figures = f"{metric.label} {metric.shown(point.mean)}, {point.wire_bytes / 1e6:.6g} MB on the wire"
    return as_file(
        named, f"Point {place} of the front of search {search.name} (trial {point.number}): {figures}"
    )
