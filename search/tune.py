"""Ray Tune runs the trials, and their results go into the journal.

Every start of a search is a new Tune run that continues from the journal. The journal is written to disk at
once; Tune's own checkpoints lag behind by many trials.
"""

import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric

from .config import SearchConfig
from .objective import TrialOutcome, in_better_fronts
from .progress import SearchProgress
from .run_trial import in_own_process
from .sampling import make_sampler
from .trial import FIRST_VALUE, SECOND_VALUE, StoreUnavailable, Task, TrialContext, run_task

if TYPE_CHECKING:
    from ray import tune

_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # MLflow has it all
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the first Ctrl-C ends the command, as everywhere in taugrad
    "TUNE_FORCE_TRIAL_CLEANUP_S": "20",
    "TUNE_WARN_THRESHOLD_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a banner even when told to be silent
}
_HANDOVER, _HANDOVER_S = "TUNE_FUNCTION_THREAD_TIMEOUT_S", "120"
"""How long Tune waits for a stopped trial to deliver its metrics before its process takes the next one. After
Tune's default of 2 s it would abort the next one, and call no callback."""
FAILURE = "failure"
"""In a report: why the trial failed."""
NO_STORE = "no_store"
"""In a report: why the tracking store did not take a training, which ends the search."""
MOST = 3
"""How often a trial is started in one start of a search before it counts as failed."""
_ENOUGH = 3
"""The number of other trials at an evaluation that a median needs."""
_TRIAL_MEMORY = 2.0**20
"""Bytes that a trial reserves if only its workers compute: Tune requires a reservation."""


def run_baseline(progress: SearchProgress, context: TrialContext) -> None:
    """Trains without compression, in a Ray task.

    Raises:
        Exception: the training failed.
    """
    import ray  # noqa: PLC0415 - takes seconds

    task = progress.begin_baseline()
    spec = RunSpec.model_validate_json(task.specs[0])
    resources = _resources(spec, context.evaluate)
    options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "max_retries": 0}
    for attempt in range(1, MOST + 1):
        try:
            results = ray.get(ray.remote(_reports).options(**options).remote(task, context))
        except Exception as error:
            if process_died(error) and attempt < MOST:
                continue
            if isinstance(_inner(error), StoreUnavailable):
                progress.stop(task.number, str(_inner(error)))
            else:
                progress.end(task.number, "failed", reason_of(error))
            raise
        for result in results:
            progress.report(task.number, result)
        return


def _reports(task: Task, context: TrialContext) -> list[dict[str, Any]]:
    context.enter()
    reports: list[dict[str, Any]] = []
    run_task(task, context, reports.append)
    return reports


def run_all(
    progress: SearchProgress, run: Callable[[], None], resumable: Callable[[], Mapping[str, str]]
) -> None:
    """Runs trials until each has ended, or a budget is used up.

    Trials that started, but reported no end, are continued, and in the end marked as failed: their process
    may have been killed, and Ray Tune may abort a trial without a callback, if a process is not ready in
    time.

    Args:
        progress: of the search.
        run: one Ray Tune run of the remaining trials.
        resumable: makes MLflow and the journal agree after such a run; returns the runs that can continue.
    """
    begun = Counter[int]()
    while progress.incomplete:
        left = progress.left
        run()
        lost = progress.lose_all()
        if progress.store_problem or progress.exhausted() or (progress.left == left and not lost):
            return  # another run would do no more than this one
        begun.update(lost)
        for number in lost:
            if begun[number] >= MOST:
                progress.give_up(
                    number, f"begun {MOST} times; its process died, or Ray Tune never told how it ended"
                )
        if lost:
            progress.unfinished = dict(resumable())


