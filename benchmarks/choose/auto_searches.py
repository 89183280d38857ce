"""The searches of choose/auto_threshold.py, run as a user runs them: `taugrad search`, in a folder."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..harness.report import say
from .auto_pairs import Searched


def run_searches(folder: Path, searches: Sequence[Searched]) -> None:
    """Runs searches in a folder, one after the other, or goes on with them; those that are done take seconds.

    Raises RuntimeError: a search failed; its output says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, search in enumerate(searches, start=1):
        if (folder / f"{search.name}.done").exists():
            continue
        say(f"search {i} of {len(searches)}: {search.name}, {search.trials} trials")
        spec = folder / f"{search.name}.yaml"
        spec.write_text(json.dumps(search.tree(), indent=2), encoding="utf-8")  # JSON is YAML
        output = folder / f"{search.name}.log"
        command = [sys.executable, "-m", "taugrad", "search", spec.name, *search.overrides()]
        with output.open("w", encoding="utf-8") as log:
            ended = subprocess.run(
                command, cwd=folder, env=environment(folder), stdout=log, stderr=log, check=False
            )
        if ended.returncode:
            raise RuntimeError(f"{search.name}: taugrad search failed, see {output}")
        (folder / f"{search.name}.done").touch()


def environment(folder: Path) -> dict[str, str]:
    """MLflow's database is in the folder, whatever the user's own is."""
    return {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri(folder), "OMP_NUM_THREADS": "1"}


def tracking_uri(folder: Path) -> str:
    """Of the folder's MLflow database."""
    return f"sqlite:///{folder.resolve()}/mlflow.db"


def results_of(folder: Path, searched: Searched) -> Path:
    """The folder with a search's tables."""
    return folder / "taugrad-runs" / "searches" / searched.experiment / searched.name
