"""Every figure of an experiment: which runs each needs, drawn once wide and once for a phone."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from taugrad.platform.tracking import names

from . import figures, gradients, link, rates, step_time, style, sweeps
from .groups import Group
from .runs import RunHistory

CURVES = (names.COMM_FRACTION, names.EPOCH, *rates.METRICS, *(metric for metric, *_ in step_time.PHASES))
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

    def svg(self, page: style.Page) -> str:
        """The figure as SVG, the same text for the same data."""
        text = io.StringIO()
        with rc_context({"svg.hashsalt": self.key, "path.simplify": True}):
            self.draw(page).savefig(text, format="svg", metadata={"Date": None, "Creator": "taugrad"})
        return text.getvalue()


def gallery(
    groups: Sequence[Group], shown: Sequence[RunHistory], detailed: RunHistory | None
) -> list[Picture]:
    """The figures that the experiment's data allow.

    Args:
        groups: All settings.
        shown: One run for each rule, with the histories of `CURVES`.
        detailed: The run whose layers are shown, with the histories of `gradients.layer_metrics`.

    Returns:
        The pictures, the most asked first.
    """
    return list(_drawable(_pictures(groups, shown, detailed)))


def _pictures(
    groups: Sequence[Group], shown: Sequence[RunHistory], detailed: RunHistory | None
) -> Iterator[Picture]:
    everything = tuple(run.run_id for group in groups for run in group.runs)
    of_shown = tuple(run.run_id for run in shown)
    chosen = {run.run_id for run in shown}
    shown_groups = [group for group in groups if any(run.run_id in chosen for run in group.runs)]
    yield Picture(
        "accuracy_by_setting",
        "Accuracy against bytes, for every threshold",
        "Each panel is a method, each point one of its settings. Left is cheaper, up is better.",
        lambda page: sweeps.accuracy_by_setting(groups, page),
        everything,
    )
    yield Picture(
        "accuracy_against_mb",
        "One setting of each method",
        "Means over seeds; the setting that sends least within half a point of the baseline.",
        lambda page: figures.accuracy_against_mb([group.mean_run() for group in shown_groups], page),
        tuple(run.run_id for group in shown_groups for run in group.runs),
    )
    yield Picture(
        "fraction_per_iteration",
        "What part of the gradient is sent, iteration by iteration",
        "Gradients shrink while the model learns, so a fixed threshold sends less and less.",
        lambda page: figures.fraction_per_iteration(shown, page),
        of_shown,
    )
    yield Picture(
        "kept_back",
        "What counts as zero in the first epoch",
        "What stays below the threshold is kept and added to the next gradient; nothing is lost.",
        lambda page: gradients.kept_back(shown, page),
        of_shown,
    )
    yield Picture(
        "bits_per_epoch",
        "Bits a parameter, epoch by epoch",
        "Sparse methods also send positions, so there the wire is above the value bits.",
        lambda page: rates.bits_per_epoch(shown, page),
        of_shown,
    )
    floors = tuple(
        run.run_id for group in groups if group.param(sweeps.PARAM_FLOOR) is not None for run in group.runs
    )
    yield Picture(
        "accuracy_by_floor",
        "Accuracy by floor",
        "The bits that a layer gets beyond its entropy.",
        lambda page: sweeps.accuracy_by_floor(groups, page),
        floors,
    )
    yield Picture(
        "speed_and_compression",
        "Compression and speed by threshold",
        "A fast network has no time to save; how long messages take on a slower one stands below.",
        lambda page: sweeps.speed_and_compression(groups, page),
        everything,
    )
    yield Picture(
        "where_time_goes",
        "Where the time of a step goes",
        "Medians over the iterations after the first tenth.",
        lambda page: step_time.where_time_goes(shown, page),
        of_shown,
    )
    yield Picture(
        "send_time_by_method",
        "How long a message takes, by bandwidth",
        "What a worker hands to the network in a step, mean of the run, over the bandwidth.",
        lambda page: link.send_time_by_method(shown_groups, page),
        of_shown,
    )
    yield Picture(
        "send_time_by_model",
        "How long whole gradients of known models take",
        "32 bits a parameter over the bandwidth.",
        link.send_time_by_model,
        (),
    )
    if detailed is not None:
        yield Picture(
            "gradient_percentiles",
            "Gradients, layer by layer",
            "Where a percentile is above tau, that share of the layer's elements would be sent at once.",
            lambda page: gradients.gradient_percentiles(detailed, page),
            (detailed.run_id,),
        )
        yield Picture(
            "zeros_by_layer",
            "Elements that are exactly zero",
            "Such as those behind a unit that no example of the batch has activated.",
            lambda page: gradients.zeros_by_layer(detailed, page),
            (detailed.run_id,),
        )


def _drawable(pictures: Iterator[Picture]) -> Iterator[Picture]:
    for picture in pictures:
        with contextlib.suppress(ValueError):  # the runs do not have what this figure shows
            picture.draw(style.WIDE)
            yield picture
