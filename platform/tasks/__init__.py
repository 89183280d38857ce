"""Tasks: the loss of a batch, the metrics, which metric counts, and which way is better.

`config` and `metric` need no torch, so the names below are imported only when they are asked for.
"""

from typing import TYPE_CHECKING

from taugrad.compressors.lazy import export_lazily

__all__ = ["Metric", "Task", "build_task", "try_task"]

if TYPE_CHECKING:
    from .building import build_task, try_task
    from .metric import Metric
    from .task import Task
else:
    __getattr__ = export_lazily(
        __name__, {"Metric": ".metric", "Task": ".task", "build_task": ".building", "try_task": ".building"}
    )
