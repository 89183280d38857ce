"""Commands one after the other on one Ray, whose start takes longer than they do: a JSON list a line.

What a command says goes to the file that is named; when it has ended, its exit code is printed. With
`dashboard` after the file's name this Ray has one.
"""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from taugrad import cli
from taugrad.platform.launching.cluster import ray_cluster

if __name__ == "__main__":
    with ray_cluster(dashboard="dashboard" in sys.argv[2:]):  # commands within it use it
        for line in sys.stdin:
            with open(sys.argv[1], "w", buffering=1) as said, redirect_stdout(said), redirect_stderr(said):
                code = cli.main(json.loads(line))
            print(code, flush=True)
