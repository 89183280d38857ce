"""The command `taugrad search`: runs a search. It can be interrupted and continued."""

import fcntl
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from taugrad.platform.exit_codes import FAILED
from taugrad.platform.launching.driver.cluster import is_local, ray_cluster
from taugrad.platform.launching.driver.preflight import check, usable_store
from taugrad.platform.places import RUNS, address_of, home, output_folder
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.terminal import going_on, open_console, say
from taugrad.platform.tracking.masking import masked
from taugrad.platform.tracking.probe import probe
from taugrad.platform.tracking.store import TrackingError, tracking_uri
from taugrad.platform.user_code import import_object

from .advice import warning_of
from .console import LiveSearch, print_result
from .journal import FILE, Began, JournalError, SearchJournal, WriteError, writing
from .measured import common_metric
from .outputs import folder_of, write_outputs
from .progress import SearchProgress
from .run_trial import in_own_process
from .search import Search, corner_specs
from .tracked import Status, finish_parent, reconcile, reopen_parent, start_parent, tag_endings
from .trial import TrialContext
from .tune import reason_of, run_all, run_baseline, run_trials

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Draw = Callable[[SearchProgress, Path], None]
"""Draws a search's figure into a file."""
FIGURE = "front.png"
_AGAIN = "When it answers, give the same command again to continue"


def run_search(search: Search, draw: Draw) -> int:
    """Runs or continues a search, and shows its progress and results.

    Returns:
        0; 1 if no trial ran in full, if trials are left although no budget is used up, if a constraint's
        baseline failed, or a file cannot be written.

    Raises:
        SpecError: something is not available, or the search is already running; nothing was started.
    """
    console = open_console()
    corners = corner_specs(search)
    probe(tracking_uri())
    with going_on(console, "checking data and model"):
        _check(search, corners)
    if warning := warning_of([(search.source, spec) for spec in corners]):
        say(console, warning, "yellow")
    folder = folder_of(search.name, corners[0].experiment)
    with _alone(folder, search):
        journal = _open_journal(folder, search)
        client = usable_store()
        try:
            _open_parent(client, journal, search, corners[0].experiment)
            return _run(search, corners, journal, client, console, draw)
        except WriteError as error:
            ended = f"{len(journal.record.ended)} of {search.settings.trials} trials are saved"
            say(console, f"{error}; {ended}: make room, and run the same command again to continue", "red")
            return FAILED


def _run(
    search: Search,
    corners: list[RunSpec],
    journal: SearchJournal,
    client: "MlflowClient",
    console: Console,
    draw: Draw,
) -> int:
    journal.record.reopen(search.settings.seeds, failed=search.settings.retry_failed)
    progress = SearchProgress(search, journal)
    resumable = not any(in_own_process(spec, search.settings.evaluate) for spec in corners)

    def unfinished() -> dict[str, str]:
        return reconcile(client, journal, search.metric, resumable=resumable)

    progress.unfinished = unfinished()
    live = LiveSearch(console, progress)
    done = f", {len(progress.record.ended)} of them done" if progress.record.ended else ""
    goes_to = f"metrics go to {masked(client.tracking_uri)}"
    say(console, f"search {search.name}: {search.settings.trials} trials{done}; {goes_to}")
    problem = ""
    status: Status = "KILLED"
    try:
        problem = _fit(progress, client, live, corners, unfinished)
        status = "FAILED" if problem or progress.incomplete else "FINISHED"
    finally:
        _leave(progress, client, draw, status)
    return print_result(console, progress, problem, client.tracking_uri)


def _fit(
    progress: SearchProgress,
    client: "MlflowClient",
    live: LiveSearch,
    corners: list[RunSpec],
    unfinished: Callable[[], dict[str, str]],
) -> str:
    """Runs the remaining trials; returns the reason if that is not possible."""
    search, settings = progress.search, progress.settings
    needs_baseline = settings.baseline and progress.baseline is None
    if not (needs_baseline or progress.left) or progress.exhausted():
        return ""

    def context() -> TrialContext:
        parent = progress.record.parent_run
        here = str(Path.cwd())
        return TrialContext(client.tracking_uri, parent, progress.objective, settings.evaluate, here)

    with ray_cluster(dashboard=True), live:
        progress.on_change(lambda: live.show(progress))
        if needs_baseline:
            try:
                run_baseline(progress, context())
            except WriteError:
                raise
            except Exception as error:  # the baseline's training may raise anything
                if not progress.store_problem and settings.objective == "constraint":
                    return f"the baseline failed: {reason_of(error)}"
        storage = address_of(search.spec(search.middle).storage)
        if not progress.store_problem:
            run_all(progress, lambda: run_trials(progress, context(), corners, storage), unfinished)
    if progress.store_problem:
        ended = f"{len(progress.record.ended)} of {settings.trials} trials have ended"
        return f"MLflow takes no training ({progress.store_problem}); {ended}. {_AGAIN}"
    return ""


