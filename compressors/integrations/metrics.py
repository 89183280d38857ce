"""Metrics of what was sent, under the names that `taugrad train` uses, for any log or for MLflow."""

from importlib import import_module

from .rank_files import State


def ledger_metrics(state: State) -> dict[str, float]:
    """The latest step's ledger, and the total bytes, of this worker.

    Returns:
        `comm/fraction`, `comm/wire_bytes`, `comm/compression_ratio` and so on, as docs/reference/metrics.md
        defines them over all workers.
    """
    return state.last_step.metrics(workers=1) | {"comm/wire_mb_total": state.totals.wire_bytes / 1e6}


def log_to_mlflow(state: State, step: int | None = None) -> None:
    """Logs the latest step's ledger to the active MLflow run, on one rank; other ranks return at once.

    The rank is the first of the state's process group; for shards, the first of the first shard.

    Args:
        state: what `compress_gradients` returned.
        step: MLflow's step; by default, the number of steps exchanged so far.
    """
    if state.is_first_worker:
        mlflow = import_module("mlflow")  # not a dependency
        mlflow.log_metrics(ledger_metrics(state), step=state.totals.steps if step is None else step)
