"""Commands one after the other on one Ray, whose start takes longer than they do: a JSON list a line.

After each command's output there is a line `exit CODE`.
"""

import json
import sys
from contextlib import nullcontext

from taugrad import cli
from taugrad.platform.launching import command
from taugrad.platform.launching.cluster import ray_cluster

if __name__ == "__main__":
    with ray_cluster():
        command.ray_cluster = nullcontext  # type: ignore[assignment]
        for line in sys.stdin:
            code = cli.main(json.loads(line))
            print(f"exit {code}", flush=True)
