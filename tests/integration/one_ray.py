"""Commands one after the other on one Ray, whose start takes longer than they do: a JSON list a line.

What a command says goes to the file that is named; when it has ended, its exit code is printed. With
`dashboard` after the file's name this Ray has one. A command may begin with variables, as `NAME=VALUE`.
"""

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from taugrad import cli
from taugrad.platform.launching.cluster import ray_cluster

if __name__ == "__main__":
    with ray_cluster(dashboard="dashboard" in sys.argv[2:]):  # commands within it use it
        for line in sys.stdin:
            words = json.loads(line)
            variables = dict(each.split("=", 1) for each in words if each.split("=")[0].isupper())
            with (
                open(sys.argv[1], "w", buffering=1) as said,
                redirect_stdout(said),
                redirect_stderr(said),
                mock.patch.dict(os.environ, variables),
            ):
                code = cli.main(words[len(variables) :])
            print(code, flush=True)
