"""Commands one after the other on one Ray, whose start takes longer than they do: a JSON list a line.

After each command's output there is a line `exit CODE`. With the argument `dashboard` that Ray has its
dashboard, which searches want.
"""

import json
import sys
from contextlib import nullcontext
from typing import Any

from taugrad import cli
from taugrad.platform.launching import command
from taugrad.platform.launching.cluster import ray_cluster
from taugrad.search import running


def there_already(**_: Any) -> nullcontext[None]:
    """In the place of a cluster that is started for a command."""
    return nullcontext()


if __name__ == "__main__":
    with ray_cluster(dashboard="dashboard" in sys.argv):
        command.ray_cluster = running.ray_cluster = there_already  # type: ignore[assignment]
        for line in sys.stdin:
            code = cli.main(json.loads(line))
            print(f"exit {code}", flush=True)