def run_trials(progress: SearchProgress, context: TrialContext, corners: list[RunSpec], storage: str) -> None:
    """Runs the remaining trials, on a connected Ray, until a budget is used up; some may report no end.

    Args:
        progress: of the search.
        context: shared by the trials.
        corners: runs that reserve as much as any in the space.
        storage: a folder that all machines reach.
    """
    os.environ.update(_ENVIRONMENT)
    from ray import tune  # noqa: PLC0415 - takes seconds

    evaluate = context.evaluate
    own_process = all(in_own_process(spec, evaluate) for spec in corners)
    concurrency = progress.settings.concurrency or _fitting(corners)
    trainable = tune.with_parameters(_trainable, context=context)
    resources = tune.PlacementGroupFactory([_largest(corners, evaluate)])
    sampler = make_sampler(progress, context.objective, concurrency)
    scheduler, callback, stopper = _parts(progress, sampler)
    name = f"search-{context.parent_run}"
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        tune_config=tune.TuneConfig(
            search_alg=sampler,
            scheduler=scheduler,
            num_samples=progress.left,
            max_concurrent_trials=concurrency,
            # Saves the seconds of importing torch; workers of a Ray Train run must end with their trial.
            reuse_actors=own_process,
            trial_dirname_creator=lambda trial: f"trial_{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name=name, storage_path=storage, callbacks=[callback], stop=stopper, verbose=0
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a failing trial is told in our own words
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner.fit()
    _forget(storage, name)


def _forget(storage: str, name: str) -> None:
    """Removes Tune's checkpoints."""
    from pyarrow.fs import FileSystem  # noqa: PLC0415

    filesystem, path = FileSystem.from_uri(storage)
    with suppress(OSError):
        filesystem.delete_dir(f"{path}/{name}")


def _trainable(config: dict[str, Any], context: TrialContext) -> None:
    from ray import tune  # noqa: PLC0415

    os.environ.setdefault(_HANDOVER, _HANDOVER_S)
    context.enter()
    try:
        run_task(Task.model_validate_json(config["task"]), context, tune.report)
    except Exception as error:
        # If this raised, Tune would end the process, and the sampler would get no value.
        worst = dict(zip((FIRST_VALUE, SECOND_VALUE), context.objective.worst(), strict=False))
        failure = {FAILURE: reason_of(error)}
        if isinstance(error, StoreUnavailable):
            failure = {NO_STORE: str(error)}
        tune.report({**failure, "evaluation": 0, **worst})


def _parts(progress: SearchProgress, sampler: Any) -> "tuple[Any, tune.Callback, tune.Stopper]":
    """The scheduler that prunes, the callback that writes the journal, the stopper that keeps budgets."""
    from ray import tune  # noqa: PLC0415
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler  # noqa: PLC0415

    pruner = Pruner(progress.settings, progress.metric)
    for earlier in progress.record.ended:
        pruner.remember(earlier.number, earlier.course, stopped=earlier.ending == "pruned")
    pruned, looked_at = set[int](), set[str]()

    class Pruning(FIFOScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            number, evaluation = _number(trial), int(result["evaluation"])
            if evaluation:
                outcome, last = TrialOutcome(result["value"], result["wire_bytes"]), result["share"] >= 1
                if pruner.stops(number, evaluation, outcome, last=last):
                    pruned.add(number)
                    return str(TrialScheduler.STOP)
            return str(TrialScheduler.CONTINUE)

    class Writing(tune.Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any) -> None:
            if NO_STORE in result:
                progress.stop(_number(trial), result[NO_STORE])
            elif FAILURE in result:
                progress.end(_number(trial), "failed", result[FAILURE])
            else:
                progress.report(_number(trial), result)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            if _number(trial) in pruned:
                progress.end(_number(trial), "pruned")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            error = trial.get_pickled_error() or trial.get_error()
            if process_died(error) and progress.lose(_number(trial)):
                return  # it is continued
            progress.end(_number(trial), "failed", reason_of(error))

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            for trial in trials:
                if trial.status == "ERROR" and trial.trial_id not in looked_at:
                    looked_at.add(trial.trial_id)
                    if progress.lose(_number(trial)):  # Tune aborted it without a callback
                        sampler.on_trial_complete(trial.trial_id, error=True)

    class Budget(tune.Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return bool(progress.store_problem or progress.exhausted())

    return Pruning(), Writing(), Budget()  # type: ignore[no-untyped-call]


def _number(trial: Any) -> int:
    return Task.model_validate_json(trial.config["task"]).number


def reason_of(error: BaseException | None) -> str:
    """An error in one line, without Ray's wrapping."""
    if error is None or process_died(error):
        return "its process died (killed, out of memory, or crashed)"
    inner = _inner(error)
    text = " ".join(str(inner).split()) or type(inner).__name__
    name = "" if type(inner).__name__ in ("RunFailed", "TuneError") else f"{type(inner).__name__}: "
    return f"{name}{text}"[:500]


def process_died(error: BaseException | None) -> bool:
    """Whether a trial's process was killed, and its training raised no error; None if its node died."""
    died = ("ActorDiedError", "RayActorError", "WorkerCrashedError")
    return error is None or type(_inner(error)).__name__ in died


def _inner(error: BaseException) -> BaseException:
    return getattr(error, "cause", None) or error.__cause__ or error


def _resources(spec: RunSpec, evaluate: str | None) -> dict[str, float]:
    """The resources that a trial reserves for its own process."""
    if not in_own_process(spec, evaluate):
        return {"memory": _TRIAL_MEMORY}  # its workers reserve their own
    return {"CPU": spec.workers.cpus} | ({"GPU": 1} if spec.workers.device == "cuda" else {})


def _largest(corners: list[RunSpec], evaluate: str | None) -> dict[str, float]:
    resources = [_resources(spec, evaluate) for spec in corners]
    return {
        name: max(one.get(name, 0) for one in resources) for name in {key for one in resources for key in one}
    }


def _fitting(corners: list[RunSpec]) -> int:
    """How many trials the cluster can run at the same time."""
    import ray  # noqa: PLC0415

    have = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus = max(spec.processes * spec.workers.cpus for spec in corners)
    room = have.get("CPU", 1) / cpus
    gpus = max(spec.processes if spec.workers.device == "cuda" else 0 for spec in corners)
    return max(1, int(min(room, have.get("GPU", 0) / gpus) if gpus else room))


class Pruner:
    """Stops trials that others dominate in the metric and in the bytes so far.

    Decisions depend only on the outcomes and their order.
    """

    def __init__(self, settings: SearchConfig, metric: Metric) -> None:
        """Takes the settings of a search and its metric."""
        self._kind, self._grace, self._reduction = settings.pruning, settings.grace, settings.reduction
        self._metric = metric
        self._at: dict[int, dict[int, TrialOutcome]] = {}
        self._stopped: set[int] = set()

    def remember(self, number: int, course: Mapping[int, TrialOutcome], *, stopped: bool) -> None:
        """Records a trial of an earlier start, with its outcomes by evaluation, counted from 1."""
        if stopped:
            self._stopped.add(number)
        for evaluation, outcome in course.items():
            self._at.setdefault(evaluation, {})[number] = outcome

    def stops(self, number: int, evaluation: int, outcome: TrialOutcome, *, last: bool = False) -> bool:
        """Records an outcome at an evaluation, counted from 1; returns whether to stop the trial."""
        stops = self._judge(number, evaluation, outcome) and not last
        if stops:
            self._stopped.add(number)
        return stops

    def _judge(self, number: int, evaluation: int, outcome: TrialOutcome) -> bool:
        others = self._at.setdefault(evaluation, {})
        others[number] = outcome
        if self._kind == "none" or evaluation < self._grace:
            return False
        beside = [other_outcome for other, other_outcome in others.items() if other != number]
        if self._kind == "median":
            # Trials that were stopped earlier count as worse; else late evaluations have only good trials.
            company = len(beside) + len(self._stopped - others.keys())
            return company >= _ENOUGH and 2 * in_better_fronts(outcome, beside, self._metric) > company
        if not self._is_rung(evaluation):
            return False
        return in_better_fronts(outcome, beside, self._metric) >= max(1.0, len(others) / self._reduction)

    def _is_rung(self, evaluation: int) -> bool:
        rung = self._grace
        while rung < evaluation:
            rung *= self._reduction
        return rung == evaluation