def _check(search: Search, corners: list[RunSpec]) -> None:
    """Builds the data and models of the corners of the space, without duplicates."""
    evaluate = search.settings.evaluate
    try:
        if evaluate is not None:
            import_object(evaluate)
    except ValueError as error:
        raise SpecError(search.source, f"search.evaluate: {error}") from None
    checked: set[str] = set()
    for spec in [*corners, *([search.baseline()] if search.settings.baseline else [])]:
        kept = {"task", "data", "model", "workers", "sync", "compressor"}
        tree = spec.model_dump(mode="json", include=kept)
        tau, exempt = tree["compressor"].get("tau"), tree["compressor"].get("exempt")
        tree["compressor"] = [list(tau.get("patterns", ())) if isinstance(tau, dict) else [], exempt]
        key = json.dumps(tree, sort_keys=True)
        if key not in checked:
            checked.add(key)
            check(spec, search.source, local=is_local())
    _check_metric(search, corners)


def _check_metric(search: Search, corners: list[RunSpec]) -> None:
    """Raises SpecError if points have no common metric, or the objective is for another one."""
    metric = common_metric(corners, search.source)
    objective = search.settings.objective
    if objective == "accuracy_per_wire_gb" and metric != ACCURACY:
        raise SpecError(
            search.source,
            f"search.objective = {objective}: runs are judged by {metric.label}; take front or constraint",
        )


@contextmanager
def _alone(folder: Path, search: Search) -> Iterator[None]:
    """Raises SpecError if the search is running already."""
    output_folder(home() / RUNS)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(
                search.source, f"search {search.name} is already running; give another --search.name"
            ) from None
        yield


def _open_journal(folder: Path, search: Search) -> SearchJournal:
    try:
        journal = SearchJournal(folder / FILE)
    except JournalError as error:
        raise SpecError(search.source, f"the journal is damaged: {error}") from None
    if journal.record.identity not in ("", search.identity()):
        raise SpecError(
            search.source,
            f"search {search.name} exists with other ranges or another run around them, in {folder}; "
            "give another --search.name, or remove that folder",
        )
    if journal.record.identity and journal.record.metric != search.metric.name:
        raise SpecError(
            search.source,
            f"search {search.name} judged its trials by {journal.record.metric}, but the task's metric "
            f"is now {search.metric.name}; give another --search.name, or remove {folder}",
        )
    return journal


def _open_parent(client: "MlflowClient", journal: SearchJournal, search: Search, experiment: str) -> None:
    record = journal.record
    if record.parent_run and reopen_parent(client, record.parent_run):
        return
    try:
        parent = start_parent(client, search, experiment)
    except TrackingError as error:
        raise SpecError("experiment", str(error)) from None
    journal.add(Began(identity=search.identity(), parent_run=parent, metric=search.metric.name))


def _leave(progress: SearchProgress, client: "MlflowClient", draw: Draw, status: Status) -> None:
    """Writes files, the figure and MLflow's states at the end, also of an interrupted search."""
    folder = progress.journal.path.parent
    files: list[Path] = []
    try:
        with writing(folder):
            files = write_outputs(progress, folder)
            if progress.points:
                with suppress(ValueError):  # no point has bytes to draw
                    draw(progress, folder / FIGURE)
                    files.append(folder / FIGURE)
    finally:
        # A store that is away, or whose disk is full, must not end the command, and MLflow would log a
        # traceback. The parent's end is told also where a training's tag was not taken.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        with suppress(Exception):
            tag_endings(client, progress.journal)
        with suppress(Exception):
            finish_parent(client, progress.record.parent_run, files, status)
