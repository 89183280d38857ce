"""The command `taugrad dashboard`: prepares MLflow's UI for an experiment, and prints the address."""

import math
import shlex
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taugrad.platform.exit_codes import OK
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.terminal import going_on, open_console
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.masking import masked, without_login
from taugrad.platform.tracking.probe import answering_client

from . import views
from .groups import Group, baseline, by_setting, comparisons, goodness, rules, varied
from .metric_labels import common
from .palette import OTHER_BASELINE, RUN_COLOR, STOPPED, pale, rule_style
from .runs import RunHistory, all_runs, compared_runs, number
from .searches import SearchRuns, searches
from .serving import mlflow_server
from .shared_view import ViewTooLong, unknown_version, view_url, write_view

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LOCAL_SERVER = "http://127.0.0.1:5000"
"""Where MLflow is when it is started as the command says."""


_LEAST_SPAN = 10.0  # a setting whose values span less is read as well on a linear axis
MOST_RUNS = 100
"""Up to this number, the view shows all runs; of more, MLflow's UI would show the first hundred."""
SHOWN = 40
"""Runs that are shown of more: their lines can be told apart, and the page opens in seconds."""


@dataclass(frozen=True)
class View:
    """A view that was written."""

    title: str
    key: str
    notice: str = ""
    """What it does not show."""


def dashboard(experiment: str, *, serve: bool = False, only: str = "") -> int:
    """Writes the prepared views into an experiment and prints their URLs.

    Args:
        experiment: Its name.
        serve: Start MLflow's server on this machine, until interrupted.
        only: MLflow's filter of runs, which the views keep.

    Returns:
        The exit code 0.

    Raises:
        SpecError: the experiment does not exist, or MLflow does not understand the filter.
    """
    import mlflow  # noqa: PLC0415 - takes two seconds

    console = open_console()
    with going_on(console, "reading the runs and writing the views"):
        client = answering_client(writes=False)
        experiment_id = find_experiment(client, experiment)
        notice = unknown_version(mlflow.__version__)
        written = prepare(client, experiment_id, only)
    if notice:
        print(notice)
    uri = client.tracking_uri
    is_server = uri.startswith(("http://", "https://"))
    if serve and not is_server:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="taugrad-"))
            with going_on(console, "starting MLflow's server"):
                url = stack.enter_context(mlflow_server(uri, Path(folder) / "mlflow.log"))
            _tell(written, url, experiment_id)
            print("Ctrl-C ends the server.", flush=True)
            threading.Event().wait()
    if not is_server:
        print(
            f"Start MLflow:\n  mlflow server --backend-store-uri {shlex.quote(masked(uri))} "
            "--host 127.0.0.1 --port 5000"
        )
        print("or let this command do so with --serve. Then open:")
    _tell(written, without_login(uri) if is_server else LOCAL_SERVER, experiment_id)
    return OK


def prepare(client: "MlflowClient", experiment_id: str, only: str = "") -> list[View]:
    """Writes the views of an experiment, sets the colours of its runs, and marks the runs to show.

    `only` is MLflow's filter of runs, which the views keep.

    Returns:
        The comparison, then one view for each search.
    """
    runs = all_runs(client, experiment_id, only)
    params = {param for run in runs for param in run.data.params}
    metrics = {metric for run in runs for metric in run.data.metrics}
    found_searches = searches(runs)
    trial_colors = {
        run_id: color for search in found_searches.values() for run_id, color in _colors(search).items()
    }
    searched = {param for search in found_searches.values() for param in views.dimensions(search.params)}
    metrics |= write_logarithms(client, runs, sorted(views.KNOBS.keys() | searched))
    trained = compared_runs(runs)
    compared = comparisons(by_setting(trained))
    reference = baseline(compared[0].groups) if compared else None
    for run in runs:
        color_run(client, run, trial_colors.get(str(run.info.run_id)) or _other_baseline(run, reference))
    judged = common(run.metric for run in trained) or [ACCURACY]
    shown = _mark(client, runs, trained)
    marked = (
        f"tags.`{names.TAG_VIEW}` = '{views.MARK}'"  # which runs that the filter leaves out may have, too
    )
    few = f"{shown} of {len(trained)} runs, which span each rule's settings; `taugrad report` has all"
    written = [View("Compare runs", views.COMPARISON_KEY, few if shown < len(trained) else "")]
    comparison = views.comparison(
        params,
        metrics,
        judged,
        search_filter=" and ".join(filter(None, [marked * (shown < len(trained)), only])),
        alone=len(trained) == 1,
        varied=varied(compared),
    )
    _write(client, experiment_id, written[0], comparison)
    for run_id, search in found_searches.items():
        written.append(View(f"Trials of {search.name}", views.search_key(run_id)))
        _write(
            client, experiment_id, written[-1], views.search(run_id, search.params, metrics, search.metric)
        )
    return written


