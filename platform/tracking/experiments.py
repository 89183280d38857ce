"""Finds an experiment in a store, and reads all of its runs, which a store returns page by page."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..spec import COMMAND_LINE, SpecError
from ..terminal import printable
from .masking import masked

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_PAGE = 1000


def find_experiment(client: "MlflowClient", name: str) -> str:
    """An experiment's id; raises SpecError: there is none of this name, and lists those that exist."""
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage != "deleted":
        return str(experiment.experiment_id)
    others = sorted(printable(other.name) for other in client.search_experiments(max_results=100))
    where, there = masked(client.tracking_uri), ", ".join(others) or "none"
    raise SpecError(COMMAND_LINE, f"EXPERIMENT {name!r}: not in {where}; there is: {there}")


def every_run(
    client: "MlflowClient", experiment_ids: Sequence[str], only: str = "", *, oldest_first: bool = False
) -> "Iterator[Run]":
    """Every run that was not deleted, with params, tags and last values of metrics; newest first by default.

    `only` is MLflow's filter, such as `attributes.status = 'FINISHED'`.
    """
    order, token = ["attributes.start_time ASC"] if oldest_first else None, None
    while True:
        page = client.search_runs(
            list(experiment_ids), only, max_results=_PAGE, order_by=order, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return
