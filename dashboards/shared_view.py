"""Views that MLflow's UI keeps in an experiment's tags and opens by a URL.

The format is internal to MLflow's UI. It is tested with some versions, in a real browser
(tests/dashboards/test_mlflow_ui.py); with others, a notice says that it is not.
"""

import base64
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TESTED = ((3, 17), (3, 17))
"""The first and last minor version of MLflow whose UI is known to read these views."""

MAX_TAG_LENGTH = 20_000
"""Characters of an experiment's tag that MLflow keeps."""

_PREFIX = "mlflow.sharedViewState."
_COMPRESSED = "deflate;"


class ViewTooLong(ValueError):
    """A view does not fit in an experiment's tag."""


def unknown_version(version: str) -> str | None:
    """A notice for versions of MLflow's server, such as `3.17.2`, that these views were not tested with."""
    parts = version.split(".")
    try:
        minor = int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        minor = (0, 0)
    if TESTED[0] <= minor <= TESTED[1]:
        return None
    first, last = (".".join(map(str, version)) for version in TESTED)
    return (
        f"MLflow {version} is not among the versions that the prepared view was tried with "
        f"({first} to {last}): its UI may open the view without charts. "
        "Figures, tables and the report do not depend on it."
    )


def write_view(
    client: "MlflowClient", experiment_id: str, key: str, name: str, state: dict[str, Any]
) -> None:
    """Writes a view into an experiment, and replaces an earlier one with this key.

    Args:
        client: The tracking store.
        experiment_id: The experiment.
        key: Letters and digits; the view's name in the URL.
        name: The displayed name.
        state: The state of MLflow's chart page.

    Raises:
        ViewTooLong: It does not fit in a tag; nothing was written.
    """
    tag = _PREFIX + key
    now = time.time_ns() // 1_000_000
    value = json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": _packed(state)})
    if len(value) > MAX_TAG_LENGTH:
        raise ViewTooLong(f"the view {name!r} takes {len(value)} characters, a tag holds {MAX_TAG_LENGTH}")
    client.set_experiment_tag(experiment_id, tag, value)


def view_url(server: str, experiment_id: str, key: str, *, table: bool = False) -> str:
    """The URL of a view on a server, such as `http://127.0.0.1:5000`, with its charts or its table of runs.

    A further search facet in the URL would switch the view off.
    """
    query = f"viewStateShareKey={key}&compareRunsMode={'TABLE' if table else 'CHART'}"
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{query}"


def _packed(state: dict[str, Any]) -> str:
    text = json.dumps(state, separators=(",", ":"))
    return _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