def _mark(client: "MlflowClient", runs: "Sequence[Run]", compared: Sequence[RunHistory]) -> int:
    """Marks the runs that the comparison shows, if it does not show all; returns how many it shows."""
    shown = {run.run_id for run in selected(compared)}
    marked = shown if len(shown) < len(compared) else set()
    for run in runs:
        if (run.info.run_id in marked) == (names.TAG_VIEW in run.data.tags):
            continue
        if run.info.run_id in marked:
            client.set_tag(run.info.run_id, names.TAG_VIEW, views.MARK)
        else:
            client.delete_tag(run.info.run_id, names.TAG_VIEW)
    return len(shown)


def _other_baseline(run: "Run", reference: Group | None) -> str | None:
    """The colour of runs without compression beside the baseline, which alone is black; None of others."""
    if reference is None or run.data.params.get(names.PARAM_RULE) != reference.rule:
        return None
    is_reference = any(run.info.run_id == other.run_id for other in reference.runs)
    return None if is_reference else OTHER_BASELINE


def _colors(search: SearchRuns) -> dict[str, str]:
    """Colours of a search's trials by run id; trials on its front keep their rules' colours."""
    return {
        trial.run.run_id: STOPPED if trial.mark == "stopped" else pale(rule_style(trial.run.rule).color)
        for trial in search.trials
        if trial.mark != "front"
    }


def color_run(client: "MlflowClient", run: "Run", color: str | None = None) -> None:
    """Sets a run's colour in MLflow's UI, by default its rule's, if it is another."""
    rule = run.data.params.get(names.PARAM_RULE)
    if rule is None:
        return
    color = color or rule_style(rule).color
    if run.data.tags.get(RUN_COLOR) != color:
        client.set_tag(run.info.run_id, RUN_COLOR, color)


def _write(client: "MlflowClient", experiment_id: str, view: View, state: dict[str, Any]) -> None:
    try:
        write_view(client, experiment_id, view.key, view.title, state)
    except ViewTooLong:
        # A model of very many layers: the UI adds charts for each of them, below ours.
        cards = [card for card in state["compareRunCharts"] if not card["deleted"]]
        write_view(client, experiment_id, view.key, view.title, state | {"compareRunCharts": cards})


def _tell(written: Sequence[View], server: str, experiment_id: str) -> None:
    for view in written:
        notice = f" ({view.notice})" if view.notice else ""
        print(f"{view.title}{notice}:\n  {view_url(server, experiment_id, view.key)}")
        print(f"  as a table: {view_url(server, experiment_id, view.key, table=True)}", flush=True)


def write_logarithms(client: "MlflowClient", runs: "Sequence[Run]", params: Iterable[str]) -> set[str]:
    """Logs missing logarithms of settings that span more than a power of ten; returns their metrics' names.

    MLflow's scatter and parallel charts have no logarithmic axis.
    """
    written = set()
    for param in params:
        values = [
            (run, value) for run in runs if (value := _positive(run.data.params.get(param))) is not None
        ]
        if not values or max(v for _, v in values) < _LEAST_SPAN * min(v for _, v in values):
            continue
        written.add(views.log_metric(param))
        for run, value in values:
            if views.log_metric(param) not in run.data.metrics:
                client.log_metric(run.info.run_id, views.log_metric(param), math.log10(value))
    return written


def _positive(text: str | None) -> float | None:
    value = number(text)
    return value if value is not None and 0 < value < math.inf else None


def selected(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """The runs to show: all, or at most `SHOWN` that represent every rule.

    All if there are at most `MOST_RUNS`, or if none has trained to its end. Else each setting has at most one
    run, the oldest, and every rule an equal share of settings: the best one, and others spread from the most
    wire bytes to the fewest.
    """
    settings = by_setting(runs)
    if len(runs) <= MOST_RUNS or not settings:
        return list(runs)
    families = [[setting for setting in settings if setting.is_baseline], *rules(settings).values()]
    families = [family for family in families if family]
    return [
        group.runs[0]
        for family, share in zip(families, shares([len(family) for family in families], SHOWN), strict=True)
        for group in spread(family, share)
    ]


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """Shares of a total, equal as far as sizes allow."""
    counts = [0] * len(sizes)
    while sum(counts) < min(total, sum(sizes)):
        for i, size in enumerate(sizes):
            counts[i] += counts[i] < size and sum(counts) < total
    return counts


def spread(family: Sequence[Group], count: int) -> list[Group]:
    """Some settings of one rule: the best one, and evenly spaced others."""
    if not count:
        return []
    places = np.unique(np.linspace(0, len(family) - 1, count).round().astype(int))
    best = max(range(len(family)), key=lambda i: goodness(family[i]))
    if best not in places:
        inner = places[1:-1] if len(places) > 2 else places  # a view
        inner[np.abs(inner - best).argmin()] = best
    return [family[i] for i in places]
