"""The command `taugrad dashboard`: prepares MLflow's UI for an experiment, and prints the address."""

import shlex
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taugrad.platform.exit_codes import OK
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.masking import masked, without_login
from taugrad.platform.tracking.probe import answering_client

from . import views
from .experiment import all_runs, compared_runs
from .judging import common, metric_of
from .palette import RUN_COLOR, STOPPED, pale, rule_style
from .scales import write_logarithms
from .searches import SearchRuns, searches
from .selection import selected
from .serving import mlflow_server
from .shared_view import ViewTooLong, unknown_version, view_url, write_view

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

LOCAL_SERVER = "http://127.0.0.1:5000"
"""Where MLflow is when it is started as the command says."""


@dataclass(frozen=True)
class View:
    """A view that was written."""

    title: str
    key: str
    notice: str = ""
    """What it does not show."""


def dashboard(experiment: str, *, serve: bool = False) -> int:
    """Writes the prepared views into an experiment and prints their URLs.

    Args:
        experiment: Its name.
        serve: Start MLflow's server on this machine, until interrupted.

    Returns:
        The exit code 0.

    Raises:
        SpecError: There is no such experiment.
    """
    client = answering_client(writes=False)
    experiment_id = find_experiment(client, experiment)
    notice = unknown_version(_version())
    written = prepare(client, experiment_id)
    if notice:
        print(notice)
    uri = client.tracking_uri
    if serve and not _is_server(uri):
        with (
            tempfile.TemporaryDirectory(prefix="taugrad-") as folder,
            mlflow_server(uri, Path(folder) / "mlflow.log") as server,
        ):
            _tell(written, server.url, experiment_id)
            print("Ctrl-C ends the server.", flush=True)
            threading.Event().wait()
    if not _is_server(uri):
        print(
            f"Start MLflow:\n  mlflow server --backend-store-uri {shlex.quote(masked(uri))} "
            "--host 127.0.0.1 --port 5000"
        )
        print("or let this command do so with --serve. Then open:")
    _tell(written, without_login(uri) if _is_server(uri) else LOCAL_SERVER, experiment_id)
    return OK


def prepare(client: "MlflowClient", experiment_id: str) -> list[View]:
    """Writes the views of an experiment, gives its runs their rules' colours, and marks those to show.

    Args:
        client: The tracking store.
        experiment_id: The experiment.

    Returns:
        The comparison, then one view for each search.
    """
    found = all_runs(client, experiment_id)
    params = {param for run in found for param in run.data.params}
    metrics = {metric for run in found for metric in run.data.metrics}
    there = searches(found)
    trial_colors = {run_id: color for each in there.values() for run_id, color in _colors(each).items()}
    varied = {param for each in there.values() for param in views.dimensions(each.params)}
    metrics |= write_logarithms(client, found, sorted(views.KNOBS.keys() | varied))
    for run in found:
        color_run(client, run, trial_colors.get(str(run.info.run_id)))
    trained = [run for run in found if names.PARAM_RULE in run.data.params]
    judged = common(metric_of(run.data.tags) for run in trained) or [ACCURACY]
    shown = _mark(client, found)
    few = f"{shown} of {len(trained)} runs, which span each rule's settings; `taugrad report` has all"
    written = [View("Compare runs", views.COMPARISON_KEY, few if shown < len(trained) else "")]
    comparison = views.comparison(
        params, metrics, judged, all_runs=shown == len(trained), alone=len(trained) == 1
    )
    _write(client, experiment_id, written[0], comparison)
    for run_id, each in there.items():
        written.append(View(f"Search {each.name}", views.search_key(run_id)))
        _write(client, experiment_id, written[-1], views.search(run_id, each.params, metrics, each.metric))
    return written


def _mark(client: "MlflowClient", found: "Sequence[Run]") -> int:
    """Marks the runs that the comparison shows, where it does not show all; how many it shows."""
    compared = compared_runs(found)
    shown = {run.run_id for run in selected(compared)}
    marked = shown if len(shown) < len(compared) else set()
    for run in found:
        if (run.info.run_id in marked) == (names.TAG_VIEW in run.data.tags):
            continue
        if run.info.run_id in marked:
            client.set_tag(run.info.run_id, names.TAG_VIEW, views.MARK)
        else:
            client.delete_tag(run.info.run_id, names.TAG_VIEW)
    return len(shown)


def _colors(search: SearchRuns) -> dict[str, str]:
    """By run id the colours that mark a search's trials; those of its front keep their rules' colours."""
    return {
        trial.run.run_id: STOPPED if trial.mark == "stopped" else pale(rule_style(trial.run.rule).color)
        for trial in search.trials
        if trial.mark != "front"
    }


def color_run(client: "MlflowClient", run: "Run", color: str | None = None) -> None:
    """Gives a run its colour in MLflow's UI, where it has another: by default its rule's."""
    rule = run.data.params.get(names.PARAM_RULE)
    if rule is None:
        return
    wanted = color or rule_style(rule).color
    if run.data.tags.get(RUN_COLOR) != wanted:
        client.set_tag(run.info.run_id, RUN_COLOR, wanted)


def _write(client: "MlflowClient", experiment_id: str, view: View, state: dict[str, Any]) -> None:
    try:
        write_view(client, experiment_id, view.key, view.title, state)
    except ViewTooLong:
        # A model of very many layers: the UI adds charts for each of them, below ours.
        cards = [each for each in state["compareRunCharts"] if not each["deleted"]]
        write_view(client, experiment_id, view.key, view.title, state | {"compareRunCharts": cards})


def _tell(written: Sequence[View], server: str, experiment_id: str) -> None:
    for view in written:
        notice = f" ({view.notice})" if view.notice else ""
        print(f"{view.title}{notice}:\n  {view_url(server, experiment_id, view.key)}", flush=True)


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _version() -> str:
    import mlflow  # noqa: PLC0415 - takes two seconds

    return str(mlflow.__version__)
