"""`taugrad` commands one after the other on one Ray: a JSON line `{"folder": ..., "arguments": [...]}` each.

After each command's output there is a line `exit CODE`. Tables and figures, which a command shows when its
runs are over, are left out: they take longer than the runs.
"""

import json
import os
import sys
from contextlib import nullcontext

from taugrad import cli
from taugrad.dashboards.console import ConsoleDisplay
from taugrad.platform.launching import command
from taugrad.platform.launching.cluster import ray_cluster


def main() -> None:
    """Runs commands until its input ends."""
    with ray_cluster():
        command.ray_cluster = nullcontext  # type: ignore[assignment]
        ConsoleDisplay.compare = lambda *_: None  # type: ignore[method-assign]
        for line in sys.stdin:
            asked = json.loads(line)
            os.chdir(asked["folder"])
            code = cli.main(asked["arguments"])
            print(f"exit {code}", flush=True)


if __name__ == "__main__":
    main()
