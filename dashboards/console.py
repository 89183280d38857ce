"""`taugrad train` as people see it: runs, live, one after another; then a table, figures and what is next."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console

from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.launching.board import News
from taugrad.platform.launching.cluster import import_ray, is_local, ray_cluster
from taugrad.platform.launching.failure import RunFailed
from taugrad.platform.launching.launch import RunResult, launch
from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.launching.stages import Timeline, stage
from taugrad.platform.launching.storing import storage_path
from taugrad.platform.own_code import TRACEBACK
from taugrad.platform.preflight import check, usable_store
from taugrad.platform.spec import COMMAND_LINE, RunSpec, SpecError
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.terminal import open_console, say, short
from taugrad.platform.tracking import names
from taugrad.platform.tracking.glance import check_run, no_run
from taugrad.platform.tracking.holding import Hold, RunHeld
from taugrad.platform.tracking.masking import masked
from taugrad.platform.tracking.probe import probe
from taugrad.platform.tracking.store import TrackingError, home, start_run, to_copy, tracking_uri
from taugrad.platform.training.manifest import CheckpointError

from .judging import common
from .live import LiveRun
from .palette import color_tag
from .runs import RunHistory, read_run
from .table import Row, render, rows, to_csv, to_markdown

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_FIGURES = "figures"
_HISTORIES = (names.COMM_FRACTION, names.COMM_WIRE_BYTES, names.TRAIN_LOSS)
_MOST_INTERACTIVE = 8  # runs that get a page of interactive charts each, of 5 MB; of more only the first does


def train(specs: Sequence[tuple[str, RunSpec]]) -> int:
    """Trains every spec and compares the runs.

    Args:
        specs: each with the name of its file.

    Returns:
        0, or 1 when a run failed; the others are trained and compared all the same.

    Raises:
        SpecError: a spec asks for what cannot be had; nothing was started.
    """
    console, timeline = open_console(), Timeline()
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and data
    probe(tracking_uri())
    with _stage(console, timeline, "checking data and model"):
        for source, spec in specs:
            check(spec, source, local=is_local())
    width = max(len(spec.title) for _, spec in specs)
    counts = sorted({spec.workers.count for _, spec in specs})
    workers = " or ".join(str(count) for count in counts)
    finished: list[RunHistory] = []
    with _started(console, timeline) as client:
        say(
            console,
            f"{len(specs)} run{'s' * (len(specs) > 1)}, {workers} worker{'s' * (counts != [1])}"
            f"{' on this machine' * is_local()}; metrics go to {masked(client.tracking_uri)}",
        )
        for _, spec in specs:
            try:
                run_id = start_run(client, spec, tags=color_tag(spec.compressor.kind))
            except TrackingError as error:
                raise SpecError("experiment", [str(error)]) from None
            except Exception as error:  # of many types; the runs before this one have their results
                reason = masked(str(error).strip().partition("\n")[0])
                say(console, f"{spec.title}: not started, MLflow does not answer: {reason}", style="red")
                break
            result = _run(console, client, spec, run_id, width, timeline)
            if result is not None:
                finished.append(_history(client, spec, result))
    timeline.add(stage("comparing the runs"))
    _compare(console, client, finished, list(dict.fromkeys(spec.experiment for _, spec in specs)))
    _keep(timeline, client, finished)
    return OK if len(finished) == len(specs) else FAILED


def resume(run_id: str) -> int:
    """Goes on with a run that was interrupted, from its last checkpoint.

    Returns:
        0, or 1 when it failed again.

    Raises:
        SpecError: there is no such run, it is finished, another process trains it, or no good checkpoint is
            left.
    """
    console, timeline = open_console(), Timeline()
    sys.path.insert(0, str(Path.cwd()))
    probe(tracking_uri(), writes=False)
    check_run(run_id)
    client = usable_store()
    spec = _spec_of(client, run_id)
    folder = RunFolder.at(storage_path(spec), run_id)
    try:
        with Hold(client, run_id, folder.local) as hold:
            _check_checkpoints(folder, run_id)
            check(spec, f"run {run_id}", local=is_local())
            with _started(console, timeline):
                client.update_run(run_id, status="RUNNING")
                result = _run(console, client, spec, run_id, len(spec.title), timeline, hold)
    except RunHeld as error:
        raise SpecError(COMMAND_LINE, [f"--resume {run_id}: {error}"]) from None
    if result is None:
        return FAILED
    _compare(console, client, [_history(client, spec, result)], [spec.experiment])
    return OK


@contextmanager
def _stage(console: Console, timeline: Timeline, name: str) -> Iterator[None]:
    """Says what is going on, on a terminal for as long as it goes on."""
    timeline.add(stage(name))
    with console.status(f"{name} {chr(0x2026)}"):
        yield


@contextmanager
def _started(console: Console, timeline: Timeline) -> Iterator["MlflowClient"]:
    """Starts Ray, or connects to one, and meanwhile opens the store, which takes as long."""
    with ExitStack() as open_things:
        with _stage(console, timeline, "starting Ray"), ThreadPoolExecutor(1) as beside:
            import_ray()  # before MLflow: modules that import each other must not begin in two threads
            opening = beside.submit(usable_store)
            open_things.enter_context(ray_cluster())
            client = opening.result()
        yield client


def _run(
    console: Console,
    client: "MlflowClient",
    spec: RunSpec,
    run_id: str,
    width: int,
    timeline: Timeline,
    hold: Hold | None = None,
) -> RunResult | None:
    """Trains one spec; None when it failed."""
    with LiveRun(console, spec.title, width) as live:

        def watch(news: News) -> None:
            for begun in news.stages:
                timeline.add(begun)
            live.watch(news)

        try:
            return launch(spec, client, run_id, watch, alone=is_local(), hold=hold)
        except RunFailed as error:
            if os.environ.get(TRACEBACK) and error.worker_traceback:
                say(console, error.worker_traceback)
            say(console, f"{spec.title}: failed: {error}", style="red")
            say(console, f"  {_what_helps(error, spec, _resuming(client, run_id))}")
            return None
        except KeyboardInterrupt:
            say(console, f"{spec.title}: interrupted; go on with: {_resuming(client, run_id)}")
            raise


def _resuming(client: "MlflowClient", run_id: str) -> str:
    return to_copy(f"taugrad train --resume {run_id}", client.tracking_uri)


def _what_helps(failed: RunFailed, spec: RunSpec, resuming: str) -> str:
    """What to do after a failure; to resume is proposed only where the failure need not come again."""
    match failed.cause:
        case "diverged":
            rate = spec.training.optimizer.lr
            return (
                "it would diverge again from its last checkpoint; start anew with a lower rate than "
                f"{rate:g}, such as --training.optimizer.lr {rate / 10:g}"
            )
        case "own code":
            return f"when that is mended, go on with: {resuming} ({TRACEBACK}=1 shows the whole traceback)"
        case "other":
            return f"go on with: {resuming}"


def _history(client: "MlflowClient", spec: RunSpec, result: RunResult) -> RunHistory:
    """The run as the store has it; without the store, what the workers reported at the end."""
    try:
        return read_run(client, result.run_id, _HISTORIES)
    except Exception:
        # Whatever keeps the store away, the user shall see the run's figures.
        rule, tau = spec.compressor.kind, getattr(spec.compressor, "tau", None)
        tau = tau if isinstance(tau, float) else None  # a policy is no number
        metric = counting_metric(spec)
        return RunHistory(result.run_id, spec.title, rule, tau, spec.flat(), {}, result.metrics, metric)


def _spec_of(client: "MlflowClient", run_id: str) -> RunSpec:
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

    try:
        run = client.get_run(run_id)
    except MlflowException:
        raise no_run(run_id, client.tracking_uri) from None
    if run.info.status == "FINISHED":
        raise SpecError(COMMAND_LINE, [f"--resume {run_id}: this run is finished"])
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    text = Path(client.download_artifacts(run_id, "spec.yaml")).read_text(encoding="utf-8")
    spec = RunSpec.model_validate(yaml.safe_load(text))
    checkpoints = run.data.tags.get(names.TAG_CHECKPOINTS)
    if checkpoints is None:
        return spec
    # The command may be given in another folder than the first time.
    return spec.model_copy(update={"storage": Path(checkpoints.removesuffix(f"/{run_id}"))})


def _check_checkpoints(folder: RunFolder, run_id: str) -> None:
    """Says at once when there are checkpoints and none is good; workers would find out later."""
    try:
        folder.check()
    except (CheckpointError, OSError) as error:
        raise SpecError(COMMAND_LINE, [f"--resume {run_id}: {error}"]) from None


def _compare(
    console: Console, client: "MlflowClient", histories: Sequence[RunHistory], experiments: Sequence[str]
) -> None:
    """Prints the table, draws the figures, says where everything lies; files go by the first experiment."""
    if not histories:
        return
    table = rows(histories)
    console.print()
    console.print(render(table))
    folder = home() / "taugrad-runs" / _FIGURES / experiments[0]
    paths = _draw([run for run in histories if run.metrics], folder) + _write(table, folder)
    charts = _interactive(histories, experiments[0], folder)
    kept_too = ""
    with suppress(Exception):  # the files are on disk; a store that is away must not end the command
        for i, history in enumerate(histories):
            interactive = charts if i == 0 or len(histories) <= _MOST_INTERACTIVE else []
            for path in [*paths, *interactive]:
                client.log_artifact(history.run_id, str(path), _FIGURES)
        kept_too = " (and in every run's artifacts)"
    say(console, f"Figures and tables: {short(folder)}{kept_too}")
    uri = client.tracking_uri
    say(console, f"See the runs: {_mlflow_ui(masked(uri), ' and '.join(experiments))}")
    for experiment in experiments:
        quoted = shlex.quote(experiment)
        output = "report" if len(experiments) == 1 else f"report-{quoted}"
        say(console, f"Compare them: {to_copy(f'taugrad dashboard {quoted} --serve', uri)}")
        say(console, f"Sum them up on one page: {to_copy(f'taugrad report {quoted} -o {output}', uri)}")


def _keep(timeline: Timeline, client: "MlflowClient", histories: Sequence[RunHistory]) -> None:
    """Makes the command's stages an artifact of its first run."""
    with suppress(Exception):  # it only says where time went
        client.log_text(histories[0].run_id, timeline.to_csv(), names.ARTIFACT_STAGES)


