"""`taugrad search`: from a search spec to a front, however often it is interrupted."""

import fcntl
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from taugrad.platform.importing import import_object
from taugrad.platform.launching.cluster import is_local, ray_cluster
from taugrad.platform.launching.launch import storage_path
from taugrad.platform.preflight import check, usable_store
from taugrad.platform.reading import SpecError
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking.store import TrackingError

from .console import LiveSearch, front_table
from .journal import FILE, Began, Journal, JournalError
from .outputs import folder_of, write_outputs
from .progress import Progress
from .reading import Search, corner_specs
from .tracked import finish_parent, reconcile, reopen_parent, start_parent, tag_endings
from .training import in_own_process
from .trial import Surroundings
from .tuning import reason_of, run_baseline, run_trials

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

OK, FAILED, INTERRUPTED = 0, 1, 130
Draw = Callable[[Progress, Path], None]
"""Draws a search's figure into a file."""
FIGURE = "front.png"


def run_search(search: Search, draw: Draw) -> int:
    """Runs a search, or goes on with it, and shows what it finds.

    Args:
        search: what was asked for.
        draw: draws the front.

    Returns:
        0; 1 when there is no point at all, or the baseline that a constraint needs failed; 130 when it was
        interrupted (Ctrl-C).

    Raises:
        SpecError: something cannot be had, or the search is running already; nothing was started.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=132)
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and data
    corners = corner_specs(search)
    _check(search, corners)
    folder = folder_of(search.name, corners[0].experiment)
    with _alone(folder, search):
        journal = _open_journal(folder, search)
        client = usable_store()
        _open_parent(client, journal, search, corners[0].experiment)
        return _run(search, corners, journal, client, console, draw)


def _run(
    search: Search,
    corners: list[RunSpec],
    journal: Journal,
    client: "MlflowClient",
    console: Console,
    draw: Draw,
) -> int:
    live = LiveSearch(console)
    if search.settings.retry_failed:
        journal.record.reopen_failed()
    progress = Progress(search, journal)
    resumable = not any(in_own_process(spec, search.settings.evaluate) for spec in corners)
    progress.unfinished = reconcile(client, journal, resumable=resumable)
    live.take_as_told(progress)
    _announce(console, progress, client)
    problem, status = "", "KILLED"
    try:
        problem = _fit(progress, client, live, corners)
        status = "FAILED" if problem else "FINISHED"
    except KeyboardInterrupt:
        _say(console, f"search {search.name}: interrupted; the same command goes on")
        return INTERRUPTED
    finally:
        _leave(progress, client, draw, status)  # type: ignore[arg-type]
    return _tell(console, progress, problem)


def _fit(progress: Progress, client: "MlflowClient", live: LiveSearch, corners: list[RunSpec]) -> str:
    """Runs what is left; what kept it from that, if anything did."""
    search, settings = progress.search, progress.settings
    needs_baseline = settings.baseline and progress.baseline is None
    if not (needs_baseline or progress.left) or progress.exhausted():
        return ""

    def surroundings() -> Surroundings:
        parent = progress.record.parent_run
        here = str(Path.cwd())
        return Surroundings(client.tracking_uri, parent, progress.objective, settings.evaluate, here)

    with ray_cluster(), live:
        progress.on_change(lambda: live.show(progress))
        if needs_baseline:
            try:
                run_baseline(progress, surroundings())
            except Exception as error:  # the baseline's training may raise anything
                if settings.objective == "constraint":
                    return f"the baseline failed: {reason_of(error)}"
        if progress.left and not progress.exhausted():
            run_trials(progress, surroundings(), corners, storage_path(search.spec(search.middle)))
    return ""


def _check(search: Search, corners: list[RunSpec]) -> None:
    """Builds data and model of every corner that has other ones."""
    evaluate = search.settings.evaluate
    try:
        if evaluate is not None:
            import_object(evaluate)
    except ValueError as error:
        raise SpecError(search.source, [f"search.evaluate: {error}"]) from None
    seen: set[str] = set()
    for spec in [*corners, search.baseline()]:
        kept = {"data", "model", "workers", "sync", "compressor"}
        tree = spec.model_dump(mode="json", include=kept)
        tau, exempt = tree["compressor"].get("tau"), tree["compressor"].get("exempt")
        tree["compressor"] = [list(tau.get("patterns", ())) if isinstance(tau, dict) else [], exempt]
        key = json.dumps(tree, sort_keys=True)
        if key not in seen:
            seen.add(key)
            check(spec, search.source, local=is_local())


@contextmanager
def _alone(folder: Path, search: Search) -> Iterator[None]:
    """Refuses a second start of a search that runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(
                search.source, [f"search {search.name} runs already; give another --search.name"]
            ) from None
        yield


