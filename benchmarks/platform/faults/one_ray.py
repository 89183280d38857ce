"""`taugrad` commands one after the other on one Ray, whose start takes longer than most of them do.

    python one_ray.py [dashboard]

A JSON line for each, with the arguments of `RayHost.start`. After what it says there is a line `exit CODE`.
With `dashboard` this Ray has one.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

from taugrad import cli
from taugrad.dashboards.console import ConsoleDisplay
from taugrad.platform.launching.driver.cluster import ray_cluster

Run = Callable[[list[str]], int]


def serve(asked: dict[str, Any], run: Run) -> None:
    """Runs what is asked for; what it says is added to a file."""
    os.chdir(asked["folder"])
    with open(asked["output"], "a", buffering=1) as said, ExitStack() as changes:
        changes.enter_context(redirect_stdout(said))
        changes.enter_context(redirect_stderr(said))
        changes.enter_context(mock.patch.dict(os.environ, asked["variables"]))
        if not asked["compare"]:
            changes.enter_context(mock.patch.object(ConsoleDisplay, "compare"))
        print(f"exit {run(asked['arguments'])}")


def main(run: Run) -> None:
    """Runs what it is told to until there is no more; `run` gives an exit code."""
    with ray_cluster(dashboard="dashboard" in sys.argv[1:]):  # commands within it use it
        for line in sys.stdin:
            serve(json.loads(line), run)


if __name__ == "__main__":
    main(cli.main)
