"""What was sent, in the MLflow run that is active."""

import mlflow
import torch.distributed as dist

from .metrics import ledger_metrics
from .rank_files import State


def log_to_mlflow(state: State, step: int | None = None) -> None:
    """Logs the latest step's ledger, on rank 0; other ranks return at once.

    Args:
        state: what `compress_gradients` returned.
        step: the number under which MLflow shows it; by default, that of the steps exchanged so far.
    """
    if dist.get_rank() == 0:
        mlflow.log_metrics(ledger_metrics(state), step=state.totals.steps if step is None else step)
