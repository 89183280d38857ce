"""What a finished run leaves, timings apart, and where two of them differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from taugrad.platform.tracking import names

Outcome = dict[str, Any]
_TIMES = ("time/", "net/")
_TIMED = {"total/seconds"}
_OF_ITS_OWN = {"seconds", "spec", "undelivered"}
"""What of a checkpoint two equal runs may have differently: how long it took, and what the run is called."""


def outcome_of(client: MlflowClient, run: Run, storage: Path) -> Outcome:
    """A run's state and metrics, every point of them, and its last checkpoint, if it has any."""
    run_id = run.info.run_id
    metrics = {
        key: sorted((point.step, point.value) for point in client.get_metric_history(run_id, key))
        for key in run.data.metrics
        if not key.startswith(_TIMES) and key not in _TIMED
    }
    outcome: Outcome = {"status": run.info.status, "metrics": metrics}
    checkpoints = sorted(storage.glob(f"{run_id}/iteration_*"))
    if checkpoints:
        files = sorted(checkpoints[-1].glob("worker_*.pt"))
        outcome["shared"] = torch.load(checkpoints[-1] / "shared.pt", weights_only=True)
        outcome["workers"] = [torch.load(file, weights_only=True) for file in files]
    return outcome


def outcomes(client: MlflowClient, experiment: str, storage: Path) -> dict[str, list[Outcome]]:
    """The finished runs of an experiment, by what each of them computed; a search's own run is left out."""
    outcomes_: dict[str, list[Outcome]] = {}
    there = client.get_experiment_by_name(experiment)
    if there is None:
        return outcomes_
    for run in client.search_runs([there.experiment_id], "attributes.status = 'FINISHED'", max_results=1000):
        computed = run.data.tags.get(names.TAG_SPEC_HASH)
        if computed is not None:
            outcomes_.setdefault(computed, []).append(outcome_of(client, run, storage))
    return outcomes_


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Where two nested states are not the same, tensors bit for bit; nothing if they are."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(_bits(a), _bits(b)):
            yield f"{where}: other values"
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in (a.keys() ^ b.keys()) - _OF_ITS_OWN:
            yield f"{where}.{key}: only in one"
        for key in (a.keys() & b.keys()) - _OF_ITS_OWN:
            yield from differences(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{where}: {len(a)} and {len(b)} of them"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{where}[{i}]")
    elif a != b and repr(a) != repr(b):  # NaN is as NaN
        yield f"{where}: {a!r:.80} and {b!r:.80}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As bytes, so that NaN equals itself and -0 is not 0."""
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor
