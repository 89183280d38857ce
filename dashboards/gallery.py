"""All figures of an experiment, drawn once for a screen and once for a phone."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from matplotlib.figure import Figure

from taugrad.platform.tracking import names

from . import captions, figures, gradients, link, style, sweeps, verdict
from . import timelines as timelines_of
from .groups import Group
from .metric_labels import titled
from .runs import RunHistory
from .search_figures import search_front, value_by_dimension
from .searches import SearchRuns
from .table import in_path
from .timelines import RunTimeline
from .views import KNOBS
from .views import dimensions as dimensions_of

_MOST_PROCESSES = 4
CURVES = (names.COMM_FRACTION, names.EPOCH, *figures.BITS_METRICS, *timelines_of.METRICS)
"""The metrics whose histories the representatives' figures need."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure of a report."""

    key: str
    """Its file's name, without ending."""
    heading: str
    caption: str
    draw: Callable[[style.Page], Figure]
    run_ids: tuple[str, ...]
    """The runs behind it."""
    wide: bytes = b""
    """The figure for a screen as PNG, the same bytes for the same data."""
    narrow: bytes = b""
    """The figure for a phone."""

    def _png(self, page: style.Page) -> bytes:
        with style.as_written():  # names are taken as they are
            return figures.png(self.draw(page))


def gallery(
    groups: Sequence[Group],
    shown: Sequence[RunHistory],
    detailed: RunHistory | None,
    searched: Sequence[SearchRuns] = (),
    timelines: Sequence[RunTimeline] = (),
) -> list[Picture]:
    """The figures that the experiment's data allow, the most important first.

    Args:
        groups: All settings.
        shown: One run for each rule, with the histories of `CURVES`.
        detailed: The run whose layers are shown, with the histories of `gradients.layer_metrics`.
        searched: The experiment's searches.
        timelines: Of runs whose steps are shown side by side.
    """
    of_searches = (picture for i, search in enumerate(searched) for picture in _search_pictures(i, search))
    return _drawn([*of_searches, *_pictures(groups, shown, detailed, timelines)])


def _search_pictures(i: int, search: SearchRuns) -> Iterator[Picture]:
    run_ids = tuple(trial.run.run_id for trial in search.trials if trial.mark != "stopped")
    named = {param: KNOBS.get(param, param.rpartition(".")[2]) for param in dimensions_of(search.params)}
    yield Picture(
        f"search_front_{i}",
        f"The front of {search.name}",
        f"{len(search.points)} trials were trained in full, {len(search.stopped)} were stopped early.",
        lambda page: search_front(
            search.name, search.points, search.baseline, search.metric, search.stopped, page
        ),
        run_ids,
    )
    yield Picture(
        f"search_dimensions_{i}",
        f"The searched fields of {search.name}",
        "Trials of all methods that have the field. Trials differ in all fields at once: what looks "
        "like the effect of one may be that of another.",
        lambda page: value_by_dimension(search.trials, named, search.metric, page),
        run_ids,
    )


