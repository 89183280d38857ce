"""What is changed inside Ray, which has no options for it: each private name that the platform uses is here.

Tried with Ray 2.60. With another version, `tests/platform/test_ray_train.py` says which of them it lacks.
"""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import node, parameter, services, utils
from ray.job_submission import JobSubmissionClient

# TorchTrainer is this one with a process group, which the workers make themselves (see `process_group`): its
# import alone has the controller, a process that trains nothing, load torch.
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ...places import FOLDER
from .failure import run_failed

TRIED_WITH = "2.60"
"""The version of Ray."""
CALL_S = 60.0
"""For which a job server may send nothing of an answer."""
_OTHERS = 3
"""Actors of a run beside its workers: `RunStatus`, Ray Train's controller, and one that synchronizes them."""
_AHEAD = re.compile(r"^(--(?:num_prestart_python_workers|maximum_startup_concurrency)=)\d+$")
_CLEANER, _DATASETS = "PlacementGroupCleanerCallback", "DatasetsCallback"


class JobClient(JobSubmissionClient):
    """A job server's client whose requests do not wait for ever."""

    def _do_request(self, method: str, endpoint: str, **arguments: Any) -> Any:
        return super()._do_request(method, endpoint, **{"timeout": CALL_S, **arguments})


class _Restarts(DefaultFailurePolicy):
    """Goes on from a checkpoint where that can help, and tells the user why it does."""

    def __init__(self, config: Any, job: Any) -> None:
        super().__init__(config)
        self._job = job

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        failure = run_failed(training_failed_error)
        if failure.cause != "other":
            return FailureDecision.RAISE
        decision = super().make_decision(training_failed_error)
        if decision is FailureDecision.RETRY:
            self._job.status.notify.remote(f"{failure}: going on from the last checkpoint")
        return decision


class _Trainer(DataParallelTrainer):
    """A trainer that leaves signals to the command."""

    def _register_sigint_handler(self, controller: Any) -> None:
        """Does nothing: Ray Train's handler waits for the workers, and then ends the process with code 1."""

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        """As Ray Train's, which would also repeat what must fail again."""
        config: Any = self.train_loop_config
        arguments["failure_policy"] = _Restarts(self.run_config.failure_config, config.get("job"))
        return self._run_controller(**arguments)

    def _run_controller(self, **arguments: Any) -> Any:
        return super()._initialize_and_run_controller(**arguments)


class _Unscaled:
    """Base class of scaling policies on one machine, which cannot grow: they ask no autoscaler.

    Ray Train's are registered with one, an actor for which each run waits, and which imports Ray Data.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Does nothing: see above."""

    def _maybe_send_resource_request(self) -> None:
        """Does nothing: see above."""

    def _get_reserved_resources(self) -> dict[str, dict[str, float]]:
        """What a run whose number of workers may change can use: all of the machine."""
        return {"this machine": ray.cluster_resources()}  # type: ignore[no-untyped-call]


class _Fixed(_Unscaled, FixedScalingPolicy):
    """A fixed number of workers."""


class _Elastic(_Unscaled, ElasticScalingPolicy):
    """As many workers as there is room for."""


class _WorkerGroup(WorkerGroup):
    """Workers without a runtime environment: they have the command's, and processes that wait already."""

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        return custom_runtime_env


class _Controller(TrainController):
    worker_group_cls = _WorkerGroup


class _LocalTrainer(_Trainer):
    """A trainer on the Ray that a command has started: its processes have the command's environment.

    No process keeps data sets, which workers here read by themselves.
    """

    _NOT_NEEDED: tuple[str, ...] = (_DATASETS,)

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ not in self._NOT_NEEDED]

    def _run_controller(self, **arguments: Any) -> Any:
        """As Ray Train's, without a runtime environment: a process that Ray has started ahead will do."""
        scaling: Any = self.scaling_config
        arguments["scaling_policy"] = (_Elastic if scaling.elasticity_enabled else _Fixed)(scaling)
        controller: Any = ray.remote(num_cpus=0)(_Controller).remote(**arguments)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())


class _ShortLivedTrainer(_LocalTrainer):
    """A trainer on a Ray that ends with the command, and takes its placement groups along.

    Ray Train's clean-up of them is one more process to start, and without a dashboard to ask takes 12 s to
    end.
    """

    _NOT_NEEDED = (_CLEANER, _DATASETS)


def trainer_for(alone: bool) -> type[DataParallelTrainer]:
    """The trainer on a Ray that ends with the command, or on one that goes on."""
    if alone:
        return _ShortLivedTrainer
    return _LocalTrainer if FOLDER in os.environ else _Trainer


@contextmanager
def few_processes(*, cpus: int, dashboard: bool, workers: int) -> Iterator[None]:
    """Changes which processes `ray.init` starts on this machine, for which it has no options.

    No autoscaler, no reader of logs, and without a dashboard neither its server nor its part of the agent;
    but those of a run, which otherwise start one after the other: the controller, then its workers. `cpus`:
    how many Ray will manage.
    """
    start, count = services.start_ray_process, max(cpus, workers + _OTHERS)
    class_of_parameters: Any = parameter.RayParams  # whose types are not those of its documentation

    def start_process(command: list[str], *arguments: Any, **options: Any) -> Any:
        return start([_AHEAD.sub(rf"\g<1>{count}", word) for word in command], *arguments, **options)

    parameters = functools.partial(class_of_parameters, no_monitor=True, include_log_monitor=False)
    changes: list[tuple[Any, str, Any]] = [
        (parameter, "RayParams", parameters),
        (services, "start_ray_process", start_process),
    ]
    if not dashboard:
        changes += [
            (node.Node, "start_api_server", lambda *_, **__: None),
            (utils, "get_dashboard_dependency_error", lambda: ImportError("not needed")),
        ]
    before = [(place, name, getattr(place, name)) for place, name, _ in changes]
    try:
        for change in changes:
            setattr(*change)
        yield
    finally:
        for change in before:
            setattr(*change)
