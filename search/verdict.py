"""The summary at the end of a search: the front, how the search ended, and which point to train in full."""

import shlex
from pathlib import Path

from rich.console import Console

from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.places import in_job
from taugrad.platform.terminal import say, short
from taugrad.platform.tracking.store import to_copy

from .console import front_table, what_intervals_hold
from .outputs import SPECS
from .progress import Progress
from .reading import name_search
from .search import Search


def print_result(console: Console, progress: Progress, problem: str, tracking_uri: str) -> int:
    """Prints the result of a search, and returns the command's exit code.

    It is 1 if a problem prevented trials, if no trial ran in full, or if trials are left without a reason.
    """
    folder, search = progress.journal.path.parent, progress.search
    if problem:
        say(console, f"search {search.name}: {problem}", style="red")
        return FAILED
    counted = f"{len(progress.record.ended)} of {progress.settings.trials} trials"
    used_up = progress.exhausted()
    if used_up and progress.left:
        say(console, f"the budget {used_up} is used up after {counted}")
    if not progress.points:
        say(console, f"no trial ran in full; see {short(folder)}/trials.csv", style="red")
        return FAILED
    console.print(front_table(progress))
    say(console, what_intervals_hold(progress))
    say(console, verdict(progress))
    say(console, f"Front, trials, figure and a spec for each point: {short(folder)}")
    say(console, proposal(progress, tracking_uri))
    if progress.incomplete:
        say(
            console,
            f"search {search.name}: ended after {counted}; run the same command again to continue",
            style="red",
        )
        return FAILED
    return OK


def verdict(progress: Progress) -> str:
    """The number of points on the front, or the best point."""
    settings, objective, baseline = progress.settings, progress.objective, progress.baseline
    best = objective.best(progress.points)
    if settings.objective == "front":
        return f"on the front: {len(progress.front)} of {len(progress.points)} points that ran in full"
    if best is None:
        metric = progress.metric
        allowed = metric.amount(objective.allowed(baseline.value) if baseline else 0.0)
        return (
            f"no point keeps within {allowed} of the baseline's {metric.label}; "
            "widen the ranges or search.tolerance"
        )
    return f"point {progress.place(best)} {objective.proposed(progress.points)[1]}"


def proposal(progress: Progress, tracking_uri: str) -> str:
    """The command that trains the point that the objective prefers, with the reason."""
    point, why = progress.objective.proposed(progress.points)
    place = progress.place(point)
    command = ["taugrad", "search", progress.search.source, *_named(progress.search), "--pick", str(place)]
    if in_job():  # its folder is not where the command will be given
        command = ["taugrad", "train", str(progress.journal.path.parent / SPECS / f"{place}.yaml")]
    return f"Train point {place}, which {why}: {to_copy(shlex.join(command), tracking_uri)}"


def _named(search: Search) -> list[str]:
    """The arguments that identify the search beside its file."""
    name, experiment = search.name, search.spec(search.middle).experiment
    usual_name, usual_experiment, _ = name_search(Path(search.source), [])
    arguments = [] if name == usual_name else ["--search.name", name]
    return arguments if experiment == usual_experiment else [*arguments, "--experiment", experiment]
