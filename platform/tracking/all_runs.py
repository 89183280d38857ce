"""Reads all runs of an experiment from a store, which returns them page by page."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_PAGE = 1000


def every_run(
    client: "MlflowClient", experiment_ids: Sequence[str], only: str = "", *, oldest_first: bool = False
) -> "Iterator[Run]":
    """Every run that was not deleted, with params, tags and last values of metrics; newest first by default.

    Args:
        client: the tracking store.
        experiment_ids: of the experiments.
        only: MLflow's filter, such as `attributes.status = 'FINISHED'`.
        oldest_first: whether the oldest run comes first.
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
