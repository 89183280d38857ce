"""The command `taugrad report`: figures, tables, and a page that says which method to use."""

import gc
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import COMMAND_LINE, SpecError
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.masking import without_login
from taugrad.platform.tracking.probe import answering_client, unwritable

from . import gradients, interactive, verdict
from .gallery import CURVES, gallery
from .groups import Comparison, Group, by_setting, comparisons
from .method_table import methods_to_csv, methods_to_markdown
from .report_page import Report, render
from .runs import RunHistory, all_runs, compared_runs, with_histories
from .searches import searches
from .table import in_path, to_csv, to_markdown
from .timelines import read_timelines

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def report(experiment: str, folder: Path, server: str | None = None, only: str = "") -> int:
    """Writes a report and prints its path.

    Args:
        experiment: The MLflow experiment's name.
        folder: Created if it is missing; files of an earlier report are replaced.
        server: MLflow's address for the links; by default the tracking server, and no links for a local
            database.
        only: MLflow's filter of runs, such as `params.training.epochs = '10'`; empty for all.

    Returns:
        The exit code 0.

    Raises:
        SpecError: the experiment does not exist, MLflow does not understand the filter, none of the runs has
            finished, or the folder cannot be written.
    """
    gc.set_threshold(100_000, 20, 20)  # looking for unused cycles took a seventh of a report's time
    if server and not server.startswith(("http://", "https://")):
        raise SpecError(COMMAND_LINE, f"--server {server}: must begin with http:// or https://")
    client = answering_client(writes=False)
    experiment_id = find_experiment(client, experiment)
    if problem := unwritable(folder):
        raise SpecError(COMMAND_LINE, f"-o {folder}: {problem}")
    uri = client.tracking_uri
    server = server or (without_login(uri) if uri.startswith("http") else None)
    page = write_report(client, experiment, experiment_id, folder, server, only)
    print(f"{page}\nTables, figures and interactive charts: {folder}")
    return OK


def write_report(
    client: "MlflowClient",
    experiment: str,
    experiment_id: str,
    folder: Path,
    server: str | None,
    only: str = "",
) -> Path:
    """Writes a report of an experiment into a folder, which is created if it is missing; returns its page.

    Links go to `server`, MLflow's address, if it is given; `only` is MLflow's filter of runs. Figures show
    the first of the comparisons. Raises SpecError if no run has finished.
    """
    everything = all_runs(client, experiment_id, only)
    runs = compared_runs(everything)
    found = comparisons(by_setting(runs))
    if not found:
        trained = (run for run in everything if names.PARAM_RULE in run.data.params)
        counted = Counter(str(run.info.status).lower() for run in trained)
        ended = ", ".join(f"{count} {status}" for status, count in counted.items()) or "there are none yet"
        within = f" within --filter {only!r}" if only else ""
        raise SpecError(
            COMMAND_LINE,
            f"EXPERIMENT {experiment!r}: no run{within} has finished with a metric and bytes sent ({ended})",
        )
    groups = found[0].groups
    shown = with_histories(client, [group.runs[0] for group in verdict.representatives(groups)], CURVES)
    detailed = _detailed(client, groups, shown)
    of_searches = list(searches(everything).values())
    curves = with_histories(client, shown, interactive.METRICS)
    layers = interactive.layer_charts(detailed) if detailed else []
    timelines = read_timelines(client, _side_by_side(shown, detailed))
    pictures = gallery(groups, shown, detailed, of_searches, timelines)
    compared = [run for comparison in found for group in comparison.groups for run in group.runs]

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (folder / "figures" / f"{picture.key}.png").write_bytes(picture.wide)
    texts = {
        **_method_tables(found),
        "runs.csv": to_csv(compared),
        "runs.md": to_markdown(compared),
        "interactive.html": interactive.page(
            f"{experiment}: runs compared", [*interactive.charts(curves), *layers]
        ),
        "report.html": render(
            Report(
                experiment=experiment,
                only=only,
                comparisons=found,
                pictures=pictures,
                left_out=len(runs) - len(compared),
                made=datetime.now(UTC),
                runs_url=f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs/" if server else None,
            )
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "report.html"


def _method_tables(found: Sequence[Comparison]) -> dict[str, str]:
    """The tables of methods by file; metrics other than the first have files of their own."""
    texts = {}
    for metric in dict.fromkeys(comparison.metric for comparison in found):
        suffix = "" if metric == found[0].metric else f"_{in_path(metric.name)}"
        judged = [comparison for comparison in found if comparison.metric == metric]
        texts[f"methods{suffix}.csv"] = methods_to_csv(judged, metric)
        texts[f"methods{suffix}.md"] = methods_to_markdown(judged, metric)
    return texts


def _side_by_side(shown: Sequence[RunHistory], detailed: RunHistory | None) -> list[RunHistory]:
    """The runs whose steps are shown: the baseline, and the one whose layers are shown."""
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
