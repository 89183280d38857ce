"""Checks before a worker starts: data, model, the machine's size, the tracking store."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from taugrad.compressors.exchange.keys import KeyProblem, key_of_environment
from taugrad.compressors.methods import NoCompression
from taugrad.compressors.names import unmatched_patterns

from ...data import load
from ...models.building import build, try_out
from ...spec import RunSpec, SpecError
from ...spec.resizing import check_present
from ...spec.synchronization import real
from ...spec.training import AdaBatch
from ...tasks import build_task, try_task
from ...tasks.metric import ACCURACY
from ...tracking.local_database import served_only
from ...tracking.probe import answering_client
from ...tracking.store import sqlite_path, tracking_uri, with_timeout
from ...user_code import UserCodeError
from ..storage import check_storage
from .cluster_probe import check_cluster

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from torch import nn


def cpus_here() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def check(spec: RunSpec, source: str, *, local: bool) -> None:
    """Builds what the workers will build; `source` is the spec's file, for messages.

    `local`: the workers will be on this machine. Raises SpecError: the data set or the model cannot be built,
    there are more workers than CPUs, a pattern of names matches no parameter of the model, or a cluster does
    not answer.
    """
    workers = spec.workers
    if not local:
        check_cluster(os.environ.get("RAY_ADDRESS", ""))
    check_storage(spec, source, local=local)
    _check_experiment(spec, source)
    if workers.min_count is not None:
        check_present(spec, source)
    if local and (workers.min_count or spec.processes) * workers.cpus > cpus_here():
        fitting = f"--workers.count {max(1, int(cpus_here() // workers.cpus))}"
        sharing = f"--workers.cpus {int(100 * cpus_here() / workers.count) / 100}"
        raise SpecError(
            source,
            f"workers.count = {workers.count} at {workers.cpus:g} CPU each: this machine has "
            f"{cpus_here()} CPUs; {fitting} fits, or {sharing} to share them, or --sync.mode simulated "
            "to run all of them in one process",
        )
    if local and real(spec.sync).authenticated:
        try:
            key_of_environment()
        except KeyProblem as problem:
            raise SpecError(source, f"sync.authenticated = true: {problem}") from None
    if local and workers.device == "cuda":
        _check_cuda(spec, source)
    with _building("data", source):
        data = load(spec.data)
    with _building("task", source):
        task = build_task(spec.task, data.shape)
    with _building("model", source):
        model = build(spec.model, data.shape)
        inputs, targets = data.train.batch(np.arange(min(2, len(data.train))), None)
        try_out(spec.model, model, inputs, data.shape)
    if real(spec.sync).exchanges == "activations":
        _check_parts(spec, source, model)
    with _building("task", source):
        try_task(spec.task, task, model, inputs, targets)
    has = [metric.name for metric in task.metrics]
    if unknown := spec.training.until.keys() - has:
        reason = f"no metric of task.kind = {spec.task.kind}, which has {', '.join(has)}"
        raise SpecError(source, f"training.until.{min(unknown)}: {reason}")
    for metric in task.metrics:
        if metric.is_share and (wanted := spec.training.until.get(metric.name, 0.0)) > 1:
            reason = f"it is a share, 0 to 1; {wanted:g}% are {wanted / 100:g}"
            raise SpecError(source, f"training.until.{metric.name} = {wanted:g}: {reason}")
    growth = spec.training.batch_growth
    if isinstance(growth, AdaBatch) and growth.measure == "error" and ACCURACY.name not in has:
        reason = f"task.kind = {spec.task.kind} has no accuracy; use loss"
        raise SpecError(source, f"training.batch_growth.measure = error: {reason}")
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    problems = [
        f"compressor.{problem}" for problem in unmatched_patterns(spec.compressor.name_patterns, names)
    ]
    problems += unmatched_patterns({"training.l1_exempt": spec.training.l1_exempt}, names)
    if problems:  # most likely typing errors, and without effect
        raise SpecError(source, *problems)


def _check_experiment(spec: RunSpec, source: str) -> None:
    """Refuses an experiment whose artifacts the tracking store cannot take."""
    uri = tracking_uri()
    path = sqlite_path(uri)
    problem = None if path is None else served_only(path, uri).get(spec.experiment)
    if problem is not None:
        raise SpecError(source, f"experiment = {spec.experiment}: {'; '.join(problem)}")


@contextmanager
def _building(section: str, source: str) -> Iterator[None]:
    """Says of what cannot be built which section of the spec asks for it."""
    try:
        yield
    except UserCodeError as error:
        raise SpecError(source, f"{section}.factory = {error.path}: {error.reason}") from error
    except (ValueError, ImportError, OSError) as error:
        raise SpecError(source, f"{section}: {error}") from error


def usable_store() -> "MlflowClient":
    """The tracking store; asked once, so that nothing starts where nothing could be logged.

    When it goes away later, calls of this client hold a command up for `LOST_S` seconds in all.
    Raises SpecError: it cannot be used.
    """
    return with_timeout(answering_client())


def _check_parts(spec: RunSpec, source: str, model: "nn.Module") -> None:
    """Refuses a model that hybrid parallelism cannot cut in two."""
    from ...synchronization.hybrid.layers import two_parts  # noqa: PLC0415 - imports torch

    try:
        two_parts(model)
    except ValueError as error:
        problem = f"sync.mode = hybrid with model.kind = {spec.model.kind}: {error}"
        raise SpecError(source, problem) from error


def _check_cuda(spec: RunSpec, source: str) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    if not torch.cuda.is_available():
        problem = "torch finds no CUDA device here; use cpu, or see what taugrad doctor says"
        raise SpecError(source, f"workers.device = cuda: {problem}")
    compresses = not (spec.compressor.brings_exchange or isinstance(spec.compressor, NoCompression))
    if compresses and find_spec("cupy") is None:
        problem = "compression on a GPU needs CuPy; install taugrad[cuda12] or taugrad[cuda13]"
        raise SpecError(source, f"workers.device = cuda: {problem}")