def _open_journal(folder: Path, search: Search) -> Journal:
    try:
        journal = Journal(folder / FILE)
    except JournalError as error:
        raise SpecError(search.source, [f"the journal is damaged: {error}"]) from None
    if journal.record.identity not in ("", search.identity()):
        raise SpecError(
            search.source,
            [
                f"search {search.name} is there with other ranges or another run around them, in {folder}; "
                "give another --search.name, or remove that folder"
            ],
        )
    return journal


def _open_parent(client: "MlflowClient", journal: Journal, search: Search, experiment: str) -> None:
    record = journal.record
    if record.parent_run and reopen_parent(client, record.parent_run):
        return
    try:
        parent = start_parent(client, search, experiment)
    except TrackingError as error:
        raise SpecError("experiment", [str(error)]) from None
    journal.add(Began(identity=search.identity(), parent_run=parent))


def _announce(console: Console, progress: Progress, client: "MlflowClient") -> None:
    record, name = progress.record, progress.search.name
    went_on = f", {len(record.ended)} of them done" if record.ended else ""
    _say(
        console,
        f"search {name}: {progress.settings.trials} trials{went_on}; metrics go to {client.tracking_uri}",
    )


def _leave(
    progress: Progress,
    client: "MlflowClient",
    draw: Draw,
    status: Literal["FINISHED", "FAILED", "KILLED"],
) -> None:
    """Files, figure and states, also of a search that was interrupted."""
    folder = progress.journal.path.parent
    files = write_outputs(progress, folder)
    if progress.points:
        draw(progress, folder / FIGURE)
        files.append(folder / FIGURE)
    with suppress(Exception):  # the files are on disk; a store that is away must not end the command
        tag_endings(client, progress.journal)
        finish_parent(client, progress.record.parent_run, files, status)


def _tell(console: Console, progress: Progress, problem: str) -> int:
    folder, search = progress.journal.path.parent, progress.search
    if problem:
        _say(console, f"search {search.name}: {problem}", style="red")
        return FAILED
    used_up = progress.exhausted()
    if used_up and progress.left:
        ended = len(progress.record.ended)
        _say(console, f"the budget {used_up} is used up after {ended} of {progress.settings.trials} trials")
    if not progress.points:
        _say(console, f"no trial ran in full; see {_short(folder)}/trials.csv", style="red")
        return FAILED
    console.print(front_table(progress))
    _say(console, _verdict(progress))
    _say(console, f"Front, trials, figure and a spec for each point: {_short(folder)}")
    place = _best_place(progress) or 1
    _say(console, f"Train a point in full: taugrad search {search.source} --pick {place}")
    return OK


def _verdict(progress: Progress) -> str:
    settings, place = progress.settings, _best_place(progress)
    if settings.objective == "front":
        return f"on the front: {len(progress.front)} of {len(progress.points)} points that ran in full"
    if place is None:
        return (
            f"no point keeps within {settings.tolerance:g} points of the baseline's accuracy; "
            "widen the ranges or search.tolerance"
        )
    what = (
        "has the best ratio"
        if settings.objective == "ratio"
        else f"sends least within {settings.tolerance:g} points of the baseline's accuracy"
    )
    return f"point {place} {what}"


def _best_place(progress: Progress) -> int | None:
    """Where on the front the objective's best point is."""
    best = progress.objective.best(progress.points)
    numbers = [point.number for point in progress.front]
    return None if best is None else numbers.index(best.number) + 1


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _say(console: Console, text: str, style: str = "") -> None:
    """Prints text as it is: no markup, and nothing that could be copied is broken in two."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
