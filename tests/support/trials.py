"""Trials of a search that were run, without running them, and what is said of them."""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from taugrad.search.console import print_result
from taugrad.search.progress import SearchProgress


def report(
    progress: SearchProgress, number: int, values: Sequence[float], megabytes: float, **more: Any
) -> None:
    """Reports a trial as `run_task` does: an epoch, and a result for every seed.

    Args:
        progress: of the search.
        number: the trial's.
        values: of its metric, one a seed.
        megabytes: that each training takes.
        more: of each training.
    """
    for seed, value in enumerate(values):
        told = {"value": value, "wire_bytes": 1e6 * megabytes}
        seen = {"share": 1.0, "spent_bytes": 1e6 * megabytes * (seed + 1), **told}
        progress.report(number, {"evaluation": 2 * (seed == 0), "full": False, **seen})
        training = {"fingerprint": f"{number}-{seed}", "seed": seed, "run_id": f"run{seed}", **told, **more}
        full = seed + 1 == len(values)
        progress.report(number, {"evaluation": 0, "full": full, "training": training, **seen})


def told(progress: SearchProgress) -> tuple[int, str]:
    """The exit code of a search that has ended, and what it says."""
    console = Console(file=io.StringIO(), width=132)
    code = print_result(console, progress, "", "sqlite:///mlflow.db")
    return code, console.file.getvalue()