def _pictures(
    groups: Sequence[Group],
    shown: Sequence[RunHistory],
    detailed: RunHistory | None,
    timelines: Sequence[RunTimeline],
) -> Iterator[Picture]:
    everything = tuple(run.run_id for group in groups for run in group.runs)
    of_shown = tuple(run.run_id for run in shown)
    chosen = {run.run_id for run in shown}
    metric = groups[0].metric
    reached = titled(metric.label)
    shown_groups = [group for group in groups if any(run.run_id in chosen for run in group.runs)]
    if len(groups) > 1:  # one setting would be a dot in an empty frame; the page says so
        yield Picture(
            f"{in_path(metric.name)}_by_setting",
            f"{reached} against bytes, for every threshold",
            "Each panel is a method, each point one of its settings. Left is cheaper, "
            f"{'up' if metric.more_is_better else 'down'} is better.",
            lambda page: sweeps.value_by_setting(groups, page),
            everything,
        )
        yield Picture(
            f"{in_path(metric.name)}_against_mb",
            "One setting of each method",
            "Means over seeds. For each method, the setting that sends least within "
            f"{metric.amount(verdict.allowed_losses(groups)[:2][-1])} of the baseline; "
            "if there is none, the best.",
            lambda page: figures.value_against_mb([group.mean_run() for group in shown_groups], page),
            tuple(run.run_id for group in shown_groups for run in group.runs),
        )
    yield Picture(
        "fraction_per_iteration",
        "What part of the gradient is sent, iteration by iteration",
        captions.sent(shown),
        lambda page: figures.fraction_per_iteration(shown, page),
        of_shown,
    )
    yield Picture(
        "kept_back",
        "What counts as zero in the first epoch",
        captions.residuals(shown),
        lambda page: gradients.kept_back(shown, page),
        of_shown,
    )
    yield Picture(
        "bits_per_epoch",
        "Bits per parameter, epoch by epoch",
        "On the wire, positions, headers and tables come on top of the values.",
        lambda page: figures.bits_per_epoch(shown, page),
        of_shown,
    )
    floors = tuple(
        run.run_id for group in groups if group.param(sweeps.PARAM_FLOOR) is not None for run in group.runs
    )
    yield Picture(
        f"{in_path(metric.name)}_by_floor",
        f"{reached} by floor",
        "The bits that a layer gets beyond its entropy.",
        lambda page: sweeps.value_by_floor(groups, page),
        floors,
    )
    yield Picture(
        "speed_and_compression",
        "Compression and speed by threshold",
        "Times are from the machine that trained.",
        lambda page: sweeps.speed_and_compression(groups, page),
        everything,
    )
    yield Picture(
        "where_time_goes",
        "Where the time of a step goes",
        "Means over the iterations after the first tenth: the first steps also compile kernels. Workers "
        "wait for the network, and for one another: a slow worker makes the others wait.",
        lambda page: timelines_of.where_time_goes(shown, page),
        of_shown,
    )
    yield Picture(
        "steps_of_workers",
        "A few steps of all workers",
        "What each worker computed and waited for, and what was under way meanwhile. Opened in Perfetto or "
        f"chrome://tracing, a run's artifact {names.ARTIFACT_TIMELINE} shows more.",
        lambda page: timelines_of.steps_of_workers(timelines, page),
        tuple(timeline.run.run_id for timeline in timelines),
    )
    yield Picture(
        "send_time_by_method",
        "How long a message takes, by bandwidth",
        "What a worker hands to the network in a step, mean of the run, over the bandwidth.",
        lambda page: link.send_time_by_method(shown_groups, page),
        of_shown,
    )
    if detailed is not None:
        yield Picture(
            "gradient_percentiles",
            "Gradients, layer by layer",
            captions.gradients(detailed),
            lambda page: gradients.gradient_percentiles(detailed, page),
            (detailed.run_id,),
        )
        yield Picture(
            "zeros_by_layer",
            "Elements that are exactly zero",
            "For example, weights after a unit that no example of the batch has activated.",
            lambda page: gradients.zeros_by_layer(detailed, page),
            (detailed.run_id,),
        )


_TO_DRAW: list[Picture] = []
"""In a process that draws."""


def _drawn(pictures: Sequence[Picture]) -> list[Picture]:
    """The pictures that the runs have data for; processes share the drawing, most of a report's seconds."""
    with ProcessPoolExecutor(
        min(_MOST_PROCESSES, len(os.sched_getaffinity(0))),
        mp_context=get_context("fork"),  # has the runs, and matplotlib imported
        initializer=_TO_DRAW.extend,
        initargs=(pictures,),
    ) as pool:
        both = pool.map(_draw, range(len(pictures)))
        return [
            replace(picture, wide=pngs[0], narrow=pngs[1])
            for picture, pngs in zip(pictures, both, strict=True)
            if pngs
        ]


def _draw(number: int) -> tuple[bytes, bytes] | None:
    picture = _TO_DRAW[number]
    try:
        return picture._png(style.WIDE), picture._png(style.NARROW)
    except ValueError:  # the runs do not have what this figure shows
        return None