def _draw(histories: Sequence[RunHistory], folder: Path) -> list[Path]:
    if not histories:
        return []
    from .figures import fraction_per_iteration, save, value_against_mb  # noqa: PLC0415 - matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "fraction_per_iteration.png"]
    save(fraction_per_iteration(histories), paths[0])
    for metric in common(run.metric for run in histories):
        paths.append(folder / f"{metric.name}_against_mb.png")
        save(value_against_mb([run for run in histories if run.metric == metric]), paths[-1])
    return paths


def _interactive(histories: Sequence[RunHistory], experiment: str, folder: Path) -> list[Path]:
    """The runs as interactive charts, which MLflow shows among a run's artifacts."""
    from .interactive import charts, page  # noqa: PLC0415 - plotly

    drawn = charts([run for run in histories if run.metrics])
    if not drawn:
        return []
    path = folder / "interactive.html"
    path.write_text(page(f"{experiment}: runs compared", drawn), encoding="utf-8")
    return [path]


def _write(table: Sequence[Row], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / "table.csv": to_csv(table), folder / "table.md": to_markdown(table)}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _mlflow_ui(uri: str, experiment: str) -> str:
    if uri.startswith("http"):
        return f"{uri}, experiment {experiment}"
    beside = Path(sys.executable).with_name("mlflow")
    command = "mlflow" if shutil.which("mlflow") or not beside.exists() else short(beside)
    here = f"sqlite:///{Path.cwd()}/"
    if uri.startswith(here):
        uri = f"sqlite:///{uri.removeprefix(here)}"
    return (
        f"{command} ui --backend-store-uri {uri}\n  then open http://127.0.0.1:5000, experiment {experiment}"
    )
