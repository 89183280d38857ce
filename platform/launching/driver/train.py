"""`taugrad train`: trains specs one after the other, or continues an interrupted run.

A `Display` decides what people see of the runs.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError
from rich.console import Console

from ...deadline import in_time
from ...exit_codes import FAILED, OK
from ...places import address_of, is_bucket
from ...spec import COMMAND_LINE, RunSpec, SpecError
from ...spec.allowing import OPTION, code_of, require_allowed
from ...spec.explaining import explain
from ...spec.reading import import_named
from ...spec.resizing import with_workers
from ...spec.yaml_file import read_yaml
from ...terminal import going_on, say
from ...tracking import names
from ...tracking.masking import first_line, masked
from ...tracking.probe import probe
from ...tracking.run_lock import RunHeld, RunLock
from ...tracking.store import TrackingError, keep_spec, start_run, to_copy, tracking_uri
from ...training.manifest import CheckpointError, newest_good
from ...user_code import TRACEBACK
from ..run_folder import RunFolder
from ..storage import above, check_storage
from .cluster import import_ray, is_local, ray_cluster, ray_lives
from .failure import RunFailed
from .launch import Watch, launch
from .preflight import check, usable_store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_ANSWER_S = 2.0


class Display(Protocol):
    """What shows a command's runs."""

    console: Console
    """Where everything is printed."""

    def tags(self, spec: RunSpec) -> Mapping[str, str]:
        """What a run's MLflow run gets from the beginning, to be shown by."""

    def live(self, title: str, width: int) -> AbstractContextManager[Watch]:
        """Shows one run while it goes on; takes updates, from whichever thread.

        `width` is that of the longest title among the command's runs.
        """

    def add(self, client: "MlflowClient", spec: RunSpec, run_id: str, metrics: Mapping[str, float]) -> None:
        """Takes a run that came to its end, with its last evaluation and its totals."""

    def compare(self, client: "MlflowClient", experiments: Sequence[str]) -> None:
        """Shows the runs that were added, if there are any, side by side."""


def train(specs: Sequence[tuple[str, RunSpec]], display: Display) -> int:
    """Trains every spec, each with the name of its file, and compares the runs.

    Returns 0, or 1 when a run failed; the others are trained and compared all the same. Raises SpecError: a
    spec asks for something that is not available; nothing was started.
    """
    console = display.console
    probe(tracking_uri())
    with going_on(console, "checking data and model"):
        for source, spec in specs:
            check(spec, source, local=is_local())
    width = max(len(spec.title) for _, spec in specs)
    counts = sorted({spec.workers.count for _, spec in specs})
    workers = " or ".join(str(count) for count in counts)
    finished: list[str] = []
    experiments = list(dict.fromkeys(spec.experiment for _, spec in specs))
    with ExitStack() as afterwards:
        with _started(console, specs[0][1].processes) as client:
            say(
                console,
                f"{len(specs)} run{'s' * (len(specs) > 1)}, {workers} worker{'s' * (counts != [1])}"
                f"{' on this machine' * is_local()}; metrics go to {masked(client.tracking_uri)}",
            )
            for place, (_, spec) in enumerate(specs, start=1):
                try:
                    run_id = start_run(client, spec, tags=display.tags(spec))
                except TrackingError as error:
                    raise SpecError("experiment", str(error)) from None
                except Exception as error:  # of many types; the runs before this one have their results
                    problem = f"not started, MLflow does not answer: {first_line(error)}"
                    say(console, f"{spec.title}: {problem}", style="red")
                    break
                left = [source for source, _ in specs[place:]]
                if _run(display, client, spec, run_id, width, left=left):
                    finished.append(run_id)
                elif not ray_lives():
                    say(console, "Ray is gone: what would come after this run is not started", style="red")
                    break
            afterwards.enter_context(_ended(client, experiments))
        with going_on(console, "drawing figures"):
            display.compare(client, experiments)
    return OK if len(finished) == len(specs) else FAILED


