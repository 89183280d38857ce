"""What all tests share: `--require-gpu`, and how pytest-xdist spreads them over processes.

With `-n` (see the Makefile) a process gets whole files, so that a module's fixtures are made once. Two
folders stay together: tests/integration, because two cores bear one Ray at a time (but for the cluster of two
machines, which is short, and has its own addresses), and tests/dashboards, whose tests read one prepared
experiment.

Helpers that every folder's tests may import lie in tests/support.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).with_name("support")))
import cases

CLUSTER = "tests/integration/test_cluster.py"
TOGETHER = ("tests/integration/", "tests/dashboards/", "tests/docs/")
COMPILING = ("tests/compressors/test_methods.py", "tests/compressors/test_codecs.py")
"""These compile nearly every kernel, in one process each. Workers of a test would all compile the same."""
FIRST = (*COMPILING, *TOGETHER, "tests/test_benchmarks.py", "tests/test_auto_threshold.py", "tests/platform/")
"""Of the rest, what takes longest starts first: nobody waits for it at the end."""

if "PYTEST_XDIST_WORKER" in os.environ:  # each process has a core, not all of them; before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def unit_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, or a folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder) and file != CLUSTER), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class UnitScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # the order is ours, not that of the number of tests
    return UnitScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where there is no CUDA device")
    parser.addoption("--case", metavar="TEXT", help="of tests of many cases, those named so alone")


def pytest_configure(config: pytest.Config) -> None:
    cases.only = config.getoption("case")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--require-gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.exit("no CUDA device here: the GPU tests cannot run", returncode=1)
