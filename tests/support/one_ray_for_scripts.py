"""`benchmarks/platform/faults/one_ray.py`, where a script of Python may stand in the place of a command."""

import runpy
import sys
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # for benchmarks
from benchmarks.platform.faults import one_ray

from taugrad import cli


def run(arguments: list[str]) -> int:
    """Runs a command, or a script; its exit code."""
    if not arguments[0].endswith(".py"):
        return cli.main(arguments)
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    one_ray.main(run)