def resume(run_id: str, display: Display, workers: Mapping[str, str] | None = None) -> int:
    """Continues an interrupted run from its last checkpoint; returns 0, or 1 when it failed again.

    `workers` has the fields that change from now on (`spec.resizing.CHANGEABLE`). Raises SpecError: there is
    no such run, it is finished, another process trains it, no good checkpoint is left, or its spec names
    code, which is not allowed.
    """
    probe(tracking_uri(), writes=False)
    client = usable_store()
    spec = _spec_of(client, run_id)
    require_allowed(spec, f"run {run_id}")
    if workers:
        asked = [f"--workers.{field} {value}" for field, value in workers.items()]
        spec = with_workers(spec, " ".join([f"--resume {run_id}", *asked]), workers)
    check_storage(spec, f"run {run_id}", local=is_local())  # before its checkpoints are read
    folder = RunFolder.at(address_of(spec.storage), run_id)
    try:
        with RunLock(client, run_id) as lock:
            _check_checkpoints(folder, run_id)
            check(spec, f"run {run_id}", local=is_local())
            with _started(display.console, spec.processes):
                client.update_run(run_id, status="RUNNING")
                if workers:
                    keep_spec(client, run_id, spec)  # the next `--resume` goes on with these workers
                finished = _run(display, client, spec, run_id, len(spec.title), lock)
    except RunHeld as error:
        raise SpecError(COMMAND_LINE, f"--resume {run_id}: {error}") from None
    with going_on(display.console, "drawing figures"):
        display.compare(client, [spec.experiment])
    return OK if finished else FAILED


@contextmanager
def _started(console: Console, workers: int) -> Iterator["MlflowClient"]:
    """Starts Ray, or connects to one, and meanwhile opens the store, which takes as long."""
    with ExitStack() as open_things:
        with going_on(console, "starting Ray"), ThreadPoolExecutor(1) as beside:
            import_ray()  # before MLflow: modules that import each other must not begin in two threads
            opening = beside.submit(usable_store)
            open_things.enter_context(ray_cluster(workers=workers))
            client = opening.result()
        yield client
        with going_on(console, "ending Ray"):
            open_things.close()


def _run(
    display: Display,
    client: "MlflowClient",
    spec: RunSpec,
    run_id: str,
    width: int,
    lock: RunLock | None = None,
    left: Sequence[str] = (),
) -> bool:
    """Trains one spec, before those that are left; whether it came to its end."""
    console = display.console
    with display.live(spec.title, width) as show:
        try:
            metrics = launch(spec, client, run_id, show, alone=is_local(), lock=lock)
        except RunFailed as error:
            if os.environ.get(TRACEBACK) and error.worker_traceback:
                say(console, error.worker_traceback)
            say(console, f"{spec.title}: failed: {error}", style="red")
            say(console, f"  {_what_helps(error, spec, _resuming(client, spec, run_id))}")
            return False
        except KeyboardInterrupt as interrupt:
            command = f"continue with: {_resuming(client, spec, run_id)}"
            raise type(interrupt)(_lines(command, f"{spec.title}: {_reached(spec, run_id)}", left)) from None
    with _ended(client, [spec.experiment], left):
        display.add(client, spec, run_id, metrics)
    return True


def _resuming(client: "MlflowClient", spec: RunSpec, run_id: str) -> str:
    allowing = f" {OPTION}" if code_of(spec) else ""
    return to_copy(f"taugrad train --resume {run_id}{allowing}", client.tracking_uri)


