"""The command `taugrad report`: figures, tables, and a page that says which method to use."""

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import COMMAND_LINE, SpecError
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.masking import without_login
from taugrad.platform.tracking.probe import answering_client, unwritable

from . import gradients, interactive, verdict
from .experiment import all_runs, compared_runs, with_histories
from .gallery import CURVES, gallery
from .groups import Group, by_metric, by_setting
from .method_table import method_rows, methods_to_csv, methods_to_markdown
from .report_page import Report, render
from .runs import RunHistory
from .searches import searches
from .table import to_csv, to_markdown
from .timelines import read_timelines

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def report(experiment: str, folder: Path, server: str | None = None) -> int:
    """Writes a report and prints where it is.

    Args:
        experiment: The MLflow experiment's name.
        folder: Made when it is missing; files of an earlier report are replaced.
        server: MLflow's address for the links; by default the tracking server. If runs are in a local
            database, its future address is not known, and there are no links.

    Returns:
        The exit code 0.

    Raises:
        SpecError: There is no such experiment, no run of it has finished, or the folder cannot be written.
    """
    _collect_seldom()
    client = answering_client(writes=False)
    experiment_id = find_experiment(client, experiment)
    if problem := unwritable(folder):
        raise SpecError(COMMAND_LINE, [f"-o {folder}: {problem}"])
    uri = client.tracking_uri
    server = server or (without_login(uri) if uri.startswith("http") else None)
    page = write_report(client, experiment, experiment_id, folder, server)
    print(f"{page}\nTables, figures and interactive charts: {folder}")
    return OK


def _collect_seldom() -> None:
    """Lets Python look for unused cycles less often: modules and figures are many objects that stay.

    Looking took a seventh of a report's time. The command ends soon after, and so does what it leaves.
    """
    gc.set_threshold(100_000, 20, 20)


def write_report(
    client: "MlflowClient", experiment: str, experiment_id: str, folder: Path, server: str | None
) -> Path:
    """Writes a report of an experiment.

    Args:
        client: The tracking store.
        experiment: The experiment's name.
        experiment_id: Its id.
        folder: Made when it is missing.
        server: MLflow's address, for the links; None: no links.

    Returns:
        The page.

    Raises:
        SpecError: No run has finished.
    """
    everything = all_runs(client, experiment_id)
    found = compared_runs(everything)
    by = by_metric(by_setting(found))
    groups = next(iter(by.values()), [])
    if not groups:
        raise _nothing_to_show(experiment, everything)
    shown = with_histories(client, [group.runs[0] for group in verdict.representatives(groups)], CURVES)
    detailed = _detailed(client, groups, shown)
    of_searches = [each for each in searches(everything).values() if each.metric == groups[0].metric]
    timelines = read_timelines(client, _side_by_side(shown, detailed))
    pictures = gallery(groups, shown, detailed, of_searches, timelines)
    compared = [run for group in groups for run in group.runs]

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / "figures" / f"{picture.key}.png").write_bytes(picture.wide)
    table = method_rows(groups)
    texts = {
        "methods.csv": methods_to_csv(table, groups[0].metric),
        "methods.md": methods_to_markdown(table, groups[0].metric),
        "runs.csv": to_csv(compared),
        "runs.md": to_markdown(compared),
        "interactive.html": interactive_page(client, experiment, shown, detailed),
        "report.html": render(
            Report(
                experiment=experiment,
                groups=groups,
                rows=table,
                pictures=pictures,
                left_out=len(found) - sum(len(group.runs) for each in by.values() for group in each),
                judged_otherwise=_others(by),
                made=datetime.now(UTC),
                runs_url=f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/" if server else None,
            )
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "report.html"


def _nothing_to_show(experiment: str, found: "Sequence[Run]") -> SpecError:
    """The message about an experiment of which no run can be shown."""
    statuses = Counter(str(run.info.status).lower() for run in found if names.PARAM_RULE in run.data.params)
    if not statuses:
        return SpecError(
            COMMAND_LINE, [f"EXPERIMENT {experiment!r}: it has no runs of taugrad yet; train some first"]
        )
    ended = ", ".join(f"{count} {status}" for status, count in statuses.items())
    return SpecError(
        COMMAND_LINE,
        [f"EXPERIMENT {experiment!r}: no run has finished with a metric and bytes sent ({ended})"],
    )


def _others(by: Mapping[Metric, Sequence[Group]]) -> str:
    """The runs that the page leaves out: `3 runs judged by test loss`."""
    _, *others = by.items()
    counts = [(metric, sum(len(group.runs) for group in groups)) for metric, groups in others]
    return ", ".join(f"{n} run{'s' * (n != 1)} judged by {metric.label}" for metric, n in counts)


def interactive_page(
    client: "MlflowClient", experiment: str, shown: Sequence[RunHistory], detailed: RunHistory | None
) -> str:
    """Interactive charts of some runs, and of one run's layers.

    Args:
        client: The tracking store.
        experiment: The experiment's name.
        shown: The runs to compare.
        detailed: The run whose layers are shown, with their histories.

    Returns:
        One HTML page.
    """
    compared = with_histories(client, shown, interactive.METRICS)
    layers = interactive.layer_charts(detailed) if detailed else []
    return interactive.page(f"{experiment}: runs compared", [*interactive.charts(compared), *layers])


def _side_by_side(shown: Sequence[RunHistory], detailed: RunHistory | None) -> list[RunHistory]:
    """The runs whose steps are shown: one without compression, and the one whose layers are shown."""
    compressed = detailed or next((run for run in shown if not run.is_baseline), None)
    reference = next((run for run in shown if run.is_baseline), None)
    chosen = {run.run_id: run for run in (reference, compressed) if run is not None}
    return list(chosen.values())


def _detailed(
    client: "MlflowClient", groups: Sequence[Group], shown: Sequence[RunHistory]
) -> RunHistory | None:
    """The run whose layers are shown: of the setting in the headline, else the first compressed one."""
    answer = verdict.headline(groups)
    candidates = [answer.group.runs[0]] if answer else [run for run in shown if not run.is_baseline]
    candidates = [run for run in candidates if gradients.layers_of(run)]
    if not candidates:
        return None
    return with_histories(client, candidates[:1], gradients.layer_metrics(candidates[0]))[0]