@contextmanager
def _ended(client: "MlflowClient", experiments: Sequence[str], left: Sequence[str] = ()) -> Iterator[None]:
    """Has Ctrl-C say that what was trained is trained, and how to see it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        see = " && ".join(f"taugrad report {shlex.quote(experiment)} -o report" for experiment in experiments)
        raise type(interrupt)(
            _lines(f"continue with: {to_copy(see, client.tracking_uri)}", "trained to the end", left)
        ) from None


def _lines(command: str, state: str, left: Sequence[str]) -> str:
    """How to go on: the command, what it finds, and which specs were not started."""
    return "\n  ".join([command, state] + [f"not started: {', '.join(left)}"] * bool(left))


def _reached(spec: RunSpec, run_id: str) -> str:
    """From where a run that was interrupted goes on."""
    try:
        folder = RunFolder.at(address_of(spec.storage), run_id)
        iteration = in_time(_ANSWER_S, lambda: newest_good(folder.iterations(), folder.manifest)).iteration
    except Exception:  # of many types: a bucket that does not answer, checkpoints that are damaged
        return "it continues from its last checkpoint"
    if iteration:
        return f"it continues after iteration {iteration}"
    return "no checkpoint yet; it starts from the beginning"


def _what_helps(failed: RunFailed, spec: RunSpec, resuming: str) -> str:
    """What to do after a failure; proposes to resume only if the failure may not occur again."""
    match failed.cause:
        case "diverged":
            rate = spec.training.optimizer.lr
            return (
                "it would diverge again from its last checkpoint; start again with a lower learning rate "
                f"than {rate:g}, such as --training.optimizer.lr {rate / 10:g}"
            )
        case "own code":
            return f"when that is fixed, continue with: {resuming} ({TRACEBACK}=1 shows the whole traceback)"
        case "checkpoint":
            return f"when that is put right, continue with: {resuming}"
        case "other":
            return f"continue with: {resuming}"


def _spec_of(client: "MlflowClient", run_id: str) -> RunSpec:
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

    try:
        run = client.get_run(run_id)
    except MlflowException:
        problem = f"--resume {run_id}: no such run in {masked(client.tracking_uri)}"
        raise SpecError(COMMAND_LINE, problem) from None
    if run.info.status == "FINISHED":
        raise SpecError(COMMAND_LINE, f"--resume {run_id}: this run is finished")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        kept = Path(client.download_artifacts(run_id, "spec.yaml"))
    except (MlflowException, OSError):
        problem = f"--resume {run_id}: {masked(str(run.info.artifact_uri))} has no spec.yaml; bring it back"
        raise SpecError(COMMAND_LINE, problem) from None
    tree = read_yaml(kept, RunSpec)
    import_named(tree, f"run {run_id}", ())
    try:
        spec = RunSpec.model_validate(tree)
    except ValidationError as error:  # another version of taugrad wrote it
        raise SpecError(f"run {run_id}", *(problem for _, problem in explain(error.errors()))) from None
    if published := run.data.tags.get(names.TAG_PUBLISHED):
        publish = spec.publish.model_copy(update={"path": _published_at(spec.publish.path, published)})
        spec = spec.model_copy(update={"publish": publish})
    checkpoints = run.data.tags.get(names.TAG_CHECKPOINTS)
    if checkpoints is None:
        return spec
    return spec.model_copy(update={"storage": Path(_storage_of(spec, run_id, checkpoints))})


def _published_at(path: str, former: str) -> str:
    """Where a run goes on publishing: where it did, or in this folder if that place was moved here."""
    here = address_of(path)
    return here if Path(here).exists() and not Path(former).exists() else former


def _storage_of(spec: RunSpec, run_id: str, checkpoints: str) -> str:
    """The storage with a run's folder, which was `checkpoints`.

    The command may be given in another folder than the first time, and that folder may have been moved.
    """
    former, folder, here = above(checkpoints)[0], Path(checkpoints), address_of(spec.storage)
    if is_bucket(checkpoints) or folder.exists() or not is_local():
        return former
    if (Path(here) / run_id).exists():
        return here
    if Path(former).exists():  # there is no checkpoint yet
        return former
    problem = f"its checkpoints were in {checkpoints}, and {former} is not there; bring it back, or give the "
    problem += f"command in the folder that has {spec.storage}/{run_id}"
    raise SpecError(COMMAND_LINE, f"--resume {run_id}: {problem}")


def _check_checkpoints(folder: RunFolder, run_id: str) -> None:
    """Says at once when there are checkpoints and none is good; workers would find out later."""
    try:
        folder.check()
    except (CheckpointError, OSError) as error:
        raise SpecError(COMMAND_LINE, f"--resume {run_id}: {error}") from None
